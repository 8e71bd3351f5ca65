/**
 * Step by step: the numbers of softmax(Q Kᵀ / √d + mask) V, from the input to the weighted sum, for one query of one head.
 * Scaling, mask and temperature are computed again here; other positions and another order of words are asked from the server.
 */

import { button, choice, placard, segmented, slider, toggle } from "./parts/controls.js";
import { el, eachFrame, readableToken, setChildren, shorten } from "./parts/dom.js";
import { legend } from "./parts/colour.js";
import { matrixView } from "./parts/matrix.js";
import { mathBlock, mathElement, mfrac, mi, mn, mo, mrow, msqrt, msup, mtext } from "./parts/mathml.js";
import { fixedNumber, groupedCount, largest, matrixRow, strongest } from "./parts/numbers.js";
import { attentionStages, mayAttend, ownSwitches, pickCells, unpackSteps } from "./steps_math.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").Axis} Axis */
/** @typedef {import("./steps_math.js").Steps} Steps */
/** @typedef {import("./steps_math.js").StepSwitches} StepSwitches */
/** @typedef {import("./steps_math.js").NumberMatrix} NumberMatrix */
/** @typedef {{id: string, title: string, text: string, body: Element[], worked?: string, changed: boolean, term: string}} Stage */

const SIX_WORDS = "Your cat is a lovely cat"; // few tokenizers know words in capitals
const SENT_QUERIES = 64; // of one answer
const SHOWN_ROWS = 8; // queries around the chosen one
const SHOWN_KEYS = 10; // those with the most weight
const NARROW_KEYS = 6;
const NARROW = 440; // pixels of a phone

const HALF_WIDTH = new Set(["scores", "scaled", "mask", "weights"]); // on a wide screen two of these stand side by side

/** How many numbers of a vector are shown before "…", in a page of this many pixels: alone, or beside one or two other matrices. */
const shownNumbers = (/** @type {number} */ room) =>
  room >= 1200 ? { alone: 13, beside: 5, three: 3, sum: 5 } : room >= 1000 ? { alone: 12, beside: 4, three: 3, sum: 4 } : room >= 640 ? { alone: 8, beside: 4, three: 3, sum: 4 } : room >= NARROW ? { alone: 4, beside: 3, three: 4, sum: 3 } : { alone: 3, beside: 3, three: 3, sum: 2 };

/** @type {import("./types.js").View} */
export const STEPS_VIEW = {
  id: "steps",
  title: "Step by step",
  subtitle: "The arithmetic of one head. Choose a query and follow its row; switch a part of the formula off to see what it does.",
  needsRecord: false,
  unavailable: () => "",
  mount: mountSteps,
};

/**
 * @param {HTMLElement} root
 * @param {App} app
 */
