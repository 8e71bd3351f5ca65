/**
 * Positions: the sinusoid as a heat map and as curves, beside the binary counter that it is a smooth form of; and how the chosen
 * run knows positions.
 */

import { lineChart } from "./parts/chart.js";
import { choice, placard, slider } from "./parts/controls.js";
import { el, setChildren } from "./parts/dom.js";
import { heatmap } from "./parts/heatmap.js";
import { matrixView } from "./parts/matrix.js";
import { decodeFloats, fixedNumber, matrixRow } from "./parts/numbers.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").PackedMatrix} PackedMatrix */
/** @typedef {{title: string, across: string, down: string, values: PackedMatrix, kind: "table" | "similarity" | "bias", first: [number, number], tile: number}} PositionPanel */

const CURVE_LOOKS = /** @type {("strong" | "plain" | "dashed" | "dotted")[]} */ (["strong", "plain", "dashed", "dotted"]);

/**
 * Section 3.5 of "Attention is all you need": sine in dimension 2i, cosine in 2i + 1; length · width numbers, row by row.
 * @param {number} length
 * @param {number} width
 */
export function sinusoidTable(length, width) {
  const table = new Float32Array(length * width);
  for (let position = 0; position < length; position += 1) {
    for (let dimension = 0; dimension < width; dimension += 1) {
      const angle = position * Math.exp((-Math.log(10000) * (dimension - (dimension % 2))) / width);
      table[position * width + dimension] = dimension % 2 ? Math.cos(angle) : Math.sin(angle);
    }
  }
  return table;
}

/**
 * Whole numbers in binary, the lowest bit first: bit k flips every 2^k positions.
 * @param {number} length
 * @param {number} bits
 */
export function binaryTable(length, bits) {
  const table = new Float32Array(length * bits);
  for (let position = 0; position < length; position += 1) {
    for (let bit = 0; bit < bits; bit += 1) table[position * bits + bit] = Math.floor(position / 2 ** bit) % 2;
  }
  return table;
}

/**
 * The cosine of one row with every row.
 * @param {Float32Array} table
 * @param {number} width
 * @param {number} row
 */
export function rowSimilarities(table, width, row) {
  const one = matrixRow(table, row, width);
  const norm = (/** @type {Float32Array} */ vector) => Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0)) || 1e-12;
  return Array.from({ length: table.length / width }, (_, index) => {
    const other = matrixRow(table, index, width);
    return one.reduce((sum, value, at) => sum + value * other[at], 0) / (norm(one) * norm(other));
  });
}

const countLabels = (/** @type {number} */ count, /** @type {number} */ first = 0) => Array.from({ length: count }, (_, index) => String(index + first));
const signed = (/** @type {number} */ value) => fixedNumber(value, 3);

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @returns {{update: () => void}}
 */
