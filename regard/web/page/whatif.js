/**
 * What if: heads, the attention of layers, and words of the input are switched off; the model answers again, and the original
 * answer is scored again.  A table ranks the heads by what the answer loses without each.
 */

import { button, placard, segmented } from "./parts/controls.js";
import { inkCss, legend, rampCss } from "./parts/colour.js";
import { el, readableToken, setChildren, shorten } from "./parts/dom.js";
import { fadeEdges } from "./parts/fade.js";
import { fixedNumber, percent } from "./parts/numbers.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").Answer} Answer */
/** @typedef {import("./types.js").AttentionRecord} AttentionRecord */
/** @typedef {{logprob: number, probabilities: number[]}} Scored */
/** @typedef {{answer: Answer, base: Scored, changed: Scored}} Ablation */
/** @typedef {{layer: number, head: number | null, drop: number, answer: string | null, answer_changes: boolean | null}} Loss */
/** @typedef {{base: Scored, heads: Loss[], layers: Loss[], total: number}} Ranking */
/** @typedef {"drop" | "layer" | "head"} RankKey */

const RANKED_ROWS = 12; // of the table, before "show all"
const NAMED = 3; // of what is switched off
const MEASURED_AT_ONCE = 3e10; // multiplications of all passes, about a second: the heads of a larger model are measured on request

/** @type {import("./types.js").View} */
export const WHATIF_VIEW = {
  id: "whatif",
  title: "What if",
  subtitle: "A weight does not show what the answer depends on. Switch off heads, layers or input words, and the model answers again.",
  needsRecord: true,
  unavailable(run, record) {
    if (!run.has_attention) return `${run.name} has no attention to switch off.`;
    if (record && !record.layers.length) return "No attention was computed for this input.";
    if (record && !record.answer.items.length) return "This model gives no answer, so there is nothing to compare.";
    return "";
  },
  mount: mountWhatIf,
};

/**
 * @param {HTMLElement} root
 * @param {App} app
 */
