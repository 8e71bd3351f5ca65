/**
 * The explorer's API: its address, and the types of what it answers.  Layers, heads and positions count from 0 here and
 * from 1 in what people read.
 */

/** Every address of the API starts with this. */
export const API_ROOT = "/api/v1";

/**
 * @typedef {object} RunInfo
 * @property {string} name
 * @property {string} family
 * @property {string} task
 * @property {"text" | "image" | "audio" | "none"} input
 * @property {string[]} verbs
 * @property {string} about  how long it was trained
 * @property {number} parameters
 * @property {{source: string, target: string} | null} languages
 * @property {number[]} checkpoints  steps, ascending
 * @property {number | null} max_tokens
 * @property {number} beam
 * @property {string | null} example
 * @property {boolean} decodes  whether it generates tokens one after another
 * @property {boolean} has_attention
 */

/** @typedef {{version: string, runs: RunInfo[]}} RunList */

/**
 * What `inspect` is asked: a text or a file, and options.
 * @typedef {object} InspectBody
 * @property {string} [text]
 * @property {string} [file]  base64
 * @property {string} [name]  of the file
 * @property {number} [beam]
 * @property {number} [tokens]
 * @property {number} [temperature]
 * @property {number} [seed]
 * @property {number} [checkpoint]  step
 */

/** @typedef {{text: string, start: number, end: number}} AxisWord */

/**
 * What the queries or the keys of a layer are: tokens, places of an image (rows first), or frames of a sound.
 * @typedef {object} Axis
 * @property {"tokens" | "grid" | "frames"} kind
 * @property {number} size
 * @property {string[]} labels
 * @property {AxisWord[]} words
 * @property {[number, number] | null} grid  rows and columns
 * @property {number[]} times  of frames: the middle of each, in seconds
 * @property {number[]} [special]  positions of start, end and other tokens that are no text
 */

/** @typedef {{head: number, label: string, share: number}} HeadLabel */

/**
 * @typedef {object} LayerInfo
 * @property {number} index
 * @property {string} name
 * @property {string} title
 * @property {"self" | "masked" | "cross"} kind
 * @property {string} stack
 * @property {string} queries  name of an axis
 * @property {string} keys
 * @property {number} heads
 * @property {boolean} windowed
 * @property {HeadLabel[]} labels
 */

/** @typedef {{text: string, probability: number | null, query: number}} AnswerItem */

/**
 * @typedef {object} Answer
 * @property {"translation" | "continuation" | "caption" | "transcript" | "class" | "fill" | "none"} kind
 * @property {string} text
 * @property {number | null} score
 * @property {AnswerItem[]} items
 */

/**
 * @typedef {object} SpectrogramInfo
 * @property {number} seconds
 * @property {number[]} frequencies  Hz, of each channel
 * @property {number} rows
 * @property {number} columns
 * @property {string} levels  base64 of uint8
 */

/**
 * @typedef {object} RecordInput
 * @property {string | null} text
 * @property {string | null} picture  data URL
 * @property {[number, number, number, number] | null} region  top, left, bottom, right: the part that was read
 * @property {SpectrogramInfo | null} spectrogram
 * @property {string | null} name
 */

/**
 * What the answer attended to; `queries`: rows of self-attention over the axis of the columns that the rows are.
 * @typedef {{rows: string, columns: string, title: string, weights: string, queries: number[] | null}} Alignment
 */

/**
 * One input, its answer, and what can be asked about all attention.
 * @typedef {object} AttentionRecord
 * @property {string} id
 * @property {string} run
 * @property {string} title
 * @property {number | null} checkpoint
 * @property {RecordInput} input
 * @property {Answer} answer
 * @property {{[name: string]: Axis}} axes
 * @property {LayerInfo[]} layers
 * @property {Alignment} alignment
 * @property {string[]} notes
 */

/** @typedef {{rows: number, columns: number, heads: {max: number, cells: string}[]}} Thumbnails */
/** @typedef {{top: number, left: number, rows: number, columns: number, weights: string}} WeightTile */
/** @typedef {{weights: string}} Received */
/** @typedef {{rows: number, columns: number, weights: string}} Rollout */

/** A matrix of real numbers: base64 of little-endian float32, row after row.
 * @typedef {{rows: number, columns: number, values: string}} PackedMatrix
 */

/** A line of the stream of an inspection.
 * @typedef {{event: "text", text: string} | {event: "record", record: AttentionRecord}
 *   | {event: "error", error: string}} InspectEvent
 */

/**
 * What the user has chosen, shared by the views: a head opened in one view is the head of the next.
 * @typedef {{layer: number, head: number | "mean", query: number | null}} Selection
 */

/** A head, or all heads of a layer, that one view sends to another. @typedef {{layer: number, head: number | "mean"}} ChosenHead */

/** @typedef {"run" | "record" | "selection" | "theme"} AppEvent */

/**
 * What a view is given.  `get` and `post` take a path below `/api/v1`; if the record has left the server's memory they
 * inspect the input again and ask once more.
 * @typedef {object} App
 * @property {RunInfo | null} run
 * @property {RunInfo[]} runs
 * @property {AttentionRecord | null} record
 * @property {Selection} selection
 * @property {InspectBody | null} input  what was inspected last
 * @property {boolean} embedded  whether this is an exported page, without a server
 * @property {(path: string) => Promise<any>} get
 * @property {(path: string, body?: object) => Promise<any>} post
 * @property {(path: string, name: string) => Promise<void>} download  saves a file of the API
 * @property {(input: InspectBody) => Promise<void>} inspect
 * @property {(change: Partial<Selection>) => void} select
 * @property {(event: AppEvent, listener: () => void) => void} on
 * @property {(text: string) => void} announce  says it in the status line, for screen readers too
 * @property {(view: string, text?: string) => void} describe  what the view shows now, beside its title; without a text, its own
 * @property {(view: string, head?: ChosenHead) => void} open  goes to a view: "heads", "steps", …, and shows a head there
 */

/**
 * A tab.  It is mounted when first shown; `update` is called whenever it is shown, and when the run or the record changes
 * while it is shown.  `unavailable` says in one sentence why there is nothing to see, or "".
 * @typedef {object} View
 * @property {string} id
 * @property {string} title
 * @property {string} subtitle
 * @property {boolean} needsRecord  whether the shell shows the empty state until something was inspected
 * @property {(run: RunInfo, record: AttentionRecord | null) => string} unavailable
 * @property {(root: HTMLElement, app: App) => {update: (head?: ChosenHead) => void}} mount
 */
