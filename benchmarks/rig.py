"""Shared by all benchmarks: environments for the peers, interleaved workers, medians with their range, JSON results.

A worker is a script of `peers/`, run by the Python of its own environment, pinned by a requirements file.  All workers of
a benchmark run at once, as child processes; each repeat asks them one after another, so that a slow minute of the machine
affects all alike.  An idle worker waits on a pipe and costs nothing.
"""

import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

__all__ = [
    "KEEP",
    "Peer",
    "Spread",
    "Worker",
    "interleave",
    "machine",
    "named",
    "ratio",
    "save",
    "saved",
    "say",
    "start",
    "threads",
]

HERE = Path(__file__).parent
# keep glibc from returning freed memory to the system
KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_TOP_PAD_": str(64 * 2**20)}

console = Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """Progress, on standard error."""
    console.print(text, soft_wrap=True, markup=False)


def threads() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Peer:
    """One side of a comparison: name in the table, script, and requirements; without any, regard's own environment."""

    name: str
    script: str
    needs: str = ""
    environ: dict[str, str] = field(default_factory=dict)


class Worker:
    """A running peer."""

    def __init__(self, peer: Peer, python: Path, environ: dict[str, str]):
        self.name = peer.name
        cores = str(threads())
        self.words = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115  not a pipe: nobody reads it while the worker runs
        self.process = subprocess.Popen(
            [str(python), str(HERE / "peers" / peer.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.words,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": cores, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
                 **peer.environ, **environ},
        )  # fmt: skip

    def ask(self, do: str, **what: Any) -> Any:
        """One request, one answer."""
        assert self.process.stdin
        assert self.process.stdout
        try:
            self.process.stdin.write(json.dumps({"do": do, **what}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it stopped: its last message follows
        answer = self.process.stdout.readline()
        if not answer:
            self.process.wait()
            self.words.seek(0)
            words = self.words.read().strip().splitlines() or ["no message"]
            raise RuntimeError(f"{self.name} stopped at {do!r}: {words[-1]}")
        return json.loads(answer)

    def stop(self) -> None:
        """Stop the process."""
        self.process.kill()
        self.process.communicate()
        self.words.close()


def start(peers: Iterable[Peer], environ: dict[str, str], prepare: dict[str, Any]) -> tuple[list[Worker], dict[str, str]]:
    """Start workers; return them, and the reason for each peer that cannot be measured."""
    ready, missing = [], {}
    for peer in peers:
        try:
            worker = Worker(peer, _environment(peer), environ)
            ready.append(worker)
            worker.ask("prepare", **prepare)
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            missing[peer.name] = str(error).replace(str(HERE), "benchmarks").replace(str(Path.home()), "~")
            say(f"{peer.name} is excluded: {error}")
            if ready and ready[-1].name == peer.name:
                ready.pop().stop()
    return ready, missing


def _environment(peer: Peer) -> Path:
    """The Python of the environment a peer needs, made on first use in `benchmarks/.venv/`."""
    if not peer.needs:
        return Path(sys.executable)
    wanted = HERE / "peers" / peer.needs
    folder = HERE / ".venv" / f"{wanted.stem}-{hashlib.sha256(wanted.read_bytes()).hexdigest()[:8]}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        say(f"installing {wanted.name} for {peer.name}")
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run([*install, "--requirement", str(wanted)], check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{wanted.name} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
        (folder / "ready").touch()
    return python


def interleave(workers: list[Worker], repeats: int, do: str, **what: Any) -> dict[str, list[Any]]:
    """Ask all workers in turn, once to warm up and then `repeats` times; each repeat starts with a different worker."""
    found: dict[str, list[Any]] = {worker.name: [] for worker in workers}
    for repeat in range(repeats + 1):
        first = repeat % len(workers)
        for worker in workers[first:] + workers[:first]:
            answer = worker.ask(do, **what)
            if repeat:
                found[worker.name].append(answer)
    return found


@dataclass(frozen=True)
class Spread:
    """Repeated measurements of one thing."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, numbers: Iterable[float]) -> "Spread":
        """Their median and their range."""
        numbers = list(numbers)
        return cls(statistics.median(numbers), min(numbers), max(numbers))

    def text(self, form: str = ",.0f") -> str:
        """As a cell of a table: 3,900 (3,700–4,000)."""
        return f"{self.median:{form}} ({self.least:{form}}–{self.most:{form}})"


def ratio(ours: list[float], theirs: list[float]) -> Spread:
    """Ours divided by theirs, repeat by repeat: both were measured within the same minute."""
    return Spread.of(a / b for a, b in zip(ours, theirs, strict=True))


def machine() -> dict[str, Any]:
    """The machine that the results depend on."""
    model = platform.processor() or platform.machine()
    with open("/proc/cpuinfo") as lines:
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    return {"processor": model, "cores": threads(), "python": platform.python_version(), "system": platform.system()}


def named(file: Path) -> str:
    """A file's path relative to the checkout."""
    return str(file.relative_to(HERE.parent)) if file.is_relative_to(HERE.parent) else file.name


def saved(name: str) -> dict[str, Any]:
    """The results that an earlier run saved."""
    file = HERE / "results" / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else {}


def save(name: str, result: dict[str, Any], default: Callable[[Any], Any] = vars) -> Path:
    """Save the results as JSON: `benchmarks/results/<name>.json`."""
    file = HERE / "results" / f"{name}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"machine": machine(), **result}, indent=1, default=default) + "\n")
    return file