function mountWhatIf(root, app) {
  /** @type {Set<string>} */
  const heads = new Set(); // "layer,head"
  /** @type {Set<number>} */
  const layers = new Set();
  /** @type {Set<string>} */
  const words = new Set(); // "start,end"
  /** @type {Ablation | null} */
  let found = null;
  let foundWithout = ""; // what it is that was switched off for it
  /** @type {Ranking | null} */
  let ranking = null;
  let rankedBy = /** @type {"heads" | "layers"} */ ("heads");
  let sortedBy = /** @type {RankKey} */ ("drop");
  let wholeTable = false;
  let ranks = false; // whether the ranking is being measured
  let waits = false;
  let problem = "";
  let rankProblem = "";
  let asked = 0;
  /** @type {AttentionRecord | null} */
  let shown = null;

  const board = el("section", { class: "card whatif-board", "aria-labelledby": "whatif-board-title" });
  const result = el("section", { class: "card whatif-result", "aria-labelledby": "whatif-result-title" });
  const table = el("section", { class: "card whatif-ranking", "aria-labelledby": "whatif-ranking-title" });
  root.append(el("div", { class: "whatif-grid" }, result, board, table));

  app.on("theme", () => root.offsetParent && draw());

  const isOff = () => heads.size + layers.size + words.size > 0;

  /**
   * @template T
   * @param {Set<T>} set
   * @param {T} item
   */
  function flip(set, item) {
    if (!set.delete(item)) set.add(item);
    ask();
  }

  function resetAll() {
    heads.clear();
    layers.clear();
    words.clear();
    ask();
  }

  async function ask() {
    const number = ++asked;
    problem = "";
    if (!isOff()) found = null;
    waits = isOff();
    draw();
    if (!isOff() || !app.record) return;
    const without = offNames(app.record);
    try {
      const answer = await app.post(`/records/${app.record.id}/ablate`, { heads: pairsOf(heads), layers: [...layers].sort((a, b) => a - b), words: pairsOf(words) });
      if (number !== asked) return;
      found = answer;
      foundWithout = without;
    } catch (error) {
      if (number !== asked) return;
      found = null;
      problem = error instanceof Error ? error.message : String(error);
    }
    waits = false;
    draw();
    if (found && app.record) app.announce(sameText(found.answer.text, app.record.answer.text) ? "The answer stays the same." : `The answer becomes: ${found.answer.text}`);
  }

  async function rank() {
    const record = app.record;
    if (!record || ranks) return;
    ranks = true;
    rankProblem = "";
    draw();
    try {
      const answer = await app.post(`/records/${record.id}/importance`, {});
      if (app.record !== record) return;
      ranking = answer;
      if (ranking && !ranking.heads.length) rankedBy = "layers";
    } catch (error) {
      if (app.record !== record) return;
      rankProblem = error instanceof Error ? error.message : String(error);
    } finally {
      if (app.record === record) ranks = false;
    }
    draw();
  }

  // ---- the board of switches

  /** @param {AttentionRecord} record */
  function drawBoard(record) {
    /** @type {Map<string, number>} */
    const drops = new Map(); // of each switch that is shown
    for (const loss of ranking?.heads ?? []) drops.set(`${loss.layer},${loss.head}`, loss.drop);
    for (const loss of ranking?.layers ?? []) if (record.layers[loss.layer].heads === 1) drops.set(String(loss.layer), loss.drop);
    const most = Math.max(...drops.values(), 1e-9);
    const rows = record.layers.map((layer, index) => {
      const off = layers.has(index);
      const cells = Array.from({ length: layer.heads }, (_, head) => {
        const key = `${index},${head}`;
        const only = layer.heads === 1; // then its switch is that of the layer
        const gone = off || heads.has(key);
        const drop = drops.get(only ? String(index) : key);
        const share = drop === undefined || gone ? null : Math.max(drop, 0) / most;
        const loses = drop === undefined ? "" : `, drop ${fixedNumber(drop, 2)} nats`;
        return el(
          "button",
          {
            type: "button", class: "head-switch", "aria-pressed": String(gone), disabled: off && !only, "data-layer": index, "data-head": head,
            style: share === null ? {} : { background: rampCss(share), color: inkCss(share) },
            "aria-label": `${layer.title}, head ${head + 1}: ${gone ? "off" : "on"}${loses}`, title: `${layer.title}, head ${head + 1}${loses}\n(${layer.name}, head ${head} in Python)`,
            on: { click: () => (only ? flip(layers, index) : flip(heads, key)) },
          },
          String(head + 1),
        );
      });
      const whole = el(
        "button",
        { type: "button", class: "layer-switch", "aria-pressed": String(off), "data-layer": index, "aria-label": `All of ${layer.title}: ${off ? "off" : "on"}`, on: { click: () => flip(layers, index) } },
        layer.title,
      );
      return el("div", { class: "board-row" }, whole, el("div", { class: "board-heads" }, ...cells));
    });
    const name = sourceAxisName(record);
    const axis = name ? record.axes[name] : null;
    const special = new Set(/** @type {{special?: number[]}} */ (axis ?? {}).special ?? []);
    const limit = promptLength(record);
    const chips = (axis?.words ?? []).filter((word) => !special.has(word.start) && word.end <= limit).map((word) => {
      const key = `${word.start},${word.end}`;
      return el(
        "button",
        { type: "button", class: "word-switch", "aria-pressed": String(words.has(key)), "data-word": key, "aria-label": `Word ${readableToken(word.text)}: ${words.has(key) ? "off" : "on"}`, on: { click: () => flip(words, key) } },
        readableToken(word.text.trim() || word.text),
      );
    });
    setChildren(
      board,
      el("div", { class: "whatif-title" }, el("h3", { id: "whatif-board-title", tabindex: "-1" }, "Switch off"), isOff() ? button({ label: "Reset", kind: "quiet", onClick: resetAll }) : null),
      app.embedded ? el("p", { class: "hint" }, `This saved page holds the answers without one head, one layer or one word. To switch off several at once: regard serve ${record.run}`) : null,
      chips.length ? el("div", { class: "board-words" }, el("p", { class: "control-label" }, "Words of the input"), el("div", { class: "board-chips" }, ...chips), el("p", { class: "hint" }, "A word is removed from the sentence; the words after it move up.")) : null,
      el("p", { class: "control-label" }, "Layers and their heads"),
      el("p", { class: "hint board-hint" }, "Click a layer’s name to switch off all its heads."),
      el("div", { class: "board-rows" }, ...rows),
      drops.size ? legend({ title: "drop in log-probability without this head", high: `${fixedNumber(most, 2)} nats` }) : null,
    );
  }

  /** All that is switched off, in words. @param {AttentionRecord} record */
  function offNames(record) {
    const texts = record.axes[sourceAxisName(record) ?? ""]?.words ?? [];
    const names = [
      ...[...layers].map((layer) => record.layers[layer].title),
      ...pairsOf(heads).filter(([layer]) => !layers.has(layer)).map(([layer, head]) => `${record.layers[layer].title}, head ${head + 1}`),
      ...pairsOf(words).map(([start, end]) => `“${readableToken(texts.find((word) => word.start === start && word.end === end)?.text.trim() ?? "")}”`),
    ];
    const shown = names.slice(0, NAMED);
    return names.length > NAMED ? `${shown.join("; ")} and ${names.length - NAMED} more` : shown.join("; ");
  }

  // ---- before and after

  /** @param {AttentionRecord} record */
  function drawResult(record) {
    const heading = el("h3", { id: "whatif-result-title" }, "The answer");
    const before = record.answer;
    const unchanged = !found;
    const after = found?.answer ?? before;
    const marks = found ? differences(wordsOf(before.text), wordsOf(after.text)) : null;
    const lines = el(
      "dl",
      { class: "whatif-answers", "data-changed": String(!sameText(before.text, after.text)) },
      el("dt", {}, "Original answer"),
      el("dd", { class: "answer-before" }, ...markedWords(wordsOf(before.text), marks?.before)),
      el("dt", {}, isOff() ? `Without ${found ? foundWithout : offNames(record)}` : "With a part switched off"),
      unchanged
        ? el("dd", { class: "answer-after answer-waiting" }, waits ? "The model answers again …" : `Switch off ${sourceAxisName(record) ? "a word or a head" : "a head"} to see what changes.`)
        : el("dd", { class: "answer-after" }, ...markedWords(wordsOf(after.text), marks?.after), sameText(before.text, after.text) ? el("span", { class: "same" }, "the same") : null),
    );
    setChildren(
      result,
      heading,
      lines,
      problem ? placard({ kind: "error", title: "The model could not answer again", text: problem }) : null,
      found ? verdict(found, before) : null,
      probabilityTable(before, found),
    );
    result.setAttribute("aria-busy", String(waits));
  }

  // ---- the ranking

  /** @param {AttentionRecord} record */
  function drawRanking(record) {
    const heading = el("h3", { id: "whatif-ranking-title", tabindex: "-1" }, "Which heads matter most?");
    if (!ranking) {
      const text = `Each head, and each layer, is switched off on its own and the original answer is scored again: ${passes(record)} passes through the model, for at most 20 seconds.`;
      setChildren(
        table,
        heading,
        el("p", { class: "hint" }, text),
        rankProblem ? placard({ kind: "error", title: "The heads could not be measured", text: rankProblem }) : null,
        ranks ? el("p", { class: "ranking-waiting", role: "status" }, "Measuring each head …") : button({ label: "Measure every head", kind: "primary", onClick: rank }),
      );
      return;
    }
    const kinds = segmented({
      label: "Switch off one at a time",
      options: [{ value: "heads", label: "heads" }, { value: "layers", label: "layers" }],
      value: rankedBy,
      onChange: (value) => {
        rankedBy = value;
        draw();
      },
    });
    const losses = sortLosses(ranking[rankedBy], sortedBy);
    const most = Math.max(...ranking[rankedBy].map((loss) => Math.abs(loss.drop)), 1e-9);
    const rows = losses.slice(0, wholeTable ? losses.length : RANKED_ROWS).map((loss) => lossRow(record, loss, most));
    /** @param {RankKey} key @param {string} label */
    const sorter = (key, label) =>
      el("th", { scope: "col", "aria-sort": sortedBy === key ? (key === "drop" ? "descending" : "ascending") : "none" }, el("button", { type: "button", "data-focus": `sort-${key}`, on: { click: () => { sortedBy = key; draw(); } } }, label));
    const measured = ranking.heads.length + ranking.layers.length;
    const more = button({ label: wholeTable ? "Show fewer" : `Show all ${losses.length}`, kind: "quiet", onClick: () => { wholeTable = !wholeTable; draw(); } });
    more.dataset.focus = "more";
    const rankingTable = el(
      "table",
      { class: "ranking-table" },
      el("caption", { class: "visually-hidden" }, "The drop in the log-probability of the answer without each, in nats"),
      el("thead", {}, el("tr", {}, sorter("layer", "Layer"), rankedBy === "heads" ? sorter("head", "Head") : null, sorter("drop", "Drop in nats"), el("th", { scope: "col", class: "says" }, "New answer"), el("th", { scope: "col" }, el("span", { class: "visually-hidden" }, "Switch")))),
      el("tbody", {}, ...rows),
    );
    setChildren(
      table,
      heading,
      el("p", { class: "hint" }, "The drop in the log-probability of the original answer when only this is switched off, in nats: 0.7 nats halve the probability, 2.3 nats divide it by 10; below 0 the answer becomes more likely. The model answers again only for the largest drops."),
      ranking.heads.length ? kinds.node : null,
      fadeEdges(el("div", { class: "ranking-scroll" }, rankingTable), rankingTable),
      losses.length > RANKED_ROWS ? more : null,
      measured < ranking.total ? el("p", { class: "hint" }, `${measured} of ${ranking.total} were measured within the time limit.`) : null,
    );
  }

  /**
   * @param {AttentionRecord} record
   * @param {Loss} loss
   * @param {number} most
   */
  function lossRow(record, loss, most) {
    const title = record.layers[loss.layer].title;
    const off = layers.has(loss.layer) || (loss.head !== null && heads.has(`${loss.layer},${loss.head}`));
    const toggleIt = () => (loss.head === null ? flip(layers, loss.layer) : flip(heads, `${loss.layer},${loss.head}`));
    const bar = el("span", { class: `loss-bar${loss.drop < 0 ? " gain" : ""}`, style: { "--share": `${(100 * Math.abs(loss.drop)) / most}%` }, "aria-hidden": "true" });
    const says = loss.answer === null ? el("td", { class: "says unknown same" }, "not computed") : loss.answer_changes ? el("td", { class: "says then" }, loss.answer ? readableToken(shorten(loss.answer, 60)) : "(nothing)") : el("td", { class: "says same" }, "the same");
    const label = loss.head === null ? title : `${title}, head ${loss.head + 1}`;
    return el(
      "tr",
      { "data-layer": loss.layer, "data-head": loss.head, "data-drop": loss.drop },
      el("th", { scope: "row", title: record.layers[loss.layer].name }, title),
      loss.head === null ? null : el("td", { class: "number" }, String(loss.head + 1)),
      el("td", { class: "loss" }, el("span", { class: "loss-value" }, fixedNumber(loss.drop, 2)), bar),
      says,
      el("td", {}, el("button", { type: "button", class: "button button-quiet", "aria-pressed": String(off), "aria-label": `${off ? "Switch on" : "Switch off"}: ${label}`, on: { click: toggleIt } }, off ? "switch on" : "switch off")),
    );
  }

  function draw() {
    const record = app.record;
    if (!record) return;
    const focused = focusKey(document.activeElement);
    const section = document.activeElement?.closest("section");
    drawBoard(record);
    drawResult(record);
    drawRanking(record);
    if (focused && document.activeElement === document.body) {
      const target = root.querySelector(focused) ?? section?.querySelector("h3"); // "Reset" goes with what it resets
      if (target instanceof HTMLElement) target.focus({ preventScroll: true });
    }
  }

  return {
    /** @param {import("./types.js").ChosenHead} [head]  to switch off */
    update(head) {
      if (app.record !== shown) {
        shown = app.record;
        heads.clear();
        layers.clear();
        words.clear();
        found = null;
        ranking = null;
        ranks = false;
        problem = "";
        rankProblem = "";
        wholeTable = false;
        rankedBy = "heads";
        asked += 1;
        waits = false;
        if (app.embedded || (shown && app.run && passes(shown) * app.run.parameters * longestAxis(shown) < MEASURED_AT_ONCE)) rank(); // a saved page may hold it
      }
      if (head) {
        heads.clear();
        layers.clear();
        words.clear();
        if (head.head === "mean" || app.record?.layers[head.layer].heads === 1) layers.add(head.layer);
        else heads.add(`${head.layer},${head.head}`);
        ask();
      }
      draw();
    },
  };
}

