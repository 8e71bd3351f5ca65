/** A sound as its spectrogram over time, with the attention to each frame as a curve below and a tint above. */

import { el, eachFrame, svg, setChildren } from "./dom.js";
import { isDark, onThemeChange, rampTable } from "./colour.js";
import { decodeBytes, largest, percent } from "./numbers.js";

const CURVE_HEIGHT = 84;
const AXIS_HEIGHT = 24;

/**
 * @param {{spectrogram: import("../types.js").SpectrogramInfo, label: string, onTime?: (seconds: number | null) => void}} options
 */
export function spectrogramView({ spectrogram, label, onTime }) {
  const { seconds, rows, columns } = spectrogram;
  const levels = decodeBytes(spectrogram.levels);
  const canvas = el("canvas", { class: "sound-canvas", role: "img", "aria-label": `${label}, ${seconds.toFixed(1)} seconds` });
  const drawing = svg("svg", { class: "sound-curve", role: "img", height: CURVE_HEIGHT + AXIS_HEIGHT });
  const node = el("div", { class: "sound" }, canvas, drawing);
  /** @type {{weights: Float32Array, times: number[]} | null} */
  let shown = null;
  let picture = paintLevels();

  /** Loud is dark on light paper: neutral colours, so that attention has the only hue. */
  function paintLevels() {
    const made = el("canvas", { width: columns, height: rows });
    const pen = /** @type {CanvasRenderingContext2D} */ (made.getContext("2d"));
    const data = pen.createImageData(columns, rows);
    for (let row = 0; row < rows; row += 1) {
      for (let column = 0; column < columns; column += 1) {
        const level = levels[row * columns + column] / 255;
        const grey = isDark() ? 34 + 200 * level ** 1.2 : 247 - 205 * level ** 1.2;
        const at = 4 * ((rows - 1 - row) * columns + column); // low frequencies at the bottom
        data.data.set([grey, isDark() ? grey * 0.96 : grey * 0.985, grey, 255], at);
      }
    }
    pen.putImageData(data, 0, 0);
    return made;
  }

  function draw() {
    const ratio = window.devicePixelRatio || 1;
    const width = node.clientWidth;
    if (!width) return;
    const height = Math.min(220, Math.max(120, width * 0.24));
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    pen.imageSmoothingEnabled = true;
    pen.drawImage(picture, 0, 0, canvas.width, canvas.height);

    setChildren(drawing);
    drawing.setAttribute("width", String(width));
    drawAxis(width);
    if (!shown || !shown.weights.length) return;
    const { weights, times } = shown;
    const most = largest(weights) || 1;
    const table = rampTable();
    const half = times.length > 1 ? (times[1] - times[0]) / 2 : seconds / 2;
    const edge = (/** @type {number} */ frame) =>
      frame === 0 ? times[0] - half : frame === times.length ? times[frame - 1] + half : (times[frame - 1] + times[frame]) / 2;
    const at = (/** @type {number} */ time) => Math.min(Math.max(time / seconds, 0), 1) * width;
    pen.globalCompositeOperation = isDark() ? "screen" : "multiply";
    for (let frame = 0; frame < weights.length; frame += 1) {
      const value = Math.round((255 * weights[frame]) / most);
      pen.fillStyle = `rgb(${table[4 * value]} ${table[4 * value + 1]} ${table[4 * value + 2]} / 0.8)`;
      const start = Math.round(at(edge(frame)) * ratio); // whole pixels: gaps and overlaps would be seen as lines
      pen.fillRect(start, 0, Math.round(at(edge(frame + 1)) * ratio) - start, canvas.height);
    }
    pen.globalCompositeOperation = "source-over";
    const points = [...weights].map(
      (weight, frame) =>
        `${at(times[frame]).toFixed(1)} ${(CURVE_HEIGHT - 4 - ((CURVE_HEIGHT - 26) * weight) / most).toFixed(1)}`,
    );
    const first = at(times[0]).toFixed(1);
    const last = at(times[times.length - 1]).toFixed(1);
    drawing.append(
      svg("path", { class: "sound-area", d: `M${first} ${CURVE_HEIGHT - 4}L${points.join("L")}L${last} ${CURVE_HEIGHT - 4}Z` }),
      svg("path", { class: "sound-line", d: `M${points.join("L")}` }),
    );
    const peak = weights.indexOf(most);
    const x = Math.min(Math.max(at(times[peak]), 52), width - 52);
    drawing.append(
      svg("text", { class: "sound-peak", x, y: 14, "text-anchor": "middle" }, `${percent(most)} at ${times[peak].toFixed(2)} s`),
    );
  }

  /** @param {number} width */
  function drawAxis(width) {
    const steps = [0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60];
    const step = steps.find((one) => (one / seconds) * width >= 64) ?? 60;
    drawing.append(svg("line", { class: "sound-axis", x1: 0, x2: width, y1: CURVE_HEIGHT - 3.5, y2: CURVE_HEIGHT - 3.5 }));
    for (let time = 0; time <= seconds + 1e-6; time += step) {
      const x = (time / seconds) * width;
      drawing.append(svg("line", { class: "sound-axis", x1: x, x2: x, y1: CURVE_HEIGHT - 3, y2: CURVE_HEIGHT + 2 }));
      const anchor = time === 0 ? "start" : x > width - 16 ? "end" : "middle";
      drawing.append(
        svg("text", { class: "sound-tick", x, y: CURVE_HEIGHT + 17, "text-anchor": anchor }, `${Number(time.toFixed(1))} s`),
      );
    }
  }

  const redraw = eachFrame(draw);
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    onTime?.(((event.clientX - box.left) / box.width) * seconds);
  });
  canvas.addEventListener("pointerleave", () => onTime?.(null));
  const sizes = new ResizeObserver(redraw);
  sizes.observe(node);
  const stopTheme = onThemeChange(() => {
    picture = paintLevels();
    redraw();
  });

  return {
    node,
    /**
     * Attention to each frame, or none.
     * @param {Float32Array | null} weights
     * @param {number[]} [times]  the middle of each frame, in seconds
     */
    show(weights, times = []) {
      shown = weights ? { weights, times } : null;
      canvas.dataset.weights = Array.from(weights ?? [], (weight) => weight.toFixed(6)).join(" "); // a canvas has no numbers to read
      redraw();
    },
    destroy() {
      sizes.disconnect();
      stopTheme();
    },
  };
}
