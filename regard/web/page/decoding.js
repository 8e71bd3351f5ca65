/**
 * Decoding: the notes' inference, one time step after another.  Greedy search, beam search and a sample of the same input side
 * by side; a player for the steps of one of them; the tree of the beam search.
 */

import { answerEnd, beamTree, branchOfBeam, treePath } from "./beam_tree.js";
import { placard, segmented, slider } from "./parts/controls.js";
import { inkCss, rampCss } from "./parts/colour.js";
import { el, readableToken, setChildren } from "./parts/dom.js";
import { fadeEdges } from "./parts/fade.js";
import { fixedNumber, groupedCount, percent } from "./parts/numbers.js";
import { player } from "./parts/player.js";

/** @typedef {import("./beam_tree.js").DecodingTrace} DecodingTrace */
/** @typedef {import("./beam_tree.js").TraceBeam} TraceBeam */
/** @typedef {import("./beam_tree.js").TraceBranch} TraceBranch */
/** @typedef {import("./types.js").App} App */
/** @typedef {"greedy" | "beam" | "sample"} SearchName */
/** @typedef {{[name in SearchName]: DecodingTrace}} DecodingAnswer */

/** @type {SearchName[]} */
const SEARCH_NAMES = ["greedy", "beam", "sample"];
const DECODING_DELAY = 300; // milliseconds after the last move of a slider
const SOFTMAX_ROWS = 7; // of the softmax matrix: the last ones
const SOFTMAX_COLUMNS = 7;
const NARROW_COLUMNS = 3;
const NARROW = 440; // pixels of a phone
const MOST_TRACED = 256; // tokens of an answer, as the server bounds them
const SHOWN_CHIPS = 64; // tokens of an input that are shown
const SPECIAL = /^(<.*>|\[.*\])$/s;
const STARTS_INSIDE = /^(?![\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}])[\p{L}\p{N}\p{M}]/u; // what may continue a word
const CLOSES = /^▁?[,.;:!?)\]»…]+$/; // no space before it, even where tokens are words
const ENDS_INSIDE = /[\p{L}\p{N}\p{M}]$/u;

/** @type {import("./types.js").View} */
export const DECODING_VIEW = {
  id: "decoding",
  title: "Decoding",
  subtitle: "The answer is generated one token at a time: each step gives every token of the vocabulary a probability.",
  needsRecord: true,
  unavailable: (run) => (run.decodes ? "" : `${run.name} answers in one pass, so there is no decoding to show. Choose a run that generates text.`),
  mount: mountDecoding,
};

/**
 * The positions of `a` that a longest common subsequence with `b` leaves out: the tokens that differ.
 * @param {string[]} a
 * @param {string[]} b
 * @returns {Set<number>}
 */
export function differingTokens(a, b) {
  const lengths = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) lengths[i][j] = a[i] === b[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
  }
  const differing = new Set(a.keys());
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    if (a[i] === b[j]) {
      differing.delete(i);
      i += 1;
      j += 1;
    } else if (lengths[i + 1][j] >= lengths[i][j + 1]) i += 1;
    else j += 1;
  }
  return differing;
}

/**
 * Tokens in a row: those from position `fresh` on are new, `taken` are appended.  Of many only the last are shown.
 * @param {string[]} tokens
 * @param {number} fresh
 * @param {string[]} [taken]
 */
function tokenChips(tokens, fresh, taken = []) {
  const from = tokens.length > SHOWN_CHIPS ? tokens.length - SHOWN_CHIPS : 0;
  return el(
    "p",
    { class: "token-chips" },
    from > 0 && el("span", { class: "token-chip token-more" }, `${groupedCount(from)} earlier tokens …`),
    ...tokens.slice(from).map((token, index) => el("span", { class: from + index >= fresh ? "token-chip token-new" : "token-chip" }, readableToken(token))),
    ...taken.map((token) => el("span", { class: "token-chip token-taken", "data-taken": token }, readableToken(token))),
  );
}

