/** Elements without HTML strings: text is always text, so that what a user or a model wrote cannot become markup. */

/** @typedef {Node | string | null | undefined | false} Child */

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

/**
 * An HTML element.  Properties: attributes by name; `on` holds listeners; `style` an object of CSS properties, `--x` too;
 * true gives an empty attribute, false, null and undefined none.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {{[name: string]: any}} [properties]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  setProperties(node, properties);
  appendAll(node, children);
  return node;
}

/**
 * An SVG element; see `el`.
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {{[name: string]: any}} [properties]
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[Tag]}
 */
export function svg(tag, properties = {}, ...children) {
  const node = document.createElementNS(SVG_NAMESPACE, tag);
  setProperties(node, properties);
  appendAll(node, children);
  return node;
}

/**
 * @param {Element} node
 * @param {{[name: string]: any}} properties
 */
export function setProperties(node, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (name === "style" && typeof value === "object") {
      const style = /** @type {HTMLElement | SVGElement} */ (node).style;
      for (const [property, setting] of Object.entries(value)) style.setProperty(property, String(setting));
    } else if (value === true) {
      node.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, String(value));
    }
  }
}

/**
 * @param {Element} node
 * @param {Child[]} children
 */
function appendAll(node, children) {
  for (const child of children) if (child !== null && child !== undefined && child !== false) node.append(child);
}

/**
 * Put these in the place of everything inside `node`.
 * @param {Element} node
 * @param {...Child} children
 */
export function setChildren(node, ...children) {
  node.replaceChildren();
  appendAll(node, children);
}

let idCounter = 0;

/**
 * An id that no other element has, for labels.
 * @param {string} stem
 */
export function uniqueId(stem) {
  idCounter += 1;
  return `${stem}-${idCounter}`;
}

/**
 * Calls `draw` in the next animation frame, once however often it is asked.
 * @param {() => void} draw
 */
export function eachFrame(draw) {
  let pending = 0;
  return () => {
    if (!pending) {
      pending = requestAnimationFrame(() => {
        pending = 0;
        draw();
      });
    }
  };
}

/**
 * A token as people can read it: spaces and line ends get a sign, control characters that reorder text are shown by code.
 * @param {string} token
 */
export function readableToken(token) {
  if (token === "") return "∅";
  const shown = token
    .replaceAll("\n", "⏎")
    .replaceAll("\t", "⇥")
    .replace(/[\u0000-\u001f\u007f-\u009f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (letter) => {
      const code = letter.codePointAt(0) ?? 0;
      return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
    });
  return shown.trim() === "" ? "␣".repeat(shown.length) : shown;
}

/**
 * At most `length` letters, the last an ellipsis.
 * @param {string} text
 * @param {number} length
 */
export function shorten(text, length) {
  const letters = Array.from(text);
  return letters.length <= length ? text : `${letters.slice(0, length - 1).join("")}…`;
}