export function mountPositions(root, app) {
  const sizes = {
    length: slider({ label: "Positions", min: 8, max: 128, value: 32, onInput: draw }),
    width: slider({ label: "Width", min: 8, max: 128, step: 2, value: 48, onInput: draw }),
    position: slider({ label: "Position", min: 0, max: 31, value: 9, onInput: drawPosition }),
    dimension: slider({ label: "First of four dimensions", min: 0, max: 44, step: 2, value: 4, onInput: drawCurves }),
  };
  let table = sinusoidTable(32, 48);
  const unit = { title: "value", low: "−1", high: "1" };
  const pick = (/** @type {number} */ row) => {
    sizes.position.set(row);
    drawPosition();
  };
  const waves = heatmap({
    title: "Sinusoids", rowLabels: countLabels(32), columnLabels: countLabels(48), values: table, low: -1, max: 1, scale: unit, rowName: "position", columnName: "dimension", format: signed, maxHeight: 560, onPick: pick,
  });
  const bits = heatmap({
    title: "Binary counter", rowLabels: countLabels(32), columnLabels: countLabels(5), values: binaryTable(32, 5), scale: { title: "bit", low: "0", high: "1" }, rowName: "position", columnName: "bit", format: (bit) => String(bit), maxHeight: 560, onPick: pick,
  });
  const curves = lineChart({ title: "Sinusoids of four dimensions", lines: [], xName: "position", yName: "value", height: 230, yText: (y) => fixedNumber(y, 2) });
  const vector = matrixView({ title: "Vector of the position", values: [0], rows: 1, columns: 1 });
  const binary = el("p", { class: "binary-digits" });
  const similarity = lineChart({ title: "Similarity to all positions", lines: [], xName: "position", yName: "cosine", height: 230, yText: (y) => fixedNumber(y, 2) });

  function draw() {
    const [length, width] = [sizes.length.value, sizes.width.value];
    const digits = Math.max(1, Math.ceil(Math.log2(length)));
    table = sinusoidTable(length, width);
    const cell = cellSide(length, width);
    sizes.position.setRange(0, length - 1);
    sizes.dimension.setRange(0, Math.max(0, width - 4));
    waves.update({ rowLabels: countLabels(length), columnLabels: countLabels(width), values: table });
    bits.update({ rowLabels: countLabels(length), columnLabels: countLabels(digits), values: binaryTable(length, digits) });
    waves.zoom(cell);
    bits.zoom(cell); // rows of both maps are at the same height
    drawCurves();
    drawPosition();
  }

  /** Pixels of a cell, so that all of a map is seen. @param {number} length @param {number} width */
  function cellSide(length, width) {
    const room = root.clientWidth > 860 ? 0.7 * root.clientWidth : root.clientWidth - 60;
    return Math.max(3, Math.floor(Math.min(15, 470 / length, (room - 60) / width)));
  }

  function drawCurves() {
    const [length, width, first] = [sizes.length.value, sizes.width.value, sizes.dimension.value];
    const lines = CURVE_LOOKS.map((look, offset) => ({
      name: `dimension ${first + offset}`,
      look,
      points: Array.from({ length }, (_, position) => /** @type {[number, number]} */ ([position, table[position * width + first + offset]])),
    }));
    curves.update({ lines });
  }

  function drawPosition() {
    const [length, width, position] = [sizes.length.value, sizes.width.value, sizes.position.value];
    const digits = Math.max(1, Math.ceil(Math.log2(length)));
    vector.update({
      title: `Vector of position ${position}`, values: Array.from(matrixRow(table, position, width)), rows: 1, columns: width, columnLabels: countLabels(width), max: 1, shownColumns: Math.min(width, 16), digits: 3,
    });
    setChildren(binary, `${position} in binary, lowest bit first: `, el("b", { class: "digits" }, Array.from(binaryTable(position + 1, digits).subarray(position * digits)).join(" ")));
    const points = rowSimilarities(table, width, position).map((value, at) => /** @type {[number, number]} */ ([at, value]));
    similarity.update({ lines: [{ name: `cosine with position ${position}`, look: "strong", points }], current: position });
    waves.highlight(position, -1);
    bits.highlight(position, -1);
  }

  // ---- the positions of the run

  const own = el("div", { class: "stack" });
  let shownRun = "";
  /** @type {import("./parts/heatmap.js").Heatmap | null} */
  let ownMap = null;
  async function drawOwn() {
    const run = app.run;
    if (!run) return;
    const key = run.name;
    if (key === shownRun) return;
    shownRun = key;
    setChildren(own, el("p", { class: "hint" }, "Loading …"));
    try {
      const found = /** @type {{title: string, panels: PositionPanel[]}} */ (await app.get(`/runs/${encodeURIComponent(run.name)}/positions`));
      if (shownRun !== key) return;
      const maps = found.panels.map((panel) => ({ panel, node: el("figure", { class: "position-panel" }, el("figcaption", {}, panel.title)) }));
      const first = choice({
        label: "Heat map", options: maps.map(({ panel }, index) => ({ value: String(index), label: panel.title })), value: "0", onChange: (value) => showPanel(Number(value)),
      });
      const host = el("div", {});
      const showPanel = (/** @type {number} */ index) => {
        ownMap?.destroy();
        ownMap = panelMap(found.panels[index]);
        setChildren(host, ownMap.node);
      };
      setChildren(own, maps.length > 1 ? first.node : el("p", { class: "hint" }, found.panels[0].title), host);
      showPanel(0);
    } catch (error) {
      if (shownRun !== key) return;
      shownRun = "";
      const text = error instanceof Error ? error.message : String(error);
      setChildren(own, placard({ title: "Nothing to draw for this run", text }));
    }
  }

  /** @param {PositionPanel} panel */
  function panelMap(panel) {
    const values = decodeFloats(panel.values.values);
    const most = panel.kind === "similarity" ? 1 : values.reduce((far, value) => Math.max(far, Math.abs(value)), 1e-12);
    const name = { table: "value", similarity: "cosine", bias: "bias" }[panel.kind];
    return heatmap({
      title: panel.title, rowLabels: countLabels(panel.values.rows, panel.first[1]), columnLabels: countLabels(panel.values.columns, panel.first[0]), values, low: -most, max: most,
      scale: { title: name, low: fixedNumber(-most, 2), high: fixedNumber(most, 2) }, rowName: panel.down, columnName: panel.across, format: signed, maxHeight: 460,
    });
  }

  const text = (/** @type {string} */ words) => el("p", { class: "hint" }, words);
  root.append(
    el(
      "section",
      { class: "card stack", "aria-labelledby": "sinusoid-heading" },
      el("h3", { id: "sinusoid-heading" }, "Sinusoids, a smooth binary counter"),
      text("A binary counter gives each position its own row of bits: the lowest bit flips at every position, the next at every second, and so on. Sinusoids do the same without jumps: the first dimensions turn fast, the last almost not at all, and all stay between −1 and 1."),
      el("div", { class: "settings" }, sizes.length.node, sizes.width.node),
      el("div", { class: "side-by-side positions-maps" },
        el("figure", { class: "position-panel" }, el("figcaption", {}, "Sinusoids: a row for each position, a column for each dimension"), waves.node),
        el("figure", { class: "position-panel" }, el("figcaption", {}, "Binary counter, lowest bit first"), bits.node)),
    ),
    el(
      "section",
      { class: "card stack", "aria-labelledby": "curves-heading" },
      el("h3", { id: "curves-heading" }, "Curves of single dimensions"),
      el("div", { class: "settings" }, sizes.dimension.node),
      curves.node,
    ),
    el(
      "section",
      { class: "card stack", "aria-labelledby": "position-heading" },
      el("h3", { id: "position-heading" }, "One position"),
      text("Choose it here, or click a row of a heat map. Positions nearby are similar, and how similar depends on the distance alone."),
      el("div", { class: "settings" }, sizes.position.node),
      binary,
      vector.node,
      similarity.node,
    ),
    el("section", { class: "card stack", "aria-labelledby": "own-heading" }, el("h3", { id: "own-heading" }, "Positions of this run"), own),
  );
  return {
    update() {
      draw(); // now that the width is known
      drawOwn();
    },
  };
}
