// What holds for every view of the explorer.
// Each function returns the places where it does not hold, so that a failure names them.
({
  // Text whose contrast with what is behind it is below WCAG AA: 4.5, or 3 for large text.  Colours are read back from a pixel of
  // a canvas, which knows every notation of CSS.  Text on a picture has no computed background and is left out.
  lowContrast() {
    const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const known = new Map();
    const rgba = (css) => {
      if (!known.has(css)) {
        pen.clearRect(0, 0, 1, 1);
        pen.fillStyle = css;
        pen.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
        known.set(css, [r, g, b, a / 255]);
      }
      return known.get(css);
    };
    const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
    const luminance = (colour) => {
      const [r, g, b] = colour.map((value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const canvas = rgba(getComputedStyle(document.documentElement).backgroundColor);
    const paper = canvas[3] ? canvas : rgba("Canvas");
    const behind = (node) => {
      const layers = [];
      for (let at = node; at; at = at.parentElement) {
        const style = getComputedStyle(at);
        if (style.backgroundImage.includes("url(")) return null;
        const colour = rgba(style.backgroundColor);
        if (colour[3] > 0) layers.push(colour);
        if (colour[3] === 1) break;
      }
      return layers.reverse().reduce((under, top) => over(top, under), paper);
    };
    const low = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const text = walker.currentNode.textContent.trim();
      const node = walker.currentNode.parentElement;
      if (!text || node.closest("svg, script, style, option, .visually-hidden, [disabled], [aria-disabled=true]")) continue;
      if (!node.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
      const box = node.getBoundingClientRect();
      if (box.width < 2 || box.height < 2) continue;
      const under = behind(node);
      if (!under) continue;
      const style = getComputedStyle(node);
      const ink = rgba(style.color).slice();
      for (let at = node; at; at = at.parentElement) ink[3] *= Number(getComputedStyle(at).opacity);
      const [light, dark] = [luminance(over(ink, under)), luminance(under)].sort((a, b) => b - a);
      const ratio = (light + 0.05) / (dark + 0.05);
      const size = parseFloat(style.fontSize);
      const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
      if (ratio < (large ? 3 : 4.5) - 0.005) {
        const where = `${node.tagName.toLowerCase()}.${node.getAttribute("class")}`;
        low.push(`${ratio.toFixed(2)} “${text.slice(0, 30)}” ${where} ${style.color} on ${under.slice(0, 3).map(Math.round)}`);
      }
    }
    return low;
  },

  // What reaches beyond the viewport, except inside something that scrolls or clips by itself.
  tooWide() {
    const root = document.documentElement;
    const wide = root.clientWidth;
    const found = root.scrollWidth > wide ? [`the page is ${root.scrollWidth} wide, not ${wide}`] : [];
    for (const node of document.querySelectorAll("body *")) {
      const box = node.getBoundingClientRect();
      if (box.right <= wide + 1 || box.width === 0 || !node.checkVisibility() || node.closest(".visually-hidden")) continue;
      let inside = getComputedStyle(node).position === "fixed";
      for (let at = node.parentElement; at && at !== document.body; at = at.parentElement)
        inside ||= getComputedStyle(at).overflowX !== "visible";
      if (!inside) found.push(`<${node.tagName.toLowerCase()} class="${node.getAttribute("class")}"> ends at ${Math.round(box.right)}`);
    }
    return found;
  },

  // Animations that run for longer than anyone would notice.
  moving() {
    const running = document.getAnimations().filter((one) => one.playState === "running");
    return running
      .filter((one) => one.effect.getComputedTiming().activeDuration > 50)
      .map((one) => `${one.effect.target?.className}: ${one.animationName ?? one.transitionProperty}`);
  },

  // Controls and pictures that a screen reader could only call “button”, “edit” or “image”.
  nameless() {
    const unnamed = (node) => {
      if (!node.checkVisibility() || node.closest("[aria-hidden=true]")) return false;
      if (node.matches("img[alt='']")) return false; // said to be decoration
      const role = node.getAttribute("role");
      if (["presentation", "none", "alert", "status", "main", "log", "rowgroup", "row", "cell"].includes(role)) return false;
      const ids = (node.getAttribute("aria-labelledby") ?? "").split(" ");
      const names = [node.getAttribute("aria-label"), ...ids.map((id) => document.getElementById(id)?.textContent)];
      names.push(node.labels?.[0]?.textContent, node.getAttribute("alt"), node.getAttribute("title"), node.textContent);
      return !names.some((name) => name?.trim());
    };
    const all = document.querySelectorAll("button, a[href], input, select, textarea, [role], canvas, img, svg");
    return [...all].filter(unnamed).map((node) => node.outerHTML.slice(0, 160));
  },

  // The element that has the focus, and whether one can see that it has.
  focused() {
    const node = document.activeElement;
    if (!node || node === document.body) return null;
    const near = [node, node.nextElementSibling, node.parentElement, node.firstElementChild].filter(Boolean);
    const marked = near.some((at) => {
      const style = getComputedStyle(at);
      return (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1) || style.boxShadow !== "none";
    });
    const label = node.getAttribute("aria-label") || node.labels?.[0]?.textContent || node.textContent.trim() || node.value;
    const box = node.getBoundingClientRect();
    node.dataset.stop ??= String(document.querySelectorAll("[data-stop]").length);
    const seen = box.width > 0 && box.height > 0 && node.checkVisibility();
    return { tag: node.tagName.toLowerCase(), id: node.id, name: (label ?? "").trim().slice(0, 60), marked, seen, stop: node.dataset.stop };
  },
});
