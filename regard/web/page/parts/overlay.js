/**
 * A picture with attention over it: one cell for each place of the model's grid, and what the model did not read dimmed.
 * Weights are drawn as multiples of uniform attention on a fixed scale, or as shares of the strongest place.  The picture is
 * darkened and attention is bright, on light paper too: a deep colour would hide what it points at.
 */

import { el, eachFrame } from "./dom.js";
import { isDark, onPicture, onThemeChange, rampTable } from "./colour.js";
import { largest } from "./numbers.js";

/** The last colour means this many times uniform attention, or more. */
export const MOST_TIMES = 8;

/** @typedef {"uniform" | "weight"} OverlayScale */

/**
 * @param {{picture: string, region: [number, number, number, number] | null, label: string,
 *          onPlace?: (place: number) => void, onPick?: (place: number) => void}} options  places of the shown grid, -1 for none
 */
export function pictureOverlay({ picture, region, label, onPlace, onPick }) {
  const [top, left, bottom, right] = region ?? [0, 0, 1, 1];
  const image = new Image();
  const canvas = el("canvas", { class: "overlay-canvas", role: "img", "aria-label": label });
  if (onPick) {
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
  }
  const node = el("div", { class: "overlay" }, canvas);
  /** @type {{weights: Float32Array, rows: number, columns: number, attended: number} | null} */
  let shown = null;
  let scale = /** @type {OverlayScale} */ ("uniform");
  let strength = 0.75;
  let marked = -1;
  let cursor = -1;
  let shape = { rows: 1, columns: 1 };

  function draw() {
    if (!image.naturalWidth) return;
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    const width = Math.round(node.clientWidth * ratio) || 1;
    const height = Math.round((width * image.naturalHeight) / image.naturalWidth);
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
    }
    const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    pen.filter = shown ? "grayscale(0.4) brightness(0.6)" : "none";
    pen.imageSmoothingEnabled = true;
    pen.imageSmoothingQuality = "high";
    pen.drawImage(image, 0, 0, width, height);
    pen.filter = "none";

    const x = left * width;
    const y = top * height;
    const wide = (right - left) * width;
    const high = (bottom - top) * height;
    if (shown) {
      const cells = paintCells(shown.weights, shown.rows, shown.columns, shown.attended);
      pen.globalAlpha = strength;
      pen.imageSmoothingEnabled = false;
      pen.drawImage(cells, x, y, wide, high);
      pen.globalAlpha = 1;
    }

    // what was cut away before the model read the picture
    pen.fillStyle = isDark() ? "rgb(20 14 19 / 0.8)" : "rgb(244 242 244 / 0.86)";
    pen.fillRect(0, 0, width, y);
    pen.fillRect(0, y + high, width, height - y - high);
    pen.fillRect(0, y, x, high);
    pen.fillRect(x + wide, y, width - x - wide, high);

    for (const [place, colour] of /** @type {[number, string][]} */ ([
      [cursor, "#fff"],
      [marked, "#fff"],
    ])) {
      if (place < 0) continue;
      const cellWide = wide / shape.columns;
      const cellHigh = high / shape.rows;
      const cellX = x + (place % shape.columns) * cellWide;
      const cellY = y + Math.floor(place / shape.columns) * cellHigh;
      pen.lineWidth = 5 * ratio;
      pen.strokeStyle = "rgb(20 5 15 / 0.85)";
      pen.strokeRect(cellX, cellY, cellWide, cellHigh);
      pen.lineWidth = 2.5 * ratio;
      pen.strokeStyle = colour;
      pen.strokeRect(cellX, cellY, cellWide, cellHigh);
    }
  }

  /**
   * A picture of one pixel for each place.
   * @param {Float32Array} weights
   * @param {number} rows
   * @param {number} columns
   * @param {number} attended
   */
  function paintCells(weights, rows, columns, attended) {
    const cells = el("canvas", { width: columns, height: rows });
    const pen = /** @type {CanvasRenderingContext2D} */ (cells.getContext("2d"));
    const data = pen.createImageData(columns, rows);
    const table = rampTable(true);
    const most = largest(weights) || 1;
    let sum = 0;
    for (const weight of weights) sum += weight;
    for (let place = 0; place < rows * columns; place += 1) {
      const times = (weights[place] * attended) / (sum || 1);
      const share = scale === "weight" ? weights[place] / most : Math.log2(Math.max(times, 1)) / Math.log2(MOST_TIMES);
      const { at, alpha } = onPicture(share);
      const step = Math.round(255 * at);
      data.data.set(table.subarray(4 * step, 4 * step + 3), 4 * place);
      data.data[4 * place + 3] = Math.round(255 * alpha);
    }
    pen.putImageData(data, 0, 0);
    return cells;
  }

  /** The place of the grid below the pointer, or -1. @param {MouseEvent} event */
  function placeAt(event) {
    const box = canvas.getBoundingClientRect();
    const across = ((event.clientX - box.left) / box.width - left) / (right - left);
    const down = ((event.clientY - box.top) / box.height - top) / (bottom - top);
    if (across < 0 || across >= 1 || down < 0 || down >= 1) return -1;
    return Math.floor(down * shape.rows) * shape.columns + Math.floor(across * shape.columns);
  }

  const redraw = eachFrame(draw);
  canvas.addEventListener("pointermove", (event) => {
    const place = placeAt(event);
    if (place === cursor) return;
    cursor = onPlace || onPick ? place : -1;
    onPlace?.(place);
    redraw();
  });
  canvas.addEventListener("pointerleave", () => {
    cursor = -1;
    onPlace?.(-1);
    redraw();
  });
  canvas.addEventListener("click", (event) => {
    const place = placeAt(event);
    if (place >= 0) onPick?.(place);
  });
  canvas.addEventListener("keydown", (event) => {
    /** @type {{[key: string]: [number, number]}} */
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = steps[event.key];
    if (!step || !onPick) return;
    event.preventDefault();
    event.stopPropagation();
    const at = Math.max(marked, 0);
    const row = Math.min(Math.max(Math.floor(at / shape.columns) + step[0], 0), shape.rows - 1);
    const column = Math.min(Math.max((at % shape.columns) + step[1], 0), shape.columns - 1);
    onPick(row * shape.columns + column);
  });
  image.addEventListener("load", () => {
    node.style.setProperty("--aspect", String(image.naturalWidth / image.naturalHeight));
    redraw();
  });
  image.src = picture;
  const sizes = new ResizeObserver(redraw);
  sizes.observe(node);
  const stopTheme = onThemeChange(redraw);

  return {
    node,
    canvas,
    /** The grid that places are counted on. @param {number} rows @param {number} columns */
    setGrid(rows, columns) {
      shape = { rows, columns };
      redraw();
    },
    /**
     * Weights of each place of a grid, or none.
     * @param {Float32Array | null} weights
     * @param {number} [rows]
     * @param {number} [columns]
     * @param {number} [attended]  how many places the query may attend to, if it is not all
     */
    show(weights, rows = 1, columns = 1, attended = rows * columns) {
      shown = weights ? { weights, rows, columns, attended } : null;
      canvas.dataset.weights = Array.from(weights ?? [], (weight) => weight.toFixed(6)).join(" "); // a canvas has no numbers to read
      redraw();
    },
    /** Outline a place. @param {number} place */
    mark(place) {
      marked = place;
      redraw();
    },
    /** @param {OverlayScale} next */
    setScale(next) {
      scale = next;
      redraw();
    },
    /** How much of the picture the colour covers, 0 to 1. @param {number} next */
    setStrength(next) {
      strength = next;
      redraw();
    },
    destroy() {
      sizes.disconnect();
      stopTheme();
    },
  };
}
