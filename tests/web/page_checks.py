"""What holds for every view: readable contrast, a width that fits, names for controls, visible focus, no motion if unwanted.

The checks are JavaScript, in page_checks.js.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8").strip().removesuffix(";")


def check(page: "Page", what: str) -> Any:
    """What a function of page_checks.js returns."""
    return page.evaluate(f"() => {SCRIPT}.{what}()")


def tab_stops(page: "Page", most: int = 200) -> list[dict[str, Any]]:
    """What Tab visits from the start of the page, in order."""
    page.evaluate("document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex'); scrollTo(0, 0)")
    stops: list[dict[str, Any]] = []
    for _ in range(most):
        page.keyboard.press("Tab")
        stop = check(page, "focused")
        if stop is None or any(stop["stop"] == before["stop"] for before in stops):
            break
        stops.append(stop)
    return stops
