// Parameters, FLOPs and bytes of models by closed formulas: pure functions, equal to what regard/view/cost.py counts.
//
// A product of (a, b) and (b, c) matrices counts 2abc FLOPs.  Norms, softmax and lookups count none.  Numbers are float32.
// Letters as in the lecture notes: n length, d width, k kernel, r window.

/**
 * @typedef {{name: string, parameters: number, flops: number, bytes: number, score_bytes: number}} CostPart
 * @typedef {{vocab: number, dim: number, depth: number, heads: number, mlp_ratio: number, max_len: number}} TextSizes
 * @typedef {{image: number, patch: number, channels: number, dim: number, depth: number, heads: number, mlp_ratio: number,
 *   classes: number}} ViTSizes
 * @typedef {{image: number, patch: number, channels: number, dim: number, depths: number[], heads: number[], window: number,
 *   mlp_ratio: number, classes: number}} SwinSizes
 * @typedef {{layer: string, operations: number, formula: string, sequential: string, path: string}} LayerComplexity
 * @typedef {{tokens: number, entries: number, head_bytes: number, all_bytes: number}} ScoreSizes
 */

export const FLOAT_BYTES = 4;

/** The published sizes, as regard names them. */
export const COST_PRESETS = {
  "transformer-base": { vocab: 37000, dim: 512, depth: 6, heads: 8, mlp_ratio: 4, max_len: 512 },
  "gpt-small": { vocab: 50257, dim: 768, depth: 12, heads: 12, mlp_ratio: 4, max_len: 1024 },
  "bert-base": { vocab: 30522, dim: 768, depth: 12, heads: 12, mlp_ratio: 4, max_len: 512 },
  "vit-base": { image: 224, patch: 16, channels: 3, dim: 768, depth: 12, heads: 12, mlp_ratio: 4, classes: 1000 },
  "swin-tiny": {
    image: 224, patch: 4, channels: 3, dim: 96, depths: [2, 2, 6, 2], heads: [3, 6, 12, 24], window: 7, mlp_ratio: 4, classes: 1000,
  },
};

/** @type {(name: string, parameters: number, flops?: number, scores?: number) => CostPart} */
const costPart = (name, parameters, flops = 0, scores = 0) => ({
  name, parameters, flops, bytes: FLOAT_BYTES * parameters, score_bytes: FLOAT_BYTES * scores,
});

/**
 * The parts, and all of them together.
 * @param {CostPart[]} parts
 */
function withTotal(parts) {
  const sum = (/** @type {(part: CostPart) => number} */ of) => parts.reduce((total, part) => total + of(part), 0);
  const scores = sum((part) => part.score_bytes) / FLOAT_BYTES;
  return [...parts, costPart("all", sum((part) => part.parameters), sum((part) => part.flops), scores)];
}

// Weights of a linear layer, of attention (queries, keys, values, output), of a norm and of an mlp, each with its biases.
const linearSize = (/** @type {number} */ a, /** @type {number} */ b) => a * b + b;
const normSize = (/** @type {number} */ d) => 2 * d;
const attentionSize = (/** @type {number} */ d) => 4 * linearSize(d, d);
const mlpSize = (/** @type {number} */ d, /** @type {number} */ hidden) => linearSize(d, hidden) + linearSize(hidden, d);

/** Attention, mlp, and a norm of each. */
const blockSize = (/** @type {number} */ d, /** @type {number} */ hidden) => attentionSize(d) + mlpSize(d, hidden) + 2 * normSize(d);

/**
 * Four projections and an mlp for each of n tokens; scores and mixing for each pair of a token and one of its `keys`.
 * @param {number} n
 * @param {number} keys
 * @param {number} d
 * @param {number} hidden
 */
export const blockFlops = (n, keys, d, hidden) => 2 * n * (4 * d * d + 2 * d * hidden) + 4 * n * keys * d;

/**
 * An encoder-decoder with sinusoids, norms first and one matrix for source, target and output.  With `window` each token attends
 * to that many neighbours at most, cross-attention apart.
 * @param {TextSizes} c
 * @param {number} source
 * @param {number} target
 * @param {number} [window]
 */
export function transformerCost(c, source, target, window = Infinity) {
  const d = c.dim, hidden = c.mlp_ratio * d, s = source, t = target;
  const cross = 2 * (2 * t + 2 * s) * d * d + 4 * t * s * d; // queries and output of the target, keys and values of the source
  const [seen, read] = [Math.min(s, window), Math.min(t, window)];
  return withTotal([
    costPart("embeddings", c.vocab * d),
    costPart("encoder", c.depth * blockSize(d, hidden) + normSize(d), c.depth * blockFlops(s, seen, d, hidden),
      c.depth * c.heads * s * seen),
    costPart("decoder", c.depth * (blockSize(d, hidden) + attentionSize(d) + normSize(d)) + normSize(d),
      c.depth * (blockFlops(t, read, d, hidden) + cross), c.depth * c.heads * (t * read + t * s)),
    costPart("output (tied)", 0, 2 * t * d * c.vocab),
  ]);
}

/**
 * A decoder with learned positions (GPT-2).
 * @param {TextSizes} c
 * @param {number} length
 * @param {number} [window]
 */
export function gptCost(c, length, window = Infinity) {
  const d = c.dim, keys = Math.min(length, window), hidden = c.mlp_ratio * d;
  return withTotal([
    costPart("embeddings", (c.vocab + c.max_len) * d),
    costPart("blocks", c.depth * blockSize(d, hidden), c.depth * blockFlops(length, keys, d, hidden),
      c.depth * c.heads * length * keys),
    costPart("output (tied)", normSize(d), 2 * length * d * c.vocab),
  ]);
}

