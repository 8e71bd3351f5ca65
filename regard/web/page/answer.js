/**
 * View 1, the answer and what it attended to: words above words, words beside a picture, or words below a sound.  Hovering or
 * focusing a word shows its weights, a click keeps them.
 */

import { choice, disclosure, placard, segmented, slider, toggle } from "./parts/controls.js";
import { legend, onThemeChange } from "./parts/colour.js";
import { eachFrame, el, readableToken, setChildren, svg } from "./parts/dom.js";
import { fadeEdges } from "./parts/fade.js";
import { heatmap } from "./parts/heatmap.js";
import { horizontalCurve, verticalCurve } from "./parts/links.js";
import { decodeWeights, fixedNumber, percent, strongest, wholePercent } from "./parts/numbers.js";
import { MOST_TIMES, pictureOverlay } from "./parts/overlay.js";
import { spectrogramView } from "./parts/spectrogram.js";
import { meanRows, sumOver, wordRow, wordSize } from "./parts/words.js";
import { labelsOfAxis, isSmall, loadMatrix, loadReceived, loadRow, positionName } from "./weights.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").AttentionRecord} AttentionRecord */
/** @typedef {import("./types.js").Axis} Axis */
/** @typedef {import("./types.js").LayerInfo} LayerInfo */
/** @typedef {import("./parts/words.js").Unit} Unit */

/** Rows of the answer over the columns of an axis. @typedef {{matrix: Float32Array, rows: number, columns: number}} Weights */

const FEW_WORDS = 40; // more links than this at rest are a tangle
const WEAKEST_LINK = 0.03;
const RESTING_LINK = 0.2; // before a word is chosen: each word's strongest link, and all of this weight or more
const SMALLEST_WORD = 15; // pixels; a sentence that needs smaller letters to stay on one line is written in a column
const LONGEST_COLUMN = 45; // words

/** @type {{[kind: string]: string}} */
const ANSWER_NAMES = {
  translation: "Translation",
  continuation: "Continuation",
  caption: "Caption",
  transcript: "Transcript",
  class: "Class",
  fill: "Filled in",
  none: "Each token",
};

/** @type {import("./types.js").View} */
export const ANSWER_VIEW = {
  id: "answer",
  title: "Answer",
  subtitle: "What the model answers, and what it attends to.",
  needsRecord: true,
  unavailable: () => "",
  mount: mountAnswer,
};

/**
 * @param {HTMLElement} root
 * @param {App} app
 */
function mountAnswer(root, app) {
  /** @type {AttentionRecord | null} */
  let drawn = null;
  let cleanUp = () => {};
  return {
    update() {
      if (!app.record || app.record === drawn) return;
      drawn = app.record;
      cleanUp();
      cleanUp = drawAnswer(root, app, app.record);
    },
  };
}

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @param {AttentionRecord} record
 * @returns {() => void}  stops what it started
 */
