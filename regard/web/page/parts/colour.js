/**
 * The one colour scale of the page, computed in OKLCH: lightness changes evenly and in one direction, so that the order is
 * seen in grey and with any colour vision.  Light paper: from paper to deep; dark paper: from paper to bright.
 */

import { el } from "./dom.js";

const RAMP_STEPS = 256;
const darkScheme = matchMedia("(prefers-color-scheme: dark)");

/** @typedef {[number, number, number]} Rgb */

/**
 * OKLCH → sRGB, 0 to 255.  https://bottosson.github.io/posts/oklab/
 * @param {number} lightness  0 to 1
 * @param {number} chroma
 * @param {number} hue  degrees
 * @returns {Rgb}
 */
export function oklchToRgb(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  const [red, green, blue] = linear.map((value) => {
    const bounded = Math.min(Math.max(value, 0), 1);
    return Math.round(255 * (bounded <= 0.0031308 ? 12.92 * bounded : 1.055 * bounded ** (1 / 2.4) - 0.055));
  });
  return [red, green, blue];
}

/**
 * The colour of a value from 0 to 1.
 * @param {number} value
 * @param {boolean} dark  paper
 * @returns {Rgb}
 */
export function rampColour(value, dark) {
  const t = Math.min(Math.max(value, 0), 1);
  const chroma = Math.sin(Math.PI * 0.72 * t); // none at the paper's end, most before the other
  return dark
    ? oklchToRgb(0.235 + 0.685 * t, 0.014 + 0.155 * chroma * (1 - 0.4 * t), 326 + 54 * t)
    : oklchToRgb(0.988 - 0.628 * t, 0.002 + 0.2 * chroma * (0.5 + 0.5 * t), 380 - 40 * t);
}

/** @type {{[mode: string]: Uint8ClampedArray}} */
const rampTables = {};

/** Whether the page is on dark paper. */
export function isDark() {
  return darkScheme.matches;
}

/**
 * Red, green, blue, 255 of 256 values: for canvas pixels.
 * @param {boolean} [dark]  that of dark paper
 */
export function rampTable(dark = isDark()) {
  const mode = dark ? "dark" : "light";
  if (!rampTables[mode]) {
    const table = new Uint8ClampedArray(4 * RAMP_STEPS);
    for (let step = 0; step < RAMP_STEPS; step += 1) {
      table.set([...rampColour(step / (RAMP_STEPS - 1), dark), 255], 4 * step);
    }
    rampTables[mode] = table;
  }
  return rampTables[mode];
}

/**
 * The CSS colour of a value from 0 to 1.
 * @param {number} value
 */
export function rampCss(value) {
  const table = rampTable();
  const at = 4 * Math.round((RAMP_STEPS - 1) * Math.min(Math.max(value, 0), 1));
  return `rgb(${table[at]} ${table[at + 1]} ${table[at + 2]})`;
}

/**
 * Black or white, whichever is easier to read on the colour of this value.
 * @param {number} value
 */
export function inkCss(value) {
  const [red, green, blue] = rampColour(value, isDark()).map((channel) => {
    const share = channel / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff"; // either has a contrast of 4.58 at least
}

/**
 * The colour scale over a darkened picture: the brighter part of the ramp, and clear where there is nothing to see.
 * @param {number} value  0 to 1
 * @returns {{at: number, alpha: number}}  where it is on the ramp of dark paper, and how much it covers
 */
export function onPicture(value) {
  const share = Math.min(Math.max(value, 0), 1);
  return { at: 0.45 + 0.55 * share, alpha: Math.min(1, 1.6 * share) };
}

/**
 * Calls the listener when the paper changes between light and dark.
 * @param {() => void} listener
 * @returns {() => void}  stops it; until then the listener and all that it refers to stay in memory
 */
export function onThemeChange(listener) {
  darkScheme.addEventListener("change", listener);
  return () => darkScheme.removeEventListener("change", listener);
}

/**
 * The ramp as a bar, with what its ends mean.
 * @param {{title: string, low?: string, high?: string, masked?: boolean, onPicture?: boolean}} texts
 */
export function legend({ title, low = "0", high = "100\u00a0%", masked = false, onPicture = false }) {
  return el(
    "div",
    { class: "legend" },
    el("span", { class: "legend-title" }, title),
    el(
      "span",
      { class: "legend-scale" },
      el("span", {}, low),
      el("span", { class: onPicture ? "legend-bar on-picture" : "legend-bar", "aria-hidden": "true" }),
      el("span", {}, high),
    ),
    masked && el("span", { class: "legend-masked" }, el("span", { class: "legend-hatch", "aria-hidden": "true" }), "masked"),
  );
}

/** The ramp as custom properties of the page, for style.css: `--ramp-0` to `--ramp-10`, and the gradient of legends. */
export function publishRamp() {
  const style = document.documentElement.style;
  const stops = [];
  for (let step = 0; step <= 10; step += 1) {
    style.setProperty(`--ramp-${step}`, rampCss(step / 10));
    stops.push(rampCss(step / 10));
  }
  style.setProperty("--ramp", `linear-gradient(to right, ${stops.join(", ")})`);
  const bright = Array.from({ length: 11 }, (_, step) => {
    const { at, alpha } = onPicture(step / 10);
    return `rgb(${rampColour(at, true).join(" ")} / ${alpha})`;
  });
  style.setProperty("--ramp-on-picture", `linear-gradient(to right, ${bright.join(", ")}), linear-gradient(#4b474a, #4b474a)`);
}
