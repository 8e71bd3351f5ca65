/** Steps in time: play and pause, one step back or on, a slider; arrow keys, Home, End and the space bar do the same. */

import { el, uniqueId } from "./dom.js";

const STEP_SECONDS = 1.4;

/**
 * @typedef {object} Player
 * @property {HTMLElement} node
 * @property {number} step  from 0
 * @property {(step: number) => void} go
 * @property {(steps: string[], step?: number) => void} setSteps  names of the steps, which the slider reads out
 * @property {() => void} pause
 */

const PLAY_ICONS = {
  first: "M5 4h2v12H5zM16 4v12l-8-6z",
  back: "M13 4v12l-8-6z",
  play: "M6 3.5v13l10-6.5z",
  pause: "M5.5 4h3v12h-3zM11.5 4h3v12h-3z",
  on: "M7 4v12l8-6z",
};

/**
 * @param {keyof typeof PLAY_ICONS} name
 */
function playIcon(name) {
  const icon = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  icon.setAttribute("viewBox", "0 0 20 20");
  icon.setAttribute("aria-hidden", "true");
  path.setAttribute("d", PLAY_ICONS[name]);
  icon.append(path);
  return icon;
}

/**
 * @param {{label: string, onStep: (step: number) => void | Promise<void>}} options  `onStep` may take its time: playing waits for it
 * @returns {Player}
 */
export function player({ label, onStep }) {
  let names = /** @type {string[]} */ ([]);
  let current = 0;
  let timer = 0;
  let playing = false;

  /** @type {(name: keyof typeof PLAY_ICONS, title: string, act: () => void) => HTMLButtonElement} */
  const control = (name, title, act) =>
    el("button", { type: "button", class: "player-button", "aria-label": title, title, on: { click: act } }, playIcon(name));

  const first = control("first", "First step", () => jump(0));
  const back = control("back", "Step back", () => jump(current - 1));
  const toggle = control("play", "Play", () => (playing ? pause() : play()));
  const on = control("on", "Step on", () => jump(current + 1));
  const id = uniqueId("player");
  const input = el("input", { type: "range", id, min: 0, max: 0, value: 0, "aria-label": label });
  const output = el("output", { for: id, class: "player-step" });
  const node = el("div", { class: "player", role: "group", "aria-label": label }, el("div", { class: "player-buttons" }, first, back, toggle, on), input, output);

  function show() {
    input.max = String(Math.max(names.length - 1, 0));
    input.valueAsNumber = current;
    input.style.setProperty("--share", `${(100 * current) / Math.max(names.length - 1, 1)}%`);
    input.setAttribute("aria-valuetext", names[current] ?? "");
    input.disabled = names.length < 2;
    output.value = names[current] ?? "";
    first.disabled = back.disabled = current <= 0;
    on.disabled = current >= names.length - 1;
    toggle.disabled = names.length < 2;
    toggle.replaceChildren(playIcon(playing ? "pause" : "play"));
    toggle.setAttribute("aria-label", playing ? "Pause" : "Play");
    toggle.title = playing ? "Pause" : "Play";
    node.dataset.step = String(current);
    node.dataset.playing = String(playing);
  }

  /** @param {number} step */
  async function move(step) {
    current = Math.min(Math.max(step, 0), Math.max(names.length - 1, 0));
    show();
    await onStep(current);
  }

  /** @param {number} step */
  function jump(step) {
    pause();
    move(step);
  }

  function pause() {
    playing = false;
    clearTimeout(timer);
    show();
  }

  function play() {
    playing = true;
    move(current >= names.length - 1 ? 0 : current).then(wait);
  }

  /** A step is shown for a while; the last one stops. */
  function wait() {
    clearTimeout(timer);
    if (!playing) return;
    if (current >= names.length - 1 || !node.isConnected || !node.offsetParent) {
      pause();
      return;
    }
    timer = window.setTimeout(() => move(current + 1).then(wait), 1000 * STEP_SECONDS);
  }

  input.addEventListener("input", () => jump(input.valueAsNumber));
  node.addEventListener("keydown", (event) => {
    /** @type {{[key: string]: () => void}} */
    const acts = { ArrowLeft: () => jump(current - 1), ArrowRight: () => jump(current + 1), Home: () => jump(0), End: () => jump(names.length - 1) };
    if (event.key === " " && event.target === input) acts[" "] = () => (playing ? pause() : play());
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  });
  show();

  return {
    node,
    get step() {
      return current;
    },
    go: jump,
    pause,
    setSteps(steps, step = 0) {
      pause();
      names = steps;
      current = Math.min(Math.max(step, 0), Math.max(steps.length - 1, 0));
      show();
    },
  };
}
