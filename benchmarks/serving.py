"""How fast does `regard serve` answer, alone and under load, and does its memory stay flat?  One table with the bars, and JSON.

The run has random weights in the size of transformer-small and a real BPE tokenizer of 8,000 tokens; a sentence has 20 words of
Multi30k, an answer 25 tokens.  Clients are coroutines in this process, the server is another process on the same cores.

- without the map: one request after another to LibreTranslate's /translate; with the map: to the explorer's inspect, whose
  answer has the alignment and every layer's heads, and whose weights the page then asks for; with float32 and with int8 weights;
- 32 clients at once against one after another, in turns; the ratio is that of the requests per second;
- memory: resident size at rest after the record store is full, and the largest deviation from it in the requests that follow;
- the page: from the start of the navigation in Chromium until the app says that it is ready, in a new profile each time.

    python benchmarks/serving.py
    python benchmarks/serving.py --short    # does it work?  a minute
"""

import argparse
import asyncio
import dataclasses
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import rig
import torch
from rich.console import Console
from rich.table import Table
from rig import Spread, say
from safetensors.torch import save_file

from regard.config import DecodeConfig, Run, to_toml
from regard.data.text.config import TextData
from regard.data.text.splits import find_split
from regard.data.text.tokenizer import train_tokenizer
from regard.models import FAMILIES, preset, saved_tensors
from regard.run_folder import RunFolder

SEED, WORDS, VOCAB = 1, 20, 8000
ANSWER = 25  # tokens, end included: of Multi30k's German sentences whose English ones have 20 words, with this vocabulary
SOURCE, PAIRS = "multi30k", 10_000  # sentences for the tokenizer
CLIENTS = 32
IDLE = 2.0  # seconds after which a client connects again
STORE = 600  # inspected inputs that fill the record store
MAP_EVERY = 20  # one request of so many, of those that memory is measured over, asks for the map
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
RUN = "small"


class Bar(NamedTuple):
    """A figure that must be reached."""

    what: str
    found: float
    unit: str
    wanted: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether it is."""
        return self.found >= self.wanted if self.at_least else self.found <= self.wanted


def main() -> None:
    """Start the server, measure, print the table, save the results."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--short", action="store_true", help="few requests; the figures mean little")
    options.add_argument("--requests", type=int, default=0, help="requests that memory is measured over; default 10,000")
    options.add_argument("--beam", type=int, default=5)
    asked = options.parse_args()
    count = 20 if asked.short else 200
    requests = asked.requests or (200 if asked.short else 10_000)
    with tempfile.TemporaryDirectory() as home:
        sentence = make_sentences()
        folder = make_run(Path(home), asked.beam)
        say(f"serving transformer-small with a beam of {asked.beam}")
        latencies = dict[str, Latency]()
        with served(folder, "int8") as (address, _):
            latencies["int8"] = asyncio.run(measure_latency(address, sentence, count))
        with served(folder, "float32") as (address, process):
            latencies["float32"] = asyncio.run(measure_latency(address, sentence, count))
            found = asyncio.run(measure_load(address, process.pid, sentence, count, requests, 1 if asked.short else 5))
            found["page"] = page_seconds(address, 2 if asked.short else 7)
    bars = [
        *(Bar(f"without the map, p95, {name}", 1e3 * percentile(of.plain, 95), "ms", 60.0) for name, of in latencies.items()),
        *(Bar(f"with the map, p95, {name}", 1e3 * percentile(of.map, 95), "ms", 300.0) for name, of in latencies.items()),
        Bar(f"{CLIENTS} clients against one", found["gain"].median, "×", 3.0, at_least=True),
        Bar("memory, largest deviation", 100 * found["memory"]["deviation"], "%", 5.0),
        *([Bar("page interactive", 1e3 * found["page"].median, "ms", 1000.0)] if found["page"] else []),
    ]
    show(found, latencies, bars)
    seconds = {name: {part: {f"p{p}": percentile(values, p) for p in (50, 95)} for part, values in of._asdict().items()}
               for name, of in latencies.items()}  # fmt: skip
    result = {"beam": asked.beam, "answer_tokens": ANSWER, "words": WORDS, "clients": CLIENTS, "seconds": seconds, **found,
              "bars": [bar._asdict() | {"met": bar.met} for bar in bars]}  # fmt: skip
    if not asked.short:
        say(f"saved in {rig.named(rig.save('serving', result))}")


