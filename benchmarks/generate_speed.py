"""How fast does GPT-2 generate one text with regard, compared with Hugging Face's `generate` and CTranslate2?

The model has the size of the smallest GPT-2, 124 M parameters, and random weights; all sides load the same folder, get the
same 16 tokens and generate 128 more, greedily, without an end token.  Before timing starts, each side's tokens are compared
with those of the plain forward pass, without cache, in float32.  Peers run at their best settings, found by a sweep; regard
has no settings.  The timed repeats are interleaved.

The limit: each token needs every matrix read once, the output layer's included.  A side that reads weights as fast as a
large matrix-vector product reaches it; the time of the prompt is not subtracted.

    python benchmarks/generate_speed.py --repeats 7
"""

import argparse
import hashlib
import os
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import rig
import torch
from rich.console import Console
from rich.table import Table
from rig import Peer, Spread, Worker, say

from regard.interop.hf import export_model, import_model
from regard.models.gpt import GPT, SIZES, GPTConfig

SEED, PROMPT = 1, 16
POSITION_SCALE = 10  # scale of the position embeddings: otherwise a random model repeats one token
TRIES = 3  # of each setting
BYTES = {"float32": 4, "int8": 1}  # of one weight
USUAL, THEIRS = "small", "transformers"
LIMIT = Peer("memory bandwidth", "bandwidth.py")


@dataclass(frozen=True)
class Side:
    """One row of the table: a library, a precision, and the settings its sweep tries."""

    name: str
    precision: str
    script: str
    needs: str = ""
    environs: tuple[dict[str, str], ...] = ({},)  # fixed when it starts
    settings: tuple[dict[str, Any], ...] = ({},)

    def peers(self) -> list[Peer]:
        """One for each environment."""
        return [Peer(f"{self.name} {self.precision}{spell(one, '=', ', ')}", self.script, self.needs, one)
                for one in self.environs]  # fmt: skip


def spell(settings: dict[str, Any], between: str, before: str = "") -> str:
    """Settings in words."""
    return before + ", ".join(f"{key}{between}{value}" for key, value in settings.items()) if settings else ""


CORES = sorted({1, rig.threads()})
CT2: dict[str, Any] = {"script": "ct2_gpt2.py", "needs": "ct2.txt",
                       "environs": tuple({"CT2_USE_MKL": use} for use in "01"),
                       "settings": tuple({"intra_threads": n} for n in CORES)}  # fmt: skip
SIDES = [
    Side("regard", "float32", "ours_generate.py"),
    Side(THEIRS, "float32", "hf_gpt2.py", "hf.txt", settings=tuple({"threads": n} for n in CORES)),
    Side("CTranslate2", "float32", **CT2),
    Side("regard", "int8", "ours_generate.py"),
    Side("CTranslate2", "int8", **CT2),
]


@dataclass
class Chosen:
    """A side at its best settings."""

    side: Side
    worker: Worker
    settings: dict[str, Any]
    tried: list[dict[str, Any]]

    def spell(self) -> str:
        """As a cell of a table."""
        environ = self.worker.name.split(", ")[1:]
        return ", ".join([*([spell(self.settings, " ")] if self.settings else []), *environ]) or "default"


def main() -> None:
    """Start all sides, compare their output, measure, print the table, save the results."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--tokens", type=int, default=128, help="new tokens of each text")
    options.add_argument("--size", choices=SIZES, default=USUAL, help=f"only the results of {USUAL} are saved")
    asked = options.parse_args()
    config = SIZES[asked.size]
    room = config.max_len - PROMPT + 1  # the last token is not fed back
    if not 1 <= asked.tokens <= room or asked.repeats < 1:
        options.error(f"{asked.tokens} tokens, {asked.repeats} repeats; use 1 to {room} tokens, 1 or more repeats")
    folder = write_model(asked.size)
    prompt = torch.randint(config.vocab, (PROMPT,), generator=torch.Generator().manual_seed(SEED)).tolist()
    given = {"folder": str(folder.resolve()), "prompt": prompt, "tokens": asked.tokens}
    running: list[Worker] = []
    missing: dict[str, str] = {}
    try:
        chosen = [one for side in SIDES if (one := begin(side, given, running, missing))]
        limits, without = rig.start([LIMIT], {}, {"floats": floats(config), "width": config.dim})
        running += limits
        missing |= without
        answers = {one.worker.name: one.worker.ask("write") for one in chosen}
        right = compare(folder, prompt, answers, asked.tokens)
        versions = {one.worker.name: one.worker.ask("versions") for one in chosen}
        say(f"{asked.repeats} repeats")
        found = rig.interleave([*(one.worker for one in chosen), *limits], asked.repeats, "repeat") if chosen else {}
    finally:
        for worker in running:
            worker.stop()
    most = [one["per_s"] / 1e9 for worker in limits for one in found.get(worker.name, [])]
    sides = judge(chosen, found, right, most, config, asked.tokens)
    limit = Spread.of(most) if most else None
    show(sides, limit, config, asked)
    for name, reason in missing.items():
        print(f"{name} is not measured: {reason}")
    if asked.size != USUAL:
        return
    settings = {"size": asked.size, "model": asdict(config), "prompt": PROMPT, "tokens": asked.tokens,
                "repeats": asked.repeats, "weights a token": floats(config)}  # fmt: skip
    result = {"settings": settings, "versions": versions, "missing": missing, "sides": sides, "limit GB/s": limit}
    say(f"saved in {rig.named(rig.save('generate', result))}")


def write_model(size: str) -> Path:
    """Export a model with random weights into the cache, if it is not there; return the folder."""
    cache, config = rig.HERE / ".cache", SIZES[size]
    key = hashlib.sha256(repr((config, SEED, POSITION_SCALE)).encode()).hexdigest()[:12]
    folder = cache / f"gpt2-{size}-{key}"
    if folder.exists():
        return folder
    say(f"writing {rig.named(folder)}")
    torch.manual_seed(SEED)
    model = GPT(config)
    with torch.no_grad():
        model.embed.positions.table.mul_(POSITION_SCALE)
    part = cache / f"{folder.name}.{os.getpid()}.part"
    export_model("gpt", config, model, part)
    (cache / ".gitignore").write_text("*\n")
    part.rename(folder)
    return folder


def floats(config: GPTConfig) -> int:
    """Weights that each token reads: the matrices of all blocks, and the output's."""
    mlp = 2 * config.dim * (config.mlp_dim or config.mlp_ratio * config.dim)
    return config.depth * (4 * config.dim**2 + mlp) + config.dim * config.vocab


