/**
 * Learning and cost: the same input at several steps of the training, with the loss curve beside it; how positions are known;
 * what sizes cost.
 */

import { RequestError } from "./api.js";
import { mountCost } from "./cost_panel.js";
import { lineChart } from "./parts/chart.js";
import { choice, placard, segmented } from "./parts/controls.js";
import { legend, rampTable } from "./parts/colour.js";
import { el, readableToken, setChildren } from "./parts/dom.js";
import { heatmap } from "./parts/heatmap.js";
import { decodeBytes, decodeWeights, fixedNumber, groupedCount, largest, percent } from "./parts/numbers.js";
import { player } from "./parts/player.js";
import { mountPositions } from "./positions.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").AttentionRecord} AttentionRecord */
/** @typedef {import("./types.js").Thumbnails} Thumbnails */
/** @typedef {{step: number, loss: number}} LossPoint */
/** @typedef {LossPoint & {scores: {[name: string]: number}}} ValidationPoint */
/**
 * @typedef {{points: LossPoint[], validation: ValidationPoint[], final: ValidationPoint | null, checkpoints: number[], steps: number,
 *   save_every: number, keep_every: number}} TrainingLog
 */

const FINAL_SUBTITLE = "This input after training, how the model encodes positions, and what its size costs."; // of a run without checkpoints
const SHOWN_ITEMS = 10; // tokens or classes of an answer that are listed
const MAP_HEIGHT = 440; // pixels; a higher map scrolls
const NARROW_MAP = 16; // columns that fit beside the loss; a wider map is below it
const WIDE_MAP = 96; // columns; a map of more has the width of the page
const SCROLLBAR = 16; // pixels
const STEEP = 5; // a loss that falls to less than a fifth is flat on a linear axis
const TOPICS = /** @type {const} */ ([
  { value: "training", label: "Training" },
  { value: "positions", label: "Positions" },
  { value: "cost", label: "Cost" },
]);

/** @type {import("./types.js").View} */
export const LEARNING_VIEW = {
  id: "learning",
  title: "Learning and cost",
  subtitle: "The same input at earlier checkpoints, how the model encodes positions, and what its size costs.",
  needsRecord: false,
  unavailable: () => "",
  mount: mountLearning,
};

/**
 * @param {HTMLElement} root
 * @param {App} app
 */
function mountLearning(root, app) {
  const hosts = { training: el("div", { class: "stack" }), positions: el("div", { class: "stack" }), cost: el("div", { class: "stack" }) };
  /** @type {{[topic: string]: {update: () => void}}} */
  const mounted = {};
  /** @type {{[topic: string]: (host: HTMLElement) => {update: () => void}}} */
  const mounts = {
    training: (host) => mountTraining(host, app),
    positions: (host) => mountPositions(host, app),
    cost: (host) => {
      mountCost(host);
      return { update() {} };
    },
  };
  let topic = "training";
  const bar = segmented({ label: "Topic", options: [...TOPICS], value: "training", onChange: show });
  root.append(el("div", { class: "stack" }, bar.node, ...Object.values(hosts)));

  /** @param {string} next */
  function show(next) {
    topic = next;
    for (const [name, host] of Object.entries(hosts)) host.hidden = name !== topic;
    mounted[topic] ??= mounts[topic](hosts[/** @type {keyof typeof hosts} */ (topic)]);
    mounted[topic].update();
  }

  return { update: () => show(topic) };
}

/**
 * @param {HTMLElement} root
 * @param {App} app
 */
