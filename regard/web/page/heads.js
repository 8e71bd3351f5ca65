/**
 * View 2, all heads at once: a small map for each layer and head; one opens large, as a matrix and as links.  Averages over
 * heads and layers and the attention rollout are further entries.
 */

import { button, placard, slider } from "./parts/controls.js";
import { legend, onThemeChange, rampTable } from "./parts/colour.js";
import { el, setChildren } from "./parts/dom.js";
import { heatmap } from "./parts/heatmap.js";
import { linkColumns, strongestLinks } from "./parts/links.js";
import { decodeBytes, decodeWeights, groupedCount, largest, matrixRow, percent } from "./parts/numbers.js";
import { MOST_TIMES, pictureOverlay } from "./parts/overlay.js";
import { spectrogramView } from "./parts/spectrogram.js";
import { wordRow } from "./parts/words.js";
import { labelsOfAxis, isSmall, layerShape, loadMatrix, loadRow, loadWeightTile, meanMatrix, positionName } from "./weights.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").AttentionRecord} AttentionRecord */
/** @typedef {import("./types.js").LayerInfo} LayerInfo */
/** @typedef {import("./types.js").Thumbnails} Thumbnails */

/**
 * Layers of one stack and kind, in a block of the grid.
 * @typedef {{title: string, stack: string, layers: LayerInfo[]}} HeadGroup
 */

/**
 * What is opened large: a head or the mean of a layer's heads, the mean of a group's layers, or a rollout.
 * @typedef {{kind: "head", layer: LayerInfo, head: number | "mean"}
 *   | {kind: "layers", group: HeadGroup} | {kind: "rollout", group: HeadGroup}} Opened
 */

const OPENED_SUBTITLE = "How much each query attends to each key: a row for every query, a column for every key.";
const MOST_LINKS = 400;

/** A matrix should fit below its title. */
const roomForMatrix = () => Math.max(360, Math.min(620, window.innerHeight - 400));

/** @type {{[kind: string]: string}} */
const KIND_TITLES = { self: "self-attention", masked: "masked self-attention", cross: "cross-attention" };

const FEW_LAYERS = 12; // whose thumbnails are asked for at once; those of more layers, when they come into view

/** @type {import("./types.js").View} */
export const HEADS_VIEW = {
  id: "heads",
  title: "All heads",
  subtitle: "A map for every layer and head: queries down, keys across. Open one to read it.",
  needsRecord: true,
  unavailable: (run, record) =>
    !run.has_attention || (record && !record.layers.length) ? `${run.name} is a ${run.family}: it has no attention to show` : "",
  mount: mountHeads,
};

/**
 * @param {HTMLElement} root
 * @param {App} app
 */