/**
 * The traces with tokens written as in the rest of the page: the mark of a space before a word (▁) is dropped, and a token that
 * continues a word gets a +.
 * @param {DecodingAnswer} found
 * @returns {{answer: DecodingAnswer, pieces: boolean}}
 */
export function withReadableTokens(found) {
  let pieces = false; // whether some token continues a word
  const answers = [...found.greedy.answer, ...found.beam.answer];
  const letters = answers.includes("▁␣") || answers.includes("▁"); // whether a space is a token of its own
  const spaces = answers.some((token) => token.startsWith("▁")); // whether tokens say where there are spaces
  /** @param {string} token @param {string} [before]  the token before it */
  const shown = (token, before = "") => {
    if (token.startsWith("▁")) return token.length > 1 ? token.slice(1) : "␣";
    const inside = !SPECIAL.test(token) && !SPECIAL.test(before) && STARTS_INSIDE.test(token) && ENDS_INSIDE.test(before);
    pieces ||= inside;
    return inside ? `+${token}` : token;
  };
  const inOrder = (/** @type {string[]} */ tokens) => tokens.map((token, index) => shown(token, tokens[index - 1]));
  const rename = (/** @type {DecodingTrace} */ trace) => ({
    ...trace,
    source: inOrder(trace.source),
    answer: inOrder(trace.answer),
    steps: trace.steps.map((step) => {
      const last = step.beams.map((beam) => beam.inputs[beam.inputs.length - 1]);
      return {
        ...step,
        beams: step.beams.map((beam, index) => ({ ...beam, inputs: inOrder(beam.inputs), top: beam.top.map((word) => ({ ...word, token: shown(word.token, last[index]) })) })),
        branches: step.branches.map((branch) => ({ ...branch, token: shown(branch.token, last[branch.parent]), glued: letters || CLOSES.test(branch.token) || (spaces && !branch.token.startsWith("▁")) })),
      };
    }),
  });
  return { answer: { greedy: rename(found.greedy), beam: rename(found.beam), sample: rename(found.sample) }, pieces };
}

/**
 * @param {HTMLElement} root
 * @param {App} app
 */
