/** Lines over an axis: a loss that falls, a cost that grows.  Lines are told apart by name, dash and weight, not by colour alone. */

import { disclosure } from "./controls.js";
import { eachFrame, el, setChildren, svg, uniqueId } from "./dom.js";
import { fadeEdges } from "./fade.js";

/**
 * @typedef {{name: string, points: [number, number][], look: "strong" | "plain" | "dashed" | "dotted", dots?: boolean}} ChartLine
 */

/**
 * @typedef {object} ChartOptions
 * @property {string} title  said to screen readers
 * @property {ChartLine[]} lines
 * @property {string} xName
 * @property {string} yName
 * @property {boolean} [xLog]
 * @property {boolean} [yLog]
 * @property {{x: number, name: string}[]} [marks]  vertical lines
 * @property {number | null} [current]  the x that is marked as chosen
 * @property {number} [height]
 * @property {(x: number) => string} [xText]
 * @property {(y: number) => string} [yText]
 * @property {(x: number) => void} [onPick]
 */

const LOG_MARGIN = 0.06; // of the height, below the lowest point of a logarithmic axis
const CHART_MARGIN = { top: 28, right: 16, bottom: 40, left: 56 };

/**
 * @param {ChartOptions} initial
 * @returns {{node: HTMLElement, update: (changes: Partial<ChartOptions>) => void}}
 */
