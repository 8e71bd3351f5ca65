/** A small matrix whose numbers are written in its cells, coloured by their size: for step-by-step arithmetic. */

import { el, readableToken, setChildren } from "./dom.js";
import { inkCss, rampCss } from "./colour.js";
import { fadeEdges } from "./fade.js";
import { fixedNumber, largest } from "./numbers.js";

/**
 * @typedef {object} MatrixOptions
 * @property {string} title  said to screen readers, and shown above
 * @property {Float32Array | number[]} values  rows · columns
 * @property {number} rows
 * @property {number} columns
 * @property {string[]} [rowLabels]
 * @property {string[]} [columnLabels]
 * @property {boolean} [turned]  column labels read upwards, which takes less width
 * @property {number} [digits]
 * @property {number} [max]  the size of the last colour; the largest of the matrix if not given
 * @property {number} [shownColumns]  of a wide matrix only the first ones are shown, with a note
 * @property {number} [row]  the row that is emphasised; the others fade
 * @property {(row: number, column: number) => boolean} [masked]
 * @property {(row: number) => void} [onRow]  rows become clickable
 */

/**
 * A real table; numbers below zero are told apart by their sign.  `update` redraws it with other options.
 * @param {MatrixOptions} initial
 * @returns {{node: HTMLElement, update: (changes: Partial<MatrixOptions>) => void}}
 */
export function matrixView(initial) {
  let options = { ...initial };
  const node = el("figure", { class: "matrix" });

  function draw() {
    const { title, values, rows, columns, rowLabels, columnLabels, digits = 2, masked, row: chosen, onRow } = options;
    const shown = Math.min(columns, options.shownColumns ?? columns);
    const finite = Array.from(values, (value) => (Number.isFinite(value) ? Math.abs(value) : 0));
    const max = options.max ?? (largest(finite) || 1);
    const table = el("table", { "aria-label": title });
    if (columnLabels) {
      const head = el("tr", {}, rowLabels && el("td", {}));
      for (let column = 0; column < shown; column += 1)
        head.append(el("th", { scope: "col" }, el("span", {}, readableToken(columnLabels[column]))));
      if (shown < columns) head.append(el("th", { scope: "col" }, "…"));
      table.append(el("thead", { class: options.turned ? "turned" : "" }, head));
    }
    const body = el("tbody");
    for (let row = 0; row < rows; row += 1) {
      const line = el("tr", { class: chosen === undefined ? "" : row === chosen ? "chosen" : "faded" });
      if (rowLabels) {
        const name = readableToken(rowLabels[row]);
        const label = onRow
          ? el("button", { type: "button", "aria-pressed": String(row === chosen), on: { click: () => onRow(row) } }, name)
          : name;
        line.append(el("th", { scope: "row" }, label));
      }
      for (let column = 0; column < shown; column += 1) {
        const value = values[row * columns + column];
        if (masked?.(row, column)) {
          line.append(el("td", { class: "masked", title: "masked" }, Number.isFinite(value) ? fixedNumber(value, digits) : "−∞"));
          continue;
        }
        const share = Number.isFinite(value) ? Math.abs(value) / max : 0;
        const style = { background: rampCss(0.85 * share), color: inkCss(0.85 * share) };
        line.append(el("td", { style, "data-value": String(value) }, fixedNumber(value, digits)));
      }
      if (shown < columns) line.append(el("td", { class: "more", "aria-label": `and ${columns - shown} more` }, "…"));
      body.append(line);
    }
    table.append(body);
    const size = el("span", { class: "matrix-size" }, `${rows} × ${columns}`);
    setChildren(node, el("figcaption", {}, el("span", {}, title), size), fadeEdges(el("div", { class: "table-scroll" }, table), table));
  }

  draw();
  return {
    node,
    update(changes) {
      options = { ...options, ...changes };
      draw();
    },
  };
}
