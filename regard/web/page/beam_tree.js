/**
 * The outputs of a beam search as a tree: a column for each time step, in it the candidates, best first.  A line leads to each
 * candidate from the output that it extends.
 */

import { disclosure } from "./parts/controls.js";
import { el, readableToken, setChildren, shorten, svg } from "./parts/dom.js";
import { fixedNumber, percent } from "./parts/numbers.js";

/**
 * @typedef {{token: string, probability: number, sampling: number | null}} TraceWord
 * @typedef {{inputs: string[], top: TraceWord[], entropy: number}} TraceBeam
 * @typedef {{parent: number, token: string, probability: number, score: number, fate: "kept" | "finished" | "dropped",
 *   beam: number | null, sampling: number | null}} TraceBranch
 * @typedef {{number: number, beams: TraceBeam[], branches: TraceBranch[]}} TraceStep
 * @typedef {{temperature: number, top_k: number, top_p: number, seed: number}} TraceSampling
 * @typedef {{read: "source" | "prompt" | "image" | "sound", source: string[], vocab: number, beam_size: number,
 *   length_penalty: number, sampling: TraceSampling | null, steps: TraceStep[], answer: string[], text: string, score: number}} DecodingTrace
 */

/** @typedef {{step: number, branch: number}} TreeNode  both from 0 */

const TREE_SIZES = { row: 46, height: 36, start: 72, left: 92, top: 34, gap: 22 };
const COLUMN_WIDTHS = { least: 124, most: 140 }; // of a step: as wide as the card has room for, and never narrower than its numbers

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
 * @param {{onStep: (step: number) => void}} options  called with the step of a node that is chosen
 * @returns {{node: HTMLElement, setTrace: (trace: DecodingTrace) => void, setStep: (step: number) => void}}
 */
