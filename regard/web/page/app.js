/**
 * The explorer: chooses a run, sends an input, and shows its record in six views.  Views know only the `app` they are given;
 * they are listed in VIEWS.
 */

import { inspectStream, isEmbedded, readEmbedded, request, RequestError, requestFile } from "./api.js";
import { composer } from "./composer.js";
import { placard, button, choice } from "./parts/controls.js";
import { onThemeChange, publishRamp } from "./parts/colour.js";
import { el, setChildren, shorten } from "./parts/dom.js";
import { fadeEdges } from "./parts/fade.js";
import { compactCount } from "./parts/numbers.js";
import { ANSWER_VIEW } from "./answer.js";
import { HEADS_VIEW } from "./heads.js";
import { STEPS_VIEW } from "./steps.js";
import { WHATIF_VIEW } from "./whatif.js";
import { DECODING_VIEW } from "./decoding.js";
import { LEARNING_VIEW } from "./learning.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").AppEvent} AppEvent */
/** @typedef {import("./types.js").AttentionRecord} AttentionRecord */
/** @typedef {import("./types.js").ChosenHead} ChosenHead */
/** @typedef {import("./types.js").InspectBody} InspectBody */
/** @typedef {import("./types.js").RunInfo} RunInfo */
/** @typedef {import("./types.js").View} View */

/** @type {View[]} */
const VIEWS = [ANSWER_VIEW, HEADS_VIEW, STEPS_VIEW, WHATIF_VIEW, DECODING_VIEW, LEARNING_VIEW];

const MAX_ADDRESS_TEXT = 2000; // characters of an input that the address keeps; browsers and bookmarks cut longer ones
const SLOW = 180; // milliseconds after which waiting is shown; faster answers would only flicker