function mountSteps(root, app) {
  let source = /** @type {"lecture" | "record"} */ ("lecture");
  /** @type {Steps | null} */
  let steps = null;
  /** @type {Partial<StepSwitches>} */
  let flipped = {}; // what the user has changed
  /** @type {StepSwitches} */
  let switches = { scaled: true, masked: false, temperature: 1 };
  let positions = true;
  /** @type {number | null} */
  let seed = null;
  let shownPositions = positions; // of the numbers that are shown
  /** @type {number | null} */
  let shownSeed = seed;
  let chosen = 1; // the row of the query
  let asked = 0; // requests so far: an answer to an earlier one is dropped
  let problem = "";
  /** @type {import("./types.js").AttentionRecord | null} */
  let shownRecord = null;
  let stale = false; // another head was chosen while this view was hidden
  const wide = new Set(); // stages whose vectors are shown in full

  // ---- what is looked at

  const which = segmented({
    label: "Numbers from",
    options: [{ value: "lecture", label: "Example words" }, { value: "record", label: "Your input" }],
    value: source,
    onChange: (value) => {
      source = value;
      chosen = value === "lecture" ? 1 : app.selection.query ?? 0;
      resetSwitches();
      load();
    },
  });
  const layerChoice = choice({ label: "Layer", options: [], value: "", onChange: (value) => {
    delete flipped.masked; // every layer has a mask of its own, or none
    chosen = 0;
    app.select({ layer: Number(value), head: 0, query: null });
  } });
  const headChoice = choice({ label: "Head", options: [], value: "", onChange: (value) => app.select({ head: Number(value) }) });
  const queryChoice = choice({ label: "Query", options: [], value: "", onChange: (value) => chooseQuery(Number(value)) });
  const through = button({ label: "Run these six words through the model", onClick: readSixWords });
  const chooser = el("div", { class: "toolbar steps-chooser" }, which.node, layerChoice.node, headChoice.node, queryChoice.node, through);

  // ---- switches

  const scaleSwitch = toggle({ label: "Scale", value: true, hint: "÷ √d", onChange: (on) => change({ scaled: on }) });
  const maskSwitch = toggle({ label: "Mask", hint: "hide later tokens", onChange: (on) => change({ masked: on }) });
  const positionSwitch = toggle({ label: "Positions", value: true, hint: "add position vectors", onChange: (on) => askFor({ positions: on }) });
  const shuffleSwitch = toggle({ label: "Shuffle", hint: "reorder the words", onChange: (on) => askFor({ seed: on ? 1 : null }) });
  const again = button({ label: "Another order", kind: "quiet", onClick: () => askFor({ seed: (seed ?? 0) + 1 }) });
  const temperature = slider({
    label: "Temperature",
    min: -1,
    max: 1,
    step: 0.05,
    value: 0,
    format: (power) => (10 ** power).toFixed(2),
    onInput: (power) => change({ temperature: power === 0 ? 1 : 10 ** power }),
  });
  const reset = button({ label: "Reset", kind: "quiet", onClick: () => { resetSwitches(); load(); } });
  const panel = el(
    "div",
    { class: "card steps-switches", role: "group", "aria-label": "Switches" },
    scaleSwitch.node, maskSwitch.node, positionSwitch.node, el("div", { class: "steps-shuffle" }, shuffleSwitch.node, again), temperature.node, reset,
  );

  const message = el("div", { class: "steps-message" });
  const formula = el("div", { class: "steps-formula" });
  const notes = el("p", { class: "hint steps-notes" });
  const key = el("div", { class: "steps-key" }, legend({ title: "colour: size, regardless of sign", high: "largest of the matrix; of weights, 1" }));
  const list = el("ol", { class: "steps-stages" });
  root.append(el("div", { class: "stack" }, chooser, message, el("div", { class: "steps-bar" }, panel, formula), key, list, notes));

  let answered = 0; // the last request whose answer is drawn
  const drawSoon = eachFrame(drawStages);
  const draw = () => {
    list.setAttribute("aria-busy", "true");
    drawSoon();
  };
  app.on("selection", () => {
    if (source !== "record") return;
    if (app.selection.query !== null) chosen = app.selection.query;
    stale = true;
    if (root.offsetParent) loadStale(); // else it is asked for when it is seen
  });
  app.on("run", () => root.offsetParent && update());
  app.on("theme", draw);
  list.addEventListener("pointerover", (event) => highlight(event.target));
  list.addEventListener("focusin", (event) => highlight(event.target));
  const followScroll = eachFrame(highlightRead);
  window.addEventListener("scroll", () => root.offsetParent && followScroll(), { passive: true });

  function resetSwitches() {
    positions = true;
    seed = null;
    flipped = {};
    temperature.set(0);
  }

  /** @param {Partial<StepSwitches>} changes */
  function change(changes) {
    flipped = { ...flipped, ...changes };
    draw();
  }

  /** @param {{positions?: boolean, seed?: number | null}} wanted */
  function askFor(wanted) {
    if (wanted.positions !== undefined) positions = wanted.positions;
    if (wanted.seed !== undefined) seed = wanted.seed;
    load();
  }

  /** @param {number} position  on the axis of the queries */
  function chooseQuery(position) {
    chosen = position;
    if (source === "record") app.selection.query = position;
    const row = steps ? steps.query_positions.indexOf(position) : -1;
    if (row < 0) load(); // another window, or beyond what was sent
    else draw();
  }

  async function readSixWords() {
    source = "record";
    which.set(source);
    chosen = 0;
    resetSwitches();
    await app.inspect({ text: SIX_WORDS });
    if (app.record) app.announce(`${app.run?.name} has read the six words.`);
  }

  // ---- numbers from the server

  async function load() {
    const number = ++asked;
    const record = app.record;
    problem = "";
    list.setAttribute("aria-busy", "true");
    if (source === "record" && !record?.layers.length) {
      steps = null;
      answered = number;
      draw();
      return;
    }
    const selected = app.selection;
    const head = selected.head === "mean" ? 0 : selected.head;
    const options = { positions, shuffle: seed ?? undefined };
    try {
      const packed = source === "lecture"
        ? await app.post("/lecture/steps", options)
        : await app.post(`/records/${record?.id}/steps`, { layer: selected.layer, head, query: queryAsked(), ...options });
      if (number !== asked) return;
      steps = unpackSteps(packed);
      [shownPositions, shownSeed] = [options.positions, options.shuffle ?? null];
    } catch (error) {
      if (number !== asked) return;
      problem = error instanceof Error ? error.message : String(error);
      if (steps && (positions !== shownPositions || seed !== shownSeed)) { // what is shown stays, the switch goes back
        positions = shownPositions;
        seed = shownSeed;
      } else steps = null;
    }
    answered = number;
    draw();
  }

  /** Small layers are sent whole, so that every query is at hand. */
  function queryAsked() {
    const layer = app.record?.layers[app.selection.layer];
    const size = layer ? app.record?.axes[layer.queries].size ?? 1 : 1;
    return layer?.windowed || size > SENT_QUERIES ? Math.min(Math.max(chosen, 0), size - 1) : undefined;
  }

  // ---- controls show the state

  function drawControls() {
    const record = app.record;
    const recorded = source === "record" && record !== null && record.layers.length > 0;
    which.set(source);
    for (const control of [layerChoice, headChoice]) control.node.hidden = !recorded;
    queryChoice.node.hidden = !steps;
    through.hidden = app.embedded || app.run?.input !== "text" || (source === "record" && record?.input.text === SIX_WORDS);
    if (recorded && record) {
      const layer = record.layers[app.selection.layer] ?? record.layers[0];
      layerChoice.setOptions(record.layers.map((one) => ({ value: String(one.index), label: one.title })));
      layerChoice.set(String(layer.index));
      headChoice.setOptions(Array.from({ length: layer.heads }, (_, head) => {
        const found = layer.labels.find((one) => one.head === head);
        return { value: String(head), label: `head ${head + 1}${found ? ` · ${found.label}` : ""}` };
      }));
      headChoice.set(String(app.selection.head === "mean" ? 0 : app.selection.head));
      const labels = axisLabels(record.axes[layer.queries]);
      queryChoice.setOptions(labels.map((label, position) => ({ value: String(position), label: `${position + 1} · ${shorten(readableToken(label), 24)}` })));
    } else if (steps) {
      queryChoice.setOptions(steps.queries.map((label, row) => ({ value: String(row), label: `${row + 1} · ${label}` })));
    }
    queryChoice.set(String(chosen));
    if (!steps) return;
    const text = source === "lecture" || app.run?.input === "text";
    setSwitch(scaleSwitch, switches.scaled, hasScale(steps), hasScale(steps) ? scaleHint(steps) : "this model does not scale");
    const maskable = steps.mask !== null || steps.same_tokens;
    setSwitch(maskSwitch, switches.masked && maskable, maskable, steps.mask && !steps.same_tokens ? "hidden keys" : "hide later tokens");
    setSwitch(positionSwitch, positions && steps.has_positions, steps.has_positions, steps.has_positions ? "add position vectors" : "this model has none");
    setSwitch(shuffleSwitch, seed !== null, text, text ? "reorder the words" : "for text only");
    again.hidden = seed === null || app.embedded;
    reset.hidden = !changedFrom(steps).any;
  }

  // ---- the stages

  function drawStages() {
    if (steps) switches = { ...ownSwitches(steps), ...flipped };
    list.setAttribute("aria-busy", String(answered !== asked));
    drawControls();
    const stop = source === "record" && !app.record?.layers.length;
    setChildren(message, problem && placard({ kind: "error", title: "These numbers did not load", text: problem }));
    panel.hidden = key.hidden = !steps;
    if (!steps) {
      setChildren(formula);
      setChildren(notes);
      setChildren(list, stop && el("li", {}, placard({ title: emptyReason(), text: "Meanwhile the example of six words shows every step." })));
      return;
    }
    const active = document.activeElement;
    const focused = active?.closest("[data-stage]")?.getAttribute("data-stage");
    const matrix = active?.matches(".stage-more") ? active.closest("[data-matrix]")?.getAttribute("data-matrix") : null;
    const row = Math.max(0, steps.query_positions.indexOf(chosen));
    setChildren(formula, formulaMath(steps, switches));
    setChildren(list, ...stagesOf(steps, row).map((stage, index, all) => stageItem(stage, index, inPair(all, index))));
    highlightRead();
    notes.textContent = [...steps.notes, steps.keys.length > mostKeys() ? `Only the ${mostKeys()} keys with the largest weights are shown, of ${groupedCount(steps.keys.length)}; all take part in the computation.` : ""].filter(Boolean).join(" ");
    if (focused && document.activeElement === document.body) {
      const control = matrix ? `[data-matrix="${matrix}"] .stage-more` : 'button[aria-pressed="true"]';
      const target = list.querySelector(`[data-stage="${focused}"] ${control}`);
      if (target instanceof HTMLElement) target.focus({ preventScroll: true });
    }
  }

  const narrow = () => list.clientWidth < NARROW;
  const mostKeys = () => (narrow() ? NARROW_KEYS : SHOWN_KEYS);

  function emptyReason() {
    if (app.run && !app.run.has_attention) return `${app.run.name} has no attention, so there are no steps to show.`;
    return app.record ? "No attention was computed for this input." : "Give an input above, and its own numbers appear here.";
  }

  /** @param {Steps} now */
  function changedFrom(now) {
    const own = ownSwitches(now);
    const input = !positions || seed !== null;
    const scaled = input || switches.scaled !== own.scaled;
    const masked = scaled || switches.masked !== own.masked;
    const weights = masked || switches.temperature !== 1;
    return { input, scaled, masked, weights, any: weights };
  }

  /**
   * @param {Steps} now
   * @param {number} row
   * @returns {Stage[]}
   */
  function stagesOf(now, row) {
    const stage = attentionStages(now, switches);
    const changed = changedFrom(now);
    const rows = rowsAround(row, now.queries.length, SHOWN_ROWS);
    const weightsOfRow = /** @type {Float64Array} */ (stage.weights.values).subarray(row * now.keys.length, (row + 1) * now.keys.length);
    const keys = strongest(weightsOfRow, mostKeys()).sort((a, b) => a - b);
    const best = strongest(weightsOfRow, 1)[0];
    const at = row * now.keys.length + best;
    const name = { query: quote(now.queries[row]), key: quote(now.keys[best]) };
    const lecture = source === "lecture";
    const d = now.q.columns;
    const shown = shownNumbers(list.clientWidth);

    /**
     * A matrix with a row for each query that is shown.
     * @param {string} title @param {NumberMatrix} matrix @param {number} [digits] @param {number} [max]
     */
    const byQuery = (title, matrix, digits = 2, max) => vectors(title, pickCells(matrix, rows), rows.map((one) => now.queries[one]), rows.indexOf(row), (one) => chooseQuery(now.query_positions[rows[one]]), digits, max, title === "q" ? shown.three : title === "output" || now.memory ? shown.beside : shown.alone);
    /** @param {string} title @param {NumberMatrix} matrix */
    const byKey = (title, matrix) => vectors(title, pickCells(matrix, keys), keys.map((one) => now.keys[one]), undefined, undefined, 2, undefined, title === "memory" ? shown.beside : shown.three);
    /** @param {string} title @param {NumberMatrix} matrix @param {number} digits */
    const pairs = (title, matrix, digits) => cells(title, now, matrix, rows, keys, row, digits);

    /** @type {Stage[]} */
    const found = [];
    const dims = now.x ? `a vector of ${groupedCount(now.x.columns)} numbers` : "a vector";
    if (now.x) {
      found.push({
        id: "x",
        term: "x",
        title: now.memory ? "The two inputs" : "The input",
        text: inputText(now, lecture, positions, dims),
        body: [byQuery("x", now.x), ...(now.memory ? [byKey("memory", now.memory)] : [])],
        changed: changed.input,
      });
    }
    found.push({
      id: "qkv",
      term: "q k v",
      title: "Query, key and value",
      text: projectionText(now, lecture),
      body: [byQuery("q", now.q), byKey("k", now.k), byKey("v", now.v)],
      changed: changed.input,
    });
    found.push({
      id: "scores",
      term: "q k",
      title: scoreTitle(now),
      text: scoreText(now),
      body: [pairs("scores", now.scores, 2)],
      worked: workedScore(now, row, best, name),
      changed: changed.input,
    });
    if (hasScale(now)) {
      const factor = switches.scaled ? now.scale : 1;
      found.push({
        id: "scaled",
        term: "scale",
        title: now.formula === "cosine" ? "Times the learned sharpness" : "Divided by √d",
        text: scaleText(now, switches.scaled, d),
        body: [pairs("scaled", stage.scaled, 2)],
        worked: switches.scaled
          ? `${name.query} → ${name.key}: ${fixedNumber(now.scores.values[at])} ${factor < 1 ? `÷ ${fixedNumber(1 / factor)}` : `× ${fixedNumber(factor)}`} = ${fixedNumber(stage.scaled.values[at])}`
          : "",
        changed: changed.scaled,
      });
    }
    if (now.bias) {
      found.push({
        id: "bias",
        term: "bias",
        title: "Plus the position bias",
        text: "The model adds a number that depends on the distance between query and key.",
        body: [pairs("bias", now.bias, 2), pairs("sum", stage.biased, 2)],
        worked: `${name.query} → ${name.key}: ${fixedNumber(stage.scaled.values[at])} + ${fixedNumber(now.bias.values[at])} = ${fixedNumber(stage.biased.values[at])}`,
        changed: changed.scaled,
      });
    }
    if (now.mask || now.same_tokens) {
      found.push({
        id: "mask",
        term: "mask",
        title: switches.masked ? "Masked" : "No mask",
        text: switches.masked
          ? "Keys that the query must not see get −∞; the softmax turns it into a weight of exactly 0."
          : `Every query may attend to every key, so the scores stay as they are. With the mask on, ${now.same_tokens ? "later tokens get −∞, as in a decoder" : "the hidden keys get −∞"}.`,
        body: [pairs("masked", stage.masked, 2)],
        changed: changed.masked,
      });
    }
    found.push({
      id: "weights",
      term: "softmax",
      title: "Softmax: the attention weights",
      text: `The exponential of each score, divided by the sum over its row: every row adds up to 1.${switches.temperature === 1 ? "" : ` The scores are divided by the temperature ${switches.temperature.toFixed(2)} first: above 1 the weights become more even, below 1 more peaked.`}`,
      body: [pairs("weights", stage.weights, 3)],
      worked: `Row ${name.query}: ${keys.map((key) => fixedNumber(weightsOfRow[key], 3)).join(" + ")}${keys.length < now.keys.length ? " + …" : ""} = ${fixedNumber(weightsOfRow.reduce((sum, weight) => sum + weight, 0), 3)}${keys.length < now.keys.length || addsUp([...weightsOfRow], 3) ? "" : " (numbers are rounded)"}`,
      changed: changed.weights,
    });
    const addends = keys.map((key) => weightsOfRow[key] * largest(Array.from(matrixRow(/** @type {any} */ (now.v.values), key, now.v.columns), Math.abs)));
    const most = Math.max(largest(Array.from(stage.output.values, Math.abs)), ...addends) || 1; // one scale: a sum has one colour in both
    found.push({
      id: "output",
      term: "v",
      title: "The weighted sum of the values",
      text: `Each value times its weight, summed: the output of the head for ${name.query}.`,
      body: [contributions(now, weightsOfRow, keys, matrixRow(/** @type {any} */ (stage.output.values), row, now.v.columns), shown.sum, most, narrow() ? 2 : 3), byQuery("output", stage.output, narrow() ? 2 : 3, most)],
      changed: changed.weights,
    });
    return found;
  }

  /** @param {Stage} stage @param {number} index @param {boolean} half  of the width of a wide screen */
  function stageItem(stage, index, half) {
    return el(
      "li",
      { class: half ? "card stage stage-half" : "card stage", "data-stage": stage.id, "data-term": stage.term, "data-changed": String(stage.changed) },
      el(
        "div",
        { class: "stage-words" },
        el("h3", {}, el("span", { class: "stage-number", "aria-hidden": "true" }, String(index + 1)), el("span", {}, stage.title), stage.changed && el("span", { class: "stage-changed" }, "changed")),
        el("p", {}, stage.text),
        stage.worked ? el("p", { class: "stage-worked" }, stage.worked) : null,
      ),
      el("div", { class: "stage-numbers" }, ...stage.body),
    );
  }

  /**
   * Vectors, one to a row: of a wide one the first numbers, unless all are wanted.
   * @param {string} title
   * @param {NumberMatrix} matrix
   * @param {string[]} labels
   * @param {number} [row]
   * @param {(row: number) => void} [onRow]
   * @param {number} [digits]
   * @param {number} [max]  the size of the last colour
   * @param {number} [shown]
   */
  function vectors(title, matrix, labels, row, onRow, digits = 2, max = undefined, shown = 6) {
    const view = matrixView({
      title: MATRIX_TITLES[title] ?? title, values: /** @type {any} */ (matrix.values), rows: matrix.rows, columns: matrix.columns, rowLabels: labels.map((label) => shorten(label, narrow() ? 9 : 14)),
      row, onRow, digits, max, shownColumns: wide.has(title) ? undefined : shown,
    });
    const more = matrix.columns > shown && button({
      label: wide.has(title) ? "Show fewer" : `Show all ${groupedCount(matrix.columns)} numbers`, kind: "quiet",
      onClick: () => { if (!wide.delete(title)) wide.add(title); draw(); },
    });
    if (more) more.classList.add("stage-more");
    return el("div", { class: "stage-matrix", "data-matrix": title }, view.node, more || null);
  }

  /**
   * A number for each pair of query and key.
   * @param {string} title
   * @param {Steps} now
   * @param {NumberMatrix} matrix
   * @param {number[]} rows
   * @param {number[]} keys
   * @param {number} row
   * @param {number} digits
   */
  function cells(title, now, matrix, rows, keys, row, digits) {
    const picked = pickCells(matrix, rows, keys);
    const hide = switches.masked && (title === "masked" || title === "weights");
    const labels = keys.map((one) => shorten(now.keys[one], 10));
    const view = matrixView({
      title: title === "masked" && !switches.masked ? "scores, unchanged" : MATRIX_TITLES[title] ?? title, values: /** @type {any} */ (picked.values), rows: rows.length, columns: keys.length, rowLabels: rows.map((one) => shorten(now.queries[one], narrow() ? 7 : 14)),
      columnLabels: labels, turned: narrow() && labels.some((label) => label.length > 3), row: rows.indexOf(row), digits: narrow() ? narrowDigits(picked.values, digits) : digits, max: title === "weights" ? 1 : undefined,
      masked: hide ? (i, j) => !mayAttend(now, rows[i], keys[j]) : undefined, onRow: (one) => chooseQuery(now.query_positions[rows[one]]),
    });
    const attributes = { class: "stage-matrix", "data-matrix": title, "data-rows": rows.map((one) => now.query_positions[one]).join(","), "data-columns": keys.map((one) => now.key_positions[one]).join(",") };
    return el("div", attributes, view.node);
  }

  /** The stage that is read: the first one below the formula, which stays in view. */
  function highlightRead() {
    const edge = formula.getBoundingClientRect().bottom;
    highlight([...list.children].find((stage) => stage.getBoundingClientRect().bottom > edge + 160) ?? null);
  }

  /** @param {EventTarget | null} target */
  function highlight(target) {
    const stage = target instanceof Element ? target.closest(".stage") : null;
    const terms = (stage?.getAttribute("data-term") ?? "").split(" ");
    for (const term of formula.querySelectorAll(".term")) term.classList.toggle("term-active", terms.includes(term.getAttribute("data-term") ?? ""));
  }

  /** @param {import("./types.js").ChosenHead} [head]  that another view wants to be shown */
  function update(head) {
    if (head) {
      if (source !== "record") resetSwitches();
      if (source !== "record") chosen = app.selection.query ?? 0;
      source = "record";
      stale = true;
      app.select(head);
    }
    if (app.record !== shownRecord) {
      shownRecord = app.record;
      if (source === "record") {
        steps = null; // numbers of another input or run are not shown below this one's name
        chosen = app.selection.query ?? 0;
        resetSwitches();
        stale = true;
      }
    }
    loadStale();
    draw();
  }

  function loadStale() {
    if (stale) load();
    stale = false;
  }

  load();
  return { update };
}

