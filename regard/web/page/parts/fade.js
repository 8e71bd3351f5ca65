/** Fades the edge of a sideways scroller behind which there is more; style.css draws it over the content. */

/** Shared by all scrollers; it does not keep those alive that have left the page. */
const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const scroller = target.hasAttribute("data-fade") ? target : target.parentElement;
    if (scroller) mark(scroller);
  }
});

/** @param {Element} scroller */
function mark(scroller) {
  const hidden = scroller.scrollWidth - scroller.clientWidth;
  const left = hidden > 1 && scroller.scrollLeft > 1;
  const right = hidden > 1 && scroller.scrollLeft < hidden - 1;
  scroller.setAttribute("data-fade", [left && "left", right && "right"].filter(Boolean).join(" "));
}

/**
 * @template {HTMLElement} T
 * @param {T} scroller
 * @param {...Element} contents  whose size is watched, too
 * @returns {T}
 */
export function fadeEdges(scroller, ...contents) {
  scroller.setAttribute("data-fade", "");
  scroller.addEventListener("scroll", () => mark(scroller), { passive: true });
  for (const node of [scroller, ...contents]) sizes.observe(node);
  return scroller;
}
