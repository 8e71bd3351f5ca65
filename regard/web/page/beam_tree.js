/**
 * The outputs of a beam search as a tree: a column for each time step, in it the candidates, best first.  A line leads to each
 * candidate from the output that it extends.
 */

import { disclosure } from "./parts/controls.js";
import { el, readableToken, setChildren, shorten, svg } from "./parts/dom.js";
import { fadeEdges } from "./parts/fade.js";
import { fixedNumber, percent } from "./parts/numbers.js";

/**
 * @typedef {{token: string, probability: number, sampling: number | null}} TraceWord
 * @typedef {{inputs: string[], top: TraceWord[], entropy: number}} TraceBeam
 * @typedef {{parent: number, token: string, probability: number, score: number, fate: "kept" | "finished" | "dropped",
 *   beam: number | null, sampling: number | null, glued?: boolean}} TraceBranch  `glued`: no space before it
 * @typedef {{number: number, beams: TraceBeam[], branches: TraceBranch[]}} TraceStep
 * @typedef {{temperature: number, top_k: number, top_p: number, seed: number}} TraceSampling
 * @typedef {{read: "source" | "prompt" | "image" | "sound", source: string[], vocab: number, beam_size: number,
 *   length_penalty: number, sampling: TraceSampling | null, steps: TraceStep[], answer: string[], text: string, score: number}} DecodingTrace
 */

/** @typedef {{step: number, branch: number}} TreeNode  both from 0 */

const TREE_SIZES = { row: 46, height: 36, top: 34, gap: 16, inset: 7, longest: 72 };
const END = /^(<.*>|\[.*\])$/s;
const MOST_WIDE = 140; // pixels of a step: as wide as the card has room for, and never narrower than its numbers
const EDGE = 34; // pixels at each side that fade out
const NUMBERS_FONT = 11.5; // pixels, as in style.css
const TOKEN_FONT = 13;

/**
 * The branch from which beam `beam` of a step came; null for the start.
 * @param {DecodingTrace} trace
 * @param {number} step
 * @param {number} beam
 * @returns {TreeNode | null}
 */
export function branchOfBeam(trace, step, beam) {
  if (step === 0) return null;
  const branch = trace.steps[step - 1].branches.findIndex((one) => one.beam === beam);
  return branch < 0 ? null : { step: step - 1, branch };
}

/**
 * A branch and all that it extends, the first step's first.
 * @param {DecodingTrace} trace
 * @param {TreeNode} node
 * @returns {TreeNode[]}
 */
export function treePath(trace, node) {
  /** @type {TreeNode[]} */
  const path = [];
  for (let at = /** @type {TreeNode | null} */ (node); at; ) {
    path.unshift(at);
    at = branchOfBeam(trace, at.step, trace.steps[at.step].branches[at.branch].parent);
  }
  return path;
}

/**
 * The branch that ends the answer: the finished one with the highest score.
 * @param {DecodingTrace} trace
 * @returns {TreeNode}
 */
export function answerEnd(trace) {
  let best = /** @type {TreeNode | null} */ (null);
  let most = -Infinity;
  trace.steps.forEach((step, index) =>
    step.branches.forEach((branch, number) => {
      if (branch.fate === "finished" && branch.score > most) {
        most = branch.score;
        best = { step: index, branch: number };
      }
    }),
  );
  return best ?? { step: trace.steps.length - 1, branch: 0 };
}

/**
 * The text of these branches, without the token that ends it.
 * @param {TraceBranch[]} branches
 */
function outputText(branches) {
  const words = branches.filter((branch, index) => index === 0 || branch.fate !== "finished" || !END.test(branch.token));
  return words.map((branch, index) => (index && !branch.glued ? " " : "") + readableToken(branch.glued ? branch.token.replace(/^\+/, "") : branch.token)).join("").replaceAll("␣", " ").trim();
}

/**
 * @param {{onStep: (step: number) => void}} options  called with the step of a node that is chosen
 * @returns {{node: HTMLElement, setTrace: (trace: DecodingTrace) => void, setStep: (step: number) => void}}
 */