/**
 * Whether a stage stands beside another one: in a run of an odd number the last has the width to itself.
 * @param {Stage[]} stages @param {number} index
 */
function inPair(stages, index) {
  let first = index;
  while (first > 0 && HALF_WIDTH.has(stages[first - 1].id)) first -= 1;
  let last = index;
  while (last + 1 < stages.length && HALF_WIDTH.has(stages[last + 1].id)) last += 1;
  return HALF_WIDTH.has(stages[index].id) && !(index === last && (last - first) % 2 === 0);
}

/** @type {{[name: string]: string}} */
const MATRIX_TITLES = {
  x: "x", memory: "memory", q: "q, queries", k: "k, keys", v: "v, values", scores: "scores", scaled: "scaled scores", bias: "bias", sum: "scores + bias",
  masked: "masked scores", weights: "weights", output: "output",
};

/**
 * weight × value of each key, and their sum.
 * @param {Steps} now
 * @param {Float64Array} weights
 * @param {number[]} keys
 * @param {ArrayLike<number>} output
 * @param {number} shown  columns
 * @param {number} most  the size of the last colour
 * @param {number} digits
 */
function contributions(now, weights, keys, output, shown, most, digits) {
  const width = Math.min(shown, now.v.columns);
  const values = new Float64Array((keys.length + 1) * width);
  keys.forEach((key, i) => {
    for (let e = 0; e < width; e += 1) values[i * width + e] = weights[key] * now.v.values[key * now.v.columns + e];
  });
  for (let e = 0; e < width; e += 1) values[keys.length * width + e] = output[e];
  const rest = keys.length < now.keys.length ? "… + the others" : "";
  const labels = [...keys.map((key) => `${fixedNumber(weights[key], digits)} × ${shorten(now.keys[key], digits > 2 ? 10 : 7)}`), `Σ ${rest}`.trim()];
  const view = matrixView({ title: "weight × value", values: /** @type {any} */ (values), rows: keys.length + 1, columns: width, rowLabels: labels, digits, max: most });
  const column = (/** @type {number} */ e) => Array.from({ length: keys.length + 1 }, (_, i) => values[i * width + e]);
  const rounded = keys.length === now.keys.length && !Array.from({ length: width }, (_, e) => column(e)).every((all) => addsUp(all.slice(0, -1), digits));
  return el("div", { class: "stage-matrix stage-sum", "data-matrix": "contributions" }, view.node, rounded ? el("p", { class: "hint" }, "Numbers are rounded.") : null);
}

