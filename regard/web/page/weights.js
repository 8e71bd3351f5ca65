/**
 * Attention weights of a record, asked for in tiles of 256 × 256; those used last are kept while the record is shown.  Every
 * view asks for the same tiles, `?head=2&top=0&left=256&rows=256&columns=44`, so that an exported page can hold them.
 */

import { lruCache } from "./parts/lru_cache.js";
import { decodeWeights } from "./parts/numbers.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").LayerInfo} LayerInfo */
/** @typedef {number | "mean"} Head */

const WEIGHT_TILE = 256;
const WHOLE = 640 * 640; // the largest matrix that is asked for as a whole

const CACHE_BYTES = 64 * 2 ** 20; // 12 heads of 512 × 512 are 12 MiB

/** @type {ReturnType<typeof lruCache<Float32Array>>} */
const weightCache = lruCache(CACHE_BYTES);
let cachedRecord = "";

/**
 * @param {App} app
 * @param {string} path
 * @returns {Promise<Float32Array>}
 */
function askWeights(app, path) {
  const record = app.record;
  if (!record) return Promise.reject(new Error("nothing was inspected yet"));
  if (record.id !== cachedRecord) {
    weightCache.clear();
    cachedRecord = record.id;
  }
  return weightCache.get(path, () => app.get(`/records/${record.id}${path}`).then((tile) => decodeWeights(tile.weights)));
}

/**
 * Rows and columns of a layer's matrix.
 * @param {App} app
 * @param {LayerInfo} layer
 */
export function layerShape(app, layer) {
  const axes = app.record?.axes ?? {};
  return { rows: axes[layer.queries].size, columns: axes[layer.keys].size };
}

/**
 * Whether the matrix is small enough to be asked for as a whole.
 * @param {App} app
 * @param {LayerInfo} layer
 */
export function isSmall(app, layer) {
  const { rows, columns } = layerShape(app, layer);
  return rows * columns <= WHOLE;
}

/**
 * A tile whose corner is at multiples of 256.
 * @param {App} app
 * @param {LayerInfo} layer
 * @param {Head} head
 * @param {number} top
 * @param {number} left
 */
export function loadWeightTile(app, layer, head, top, left) {
  const shape = layerShape(app, layer);
  const rows = Math.min(WEIGHT_TILE, shape.rows - top);
  const columns = Math.min(WEIGHT_TILE, shape.columns - left);
  return askWeights(app, `/layers/${layer.index}/weights?head=${head}&top=${top}&left=${left}&rows=${rows}&columns=${columns}`);
}

/**
 * The whole matrix.
 * @param {App} app
 * @param {LayerInfo} layer
 * @param {Head} head
 */
export async function loadMatrix(app, layer, head) {
  const { rows, columns } = layerShape(app, layer);
  const matrix = new Float32Array(rows * columns);
  const parts = [];
  for (let top = 0; top < rows; top += WEIGHT_TILE) {
    for (let left = 0; left < columns; left += WEIGHT_TILE) {
      parts.push(loadWeightTile(app, layer, head, top, left).then((tile) => copyTile(tile, matrix, columns, top, left)));
    }
  }
  await Promise.all(parts);
  return matrix;
}

/**
 * @param {Float32Array} tile
 * @param {Float32Array} matrix
 * @param {number} columns  of the matrix
 * @param {number} top
 * @param {number} left
 */
function copyTile(tile, matrix, columns, top, left) {
  const wide = Math.min(WEIGHT_TILE, columns - left);
  for (let row = 0; row * wide < tile.length; row += 1) {
    matrix.set(tile.subarray(row * wide, (row + 1) * wide), (top + row) * columns + left);
  }
}

/**
 * What one query attends to.
 * @param {App} app
 * @param {LayerInfo} layer
 * @param {Head} head
 * @param {number} row
 */
export async function loadRow(app, layer, head, row) {
  const { columns } = layerShape(app, layer);
  if (isSmall(app, layer)) {
    const matrix = await loadMatrix(app, layer, head);
    return matrix.subarray(row * columns, (row + 1) * columns);
  }
  const weights = new Float32Array(columns);
  const parts = [];
  for (let left = 0; left < columns; left += WEIGHT_TILE) {
    const wide = Math.min(WEIGHT_TILE, columns - left);
    const path = `/layers/${layer.index}/weights?head=${head}&top=${row}&left=${left}&rows=1&columns=${wide}`;
    parts.push(askWeights(app, path).then((tile) => weights.set(tile, left)));
  }
  await Promise.all(parts);
  return weights;
}

/**
 * What each key receives, the mean over all queries.
 * @param {App} app
 * @param {LayerInfo} layer
 * @param {Head} head
 */
export function loadReceived(app, layer, head) {
  return askWeights(app, `/layers/${layer.index}/received?head=${head}`);
}

/**
 * The mean of several matrices of one size.
 * @param {Float32Array[]} matrices
 */
export function meanMatrix(matrices) {
  const mean = new Float32Array(matrices[0].length);
  for (const matrix of matrices)
    for (let index = 0; index < mean.length; index += 1) mean[index] += matrix[index] / matrices.length;
  return mean;
}

/**
 * Labels of an axis, for matrices: tokens, places as "row, column", frames by their time.
 * @param {import("./types.js").Axis} axis
 * @returns {string[]}
 */
export function labelsOfAxis(axis) {
  if (axis.kind === "tokens") return axis.labels;
  if (axis.kind === "frames")
    return Array.from({ length: axis.size }, (_, index) => `${(axis.times[index] ?? index).toFixed(2)} s`);
  const [rows, columns] = axis.grid ?? [1, axis.size];
  const before = axis.size - rows * columns;
  return Array.from({ length: axis.size }, (_, index) => {
    const place = index - before;
    return place < 0 ? (axis.labels[index] ?? "class token") : `${Math.floor(place / columns) + 1}, ${(place % columns) + 1}`;
  });
}

/**
 * A position of an axis in words: a token, "row 3, column 4", a time.
 * @param {import("./types.js").Axis} axis
 * @param {number} position
 */
export function positionName(axis, position) {
  if (axis.kind === "tokens") return axis.labels[position];
  if (axis.kind === "frames") return `${(axis.times[position] ?? position).toFixed(2)} s`;
  const [rows, columns] = axis.grid ?? [1, axis.size];
  const place = position - (axis.size - rows * columns);
  return place < 0 ? "the class token" : `row ${Math.floor(place / columns) + 1}, column ${(place % columns) + 1}`;
}
