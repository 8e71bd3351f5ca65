/** The arithmetic of one attention head, in plain numbers: what the switches of "Step by step" compute again. */

import { decodeBytes, decodeFloats } from "./parts/numbers.js";

/** @typedef {import("./types.js").PackedMatrix} PackedMatrix */
/** @typedef {{rows: number, columns: number, values: Float32Array | Float64Array}} NumberMatrix */
/** @typedef {"dot" | "cosine" | "additive" | "general" | "location" | "uniform" | "squared" | "absolute" | "product"} Formula */

/**
 * The answer of `/records/{record}/steps` and `/lecture/steps`.
 * @typedef {object} PackedSteps
 * @property {number} layer
 * @property {number} head
 * @property {string} title
 * @property {Formula} formula
 * @property {number} scale
 * @property {string[]} queries  labels
 * @property {string[]} keys
 * @property {number} chosen  the row that was asked for
 * @property {number[]} query_positions  on the layer's axis
 * @property {number[]} key_positions
 * @property {boolean} same_tokens  whether queries and keys are the same tokens, in their order
 * @property {boolean} has_positions  whether the model has position embeddings or biases
 * @property {string | null} mask  base64 of uint8
 * @property {string[]} notes
 * @property {PackedMatrix | null} x
 * @property {PackedMatrix | null} memory
 * @property {PackedMatrix} q
 * @property {PackedMatrix} k
 * @property {PackedMatrix} v
 * @property {PackedMatrix} scores
 * @property {PackedMatrix | null} bias
 * @property {PackedMatrix} weights
 * @property {PackedMatrix} output
 * @property {PackedMatrix | null} vector
 */

/**
 * The same with its numbers unpacked.
 * @typedef {Omit<PackedSteps, "x" | "memory" | "q" | "k" | "v" | "scores" | "bias" | "weights" | "output" | "vector" | "mask"> &
 *   {x: NumberMatrix | null, memory: NumberMatrix | null, q: NumberMatrix, k: NumberMatrix, v: NumberMatrix, scores: NumberMatrix,
 *    bias: NumberMatrix | null, weights: NumberMatrix, output: NumberMatrix, vector: NumberMatrix | null, mask: Uint8Array | null}} Steps
 */

/** @typedef {{scaled: boolean, masked: boolean, temperature: number}} StepSwitches */

/**
 * @param {PackedMatrix} matrix
 * @returns {NumberMatrix}
 */
function unpackMatrix(matrix) {
  return { rows: matrix.rows, columns: matrix.columns, values: decodeFloats(matrix.values) };
}

/**
 * @param {PackedSteps} packed
 * @returns {Steps}
 */
export function unpackSteps(packed) {
  const { x, memory, q, k, v, scores, bias, weights, output, vector, mask, ...rest } = packed;
  /** @param {PackedMatrix | null} matrix */
  const perhaps = (matrix) => matrix && unpackMatrix(matrix);
  return {
    ...rest,
    x: perhaps(x),
    memory: perhaps(memory),
    q: unpackMatrix(q),
    k: unpackMatrix(k),
    v: unpackMatrix(v),
    scores: unpackMatrix(scores),
    bias: perhaps(bias),
    weights: unpackMatrix(weights),
    output: unpackMatrix(output),
    vector: perhaps(vector),
    mask: mask === null ? null : decodeBytes(mask),
  };
}

/**
 * The switches as the model has them.
 * @param {Steps} steps
 * @returns {StepSwitches}
 */
export function ownSwitches(steps) {
  return { scaled: true, masked: steps.mask !== null, temperature: 1 };
}

/**
 * Whether a query may attend to a key: by the model's mask, or, where it has none, by a causal one if that has a meaning.
 * @param {Steps} steps
 * @param {number} row
 * @param {number} column
 */
export function mayAttend(steps, row, column) {
  if (steps.mask) return steps.mask[row * steps.scores.columns + column] === 1;
  return !steps.same_tokens || steps.key_positions[column] <= steps.query_positions[row];
}

/**
 * softmax((scale · scores + bias) / temperature), masked keys left out, and the weighted sums of the values.
 * A query without any key gets zeros.
 * @param {Steps} steps
 * @param {StepSwitches} switches
 */
export function attentionStages(steps, switches) {
  const { rows, columns } = steps.scores;
  const factor = switches.scaled ? steps.scale : 1;
  const scaled = emptyMatrix(rows, columns);
  const biased = emptyMatrix(rows, columns);
  const masked = emptyMatrix(rows, columns);
  const weights = emptyMatrix(rows, columns);
  const output = emptyMatrix(rows, steps.v.columns);
  for (let row = 0; row < rows; row += 1) {
    let most = -Infinity;
    for (let column = 0; column < columns; column += 1) {
      const at = row * columns + column;
      scaled.values[at] = factor * steps.scores.values[at];
      biased.values[at] = scaled.values[at] + (steps.bias ? steps.bias.values[at] : 0);
      masked.values[at] = !switches.masked || mayAttend(steps, row, column) ? biased.values[at] : -Infinity;
      most = Math.max(most, masked.values[at]);
    }
    let sum = 0;
    for (let column = 0; column < columns; column += 1) {
      const at = row * columns + column;
      weights.values[at] = most === -Infinity ? 0 : Math.exp((masked.values[at] - most) / switches.temperature);
      sum += weights.values[at];
    }
    for (let column = 0; column < columns; column += 1) {
      const at = row * columns + column;
      weights.values[at] = sum === 0 ? 0 : weights.values[at] / sum;
      for (let e = 0; e < steps.v.columns; e += 1) {
        output.values[row * steps.v.columns + e] += weights.values[at] * steps.v.values[column * steps.v.columns + e];
      }
    }
  }
  return { scaled, biased, masked, weights, output };
}

/**
 * @param {number} rows
 * @param {number} columns
 * @returns {NumberMatrix}
 */
function emptyMatrix(rows, columns) {
  return { rows, columns, values: new Float64Array(rows * columns) };
}

/**
 * Some rows and columns of a matrix.
 * @param {NumberMatrix} matrix
 * @param {number[]} rows
 * @param {number[]} [columns]  all if not given
 * @returns {NumberMatrix}
 */
export function pickCells(matrix, rows, columns) {
  const chosen = columns ?? Array.from({ length: matrix.columns }, (_, column) => column);
  const picked = emptyMatrix(rows.length, chosen.length);
  rows.forEach((row, i) => chosen.forEach((column, j) => (picked.values[i * chosen.length + j] = matrix.values[row * matrix.columns + column])));
  return picked;
}
