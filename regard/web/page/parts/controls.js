/** Form controls with labels.  Each returns its element as `node`, the current `value`, and `set` to change it from outside. */

import { el, uniqueId } from "./dom.js";

/**
 * @template T
 * @typedef {{node: HTMLElement, readonly value: T, set: (value: T) => void}} Control
 */

/**
 * @param {{label: string, min: number, max: number, step?: number | "any", value: number, format?: (value: number) => string,
 *          onInput?: (value: number) => void}} options
 * @returns {Control<number> & {input: HTMLInputElement, setRange: (min: number, max: number) => void}}
 */
export function slider({ label, min, max, step = 1, value, format = String, onInput }) {
  const id = uniqueId("slider");
  const input = el("input", { type: "range", id, min, max, step, value });
  const output = el("output", { for: id, class: "slider-value" });
  const show = () => {
    const share = (input.valueAsNumber - Number(input.min)) / (Number(input.max) - Number(input.min) || 1);
    input.style.setProperty("--share", `${100 * share}%`);
    output.value = format(input.valueAsNumber);
    input.setAttribute("aria-valuetext", output.value);
  };
  input.addEventListener("input", () => {
    show();
    onInput?.(input.valueAsNumber);
  });
  show();
  const node = el("div", { class: "control control-slider" }, el("label", { for: id }, label), output, input);
  return {
    node,
    input,
    get value() {
      return input.valueAsNumber;
    },
    set(next) {
      input.valueAsNumber = next;
      show();
    },
    setRange(low, high) {
      input.min = String(low);
      input.max = String(high);
      show();
    },
  };
}

/**
 * A switch: on or off.
 * @param {{label: string, value?: boolean, hint?: string, onChange?: (value: boolean) => void}} options
 * @returns {Control<boolean> & {input: HTMLInputElement}}
 */
export function toggle({ label, value = false, hint = "", onChange }) {
  const input = el("input", { type: "checkbox", role: "switch" });
  input.checked = value;
  input.addEventListener("change", () => onChange?.(input.checked));
  const text = el("span", { class: "toggle-text" }, label, hint && el("small", {}, hint));
  const node = el("label", { class: "control control-toggle" }, input, text);
  return {
    node,
    input,
    get value() {
      return input.checked;
    },
    set(next) {
      input.checked = next;
    },
  };
}

/**
 * A few exclusive choices, side by side.
 * @template {string} T
 * @param {{label: string, options: {value: T, label: string}[], value: T, onChange?: (value: T) => void}} options
 * @returns {Control<T>}
 */
export function segmented({ label, options, value, onChange }) {
  const name = uniqueId("segmented");
  /** @type {HTMLInputElement[]} */
  const inputs = [];
  const bar = el("div", { class: "segmented", role: "radiogroup", "aria-label": label });
  for (const option of options) {
    const input = el("input", { type: "radio", name, value: option.value });
    input.checked = option.value === value;
    input.addEventListener("change", () => input.checked && onChange?.(option.value));
    inputs.push(input);
    bar.append(el("label", {}, input, el("span", {}, option.label)));
  }
  const node = el(
    "div",
    { class: "control control-segmented" },
    el("span", { class: "control-label", "aria-hidden": "true" }, label),
    bar,
  );
  return {
    node,
    get value() {
      return /** @type {T} */ (inputs.find((input) => input.checked)?.value ?? value);
    },
    set(next) {
      for (const input of inputs) input.checked = input.value === next;
    },
  };
}

/**
 * A list to choose from; options may be in groups.
 * @param {{label: string, options: {value: string, label: string, group?: string}[], value: string, hiddenLabel?: boolean,
 *          onChange?: (value: string) => void}} settings
 * @returns {Control<string> & {select: HTMLSelectElement,
 *   setOptions: (options: {value: string, label: string, group?: string}[]) => void}}
 */
export function choice({ label, options, value, hiddenLabel = false, onChange }) {
  const id = uniqueId("choice");
  const select = el("select", { id });
  /** @param {{value: string, label: string, group?: string}[]} list */
  const setOptions = (list) => {
    /** @type {{[title: string]: HTMLOptGroupElement}} */
    const groups = {};
    select.replaceChildren();
    for (const option of list) {
      const node = el("option", { value: option.value }, option.label);
      if (option.group) {
        if (!groups[option.group]) {
          groups[option.group] = el("optgroup", { label: option.group });
          select.append(groups[option.group]);
        }
        groups[option.group].append(node);
      } else {
        select.append(node);
      }
    }
  };
  setOptions(options);
  select.value = value;
  select.addEventListener("change", () => onChange?.(select.value));
  const node = el(
    "div",
    { class: "control control-choice" },
    el("label", { for: id, class: hiddenLabel ? "visually-hidden" : "" }, label),
    el("span", { class: "select" }, select),
  );
  return {
    node,
    select,
    setOptions,
    get value() {
      return select.value;
    },
    set(next) {
      select.value = next;
    },
  };
}

/**
 * @param {{label: string, onClick: () => void, kind?: "plain" | "primary" | "quiet", title?: string}} options
 */
export function button({ label, onClick, kind = "plain", title }) {
  return el("button", { type: "button", class: `button button-${kind}`, title, on: { click: onClick } }, label);
}

/**
 * A summary that opens to show more.
 * @param {string} summary
 * @param {...import("./dom.js").Child} children
 */
export function disclosure(summary, ...children) {
  return el("details", { class: "disclosure" }, el("summary", {}, summary), ...children);
}

/**
 * What a view shows when it has nothing: one sentence, what to do, and perhaps a button.
 * @param {{title: string, text?: string, action?: HTMLElement | null, kind?: "empty" | "error" | "loading"}} message
 */
export function placard({ title, text = "", action = null, kind = "empty" }) {
  return el(
    "div",
    { class: `placard placard-${kind}`, role: kind === "error" ? "alert" : null },
    el("span", { class: "placard-mark", "aria-hidden": "true" }),
    el("p", { class: "placard-title" }, title),
    text && el("p", { class: "placard-text" }, text),
    action,
  );
}