export function beamTree({ onStep }) {
  let trace = /** @type {DecodingTrace | null} */ (null);
  let current = 0;
  let chosen = /** @type {TreeNode} */ ({ step: 0, branch: 0 });
  const picture = svg("svg", { class: "tree-picture", role: "group", "aria-label": "Beam tree" });
  const scroller = fadeEdges(el("div", { class: "tree-scroll" }, picture), picture);
  const readout = el("output", { class: "tree-readout", "aria-live": "polite" });
  const candidates = el("table", { class: "weights-table tree-table" });
  const tableHost = fadeEdges(el("div", { class: "table-scroll", tabindex: "0", role: "group", "aria-label": "Table of the beam tree" }, candidates), candidates);
  const table = disclosure("Show as table", tableHost);
  const key = el(
    "p",
    { class: "tree-key" },
    el("span", { class: "tree-key-kept" }, "kept"),
    el("span", { class: "tree-key-dropped" }, "dropped"),
    el("span", { class: "tree-key-finished" }, "finished"),
    el("span", { class: "tree-key-answer" }, "path of the answer"),
    el("span", { class: "tree-key-width" }, "thicker line: more probable"),
  );
  const node = el("div", { class: "tree" }, key, scroller, readout, table);

  let played = false; // whether a step was chosen: the tree opens with the whole answer
  let column = MOST_WIDE;
  let start = 44; // width of the first box
  const pen = /** @type {CanvasRenderingContext2D} */ (el("canvas", {}).getContext("2d"));
  /** @param {string} text @param {number} size @param {number} weight */
  const widthOf = (text, size, weight) => {
    pen.font = `${weight} ${size}px ${getComputedStyle(node).fontFamily}`;
    return pen.measureText(text).width;
  };
  const numbersOf = (/** @type {TraceBranch} */ branch) => `${percent(branch.probability).replace("< ", "<")}  ${fixedNumber(branch.score, Math.abs(branch.score) < 9.995 ? 2 : 1)}`;
  const wide = () => column - TREE_SIZES.gap; // of a candidate
  const letters = () => Math.floor((wide() - 2 * TREE_SIZES.inset) / 8);
  const left = (/** @type {number} */ step) => 4 + start + TREE_SIZES.gap + step * column;
  const place = (/** @type {TreeNode} */ at) => ({ x: left(at.step), y: TREE_SIZES.top + at.branch * TREE_SIZES.row });
  const branchAt = (/** @type {TreeNode} */ at) => /** @type {DecodingTrace} */ (trace).steps[at.step].branches[at.branch];
  const same = (/** @type {TreeNode} */ a, /** @type {TreeNode} */ b) => a.step === b.step && a.branch === b.branch;

  function draw() {
    if (!trace) return;
    const steps = trace.steps;
    const origin = { x: 4, y: TREE_SIZES.top };
    const input = steps[0].beams[0].inputs;
    const first = shorten(readableToken(input[input.length - 1]), 8);
    const answer = treePath(trace, answerEnd(trace));
    const path = treePath(trace, chosen);
    const most = Math.max(...steps.map((step) => step.branches.length));
    start = Math.ceil(Math.min(widthOf(first, TOKEN_FONT, 600), TREE_SIZES.longest)) + 2 * TREE_SIZES.inset;
    const least = steps.reduce((wide, step) => step.branches.reduce((all, branch) => Math.max(all, widthOf(numbersOf(branch), NUMBERS_FONT, 400)), wide), 0) + 2 * TREE_SIZES.inset + TREE_SIZES.gap;
    const room = (scroller.clientWidth - start - 8) / steps.length;
    column = Math.ceil(Math.max(least, Math.min(Math.floor(room), MOST_WIDE)));
    const width = left(steps.length) - TREE_SIZES.gap + 4;
    const height = TREE_SIZES.top + most * TREE_SIZES.row + 2;
    setChildren(picture);
    picture.setAttribute("width", String(width));
    picture.setAttribute("height", String(height));
    picture.append(svg("rect", { class: "tree-band", visibility: played ? "visible" : "hidden", y: 0, width: wide() + 14, height, rx: 10 }));
    steps.forEach((step, index) =>
      picture.append(svg("text", { class: "tree-step", x: left(index) + wide() / 2, y: 18, "text-anchor": "middle" }, `step ${step.number}`)),
    );
    markStep();

    // lines first, below the words
    steps.forEach((step, index) =>
      step.branches.forEach((branch, number) => {
        const from = branchOfBeam(/** @type {DecodingTrace} */ (trace), index, branch.parent);
        const a = from ? { x: place(from).x + wide(), y: place(from).y + TREE_SIZES.height / 2 } : { x: origin.x + start, y: origin.y + TREE_SIZES.height / 2 };
        const b = { x: place({ step: index, branch: number }).x, y: place({ step: index, branch: number }).y + TREE_SIZES.height / 2 };
        const bend = (b.x - a.x) / 2;
        const marks = [`tree-line tree-${branch.fate}`];
        if (answer.some((one) => same(one, { step: index, branch: number }))) marks.push("on-answer");
        if (path.some((one) => same(one, { step: index, branch: number }))) marks.push("on-path");
        picture.append(svg("path", { class: marks.join(" "), d: `M${a.x} ${a.y}C${a.x + bend} ${a.y} ${b.x - bend} ${b.y} ${b.x} ${b.y}`, "stroke-width": 1 + 3 * branch.probability }));
      }),
    );
    picture.append(
      svg("g", { class: "tree-node tree-start", transform: `translate(${origin.x} ${origin.y})` },
        svg("rect", { width: start, height: TREE_SIZES.height, rx: 8 }),
        svg("text", { class: "tree-token", x: start / 2, y: 22, "text-anchor": "middle" }, first)),
    );
    steps.forEach((step, index) => step.branches.forEach((branch, number) => picture.append(drawNode({ step: index, branch: number }, branch, answer, path))));
  }

  /** Show which step is played. */
  function markStep() {
    picture.querySelector(".tree-band")?.setAttribute("x", String(left(current) - 7));
    picture.querySelector(".tree-band")?.setAttribute("visibility", played ? "visible" : "hidden");
    picture.querySelectorAll(".tree-step").forEach((name, index) => name.classList.toggle("strong", played && index === current));
  }

  /**
   * @param {TreeNode} at
   * @param {TraceBranch} branch
   * @param {TreeNode[]} answer
   * @param {TreeNode[]} path
   */
  function drawNode(at, branch, answer, path) {
    const { x, y } = place(at);
    const marks = [`tree-node tree-${branch.fate}`];
    if (answer.some((one) => same(one, at))) marks.push("on-answer");
    if (path.some((one) => same(one, at))) marks.push("on-path");
    if (same(at, chosen)) marks.push("chosen");
    const group = svg(
      "g",
      {
        class: marks.join(" "), transform: `translate(${x} ${y})`, tabindex: same(at, chosen) ? "0" : "-1", role: "button", "aria-label": describe(at),
        "data-step": at.step + 1, "data-branch": at.branch, "data-fate": branch.fate, "data-score": branch.score.toFixed(6), "data-probability": branch.probability.toFixed(6),
      },
      svg("rect", { width: wide(), height: TREE_SIZES.height, rx: 8 }),
      svg("text", { class: "tree-token", x: TREE_SIZES.inset, y: 16 }, `${shorten(readableToken(branch.token), letters() - (branch.fate === "finished" ? 2 : 0))}${branch.fate !== "finished" ? "" : END.test(branch.token) ? " ✓" : " ⊣"}`),
      svg("text", { class: "tree-numbers", x: TREE_SIZES.inset, y: 30 }, numbersOf(branch)),
    );
    group.addEventListener("mousedown", (event) => event.preventDefault()); // focus would draw the tree anew, and the click would be lost
    group.addEventListener("click", () => choose(at, true));
    group.addEventListener("focus", () => !same(at, chosen) && choose(at, false));
    group.addEventListener("pointerenter", () => showReadout(at));
    group.addEventListener("pointerleave", () => showReadout(chosen));
    return group;
  }

  /** @param {TreeNode} at */
  function describe(at) {
    if (!trace) return "";
    const branch = branchAt(at);
    const output = outputText(treePath(trace, at).map(branchAt));
    const cut = branch.fate === "finished" && !END.test(branch.token);
    const fate = branch.fate === "kept" ? `kept as beam ${(branch.beam ?? 0) + 1}` : cut ? "cut at the length limit" : branch.fate;
    const score = branch.fate === "finished" ? `score ${fixedNumber(branch.score, 3)}` : `log-probability ${fixedNumber(branch.score, 3)}`;
    return `Step ${at.step + 1} · ${output} · ${fate} · token ${percent(branch.probability)} · ${score}`;
  }

  /** @param {TreeNode} at */
  function showReadout(at) {
    readout.value = describe(at);
    readout.dataset.step = String(at.step + 1);
    readout.dataset.branch = String(at.branch);
  }

  /** @param {TreeNode} at @param {boolean} tell */
  function choose(at, tell) {
    chosen = at;
    const focused = picture.contains(document.activeElement);
    if (tell) {
      played = true; // also the first step, to which the player is set from the start
      onStep(at.step);
    }
    chosen = at;
    draw();
    showReadout(at);
    if (focused || tell) /** @type {SVGElement | null} */ (picture.querySelector('[tabindex="0"]'))?.focus({ preventScroll: true });
    reveal(at.step);
  }

  /** Scroll the tree, not the page. @param {number} step */
  function reveal(step) {
    const x = left(step);
    if (x < scroller.scrollLeft + EDGE) scroller.scrollLeft = step ? x - EDGE : 0;
    if (x + wide() > scroller.scrollLeft + scroller.clientWidth - EDGE) scroller.scrollLeft = x + wide() + EDGE - scroller.clientWidth;
  }

  /** Draw, and keep the focus. */
  function redraw() {
    const focused = picture.contains(document.activeElement);
    draw();
    if (focused) /** @type {SVGElement | null} */ (picture.querySelector('[tabindex="0"]'))?.focus({ preventScroll: true });
  }

  picture.addEventListener("keydown", (event) => {
    if (!trace) return;
    const { step, branch } = chosen;
    const last = trace.steps[step].branches.length - 1;
    const child = () => {
      const beam = branchAt(chosen).beam;
      const next = beam === null ? -1 : (trace?.steps[step + 1]?.branches.findIndex((one) => one.parent === beam) ?? -1);
      return next < 0 ? chosen : { step: step + 1, branch: next };
    };
    /** @type {{[key: string]: () => TreeNode}} */
    const targets = {
      ArrowUp: () => ({ step, branch: Math.max(branch - 1, 0) }),
      ArrowDown: () => ({ step, branch: Math.min(branch + 1, last) }),
      ArrowLeft: () => branchOfBeam(/** @type {DecodingTrace} */ (trace), step, branchAt(chosen).parent) ?? chosen,
      ArrowRight: child,
      Enter: () => chosen,
      " ": () => chosen,
    };
    if (!targets[event.key]) return;
    event.preventDefault();
    choose(targets[event.key](), event.key === "Enter" || event.key === " ");
  });

  function renderTable() {
    if (!trace) return;
    const names = ["step", "output so far", "token", "probability", "score", "fate"];
    const head = el("tr", {}, ...names.map((name) => el("th", { scope: "col" }, name)));
    const body = el("tbody");
    trace.steps.forEach((step, index) =>
      step.branches.forEach((branch, number) => {
        const before = treePath(/** @type {DecodingTrace} */ (trace), { step: index, branch: number }).slice(0, -1);
        const output = outputText(before.map(branchAt));
        const cells = [output, readableToken(branch.token), branch.probability.toFixed(6), branch.score.toFixed(6), branch.fate];
        body.append(el("tr", {}, el("th", { scope: "row" }, String(step.number)), ...cells.map((cell) => el("td", {}, el("bdi", {}, cell)))));
      }),
    );
    setChildren(candidates, el("caption", {}, "Every candidate of the search, best first in each step"), el("thead", {}, head), body);
  }
  table.addEventListener("toggle", () => table.open && renderTable());
  let room = 0;
  new ResizeObserver(() => {
    if (scroller.clientWidth === room) return; // its height changes with the tree itself
    room = scroller.clientWidth;
    redraw();
    reveal(chosen.step);
  }).observe(scroller);

  return {
    node,
    setTrace(next) {
      trace = next;
      current = 0;
      played = false;
      chosen = answerEnd(next);
      draw();
      showReadout(chosen);
      reveal(chosen.step);
      if (table.open) renderTable();
    },
    setStep(step) {
      if (!trace || (!played && step === 0)) return;
      played = true;
      current = step;
      if (chosen.step !== step) {
        const path = treePath(trace, answerEnd(trace));
        chosen = path[Math.min(step, path.length - 1)];
        redraw();
        showReadout(chosen);
      } else markStep();
      reveal(step);
    },
  };
}