function mountHeads(root, app) {
  /** @type {AttentionRecord | null} */
  let drawn = null;
  /** @type {Opened | null} */
  let opened = null;
  let closeDetail = () => {};
  const grid = el("div", { class: "heads-grid stack" });
  const detail = el("div", { class: "heads-detail" });
  root.append(grid, detail);
  /** @type {(() => void)[]} */
  let repaint = [];
  /** @type {IntersectionObserver | null} */
  let watcher = null;
  let scrollBefore = 0;
  app.on("run", () => app.describe("heads")); // another one may have no heads
  onThemeChange(() => repaint.forEach((paint) => paint()));

  /** @param {Opened} what */
  function open(what) {
    if (!opened) scrollBefore = window.scrollY;
    opened = what;
    if (what.kind === "head") app.select({ layer: what.layer.index, head: what.head });
    show();
    /** @type {HTMLElement | null} */ (detail.querySelector("[data-title]"))?.focus({ preventScroll: true });
  }

  function close() {
    const last = opened;
    opened = null;
    show();
    window.scrollTo({ top: scrollBefore });
    if (last?.kind === "head")
      /** @type {HTMLElement | null} */ (grid.querySelector(`[data-head="${last.layer.index}-${last.head}"]`))?.focus({
        preventScroll: true,
      });
  }

  function show() {
    closeDetail();
    closeDetail = () => {};
    app.describe("heads", opened ? OPENED_SUBTITLE : undefined);
    grid.hidden = opened !== null;
    detail.hidden = opened === null;
    setChildren(detail);
    if (opened && app.record) closeDetail = drawDetail(detail, app, app.record, opened, open, close);
  }

  function drawGrid() {
    const record = app.record;
    if (!record) return;
    watcher?.disconnect();
    repaint = [];
    /** @type {Map<Element, () => void>} */
    const waiting = new Map();
    const observer = (watcher = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) {
          if (!entry.isIntersecting) continue;
          observer.unobserve(entry.target);
          waiting.get(entry.target)?.();
        }
      },
      { rootMargin: "300px" },
    ));
    const groups = groupLayers(record.layers);
    const few = groups.length > 1 && record.layers.every((layer) => layer.heads <= 6);
    grid.classList.toggle("heads-few", few); // groups side by side
    grid.classList.toggle("heads-large", groups.length === 1 && record.layers.every((layer) => layer.heads <= 5));
    const atOnce = record.layers.length <= FEW_LAYERS; // so that a print or a picture of the whole page has them all
    setChildren(
      grid,
      el(
        "div",
        { class: "heads-bar" },
        el("p", { class: "hint" }, headCount(record)),
        legend({ title: "weight", high: "largest weight in each map" }),
      ),
      ...groups.map((group) =>
        drawGroup(
          app,
          record,
          group,
          open,
          (node, paint) => {
            if (atOnce) return paint();
            waiting.set(node, paint);
            observer.observe(node);
          },
          repaint,
        ),
      ),
    );
  }

  root.addEventListener("keydown", (event) => {
    const inField =
      event.target instanceof Element &&
      event.target.closest("input, select, textarea, .heatmap-scroll, .links-scroll, canvas, .words-line");
    if (!opened) return;
    if (event.key === "Escape") close();
    else if (!inField && (event.key === "ArrowLeft" || event.key === "ArrowRight") && app.record) {
      const all = everyHead(app.record);
      const at = all.findIndex((one) => sameHead(one, opened));
      const next = all[at + (event.key === "ArrowRight" ? 1 : -1)];
      if (at >= 0 && next) open(next);
    }
  });

  return {
    update() {
      if (!app.record) return;
      if (app.record !== drawn) {
        drawn = app.record;
        opened = opened?.kind === "head" ? sameInNewRecord(opened, app.record) : null;
        drawGrid();
        show();
      }
    },
  };
}

/** @param {AttentionRecord} record */
function headCount(record) {
  const heads = record.layers.reduce((sum, layer) => sum + layer.heads, 0);
  const layers = record.layers.length;
  const count = `${groupedCount(heads)} ${heads === 1 ? "head" : "heads"} in ${layers} attention ${layers === 1 ? "block" : "blocks"}.`;
  const label = record.layers.flatMap((layer) => layer.labels)[0];
  if (!label) return count;
  const share = percent(label.share);
  return `${count} A label names where a head looks: “${label.label} ${share}” means that for ${share} of the queries the strongest weight is on the ${label.label}.`;
}

/**
 * @param {LayerInfo[]} layers
 * @returns {HeadGroup[]}
 */
function groupLayers(layers) {
  /** @type {{[key: string]: HeadGroup}} */
  const groups = {};
  for (const layer of layers) {
    const key = `${layer.stack}/${layer.kind}`;
    const name = [layer.stack, KIND_TITLES[layer.kind]].filter(Boolean).join(" ");
    groups[key] ??= { title: name.charAt(0).toUpperCase() + name.slice(1), stack: layer.stack, layers: [] };
    groups[key].layers.push(layer);
  }
  return Object.values(groups);
}

/**
 * The same layer and head of another record of the same model.
 * @param {Opened & {kind: "head"}} opened
 * @param {AttentionRecord} record
 * @returns {Opened | null}
 */
