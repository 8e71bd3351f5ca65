/**
 * A matrix of attention weights as coloured cells.  Cells are pixels of tiles of 256 × 256, scaled onto one canvas as large as
 * what is visible, so a matrix of 512 × 512 scrolls as smoothly as one of 5 × 5; labels are SVG text, only the visible ones.
 */

import { el, svg, setChildren, eachFrame, readableToken, shorten } from "./dom.js";
import { inkCss, isDark, legend, onThemeChange, rampTable } from "./colour.js";
import { percent } from "./numbers.js";
import { disclosure } from "./controls.js";
import { fadeEdges } from "./fade.js";

const TILE = 256;
const LABEL_FONT = 12;
const SMALLEST_LABELLED = 13; // a cell lower than this has no room for its label
const LARGEST_CELL = 64;
const UPRIGHT_TOP = 34; // pixels above the cells: two lines, the names of the axes
const NUMBERED = 30; // cells this large hold their percentage
const TABLE_SIDE = 64; // a table of more cells than this squared is cut: browsers lay out each of them

/**
 * @typedef {object} HeatmapOptions
 * @property {string} title  said to screen readers
 * @property {string[]} rowLabels
 * @property {string[]} columnLabels
 * @property {Float32Array} [values]  rows · columns weights, or
 * @property {(top: number, left: number, rows: number, columns: number) => Promise<Float32Array>} [loadTile]  a part of them
 * @property {number} [max]  the weight of the last colour; 1 if not given
 * @property {number} [low]  the weight of the first colour; 0 if not given
 * @property {{title: string, low: string, high: string}} [scale]  texts of the legend, of values that are no weights
 * @property {(row: number, column: number) => boolean} [masked]  cells that the query may not attend to are hatched
 * @property {string} [rowName]  what a row is: "query"
 * @property {string} [columnName]
 * @property {(row: number, column: number) => void} [onHover]  -1, -1 when the pointer leaves
 * @property {(row: number, column: number) => void} [onPick]
 * @property {number} [maxHeight]  pixels; the rest scrolls
 * @property {number} [cell]  pixels; fitted to the width if not given
 * @property {(weight: number) => string} [format]
 */

/**
 * @typedef {object} Heatmap
 * @property {HTMLElement} node
 * @property {(row: number, column: number) => void} highlight  outline a row or a cell; -1 for none
 * @property {(cell: number | null) => void} zoom  side of a cell in pixels; null fits it to the width
 * @property {() => number} cellSize
 * @property {(changes: Partial<HeatmapOptions>) => void} update  other weights, labels or scale
 * @property {() => void} destroy
 */

/**
 * @param {HeatmapOptions} initial
 * @returns {Heatmap}
 */