/**
 * Whether numbers add up as they are written: rounded.
 * @param {number[]} values
 * @param {number} digits
 */
function addsUp(values, digits) {
  const whole = 10 ** digits;
  const sum = values.reduce((total, value) => total + value, 0);
  return values.reduce((total, value) => total + Math.round(whole * value), 0) === Math.round(whole * sum);
}

/**
 * How many digits a narrow page has room for.
 * @param {ArrayLike<number>} values
 * @param {number} digits
 */
function narrowDigits(values, digits) {
  const most = largest(Array.from(values, (value) => (Number.isFinite(value) ? Math.abs(value) : 0)));
  return most >= 100 ? 0 : most >= 10 ? 1 : Math.min(digits, 2);
}

/**
 * The formula of the layer; its terms are marked while their stage is looked at.
 * @param {Steps} now
 * @param {StepSwitches} switches
 */
function formulaMath(now, switches) {
  /** @param {string} name @param {...Element} parts */
  const term = (name, ...parts) => mathElement("mrow", { class: "term", "data-term": name }, ...parts);
  const q = term("q", mi("Q"));
  const k = term("k", msup(mi("K"), mtext("T")));
  const d = now.q.columns;
  /** @type {Element} */
  let inside;
  if (now.formula === "additive") inside = mrow(msup(mi("w"), mtext("T")), mtext("tanh"), mo("("), q, mo("+"), term("k", mi("K")), mo(")"));
  else if (now.formula === "location") inside = q;
  else if (now.formula === "uniform") inside = mn(0);
  else if (now.formula === "squared") inside = mrow(mo("−"), msup(mrow(mo("("), q, mo("−"), term("k", mi("K")), mo(")")), mn(2)));
  else if (now.formula === "absolute") inside = mrow(mo("−"), mo("|"), q, mo("−"), term("k", mi("K")), mo("|"));
  else if (now.formula === "cosine") inside = mrow(...(switches.scaled ? [term("scale", mi("τ"), mo("·"))] : []), mtext("cos"), mo("("), q, mo(","), term("k", mi("K")), mo(")"));
  else if (hasScale(now) && switches.scaled) inside = mfrac(mrow(q, k), term("scale", msqrt(mi("d"))));
  else inside = mrow(q, k);
  const parts = [inside];
  if (now.bias) parts.push(mo("+"), term("bias", mi("B")));
  if (switches.masked) parts.push(mo("+"), term("mask", mi("M")));
  const sum = switches.temperature === 1 ? mrow(...parts) : mfrac(mrow(...parts), mn(switches.temperature.toFixed(2)));
  const node = mathBlock(
    mathElement("mrow", { class: "formula-name" }, mtext("Attention"), mo("("), mi("Q"), mo(","), mi("K"), mo(","), mi("V"), mo(")"), mo("=")), term("softmax", mtext("softmax")), mo("("), sum, mo(")"), mathElement("mspace", { width: "0.25em" }), term("v", mi("V")),
  );
  node.setAttribute("aria-label", `Attention of Q, K and V; d is ${d}`);
  return node;
}