def begin(side: Side, given: dict[str, Any], running: list[Worker], missing: dict[str, str]) -> Chosen | None:
    """Start a side at its best settings, by the fastest of several texts each; stop its other workers."""
    ready, reasons = rig.start(side.peers(), {}, {**given, "precision": side.precision})
    running += ready
    missing |= reasons
    tries = [(worker, settings) for worker in ready for settings in side.settings]
    seconds = [float("inf")] * len(tries)
    for _ in range(TRIES if len(tries) > 1 else 1):
        for i, (worker, settings) in enumerate(tries):
            if worker.name in missing:
                continue
            try:
                worker.ask("choose", **settings)
                seconds[i] = min(seconds[i], worker.ask("repeat"))
            except RuntimeError as error:
                missing[worker.name] = str(error)
                say(f"{worker.name} is excluded: {error}")
    left = [(took, i) for i, took in enumerate(seconds) if tries[i][0].name not in missing]
    best = tries[min(left)[1]] if left else None
    for worker in ready:
        if not best or worker is not best[0]:
            running.remove(worker)
            worker.stop()
    if not best:
        return None
    best[0].ask("choose", **best[1])
    tried = [{"name": tries[i][0].name, **tries[i][1], "seconds": took} for took, i in left]
    chosen = Chosen(side, *best, tried if len(tries) > 1 else [])
    say(f"{side.name} {side.precision}: {chosen.spell()}")
    return chosen


@torch.inference_mode()
def compare(folder: Path, prompt: list[int], answers: dict[str, list[int]], tokens: int) -> dict[str, list[bool]]:
    """For each generated token, whether the plain forward pass in float32 gives it after the previous ones.

    Two outputs that agree everywhere are the same.
    """
    _, _, model = import_model(folder)
    right = {}
    for name, output in answers.items():
        if len(output) != tokens:
            raise RuntimeError(f"{name} generated {len(output)} tokens, not {tokens}; its speed cannot be compared")
        logits = model(torch.tensor([prompt + output[:-1]]))[0, len(prompt) - 1 :]  # (T, V)
        right[name] = [a == b for a, b in zip(logits.argmax(-1).tolist(), output, strict=True)]
    return right


def judge(
    chosen: list[Chosen], found: dict[str, Any], right: dict[str, list[bool]], most: list[float], config: GPTConfig, tokens: int
) -> list[dict[str, Any]]:  # fmt: skip
    """The rows of the table."""
    speeds = {one.worker.name: [tokens / seconds for seconds in found[one.worker.name]] for one in chosen}
    theirs = next((speeds[one.worker.name] for one in chosen if one.side.name == THEIRS), None)
    rows = []
    for one in chosen:
        mine, same = speeds[one.worker.name], right[one.worker.name]
        read = [speed * floats(config) * BYTES[one.side.precision] / 1e9 for speed in mine]
        rows.append({
            "side": one.side.name,
            "precision": one.side.precision,
            "settings": one.spell(),
            "tried": one.tried,
            "tokens/s": Spread.of(mine),
            "faster than transformers by": rig.ratio(mine, theirs) if theirs else None,
            "of the limit": rig.ratio(read, most) if most else None,
            "as float32": sum(same),
            "before another": len(list(takewhile(bool, same))),
        })  # fmt: skip
    return rows


def show(sides: list[dict[str, Any]], limit: Spread | None, config: GPTConfig, asked: Any) -> None:
    """One table."""
    bound = "limit not measured"
    if limit:
        bounds = (f"{1e9 * limit.median / floats(config) / size:,.0f} in {name}" for name, size in BYTES.items())
        bound = f"limit {limit.median:,.1f} GB/s, tokens/s {', '.join(bounds)}"
    titled = f"GPT-2 {asked.size} generates {asked.tokens} tokens after {PROMPT}, greedy; {asked.repeats} repeats; {bound}"
    columns = ("settings", "tokens/s", "× Hugging Face", "of the limit", "tokens equal to plain float32")
    table = Table("", "", *columns, title=titled)
    for row in sides:
        faster, fraction = row["faster than transformers by"], row["of the limit"]
        same = f"{row['as float32']} of {asked.tokens}"
        same += f", the first {row['before another']} in a row" if row["as float32"] < asked.tokens else ""
        table.add_row(
            row["side"],
            row["precision"],
            row["settings"],
            row["tokens/s"].text(",.1f"),
            faster.text(".2f") if faster and row["side"] != THEIRS else "–",
            f"{fraction.median:.0%} ({fraction.least:.0%}–{fraction.most:.0%})" if fraction else "–",
            same,
        )
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