function sameInNewRecord(opened, record) {
  const layer = record.layers[opened.layer.index];
  return layer && layer.name === opened.layer.name && (opened.head === "mean" || opened.head < layer.heads)
    ? { kind: "head", layer, head: opened.head }
    : null;
}

/**
 * @param {AttentionRecord} record
 * @returns {(Opened & {kind: "head"})[]}
 */
function everyHead(record) {
  return record.layers.flatMap((layer) =>
    Array.from({ length: layer.heads }, (_, head) => ({ kind: /** @type {"head"} */ ("head"), layer, head })),
  );
}

/**
 * @param {Opened} one
 * @param {Opened | null} other
 */
function sameHead(one, other) {
  return one.kind === "head" && other?.kind === "head" && one.layer.index === other.layer.index && one.head === other.head;
}

/**
 * @param {App} app
 * @param {AttentionRecord} record
 * @param {HeadGroup} group
 * @param {(what: Opened) => void} open
 * @param {(node: Element, paint: () => void) => void} whenVisible
 * @param {(() => void)[]} repaint
 */
function drawGroup(app, record, group, open, whenVisible, repaint) {
  const rows = group.layers.map((layer, number) => {
    const heads = el("div", { class: "head-row-heads", style: { "--heads": layer.heads + (layer.heads > 1 ? 1 : 0) } });
    const row = el(
      "div",
      { class: "head-row" },
      el("h4", { class: "head-row-title", title: `${layer.title} (${layer.name})` }, group.layers.length > 1 ? `Layer ${number + 1}` : "Heads"),
      heads,
    );
    const cells = Array.from({ length: layer.heads }, (_, head) => headButton(layer, head, open));
    if (layer.heads > 1) cells.push(headButton(layer, "mean", open));
    heads.append(...cells.map((cell) => cell.node));
    const load = async () => {
      setChildren(heads, ...cells.map((cell) => cell.node));
      try {
        /** @type {Thumbnails} */
        const thumbnails = await app.get(`/records/${record.id}/layers/${layer.index}/thumbnails`);
        const maps = thumbnails.heads.map((head) => decodeBytes(head.cells));
        if (layer.heads > 1)
          maps.push(
            meanThumbnail(
              maps,
              thumbnails.heads.map((head) => head.max),
            ),
          );
        const paint = () =>
          cells.forEach((cell, index) =>
            paintThumbnail(cell.canvas, maps[index], thumbnails.rows, thumbnails.columns, layer.kind === "masked"),
          );
        repaint.push(paint);
        paint();
      } catch (error) {
        const text = error instanceof Error ? error.message : String(error);
        setChildren(
          heads,
          el(
            "div",
            { class: "head-row-error", role: "alert" },
            el("p", { class: "hint" }, text),
            button({ label: "Try again", kind: "quiet", onClick: load }),
          ),
        );
      }
    };
    whenVisible(row, load);
    return row;
  });
  const extras = el("div", { class: "head-extras" });
  const oneShape = new Set(group.layers.map((layer) => `${layer.queries}/${layer.keys}`)).size === 1;
  if (group.layers.length > 1 && oneShape && isSmall(app, group.layers[0])) {
    extras.append(button({ label: "Mean of all layers", title: "The mean of all layers and heads", onClick: () => open({ kind: "layers", group }) }));
  }
  if (
    group.layers[0].kind !== "cross" &&
    oneShape &&
    group.layers.length > 1 &&
    !group.layers.some((layer) => layer.windowed) &&
    isSmall(app, group.layers[0])
  ) {
    extras.append(
      button({
        label: "Rollout",
        title: "How much of each token reaches each other through all layers (Abnar and Zuidema 2020)",
        onClick: () => open({ kind: "rollout", group }),
      }),
    );
  }
  const { rows: queries, columns: keys } = layerShape(app, group.layers[0]);
  const size = oneShape ? `${groupedCount(queries)} × ${groupedCount(keys)}` : "";
  return el(
    "section",
    { class: "card head-group" },
    el("div", { class: "head-group-title" }, el("h3", {}, group.title, el("span", { class: "matrix-size" }, size)), extras),
    ...rows,
  );
}