/** How many passes through the model the ranking takes: one for each layer, and for each of several heads. @param {AttentionRecord} record */
const passes = (record) => record.layers.reduce((sum, layer) => sum + 1 + (layer.heads > 1 ? layer.heads : 0), 0);

/** @param {AttentionRecord} record */
const longestAxis = (record) => Math.max(...Object.values(record.axes).map((axis) => axis.size), 1);

/**
 * How much more or less probable the original answer is.
 * @param {Ablation} found
 * @param {Answer} before
 */
function verdict(found, before) {
  const change = found.changed.logprob - found.base.logprob;
  const factor = Math.exp(change);
  const words = Math.abs(change) < 0.005
    ? "as likely as before"
    : change < 0
      ? factor > 0.5 ? `${percent(1 - factor)} less likely` : `${timesOf(1 / factor)} less likely`
      : factor < 2 ? `${percent(factor - 1)} more likely` : `${timesOf(factor)} more likely`;
  const what = before.kind === "class" ? `“${before.items[0]?.text ?? before.text}”` : "The original answer";
  return el(
    "p",
    { class: "whatif-verdict" },
    `${what} is now `,
    el("strong", {}, Number.isFinite(1 / factor) ? words : "practically impossible"),
    ". Log-probability ",
    el("output", { "data-value": String(found.base.logprob), class: "logprob-before" }, fixedNumber(found.base.logprob, 2)),
    " → ",
    el("output", { "data-value": String(found.changed.logprob), class: "logprob-after" }, fixedNumber(found.changed.logprob, 2)),
    " nats.",
  );
}