export function beamTree({ onStep }) {
  let trace = /** @type {DecodingTrace | null} */ (null);
  let current = 0;
  let chosen = /** @type {TreeNode} */ ({ step: 0, branch: 0 });
  const picture = svg("svg", { class: "tree-picture", role: "group", "aria-label": "Beam tree" });
  const scroller = el("div", { class: "tree-scroll" }, picture);
  const readout = el("output", { class: "tree-readout", "aria-live": "polite" });
  const tableHost = el("div", { class: "table-scroll", tabindex: "0", role: "group", "aria-label": "Table of the beam tree" });
  const table = disclosure("Show as table", tableHost);
  const key = el(
    "p",
    { class: "tree-key" },
    el("span", { class: "tree-key-kept" }, "kept"),
    el("span", { class: "tree-key-dropped" }, "dropped"),
    el("span", { class: "tree-key-finished" }, "finished"),
    el("span", { class: "tree-key-answer" }, "path of the answer"),
  );
  const node = el("div", { class: "tree" }, key, scroller, readout, table);

  let column = COLUMN_WIDTHS.most;
  const wide = () => column - TREE_SIZES.gap; // of a candidate
  const letters = () => Math.floor((wide() - 14) / 8);
  const left = (/** @type {number} */ step) => TREE_SIZES.left + step * column;
  const place = (/** @type {TreeNode} */ at) => ({ x: left(at.step), y: TREE_SIZES.top + at.branch * TREE_SIZES.row });
  const branchAt = (/** @type {TreeNode} */ at) => /** @type {DecodingTrace} */ (trace).steps[at.step].branches[at.branch];
  const same = (/** @type {TreeNode} */ a, /** @type {TreeNode} */ b) => a.step === b.step && a.branch === b.branch;

  function draw() {
    if (!trace) return;
    const steps = trace.steps;
    const start = { x: 4, y: TREE_SIZES.top };
    const answer = treePath(trace, answerEnd(trace));
    const path = treePath(trace, chosen);
    const most = Math.max(...steps.map((step) => step.branches.length));
    const room = (scroller.clientWidth - TREE_SIZES.left + TREE_SIZES.gap - 4) / steps.length;
    column = Math.floor(Math.min(Math.max(room, COLUMN_WIDTHS.least), COLUMN_WIDTHS.most));
    const width = left(steps.length) - TREE_SIZES.gap + 4;
    const height = TREE_SIZES.top + most * TREE_SIZES.row + 2;
    setChildren(picture);
    picture.setAttribute("width", String(width));
    picture.setAttribute("height", String(height));
    picture.append(svg("rect", { class: "tree-band", y: 0, width: wide() + 20, height, rx: 10 }));
    steps.forEach((step, index) =>
      picture.append(svg("text", { class: "tree-step", x: left(index) + wide() / 2, y: 18, "text-anchor": "middle" }, `step ${step.number}`)),
    );
    markStep();

    // lines first, below the words
    steps.forEach((step, index) =>
      step.branches.forEach((branch, number) => {
        const from = branchOfBeam(/** @type {DecodingTrace} */ (trace), index, branch.parent);
        const a = from ? { x: place(from).x + wide(), y: place(from).y + TREE_SIZES.height / 2 } : { x: start.x + TREE_SIZES.start, y: start.y + TREE_SIZES.height / 2 };
        const b = { x: place({ step: index, branch: number }).x, y: place({ step: index, branch: number }).y + TREE_SIZES.height / 2 };
        const bend = (b.x - a.x) / 2;
        const marks = [`tree-line tree-${branch.fate}`];
        if (answer.some((one) => same(one, { step: index, branch: number }))) marks.push("on-answer");
        if (path.some((one) => same(one, { step: index, branch: number }))) marks.push("on-path");
        picture.append(svg("path", { class: marks.join(" "), d: `M${a.x} ${a.y}C${a.x + bend} ${a.y} ${b.x - bend} ${b.y} ${b.x} ${b.y}`, "stroke-width": 1 + 3 * branch.probability }));
      }),
    );
    const input = steps[0].beams[0].inputs;
    picture.append(
      svg("g", { class: "tree-node tree-start", transform: `translate(${start.x} ${start.y})` },
        svg("rect", { width: TREE_SIZES.start, height: TREE_SIZES.height, rx: 8 }),
        svg("text", { class: "tree-token", x: 36, y: 22, "text-anchor": "middle" }, shorten(readableToken(input[input.length - 1]), 8))),
    );
    steps.forEach((step, index) => step.branches.forEach((branch, number) => picture.append(drawNode({ step: index, branch: number }, branch, answer, path))));
  }

  /** Show which step is played. */
  function markStep() {
    picture.querySelector(".tree-band")?.setAttribute("x", String(left(current) - 10));
    picture.querySelectorAll(".tree-step").forEach((name, index) => name.classList.toggle("strong", index === current));
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
    const group = svg(
      "g",
      {
        class: marks.join(" "), transform: `translate(${x} ${y})`, tabindex: same(at, chosen) ? "0" : "-1", role: "button", "aria-label": describe(at),
        "data-step": at.step + 1, "data-branch": at.branch, "data-fate": branch.fate, "data-score": branch.score.toFixed(6), "data-probability": branch.probability.toFixed(6),
      },
      svg("rect", { width: wide(), height: TREE_SIZES.height, rx: 8 }),
      svg("text", { class: "tree-token", x: 8, y: 16 }, `${shorten(readableToken(branch.token), letters() - (branch.fate === "finished" ? 2 : 0))}${branch.fate === "finished" ? " ✓" : ""}`),
      svg("text", { class: "tree-numbers", x: 8, y: 30 }, `${percent(branch.probability)}  ${fixedNumber(branch.score)}`),
    );
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
    const output = treePath(trace, at).map((one) => readableToken(branchAt(one).token)).join(" ");
    const fate = branch.fate === "kept" ? `kept as beam ${(branch.beam ?? 0) + 1}` : branch.fate;
    const score = branch.fate === "finished" ? `score ${fixedNumber(branch.score, 3)}` : `log-probability ${fixedNumber(branch.score, 3)}`;
    return `Step ${at.step + 1}, ${output}: probability of the token ${percent(branch.probability)}, ${score}, ${fate}`;
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
    if (tell) onStep(at.step);
    draw();
    showReadout(at);
    if (focused || tell) /** @type {SVGElement | null} */ (picture.querySelector('[tabindex="0"]'))?.focus({ preventScroll: true });
    reveal(at.step);
  }

  /** Scroll the tree, not the page. @param {number} step */
  function reveal(step) {
    const x = left(step);
    if (x < scroller.scrollLeft + 20) scroller.scrollLeft = x - TREE_SIZES.left;
    if (x + wide() > scroller.scrollLeft + scroller.clientWidth) scroller.scrollLeft = x + wide() + 16 - scroller.clientWidth;
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
        const output = before.map((one) => readableToken(branchAt(one).token)).join(" ");
        const cells = [output, readableToken(branch.token), branch.probability.toFixed(6), branch.score.toFixed(6), branch.fate];
        body.append(el("tr", {}, el("th", { scope: "row" }, String(step.number)), ...cells.map((cell) => el("td", {}, el("bdi", {}, cell)))));
      }),
    );
    setChildren(tableHost, el("table", { class: "weights-table tree-table" }, el("caption", {}, "Every candidate of the search, best first in each step"), el("thead", {}, head), body));
  }
  table.addEventListener("toggle", () => table.open && renderTable());
  let room = 0;
  new ResizeObserver(() => {
    if (scroller.clientWidth === room) return; // its height changes with the tree itself
    room = scroller.clientWidth;
    const focused = picture.contains(document.activeElement);
    draw();
    if (focused) /** @type {SVGElement | null} */ (picture.querySelector('[tabindex="0"]'))?.focus({ preventScroll: true });
  }).observe(scroller);

  return {
    node,
    setTrace(next) {
      trace = next;
      current = 0;
      chosen = answerEnd(next);
      scroller.scrollLeft = 0;
      draw();
      showReadout(chosen);
      if (table.open) renderTable();
    },
    setStep(step) {
      current = step;
      markStep();
      reveal(step);
    },
  };
}