function drawAnswer(root, app, record) {
  const { answer, alignment, axes } = record;
  const own = decodeWeights(alignment.weights);
  const rowAxis = axes[alignment.rows];
  const columnAxis = axes[alignment.columns];
  if (!own.length || !rowAxis || !columnAxis) {
    const bars = answer.kind === "class" ? classBars(answer.items) : null;
    setChildren(
      root,
      el("div", { class: "card answer-card" }, el("p", { class: "answer-plain", dir: "auto" }, answer.text || "–"), bars),
    );
    return () => {};
  }

  // the words of the answer; a class has one row for all its items
  const probabilities = answer.kind === "class" || answer.kind === "none" ? null : probabilitiesByRow(record, rowAxis.size);
  /** @type {Weights} */
  let weights = { matrix: own, rows: rowAxis.size, columns: columnAxis.size };
  /** @type {Unit | null} */
  let hovered = null;
  /** @type {Unit | null} */
  let pinned = null;
  /** @type {Unit | null} */
  let hoveredKey = null; // a word of the source, instead of one of the answer
  /** @type {Unit | null} */
  let pinnedKey = null;

  let size = columnAxis.kind === "tokens" ? wordSize(rowAxis, columnAxis) : wordSize(rowAxis);
  if (columnAxis.kind === "tokens" && size === "medium") size = "large"; // until `fitWords` has measured them
  const readout = el("output", { class: "answer-readout", "aria-live": "polite" });
  const answerWords = wordRow({
    label: ANSWER_NAMES[answer.kind] ?? "Answer",
    axis: rowAxis,
    size,
    probabilities,
    notes: columnAxis.kind === "frames" ? (unit) => `${timeOf(unit).toFixed(2)} s` : undefined,
    onHover(unit) {
      hovered = unit;
      redraw();
    },
    onPick(unit) {
      pinned = pinned && pinned.start === unit.start && pinned.end === unit.end ? null : unit;
      pinnedKey = null;
      redraw();
    },
    onLayout: () => forgetUnits(),
  });
  const single = rowAxis.size === 1;

  /** When a word is heard: the frame with the most weight. @param {Unit} unit */
  function timeOf(unit) {
    const row = meanRows(own, columnAxis.size, unit);
    return columnAxis.times[strongest(row, 1)[0]] ?? 0;
  }

  /**
   * Where the words are, measured once for a layout: asking in each frame would lay out hundreds of words each time.
   * @type {{sources: ReturnType<typeof answerWords.places>, answers: ReturnType<typeof answerWords.places>} | null}
   */
  let places = null;

  /** @type {"rows" | "columns" | "wrapped"} */
  let layout = "rows";

  /** Links need each sentence on one line, or in one column: no line may run through a word. */
  function fitWords() {
    places = null;
    if (!sourceWords || size === "small" || !stage.clientWidth) return;
    const both = [sourceWords, answerWords];
    const setSize = (/** @type {string} */ pixels) => both.forEach((words) => (words.node.style.fontSize = pixels));
    const fits = () => Math.max(...both.map((words) => words.lineWidth())) <= stage.clientWidth + 18;
    layout = "rows";
    stage.dataset.layout = layout;
    setSize("");
    const largest = parseFloat(getComputedStyle(answerWords.node).fontSize);
    for (let letter = largest; !fits(); letter -= 1) {
      if (letter <= SMALLEST_WORD) {
        layout = both.every((words) => words.units().length <= LONGEST_COLUMN) ? "columns" : "wrapped";
        setSize("");
        break;
      }
      setSize(`${letter - 1}px`);
    }
    stage.dataset.layout = layout;
  }

  function forgetUnits() {
    fitWords();
    hovered = pinned = hoveredKey = pinnedKey = null;
    map?.update(shownMatrix());
    redraw();
  }

  // what the words attended to: other words, a picture, or a sound
  /** @type {ReturnType<typeof wordRow> | null} */
  let sourceWords = null;
  /** @type {(row: Float32Array | null) => void} */
  let showColumns = () => {};
  const lines = svg("svg", { class: "answer-links", "aria-hidden": "true" });
  const stage = el("div", { class: `answer-stage answer-${columnAxis.kind}` });
  const scaleLegend = el("div", { class: "answer-legend" }, legend({ title: "weight" }));
  /** @type {HTMLElement[]} */
  const extraControls = [];
  /** @type {(() => void)[]} */
  const stops = [];

  if (columnAxis.kind === "tokens") {
    sourceWords = wordRow({
      label: sourceName(app, record),
      axis: columnAxis,
      size,
      onHover(unit) {
        hoveredKey = unit;
        redraw();
      },
      onPick(unit) {
        pinnedKey = pinnedKey && pinnedKey.start === unit.start && pinnedKey.end === unit.end ? null : unit;
        pinned = null;
        redraw();
      },
      onLayout: () => forgetUnits(),
    });
    stage.append(lines, sourceWords.node, answerWords.node);
  } else if (columnAxis.kind === "grid" && record.input.picture && columnAxis.grid) {
    const [gridRows, gridColumns] = columnAxis.grid;
    const before = columnAxis.size - gridRows * gridColumns;
    const overlay = pictureOverlay({
      picture: record.input.picture,
      region: record.input.region,
      label: `The picture${record.input.name ? ` ${record.input.name}` : ""}, with attention over it`,
      onPlace: single ? undefined : (place) => hoverPosition(place < 0 ? null : before + place),
    });
    stops.push(overlay.destroy);
    overlay.setGrid(gridRows, gridColumns);
    showColumns = (row) => overlay.show(row ? row.subarray(before) : null, gridRows, gridColumns);
    const scale = segmented({
      label: "Colour",
      options: [
        { value: "uniform", label: "× uniform" },
        { value: "weight", label: "weight" },
      ],
      value: "uniform",
      onChange(value) {
        overlay.setScale(value === "weight" ? "weight" : "uniform");
        showOverlayLegend(value === "weight");
      },
    });
    const strength = slider({
      label: "Overlay",
      min: 0,
      max: 100,
      value: 75,
      format: (value) => `${value} %`,
      onInput: (value) => overlay.setStrength(value / 100),
    });
    extraControls.push(scale.node, strength.node);
    /** @param {boolean} byWeight */
    const showOverlayLegend = (byWeight) =>
      setChildren(
        scaleLegend,
        byWeight
          ? legend({ title: "weight", high: "largest", onPicture: true })
          : legend({ title: "times uniform attention", low: "1× or less", high: `${MOST_TIMES}× or more`, onPicture: true }),
      );
    showOverlayLegend(false);
    const side = el("div", { class: "answer-side" }, answer.kind === "class" ? classBars(answer.items) : answerWords.node);
    side.append(el("div", { class: "answer-foot" }, readout, scaleLegend));
    stage.append(overlay.node, side);
  } else if (columnAxis.kind === "frames" && record.input.spectrogram) {
    const sound = spectrogramView({
      spectrogram: record.input.spectrogram,
      label: "Spectrogram of the recording",
      onTime: (seconds) => hoverPosition(seconds === null ? null : nearestFrame(columnAxis.times, seconds)),
    });
    stops.push(sound.destroy);
    showColumns = (row) => sound.show(row, columnAxis.times);
    setChildren(scaleLegend, legend({ title: "weight", low: "0", high: "largest" }));
    stage.append(answerWords.node, sound.node);
  } else {
    stage.append(answerWords.node);
  }

  /** @param {number | null} position  of the columns */
  function hoverPosition(position) {
    hoveredKey =
      position === null
        ? null
        : { text: positionName(columnAxis, position), start: position, end: position + 1, word: position, pieces: 1 };
    redraw();
  }

  // which layer and head: the record's own mean, or another of the same queries and keys
  const offered = record.layers.filter((layer) => queryRows(record, layer) !== null);
  const headChoice = choice({ label: "Head", options: [], value: "mean", onChange: () => loadChosen() });
  const layerChoice = choice({
    label: "Attention shown",
    options: [
      { value: "", label: alignment.title || "all layers" },
      ...offered.map((layer) => ({
        value: String(layer.index),
        label: layer.title,
        group: offered.length > 1 ? "One layer" : undefined,
      })),
    ],
    value: "",
    onChange() {
      const layer = record.layers[Number(layerChoice.value)];
      const heads = layerChoice.value && layer ? layer.heads : 0;
      headChoice.setOptions([
        { value: "mean", label: heads > 1 ? `mean of ${heads}` : "1" },
        ...Array.from({ length: heads > 1 ? heads : 0 }, (_, head) => ({ value: String(head), label: String(head + 1) })),
      ]);
      headChoice.node.hidden = heads < 2;
      loadChosen();
    },
  });
  headChoice.node.hidden = true;
  const failure = el("div");

  let asked = 0; // requests so far: an answer to an earlier one is dropped
  async function loadChosen() {
    const number = ++asked;
    const chosen = layerChoice.value;
    const head = headChoice.value === "mean" ? "mean" : Number(headChoice.value);
    try {
      const matrix = chosen === "" ? own : await loadAnswerRows(app, record, record.layers[Number(chosen)], head);
      if (number !== asked) return;
      weights = { ...weights, matrix };
      setChildren(failure);
      map?.update(shownMatrix());
      redraw();
    } catch (error) {
      if (number !== asked) return;
      setChildren(
        failure,
        placard({
          kind: "error",
          title: "These weights did not load",
          text: error instanceof Error ? error.message : String(error),
        }),
      );
    }
  }

  /** A row for each word of the answer as it is shown, whole or opened into its tokens, and a column for each of the source. */
  function shownMatrix() {
    const rows = answerWords.units();
    const columns = sourceWords?.units() ?? [];
    const values = new Float32Array(rows.length * columns.length);
    for (const [row, unit] of rows.entries()) {
      values.set(sumOver(meanRows(weights.matrix, weights.columns, unit), columns), row * columns.length);
    }
    const { queries } = alignment; // a token of a continuation was predicted from the tokens before it
    const masked =
      answer.kind === "continuation" && queries
        ? (/** @type {number} */ row, /** @type {number} */ column) => columns[column].start > queries[rows[row].end - 1]
        : undefined;
    return { values, rowLabels: rows.map((unit) => unit.text), columnLabels: columns.map((unit) => unit.text), masked };
  }

  // the same weights as a matrix, with the numbers in a table
  const rowNames = labelsOfAxis(rowAxis);
  const map =
    columnAxis.kind === "tokens" && rowAxis.size * columnAxis.size <= 512 * 512
      ? heatmap({
          title: `What the answer attended to: ${alignment.title}`,
          rowName: "word of the answer",
          columnName: "word of the source",
          maxHeight: 680,
          ...shownMatrix(),
        })
      : null;

  /** What is shown before a word is chosen: all links of a text; over a picture or a sound, the word with the largest weight. */
  function restingUnit() {
    const units = answerWords.units();
    if (single) return units[0];
    if (sourceWords) return null;
    const peaks = units.map((unit) => Math.max(...meanRows(weights.matrix, weights.columns, unit)));
    return units[strongest(peaks, 1)[0]] ?? null;
  }

  const redraw = eachFrame(draw);
  function draw() {
    const unit = hovered ?? (hoveredKey ? null : pinned) ?? (hoveredKey || pinnedKey ? null : restingUnit());
    const key = hovered ? null : (hoveredKey ?? (unit ? null : pinnedKey));
    answerWords.mark(pinned, "pressed");
    sourceWords?.mark(pinnedKey, "pressed");
    answerWords.mark(unit, "current");
    sourceWords?.mark(key, "current");
    if (unit) {
      const row = meanRows(weights.matrix, weights.columns, unit);
      answerWords.paint(null);
      sourceWords?.paint(sumOver(row, sourceWords.units()));
      showColumns(row);
      describe(unit, row);
    } else if (key) {
      const column = new Float32Array(weights.rows);
      for (let row = 0; row < weights.rows; row += 1) {
        for (let position = key.start; position < key.end; position += 1)
          column[row] += weights.matrix[row * weights.columns + position];
      }
      const units = answerWords.units();
      const shares = sumOver(column, units).map((sum, index) => sum / (units[index].end - units[index].start));
      sourceWords?.paint(null);
      answerWords.paint(shares);
      const best = strongest(shares, 3).filter((index) => shares[index] >= WEAKEST_LINK);
      sayLine(
        readableToken(key.text),
        "received",
        "from",
        best.map((index) => [readableToken(units[index].text), shares[index]]),
      );
      showColumns(null);
    } else {
      answerWords.paint(null);
      sourceWords?.paint(null);
      showColumns(null);
      setChildren(
        readout,
        el(
          "span",
          { class: "quiet" },
          sourceWords && size !== "small" && layout !== "wrapped" && answerWords.units().length <= FEW_WORDS
            ? `Each word’s strongest link, and all of ${percent(RESTING_LINK)} or more. Choose a word to see the others.`
            : "Choose a word to see what it attended to.",
        ),
      );
      readout.removeAttribute("data-row");
    }
    drawLinks(unit, key);
  }

  /**
   * @param {Unit} unit
   * @param {Float32Array} row
   */
  function describe(unit, row) {
    readout.setAttribute("data-row", String(unit.start));
    const likely = probabilities ? answerWords.probabilityOf(unit) : null;
    if (sourceWords) {
      const units = sourceWords.units();
      const shares = sumOver(row, units);
      const best = strongest(shares, 3).filter((index) => shares[index] >= WEAKEST_LINK);
      const who = answer.kind === "class" ? null : readableToken(unit.text);
      sayLine(
        who,
        "attended",
        "to",
        best.map((index) => [readableToken(units[index].text), shares[index]]),
        likely,
      );
    } else {
      const best = strongest(row, 1)[0];
      setChildren(
        readout,
        whoSays(answer.kind === "class" ? null : readableToken(unit.text)),
        ` attended most to ${positionName(columnAxis, best)}: `,
        el("b", { "data-weight": row[best].toFixed(6) }, percent(row[best])),
        ".",
        ownProbability(likely),
      );
    }
  }

  /** @param {string | null} who  a word; null for a model that names a class */
  const whoSays = (who) => (who === null ? el("span", { class: "who" }, "The model") : el("span", { class: "who" }, "“", el("bdi", {}, who), "”"));

  /** @param {number | null} likely */
  const ownProbability = (likely) => likely !== null && el("span", { class: "quiet" }, ` Its own probability: ${wholePercent(likely)}.`);

  /**
   * “non” attended 57 % to “can't”, 26 % to “I”.
   * @param {string | null} who
   * @param {"attended" | "received"} verb
   * @param {"to" | "from"} way
   * @param {[string, number][]} targets
   * @param {number | null} [likely]
   */
  function sayLine(who, verb, way, targets, likely = null) {
    const said = targets.flatMap(([name, share], index) => [
      index ? ", " : " ",
      el("b", { "data-weight": share.toFixed(6) }, wholePercent(share)),
      ` ${way} “`,
      el("bdi", {}, name),
      "”",
    ]);
    setChildren(
      readout,
      whoSays(who),
      ` ${verb}`,
      ...(said.length ? said : [verb === "attended" ? " to no word in particular" : " little from every word"]),
      ".",
      ownProbability(likely),
    );
  }

  /**
   * @param {Unit | null} unit
   * @param {Unit | null} key
   */
  function drawLinks(unit, key) {
    lines.replaceChildren();
    if (!sourceWords || size === "small" || layout === "wrapped") return; // long texts scroll on their own; their words are only coloured
    if (!places) {
      const frame = stage.getBoundingClientRect();
      lines.setAttribute("width", String(frame.width));
      lines.setAttribute("height", String(frame.height));
      places = { sources: sourceWords.places(frame), answers: answerWords.places(frame) };
    }
    const answers = answerWords.units();
    const sources = sourceWords.units();
    const resting = !unit && !key;
    if (resting && answers.length > FEW_WORDS) return;
    for (const [row, from] of answers.entries()) {
      if (unit && (from.start !== unit.start || from.end !== unit.end)) continue;
      const shares = sumOver(meanRows(weights.matrix, weights.columns, from), sources);
      const best = strongest(shares, 1)[0];
      for (const [column, share] of shares.entries()) {
        if (resting && column !== best && share < RESTING_LINK) continue;
        if (key && (sources[column].start !== key.start || sources[column].end !== key.end)) continue;
        if (share < WEAKEST_LINK) continue;
        const start = places.sources[column];
        const end = places.answers[row];
        const path = layout === "columns" ? horizontalCurve(start.right + 2, start.y, end.left - 2, end.y) : verticalCurve(start.x, start.bottom + 1, end.x, end.top - 1);
        const strength = resting ? 0.28 + 0.5 * share : 0.2 + 0.75 * share;
        lines.append(
          svg("path", {
            d: path,
            "stroke-width": (resting ? 1.2 + 2.6 * share : 1.2 + 6.5 * share).toFixed(2),
            "stroke-opacity": strength.toFixed(3),
            "data-weight": share.toFixed(6),
          }),
        );
      }
    }
  }

  // the page
  const facts = [];
  if (answer.score !== null && answer.kind !== "class") facts.push(`Score ${fixedNumber(answer.score, 2)}: ${scoreMeaning(record)}.`);
  if (record.checkpoint !== null) facts.push(`Checkpoint of step ${record.checkpoint}.`);
  if (probabilities) facts.push("The bar below a word is its probability.");
  if (answer.kind !== "class" && (answerWords.hasPieces || sourceWords?.hasPieces)) {
    const pieces = toggle({
      label: "Show tokens",
      onChange(value) {
        answerWords.showPieces(value);
        sourceWords?.showPieces(value);
      },
    });
    extraControls.push(pieces.node);
  }
  const controls = el("div", { class: "toolbar answer-controls" }, layerChoice.node, headChoice.node, ...extraControls);
  const foot = columnAxis.kind === "grid" ? null : el("div", { class: "answer-foot" }, readout, scaleLegend);
  const extraBars = answer.kind === "class" && columnAxis.kind !== "grid" ? classBars(answer.items) : null;
  const note = facts.length ? el("p", { class: "hint" }, facts.join(" ")) : null;
  const card = el("div", { class: "card answer-card" }, controls, failure, stage, foot, extraBars, note);
  const matrixCard = map
    ? el("section", { class: "card answer-matrix" }, el("h3", {}, "The same weights as a matrix"), map.node)
    : placesTable();
  const letters = (/** @type {Axis} */ axis) => axis.words.reduce((sum, word) => sum + Array.from(word.text).length + 1, 0);
  const short = map && !single && Math.max(letters(rowAxis), letters(columnAxis)) <= 80 && columnAxis.words.length <= 20;
  setChildren(root, el("div", { class: short ? "answer-layout short" : "answer-layout" }, card, matrixCard));

  /** For pictures and sounds: the numbers of every word over every place. */
  function placesTable() {
    const table = el("table", { class: "weights-table" });
    const host = fadeEdges(el("div", { class: "table-scroll", tabindex: "0", role: "group", "aria-label": "Table of weights" }, table), table);
    const box = disclosure("Show as table", host);
    box.addEventListener("toggle", () => {
      if (!box.open) return;
      const names = labelsOfAxis(columnAxis);
      const head = el("tr", {}, el("td", {}), ...rowNames.map((name) => el("th", { scope: "col" }, readableToken(name))));
      const body = names.map((name, column) =>
        el(
          "tr",
          {},
          el("th", { scope: "row" }, name),
          ...rowNames.map((_, row) => {
            const weight = weights.matrix[row * weights.columns + column];
            return el("td", { "data-weight": weight.toFixed(6) }, weight.toFixed(4));
          }),
        ),
      );
      setChildren(
        table,
        el("caption", {}, `${alignment.title}: a row for each ${columnAxis.kind === "grid" ? "place (row, column)" : "frame"}`),
        el("thead", {}, head),
        el("tbody", {}, ...body),
      );
    });
    return box;
  }

  /** @param {KeyboardEvent} event */
  const unpin = (event) => {
    if (event.key !== "Escape") return;
    pinned = pinnedKey = hovered = hoveredKey = null;
    redraw();
  };
  root.addEventListener("keydown", unpin);
  let width = 0;
  const sizes = new ResizeObserver(() => {
    if (stage.clientWidth !== width) fitWords(); // its height changes with the layout itself
    width = stage.clientWidth;
    places = null;
    redraw();
  });
  sizes.observe(stage);
  stops.push(onThemeChange(redraw));
  fitWords();
  redraw();
  return () => {
    root.removeEventListener("keydown", unpin);
    sizes.disconnect();
    map?.destroy();
    stops.forEach((stop) => stop());
  };
}

