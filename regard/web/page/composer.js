/** Where the input is given: text to type, or a picture or a recording to drop, paste or choose; and the options of decoding. */

import { el, setChildren } from "./parts/dom.js";
import { choice, disclosure, placard, slider } from "./parts/controls.js";
import { encodeBytes, groupedCount } from "./parts/numbers.js";

/** @typedef {import("./types.js").InspectBody} InspectBody */
/** @typedef {import("./types.js").RunInfo} RunInfo */

/** @type {{[input: string]: {noun: string, types: RegExp, accept: string, names: string}}} */
const FILE_KINDS = {
  image: { noun: "picture", types: /^image\//, accept: "image/*", names: "a PNG, JPEG, WebP or GIF file" },
  audio: {
    noun: "recording",
    types: /^(audio|video)\//, // some systems call .webm and .mp4 recordings video
    accept: "audio/*,.wav,.flac,.ogg,.mp3",
    names: "a WAV, FLAC, OGG or MP3 file",
  },
};

/** @type {{[task: string]: string}} */
const RUN_LABELS = {
  translation: "Translate",
  span_corruption: "Fill in",
  language_model: "Continue",
  bidirectional_lm: "Read",
  masked_lm: "Fill in",
  text_classification: "Classify",
  image_classification: "Classify",
  captioning: "Describe",
  speech: "Transcribe",
};

/** @type {{[task: string]: string}} */
const PLACEHOLDERS = {
  translation: "A sentence to translate",
  span_corruption: "A sentence with gaps",
  language_model: "The beginning of a text",
  masked_lm: "A sentence with [MASK] in it",
  text_classification: "A text to classify",
};

/**
 * @param {HTMLElement} root
 * @param {{inspect: (input: InspectBody) => void, announce: (text: string) => void}} shell
 */
export function composer(root, { inspect, announce }) {
  /** @type {RunInfo | null} */
  let run = null;
  /** @type {{file: string, name: string, url: string} | null} */
  let chosen = null;
  /** @type {() => Partial<InspectBody>} */
  let readOptions = () => ({});

  // text
  const text = el("textarea", {
    id: "input-text",
    rows: "1",
    spellcheck: "false",
    dir: "auto",
    autocomplete: "off",
    enterkeyhint: "go",
  });
  const runButton = el("button", { type: "submit", class: "button button-primary" }, "Run");
  const textForm = el(
    "form",
    { class: "composer-text" },
    el("label", { for: "input-text", class: "visually-hidden" }, "Input"),
    text,
    runButton,
  );
  textForm.addEventListener("submit", (event) => {
    event.preventDefault();
    submitText();
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submitText();
    }
  });
  text.addEventListener("input", () => say(""));

  // picture or sound
  const fileInput = el("input", { type: "file", id: "input-file", class: "visually-hidden" });
  const fileName = el("span", { class: "drop-name" });
  const fileHint = el("span", { class: "drop-hint" });
  const filePreview = el("img", { class: "drop-preview", alt: "", hidden: true });
  const drop = el(
    "label",
    { class: "drop", for: "input-file" },
    filePreview,
    el("span", { class: "drop-texts" }, fileName, fileHint),
    el("span", { class: "button drop-button" }, "Choose a file"),
  );
  const fileArea = el("div", { class: "composer-file" }, fileInput, drop);
  fileInput.addEventListener("change", () => fileInput.files?.[0] && takeFile(fileInput.files[0]));
  for (const name of ["dragenter", "dragover"]) {
    document.addEventListener(name, (event) => {
      event.preventDefault(); // else the browser leaves the page to show the file
      drop.classList.add("over");
    });
  }
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) drop.classList.remove("over");
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    const file = event.dataTransfer?.files[0];
    if (file) takeFile(file);
  });
  document.addEventListener("paste", (event) => {
    const file = event.clipboardData?.files[0];
    if (file && run && run.input in FILE_KINDS) {
      event.preventDefault();
      takeFile(file);
    }
  });

  const none = el("p", { class: "composer-none" });
  const message = el("p", { class: "composer-message", role: "alert" });
  const notes = el("ul", { class: "composer-notes" });
  const options = el("div", { class: "options-body" });
  const optionsBox = disclosure("Options", options);
  optionsBox.classList.add("options");
  const below = el("div", { class: "composer-below" }, message, notes, optionsBox);
  root.append(textForm, fileArea, none, below);

  /** @param {string} words */
  function say(words) {
    message.textContent = words;
    message.hidden = !words;
    if (words) announce(words);
  }

  function submitText() {
    if (!text.value.trim()) {
      say("There is nothing to read yet. Type a sentence first.");
      text.focus();
      return;
    }
    say("");
    inspect({ text: text.value, ...readOptions() });
  }

  /** @param {File} file */
  async function takeFile(file) {
    if (!run || fileInput.disabled) return;
    const kind = FILE_KINDS[run.input];
    if (!kind) {
      say(
        `${file.name} is a file; ${run.name} reads ${run.input === "text" ? "text: type it" : "no input"}, or choose another run.`,
      );
      return;
    }
    if (file.type && !kind.types.test(file.type)) {
      say(`${file.name} is not a ${kind.noun}: ${run.name} reads ${kind.names}.`);
      return;
    }
    say("");
    const bytes = new Uint8Array(await file.arrayBuffer());
    if (chosen) URL.revokeObjectURL(chosen.url);
    chosen = { file: encodeBytes(bytes), name: file.name || kind.noun, url: URL.createObjectURL(file) };
    showFile();
    inspect({ file: chosen.file, name: chosen.name, ...readOptions() });
    fileInput.value = "";
  }

  function showFile() {
    const kind = run && FILE_KINDS[run.input];
    if (!kind) return;
    fileName.textContent = chosen ? chosen.name : `Drop a ${kind.noun} here`;
    fileHint.textContent = chosen ? `Drop, paste or choose another ${kind.noun}` : `or paste it, or choose ${kind.names}`;
    filePreview.hidden = !chosen || run?.input !== "image";
    if (chosen && run?.input === "image") filePreview.src = chosen.url;
  }

  /** Options that this run knows. */
  function buildOptions() {
    if (!run) return;
    /** @type {HTMLElement[]} */
    const nodes = [];
    /** @type {(() => Partial<InspectBody>)[]} */
    const readers = [];
    if (run.decodes && run.task !== "language_model") {
      const standard = run.beam || 1;
      const beam = slider({ label: "Beam width", min: 1, max: Math.max(8, standard), value: standard });
      nodes.push(beam.node);
      readers.push(() => (beam.value === standard ? {} : { beam: beam.value }));
    }
    if (run.task === "language_model") {
      const tokens = slider({
        label: "New tokens",
        min: 1,
        max: Math.min(200, run.max_tokens ?? 200),
        value: Math.min(24, run.max_tokens ?? 24),
      });
      const temperature = slider({
        label: "Temperature",
        min: 0,
        max: 2,
        step: 0.1,
        value: 0,
        format: (value) => (value ? value.toFixed(1) : "0, the likeliest"),
      });
      const seed = slider({ label: "Seed", min: 0, max: 99, value: 0 });
      nodes.push(tokens.node, temperature.node, seed.node);
      readers.push(() => ({
        tokens: tokens.value,
        ...(temperature.value ? { temperature: temperature.value, seed: seed.value } : {}),
      }));
    }
    if (run.checkpoints.length > 1) {
      const last = run.checkpoints[run.checkpoints.length - 1];
      const steps = [
        { value: "", label: "final weights" },
        ...run.checkpoints.map((step) => ({
          value: String(step),
          label: `step ${groupedCount(step)}${step === last ? ", the last" : ""}`,
        })),
      ];
      const checkpoint = choice({ label: "Checkpoint", options: steps, value: "" });
      nodes.push(checkpoint.node);
      readers.push(() => (checkpoint.value ? { checkpoint: Number(checkpoint.value) } : {}));
    }
    setChildren(options, ...nodes);
    optionsBox.hidden = nodes.length === 0;
    readOptions = () => Object.assign({}, ...readers.map((read) => read()));
  }

  return {
    /** @param {RunInfo} next */
    setRun(next) {
      if (run?.input !== next.input) chosen = null;
      run = next;
      const file = next.input in FILE_KINDS;
      textForm.hidden = next.input !== "text";
      fileArea.hidden = !file;
      none.hidden = next.input !== "none";
      none.textContent = `${next.name} takes no input, so there is nothing to inspect.`;
      text.placeholder = PLACEHOLDERS[next.task] ?? "A text";
      runButton.textContent = RUN_LABELS[next.task] ?? "Run";
      if (file) fileInput.accept = FILE_KINDS[next.input].accept;
      showFile();
      say("");
      buildOptions();
    },
    /** @param {InspectBody} input */
    setInput(input) {
      if (input.text !== undefined) text.value = input.text;
      if (input.name) fileName.textContent = input.name;
    },
    /** Sends a text as if it had been typed. @param {string} words */
    ask(words) {
      text.value = words;
      submitText();
    },
    /** A saved page: the input can be read, not changed. @param {RunInfo} saved */
    freeze(saved) {
      text.readOnly = true;
      runButton.hidden = true;
      fileInput.disabled = true;
      drop.classList.add("fixed");
      fileHint.textContent = "";
      optionsBox.hidden = true;
      below.append(el("p", { class: "hint" }, "A saved page. For other inputs: ", el("code", {}, `regard serve ${saved.name}`)));
    },
    /** @param {string[]} lines */
    notes(lines) {
      setChildren(notes, ...lines.map((line) => el("li", {}, line)));
      notes.hidden = lines.length === 0;
    },
    /** @param {boolean} busy */
    busy(busy) {
      root.setAttribute("aria-busy", String(busy));
    },
    /** The empty state: what to do first. */
    invitation() {
      if (!run) return placard({ title: "" });
      if (run.input === "none") return placard({ title: none.textContent ?? "" });
      const kind = FILE_KINDS[run.input];
      if (kind) {
        const open = el(
          "button",
          { type: "button", class: "button button-primary", on: { click: () => fileInput.click() } },
          `Choose a ${kind.noun}`,
        );
        return placard({
          title: `Give ${run.name} a ${kind.noun}`,
          text: `Drop one anywhere on this page, paste it, or choose ${kind.names}.`,
          action: open,
        });
      }
      const example = run.example;
      const tryIt = example
        ? el(
            "button",
            { type: "button", class: "example", on: { click: () => useExample(example) } },
            el("small", {}, "Try"),
            el("span", { dir: "auto" }, example),
          )
        : null;
      return placard({
        title: "Type a sentence and see what the model attends to",
        text: example ? "Press Enter to send it. Or start with this one:" : "Press Enter to send it.",
        action: tryIt,
      });
    },
  };

  /** @param {string} example */
  function useExample(example) {
    text.value = example;
    submitText();
  }
}