/** @param {Steps} now */
const hasScale = (now) => (now.formula === "dot" || now.formula === "cosine") && now.scale !== 1;

/** @param {Steps} now */
const scaleHint = (now) => (now.formula === "cosine" ? `× ${fixedNumber(now.scale)}` : `÷ √${now.q.columns}`);

/** @param {string} label */
const quote = (label) => `“${readableToken(label).trim()}”`;

/**
 * @param {Steps} now
 * @param {boolean} lecture
 * @param {boolean} positions
 * @param {string} dims
 */
function inputText(now, lecture, positions, dims) {
  const memory = now.memory && now.memory.columns !== now.x?.columns ? ` in x and of ${groupedCount(now.memory.columns)} in the memory` : "";
  if (now.memory) return `Queries are computed from x, keys and values from the memory, the output of the encoder. Each row is ${dims}${memory}.`;
  if (lecture) return `Six example words as random vectors of ${groupedCount(now.x?.columns ?? 0)} numbers ${positions ? "plus a position" : "without a position"}; not taken from this model. ${positions ? "The two CATs have the same embedding but different positions, so their rows differ." : "Without positions the two CATs are the same vector."}`;
  return positions ? `Each row is one token as it enters this layer, ${dims}.` : `Each row is one token as it enters this layer, ${dims}, computed without any position.`;
}

