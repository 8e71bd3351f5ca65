/** Cost: sliders for the sizes of a model, and what they mean in parameters, FLOPs and bytes of attention, by the formulas of cost.js. */

import {
  bertCost, bytesText, COST_PRESETS, globalScores, gptCost, layerComplexities, swinCost, transformerCost, vitCost, windowScores,
} from "./cost.js";
import { lineChart } from "./parts/chart.js";
import { segmented, slider } from "./parts/controls.js";
import { el, setChildren } from "./parts/dom.js";
import { fadeEdges } from "./parts/fade.js";
import { compactCount, groupedCount } from "./parts/numbers.js";

/** @typedef {import("./cost.js").CostPart} CostPart */
/** @typedef {keyof typeof COST_PRESETS} PresetName */
/** @typedef {import("./parts/controls.js").Control<number> & {input: HTMLInputElement, setRange: (min: number, max: number) => void}} SizeSlider */

const TEXT_KINDS = ["transformer-base", "gpt-small", "bert-base"];
const EXPONENTS = { low: 3, high: 17 }; // lengths of a text on the slider: powers of 2

/** @param {HTMLElement} root */
export function mountCost(root) {
  root.append(modelSection(), layerSection(), imageSection());
}

/**
 * A slider whose values are powers of two.
 * @param {string} label
 * @param {number} value
 * @param {number} low
 * @param {number} high
 * @param {() => void} onInput
 */
function powerSlider(label, value, low, high, onInput) {
  return slider({ label, min: low, max: high, step: 1, value: Math.log2(value), format: (power) => groupedCount(2 ** power), onInput });
}

// ---- a whole model

function modelSection() {
  let kind = /** @type {PresetName} */ ("transformer-base");
  const length = powerSlider("Length n, tokens", 128, EXPONENTS.low, EXPONENTS.high, draw);
  const window = slider({ label: "Window r, tokens", min: 0, max: 14, value: 0, format: (power) => (power ? groupedCount(2 ** power) : "full attention"), onInput: draw });
  const width = slider({ label: "Width of a head d / h", min: 16, max: 128, step: 16, value: 64, onInput: draw });
  const heads = slider({ label: "Heads h", min: 1, max: 32, value: 8, onInput: draw });
  const depth = slider({ label: "Depth, layers", min: 1, max: 48, value: 6, onInput: draw });
  const image = slider({ label: "Image, pixels", min: 32, max: 1024, step: 32, value: 224, onInput: draw });
  const patch = slider({ label: "Patch, pixels", min: 2, max: 32, step: 2, value: 16, onInput: draw });
  const side = slider({ label: "Window M, positions", min: 2, max: 28, value: 7, onInput: draw });
  const stem = slider({ label: "Width of the first stage", min: 24, max: 384, step: 24, value: 96, onInput: draw });
  const table = el("table", { class: "cost-table" });
  const facts = el("dl", { class: "facts" });
  const settings = el("div", { class: "settings" });
  const choose = segmented({ label: "Start from", options: Object.keys(COST_PRESETS).map((name) => ({ value: name, label: name })), value: /** @type {string} */ (kind), onChange: (name) => preset(/** @type {PresetName} */ (name)) });

  /** @param {PresetName} name */
  function preset(name) {
    kind = name;
    const sizes = COST_PRESETS[name];
    if ("vocab" in sizes || "depth" in sizes) {
      heads.set(/** @type {number} */ (sizes.heads));
      width.set(sizes.dim / /** @type {number} */ (sizes.heads));
      depth.set(/** @type {number} */ (sizes.depth));
    }
    if ("image" in sizes) {
      image.set(sizes.image);
      patch.set(sizes.patch);
    }
    if ("window" in sizes) {
      side.set(sizes.window);
      stem.set(sizes.dim);
    }
    const shown = TEXT_KINDS.includes(name) ? [length, window, heads, width, depth] : name === "vit-base" ? [image, patch, heads, width, depth] : [image, patch, side, stem];
    setChildren(settings, ...shown.map((control) => control.node));
    draw();
  }

  /** @returns {CostPart[]} */
  function count() {
    const dim = heads.value * width.value;
    const n = 2 ** length.value;
    const reach = window.value ? 2 ** window.value : Infinity;
    const text = { dim, depth: depth.value, heads: heads.value };
    if (kind === "transformer-base") return transformerCost({ ...COST_PRESETS[kind], ...text }, n, n, reach);
    if (kind === "gpt-small") return gptCost({ ...COST_PRESETS[kind], ...text, max_len: Math.max(n, COST_PRESETS[kind].max_len) }, n, reach);
    if (kind === "bert-base") return bertCost({ ...COST_PRESETS[kind], ...text, max_len: Math.max(n, COST_PRESETS[kind].max_len) }, n, reach);
    if (kind === "vit-base") return vitCost({ ...COST_PRESETS[kind], ...text, image: image.value, patch: patch.value });
    const swin = COST_PRESETS["swin-tiny"];
    return swinCost({ ...swin, image: image.value, patch: patch.value, window: side.value, dim: stem.value, heads: swin.heads.map((few) => Math.max(1, Math.round((few * stem.value) / swin.dim))) });
  }

  function draw() {
    const parts = count();
    const whole = parts[parts.length - 1];
    const head = el("tr", {}, ...["part", "parameters", "FLOPs, forward", "weights", "attention scores"].map((name) => el("th", { scope: "col" }, name)));
    const body = el("tbody", {}, ...parts.map((part) =>
      el("tr", { class: part === whole ? "total" : "", "data-part": part.name },
        el("th", { scope: "row" }, part.name),
        el("td", { "data-value": part.parameters }, groupedCount(part.parameters)),
        el("td", { "data-value": part.flops }, compactCount(part.flops)),
        el("td", { "data-value": part.bytes }, bytesText(part.bytes)),
        el("td", { "data-value": part.score_bytes }, bytesText(part.score_bytes)))));
    setChildren(table, el("caption", { class: "visually-hidden" }, `Cost of ${kind}`), el("thead", {}, head), body);
    const fact = (/** @type {string} */ name, /** @type {string} */ value, /** @type {number} */ exact) => el("div", {}, el("dt", {}, name), el("dd", { "data-value": exact }, value));
    setChildren(facts, fact("parameters", compactCount(whole.parameters), whole.parameters), fact("FLOPs of a forward pass", compactCount(whole.flops), whole.flops), fact("attention scores", bytesText(whole.score_bytes), whole.score_bytes));
  }

  preset(kind);
  return el(
    "section",
    { class: "card stack", "aria-labelledby": "model-cost-heading" },
    el("h3", { id: "model-cost-heading" }, "A whole model"),
    choose.node,
    settings,
    facts,
    fadeEdges(el("div", { class: "table-scroll" }, table), table),
    el("p", { class: "hint" }, "For one text of n tokens (a translation: n of the source and n of the target), or one image. Attention scores are counted for all heads and layers, as in the formula; a fused kernel never stores all of them. A matrix product counts 2 FLOPs per multiplication; numbers are float32."),
  );
}

