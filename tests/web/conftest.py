"""Browser tests: tiny runs, a real server on a free port, and a page that notices every request and every error."""

import os
import re
import shutil
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from explorer_page import WORK, ExplorerPage

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from regard.tasks.predictors import Predictor

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
HOW_TO = "install Chromium: apt install chromium; pip install playwright"
PATIENCE = 30_000  # milliseconds after which something that was awaited will never come


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run folder of each family by its name, and `learner`, which has checkpoints."""
    from tiny_runs import train_learner, write_runs

    home = tmp_path_factory.mktemp("web-runs")
    return {**write_runs(home), "learner": train_learner(home / "learner")}


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files to give to the page, by name."""
    from tiny_runs import write_inputs

    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def predictors(runs: dict[str, Path]) -> dict[str, "Predictor"]:
    """The model of each run, loaded once more."""
    import regard

    return {name: regard.load(folder) for name, folder in runs.items()}


def serve(app: object) -> Iterator[str]:
    """The address of an app that is served as `regard serve` does, on a free port, until the generator is closed."""
    import uvicorn

    from regard.cli.serve import server_config

    # IPPROTO_TCP: asyncio sends small answers at once only on such sockets; else each waits 40 ms for the client's late ACK
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        server = uvicorn.Server(server_config(app))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        give_up = time.monotonic() + PATIENCE / 1000
        while not server.started:
            assert thread.is_alive(), "the server stopped before it had started"
            assert time.monotonic() < give_up, "the server does not start"
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE / 1000)
            assert not thread.is_alive(), "the server does not stop"


@pytest.fixture(scope="module")
def app(runs: dict[str, Path]) -> object:
    """The server's app, of all tiny runs."""
    from regard.web.explorer import ServedRun
    from regard.web.server import create_app

    return create_app([ServedRun.open(folder, name) for name, folder in runs.items()])


@pytest.fixture(scope="module")
def address(app: object) -> Iterator[str]:
    """The address of a server of all tiny runs."""
    yield from serve(app)


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Debian's Chromium.  Per module: Playwright's event loop would be in the way of other tests of the same process."""
    program = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        if os.environ.get("REGARD_CI"):
            pytest.fail(HOW_TO)
        pytest.skip(HOW_TO)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@dataclass
class PageLog:
    """What a page asked for and what went wrong in it; a test adds the errors that it provokes to `expected`."""

    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)  # patterns

    def follow(self, page: "Page") -> None:
        """Note all requests and errors of a page."""
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda line: self.errors.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(f"uncaught: {error}"))

    def check(self) -> None:
        """Fail if a request left this machine or an error was not expected."""
        outside = [url for url in self.requests if urlsplit(url).hostname not in (None, "127.0.0.1")]
        assert not outside, f"requests left 127.0.0.1: {outside}"
        errors = [error for error in self.errors if not any(re.search(pattern, error) for pattern in self.expected)]
        assert not errors, errors


@pytest.fixture
def log() -> PageLog:
    """What happened in the pages of this test."""
    return PageLog()


class Pages:
    """Empty pages, each in a context of its own; those that a test has left are used again.

    What a page costs is its process and its context.  The explorer keeps nothing there, so a test finds what it does not set
    itself as in a new page: another document, no routes and no listeners.
    """

    def __init__(self, browser: "Browser"):
        self.browser, self._free = browser, defaultdict[str, list["Page"]](list)
        self._options: dict[Page, dict[str, object]] = {}
        self._listeners = defaultdict["Page", list[tuple[str, Callable]]](list)

    def take(self, width: int = 1280, height: int = 900, color_scheme: str = "light", **more: object) -> "Page":
        """A page that no test uses, followed by nobody."""
        options = {"viewport": {"width": width, "height": height}, "color_scheme": color_scheme, **more}
        if self._free[repr(options)]:
            return self._free[repr(options)].pop()
        context = self.browser.new_context(reduced_motion="reduce", **options)
        context.set_default_timeout(PATIENCE)
        context.add_init_script(path=WORK)
        page = context.new_page()
        self._options[page], add_listener = options, page.on

        def follow(event: str, listener: Callable) -> None:
            self._listeners[page].append((event, listener))
            add_listener(event, listener)

        page.on = follow
        return page

    def give_back(self, page: "Page") -> None:
        """Undo what a test may have set."""
        page.goto("about:blank")
        page.unroute_all(behavior="ignoreErrors")
        for event, listener in self._listeners.pop(page, []):
            page.remove_listener(event, listener)
        page.context.set_offline(False)
        page.emulate_media(color_scheme=self._options[page]["color_scheme"])
        page.mouse.move(0, 0)
        self._free[repr(self._options[page])].append(page)


@pytest.fixture(scope="module")
def empty_pages(browser: "Browser") -> Pages:
    """The pages of this module."""
    return Pages(browser)


@pytest.fixture
def new_page(empty_pages: Pages, log: PageLog) -> Iterator[object]:
    """`new_page(width=360, color_scheme="dark")` is an empty page in a context of its own; all are checked at the end."""
    taken: list[Page] = []

    def make(**options: object) -> "Page":
        taken.append(empty_pages.take(**options))
        log.follow(taken[-1])
        return taken[-1]

    yield make
    for page in taken:
        empty_pages.give_back(page)
    log.check()


@dataclass
class OpenPage:
    """A page that many tests use, and the last question it has answered."""

    explorer: ExplorerPage
    log: PageLog
    given: str | Path | None = None
    record: dict = field(default_factory=dict)


@pytest.fixture(scope="module")
def pages() -> dict[str, OpenPage]:
    """The open page of each family."""
    return {}


@pytest.fixture
def answered(empty_pages: Pages, address: str, pages: dict[str, OpenPage], inputs: dict[str, Path]) -> Iterator[Callable]:
    """`answered("gpt")` is the page of a family with the answer to its input, or to another one, and the record."""
    from tiny_runs import given_to

    used: list[PageLog] = []

    def ask(family: str, given: str | Path | None = None) -> tuple[ExplorerPage, dict]:
        given = given_to(family, inputs) if given is None else given
        if family not in pages:
            log, page = PageLog(), empty_pages.take()
            log.follow(page)
            pages[family] = OpenPage(ExplorerPage(page, address), log)
            pages[family].explorer.choose(family)
        page = pages[family]
        if page.given != given:
            page.given, page.record = given, page.explorer.ask(given)
        used.append(page.log)
        return page.explorer, page.record

    yield ask
    for log in used:
        log.check()