function mountDecoding(root, app) {
  let shownFor = ""; // the record and the options of what is shown
  let answer = /** @type {DecodingAnswer | null} */ (null);
  let chosen = /** @type {SearchName} */ ("greedy");
  let step = 0;
  let beam = 0;
  let asked = 0;
  let timer = 0;
  /** @type {Map<string, DecodingAnswer>} */
  const cache = new Map();

  const message = el("div", {});
  const answers = el("div", { class: "searches", role: "radiogroup", "aria-label": "Searches" });
  const controls = {
    beam: slider({ label: "Beam width", min: 2, max: 10, value: 4, onInput: askSoon }),
    temperature: slider({ label: "Sampling temperature", min: 0.1, max: 2, step: 0.1, value: 1, format: (value) => value.toFixed(1), onInput: askSoon }),
    top_k: slider({ label: "Sampling top-k", min: 0, max: 50, value: 0, format: (value) => (value ? String(value) : "all tokens"), onInput: askSoon }),
    seed: slider({ label: "Sampling seed", min: 0, max: 40, value: 0, onInput: askSoon }),
  };
  const settings = el("div", { class: "settings", role: "group", "aria-label": "Options of the searches" }, ...Object.values(controls).map((control) => control.node));
  const fixed = el("p", { class: "hint", hidden: !app.embedded }, "This saved page holds these three searches. To try other options, open the run: ", el("code", {}, "regard serve RUN"));
  for (const control of Object.values(controls)) control.input.disabled = app.embedded;
  const playing = player({ label: "Time step", onStep: showStep });
  const beamHost = el("div", { class: "decode-beams" });
  const scene = el("div", { class: "decode-scene" });
  const tree = beamTree({ onStep: (to) => (chosen === "beam" ? playing.go(to) : choose("beam", to)) });
  const treeCard = el("section", { class: "card stack", "aria-labelledby": "tree-heading" }, el("h3", { id: "tree-heading" }, "The beam tree"), el("p", { class: "hint" }, ""), tree.node);
  const steps = el("section", { class: "card stack", "aria-labelledby": "player-heading" }, el("div", { class: "toolbar decode-head" }, el("h3", { id: "player-heading" }, ""), beamHost), playing.node, scene);
  const about = el("p", { class: "hint" });
  const content = el("div", { class: "stack" }, answers, about, settings, fixed, steps, treeCard);
  root.append(message, content);

  /** The options, if the user has changed any: the server knows the defaults, and so does an exported page. */
  let changed = false;
  function askSoon() {
    changed = true;
    clearTimeout(timer);
    timer = window.setTimeout(load, DECODING_DELAY);
  }

  async function load() {
    const record = app.record;
    if (!record) return;
    const body = {
      ...(changed && { beam: controls.beam.value, temperature: controls.temperature.value, top_k: controls.top_k.value, seed: controls.seed.value }),
      ...(!app.embedded && app.input?.tokens && { tokens: Math.min(app.input.tokens, MOST_TRACED) }),
    };
    const key = `${record.id} ${JSON.stringify(body)}`;
    const number = (asked += 1);
    content.classList.add("waiting");
    if (!answer) {
      content.hidden = true;
      setChildren(message, placard({ kind: "loading", title: "Decoding …", text: "Tracing greedy search, beam search and sampling." }));
    }
    try {
      const found = cache.get(key) ?? /** @type {DecodingAnswer} */ (await app.post(`/records/${record.id}/decoding`, body));
      if (number !== asked) return;
      if (cache.size > 30) cache.clear();
      cache.set(key, found);
      show(found, shownFor !== record.id);
      shownFor = record.id;
    } catch (error) {
      if (number !== asked) return;
      const text = error instanceof Error ? error.message : String(error);
      setChildren(message, placard({ kind: "error", title: "The searches could not be traced", text }));
      content.hidden = answer === null || shownFor !== record.id;
      app.announce(text);
    } finally {
      if (number === asked) content.classList.remove("waiting");
    }
  }

  /** @param {DecodingAnswer} found @param {boolean} fresh  another input than before */
  function show(found, fresh) {
    const { answer: readable, pieces } = withReadableTokens(found);
    answer = readable;
    about.textContent = `Marked tokens differ from the greedy answer (in the greedy card: from the beam search’s answer). The score is the log-probability of the answer normalized by length: closer to zero is more probable.${pieces ? " A + joins a token to the one before it." : ""}`;
    setChildren(message);
    content.hidden = false;
    if (!changed) {
      controls.beam.set(found.beam.beam_size);
      controls.temperature.set(found.sample.sampling?.temperature ?? 1);
      controls.top_k.set(found.sample.sampling?.top_k ?? 0);
      controls.seed.set(found.sample.sampling?.seed ?? 0);
    }
    tree.setTrace(readable.beam);
    const [intro] = treeCard.getElementsByClassName("hint");
    intro.textContent =
      `Each step ranks all extensions of the kept hypotheses. Of the first ${found.beam.beam_size}, those that end the sentence are finished; the best ${found.beam.beam_size} that do not end it are kept. ` +
      `All others are dropped, an end of lower rank too. The search stops after the step in which ${found.beam.beam_size} or more are finished. ` +
      `Each box shows the probability of its token and the log-probability of the whole hypothesis; once finished, divided by ` +
      (found.beam.length_penalty === 1 ? "its length." : `its length to the power of ${found.beam.length_penalty}.`);
    drawAnswers(found);
    choose(chosen, fresh ? 0 : step);
  }

  // ---- the three answers

  /** @param {DecodingAnswer} found  as the server sent it: a + depends on the token before, and is no difference */
  function drawAnswers(found) {
    if (!answer) return;
    const all = answer;
    const best = Math.max(...SEARCH_NAMES.map((name) => all[name].score));
    setChildren(
      answers,
      ...SEARCH_NAMES.map((name) => {
        const trace = all[name];
        const differing = differingTokens(found[name].answer, found[name === "greedy" ? "beam" : "greedy"].answer);
        const input = el("input", { type: "radio", name: "search", value: name });
        input.checked = name === chosen;
        input.addEventListener("change", () => choose(name, 0));
        const how =
          name === "greedy" ? "always the likeliest token"
          : name === "beam" ? `keeps the ${trace.beam_size} best hypotheses`
          : `temperature ${(trace.sampling?.temperature ?? 1).toFixed(1)}${trace.sampling?.top_k ? `, top ${trace.sampling.top_k}` : ""}, seed ${trace.sampling?.seed ?? 0}`;
        const tokens = trace.answer.map((token, index) => el(differing.has(index) ? "mark" : "span", { class: "answer-token" }, readableToken(token)));
        return el(
          "label",
          { class: "search-card", "data-search": name },
          input,
          el("span", { class: "search-name" }, name === "sample" ? "Sampling" : name === "beam" ? "Beam search" : "Greedy search", el("small", {}, how)),
          el("bdi", { class: "search-text" }, trace.text || "(an empty answer)"),
          el("span", { class: "search-tokens", "aria-label": `Tokens, of which ${differing.size} are not in the ${name === "greedy" ? "beam" : "greedy"} answer` }, ...tokens),
          el("span", { class: "search-score", "data-score": trace.score.toFixed(6) }, "score ", el("b", {}, fixedNumber(trace.score, 3)), trace.score >= best - 1e-6 ? el("em", {}, "best") : null,
            ` · ${trace.steps.length} steps`),
        );
      }),
    );
  }

  /** @param {SearchName} name @param {number} to */
  function choose(name, to) {
    if (!answer) return;
    chosen = name;
    for (const input of answers.querySelectorAll("input")) input.checked = input.value === name;
    const trace = answer[name];
    const start = name === "beam" ? answerBeams(trace)[0] : 0;
    beam = start;
    playing.setSteps(trace.steps.map((one) => `Time step ${one.number} of ${trace.steps.length}`), to);
    const title = /** @type {HTMLElement} */ (root.querySelector("#player-heading"));
    title.textContent = `${name === "sample" ? "Sampling" : name === "beam" ? "Beam search" : "Greedy search"}, step by step`;
    showStep(playing.step);
  }

  /** The beam of each step that becomes the answer. @param {DecodingTrace} trace */
  function answerBeams(trace) {
    const path = treePath(trace, answerEnd(trace));
    return path.map((at) => trace.steps[at.step].branches[at.branch].parent);
  }

  // ---- one step

  /** @param {number} to */
  function showStep(to) {
    if (!answer) return;
    const trace = answer[chosen];
    const beams = trace.steps[to].beams;
    const path = answerBeams(trace);
    if (to !== step || beam >= beams.length) beam = path[to] ?? 0;
    step = to;
    tree.setStep(Math.min(to, answer.beam.steps.length - 1));
    setChildren(
      beamHost,
      beams.length > 1 &&
        segmented({
          label: "Beam",
          options: beams.map((_, index) => ({ value: String(index), label: index === path[to] ? `${index + 1} (answer)` : String(index + 1) })),
          value: String(beam),
          onChange: (value) => {
            beam = Number(value);
            drawScene();
          },
        }).node,
    );
    drawScene();
  }

  function drawScene() {
    if (!answer) return;
    const trace = answer[chosen];
    const now = trace.steps[step];
    const read = now.beams[beam];
    const taken = now.branches.filter((branch) => branch.parent === beam && branch.fate !== "dropped");
    const prompt = trace.steps[0].beams[0].inputs.length;
    scene.dataset.step = String(now.number);
    setChildren(
      scene,
      drawEncoder(trace),
      el(
        "div",
        { class: "decode-part decode-inputs" },
        el("h4", {}, trace.read === "prompt" ? "The decoder reads the prompt and the answer so far" : "Decoder input"),
        tokenChips(read.inputs, prompt),
        el("p", { class: "hint" }, now.number === 1 ? (trace.read === "prompt" ? "Before the first step there is only the prompt." : "Decoding begins with the start token.") : "The tokens so far. With a key-value cache only the newest one is computed."),
      ),
      drawSoftmax(trace, read, taken),
      drawTop(read, taken),
      drawResult(read, taken.map((branch) => branch.token)),
    );
  }

  /** @param {DecodingTrace} trace */
  function drawEncoder(trace) {
    if (trace.read === "prompt") return null;
    const picture = app.record?.input.picture;
    const words = { source: "The source", image: "The image", sound: "The sound", prompt: "" };
    return el(
      "div",
      { class: step ? "decode-part decode-encoder done" : "decode-part decode-encoder" },
      el("h4", {}, "Encoder input"),
      trace.read === "source"
        ? tokenChips(trace.source, trace.source.length)
        : el("p", { class: "token-chips" }, picture && el("img", { src: picture, alt: words[trace.read], class: "decode-picture" }), el("span", { class: "token-chip" }, app.record?.input.name ?? words[trace.read])),
      el("p", { class: "hint", "data-encoder": step ? "reused" : "runs" }, step ? "The encoder ran once, at step 1; each step reads its output." : "The encoder runs once; each step reads its output."),
    );
  }

  /**
   * The distributions of the same beam at the steps before, which are the upper rows of the softmax.
   * @param {DecodingTrace} trace
   * @returns {TraceBeam[]}
   */
  function rowsBefore(trace) {
    const rows = [trace.steps[step].beams[beam]];
    let at = branchOfBeam(trace, step, beam);
    while (at) {
      const parent = trace.steps[at.step].branches[at.branch].parent;
      rows.unshift(trace.steps[at.step].beams[parent]);
      at = branchOfBeam(trace, at.step, parent);
    }
    return rows;
  }

  /**
   * The softmax as a matrix, (length, vocabulary), of which the last row alone is read.
   * @param {DecodingTrace} trace
   * @param {TraceBeam} read
   * @param {TraceBranch[]} taken
   */
  function drawSoftmax(trace, read, taken) {
    const rows = rowsBefore(trace);
    const likeliest = read.top.slice(0, root.clientWidth < NARROW ? NARROW_COLUMNS : SOFTMAX_COLUMNS);
    const words = [...likeliest, ...taken.filter((branch) => !likeliest.some((word) => word.token === branch.token))];
    const columns = words.map((word) => word.token);
    const length = read.inputs.length;
    const first = length - rows.length; // rows of a prompt, which no step has read
    const from = Math.max(0, length - SOFTMAX_ROWS);
    const head = el("tr", {}, el("td", {}), ...columns.map((token) => el("th", { scope: "col" }, readableToken(token))), el("th", { scope: "col", class: "more" }, "…"));
    const body = el("tbody");
    if (from > 0) body.append(el("tr", { class: "unread" }, el("th", { scope: "row" }, "⋮"), el("td", { colspan: columns.length + 1, class: "more" }, `${from} more rows`)));
    for (let index = from; index < length; index += 1) {
      const last = index === length - 1;
      const row = rows[index - first];
      const cells = columns.map((token) => {
        const word = (last ? words : row?.top)?.find((one) => one.token === token);
        if (!word) return el("td", { class: "unknown", title: row ? "less likely than the tokens that are listed" : "computed but not used" }, row ? "·" : "");
        const style = last ? { background: rampCss(word.probability), color: inkCss(word.probability) } : {};
        return el("td", { style, "data-probability": word.probability.toFixed(6) }, percent(word.probability));
      });
      body.append(el("tr", { class: last ? "read" : "unread", "data-read": String(last) }, el("th", { scope: "row" }, readableToken(read.inputs[index])), ...cells, el("td", { class: "more" }, "…")));
    }
    const matrix = el("table", { class: "softmax-table", "aria-label": "Softmax: a row for each token read, a column for each token of the vocabulary" }, el("thead", {}, head), body);
    return el(
      "div",
      { class: "decode-part decode-softmax" },
      el("h4", {}, "Softmax"),
      fadeEdges(el("div", { class: "table-scroll" }, matrix), matrix),
      el("p", { class: "hint" }, `${groupedCount(length)} ${length === 1 ? "row" : "rows"} × ${groupedCount(trace.vocab)} tokens of the vocabulary. ${length === 1 ? "This row" : "Only the last row"} is read: it predicts the token after “${readableToken(read.inputs[length - 1])}”.`),
    );
  }

  /**
   * The likeliest tokens, and after a gap those that were taken though they are not among them.
   * @param {TraceBeam} read
   * @param {TraceBranch[]} taken
   */
  function drawTop(read, taken) {
    const sampled = read.top.some((word) => word.sampling !== null);
    const rare = taken.filter((branch) => !read.top.some((word) => word.token === branch.token));
    const words = [...read.top, ...rare];
    const known = words.reduce((sum, word) => sum + word.probability, 0);
    const bars = words.map((word) =>
      el(
        "li",
        { class: taken.some((branch) => branch.token === word.token) ? "top-word taken" : "top-word", "data-token": word.token, "data-probability": word.probability.toFixed(6), "data-sampling": word.sampling === null ? null : word.sampling.toFixed(6) },
        el("bdi", { class: "top-token" }, readableToken(word.token)),
        el(
          "span",
          { class: "top-bars" },
          el("span", { class: "top-bar", style: { width: `${100 * word.probability}%` } }),
          word.sampling !== null && el("span", { class: "top-bar top-sampling", style: { width: `${100 * word.sampling}%` } }),
        ),
        el("span", { class: "top-number" }, percent(word.probability), word.sampling !== null && el("small", {}, percent(word.sampling))),
      ),
    );
    return el(
      "div",
      { class: "decode-part decode-top" },
      el("h4", {}, "Likeliest next tokens"),
      el("ol", { class: "top-words" }, ...bars.slice(0, read.top.length), rare.length > 0 && el("li", { class: "top-gap", "aria-hidden": "true" }, "⋮"), ...bars.slice(read.top.length)),
      el("p", { class: "hint" },
        `All other tokens: ${percent(Math.max(0, 1 - known))}. Entropy ${(read.entropy / Math.LN2).toFixed(1)} bits, as uncertain as a choice among ${Math.exp(read.entropy).toFixed(Math.exp(read.entropy) < 10 ? 1 : 0)} equally likely tokens.`,
        sampled && " The thin bar and the second number are the probabilities after temperature and top-k, from which the sample was drawn."),
    );
  }

  /**
   * @param {TraceBeam} read
   * @param {string[]} taken
   */
  function drawResult(read, taken) {
    if (!answer) return null;
    const trace = answer[chosen];
    const prompt = trace.steps[0].beams[0].inputs.length;
    const written = read.inputs.slice(prompt);
    const last = step === trace.steps.length - 1;
    const words =
      !taken.length ? "No extension of this hypothesis is among the best, so it is dropped."
      : chosen === "greedy" ? "The likeliest token is appended."
      : chosen === "sample" ? "The token that was drawn is appended."
      : taken.length === 1 ? "One extension of this hypothesis is among the best."
      : `${taken.length} extensions of this hypothesis are among the best.`;
    return el(
      "div",
      { class: "decode-part decode-result" },
      el("h4", {}, last && chosen !== "beam" ? "The answer is complete" : "Appended"),
      tokenChips(written, written.length, taken),
      el("p", { class: "hint" }, words),
    );
  }

  return {
    update() {
      if (!app.record) return;
      if (shownFor === app.record.id) return;
      playing.pause();
      load();
    },
  };
}
