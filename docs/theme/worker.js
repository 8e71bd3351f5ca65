// Browsers start no workers from file://.  A page opened from disk runs the worker of the search in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.waiting = []; // messages sent before the worker listens
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => setTimeout(() => this.onmessage?.({ data })); // what a worker calls to answer
      inside.importScripts = () => {};
      const script = inside.document.createElement("script");
      script.src = new URL(url, location).href;
      script.onload = () => {
        for (const data of this.waiting) this.deliver(data);
        this.waiting = null;
      };
      script.onerror = (error) => this.onerror?.(error);
      inside.document.head.append(script);
    }

    deliver(data) {
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.deliver(data);
    }

    terminate() {
      this.frame.remove();
    }
  };
}