// ---- one layer, as in the notes' table

function layerSection() {
  const length = powerSlider("Length n", 64, EXPONENTS.low, EXPONENTS.high, draw);
  const width = powerSlider("Width d", 512, 5, 13, draw);
  const kernel = slider({ label: "Kernel k", min: 1, max: 15, step: 2, value: 3, onInput: draw });
  const window = powerSlider("Window r", 32, 2, 12, draw);
  const table = el("table", { class: "cost-table" });
  const verdict = el("p", { class: "verdict" });
  const chart = lineChart({ title: "Operations of one layer", lines: [], xName: "length n", yName: "multiplications", xLog: true, yLog: true, height: 340, xText: (x) => groupedCount(x), yText: (y) => compactCount(y) });
  const looks = /** @type {("strong" | "plain" | "dashed" | "dotted")[]} */ (["strong", "plain", "dashed", "dotted"]);

  function draw() {
    const sizes = { length: 2 ** length.value, width: 2 ** width.value, kernel: kernel.value, window: 2 ** window.value };
    const rows = layerComplexities(sizes);
    const least = Math.min(...rows.map((row) => row.operations));
    const head = el("tr", {}, ...["layer", "operations", "at these sizes", "sequential steps", "longest path"].map((name) => el("th", { scope: "col" }, name)));
    const body = el("tbody", {}, ...rows.map((row) =>
      el("tr", { class: row.operations === least ? "least" : "", "data-part": row.layer },
        el("th", { scope: "row" }, row.layer), el("td", {}, row.formula), el("td", { "data-value": row.operations }, compactCount(row.operations)), el("td", {}, row.sequential), el("td", {}, row.path))));
    setChildren(table, el("caption", { class: "visually-hidden" }, "Complexity of one layer"), el("thead", {}, head), body);
    const { length: n, width: d } = sizes;
    verdict.textContent =
      n < d ? `n < d: self-attention costs ${(d / n).toPrecision(2)} times less than recurrence.`
      : n > d ? `n > d: self-attention costs ${(n / d).toPrecision(2)} times more than recurrence.`
      : "n = d: self-attention and recurrence cost the same.";
    const lengths = Array.from({ length: EXPONENTS.high - EXPONENTS.low + 1 }, (_, index) => 2 ** (EXPONENTS.low + index));
    const lines = rows.map((row, index) => ({
      name: row.layer, look: looks[index], points: lengths.map((at) => /** @type {[number, number]} */ ([at, layerComplexities({ ...sizes, length: at })[index].operations])),
    }));
    chart.update({ lines, current: n, marks: [{ x: d, name: "n = d" }] });
  }

  draw();
  return el(
    "section",
    { class: "card stack", "aria-labelledby": "layer-cost-heading" },
    el("h3", { id: "layer-cost-heading" }, "One layer: attention, recurrence, convolution"),
    el("p", { class: "hint" }, "Attention connects all tokens in one step, at a cost quadratic in the length. Recurrence is linear in the length and quadratic in the width, but sequential. A window makes attention linear in the length, with longer paths between distant tokens."),
    el("div", { class: "settings" }, length.node, width.node, kernel.node, window.node),
    verdict,
    fadeEdges(el("div", { class: "table-scroll" }, table), table),
    chart.node,
  );
}