def make_sentences() -> Callable[[], str]:
    """A function that makes sentences of words as frequent as in Multi30k."""
    words = [word.strip('.,!?"') for line in read_lines()[::2] for word in line.split()]
    words = [word for word in words if word.isalpha()]
    chance = random.Random(SEED)
    return lambda: " ".join(chance.choices(words, k=WORDS)).capitalize() + "."


def read_lines() -> list[str]:
    """English and German sentences."""
    return [text for pair in islice(find_split(TextData(source=SOURCE), "train").pairs(), PAIRS) for text in pair[:2]]


def make_run(home: Path, beam: int) -> Path:
    """A run folder with random weights."""
    torch.manual_seed(SEED)
    tokenizer = train_tokenizer(read_lines(), "bpe", VOCAB)
    family, small = preset("transformer-small")
    config = dataclasses.replace(small, vocab=tokenizer.vocab)
    model = FAMILIES[family].build(config).eval()
    files = RunFolder(home / RUN)
    files.path.mkdir()
    data = TextData(train="none.tsv", pair="en-de", tokenizer="bpe", vocab=VOCAB)
    run = Run(RUN, "transformer", config, task="translation", data=data, decode=DecodeConfig(beam_size=beam, max_length=ANSWER))
    files.write_description("transformer", dataclasses.asdict(config), "0")
    files.run.write_text(to_toml(run))
    tokenizer.save(files.tokenizer)
    save_file(saved_tensors(model), files.weights)
    return files.path


@contextmanager
def served(folder: Path, precision: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """The address and the process of a server of a run."""
    command = [sys.executable, "-m", "regard", "serve", str(folder), "--port", "0", "--precision", precision]
    environ = {**os.environ, "OMP_NUM_THREADS": str(rig.threads())}
    with (
        tempfile.TemporaryFile("w+") as words,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=words, text=True, env=environ) as process,
    ):
        try:
            assert process.stdout
            address = process.stdout.readline().strip()
            if not address.startswith("http://"):
                words.seek(0)
                sys.exit(f"the server did not start: {address or (words.read().strip().splitlines() or ['no message'])[-1]}")
            yield address, process
        finally:
            process.terminate()
            process.wait(20)


class Client:
    """One connection to the server, kept open: as little work as possible beside that of the server."""

    def __init__(self, address: str):
        self.host, _, port = address.removeprefix("http://").partition(":")
        self.port = int(port)

    async def open(self) -> "Client":
        """Connect."""
        self.read, self.write = await asyncio.open_connection(self.host, self.port)
        self.used = time.monotonic()
        return self

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send JSON, return the answer; anything but 200 ends the benchmark."""
        if time.monotonic() - self.used > IDLE:  # the server closes connections that nobody uses
            self.close()
            await self.open()
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: application/json\r\n"
        self.write.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        lines = (await self.read.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        answer = await self.read.readexactly(int(headers["content-length"]))
        if " 200 " not in lines[0]:
            raise RuntimeError(f"{path} answered {lines[0]}: {answer[:300].decode()}")
        self.used = time.monotonic()
        return json.loads(answer)

    async def translate(self, text: str) -> str:
        """LibreTranslate's request."""
        return (await self.post("/translate", {"q": text, "source": "en", "target": "de"}))["translatedText"]

    async def inspect(self, text: str) -> dict[str, Any]:
        """The explorer's request, whose answer is a record."""
        return await self.post(f"/api/v1/runs/{RUN}/inspect", {"text": text})

    def close(self) -> None:
        """Hang up."""
        self.write.close()


class Latency(NamedTuple):
    """Seconds of single requests, without and with the map."""

    plain: list[float]
    map: list[float]