/** @param {number} factor */
const timesOf = (factor) => factor > 1e6 ? "more than a million times" : `${factor < 10 ? factor.toFixed(1) : Math.round(factor).toLocaleString("en-US")} times`;

/**
 * Each item of the original answer, before and after.
 * @param {Answer} before
 * @param {Ablation | null} found
 */
function probabilityTable(before, found) {
  const rows = before.items.map((item, index) => {
    const first = found ? found.base.probabilities[index] : item.probability ?? NaN;
    const then = found ? found.changed.probabilities[index] : NaN;
    const lost = found !== null && then < 0.5 * first;
    return el(
      "tr",
      { class: lost ? "lost" : "", "data-item": index },
      el("th", { scope: "row" }, readableToken(item.text)),
      el("td", { class: "number", "data-value": String(first) }, percent(first)),
      el("td", { class: "probability-bars", "aria-hidden": "true" }, el("span", { class: "bar-before", style: { width: `${100 * (first || 0)}%` } }), found ? el("span", { class: "bar-after", style: { width: `${100 * then}%` } }) : null),
      found ? el("td", { class: "number", "data-value": String(then) }, percent(then)) : null,
    );
  });
  const table = el(
    "table",
    { class: "probability-table" },
    el("caption", { class: "visually-hidden" }, "Probability of each part of the original answer, with all parts of the model and without those switched off"),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, before.kind === "class" ? "Class" : "Original answer"), el("th", { scope: "col" }, found ? "Original" : "Probability"), el("td", { class: "probability-bars" }), found ? el("th", { scope: "col" }, "Without") : null)),
    el("tbody", {}, ...rows),
  );
  return el("div", { class: "probability-scroll", tabindex: rows.length > 12 ? 0 : null }, table);
}

