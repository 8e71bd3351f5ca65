/**
 * A sentence whose words can be hovered, focused and pinned, and painted with attention.  A word of several tokens opens into
 * them.
 */

import { el, readableToken, setChildren } from "./dom.js";
import { inkCss, isDark, rampCss } from "./colour.js";
import { percent } from "./numbers.js";

const VISIBLE_SHARE = 0.05; // smaller percentages are not written below the word

/** @typedef {import("../types.js").Axis} Axis */

/** A word, or a token of an opened word: positions `start` to `end` - 1 of the axis.
 * @typedef {{text: string, start: number, end: number, word: number, pieces: number}} Unit
 */

/** @typedef {"large" | "medium" | "small"} WordSize */

/**
 * How large the words of these axes can be: one line if possible, and small if they are many.
 * @param {...Axis} axes
 * @returns {WordSize}
 */
export function wordSize(...axes) {
  const most = Math.max(...axes.map((axis) => axis.words.length));
  const widest = Math.max(...axes.map((axis) => axis.words.reduce((sum, word) => sum + Array.from(word.text).length + 1.3, 0)));
  return most > 60 ? "small" : widest > 36 ? "medium" : "large";
}

/**
 * @param {{label: string, axis: Axis, size?: WordSize, probabilities?: (number | null)[] | null, notes?: (unit: Unit) => string,
 *          onHover: (unit: Unit | null) => void, onPick: (unit: Unit) => void, onLayout?: () => void}} options
 */
