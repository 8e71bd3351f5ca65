"""Screenshots of the explorer's six views, light and dark, wide and on a phone, to be looked at.

    python benchmarks/screenshots.py runs/phrasebook "They do not want the old cats here" --out shots
    python benchmarks/screenshots.py runs/vit boot.png --out shots --views answer,heads
    python benchmarks/screenshots.py en-it "She gave me the book that I had asked for." --views answer --at-rest

The last one is docs/explorer.png, but for its margins.

Starts a server on a free port, opens Debian's Chromium through Playwright, and writes NAME-VIEW-light-wide.png and so on.  An
input that is the path of a file is sent as a file.
"""

import argparse
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from playwright.sync_api import Browser, Page, Request, sync_playwright

from regard.shipped import find_run
from regard.web.explorer import ServedRun
from regard.web.server import create_app

VIEWS = ("answer", "heads", "steps", "whatif", "decoding", "learning")
SIZES = {"wide": (1288, 900, 1.5), "phone": (360, 800, 2)}  # width, height, device pixels per CSS pixel
FIRST = {"answer": ".answer-stage .words:last-of-type [data-unit]", "heads": "[data-head]", "whatif": ".head-switch"}
FRAMES = "() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
NO_GUTTER = "html { scrollbar-gutter: auto !important }"  # a picture of the whole page has no scroll bar
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """The address of a server of one run."""
    # IPPROTO_TCP: asyncio sends small answers at once only on such sockets
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        server = uvicorn.Server(uvicorn.Config(create_app([ServedRun.open(folder)]), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


class Visit:
    """An open page, and the requests it waits for."""

    def __init__(self, page: Page, address: str):
        self.page = page
        self._waiting: set[Request] = set()
        page.on("request", lambda request: self._waiting.add(request))  # noqa: PLW0108  Playwright takes no built-in
        for event in ("requestfinished", "requestfailed"):
            page.on(event, lambda request: self._waiting.discard(request))  # noqa: PLW0108
        page.goto(address)
        page.locator("html[data-ready=true]").wait_for()
        page.add_style_tag(content=NO_GUTTER)

    def settle(self) -> None:
        """Wait until nothing is loading and the last frame is drawn."""
        self.page.locator("html[data-phase=idle]").wait_for()
        self.page.evaluate(FRAMES)
        while self._waiting:
            self.page.evaluate(FRAMES)
        self.page.evaluate(FRAMES)

    def shoot(self, file: Path) -> None:
        """A picture of the whole page, from its top, with nothing hovered or focused."""
        self.page.evaluate("() => { document.activeElement?.blur(); window.scrollTo(0, 0); }")
        self.page.mouse.move(0, 0)
        self.settle()
        self.page.screenshot(path=file, full_page=True)

    def inspect(self, what: str) -> None:
        """Give the input and wait for its record."""
        with self.page.expect_response(lambda response: "/inspect" in response.url):
            if Path(what).is_file():
                self.page.locator("#input-file").set_input_files(what)
            else:
                self.page.locator("textarea").first.fill(what)
                self.page.keyboard.press("Enter")
        self.page.locator("#composer[aria-busy=false]").wait_for()
        self.settle()

    def open(self, view: str, at_rest: bool) -> None:
        """Open a view and, unless its picture is to be that of a page at rest, do what a visitor would do first."""
        self.page.locator(f"#tab-{view}").click()
        self.settle()
        if at_rest:
            return
        found = self.page.locator(f"#panel-{view} {FIRST.get(view, '.none')}")
        if count := found.count():
            found.nth(count // 2).click()
            self.settle()


def shoot(browser: Browser, address: str, what: str, name: str, out: Path, views: list[str], at_rest: bool) -> None:
    """All pictures of one run."""
    for size, (width, height, ratio) in SIZES.items():
        for scheme in ("light", "dark"):
            phone = size == "phone"
            context = browser.new_context(viewport={"width": width, "height": height}, device_scale_factor=ratio, is_mobile=phone,
                                          has_touch=phone, color_scheme=scheme, reduced_motion="reduce")  # fmt: skip
            visit = Visit(context.new_page(), address)
            visit.inspect(what)
            for view in views:
                visit.open(view, at_rest)
                visit.shoot(out / f"{name}-{view}-{scheme}-{size}.png")
                if view == "heads":
                    visit.page.get_by_role("button", name="Back to all heads").click()
                    visit.settle()
                    visit.shoot(out / f"{name}-all-heads-{scheme}-{size}.png")
            context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=find_run, help="run folder, or a model that ships")
    parser.add_argument("input", help="a text, or the path of a picture or recording")
    parser.add_argument("--out", type=Path, default=Path("shots"), help="folder of the pictures")
    parser.add_argument("--views", default=",".join(VIEWS), help="names of views, separated by commas")
    parser.add_argument("--at-rest", action="store_true", help="nothing is chosen in the views")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with serve(options.run) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        shoot(browser, address, options.input, options.run.resolve().name, options.out, options.views.split(","), options.at_rest)
        browser.close()


if __name__ == "__main__":
    main()