/**
 * @param {LayerInfo} layer
 * @param {number | "mean"} head
 * @param {(what: Opened) => void} open
 */
function headButton(layer, head, open) {
  const canvas = el("canvas", { class: "thumb-canvas", width: "1", height: "1", "aria-hidden": "true" });
  const labels = head === "mean" ? [] : layer.labels.filter((label) => label.head === head);
  const node = el(
    "button",
    {
      type: "button",
      class: "thumb",
      "data-head": `${layer.index}-${head}`,
      on: { click: () => open({ kind: "head", layer, head }) },
    },
    canvas,
    el(
      "span",
      { class: "thumb-name" },
      el("span", { class: "visually-hidden" }, `${layer.title}, ${head === "mean" ? "" : "head "}`),
      head === "mean" ? "mean of heads" : String(head + 1),
    ),
    ...labels.slice(0, 1).map((label) => el("span", { class: "chip" }, label.label, " ", el("b", {}, percent(label.share)))),
  );
  return { node, canvas };
}

/**
 * @param {Uint8Array[]} maps
 * @param {number[]} most
 */
function meanThumbnail(maps, most) {
  const sums = new Float32Array(maps[0].length);
  maps.forEach((map, head) => map.forEach((cell, index) => (sums[index] += cell * most[head])));
  const highest = largest(sums) || 1;
  return Uint8Array.from(sums, (sum) => (255 * sum) / highest);
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Uint8Array} cells
 * @param {number} rows
 * @param {number} columns
 * @param {boolean} masked  whether the upper right half is empty
 */
function paintThumbnail(canvas, cells, rows, columns, masked) {
  canvas.width = columns;
  canvas.height = rows;
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const data = pen.createImageData(columns, rows);
  const table = rampTable();
  for (let cell = 0; cell < rows * columns; cell += 1) {
    if (masked && rows === columns && cell % columns > Math.floor(cell / columns)) continue; // transparent: the hatching shows
    data.data.set(table.subarray(4 * cells[cell], 4 * cells[cell] + 4), 4 * cell);
  }
  pen.putImageData(data, 0, 0);
  canvas.classList.toggle("hatched", masked);
  canvas.classList.add("painted");
}

/**
 * A head, a mean or a rollout, large.
 * @param {HTMLElement} root
 * @param {App} app
 * @param {AttentionRecord} record
 * @param {Opened} opened
 * @param {(what: Opened) => void} open
 * @param {() => void} close
 * @returns {() => void}  stops what it started
 */
