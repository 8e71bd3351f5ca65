// Counts what a page still has to do, from before its first script on, so that a test can wait for the end of all of it:
// answers, their bodies, animation frames, timers and pictures.  Nothing here depends on how fast the machine is.  Keeps the
// last streamed answer, too, which a browser does not.
(() => {
  const SOON = 1000; // milliseconds: a longer timer is not part of an answer; a player's next step, say
  const HANGS = 30_000; // milliseconds after which an answer will never come
  const frame = window.requestAnimationFrame.bind(window);
  const later = window.setTimeout.bind(window);
  const work = new Set(); // of each kind what has begun and not ended
  const pictures = new Set();

  const follow = (name, promise) => {
    const one = { name };
    work.add(one);
    const done = () => work.delete(one);
    promise.then(done, done);
    return promise;
  };
  const ask = window.fetch.bind(window);
  window.fetch = (...given) =>
    follow(`answer of ${given[0]}`, ask(...given)).then((response) => {
      if (new URL(response.url).pathname.endsWith("/inspect/stream")) {
        const copy = response.clone().text(); // read beside the page, as it comes
        copy.then((text) => (window.streamed = text)).catch(() => {}); // aborted
      }
      return response;
    });
  for (const read of ["json", "text", "blob", "arrayBuffer"]) {
    const body = Response.prototype[read];
    Response.prototype[read] = function () {
      return follow(`body of ${this.url}`, body.call(this));
    };
  }

  // A callback that is called once, or cancelled.
  const once = (start, cancel, counts) => {
    const [begin, end, waiting] = [window[start].bind(window), window[cancel].bind(window), new Map()];
    window[start] = (call, ...given) => {
      const one = { name: start };
      const id = begin((...found) => {
        waiting.delete(id);
        try {
          call(...found);
        } finally {
          work.delete(one); // what the call has begun is counted by now
        }
      }, ...given);
      if (counts(...given)) {
        work.add(one);
        waiting.set(id, one);
      }
      return id;
    };
    window[cancel] = (id) => {
      work.delete(waiting.get(id));
      waiting.delete(id);
      end(id);
    };
  };
  once("requestAnimationFrame", "cancelAnimationFrame", () => true);
  once("setTimeout", "clearTimeout", (delay = 0) => delay < SOON);
  window.Image = new Proxy(window.Image, {
    construct(Picture, given) {
      const picture = new Picture(...given);
      pictures.add(new WeakRef(picture));
      return picture;
    },
  });

  const unfinished = () => {
    const found = [...work].map((one) => one.name);
    for (const one of pictures) {
      const picture = one.deref();
      if (!picture) pictures.delete(one);
      else if (!picture.complete) found.push("picture");
    }
    const phase = document.documentElement.dataset.phase;
    if (phase !== "idle") found.push(`the page, which is ${phase}`);
    for (const node of document.querySelectorAll(".placard-loading, [aria-busy=true]"))
      found.push(`${node.tagName} ${node.className}`);
    return found;
  };

  // Resolves after two frames without work, with nothing; or with what has not ended.  Observers of sizes are called after the
  // callbacks of a frame, those of intersections before the next one: what they begin is seen then.
  window.settled = async () => {
    const give_up = performance.now() + HANGS;
    for (let quiet = 0, before = unfinished().length; quiet < 2; before = unfinished().length) {
      await new Promise((drawn) => frame(() => later(drawn)));
      quiet = before || unfinished().length ? 0 : quiet + 1;
      if (!quiet && performance.now() > give_up) return unfinished();
    }
    return [];
  };
})();