/**
 * @param {Steps} now
 * @param {boolean} lecture
 */
function projectionText(now, lecture) {
  if (lecture) return "In this example Q, K and V are the input itself: attention needs no parameters, and nothing is learned yet.";
  if (now.formula === "additive") return "The query is computed from the state of the decoder (q = W s), a key from each source state (k = U h); the values are the source states themselves.";
  if (now.formula === "general" || now.formula === "location" || now.formula === "uniform") return "The query is the state of the decoder; keys and values are the source states.";
  if (now.formula === "cosine") return "Learned matrices make a query, a key and a value of each token; here q and k are divided by their length, so only their direction counts.";
  if (now.q.columns === 1) return "A query and a key are one number each; the value has the channels that share this weight.";
  return `Three learned matrices make a query (what am I looking for?), a key (what do I have?) and a value (what do I give?) of each token: ${now.q.columns} numbers each in this head.`;
}

/** @param {Steps} now */
function scoreTitle(now) {
  if (now.formula === "dot" || now.formula === "general") return "q · k: how well does each key match?";
  if (now.formula === "cosine") return "cos(q, k): do they point the same way?";
  if (now.formula === "additive") return "w · tanh(q + k): how well does each key match?";
  if (now.formula === "location") return "A score for each position, from the query alone";
  if (now.formula === "uniform") return "The same score for all keys";
  return "How alike are query and key?";
}