function drawDetail(root, app, record, opened, open, close) {
  const layer = opened.kind === "head" ? opened.layer : opened.group.layers[0];
  const queryAxis = record.axes[layer.queries];
  const keyAxis = record.axes[layer.keys];
  const { rows, columns } = layerShape(app, layer);
  const title = detailTitle(opened);
  let stopped = false;
  /** @type {(() => void)[]} */
  const stops = [];

  // title, neighbours, files
  const all = everyHead(record);
  const at = all.findIndex((one) => sameHead(one, opened));
  /** @param {Opened & {kind: "head"} | undefined} one  beside the head that is opened */
  const shortName = (one) => (!one ? "" : one.layer === layer ? `Head ${Number(one.head) + 1}` : one.layer.index < layer.index ? "Layer before" : "Next layer");
  const previous = button({ label: `← ${shortName(all[at - 1])}`, title: "Previous head (left arrow key)", onClick: () => open(all[at - 1]) });
  const next = button({ label: `${shortName(all[at + 1])} →`, title: "Next head (right arrow key)", onClick: () => open(all[at + 1]) });
  previous.setAttribute("aria-label", `Previous head: ${shortName(all[at - 1])}`);
  next.setAttribute("aria-label", `Next head: ${shortName(all[at + 1])}`);
  previous.hidden = at <= 0;
  next.hidden = at < 0 || at === all.length - 1;
  const labels = opened.kind === "head" ? layer.labels.filter((label) => label.head === opened.head) : [];
  const failure = el("div");
  const bar = el(
    "div",
    { class: "detail-bar" },
    button({ label: "← Back to all heads", onClick: close, title: "Back (Escape)" }),
    el("h3", { "data-title": "", tabindex: "-1" }, title),
    ...labels.map((label) => el("span", { class: "chip" }, label.label, " ", el("b", {}, percent(label.share)))),
    el("span", { class: "detail-step" }, opened.kind === "head" && previous, opened.kind === "head" && next),
  );
  const body = el("div", { class: "detail-body" });
  const links = el("div", { class: "toolbar detail-foot" });
  setChildren(root, bar, failure, body, links);

  /** @param {unknown} error */
  const fail = (error) =>
    setChildren(
      failure,
      placard({
        kind: "error",
        title: "These weights did not load",
        text: error instanceof Error ? error.message : String(error),
      }),
    );

  if (opened.kind === "head") {
    const chosen = { layer: layer.index, head: opened.head };
    if (!app.embedded) {
      links.append(el("span", { class: "control-label" }, "Save as"));
      for (const format of ["svg", "pdf", "png", "json"]) {
        const name = `${record.run}-${layer.name}-${opened.head === "mean" ? "mean" : `head${opened.head + 1}`}.${format}`;
        links.append(
          button({
            label: format.toUpperCase(),
            onClick: () =>
              app
                .download(`/records/${record.id}/drawing?layer=${layer.index}&head=${opened.head}&format=${format}`, name)
                .catch(fail),
          }),
        );
      }
    }
    links.append(
      el("span", { class: "spacer" }),
      button({ label: "See it step by step", kind: "quiet", onClick: () => app.open("steps", chosen) }),
      button({ label: opened.head === "mean" || layer.heads === 1 ? "Switch this layer off" : "Switch this head off", kind: "quiet", onClick: () => app.open("whatif", chosen) }),
    );
  }

  // weights: the whole matrix if it is small, else tiles as they come into sight
  const whole = opened.kind !== "head" || isSmall(app, layer) ? loadOpened(app, record, opened) : null;
  const masked =
    layer.kind === "masked" && layer.queries === layer.keys
      ? (/** @type {number} */ row, /** @type {number} */ column) => column > row
      : undefined;

  if (queryAxis.kind !== "tokens" || keyAxis.kind !== "tokens") drawPlaces();
  drawMatrix();
  if (queryAxis.kind === "tokens" && keyAxis.kind === "tokens") drawLinks();

  function drawMatrix() {
    const host = el(
      "section",
      { class: "card detail-matrix" },
      el(
        "div",
        { class: "detail-heading" },
        el("h4", {}, "Matrix"),
        el("p", { class: "hint" }, `${groupedCount(rows)} queries × ${groupedCount(columns)} keys`),
        opened.kind === "head" ? el("p", { class: "hint" }, watchName(opened)) : null,
      ),
    );
    const options = {
      title,
      rowLabels: labelsOfAxis(queryAxis),
      columnLabels: labelsOfAxis(keyAxis),
      masked,
      maxHeight: roomForMatrix(),
    };
    /** @param {import("./parts/heatmap.js").Heatmap} map */
    const attach = (map) => {
      if (stopped) return map.destroy();
      stops.push(map.destroy);
      const zoom = slider({
        label: "Cell size",
        min: 0,
        max: 40,
        value: 0,
        format: (value) => (value ? `${value} px` : "fit"),
        onInput: (value) => map.zoom(value || null),
      });
      host.append(map.node, rows > 16 || columns > 16 ? el("div", { class: "toolbar" }, zoom.node) : "");
    };
    if (whole) {
      whole.then((matrix) => attach(heatmap({ ...options, values: matrix, max: largest(matrix) || 1 })), fail);
    } else if (opened.kind === "head") {
      const head = opened.head;
      app.get(`/records/${record.id}/layers/${layer.index}/thumbnails`).then((/** @type {Thumbnails} */ thumbnails) => {
        const most = thumbnails.heads.map((one) => one.max);
        const max = head === "mean" ? largest(most) : most[head];
        attach(heatmap({ ...options, max, loadTile: (top, left) => loadWeightTile(app, layer, head, top, left) }));
      }, fail);
    }
    body.append(host);
  }

  function drawLinks() {
    const count = el("p", { class: "hint" });
    const host = el(
      "section",
      { class: "card detail-links" },
      el("div", { class: "detail-heading" }, el("h4", {}, "Links"), count),
    );
    body.append(host);
    whole?.then((matrix) => {
      if (stopped) return;
      const start = columns <= 40 ? 0.1 : 0.05;
      const view = linkColumns({ title, queries: queryAxis.labels, keys: keyAxis.labels, links: [], maxHeight: roomForMatrix() });
      const draw = (/** @type {number} */ threshold) => {
        let above = 0;
        for (const weight of matrix) if (weight >= threshold && weight > 0) above += 1;
        const strong = strongestLinks(matrix, columns, MOST_LINKS, threshold);
        count.textContent =
          above > strong.length
            ? `The ${groupedCount(strong.length)} strongest of ${groupedCount(above)} links`
            : `${groupedCount(above)} ${above === 1 ? "link" : "links"}`;
        view.update({ links: strong });
      };
      const threshold = slider({
        label: "Show links of at least",
        min: 0,
        max: 100,
        value: Math.round(100 * start),
        format: (value) => `${value} %`,
        onInput: (value) => draw(value / 100),
      });
      host.append(view.node, el("div", { class: "toolbar" }, threshold.node));
      draw(threshold.value / 100);
      stops.push(view.destroy);
    }, fail);
  }

  /** Pictures and sounds: choose a query, see its keys. */
  function drawPlaces() {
    const host = el("section", { class: keyAxis.kind === "grid" ? "card detail-picture" : "card detail-sound" });
    const hint = el("p", { class: "hint" });
    const output = el("output", { class: "answer-readout" });
    let query = Math.min(app.selection.query ?? defaultQuery(queryAxis), rows - 1);
    /** @type {(row: Float32Array) => void} */
    let showKeys = () => {};
    /** @type {(query: number) => void} */
    let markQuery = () => {};

    /** @param {number} position */
    const chooseQuery = async (position) => {
      query = position;
      app.select({ query });
      markQuery(query);
      try {
        const row = whole
          ? matrixRow(await whole, query, columns)
          : await loadRow(app, layer, opened.kind === "head" ? opened.head : "mean", query);
        if (stopped || query !== position) return;
        showKeys(row);
        const best = row.indexOf(largest(row));
        setChildren(
          output,
          el("b", {}, positionName(queryAxis, query)),
          " attended most to ",
          el("b", {}, positionName(keyAxis, best)),
          `: ${percent(row[best])}`,
        );
        output.setAttribute("data-row", String(query));
      } catch (error) {
        fail(error);
      }
    };

    if (keyAxis.kind === "grid" && keyAxis.grid && record.input.picture) {
      const [keyRows, keyColumns] = keyAxis.grid;
      const before = keyAxis.size - keyRows * keyColumns;
      const [queryRows, queryColumns] = queryAxis.grid ?? [1, 1];
      const queriesBefore = queryAxis.size - queryRows * queryColumns;
      const onGrid = queryAxis.kind === "grid";
      const overlay = pictureOverlay({
        picture: record.input.picture,
        region: record.input.region,
        label: onGrid ? "Choose a place of the picture as the query" : "The picture, with attention over it",
        onPick: onGrid ? (place) => chooseQuery(queriesBefore + place) : undefined,
      });
      stops.push(overlay.destroy);
      if (onGrid) overlay.setGrid(queryRows, queryColumns);
      showKeys = (row) => {
        const places = row.slice(before);
        overlay.show(places, keyRows, keyColumns, layer.windowed ? places.filter((weight) => weight > 0).length : places.length);
      };
      markQuery = (position) => overlay.mark(onGrid ? position - queriesBefore : -1);
      hint.textContent = onGrid
        ? "Click a place of the picture, or move with the arrow keys: its keys light up."
        : "Choose a word: where it looked lights up.";
      const side = el("div", { class: "answer-side" }, hint);
      if (onGrid && queriesBefore)
        side.append(el("div", {}, button({ label: "Query: class token", onClick: () => chooseQuery(0) })));
      if (!onGrid) side.append(queryWords());
      side.append(
        output,
        legend({ title: "times uniform attention", low: "1× or less", high: `${MOST_TIMES}× or more`, onPicture: true }),
      );
      host.append(el("div", { class: "answer-stage answer-grid" }, overlay.node, side));
    } else if (keyAxis.kind === "frames" && record.input.spectrogram) {
      const sound = spectrogramView({ spectrogram: record.input.spectrogram, label: "Spectrogram", onTime: undefined });
      stops.push(sound.destroy);
      showKeys = (row) => sound.show(row, keyAxis.times);
      host.append(sound.node);
      if (queryAxis.kind === "frames") {
        const chooser = slider({
          label: "Query",
          min: 0,
          max: rows - 1,
          value: query,
          format: (value) => `${(queryAxis.times[value] ?? 0).toFixed(2)} s`,
          onInput: (value) => chooseQuery(value),
        });
        host.append(chooser.node);
      } else {
        host.append(queryWords());
      }
      host.append(output);
    } else {
      return;
    }

    function queryWords() {
      const words = wordRow({
        label: "Query",
        axis: queryAxis,
        onHover: (unit) => unit && chooseQuery(unit.start),
        onPick: (unit) => chooseQuery(unit.start),
      });
      const mark = markQuery;
      markQuery = (position) => {
        mark(position);
        words.mark(words.units().find((unit) => unit.start <= position && position < unit.end) ?? null, "current");
      };
      return words.node;
    }

    body.append(host);
    chooseQuery(query);
  }

  return () => {
    stopped = true;
    stops.forEach((stop) => stop());
  };
}