/**
 * @param {App} app
 * @param {AttentionRecord} record
 */
function sourceName(app, record) {
  if (record.answer.kind === "continuation") return "Prompt and continuation";
  const languages = app.runs.find((run) => run.name === record.run)?.languages;
  return languages ? `Source · ${languages.source} → ${languages.target}` : "Source";
}

/**
 * The probability of the item of each row.
 * @param {AttentionRecord} record
 * @param {number} rows
 */
function probabilitiesByRow(record, rows) {
  /** @type {(number | null)[]} */
  const found = new Array(rows).fill(null);
  for (const item of record.answer.items) found[item.query] ??= item.probability;
  return found;
}

/**
 * Which rows of a layer's matrix the rows of the answer are; "received" if it is the mean over all queries; null if the layer
 * is of other tokens.
 * @param {AttentionRecord} record
 * @param {LayerInfo} layer
 * @returns {number[] | "received" | null}
 */
function queryRows(record, layer) {
  const { alignment, axes, answer } = record;
  if (layer.keys !== alignment.columns) return null;
  const count = axes[alignment.rows].size;
  if (layer.queries === alignment.rows) return Array.from({ length: count }, (_, row) => row);
  if (alignment.queries && layer.queries === alignment.columns) return alignment.queries;
  const queries = axes[layer.queries];
  if (answer.kind === "class") {
    const [rows, columns] = queries.grid ?? [0, 0];
    return queries.size > rows * columns && queries.kind === "grid" ? [0] : "received";
  }
  return null;
}