function mountTraining(root, app) {
  let log = /** @type {TrainingLog | null} */ (null);
  let logOf = "";
  let steps = /** @type {(number | null)[]} */ ([]); // null: the final weights
  let baseRecord = "";
  /** @type {Map<number | null, AttentionRecord>} */
  const records = new Map();
  let asked = 0;

  const message = el("div", {});
  const playing = player({ label: "Training step", onStep: showStep });
  const note = el("p", { class: "hint" });
  const title = el("h3", { id: "steps-heading" }, "The same input at each checkpoint");
  const chart = lineChart({ title: "Loss", lines: [], xName: "step", yName: "loss, nats", height: 280, xText: groupedCount, yText: (y) => String(Number(y.toPrecision(3))), onPick: pickStep });
  const scale = segmented({ label: "Loss axis", options: [{ value: "linear", label: "linear" }, { value: "log", label: "log" }], value: "linear", onChange: (value) => chart.update({ yLog: value === "log" }) });
  const facts = el("dl", { class: "facts" });
  const said = el("div", { class: "stack learned" });
  const maps = el("section", { class: "card learned-maps", "aria-label": "Attention" });
  const ownMap = el("div", {}); // a map that is narrow enough for the left column
  const playCard = el("section", { class: "card stack learned-play", "aria-labelledby": "steps-heading" }, title, playing.node, said, ownMap, note);
  const chartCard = el("section", { class: "card stack", "aria-labelledby": "loss-heading" }, el("div", { class: "toolbar decode-head" }, el("h3", { id: "loss-heading" }, "Loss"), scale.node), chart.node, facts);
  const content = el("div", { class: "learning-grid" }, playCard, chartCard, maps);
  root.append(message, content);

  async function load() {
    const run = app.run;
    if (!run) return;
    if (logOf !== run.name) {
      logOf = run.name;
      log = null;
      setChildren(message, placard({ kind: "loading", title: "Reading the training log …" }));
      content.hidden = true;
      try {
        const found = /** @type {TrainingLog} */ (await app.get(`/runs/${encodeURIComponent(run.name)}/log`));
        if (logOf !== run.name) return;
        log = found;
        setChildren(message);
      } catch (error) {
        if (logOf !== run.name) return;
        logOf = "";
        setChildren(message, placard({ kind: "error", title: "The training log could not be read", text: error instanceof Error ? error.message : String(error) }));
        return;
      }
      showLog(run.name, log);
    }
    if (!log) return; // under way: until it is there the steps are those of another run
    if ((app.record?.id ?? "") !== baseRecord) {
      baseRecord = app.record?.id ?? "";
      records.clear();
      if (app.record) records.set(app.record.checkpoint, app.record);
    }
    content.hidden = false;
    showStep(playing.step);
  }

  /** @param {string} name @param {TrainingLog} found */
  function showLog(name, found) {
    const lines = [
      { name: "training", look: /** @type {const} */ ("plain"), points: found.points.map((point) => /** @type {[number, number]} */ ([point.step, point.loss])) },
      { name: "validation", look: /** @type {const} */ ("strong"), dots: found.validation.length < 40, points: found.validation.map((point) => /** @type {[number, number]} */ ([point.step, point.loss])) },
    ];
    const losses = lines.flatMap((line) => line.points.map(([, loss]) => loss)).filter((loss) => loss > 0);
    const log = losses.length > 0 && Math.max(...losses) > STEEP * Math.min(...losses);
    scale.set(log ? "log" : "linear");
    chart.update({ lines: lines.filter((line) => line.points.length), yLog: log });
    chart.node.hidden = scale.node.hidden = !lines.some((line) => line.points.length);
    steps = [...found.checkpoints, null];
    playing.setSteps(steps.map(stepName), steps.length - 1);
    const only = steps.length < 2; // only the final weights
    playing.node.hidden = only;
    title.textContent = only ? "This input, after training" : "The same input at each checkpoint";
    note.className = only ? "note" : "hint";
    if (only) title.after(note); // before what it explains
    else playCard.append(note);
    app.describe("learning", only ? FINAL_SUBTITLE : undefined);
    const kept = found.checkpoints.filter((step) => step > 0).map(groupedCount);
    const every = groupedCount(Math.max(found.save_every, 1));
    const all = found.keep_every > 0 || kept.length >= Math.floor(found.steps / Math.max(found.save_every, 1)); // none was deleted
    setChildren(
      note,
      !kept.length
        ? `${name} has no checkpoints (they were deleted, or the run was imported), so only its final weights can be shown. To keep checkpoints, train with `
        : all
          ? `This run kept its weights every ${groupedCount(found.keep_every || found.save_every)} steps.`
          : `This run kept only the weights of ${kept.length === 1 ? "step" : "steps"} ${kept.join(", ")}. To keep more, train with `,
      !(kept.length && all) && el("code", {}, `train.keep_every=${found.save_every}`),
      !(kept.length && all) && ` (a checkpoint is written every ${every} steps).`,
    );
    const scores = Object.entries(found.final?.scores ?? {});
    setChildren(
      facts,
      ...(found.final ? [el("div", {}, el("dt", {}, "final validation loss"), el("dd", { "data-value": found.final.loss }, fixedNumber(found.final.loss, 3)))] : []),
      ...scores.slice(0, 4).map(([score, value]) => el("div", {}, el("dt", {}, score), el("dd", { "data-value": value }, `${fixedNumber(value, 2)}${/rate|match|accuracy/.test(score) ? "\u00a0%" : ""}`))),
    );
    if (chart.node.hidden) setChildren(facts, el("p", { class: "hint" }, `${name} has no training log: it was imported, or its log was deleted.`));
  }

  /** @param {number | null} step */
  function stepName(step) {
    if (step === null) return "Final weights";
    return step === 0 ? "Step 0, before training" : `Step ${groupedCount(step)}`;
  }

  /** @param {number} x  a step of the curve: the nearest one whose weights are kept is shown */
  function pickStep(x) {
    let best = 0;
    steps.forEach((step, index) => {
      if (step !== null && Math.abs(step - x) < Math.abs(/** @type {number} */ (steps[best] ?? Infinity) - x)) best = index;
    });
    playing.go(best);
  }

  /** @param {number} index */
  async function showStep(index) {
    const step = steps[index] ?? null;
    const number = (asked += 1);
    if (log) chart.update({ current: step ?? log.final?.step ?? null });
    if (!app.record || !app.input || !app.run) {
      setChildren(said, placard({ title: "Nothing inspected yet", text: `Give the model an input above to see its answer${steps.length < 2 ? "" : " at each checkpoint"}.` }));
      setChildren(ownMap);
      setChildren(maps);
      return;
    }
    for (const part of [said, ownMap, maps]) part.classList.add("waiting");
    said.dataset.step = step === null ? "final" : String(step);
    try {
      let record = records.get(step);
      if (!record) {
        const body = step === null ? { ...app.input, checkpoint: undefined } : { ...app.input, checkpoint: step };
        record = /** @type {AttentionRecord} */ (await app.post(`/runs/${encodeURIComponent(app.run.name)}/inspect`, body));
        if (number !== asked) return;
        records.set(step, record);
      }
      drawRecord(record, step);
    } catch (error) {
      if (number !== asked) return;
      setChildren(said, placard({ kind: "error", title: "This step could not be shown", text: error instanceof Error ? error.message : String(error) }));
      setChildren(ownMap);
      setChildren(maps);
    } finally {
      if (number === asked) for (const part of [said, ownMap, maps]) part.classList.remove("waiting");
    }
  }

  let stopMap = () => {};

  /** @param {AttentionRecord} record @param {number | null} step */
  function drawRecord(record, step) {
    stopMap();
    stopMap = () => {};
    const items = record.answer.items.slice(0, SHOWN_ITEMS);
    const hidden = record.answer.items.length - items.length;
    const loss = step === null ? log?.final : log?.validation.find((point) => point.step === step);
    setChildren(
      said,
      el("p", { class: "learned-text", "data-step": step === null ? "final" : String(step) }, el("bdi", {}, record.answer.text ? readableToken(record.answer.text) : "(an empty answer)")),
      el("p", { class: "learned-items" }, ...items.map((item) =>
        el("span", { class: "learned-item", "data-probability": item.probability === null ? null : item.probability.toFixed(6) }, el("bdi", {}, readableToken(item.text)), item.probability !== null && el("small", {}, percent(item.probability)))), hidden > 0 && el("span", { class: "learned-more" }, `and ${groupedCount(hidden)} more`)),
      loss && el("p", { class: "hint" }, `Validation loss ${fixedNumber(loss.loss, 3)}${steps.length < 2 ? "" : " at this step"}.`),
    );
    const columns = record.axes[record.alignment.columns];
    const beside = columns !== undefined && (columns.kind === "grid" || columns.size <= NARROW_MAP);
    content.classList.toggle("beside", beside);
    setChildren(ownMap, beside && drawAlignment(record));
    setChildren(maps, !beside && drawAlignment(record), drawHeads(record, step));
  }

  /**
   * The weight of the last colour, the same at every step, or weights that grow would seem to fade: 100 % over tokens; over the
   * many frames or patches, the largest weight of the record that the page shows.
   * @param {AttentionRecord} record
   */
  function scaleOf(record) {
    if (record.axes[record.alignment.columns].kind === "tokens") return 1;
    return Math.max(largest(decodeWeights((app.record ?? record).alignment.weights)), 1e-6);
  }

  /** Nothing where there is one step. */
  const sameScale = () => (steps.length < 2 ? "" : "The colour scale is the same at every step. ");

  /** Where the answer attended: a heat map over tokens or frames; over an image, the mean of all rows. @param {AttentionRecord} record */
  function drawAlignment(record) {
    const [rows, columns] = [record.axes[record.alignment.rows], record.axes[record.alignment.columns]];
    if (!rows || !columns || !rows.size || !columns.size) return null;
    const values = decodeWeights(record.alignment.weights);
    const names = (/** @type {import("./types.js").Axis} */ axis) => (axis.labels.length === axis.size ? axis.labels : Array.from({ length: axis.size }, (_, index) => (axis.times[index] === undefined ? String(index + 1) : `${axis.times[index].toFixed(2)} s`)));
    if (columns.kind === "grid" && columns.grid) return drawOverlay(record, values, rows.size, columns);
    const map = heatmap({ title: steps.length < 2 ? "Attention" : "Attention at this step", rowLabels: names(rows), columnLabels: names(columns), values, max: scaleOf(record), rowName: "answer", columnName: "input", maxHeight: MAP_HEIGHT });
    stopMap = map.destroy;
    const about = el("p", { class: "hint" }, sameScale().trim());
    requestAnimationFrame(() => requestAnimationFrame(() => { // when the map has its size
      const scroller = map.node.querySelector(".heatmap-scroll");
      if (scroller && scroller.scrollHeight > scroller.clientHeight + SCROLLBAR) about.append(`${about.textContent ? " " : ""}The map has ${groupedCount(rows.size)} rows; scroll in it to see those below.`);
    }));
    return el(
      "figure",
      { class: columns.size > WIDE_MAP ? "learned-map wide" : "learned-map" },
      el("figcaption", {}, record.alignment.title || "Attention of the answer"),
      map.node,
      about,
    );
  }

  /**
   * @param {AttentionRecord} record
   * @param {Float32Array} values
   * @param {number} rows
   * @param {import("./types.js").Axis} axis
   */
  function drawOverlay(record, values, rows, axis) {
    const [high, wide] = /** @type {[number, number]} */ (axis.grid);
    const before = axis.size - high * wide; // class tokens
    const mean = meanOverPlaces(values, rows, axis.size, before);
    const shown = app.record ? decodeWeights(app.record.alignment.weights) : values;
    const scale = Math.max(largest(meanOverPlaces(shown, shown.length / axis.size, axis.size, before)), 1e-9); // the same at every step
    const canvas = el("canvas", { width: wide, height: high, class: "learned-cells", "aria-hidden": "true" });
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const pixels = context.createImageData(wide, high);
    const colours = rampTable();
    mean.forEach((weight, place) => {
      const share = Math.min(weight / scale, 1); // little attention leaves the picture as it is
      const [red, green, blue] = colours.subarray(4 * Math.round(255 * (0.6 + 0.4 * share)));
      pixels.data.set([red, green, blue, Math.round(225 * Math.sqrt(share))], 4 * place);
    });
    context.putImageData(pixels, 0, 0);
    const [top, left, bottom, right] = record.input.region ?? [0, 0, 1, 1];
    canvas.style.inset = `${100 * top}% ${100 * (1 - right)}% ${100 * (1 - bottom)}% ${100 * left}%`;
    canvas.style.width = `${100 * (right - left)}%`;
    canvas.style.height = `${100 * (bottom - top)}%`;
    return el(
      "figure",
      { class: "learned-map" },
      el("figcaption", {}, record.alignment.title || "Attention of the answer"),
      el("div", { class: "learned-overlay" }, record.input.picture && el("img", { src: record.input.picture, alt: "The image" }), canvas),
      el("p", { class: "hint" }, `${sameScale()}Strongest place ${percent(largest(mean))}, the mean of all places ${percent(mean.reduce((sum, weight) => sum + weight, 0) / mean.length)}.`),
    );
  }

  let layer = 0;

  /** All heads of one layer, small. @param {AttentionRecord} record @param {number | null} step */
  function drawHeads(record, step) {
    if (!record.layers.length) return null;
    layer = Math.min(layer, record.layers.length - 1);
    const host = el("div", { class: "learned-heads" });
    let askedHeads = 0; // an answer to an earlier request is dropped
    const key = el("div", {});
    const load = async () => {
      const number = ++askedHeads;
      try {
        const found = /** @type {Thumbnails} */ (await app.get(`/records/${record.id}/layers/${layer}/thumbnails`));
        const shown = !app.record || app.record === record ? found : /** @type {Thumbnails} */ (await app.get(`/records/${app.record.id}/layers/${layer}/thumbnails`));
        if (number !== askedHeads) return;
        const scale = Math.max(...shown.heads.map((head) => head.max), 1e-6); // of the record that the page shows, at every step
        setChildren(host, ...found.heads.map((head, index) => drawHead(found, head, index, scale)));
        setChildren(key, legend({ title: "weight", high: percent(scale) }));
      } catch (error) {
        if (number !== askedHeads) return;
        if (error instanceof RequestError && error.expired && records.get(step) === record) { // the server keeps few records
          records.delete(step);
          showStep(steps.indexOf(step));
          return;
        }
        setChildren(host, el("p", { class: "hint" }, error instanceof Error ? error.message : String(error)));
      }
    };
    const pick = choice({
      label: "Layer", options: record.layers.map((one) => ({ value: String(one.index), label: one.title })), value: String(layer), onChange: (value) => {
        layer = Number(value);
        load();
      },
    });
    load();
    return el("div", { class: "stack" }, pick.node, host, key);
  }

  /**
   * @param {Thumbnails} found
   * @param {{max: number, cells: string}} head
   * @param {number} index
   * @param {number} scale  the weight of the last colour
   */
  function drawHead(found, head, index, scale) {
    const canvas = el("canvas", { width: found.columns, height: found.rows, role: "img", "aria-label": `Head ${index + 1}, largest weight ${percent(head.max)}` });
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const pixels = context.createImageData(found.columns, found.rows);
    const colours = rampTable();
    decodeBytes(head.cells).forEach((cell, place) => {
      const colour = 4 * Math.round(Math.min((cell * head.max) / scale, 255));
      pixels.data.set(colours.subarray(colour, colour + 4), 4 * place);
    });
    context.putImageData(pixels, 0, 0);
    return el("figure", { class: "learned-head" }, canvas, el("figcaption", {}, `head ${index + 1}`));
  }

  app.on("theme", () => showStep(playing.step));
  return { update: load };
}

/**
 * The mean of all rows, over the places of a grid.
 * @param {Float32Array} values  rows · columns weights
 * @param {number} rows
 * @param {number} columns
 * @param {number} before  columns before those of the grid
 */
function meanOverPlaces(values, rows, columns, before) {
  const mean = new Float32Array(columns - before);
  for (let row = 0; row < rows; row += 1) for (let place = 0; place < mean.length; place += 1) mean[place] += values[row * columns + before + place] / rows;
  return mean;
}