async def measure_latency(address: str, sentence: Callable[[], str], count: int) -> Latency:
    """Of one request after another."""
    one = await Client(address).open()
    for _ in range(max(3, count // 10)):  # a first request is slower
        await one.translate(sentence())
        await one.inspect(sentence())
    say(f"latency of {count} requests, without and with the map")
    plain = [await timed(one.translate(sentence())) for _ in range(count)]
    with_map = [await timed(one.inspect(sentence())) for _ in range(count)]
    one.close()
    return Latency(plain, with_map)


async def measure_load(address: str, pid: int, sentence: Callable[[], str], count: int, requests: int,
                       repeats: int) -> dict[str, Any]:  # fmt: skip
    """Throughput of many clients, and memory over many requests."""
    one = await Client(address).open()
    say(f"{CLIENTS} clients against one")
    clients = [await Client(address).open() for _ in range(CLIENTS)]
    alone, together = list[float](), list[float]()
    for _ in range(repeats):
        few = max(10, count // 4)
        alone.append(few / await timed(ask_all([one], few, sentence)))
        many = CLIENTS * max(2, count // 20)
        together.append(many / await timed(ask_all(clients, many, sentence)))

    say(f"memory over {requests:,} requests")
    fill, sizes = min(STORE, requests), list[int]()
    await ask_all(clients, fill, sentence, map_every=1)
    await ask_all(clients, fill, sentence)
    base = await resident(pid)
    for _ in range(20):
        await ask_all(clients, requests // 20, sentence, map_every=MAP_EVERY)
        sizes.append(await resident(pid))
        say(f"  {sizes[-1] / 2**20:,.0f} MB")
    for client in (one, *clients):
        client.close()
    deviation = max(abs(size - base) / base for size in sizes)
    return {"alone_per_second": Spread.of(alone), "together_per_second": Spread.of(together), "gain": rig.ratio(together, alone),
            "memory": {"requests": requests, "base": base, "sizes": sizes, "deviation": deviation}}  # fmt: skip


async def timed(answer: Any) -> float:
    """Seconds until it is there."""
    start = time.perf_counter()
    await answer
    return time.perf_counter() - start


async def ask_all(clients: list[Client], count: int, sentence: Callable[[], str], map_every: int = 0) -> None:
    """Requests by several clients, each of which asks again as soon as it is answered."""
    numbers = iter(range(1, count + 1))

    async def ask(client: Client) -> None:
        for number in numbers:
            await (client.inspect if map_every and number % map_every == 0 else client.translate)(sentence())

    await asyncio.gather(*(ask(client) for client in clients))


async def resident(pid: int) -> int:
    """Bytes of memory that a process holds, once it has nothing to do."""
    await asyncio.sleep(1.0)
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def percentile(seconds: list[float], percent: int) -> float:
    """Of some measurements."""
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1]


def page_seconds(address: str, repeats: int) -> Spread | None:
    """Until the page can be used; None without Chromium."""
    program = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        program = None
    if program is None:
        say("the page is not measured: apt install chromium; pip install playwright")
        return None
    found = list[float]()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        for _ in range(repeats + 1):
            page = browser.new_context().new_page()
            page.goto(address)
            page.locator("html[data-ready=true]").wait_for()
            found.append(page.evaluate("performance.getEntriesByName('regard-ready')[0].startTime") / 1000)
            page.context.close()
        browser.close()
    return Spread.of(found[1:])  # the browser's own first start is not the page's


def show(found: dict[str, Any], latencies: dict[str, Latency], bars: list[Bar]) -> None:
    """The table."""
    table = Table("what", "found", "bar", "", title=f"regard serve, {rig.threads()} cores")
    for bar in bars:
        wanted = f"{'≥' if bar.at_least else '≤'} {bar.wanted:g} {bar.unit}"
        table.add_row(bar.what, f"{bar.found:.1f} {bar.unit}", wanted, "met" if bar.met else "MISSED")
    console = Console()
    console.print(table)
    for precision, of in latencies.items():
        for seconds, what in ((of.plain, "without"), (of.map, "with")):
            console.print(f"{precision}, {what} the map: median {1e3 * percentile(seconds, 50):.1f} ms")
    console.print(f"requests per second: one client {found['alone_per_second'].text('.1f')}, "
                  f"{CLIENTS} clients {found['together_per_second'].text('.1f')}")  # fmt: skip


if __name__ == "__main__":
    main()