// ---- images: pixels, patches, windows

function imageSection() {
  const image = slider({ label: "Image, pixels", min: 32, max: 1024, step: 32, value: 224, onInput: draw });
  const patch = slider({ label: "Patch, pixels", min: 2, max: 32, step: 2, value: 16, onInput: draw });
  const window = slider({ label: "Window M, positions", min: 2, max: 28, value: 7, onInput: draw });
  const depth = slider({ label: "Layers", min: 1, max: 48, value: 48, onInput: draw });
  const heads = slider({ label: "Heads", min: 1, max: 32, value: 16, onInput: draw });
  const table = el("table", { class: "cost-table" });

  function draw() {
    const sizes = { image: image.value, patch: patch.value, window: window.value, depth: depth.value, heads: heads.value };
    const rows = [
      { name: "every pixel with every pixel", formula: "R⁴", found: globalScores({ ...sizes, patch: 1 }) },
      { name: `patches of ${sizes.patch} × ${sizes.patch} (ViT)`, formula: "(R / P)⁴", found: globalScores(sizes) },
      { name: `windows of ${sizes.window} × ${sizes.window} on patches of 4 × 4 (Swin)`, formula: "M² · H · W", found: windowScores({ ...sizes, patch: 4 }) },
      { name: "no windows on patches of 4 × 4", formula: "(H · W)²", found: globalScores({ ...sizes, patch: 4 }) },
    ];
    const head = el("tr", {}, ...["attention", "scores of a head", "", "positions", "one head", `${sizes.depth} layers of ${sizes.heads} heads`].map((name) => el("th", { scope: "col" }, name)));
    const body = el("tbody", {}, ...rows.map(({ name, formula, found }) =>
      el("tr", { "data-part": name },
        el("th", { scope: "row" }, name), el("td", {}, formula), el("td", { "data-value": found.entries }, groupedCount(found.entries)), el("td", {}, groupedCount(found.tokens)),
        el("td", { "data-value": found.head_bytes }, bytesText(found.head_bytes)), el("td", { "data-value": found.all_bytes }, bytesText(found.all_bytes)))));
    setChildren(table, el("caption", { class: "visually-hidden" }, "Attention scores of one image"), el("thead", {}, head), body);
  }

  draw();
  return el(
    "section",
    { class: "card stack", "aria-labelledby": "image-cost-heading" },
    el("h3", { id: "image-cost-heading" }, "An image: pixels, patches, windows"),
    el("p", { class: "hint" }, "With every pixel a token, the scores of an image of 128 × 128 pixels take 768 GiB in 48 layers of 16 heads. Patches of 16 × 16 pixels bring an image of 224 × 224 down to 113 MiB. Windows make the cost linear in the size of the image."),
    el("div", { class: "settings" }, image.node, patch.node, window.node, depth.node, heads.node),
    fadeEdges(el("div", { class: "table-scroll" }, table), table),
  );
}