/**
 * "0,2" … → [[0, 2], …], in order.
 * @param {Set<string>} set
 */
function pairsOf(set) {
  return [...set].map((key) => key.split(",").map(Number)).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
}

/** @param {string} text */
const wordsOf = (text) => text.trim().split(/(?<=\s)(?=\S)/u).filter(Boolean);

/**
 * @param {string} one
 * @param {string} other
 */
const sameText = (one, other) => one.trim() === other.trim();

/**
 * @param {string[]} list
 * @param {boolean[]} [kept]  whether each word is in the other answer too
 */
function markedWords(list, kept) {
  if (!list.length) return [el("span", { class: "answer-nothing" }, "(nothing)")];
  return list.flatMap((word, index) => {
    const bare = word.trimEnd();
    return [kept && !kept[index] ? el("mark", {}, readableToken(bare)) : el("span", {}, readableToken(bare)), word.slice(bare.length)];
  });
}

/**
 * Which words of two answers belong to a longest common subsequence.
 * @param {string[]} before
 * @param {string[]} after
 * @returns {{before: boolean[], after: boolean[]}}
 */
export function differences(before, after) {
  const first = before.map((word) => word.trim());
  const second = after.map((word) => word.trim());
  const width = second.length + 1;
  const table = new Uint16Array((first.length + 1) * width);
  for (let i = first.length - 1; i >= 0; i -= 1) {
    for (let j = second.length - 1; j >= 0; j -= 1) {
      table[i * width + j] = first[i] === second[j] ? table[(i + 1) * width + j + 1] + 1 : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    }
  }
  const kept = { before: first.map(() => false), after: second.map(() => false) };
  for (let i = 0, j = 0; i < first.length && j < second.length; ) {
    if (first[i] === second[j]) {
      kept.before[i] = true;
      kept.after[j] = true;
      i += 1;
      j += 1;
    } else if (table[(i + 1) * width + j] >= table[i * width + j + 1]) i += 1;
    else j += 1;
  }
  return kept;
}

