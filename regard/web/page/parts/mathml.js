/** Formulas as MathML: `math(mi("q"), mo("·"), msup(mi("k"), mi("T")))`. */

const MATHML_NAMESPACE = "http://www.w3.org/1998/Math/MathML";

/**
 * @param {string} tag
 * @param {{[name: string]: string}} attributes
 * @param {...(Element | string)} children
 * @returns {MathMLElement}
 */
export function mathElement(tag, attributes, ...children) {
  const node = /** @type {MathMLElement} */ (document.createElementNS(MATHML_NAMESPACE, tag));
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** A formula within a line. @param {...Element} children */
export const math = (...children) => mathElement("math", {}, ...children);
/** A formula on a line of its own. @param {...Element} children */
export const mathBlock = (...children) => mathElement("math", { display: "block" }, ...children);
/** An identifier. @param {string} text */
export const mi = (text) => mathElement("mi", {}, text);
/** A function or a word, upright. @param {string} text */
export const mtext = (text) => mathElement("mi", { mathvariant: "normal" }, text);
/** An operator. @param {string} text */
export const mo = (text) => mathElement("mo", {}, text);
/** A number. @param {string | number} value */
export const mn = (value) => mathElement("mn", {}, String(value));
/** @param {...Element} children */
export const mrow = (...children) => mathElement("mrow", {}, ...children);
/** @param {Element} base @param {Element} above */
export const msup = (base, above) => mathElement("msup", {}, base, above);
/** @param {Element} above @param {Element} below */
export const mfrac = (above, below) => mathElement("mfrac", {}, above, below);
/** A square root.  `<msqrt>` draws none where no font for formulas is installed. @param {...Element} children */
export const msqrt = (...children) => mrow(mathElement("mo", { stretchy: "false" }, "√"), mathElement("mrow", { class: "radicand" }, ...children));
/** In parentheses. @param {...Element} children */
export const mparen = (...children) => mrow(mo("("), ...children, mo(")"));