export function wordRow({ label, axis, size = wordSize(axis), probabilities = null, notes, onHover, onPick, onLayout }) {
  /** @type {Set<number>} */
  const open = new Set();
  const special = new Set(axis.special ?? []);
  const words = axis.words.length ? axis.words : axis.labels.map((text, index) => ({ text, start: index, end: index + 1 }));
  /** @type {Unit[]} */
  let units = [];
  /** @type {{button: HTMLButtonElement, share: HTMLElement, step: number, weight: string}[]} */
  let slots = [];
  let paintedDark = isDark();
  /** @type {{pressed: number, current: number}} */
  let marked = { pressed: -1, current: -1 }; // units
  const line = el("div", { class: "words-line", dir: "auto", role: "group", "aria-label": label });
  const node = el("div", { class: `words words-${size}` }, el("p", { class: "words-label" }, label), line);

  function render() {
    units = [];
    slots = [];
    marked = { pressed: -1, current: -1 };
    const groups = words.map((word, index) => {
      const pieces = word.end - word.start;
      const opened = open.has(index);
      if (opened) {
        for (let token = word.start; token < word.end; token += 1) {
          units.push({ text: axis.labels[token], start: token, end: token + 1, word: index, pieces: 1 });
        }
      } else {
        units.push({ text: word.text, start: word.start, end: word.end, word: index, pieces });
      }
      const own = units.slice(-(opened ? pieces : 1));
      const group = el("span", { class: opened ? "word-group opened" : "word-group" });
      for (const unit of own) group.append(makeSlot(unit));
      if (pieces > 1) {
        const name = readableToken(word.text);
        const title = opened ? `Join the ${pieces} pieces of ${name} (- key)` : `Open ${name} into its ${pieces} pieces (+ key)`;
        const split = el(
          "button",
          { type: "button", class: "word-split", tabindex: "-1", "aria-expanded": String(opened), "aria-label": title, title },
          opened ? "–" : String(pieces),
        );
        split.addEventListener("click", (event) => {
          event.stopPropagation();
          setOpen(index, !opened);
        });
        group.append(split);
      }
      return group;
    });
    setChildren(line, ...groups);
    if (slots.length) slots[0].button.tabIndex = 0;
  }

  /**
   * Open a word into its tokens, or join them; the focus stays at the word.
   * @param {number} word
   * @param {boolean} opened
   */
  function setOpen(word, opened) {
    if (words[word].end - words[word].start < 2 || open.has(word) === opened) return;
    if (opened) open.add(word);
    else open.delete(word);
    render();
    onLayout?.();
    focusUnit(units.findIndex((unit) => unit.word === word));
  }

  /** One word is the stop of the Tab key for the whole sentence. @param {number} index */
  function focusUnit(index) {
    for (const { button } of slots) if (button.tabIndex === 0) button.tabIndex = -1;
    slots[index].button.tabIndex = 0;
    slots[index].button.focus();
  }

  /** @param {Unit} unit */
  function makeSlot(unit) {
    const index = units.indexOf(unit);
    const name = readableToken(unit.text);
    const marker = unit.end - unit.start === 1 && special.has(unit.start);
    const control = el(
      "button",
      { type: "button", class: marker ? "word special" : "word", "aria-pressed": "false", "data-unit": index, tabindex: "-1" },
      el("bdi", {}, name),
    );
    const share = el("span", { class: "word-share", "aria-hidden": "true" });
    slots[index] = { button: control, share, step: 0, weight: "" };
    if (unit.pieces > 1) control.setAttribute("aria-keyshortcuts", "+");
    const likely = probabilityOf(unit);
    const slot = el("span", { class: "word-slot" }, control);
    if (likely !== null) {
      control.setAttribute("title", `probability ${percent(likely)}`);
      slot.append(el("span", { class: "word-probability", "aria-hidden": "true", style: { "--share": `${100 * likely}%` } }));
    }
    slot.append(share);
    const note = notes?.(unit);
    if (note) slot.append(el("span", { class: "word-note" }, note));
    return slot;
  }

  /** The product of its tokens' probabilities. @param {Unit} unit */
  function probabilityOf(unit) {
    let product = 1;
    for (let token = unit.start; token < unit.end; token += 1) {
      const share = probabilities?.[token];
      if (share === null || share === undefined) return null;
      product *= share;
    }
    return product;
  }

  /** @param {Event} event */
  function unitOf(event) {
    const target = event.target instanceof Element ? event.target.closest("[data-unit]") : null;
    return target ? units[Number(target.getAttribute("data-unit"))] : null;
  }

  line.addEventListener("pointerover", (event) => event.pointerType !== "touch" && onHover(unitOf(event)));
  line.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && onHover(null));
  line.addEventListener("focusin", (event) => {
    const unit = unitOf(event);
    if (unit && event.target instanceof Element && event.target.matches(":focus-visible")) onHover(unit);
  });
  line.addEventListener("focusout", () => onHover(null));
  line.addEventListener("click", (event) => {
    const unit = unitOf(event);
    if (unit) onPick(unit);
  });
  line.addEventListener("keydown", (event) => {
    const style = getComputedStyle(line);
    const across = style.direction === "rtl" ? ["ArrowLeft", "ArrowRight"] : ["ArrowRight", "ArrowLeft"];
    const [forward, back] = style.flexDirection === "column" ? ["ArrowDown", "ArrowUp"] : across;
    const step = event.key === forward ? 1 : event.key === back ? -1 : 0;
    const at = slots.findIndex((slot) => slot.button === document.activeElement);
    if (at < 0) return;
    if (event.key === "+" || event.key === "-") setOpen(units[at].word, event.key === "+");
    if (!step) return;
    event.preventDefault();
    focusUnit(Math.min(Math.max(at + step, 0), slots.length - 1));
  });
  render();

  return {
    node,
    line,
    /** Whether some word has several tokens. */
    hasPieces: words.some((word) => word.end - word.start > 1),
    /** Open all words into their tokens, or join them. @param {boolean} opened */
    showPieces(opened) {
      open.clear();
      if (opened) words.forEach((word, index) => word.end - word.start > 1 && open.add(index));
      render();
      onLayout?.();
    },
    /** How wide one line of all words is, in pixels, whether or not there is room for it. */
    lineWidth() {
      const last = line.lastElementChild;
      return last ? Math.max(0, ...[...line.children].map((child) => child.getBoundingClientRect().right)) - line.getBoundingClientRect().left : 0;
    },
    /** The words and opened tokens, in order. */
    units: () => units,
    probabilityOf,
    /**
     * Colour the words by shares (of each unit), or not at all.
     * @param {number[] | null} shares
     */
    paint(shares) {
      const fresh = paintedDark === isDark(); // else all colours are those of the other paper
      paintedDark = isDark();
      for (const [index, slot] of slots.entries()) {
        const value = shares ? shares[index] : 0;
        const step = Math.round(255 * value);
        const weight = shares ? value.toFixed(6) : "";
        if (weight !== slot.weight) {
          if (weight) slot.button.dataset.weight = weight;
          else delete slot.button.dataset.weight;
          slot.weight = weight;
        }
        if (step === slot.step && fresh) continue; // of 512 words few change: the browser lays out only those
        slot.step = step;
        slot.button.style.background = step ? rampCss(value) : "";
        slot.button.style.color = step ? inkCss(value) : "";
        const text = value >= VISIBLE_SHARE ? `${Math.round(100 * value)}\u00a0%` : "";
        if (slot.share.textContent !== text) slot.share.textContent = text;
      }
    },
    /**
     * @param {Unit | null} unit
     * @param {"pressed" | "current"} state
     */
    mark(unit, state) {
      const index = unit ? units.findIndex((one) => one.start === unit.start && one.end === unit.end) : -1;
      const before = marked[state];
      if (index === before) return;
      marked[state] = index;
      for (const at of [before, index]) {
        if (at < 0) continue;
        const { button } = slots[at];
        if (state === "pressed") button.setAttribute("aria-pressed", String(at === index));
        else button.classList.toggle("current", at === index);
      }
      for (const at of [before, index]) {
        const group = at < 0 ? null : slots[at].button.closest(".word-group");
        group?.classList.toggle("marked", group.querySelector('.current, [aria-pressed="true"]') !== null);
      }
    },
    /**
     * Where the words are, relative to a frame: the middle and the edges of each, in pixels.
     * @param {DOMRect} frame
     */
    places: (frame) =>
      slots.map(({ button }) => {
        const box = button.getBoundingClientRect();
        const [left, right, top, bottom] = [box.left - frame.left, box.right - frame.left, box.top - frame.top, box.bottom - frame.top];
        return { x: (left + right) / 2, y: (top + bottom) / 2, left, right, top, bottom };
      }),
  };
}

/**
 * Sums of weights over the tokens of each unit.
 * @param {ArrayLike<number>} weights  of each position of the axis
 * @param {Unit[]} units
 */
export function sumOver(weights, units) {
  return units.map((unit) => {
    let sum = 0;
    for (let token = unit.start; token < unit.end; token += 1) sum += weights[token];
    return sum;
  });
}

/**
 * The mean of some rows of a matrix: what a word of several tokens attends to.
 * @param {Float32Array} matrix
 * @param {number} columns
 * @param {Unit} unit
 */
export function meanRows(matrix, columns, unit) {
  const mean = new Float32Array(columns);
  for (let row = unit.start; row < unit.end; row += 1) {
    for (let column = 0; column < columns; column += 1) mean[column] += matrix[row * columns + column] / (unit.end - unit.start);
  }
  return mean;
}