/** @param {Steps} now */
function scoreText(now) {
  if (now.formula === "dot" || now.formula === "general") return "Multiply query and key number by number and add up. A large sum means that this key has what the query is looking for.";
  if (now.formula === "cosine") return "Multiply the two directions number by number and add up: 1 for the same direction, −1 for the opposite one.";
  if (now.formula === "additive") return "Add query and key, squeeze every number between −1 and 1 with tanh, and weigh them with a learned vector.";
  if (now.formula === "location") return "This score does not look at the keys at all: the state alone decides which position to read.";
  if (now.formula === "uniform") return "Nothing is compared: every position gets the same score.";
  return "The closer the two numbers, the higher the score.";
}

/**
 * @param {Steps} now
 * @param {boolean} scaled
 * @param {number} d
 */
function scaleText(now, scaled, d) {
  if (now.formula === "cosine") return scaled ? "A cosine is at most 1, too small for a peaked softmax; a learned factor scales it up." : "Switched off: cosines between −1 and 1 give nearly equal weights.";
  if (!scaled) return `Switched off: sums of ${d} products are large, and the softmax gives nearly all weight to one key.`;
  return `A sum of ${d} products grows with d. Divided by √${d} = ${fixedNumber(Math.sqrt(d))}, it stays in a range where the softmax does not saturate.`;
}

