/**
 * Requests to the explorer's API.  An exported page (`regard show RUN INPUT --out map.html`) holds the answers instead of
 * a server: deflated JSON in base64, by request.
 */

import { API_ROOT } from "./types.js";
import { decodeBytes } from "./parts/numbers.js";

/** @typedef {import("./types.js").InspectBody} InspectBody */
/** @typedef {import("./types.js").InspectEvent} InspectEvent */
/** @typedef {{requests: {[key: string]: any}}} EmbeddedAnswers */

/** An answer of 4xx or 5xx, or none at all; the message is one line for the user. */
export class RequestError extends Error {
  /**
   * @param {string} message
   * @param {number} status  0 without an answer
   * @param {boolean} [expired]  whether the record has left the server's memory
   */
  constructor(message, status, expired = false) {
    super(message);
    this.status = status;
    this.expired = expired;
  }
}

/** An exported page was asked for something it does not hold. */
export class NeedsServer extends Error {
  constructor() {
    super("This saved page does not hold that answer. Open the run itself: regard serve RUN");
  }
}

/** @type {Promise<EmbeddedAnswers> | null} */
let embeddedAnswers = null;

/** Whether this page is an exported one. */
export function isEmbedded() {
  return document.getElementById("embedded") !== null;
}

/**
 * The answers in an exported page, by request.
 * @returns {Promise<EmbeddedAnswers>}
 */
export function readEmbedded() {
  if (!embeddedAnswers) {
    const text = (document.getElementById("embedded")?.textContent ?? "").trim();
    embeddedAnswers = text.startsWith("{") ? Promise.resolve(JSON.parse(text)) : inflateJson(text.replace(/^"|"$/g, ""));
  }
  return embeddedAnswers;
}

/**
 * @param {string} text  base64 of deflated JSON
 * @returns {Promise<any>}
 */
async function inflateJson(text) {
  const bytes = /** @type {Uint8Array<ArrayBuffer>} */ (decodeBytes(text));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const held = await new Response(stream).json();
  return restoreShared(held, held.shared ?? []);
}

/**
 * Puts strings back that several answers share: `{shared: 3}` stands for the fourth of them.
 * @param {any} value
 * @param {string[]} shared
 * @returns {any}
 */
function restoreShared(value, shared) {
  if (value === null || typeof value !== "object") return value;
  if (Number.isInteger(value.shared)) return shared[value.shared];
  for (const key of Object.keys(value)) if (value[key] !== shared) value[key] = restoreShared(value[key], shared);
  return value;
}

/**
 * A request as the key of its embedded answer: `POST /runs/en-it/inspect {"beam":4,"text":"I love you"}`, the body's keys in
 * alphabetical order, without spaces.
 * @param {string} method
 * @param {string} path
 * @param {object} [body]
 */
export function requestKey(method, path, body) {
  return body === undefined ? `${method} ${path}` : `${method} ${path} ${sortedJson(body)}`;
}

/**
 * JSON with the keys of every object in alphabetical order; undefined and null are left out.
 * @param {any} value
 * @returns {string}
 */
function sortedJson(value) {
  if (Array.isArray(value)) return `[${value.map(sortedJson).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const keys = Object.keys(value)
    .filter((key) => value[key] !== undefined && value[key] !== null)
    .sort();
  return `{${keys.map((key) => `${JSON.stringify(key)}:${sortedJson(value[key])}`).join(",")}}`;
}

/**
 * @param {"GET" | "POST"} method
 * @param {string} path  below /api/v1
 * @param {object} [body]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function request(method, path, body, signal) {
  if (isEmbedded()) {
    const { requests } = await readEmbedded();
    const answer = requests[requestKey(method, path, body)];
    if (answer === undefined) throw new NeedsServer();
    return answer;
  }
  const response = await send(method, path, body, signal);
  try {
    return await response.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new RequestError("The server's answer was cut off. Try again.", 0);
  }
}

/**
 * A file of the API: a drawing.
 * @param {string} path
 */
export async function requestFile(path) {
  if (isEmbedded()) throw new NeedsServer();
  return (await send("GET", path)).blob();
}

/**
 * @param {"GET" | "POST"} method
 * @param {string} path
 * @param {object} [body]
 * @param {AbortSignal} [signal]
 */
async function send(method, path, body, signal) {
  let response;
  try {
    response = await fetch(API_ROOT + path, {
      method,
      signal,
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new RequestError("The server does not answer. Is “regard serve” still running?", 0);
  }
  if (!response.ok) throw await readError(response);
  return response;
}

/** @param {Response} response */
async function readError(response) {
  try {
    const { error, expired } = await response.json();
    if (typeof error === "string") return new RequestError(error, response.status, expired === true);
  } catch {
    // not JSON: a proxy's page, say
  }
  if (response.status === 429) return new RequestError("The server is busy. Try again in a moment.", 429);
  return new RequestError(
    `The server answered ${response.status} ${response.statusText}. Try again, or look at its log.`,
    response.status,
  );
}

/**
 * Inspects an input; `onText` gets the answer's text as it is decoded.
 * @param {string} run
 * @param {InspectBody} body
 * @param {(text: string) => void} onText
 * @param {AbortSignal} signal
 * @returns {Promise<import("./types.js").AttentionRecord>}
 */
export async function inspectStream(run, body, onText, signal) {
  const path = `/runs/${encodeURIComponent(run)}/inspect`;
  if (isEmbedded()) return request("POST", path, body);
  const response = await send("POST", `${path}/stream`, body, signal);
  for await (const event of readLines(response)) {
    if (event.event === "text") onText(event.text);
    else if (event.event === "record") return event.record;
    else throw new RequestError(event.error, 500);
  }
  throw new RequestError("The server's answer was cut off. Try again.", 0);
}

/**
 * The lines of JSON of a response, as they come.
 * @param {Response} response
 * @returns {AsyncGenerator<InspectEvent>}
 */
async function* readLines(response) {
  const reader = /** @type {ReadableStream<Uint8Array<ArrayBuffer>>} */ (response.body)
    .pipeThrough(new TextDecoderStream())
    .getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = done ? "" : (lines.pop() ?? "");
    for (const line of lines) if (line.trim()) yield JSON.parse(line);
    if (done) return;
  }
}