/** The middle of a picture says more than its corner. @param {import("./types.js").Axis} axis */
function defaultQuery(axis) {
  if (axis.kind !== "grid" || !axis.grid) return 0;
  const [rows, columns] = axis.grid;
  return axis.size - rows * columns + Math.floor(rows / 2) * columns + Math.floor(columns / 2);
}

/** How `regard.watch` names it: layers and heads are counted from 1 in the page, from 0 in Python. @param {Opened & {kind: "head"}} opened */
function watchName({ layer, head }) {
  const at = head === "mean" || layer.heads === 1 ? "" : `, head ${head}`;
  return `In Python, which counts from 0: ${layer.name}${at}`;
}

/** @param {Opened} opened */
function detailTitle(opened) {
  if (opened.kind === "rollout") return `${opened.group.title}: attention rollout`;
  if (opened.kind === "layers") return `${opened.group.title}: mean of ${opened.group.layers.length} layers`;
  const name = opened.layer.title.charAt(0).toUpperCase() + opened.layer.title.slice(1);
  if (opened.layer.heads === 1) return name;
  return opened.head === "mean"
    ? `${name}, mean of ${opened.layer.heads} heads`
    : `${name}, head ${opened.head + 1} of ${opened.layer.heads}`;
}

/**
 * @param {App} app
 * @param {AttentionRecord} record
 * @param {Opened} opened
 * @returns {Promise<Float32Array>}
 */
async function loadOpened(app, record, opened) {
  if (opened.kind === "head") return loadMatrix(app, opened.layer, opened.head);
  if (opened.kind === "layers")
    return meanMatrix(await Promise.all(opened.group.layers.map((layer) => loadMatrix(app, layer, "mean"))));
  const rollout = await app.get(`/records/${record.id}/rollout?stack=${encodeURIComponent(opened.group.stack)}`);
  return decodeWeights(rollout.weights);
}
