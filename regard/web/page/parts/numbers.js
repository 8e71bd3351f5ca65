/** Numbers of the API (base64) → typed arrays, and numbers → words that people read. */

/**
 * @param {string} text  base64
 * @returns {Uint8Array}
 */
export function decodeBytes(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index += 1) bytes[index] = binary.charCodeAt(index);
  return bytes;
}

/**
 * Attention weights: little-endian uint16, value / 65535.
 * @param {string} text  base64
 * @returns {Float32Array}
 */
export function decodeWeights(text) {
  const bytes = decodeBytes(text);
  const view = new DataView(bytes.buffer);
  const weights = new Float32Array(bytes.length >> 1);
  for (let index = 0; index < weights.length; index += 1) weights[index] = view.getUint16(2 * index, true) / 65535;
  return weights;
}

/**
 * Real numbers: little-endian float32.
 * @param {string} text  base64
 * @returns {Float32Array}
 */
export function decodeFloats(text) {
  const bytes = decodeBytes(text);
  const view = new DataView(bytes.buffer);
  const values = new Float32Array(bytes.length >> 2);
  for (let index = 0; index < values.length; index += 1) values[index] = view.getFloat32(4 * index, true);
  return values;
}

/**
 * The bytes of a file as base64, as the API takes them.
 * @param {Uint8Array} bytes
 */
export function encodeBytes(bytes) {
  let binary = "";
  const step = 0x8000; // more arguments than this overflow the stack
  for (let start = 0; start < bytes.length; start += step) {
    binary += String.fromCharCode(...bytes.subarray(start, start + step));
  }
  return btoa(binary);
}

/**
 * 0.873 → "87 %"; small ones keep a digit: 0.0042 → "0.4 %".
 * @param {number} share
 */
export function percent(share) {
  const value = 100 * share;
  if (!Number.isFinite(value)) return "–";
  if (value > 0 && value < 0.1) return "< 0.1\u00a0%";
  return `${value < 9.95 && value > 0 ? value.toFixed(1) : value.toFixed(0)}\u00a0%`;
}

/**
 * 0.087 → "9 %": for shares that stand in one sentence.
 * @param {number} share
 */
export function wholePercent(share) {
  const value = 100 * share;
  if (!Number.isFinite(value)) return "–";
  return value > 0 && value < 0.5 ? "< 1\u00a0%" : `${value.toFixed(0)}\u00a0%`;
}

/**
 * 12345678 → "12.3 M"; below ten thousand all digits.
 * @param {number} value
 */
export function compactCount(value) {
  if (value < 1e4) return groupedCount(value);
  for (const [unit, letter] of /** @type {[number, string][]} */ ([
    [1e15, "P"],
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ])) {
    if (value >= 0.9995 * unit) return `${(value / unit).toPrecision(3)}\u00a0${letter}`; // three digits of 999,700 are 1.00 M
  }
  return groupedCount(value);
}

/**
 * 12345 → "12,345".
 * @param {number} value
 */
export function groupedCount(value) {
  return Math.round(value).toLocaleString("en-US");
}

/**
 * A real number in few letters, with a true minus sign.
 * @param {number} value
 * @param {number} [digits]
 */
export function fixedNumber(value, digits = 2) {
  if (Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const text = value.toFixed(digits);
  return Number(text) === 0 ? (0).toFixed(digits) : text.replace("-", "−");
}

/**
 * The largest number.
 * @param {ArrayLike<number>} values
 */
export function largest(values) {
  let most = -Infinity;
  for (let index = 0; index < values.length; index += 1) if (values[index] > most) most = values[index];
  return most;
}

/**
 * Row `row` of a matrix whose rows have `columns` numbers.
 * @param {Float32Array} values
 * @param {number} row
 * @param {number} columns
 */
export function matrixRow(values, row, columns) {
  return values.subarray(row * columns, (row + 1) * columns);
}

/**
 * Positions of the `count` largest numbers, largest first.
 * @param {ArrayLike<number>} values
 * @param {number} count
 */
export function strongest(values, count) {
  return Array.from(values, (_, index) => index)
    .sort((a, b) => values[b] - values[a])
    .slice(0, count);
}
