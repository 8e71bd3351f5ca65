"""The explorer page as a person uses it: choose a run, give an input, open a view, read a table."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

VIEWS = ("answer", "heads", "steps", "whatif", "decoding", "learning")
WORK = Path(__file__).with_name("page_work.js")  # that every page of `ExplorerPage` begins with
READ_CELLS = """(node => [...node.querySelectorAll("tbody tr")].map(row => [...row.querySelectorAll("td")].map(
  cell => cell.dataset.weight ?? cell.dataset.value ?? cell.textContent)))"""


class ExplorerPage:
    """A page that is open at the address of a server, or at an exported file."""

    def __init__(self, page: "Page", address: str, view: str = ""):
        self.page = page
        page.goto(f"{address}#{view}" if view else address)
        page.locator("html[data-ready=true]").wait_for()

    def choose(self, run: str) -> None:
        """Choose a run by its name."""
        self.page.get_by_label("Run", exact=True).select_option(value=run)

    def ask(self, given: str | Path) -> dict[str, Any]:
        """Type a text or choose a file, and wait for the answer: the record as the server sent it."""
        self.send(given)
        self.settled()
        return json.loads(self.page.evaluate("streamed").splitlines()[-1])["record"]

    def send(self, given: str | Path) -> None:
        """Give an input, and wait until the server has answered."""
        with self.page.expect_response(lambda response: "/inspect" in response.url):
            if isinstance(given, Path):
                self.page.locator("#input-file").set_input_files(given)
            else:
                self.page.locator("textarea").fill(given)
                self.page.keyboard.press("Enter")
        self.page.locator("#composer[aria-busy=false]").wait_for()

    def settled(self) -> None:
        """Wait until no request is under way, nothing is shown as loading or busy, and all is drawn."""
        unfinished = self.page.evaluate("settled()")
        assert not unfinished, f"never done: {unfinished}"

    def open(self, view: str) -> "Locator":
        """Open a view by its tab; its panel."""
        tab = self.page.locator(f"#tab-{view}")
        tab.click()
        panel = self.page.locator(f"#panel-{view}")
        panel.wait_for()
        self.settled()
        return panel


def read_table(table: "Locator") -> Tensor:
    """The numbers of a table of weights, or of a small matrix: `data-weight` or `data-value` of its cells, else their text."""
    return to_numbers(table.evaluate(READ_CELLS))


def to_numbers(rows: list[list[str]]) -> Tensor:
    """Cells as they were read by `READ_CELLS`."""
    return torch.tensor([[float(cell.replace("−", "-").replace("∞", "inf")) for cell in row] for row in rows])


def open_table(heatmap: "Locator") -> "Locator":
    """“Show as table” of a heat map, opened and complete."""
    details = heatmap.locator("details").filter(has_text="Show as table").first
    if not details.evaluate("node => node.open"):
        details.locator("summary").first.click()
    table = details.locator("table.weights-table")
    table.wait_for()
    table.locator("td", has_text="…").first.wait_for(state="detached")
    return table


def tokens_table(panel: "Locator") -> Tensor:
    """The table of the answer with a row for each token; the words are joined again."""
    tokens = panel.get_by_role("switch", name="Show tokens")
    if tokens.count():
        tokens.check(force=True)
    found = read_table(open_table(panel))
    if tokens.count():
        tokens.uncheck(force=True)
    return found


def forget_records(app: Any) -> None:
    """Empty the store of a server's app, as many later records would."""
    store = app.state.serving.explorer.store
    with store._lock:
        store._records.clear()
        store.bytes = 0