/** @param {string} id */
const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** Everything that starts when the page is open. */
function startExplorer() {
  publishRamp();

  /** @type {{[event in AppEvent]?: (() => void)[]}} */
  const listeners = {};
  /** @param {AppEvent} event */
  const emit = (event) => listeners[event]?.forEach((listener) => listener());

  /** @type {App} */
  const app = {
    run: null,
    runs: [],
    record: null,
    selection: { layer: 0, head: "mean", query: null },
    input: null,
    embedded: isEmbedded(),
    get: (path) => ask("GET", path),
    post: (path, body = {}) => ask("POST", path, body),
    download,
    inspect,
    select(change) {
      Object.assign(app.selection, change);
      emit("selection");
    },
    on(event, listener) {
      (listeners[event] ??= []).push(listener);
    },
    announce(text) {
      byId("status").textContent = text;
    },
    open: openView,
    describe(view, text) {
      const panel = panels[VIEWS.findIndex((one) => one.id === view)];
      panel.subtitle.textContent = text ?? VIEWS[panels.indexOf(panel)].subtitle;
    },
  };

  // ---- requests: an expired record is made again, and the same question asked of the new one

  /**
   * @param {"GET" | "POST"} method
   * @param {string} path
   * @param {object} [body]
   */
  async function ask(method, path, body) {
    try {
      return await request(method, path, body);
    } catch (error) {
      const old = path.match(/^\/records\/([^/?]+)/)?.[1];
      const shown = app.record;
      const origin = shown && origins.get(shown);
      if (!(error instanceof RequestError && error.expired && old && shown && origin)) throw error;
      if (!origin.ids.has(old)) throw error; // not the record that is shown: another checkpoint's, say
      if (shown.id === old) {
        app.announce("The server had dropped this record. Inspecting the input again …");
        origin.renewal ??= request("POST", `/runs/${encodeURIComponent(shown.run)}/inspect`, origin.input).finally(
          () => (origin.renewal = null),
        );
        const { id } = /** @type {AttentionRecord} */ (await origin.renewal);
        origin.ids.add(id);
        shown.id = id;
        if (app.record !== shown) throw error; // another input was inspected meanwhile: nobody waits for this answer
        app.announce("");
      }
      return request(method, path.replace(`/records/${old}`, `/records/${shown.id}`), body);
    }
  }
  /**
   * Of each record the input that it answers, and the ids it has had.
   * @type {WeakMap<AttentionRecord, {input: InspectBody, ids: Set<string>, renewal: Promise<any> | null}>}
   */
  const origins = new WeakMap();

  /**
   * @param {string} path
   * @param {string} name  of the file
   */
  async function download(path, name) {
    const link = el("a", { download: name });
    link.href = URL.createObjectURL(await requestFile(path));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  // ---- one inspection at a time; a newer one aborts it

  let phase = /** @type {"idle" | "loading" | "error"} */ ("idle");
  let problem = "";
  let mayRetry = true;
  let streamed = "";
  let abort = new AbortController();

  /** @param {InspectBody} input */
  async function inspect(input) {
    const run = app.run;
    if (!run) return;
    abort.abort();
    const control = (abort = new AbortController());
    app.input = input;
    entry.setInput(input); // a view may ask, too
    phase = "loading";
    streamed = "";
    entry.busy(true);
    const slow = setTimeout(showPanel, SLOW);
    try {
      const record = await inspectStream(run.name, input, showText, control.signal);
      if (control.signal.aborted) return;
      phase = "idle";
      app.record = record;
      origins.set(record, { input, ids: new Set([record.id]), renewal: null });
      const kept = record.layers[app.selection.layer];
      if (!kept || (app.selection.head !== "mean" && app.selection.head >= kept.heads))
        app.selection = { layer: 0, head: "mean", query: null };
      app.selection.query = null;
      entry.notes(record.notes);
      app.announce(record.answer.text ? `Answer: ${record.answer.text}` : "Done.");
      writeAddress();
      emit("record");
    } catch (error) {
      if (control.signal.aborted) return;
      if (error instanceof RequestError && error.status === 404 && (await replaceRuns(run))) return;
      phase = "error";
      problem = error instanceof Error ? error.message : String(error);
      if (!problem.startsWith(run.name)) problem = problem.charAt(0).toUpperCase() + problem.slice(1);
      const status = error instanceof RequestError ? error.status : 0;
      mayRetry = !(status >= 400 && status < 500) || status === 408 || status === 429; // else the same input fails again
      app.announce(problem);
    } finally {
      clearTimeout(slow);
      if (!control.signal.aborted) {
        entry.busy(false);
        showPanel();
      }
    }

    /** @param {string} text */
    function showText(text) {
      if (control.signal.aborted) return;
      streamed = text;
      showPanel();
    }
  }

  // ---- runs

  const runChoice = choice({ label: "Run", options: [], value: "", onChange: (name) => chooseRun(name, true) });
  const runFacts = el("p", { class: "run-facts" });
  byId("run").append(runChoice.node, runFacts);

  /**
   * @param {string} name
   * @param {boolean} rerun  inspect the last input again, if the new run takes the same kind
   */
  function chooseRun(name, rerun) {
    const before = app.run;
    const run = app.runs.find((one) => one.name === name) ?? app.runs[0];
    abort.abort();
    entry.busy(false); // an aborted inspection does not say that it has ended
    app.run = run;
    app.record = null;
    phase = "idle";
    runChoice.set(run.name);
    const pair = run.languages ? `${run.languages.source} → ${run.languages.target}` : "";
    const facts = [run.family, pair, `${compactCount(run.parameters)} parameters`, run.about].filter(Boolean);
    setChildren(runFacts, ...facts.map((fact) => el("span", {}, fact)));
    entry.setRun(run);
    entry.notes([]);
    emit("run");
    const last = app.input;
    if (rerun && last && before?.input === run.input) {
      inspect({ text: last.text, file: last.file, name: last.name });
    } else {
      if (before?.input !== run.input) app.input = null;
      if (rerun) writeAddress();
      showPanel();
    }
  }

  /**
   * A server that was started again may have other runs: the menu gets those, and the first is chosen.
   * @param {RunInfo} run  one that the server did not find
   * @returns {Promise<boolean>}  whether it has gone
   */
  async function replaceRuns(run) {
    const list = await request("GET", "/runs").catch(() => null);
    if (!list?.runs.length || list.runs.some((/** @type {RunInfo} */ one) => one.name === run.name)) return false;
    app.runs = list.runs;
    runChoice.setOptions(app.runs.map((one) => ({ value: one.name, label: one.name })));
    chooseRun(app.runs[0].name, false);
    const text = `This server has no run ${run.name} any more. Now chosen: ${app.runs[0].name}.`;
    entry.notes([text]);
    app.announce(text);
    return true;
  }

  // ---- the address: view, run and text, so that an example can be kept as a bookmark

  /** What follows the view in the address. */
  function addressQuery() {
    const query = new URLSearchParams();
    if (app.embedded || !app.run) return "";
    const text = app.record && app.input?.text;
    if (text || app.run !== app.runs[0]) query.set("run", app.run.name);
    if (text && text.length <= MAX_ADDRESS_TEXT) query.set("text", text);
    return query.size ? `?${query}` : "";
  }

  function writeAddress() {
    const hash = `#${current.id}${addressQuery()}`;
    if (!app.embedded && location.hash !== hash && (location.hash || hash.includes("?"))) history.replaceState(null, "", hash);
  }

  /** Chooses the run and asks for the text that the address names, unless they are shown. */
  function readAddress() {
    const query = new URLSearchParams(location.hash.split("?").slice(1).join("?"));
    if (app.embedded || !query.size || `?${query}` === addressQuery()) return;
    const name = query.get("run") ?? app.run?.name;
    const run = app.runs.find((one) => one.name === name);
    if (!run) {
      entry.notes([`The address names the run ${shorten(name ?? "", 60)}; this server does not have it. Choose one above.`]);
      return;
    }
    const text = query.get("text")?.slice(0, MAX_ADDRESS_TEXT);
    if (run !== app.run) chooseRun(run.name, !text);
    if (text && run.input === "text") entry.ask(text);
  }

  const entry = composer(byId("composer"), { inspect, announce: app.announce });

  // ---- tabs and panels

  /** @type {{[id: string]: ReturnType<View["mount"]>}} */
  const mounted = {};
  /** @type {{view: string, head: ChosenHead} | null} */
  let wanted = null; // a head that another view has sent here
  let current = VIEWS[0];
  const tabs = VIEWS.map((view) =>
    el(
      "button",
      {
        type: "button",
        role: "tab",
        class: "tab",
        id: `tab-${view.id}`,
        "aria-controls": `panel-${view.id}`,
        on: { click: () => openView(view.id) },
      },
      view.title,
    ),
  );
  const panels = VIEWS.map((view) => {
    const message = el("div", { class: "panel-message" });
    const root = el("div", { class: `view view-${view.id}` });
    const subtitle = el("p", {}, view.subtitle);
    const heading = el("div", { class: "panel-heading" }, el("h2", {}, view.title), subtitle);
    const node = el(
      "section",
      { class: "panel", role: "tabpanel", id: `panel-${view.id}`, "aria-labelledby": `tab-${view.id}`, hidden: true },
      heading,
      message,
      root,
    );
    return { node, message, root, subtitle };
  });
  fadeEdges(byId("tabs"), ...tabs).append(...tabs);
  byId("panels").append(...panels.map((panel) => panel.node));
  byId("tabs").addEventListener("keydown", (event) => {
    const index = VIEWS.indexOf(current);
    /** @type {{[key: string]: number}} */
    const targets = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: VIEWS.length - 1 };
    if (!(event.key in targets)) return;
    event.preventDefault();
    const next = (targets[event.key] + VIEWS.length) % VIEWS.length;
    openView(VIEWS[next].id);
    tabs[next].focus();
  });

  /**
   * @param {string} id
   * @param {ChosenHead} [head]
   */
  function openView(id, head) {
    wanted = head ? { view: id, head } : null;
    const hash = `#${id}${addressQuery()}`;
    if (location.hash === hash) showView();
    else location.hash = hash; // showView follows
  }

  function showView() {
    const before = current;
    current = VIEWS.find((view) => `#${view.id}` === location.hash.split("?")[0]) ?? current;
    if (current !== before && phase === "idle") app.announce(""); // it was about the other view
    for (const [index, view] of VIEWS.entries()) {
      const chosen = view === current;
      tabs[index].setAttribute("aria-selected", String(chosen));
      tabs[index].tabIndex = chosen ? 0 : -1;
      panels[index].node.hidden = !chosen;
      if (chosen && tabs[index].offsetParent) {
        const strip = byId("tabs"); // on a phone the tabs scroll sideways
        strip.scrollTo({ left: tabs[index].offsetLeft - strip.clientWidth / 2 + tabs[index].offsetWidth / 2 });
      }
    }
    document.title = `${current.title} · regard`;
    showPanel();
  }

  /** What the current tab shows: a message, or its view. */
  function showPanel() {
    const { message, root } = panels[VIEWS.indexOf(current)];
    const run = app.run;
    document.documentElement.dataset.phase = phase;
    setChildren(message);
    root.hidden = false;
    if (!run) {
      root.hidden = true;
      return;
    }
    const recordless = !current.needsRecord && phase !== "error";
    if (phase === "error") {
      const retry = mayRetry ? button({ label: "Try again", kind: "primary", onClick: () => app.input && inspect(app.input) }) : null;
      setChildren(message, placard({ kind: "error", title: "That did not work", text: problem, action: retry }));
      root.hidden = current.needsRecord;
    } else if (phase === "loading" && !recordless) {
      root.hidden = true;
      setChildren(message, streamCard());
      return;
    }
    const reason = current.unavailable(run, app.record);
    if (reason && phase !== "error") {
      root.hidden = true;
      setChildren(message, placard({ title: reason }));
      return;
    }
    if (current.needsRecord && !app.record) {
      root.hidden = true;
      if (phase !== "error") setChildren(message, entry.invitation());
      return;
    }
    if (root.hidden) return;
    mounted[current.id] ??= current.mount(root, app);
    const head = wanted?.view === current.id ? wanted.head : undefined;
    wanted = null;
    mounted[current.id].update(head);
  }

  /** The answer so far, while it is decoded. */
  function streamCard() {
    return el(
      "div",
      { class: "stream" },
      app.input?.text && el("p", { class: "stream-source" }, app.input.text),
      el("p", { class: "stream-text" }, streamed, el("span", { class: "caret", "aria-hidden": "true" })),
      el("p", { class: "stream-note" }, streamed ? "Decoding …" : "The model reads …"),
    );
  }

  window.addEventListener("hashchange", () => {
    showView();
    readAddress();
    if (phase !== "loading") writeAddress();
  });
  onThemeChange(() => {
    publishRamp();
    emit("theme");
  });
  showView();

  // ---- the list of runs, and then the page is ready

  async function loadRuns() {
    const message = panels[VIEWS.indexOf(current)].message;
    try {
      const list = await request("GET", "/runs");
      app.runs = list.runs;
      byId("version").textContent = list.version ? `regard ${list.version}` : "";
      if (!app.embedded) byId("version").prepend(el("a", { href: "claims" }, "The lecture notes’ claims, measured"), " · ");
      runChoice.setOptions(app.runs.map((run) => ({ value: run.name, label: run.name })));
      if (!app.runs.length) throw new RequestError("This server has no runs. Start it with one: regard serve RUN", 0);
      chooseRun(app.runs[0].name, false);
      if (app.embedded) await openEmbedded();
      else readAddress();
    } catch (error) {
      const text = error instanceof Error ? error.message : String(error);
      const retry = button({ label: "Try again", kind: "primary", onClick: loadRuns });
      setChildren(message, placard({ kind: "error", title: "The explorer could not start", text, action: retry }));
      app.announce(text);
    }
    document.documentElement.dataset.ready = "true";
    performance.mark("regard-ready");
  }

  /** An exported page opens with the input it was made for. */
  async function openEmbedded() {
    const { requests } = await readEmbedded();
    const key = Object.keys(requests).find((one) => /^POST \/runs\/[^/ ]+\/inspect /.test(one));
    if (!key) return;
    const [, path, body] = /** @type {RegExpMatchArray} */ (key.match(/^POST (\S+) (.*)$/s));
    const run = decodeURIComponent(path.split("/")[2]);
    if (run !== app.run?.name) chooseRun(run, false);
    const input = JSON.parse(body);
    entry.setInput(input);
    if (app.run) entry.freeze(app.run);
    await inspect(input);
  }

  loadRuns();
}

startExplorer();