/**
 * @param {Loss[]} losses
 * @param {RankKey} key
 */
function sortLosses(losses, key) {
  return [...losses].sort((a, b) => (key === "drop" ? b.drop - a.drop : key === "layer" ? a.layer - b.layer || (a.head ?? 0) - (b.head ?? 0) : (a.head ?? 0) - (b.head ?? 0) || a.layer - b.layer));
}

/**
 * The axis that the words of the input are on.
 * @param {AttentionRecord} record
 */
function sourceAxisName(record) {
  if (record.input.text === null) return null;
  return record.axes.source ? "source" : record.axes.tokens ? "tokens" : null;
}

/**
 * Where the input ends on its axis: a language model's answer follows it.
 * @param {AttentionRecord} record
 */
function promptLength(record) {
  const queries = record.alignment.queries;
  return record.answer.kind === "continuation" && queries?.length ? queries[0] + 1 : Infinity; // the last token of the prompt asks first
}

/**
 * How to find an element again after it was drawn anew.
 * @param {Element | null} node
 */
function focusKey(node) {
  if (!(node instanceof HTMLElement)) return "";
  if (node.matches(".head-switch")) return `.head-switch[data-layer="${node.dataset.layer}"][data-head="${node.dataset.head}"]`;
  if (node.matches(".layer-switch")) return `.layer-switch[data-layer="${node.dataset.layer}"]`;
  if (node.matches(".word-switch")) return `.word-switch[data-word="${node.dataset.word}"]`;
  if (node.dataset.focus) return `[data-focus="${node.dataset.focus}"]`;
  if (node.matches(".whatif-ranking input")) return `.whatif-ranking input[value="${/** @type {HTMLInputElement} */ (node).value}"]`;
  if (node.matches(".whatif-ranking .button-primary")) return ".whatif-ranking .button-primary";
  if (node.matches(".whatif-title button")) return ".whatif-title button";
  if (node.matches("h3")) return `#${node.id}`;
  const row = node.closest(".ranking-table tbody tr");
  if (row) return `.ranking-table tr[data-layer="${row.getAttribute("data-layer")}"]${row.hasAttribute("data-head") ? `[data-head="${row.getAttribute("data-head")}"]` : ""} button`;
  return "";
}