/**
 * @param {Steps} now
 * @param {number} row
 * @param {number} column
 * @param {{query: string, key: string}} name
 */
function workedScore(now, row, column, name) {
  const score = fixedNumber(now.scores.values[row * now.scores.columns + column]);
  if (now.formula === "squared") return `${name.query} → ${name.key}: −(${fixedNumber(now.q.values[row])} − ${fixedNumber(now.k.values[column])})² = ${score}`;
  if (now.formula === "absolute") return `${name.query} → ${name.key}: −|${fixedNumber(now.q.values[row])} − ${fixedNumber(now.k.values[column])}| = ${score}`;
  if (!["dot", "general", "cosine", "product"].includes(now.formula)) return "";
  const width = now.q.columns;
  const terms = Array.from({ length: Math.min(3, width) }, (_, e) => `${inBrackets(now.q.values[row * width + e])}·${inBrackets(now.k.values[column * width + e])}`);
  return `${name.query} → ${name.key}: ${terms.join(" + ")}${width > 3 ? ` + … (${groupedCount(width)} products)` : ""} = ${score}`;
}

/** @param {number} value */
const inBrackets = (value) => (value < 0 ? `(${fixedNumber(value)})` : fixedNumber(value));

/**
 * At most `count` rows around the chosen one, in their order.
 * @param {number} chosen
 * @param {number} total
 * @param {number} count
 */
export function rowsAround(chosen, total, count) {
  const first = Math.max(0, Math.min(chosen - Math.floor(count / 2), total - count));
  return Array.from({ length: Math.min(count, total) }, (_, index) => first + index);
}

/**
 * A short label of each position of an axis.
 * @param {Axis} axis
 */
export function axisLabels(axis) {
  if (axis.kind === "grid" && axis.grid) {
    const [rows, columns] = axis.grid;
    const before = axis.size - rows * columns;
    return Array.from({ length: axis.size }, (_, position) => {
      if (position < before) return axis.labels[position] ?? "[CLS]";
      const place = position - before;
      return `row ${Math.floor(place / columns) + 1}, column ${(place % columns) + 1}`;
    });
  }
  if (axis.kind === "frames") return Array.from({ length: axis.size }, (_, frame) => (axis.times[frame] === undefined ? String(frame + 1) : `${axis.times[frame].toFixed(2)} s`));
  return Array.from({ length: axis.size }, (_, position) => axis.labels[position] ?? String(position + 1));
}

/**
 * @param {{node: HTMLElement, input: HTMLInputElement, set: (value: boolean) => void}} control
 * @param {boolean} value
 * @param {boolean} enabled
 * @param {string} hint
 */
function setSwitch(control, value, enabled, hint) {
  control.set(value);
  control.input.disabled = !enabled;
  const small = control.node.querySelector("small");
  if (small) small.textContent = hint;
}