export function heatmap(initial) {
  let options = { ...initial };
  const rows = () => options.rowLabels.length;
  const columns = () => options.columnLabels.length;

  const canvas = el("canvas", { class: "heatmap-canvas", "aria-hidden": "true" });
  const labels = svg("svg", { class: "heatmap-labels", "aria-hidden": "true" });
  const stage = el("div", { class: "heatmap-stage" }, canvas, labels);
  const sizer = el("div", { class: "heatmap-sizer" }, stage);
  const scroller = el(
    "div",
    { class: "heatmap-scroll", tabindex: "0", role: "group", "aria-roledescription": "heat map" },
    sizer,
  );
  const readout = el("output", { class: "heatmap-readout", "aria-live": "polite" });
  const numbers = el("table", { class: "weights-table" });
  const tableHost = fadeEdges(el("div", { class: "table-scroll", tabindex: "0", role: "group", "aria-label": "Table of weights" }, numbers), numbers);
  const table = disclosure("Show as table", tableHost);
  const scale = el("div", { class: "heatmap-scale" });
  const foot = el("div", { class: "heatmap-foot" }, readout, scale);
  const node = el("div", { class: "heatmap" }, scroller, foot, table);

  /** @type {Map<string, {picture: HTMLCanvasElement, weights: Float32Array, columns: number} | "loading">} */
  let tiles = new Map();
  let generation = 0; // answers for an earlier matrix are dropped
  let wantedCell = /** @type {number | null} */ (options.cell ?? null);
  let geometry = { cell: 20, left: 60, top: 60, width: 300, height: 300 };
  let cursor = { row: -1, column: -1 };
  let pinned = false;
  let outlined = { row: -1, column: -1 };

  /** What a column and a row are, in few letters: "word of the source" → "source". */
  const axisNames = () => {
    const brief = (/** @type {string} */ name) => name.split(" of the ").slice(-1)[0];
    return [`${brief(options.columnName ?? "key")} →`, `${brief(options.rowName ?? "query")} ↓`];
  };

  /** Sizes: cells as large as fit the width, from 1 to 64 pixels, or as large as asked for. */
  function measure() {
    const available = node.clientWidth;
    if (!available) return;
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.font = `${LABEL_FONT}px ${getComputedStyle(node).fontFamily}`;
    const longest = (/** @type {string[]} */ texts) =>
      texts.slice(0, 600).reduce((most, text) => Math.max(most, context.measureText(shorten(readableToken(text), 14)).width), 0);
    const rowLabel = Math.max(Math.ceil(Math.min(longest(options.rowLabels), 0.32 * available)), Math.ceil(longest(axisNames()))) + 12;
    const fitted = Math.floor(Math.min(LARGEST_CELL, (available - rowLabel - 2) / columns()));
    const high = Math.max(1, Math.floor(((options.maxHeight ?? 560) - 100) / rows()));
    // cells without labels are an overview: all of them should be in sight
    const cell = Math.max(
      1,
      wantedCell ?? Math.min(fitted, fitted < SMALLEST_LABELLED ? high : Math.max(high, SMALLEST_LABELLED)),
    );
    const labelled = cell >= SMALLEST_LABELLED;
    const upright = longest(options.columnLabels) + 10 <= cell; // short labels need not be turned
    geometry = {
      cell,
      left: labelled ? rowLabel : 20,
      top: labelled ? (upright ? UPRIGHT_TOP : Math.max(Math.ceil(Math.min(longest(options.columnLabels), 110)) + 12, UPRIGHT_TOP + 1)) : 20,
      width: 0,
      height: 0,
    };
    const fullWidth = geometry.left + columns() * cell + 1;
    const fullHeight = geometry.top + rows() * cell + 1;
    geometry.width = Math.min(available, fullWidth);
    geometry.height = Math.min(options.maxHeight ?? 560, fullHeight);
    foot.style.maxWidth = `${Math.max(geometry.width, 300)}px`; // the legend ends where the cells do
    sizer.style.width = `${fullWidth}px`;
    sizer.style.height = `${fullHeight}px`;
    scroller.style.height = `${geometry.height + (fullWidth > available ? 14 : 0)}px`;
    stage.style.width = `${geometry.width}px`;
    stage.style.height = `${geometry.height}px`;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(geometry.width * ratio);
    canvas.height = Math.round(geometry.height * ratio);
    canvas.style.width = `${geometry.width}px`;
    canvas.style.height = `${geometry.height}px`;
    labels.setAttribute("width", String(geometry.width));
    labels.setAttribute("height", String(geometry.height));
    redraw();
  }

  /**
   * The picture of a tile: one pixel for each cell; masked cells are transparent, so that the hatching behind them shows.
   * @param {number} tileRow
   * @param {number} tileColumn
   */
  function tileAt(tileRow, tileColumn) {
    const key = `${tileRow},${tileColumn}`;
    const found = tiles.get(key);
    if (found) return found === "loading" ? null : found;
    const top = tileRow * TILE;
    const left = tileColumn * TILE;
    const high = Math.min(TILE, rows() - top);
    const wide = Math.min(TILE, columns() - left);
    if (options.values) {
      const weights = new Float32Array(high * wide);
      for (let row = 0; row < high; row += 1) {
        const start = (top + row) * columns() + left;
        weights.set(options.values.subarray(start, start + wide), row * wide);
      }
      const tile = { picture: paintTile(weights, top, left, high, wide), weights, columns: wide };
      tiles.set(key, tile);
      return tile;
    }
    if (options.loadTile) {
      tiles.set(key, "loading");
      const asked = generation;
      options.loadTile(top, left, high, wide).then(
        (weights) => {
          if (asked !== generation) return;
          tiles.set(key, { picture: paintTile(weights, top, left, high, wide), weights, columns: wide });
          redraw();
          showReadout();
          if (table.open) renderTable();
        },
        (/** @type {Error} */ error) => {
          if (asked === generation) readout.value = error.message;
        },
      );
    }
    return null;
  }

  /**
   * @param {Float32Array} weights
   * @param {number} top
   * @param {number} left
   * @param {number} high
   * @param {number} wide
   */
  function paintTile(weights, top, left, high, wide) {
    const picture = el("canvas", { width: wide, height: high });
    const context = /** @type {CanvasRenderingContext2D} */ (picture.getContext("2d"));
    const image = context.createImageData(wide, high);
    const pixels = new Uint32Array(image.data.buffer);
    const colours = new Uint32Array(rampTable().buffer);
    const low = options.low ?? 0;
    const factor = 255 / ((options.max || 1) - low || 1);
    for (let row = 0; row < high; row += 1) {
      for (let column = 0; column < wide; column += 1) {
        const index = row * wide + column;
        if (options.masked?.(top + row, left + column)) continue;
        pixels[index] = colours[Math.max(0, Math.min(255, Math.round((weights[index] - low) * factor)))];
      }
    }
    context.putImageData(image, 0, 0);
    return picture;
  }

  /** @param {number} row @param {number} column */
  function weightAt(row, column) {
    const tile = tileAt(Math.floor(row / TILE), Math.floor(column / TILE));
    return tile ? tile.weights[(row % TILE) * tile.columns + (column % TILE)] : NaN;
  }

  const redraw = eachFrame(draw);

  function draw() {
    const { cell, left, top, width, height } = geometry;
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const ratio = canvas.width / Math.max(width, 1);
    const scrollLeft = scroller.scrollLeft;
    const scrollTop = scroller.scrollTop;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.save();
    context.beginPath();
    context.rect(left, top, width - left, height - top);
    context.clip();
    context.imageSmoothingEnabled = false;

    // hatching below everything: it shows where cells are masked
    const x0 = left - scrollLeft;
    const y0 = top - scrollTop;
    if (options.masked) {
      context.fillStyle = /** @type {CanvasPattern} */ (hatchPattern(context));
      context.fillRect(x0, y0, columns() * cell, rows() * cell);
    }
    for (let tileRow = Math.floor(scrollTop / cell / TILE); tileRow * TILE < rows(); tileRow += 1) {
      if (y0 + tileRow * TILE * cell > height) break;
      for (let tileColumn = Math.floor(scrollLeft / cell / TILE); tileColumn * TILE < columns(); tileColumn += 1) {
        if (x0 + tileColumn * TILE * cell > width) break;
        const tile = tileAt(tileRow, tileColumn);
        if (!tile) continue;
        const { picture } = tile;
        context.drawImage(
          picture,
          x0 + tileColumn * TILE * cell,
          y0 + tileRow * TILE * cell,
          picture.width * cell,
          picture.height * cell,
        );
      }
    }

    // a hairline of paper between cells that are large enough for it
    const style = getComputedStyle(node);
    if (cell >= 9) {
      context.strokeStyle = style.getPropertyValue("--surface").trim();
      context.lineWidth = 1;
      context.beginPath();
      for (let x = x0 + cell; x < width; x += cell) {
        context.moveTo(x - 0.5, top);
        context.lineTo(x - 0.5, height);
      }
      for (let y = y0 + cell; y < height; y += cell) {
        context.moveTo(left, y - 0.5);
        context.lineTo(width, y - 0.5);
      }
      context.stroke();
    }
    if (cell >= NUMBERED) drawNumbers(context, x0, y0);
    for (const [mark, strong] of /** @type {[{row: number, column: number}, boolean][]} */ ([
      [outlined, false],
      [cursor, true],
    ])) {
      if (mark.row < 0) continue;
      context.strokeStyle = style.getPropertyValue(strong ? "--ink" : "--accent").trim();
      context.lineWidth = strong ? 2 : 1.5;
      const y = y0 + mark.row * cell;
      if (mark.column < 0) context.strokeRect(x0, y, columns() * cell, cell);
      else context.strokeRect(x0 + mark.column * cell, y, cell, cell);
    }
    context.restore();
    drawLabels(scrollLeft, scrollTop);
  }

  /**
   * The percentage in each cell; few cells are this large.
   * @param {CanvasRenderingContext2D} context
   * @param {number} x0
   * @param {number} y0
   */
  function drawNumbers(context, x0, y0) {
    const { cell, width, height } = geometry;
    context.font = `12px ${getComputedStyle(node).fontFamily}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let row = Math.max(0, Math.floor(-y0 / cell)); row < rows() && y0 + row * cell < height; row += 1) {
      for (let column = Math.max(0, Math.floor(-x0 / cell)); column < columns() && x0 + column * cell < width; column += 1) {
        const weight = weightAt(row, column);
        if (!(weight >= 0.005) || options.masked?.(row, column)) continue;
        context.fillStyle = inkCss(weight / (options.max || 1));
        context.globalAlpha = weight / (options.max || 1) < 0.08 ? 0.62 : 1;
        context.fillText((100 * weight).toFixed(0), x0 + (column + 0.5) * cell, y0 + (row + 0.5) * cell + 0.5);
      }
    }
    context.globalAlpha = 1;
  }

  /** @param {number} scrollLeft @param {number} scrollTop */
  function drawLabels(scrollLeft, scrollTop) {
    const { cell, left, top, width, height } = geometry;
    labels.replaceChildren();
    if (cell < SMALLEST_LABELLED) {
      if (cursor.row < 0) {
        labels.append(svg("text", { x: left, y: 13, class: "axis-name" }, `${options.columnName ?? "key"} →`));
        const name = svg(
          "text",
          { x: -top, y: 13, class: "axis-name", transform: "rotate(-90)", "text-anchor": "end" },
          `← ${options.rowName ?? "query"}`,
        );
        labels.append(name);
      }
      return;
    }
    const turned = top > UPRIGHT_TOP;
    axisNames().forEach((name, line) =>
      labels.append(svg("text", { class: "axis-name", x: left - 8, y: top - 20 + 14 * line, "text-anchor": "end" }, name)),
    );
    for (let column = Math.floor(scrollLeft / cell); column < columns(); column += 1) {
      const x = left - scrollLeft + (column + 0.5) * cell;
      if (x > width) break;
      if (x < left) continue;
      const name = shorten(readableToken(options.columnLabels[column]), 14);
      const strong = column === cursor.column ? "label strong" : "label";
      labels.append(
        turned && Array.from(name).length > 1
          ? svg("text", { class: strong, transform: `translate(${x + 4} ${top - 6}) rotate(-90)` }, name)
          : svg("text", { class: strong, x, y: top - 8, "text-anchor": "middle" }, name),
      );
    }
    for (let row = Math.floor(scrollTop / cell); row < rows(); row += 1) {
      const y = top - scrollTop + (row + 0.5) * cell;
      if (y > height) break;
      if (y < top) continue;
      const strong = row === cursor.row ? "label strong" : "label";
      const name = shorten(readableToken(options.rowLabels[row]), 14);
      labels.append(svg("text", { class: strong, x: left - 8, y: y + 4, "text-anchor": "end" }, name));
    }
  }

  function showReadout() {
    if (cursor.row < 0) {
      readout.removeAttribute("data-row");
      readout.removeAttribute("data-column");
      readout.removeAttribute("data-weight");
      readout.value = "";
      return;
    }
    const { row, column } = cursor;
    const from = readableToken(options.rowLabels[row]);
    const to = readableToken(options.columnLabels[column]);
    const weight = weightAt(row, column);
    readout.setAttribute("data-row", String(row));
    readout.setAttribute("data-column", String(column));
    if (Number.isNaN(weight)) readout.removeAttribute("data-weight");
    else readout.setAttribute("data-weight", weight.toFixed(6));
    const hidden = options.masked?.(row, column);
    const value = hidden ? "masked" : Number.isNaN(weight) ? "…" : (options.format ?? percent)(weight);
    setChildren(readout, el("bdi", {}, from), el("span", { class: "arrow" }, " → "), el("bdi", {}, to), " ", el("b", {}, value));
  }

  /** @param {number} row @param {number} column */
  function moveTo(row, column) {
    if (row === cursor.row && column === cursor.column) return;
    cursor = { row, column };
    showReadout();
    options.onHover?.(row, column);
    redraw();
  }

  function renderTable() {
    const { cell } = geometry;
    const top = rows() <= TABLE_SIDE ? 0 : Math.min(Math.floor(scroller.scrollTop / cell), rows() - TABLE_SIDE);
    const left = columns() <= TABLE_SIDE ? 0 : Math.min(Math.floor(scroller.scrollLeft / cell), columns() - TABLE_SIDE);
    const bottom = Math.min(top + TABLE_SIDE, rows());
    const right = Math.min(left + TABLE_SIDE, columns());
    const head = el("tr", {}, el("td", {}));
    for (let column = left; column < right; column += 1)
      head.append(el("th", { scope: "col" }, readableToken(options.columnLabels[column])));
    const body = el("tbody");
    for (let row = top; row < bottom; row += 1) {
      const line = el("tr", {}, el("th", { scope: "row" }, readableToken(options.rowLabels[row])));
      for (let column = left; column < right; column += 1) {
        const weight = weightAt(row, column);
        const text = options.masked?.(row, column) ? "masked" : Number.isNaN(weight) ? "…" : weight.toFixed(4);
        line.append(el("td", { "data-weight": Number.isNaN(weight) ? null : weight.toFixed(6) }, text));
      }
      body.append(line);
    }
    const cut = rows() > TABLE_SIDE || columns() > TABLE_SIDE;
    const part = cut
      ? `; rows ${top + 1} to ${bottom} of ${rows()}, columns ${left + 1} to ${right} of ${columns()}: scroll the map for others`
      : "";
    const caption = el(
      "caption",
      {},
      `${options.title}: a row for each ${options.rowName ?? "query"}, a column for each ${options.columnName ?? "key"}${part}`,
    );
    setChildren(numbers, caption, el("thead", {}, head), body);
  }

  function describe() {
    scroller.setAttribute("aria-label", `${options.title}, ${rows()} by ${columns()}. Arrow keys move from cell to cell.`);
    setChildren(
      scale,
      legend({ ...(options.scale ?? { title: "weight", high: percent(options.max ?? 1) }), masked: Boolean(options.masked) }),
    );
  }

  /** Keep the cursor in sight. */
  function scrollToCursor() {
    const { cell, left, top, width, height } = geometry;
    const x = cursor.column * cell;
    const y = cursor.row * cell;
    if (x < scroller.scrollLeft) scroller.scrollLeft = x;
    if (x + cell > scroller.scrollLeft + width - left) scroller.scrollLeft = x + cell - width + left;
    if (y < scroller.scrollTop) scroller.scrollTop = y;
    if (y + cell > scroller.scrollTop + height - top) scroller.scrollTop = y + cell - height + top;
  }

  scroller.addEventListener("scroll", redraw, { passive: true });
  stage.addEventListener("pointermove", (event) => {
    if (pinned) return;
    const box = stage.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - geometry.left + scroller.scrollLeft) / geometry.cell);
    const row = Math.floor((event.clientY - box.top - geometry.top + scroller.scrollTop) / geometry.cell);
    const inside =
      event.clientX - box.left >= geometry.left && event.clientY - box.top >= geometry.top && row < rows() && column < columns();
    moveTo(inside ? row : -1, inside ? column : -1);
  });
  stage.addEventListener("pointerleave", () => !pinned && moveTo(-1, -1));
  stage.addEventListener("click", () => {
    pinned = !pinned && cursor.row >= 0;
    if (cursor.row >= 0) options.onPick?.(cursor.row, cursor.column);
  });
  scroller.addEventListener("keydown", (event) => {
    /** @type {{[key: string]: [number, number]}} */
    const steps = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      Home: [0, -1e6],
      End: [0, 1e6],
      PageUp: [-10, 0],
      PageDown: [10, 0],
    };
    const step = steps[event.key];
    if (step) {
      event.preventDefault();
      const start = cursor.row < 0 ? { row: -step[0], column: -step[1] } : cursor;
      const bound = (/** @type {number} */ value, /** @type {number} */ size) => Math.min(Math.max(value, 0), size - 1);
      moveTo(bound(start.row + step[0], rows()), bound(start.column + step[1], columns()));
      scrollToCursor();
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      pinned = !pinned && cursor.row >= 0;
      if (cursor.row >= 0) options.onPick?.(cursor.row, cursor.column);
    } else if (event.key === "Escape" && cursor.row >= 0) {
      event.stopPropagation(); // the next one closes what the map is in
      pinned = false;
      moveTo(-1, -1);
    }
  });
  table.addEventListener("toggle", () => table.open && renderTable());
  const sizes = new ResizeObserver(measure);
  sizes.observe(node);
  const stopTheme = onThemeChange(() => {
    for (const key of tiles.keys()) {
      const tile = tiles.get(key);
      if (!tile || tile === "loading") continue;
      const [tileRow, tileColumn] = key.split(",").map(Number);
      const high = tile.weights.length / tile.columns;
      tile.picture = paintTile(tile.weights, tileRow * TILE, tileColumn * TILE, high, tile.columns);
    }
    redraw();
  });
  describe();

  return {
    node,
    highlight(row, column) {
      outlined = { row, column };
      redraw();
    },
    zoom(cell) {
      wantedCell = cell;
      measure();
    },
    cellSize: () => geometry.cell,
    update(changes) {
      options = { ...options, ...changes };
      if (changes.loadTile) options.values = undefined;
      generation += 1;
      tiles = new Map();
      if (cursor.row >= rows() || cursor.column >= columns()) cursor = { row: -1, column: -1 };
      outlined = { row: -1, column: -1 };
      describe();
      measure();
      showReadout();
      if (table.open) renderTable();
    },
    destroy() {
      sizes.disconnect();
      stopTheme();
      generation += 1;
    },
  };
}

/**
 * Diagonal lines, for cells that may not be attended to.
 * @param {CanvasRenderingContext2D} context
 */
export function hatchPattern(context) {
  const side = 6;
  const picture = el("canvas", { width: side, height: side });
  const pen = /** @type {CanvasRenderingContext2D} */ (picture.getContext("2d"));
  pen.strokeStyle = isDark() ? "rgb(255 255 255 / 0.23)" : "rgb(40 10 30 / 0.16)";
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(-1, side + 1);
  pen.lineTo(side + 1, -1);
  pen.stroke();
  return context.createPattern(picture, "repeat");
}