export function lineChart(initial) {
  let options = { ...initial };
  const picture = svg("svg", { class: "chart-picture", "aria-hidden": "true" });
  const stage = el("div", { class: "chart-stage", tabindex: "0", role: "group", "aria-roledescription": "line chart" }, picture);
  const readout = el("output", { class: "chart-readout", "aria-live": "polite" });
  const numbers = el("table", { class: "weights-table" });
  const tableHost = fadeEdges(el("div", { class: "table-scroll", tabindex: "0", role: "group", "aria-label": "Table of the lines" }, numbers), numbers);
  const table = disclosure("Show as table", tableHost);
  const key = el("div", { class: "chart-key" });
  const node = el("figure", { class: "chart" }, key, stage, readout, table);
  const clip = uniqueId("chart-clip");
  let hovered = /** @type {number | null} */ (null); // index into xs()
  let geometry = { width: 600, height: 300, left: 56, right: 16, low: [0, 0], high: [1, 1] };

  const number = (/** @type {number} */ value) => (Math.abs(value) >= 1e4 ? value.toExponential(1) : String(Number(value.toPrecision(4))));
  const xText = (/** @type {number} */ x) => (options.xText ?? number)(x);
  const yText = (/** @type {number} */ y) => (options.yText ?? number)(y);
  const usable = (/** @type {[number, number]} */ [x, y]) => Number.isFinite(x) && Number.isFinite(y) && (!options.xLog || x > 0) && (!options.yLog || y > 0);
  const xs = () => [...new Set(options.lines.flatMap((line) => line.points.filter(usable).map(([x]) => x)))].sort((a, b) => a - b);

  /** A number on an axis → pixels along it, from 0 to 1. @param {number} value @param {0 | 1} axis */
  function share(value, axis) {
    const log = axis === 0 ? options.xLog : options.yLog;
    const place = (/** @type {number} */ number) => (log ? Math.log10(number) : number);
    const [low, high] = [geometry.low[axis], geometry.high[axis]];
    return (place(value) - place(low)) / (place(high) - place(low) || 1);
  }
  const toX = (/** @type {number} */ x) => geometry.left + share(x, 0) * (geometry.width - geometry.left - geometry.right);
  const toY = (/** @type {number} */ y) => geometry.height - CHART_MARGIN.bottom - share(y, 1) * (geometry.height - CHART_MARGIN.top - CHART_MARGIN.bottom);

  const redraw = eachFrame(draw);

  function draw() {
    const width = stage.clientWidth;
    if (!width) return;
    const points = options.lines.flatMap((line) => line.points.filter(usable));
    const bounds = (/** @type {0 | 1} */ axis, /** @type {boolean | undefined} */ log) => {
      const values = points.map((point) => point[axis]);
      const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [log ? 1 : 0, log ? 10 : 1];
      if (log && axis === 1 && high > low) return [low / (high / low) ** LOG_MARGIN, high]; // no line lies on the axis
      if (log) return [low, high > low ? high : low * 10];
      const base = axis === 1 && low > 0 && low < 0.5 * high ? 0 : low;
      return [base, high > base ? high : base + 1];
    };
    const [[lowX, highX], [lowY, highY]] = [bounds(0, options.xLog), bounds(1, options.yLog)];
    const narrow = width < 480;
    geometry = {
      width, height: options.height ?? 300, left: narrow ? 44 : CHART_MARGIN.left, right: CHART_MARGIN.right, low: [lowX, lowY], high: [highX, highY],
    };
    const { height } = geometry;
    const bottom = height - CHART_MARGIN.bottom;
    setChildren(picture);
    picture.setAttribute("width", String(width));
    picture.setAttribute("height", String(height));
    picture.append(svg("clipPath", { id: clip }, svg("rect", { x: geometry.left, y: 0, width: Math.max(width - geometry.left, 0), height })));

    // axes: few lines, named at their ends
    for (const y of axisTicks(lowY, highY, Boolean(options.yLog), 5)) {
      picture.append(svg("line", { class: "chart-grid", x1: geometry.left, x2: width - geometry.right, y1: toY(y), y2: toY(y) }));
      picture.append(svg("text", { class: "chart-tick", x: geometry.left - 8, y: toY(y) + 4, "text-anchor": "end" }, yText(y)));
    }
    const ticks = axisTicks(lowX, highX, Boolean(options.xLog), narrow ? 5 : 8);
    for (const x of ticks) {
      picture.append(svg("text", { class: "chart-tick", x: toX(x), y: bottom + 18, "text-anchor": "middle" }, xText(x)));
    }
    picture.append(svg("line", { class: "chart-axis", x1: geometry.left, x2: width - geometry.right, y1: bottom, y2: bottom }));
    picture.append(svg("text", { class: "chart-name", x: width - geometry.right, y: height - 5, "text-anchor": "end" }, options.xName));
    picture.append(svg("text", { class: "chart-name", x: 0, y: 11 }, options.yName));

    // marks, lines, and the chosen step above them
    for (const mark of options.marks ?? []) {
      if (mark.x < lowX || mark.x > highX) continue;
      picture.append(svg("line", { class: "chart-mark", x1: toX(mark.x), x2: toX(mark.x), y1: CHART_MARGIN.top, y2: bottom }));
      const late = toX(mark.x) > width - 120;
      picture.append(svg("text", { class: "chart-mark-name", x: toX(mark.x) + (late ? -6 : 6), y: CHART_MARGIN.top + 10, "text-anchor": late ? "end" : "start" }, mark.name));
    }
    const group = svg("g", { "clip-path": `url(#${clip})` });
    for (const line of options.lines) {
      const shown = line.points.filter(usable);
      const path = shown.map((point, index) => `${index ? "L" : "M"}${toX(point[0]).toFixed(1)} ${toY(point[1]).toFixed(1)}`).join("");
      group.append(svg("path", { class: `chart-line chart-${line.look}`, d: path }));
      if (line.dots || shown.length === 1) {
        for (const [x, y] of shown) group.append(svg("circle", { class: `chart-dot chart-${line.look}`, cx: toX(x), cy: toY(y), r: 3 }));
      }
    }
    picture.append(group);
    if (options.current !== null && options.current !== undefined && options.current >= lowX && options.current <= highX) {
      const x = toX(options.current);
      picture.append(svg("line", { class: "chart-current", x1: x, x2: x, y1: CHART_MARGIN.top, y2: bottom }));
      picture.append(svg("circle", { class: "chart-current-dot", cx: x, cy: bottom, r: 5 }));
    }
    const at = hovered === null ? undefined : xs()[hovered];
    if (at !== undefined) {
      picture.append(svg("line", { class: "chart-hover", x1: toX(at), x2: toX(at), y1: CHART_MARGIN.top, y2: bottom }));
      for (const line of options.lines) {
        const point = line.points.find(([x]) => x === at);
        if (point && usable(point)) picture.append(svg("circle", { class: `chart-dot chart-${line.look}`, cx: toX(point[0]), cy: toY(point[1]), r: 4.5 }));
      }
    }
  }

  function showReadout() {
    const at = hovered === null ? undefined : xs()[hovered];
    if (at === undefined) {
      readout.removeAttribute("data-x");
      readout.value = "";
      return;
    }
    readout.setAttribute("data-x", String(at));
    const parts = options.lines.flatMap((line) => {
      const point = line.points.find(([x]) => x === at);
      return point ? [el("span", { "data-line": line.name, "data-y": String(point[1]) }, `${line.name} `, el("b", {}, yText(point[1])))] : [];
    });
    setChildren(readout, el("span", {}, `${options.xName} `, el("b", {}, xText(at))), ...parts);
  }

  /** @param {number | null} index */
  function hover(index) {
    const count = xs().length;
    hovered = index === null || !count ? null : Math.min(Math.max(index, 0), count - 1);
    showReadout();
    redraw();
  }

  function describe() {
    const names = options.lines.map((line) => line.name).join(", ");
    stage.setAttribute("aria-label", `${options.title}: ${names} over ${options.xName}. Arrow keys move along the lines.`);
    setChildren(
      key,
      ...options.lines.map((line) =>
        el("span", { class: "chart-key-item" }, svg("svg", { width: 26, height: 10, "aria-hidden": "true" }, svg("path", { class: `chart-line chart-${line.look}`, d: "M1 5H25" })), line.name),
      ),
    );
  }

  function renderTable() {
    const all = xs();
    const every = Math.ceil(all.length / 400); // a longer table is of no use, and slow
    const head = el("tr", {}, el("th", { scope: "col" }, options.xName), ...options.lines.map((line) => el("th", { scope: "col" }, line.name)));
    const body = el("tbody");
    all.forEach((x, index) => {
      if (index % every) return;
      const cells = options.lines.map((line) => {
        const point = line.points.find(([at]) => at === x);
        return el("td", { "data-y": point ? String(point[1]) : null }, point ? yText(point[1]) : "");
      });
      body.append(el("tr", { "data-x": String(x) }, el("th", { scope: "row" }, xText(x)), ...cells));
    });
    setChildren(numbers, el("caption", {}, options.title), el("thead", {}, head), body);
  }

  stage.addEventListener("pointermove", (event) => {
    const x = event.clientX - stage.getBoundingClientRect().left;
    const all = xs();
    let nearest = 0;
    all.forEach((value, index) => {
      if (Math.abs(toX(value) - x) < Math.abs(toX(all[nearest]) - x)) nearest = index;
    });
    hover(nearest);
  });
  stage.addEventListener("pointerleave", () => hover(null));
  stage.addEventListener("click", () => hovered !== null && options.onPick?.(xs()[hovered]));
  stage.addEventListener("keydown", (event) => {
    const count = xs().length;
    const now = hovered ?? -1;
    /** @type {{[key: string]: number}} */
    const targets = { ArrowRight: now + 1, ArrowLeft: Math.max(now - 1, 0), Home: 0, End: count - 1, PageDown: now + Math.ceil(count / 10), PageUp: now - Math.ceil(count / 10) };
    if (event.key in targets) {
      event.preventDefault();
      hover(targets[event.key]);
    } else if (event.key === "Escape") {
      hover(null);
    } else if ((event.key === "Enter" || event.key === " ") && hovered !== null && options.onPick) {
      event.preventDefault();
      options.onPick(xs()[hovered]);
    }
  });
  table.addEventListener("toggle", () => table.open && renderTable());
  new ResizeObserver(redraw).observe(stage);
  stage.style.height = `${options.height ?? 300}px`;
  describe();

  return {
    node,
    update(changes) {
      options = { ...options, ...changes };
      stage.style.height = `${options.height ?? 300}px`;
      describe();
      showReadout();
      if (table.open) renderTable();
      redraw();
    },
  };
}

/**
 * Round numbers along an axis: steps of 1, 2 or 5, or powers of ten.
 * @param {number} low
 * @param {number} high
 * @param {boolean} log
 * @param {number} most
 */
export function axisTicks(low, high, log, most) {
  /** @type {number[]} */
  const ticks = [];
  if (log) {
    const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
    const every = Math.max(1, Math.ceil((last - first + 1) / most));
    for (let power = first; power <= last; power += every) ticks.push(10 ** power);
    if (ticks.length < 2) {
      const decade = 10 ** Math.floor(Math.log10(low) + 1e-9);
      for (const factor of [1, 2, 5, 10, 20, 50]) {
        if (decade * factor >= low && decade * factor <= high && !ticks.includes(decade * factor)) ticks.push(decade * factor);
      }
      ticks.sort((a, b) => a - b);
    }
    return ticks;
  }
  const rough = (high - low) / most;
  const size = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((wide) => wide >= rough) ?? 10 * size;
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + 1e-9 * step; tick += step) ticks.push(Number(tick.toPrecision(12)));
  return ticks;
}