/**
 * An encoder with learned positions, two segments, a pooler and a head for masked tokens (BERT).
 * @param {TextSizes} c
 * @param {number} length
 * @param {number} [window]
 */
export function bertCost(c, length, window = Infinity) {
  const d = c.dim, keys = Math.min(length, window), hidden = c.mlp_ratio * d;
  return withTotal([
    costPart("embeddings", (c.vocab + c.max_len + 2) * d),
    costPart("blocks", c.depth * blockSize(d, hidden), c.depth * blockFlops(length, keys, d, hidden),
      c.depth * c.heads * length * keys),
    costPart("output (tied)", 2 * normSize(d) + 2 * linearSize(d, d) + c.vocab, 2 * length * d * (d + c.vocab)),
  ]);
}

/**
 * A Transformer on patches of an image, with a class token (ViT).
 * @param {ViTSizes} c
 */
export function vitCost(c) {
  const d = c.dim, patches = Math.floor(c.image / c.patch) ** 2, n = patches + 1, pixels = c.channels * c.patch ** 2;
  const hidden = c.mlp_ratio * d;
  return withTotal([
    costPart("embed", linearSize(pixels, d), 2 * patches * pixels * d),
    costPart("positions", n * d),
    costPart("blocks", c.depth * blockSize(d, hidden), c.depth * blockFlops(n, n, d, hidden), c.depth * c.heads * n * n),
    costPart("final_norm", normSize(d)),
    costPart("classifier", linearSize(d, c.classes), 2 * d * c.classes),
    costPart("the rest", d), // the class token
  ]);
}

/**
 * Attention in windows on grids that shrink by half from stage to stage, while the width doubles (Swin).  A grid that windows do
 * not tile is padded; one that is smaller than a window is a window of its own.
 * @param {SwinSizes} c
 */
export function swinCost(c) {
  let side = Math.ceil(c.image / c.patch), parameters = 0, flops = 0, scores = 0, d = c.dim;
  const pixels = c.channels * c.patch ** 2, first = side;
  c.depths.forEach((depth, stage) => {
    if (stage > 0) { // four neighbours become one position of twice the width
      side = Math.ceil(side / 2);
      d *= 2;
      parameters += normSize(2 * d) + 2 * d * d;
      flops += 2 * side ** 2 * 2 * d * d;
    }
    const window = Math.min(c.window, side), padded = (Math.ceil(side / window) * window) ** 2, hidden = c.mlp_ratio * d;
    parameters += depth * (blockSize(d, hidden) + (2 * c.window - 1) ** 2 * c.heads[stage]); // and the relative position bias
    flops += depth * (8 * padded * d * d + 4 * padded * window ** 2 * d + 4 * side ** 2 * d * hidden);
    scores += depth * c.heads[stage] * padded * window ** 2;
  });
  return withTotal([
    costPart("embed", linearSize(pixels, c.dim), 2 * first ** 2 * pixels * c.dim),
    costPart("norm", normSize(c.dim)),
    costPart("stages", parameters, flops, scores),
    costPart("final_norm", normSize(d)),
    costPart("classifier", linearSize(d, c.classes), 2 * d * c.classes),
  ]);
}

/**
 * The notes' table of one layer on n tokens of width d: multiplications, steps that wait for each other, and the longest path
 * between two tokens.
 * @param {{length: number, width: number, kernel: number, window: number}} sizes
 * @returns {LayerComplexity[]}
 */
export function layerComplexities({ length: n, width: d, kernel: k, window: r }) {
  return [
    { layer: "Self-attention", operations: n * n * d, formula: "n² · d", sequential: "1", path: "1" },
    { layer: "Recurrent", operations: n * d * d, formula: "n · d²", sequential: "n", path: "n" },
    { layer: "Convolution", operations: k * n * d * d, formula: "k · n · d²", sequential: "1", path: "n / k" },
    { layer: "Restricted self-attention", operations: Math.min(r, n) * n * d, formula: "r · n · d", sequential: "1", path: "n / r" },
  ];
}

/**
 * Attention scores of an image whose every position attends to all others.  `patch` 1 is a Transformer on pixels.
 * @param {{image: number, patch: number, depth: number, heads: number}} sizes
 * @returns {ScoreSizes}
 */
export function globalScores({ image, patch, depth, heads }) {
  const tokens = Math.floor(image / patch) ** 2, entries = tokens * tokens;
  return { tokens, entries, head_bytes: FLOAT_BYTES * entries, all_bytes: FLOAT_BYTES * entries * depth * heads };
}

/**
 * Attention scores of an image in windows of M × M positions: M² for each of H · W positions, the padding of ragged edges included.
 * @param {{image: number, patch: number, window: number, depth: number, heads: number}} sizes
 * @returns {ScoreSizes}
 */
export function windowScores({ image, patch, window, depth, heads }) {
  const side = Math.floor(image / patch), fit = Math.min(window, side), padded = Math.ceil(side / fit) * fit;
  const entries = fit ** 2 * padded ** 2;
  return { tokens: side ** 2, entries, head_bytes: FLOAT_BYTES * entries, all_bytes: FLOAT_BYTES * entries * depth * heads };
}

/**
 * Bytes for people, by powers of 1,024 as in the notes: 112.5 MiB.
 * @param {number} bytes
 */
export function bytesText(bytes) {
  const names = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let step = 0, size = bytes;
  for (; size >= 1024 && step < names.length - 1; step++) size /= 1024;
  return step ? `${size.toFixed(1)} ${names[step]}` : `${size} bytes`;
}
