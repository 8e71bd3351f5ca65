/** Attention as lines: from each query to the keys it attends to, thicker and stronger with the weight. */

import { el, svg, eachFrame, readableToken, setChildren, shorten } from "./dom.js";
import { percent } from "./numbers.js";

const LINE_HEIGHT = 22;
const ROOMY_HEIGHT = 36; // of a line, where there are few
const FEW_LINES = 14;
const GAP = 160; // between the columns, at least
const WIDEST_GAP = 300;
const NAME_WIDTHS = { query: 84, key: 110 }; // pixels of the names of the columns, about

/** @typedef {{from: number, to: number, weight: number}} Link */

/**
 * A curve that leaves and arrives vertically.
 * @param {number} x1
 * @param {number} y1
 * @param {number} x2
 * @param {number} y2
 */
export function verticalCurve(x1, y1, x2, y2) {
  const bend = (y2 - y1) * 0.5;
  return `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`;
}

/**
 * A curve that leaves and arrives horizontally.
 * @param {number} x1
 * @param {number} y1
 * @param {number} x2
 * @param {number} y2
 */
export function horizontalCurve(x1, y1, x2, y2) {
  const bend = (x2 - x1) * 0.5;
  return `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
}

/**
 * The `count` strongest of the weights of at least `threshold`, strongest first.
 * @param {Float32Array} values  rows · columns
 * @param {number} columns
 * @param {number} count
 * @param {number} threshold
 * @returns {Link[]}
 */
export function strongestLinks(values, columns, count, threshold) {
  /** @type {Link[]} */
  const links = [];
  for (let index = 0; index < values.length; index += 1) {
    if (values[index] >= threshold && values[index] > 0) {
      links.push({ from: Math.floor(index / columns), to: index % columns, weight: values[index] });
    }
  }
  return links.sort((a, b) => b.weight - a.weight).slice(0, count);
}

/**
 * Two columns: queries at the left, keys at the right.  Hovering or focusing a query shows its lines alone.
 * @param {{title: string, queries: string[], keys: string[], links: Link[], onQuery?: (query: number) => void,
 *          maxHeight?: number}} initial
 */
export function linkColumns(initial) {
  let options = { ...initial };
  let chosen = -1;
  const picture = svg("svg", { class: "links-picture", role: "img" });
  const scroller = el("div", { class: "links-scroll", tabindex: "0", role: "group", "aria-label": "Links" }, picture);
  const readout = el("output", { class: "links-readout" });
  const names = el("p", { class: "links-names" }, el("span", {}, "query (looks)"), el("span", {}, "key (is looked at)"));
  const node = el("div", { class: "links" }, names, scroller, readout);
  const lines = svg("g", { class: "links-lines" });
  const left = svg("g", { class: "links-queries" });
  const right = svg("g", { class: "links-keys" });
  picture.append(lines, left, right);

  function layout() {
    const width = Math.max(node.clientWidth, 220);
    const count = Math.max(options.queries.length, options.keys.length);
    const lineHeight = count <= FEW_LINES ? ROOMY_HEIGHT : LINE_HEIGHT;
    const height = count * lineHeight + 12;
    const longest = (/** @type {string[]} */ texts) =>
      Math.min(
        14,
        texts.reduce((most, text) => Math.max(most, Array.from(readableToken(text)).length), 1),
      );
    const wanted = (/** @type {string[]} */ texts) => (lineHeight === ROOMY_HEIGHT ? 9.5 : 8) * longest(texts) + 14;
    const room = Math.max(40, (width - Math.min(GAP, width * 0.4)) / 2);
    const leftEnd = Math.min(wanted(options.queries), room);
    const rightStart = Math.max(
      leftEnd + 60,
      Math.min(width, leftEnd + WIDEST_GAP + wanted(options.keys)) - Math.min(wanted(options.keys), room),
    );
    return { width: Math.min(width, rightStart + Math.min(wanted(options.keys), room)), height, leftEnd, rightStart, lineHeight };
  }

  function drawLabels() {
    const { width, height, leftEnd, rightStart, lineHeight } = layout();
    picture.classList.toggle("roomy", lineHeight === ROOMY_HEIGHT);
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.setAttribute("width", String(width));
    names.style.width = `${width}px`;
    names.style.paddingInline = `${Math.max(0, leftEnd - NAME_WIDTHS.query)}px ${Math.max(0, width - rightStart - NAME_WIDTHS.key)}px`; // each by its column
    picture.setAttribute("height", String(height));
    picture.setAttribute(
      "aria-label",
      `${options.title}: ${options.links.length} links, ${options.queries.length} queries, ${options.keys.length} keys`,
    );
    scroller.style.maxHeight = `${options.maxHeight ?? 560}px`;
    setChildren(left, ...options.queries.map((label, query) => labelAt(label, query, leftEnd, lineHeight, "end", true)));
    setChildren(right, ...options.keys.map((label, key) => labelAt(label, key, rightStart, lineHeight, "start", false)));
    drawLines();
  }

  /**
   * @param {string} label
   * @param {number} position
   * @param {number} x
   * @param {number} lineHeight
   * @param {"start" | "end"} anchor
   * @param {boolean} query
   */
  function labelAt(label, position, x, lineHeight, anchor, query) {
    const y = position * lineHeight + lineHeight / 2 + (lineHeight === ROOMY_HEIGHT ? 11 : 10);
    const text = svg(
      "text",
      { class: "label", x: anchor === "end" ? x - 6 : x + 6, y, "text-anchor": anchor },
      shorten(readableToken(label), 14),
    );
    if (query) {
      text.addEventListener("pointerenter", () => choose(position));
      text.addEventListener("pointerleave", () => choose(-1));
      text.addEventListener("click", () => options.onQuery?.(position));
    }
    return text;
  }

  function drawLines() {
    const { leftEnd, rightStart, lineHeight } = layout();
    const middle = lineHeight / 2 + 6;
    const shown = chosen < 0 ? options.links : options.links.filter((link) => link.from === chosen);
    const strongestWeight = shown.reduce((most, link) => Math.max(most, link.weight), 0) || 1;
    const paths = shown.map((link) => {
      const share = link.weight / strongestWeight;
      return svg("path", {
        d: horizontalCurve(leftEnd, link.from * lineHeight + middle, rightStart, link.to * lineHeight + middle),
        "stroke-width": (0.6 + 4.4 * share).toFixed(2),
        "stroke-opacity": (0.12 + 0.8 * share ** 1.2).toFixed(3),
        "data-from": link.from,
        "data-to": link.to,
        "data-weight": link.weight.toFixed(6),
      });
    });
    setChildren(lines, ...paths.reverse()); // the strongest last, so that it is on top
    for (const [index, label] of [...left.children].entries())
      label.setAttribute("class", index === chosen ? "label strong" : "label");
    const touched = new Set(chosen < 0 ? [] : shown.map((link) => link.to));
    for (const [index, label] of [...right.children].entries())
      label.setAttribute("class", touched.has(index) ? "label strong" : "label");
    const best = shown.slice(0, 3).map((link) => `${readableToken(options.keys[link.to])} ${percent(link.weight)}`);
    readout.value =
      chosen < 0 ? "" : `${readableToken(options.queries[chosen])} → ${best.join(", ") || "no link above the threshold"}`;
  }

  /** @param {number} query */
  function choose(query) {
    if (query === chosen) return;
    chosen = query;
    redraw();
  }

  const redraw = eachFrame(drawLines);
  scroller.addEventListener("keydown", (event) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (event.key === "Escape") choose(-1);
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    choose(Math.min(Math.max(chosen + step, 0), options.queries.length - 1));
  });
  const sizes = new ResizeObserver(eachFrame(drawLabels));
  sizes.observe(node);

  return {
    node,
    choose,
    /** @param {Partial<typeof initial>} changes */
    update(changes) {
      options = { ...options, ...changes };
      if (chosen >= options.queries.length) chosen = -1;
      drawLabels();
    },
    destroy: () => sizes.disconnect(),
  };
}