/**
 * @param {App} app
 * @param {AttentionRecord} record
 * @param {LayerInfo} layer
 * @param {number | "mean"} head
 */
async function loadAnswerRows(app, record, layer, head) {
  const rows = queryRows(record, layer);
  if (rows === "received" || rows === null) return loadReceived(app, layer, head);
  const columns = record.axes[layer.keys].size;
  const matrix = new Float32Array(rows.length * columns);
  if (isSmall(app, layer)) {
    const whole = await loadMatrix(app, layer, head);
    for (const [index, row] of rows.entries()) matrix.set(whole.subarray(row * columns, (row + 1) * columns), index * columns);
  } else {
    await Promise.all(rows.map(async (row, index) => matrix.set(await loadRow(app, layer, head, row), index * columns)));
  }
  return matrix;
}

/**
 * @param {number[]} times
 * @param {number} seconds
 */
function nearestFrame(times, seconds) {
  let best = 0;
  for (const [frame, time] of times.entries()) if (Math.abs(time - seconds) < Math.abs(times[best] - seconds)) best = frame;
  return best;
}

/** @param {import("./types.js").AnswerItem[]} items */
function classBars(items) {
  return el(
    "ol",
    { class: "bars", "aria-label": "Classes and their probabilities" },
    ...items.map((item, index) =>
      el(
        "li",
        { class: index ? "bar" : "bar first" },
        el("span", { class: "bar-name", dir: "auto" }, readableToken(item.text)),
        el(
          "span",
          { class: "bar-value", "data-probability": item.probability === null ? null : item.probability.toFixed(6) },
          item.probability === null ? "" : percent(item.probability),
        ),
        el(
          "span",
          { class: "bar-track", "aria-hidden": "true" },
          el("span", { style: { width: `${100 * (item.probability ?? 0)}%` } }),
        ),
      ),
    ),
  );
}

/** What the score of a search is, with its unit. @param {AttentionRecord} record */
function scoreMeaning(record) {
  const perFrame = record.answer.kind === "transcript" && !record.layers.some((layer) => layer.kind === "cross"); // CTC alone
  return perFrame ? "the log-probability of all frames, in nats" : "the log-probability normalized by length, in nats per token";
}
