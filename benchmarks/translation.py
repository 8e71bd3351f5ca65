"""How fast does regard translate, compared with CTranslate2 and Hugging Face's `generate`?  One table per question, and JSON.

The sentences are the English ones of Multi30k test_2016_flickr; the model is a small one (dim 256, 3 + 3 layers, vocabulary
10,000), trained first if needed.  All sides have the same weights and the same tokens, encoded before timing starts; sentences
whose translation does not end are excluded.  No side computes scores in greedy search.  Each runs at its best settings,
found by a sweep before each question.  The timed repeats are interleaved.

    python benchmarks/translation.py --repeats 5
"""

import argparse
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import rig
import torch
from peers import to_marian
from rig import Peer, Spread, Worker, say
from torch import Tensor
from translation_report import compare_outputs, show

import regard
from regard.data.text.batches import pad
from regard.data.text.splits import find_split
from regard.data.text.tokenizer import BOS, EOS
from regard.decode import search

RUN = Path("runs/bench-small")
TRAIN = ["multi30k", "model=small", "model.norm=post", "model.dropout=0.2", "data.vocab=10000", "train.lr=2e-3",
         "train.clip_norm=1.0", "train.steps=1000", "train.warmup=600", "train.eval_every=250", "train.average=5"]  # fmt: skip
SPLIT = "test_2016_flickr"
ALONE = 200  # sentences translated one at a time
TRIED = 512  # sentences on which settings are tried: the largest batch for each of two cores
TRIES = 3  # of each setting
PROBES = 8  # sentences on which all sides must give the same logits
PEERS = [
    Peer("regard", "ours_translation.py"),
    Peer("transformers", "hf_generate.py", "hf.txt"),
    Peer("CTranslate2", "ct2.py", "ct2.txt"),
    Peer("CTranslate2, CT2_USE_MKL=0", "ct2.py", "ct2.txt", {"CT2_USE_MKL": "0"}),
    Peer("CTranslate2, CT2_PACKED_GEMM=1", "ct2.py", "ct2.txt", {"CT2_PACKED_GEMM": "1"}),
]
BATCHED_LIMIT = Peer("fp32 matrix product", "gemm.py")
ALONE_LIMIT = Peer("memory bandwidth", "bandwidth.py")


@dataclass(frozen=True)
class Question:
    """One table: a search, a precision, and whether sentences are batched."""

    beam: int
    precision: str
    alone: bool = False

    @property
    def name(self) -> str:
        """As a title."""
        way = "greedy" if self.beam == 1 else f"beam {self.beam}"
        return f"{way}, {self.precision}, {'one sentence at a time' if self.alone else 'all sentences at once'}"


QUESTIONS = [
    Question(1, "float32"),
    Question(5, "float32"),
    Question(1, "int8"),
    Question(5, "int8"),
    Question(1, "float32", alone=True),
    Question(1, "int8", alone=True),
]


def stages(side: str, alone: bool) -> list[list[dict[str, Any]]]:
    """Settings to try; each stage starts from the best of the previous one."""
    cores = rig.threads()
    if side == "regard":
        return [[{}]] if alone else [[{"batch": size} for size in (64, 128, 256)]]
    if side == "transformers":
        return [[{"threads": n} for n in sorted({1, cores})]] if alone else [[{"batch": n} for n in (32, 64, 128)]]
    if alone:
        return [[{"inter_threads": 1, "intra_threads": n} for n in sorted({1, cores})]]
    first = {"max_batch_size": 32, "batch_type": "examples"}
    spread = [{"inter_threads": a, "intra_threads": b, **first} for a, b in sorted({(cores, 1), (1, cores)})]
    sizes = {"examples": (16, 32, 64, 128), "tokens": (1024, 4096)}
    return [spread, [{"max_batch_size": n, "batch_type": unit} for unit, several in sizes.items() for n in several]]


@dataclass(frozen=True)
class Task:
    """The sentences, and how much work they are."""

    texts: list[str]
    references: list[str]
    sources: list[list[int]]
    limits: list[int]  # maximum length of each translation; CTranslate2 uses the largest for all
    translator: Any

    def flops(self, answers: list[list[int]], width: int) -> float:
        """Floating-point operations of the matrix products that the sentences need, without padding.

        End tokens are counted; each of `width` beams takes all steps of the best hypothesis.
        """
        c = self.translator.model.config
        mlp, total = 2 * c.dim * c.mlp_ratio * c.dim, 0.0
        for source, answer in zip(self.sources, answers, strict=False):
            s, t = len(source) + 1, len(answer) + 1
            encoder = s * (4 * c.dim**2 + mlp + 2 * s * c.dim)
            memory = s * 2 * c.dim**2
            decoder = t * (6 * c.dim**2 + mlp + 2 * s * c.dim) + t * (t + 1) * c.dim
            total += 2 * (c.depth * (encoder + memory + width * decoder) + width * t * c.dim * c.vocab)
        return total

    def floats(self) -> tuple[int, int]:
        """Weights that a sentence reads once, and those that each step reads."""
        c = self.translator.model.config
        mlp = 2 * c.dim * c.mlp_ratio * c.dim
        return c.depth * (6 * c.dim**2 + mlp), c.depth * (6 * c.dim**2 + mlp) + c.dim * c.vocab

    def gbytes(self, answers: list[list[int]], precision: str) -> float:
        """Gigabytes of weights read for these translations, one sentence at a time."""
        once, step = self.floats()
        size = 1 if precision == "int8" else 4
        return sum(once + step * (len(answer) + 1) for answer in answers) * size / 1e9


@dataclass
class Chosen:
    """A side at its best settings, or the reason why it is not measured."""

    worker: Worker | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    tried: list[dict[str, Any]] = field(default_factory=list)
    reason: str = ""

    def spell(self) -> str:
        """As a cell of a table."""
        environ = self.worker.name.split(", ")[1:] if self.worker else []
        return ", ".join([*(f"{key} {value}" for key, value in self.settings.items()), *environ]) or "default"


def main() -> None:
    """Measure all questions, print the tables, save the results."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--run", type=Path, default=RUN, help="a run folder; trained first if it is not there")
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--sentences", type=int, default=1000)
    asked = options.parse_args()
    train(asked.run)
    task, slow = keep_ended(gather(asked.run, asked.sentences))
    marian = to_marian.write(asked.run, rig.HERE / ".cache", list(zip(task.texts, task.references, strict=True))[:PROBES])
    given = {"run": str(asked.run.resolve()), "marian": str(marian.resolve()),
             "sources": task.sources, "limits": task.limits}  # fmt: skip
    workers, missing = rig.start(PEERS, {}, given)
    versions = {worker.name: worker.ask("versions") for worker in workers}
    limits, without = start_limits(task)
    try:
        found = [measure(question, task, workers, limits, asked.repeats) for question in QUESTIONS]
        scale = grow(task, workers)
    finally:
        for worker in (*workers, *limits.values()):
            worker.stop()
    missing |= without
    agreement = compare_outputs(task.translator.tokenizer, task.references, found, slow)
    show(found, agreement, scale, asked.repeats)
    for name, reason in missing.items():
        print(f"{name} is not measured: {reason}")
    for question in found:
        question.pop("answers")
    settings = {"sentences": len(task.texts), "of": asked.sentences, "alone": min(ALONE, len(task.texts)),
                "repeats": asked.repeats, "split": SPLIT, "run": asked.run.name,
                "trained as": tomllib.loads((asked.run / "run.toml").read_text()),
                "model": asdict(task.translator.model.config)}  # fmt: skip
    result = {"settings": settings, "versions": versions, "missing": missing, "questions": found,
              "agreement": agreement, "scale": scale}  # fmt: skip
    say(f"saved in {rig.named(rig.save('translation', result))}")


def train(folder: Path) -> None:
    """Train the model, or resume; a finished run has a README."""
    if (folder / "README.md").exists() or (folder != RUN and (folder / "model.safetensors").exists()):
        return
    changes = ["multi30k", "--resume"] if (folder / "run.toml").exists() else TRAIN
    say(f"training {folder} first")
    subprocess.run([sys.executable, "-P", "-m", "regard", "train", *changes, "--out", str(folder)], check=True)


def gather(run: Path, count: int) -> Task:
    """The sentences, encoded once for all sides."""
    translator = regard.load(run, device="cpu")
    pairs = list(islice(find_split(translator.run.data, SPLIT).pairs(), count))
    texts, references = ([pair[side] for pair in pairs] for side in (0, 1))
    sources = translator.tokenizer.encode(texts)
    return Task(texts, references, sources, [translator.max_answer(len(ids)) for ids in sources], translator)


def keep_ended(task: Task) -> tuple[Task, dict[int, list[list[int]]]]:
    """The sentences whose translations end, and the translations of the slow path by beam.

    The others repeat up to any limit, and limits differ: regard has one per sentence, transformers per batch, CTranslate2
    per call.
    """
    slow = {beam: translate_slowly(task, beam) for beam in (1, 5)}
    kept = [row for row, most in enumerate(task.limits) if all(len(answers[row]) < most for answers in slow.values())]
    say(f"{len(task.limits) - len(kept)} sentences do not end and are excluded")
    texts, references, sources, limits = (
        [of_one[row] for row in kept] for of_one in (task.texts, task.references, task.sources, task.limits)
    )
    return Task(texts, references, sources, limits, task.translator), {
        beam: [answers[row] for row in kept] for beam, answers in slow.items()
    }


def start_limits(task: Task) -> tuple[dict[bool, Worker], dict[str, str]]:
    """The workers that measure the machine's limit: for batches (False) and for single sentences (True)."""
    _, step = task.floats()
    floats = {"floats": step, "width": task.translator.model.config.dim}
    ready, missing = {}, {}
    for alone, peer, given in ((False, BATCHED_LIMIT, {}), (True, ALONE_LIMIT, floats)):
        workers, reasons = rig.start([peer], {}, given)
        missing |= reasons
        ready.update((alone, worker) for worker in workers)
    return ready, missing


def measure(question: Question, task: Task, workers: list[Worker], limits: dict[bool, Worker], repeats: int) -> Any:
    """Measure all sides in turn, each at its best settings; return the rows of the table and the translations."""
    say(question.name)
    rows = min(ALONE, len(task.texts)) if question.alone else len(task.texts)
    chosen = {side: sweep(side, mine, question, rows) for side, mine in by_side(workers).items()}
    ready = {side: one.worker for side, one in chosen.items() if one.worker}
    if not ready:
        return {"name": question.name, **asdict(question), "sides": {}, "answers": {}, "limit": None,
                "left out": {side: one.reason for side, one in chosen.items()}}  # fmt: skip
    limit = [limits[question.alone]] if question.alone in limits else []
    found = rig.interleave([*ready.values(), *limit], repeats, "repeat")
    answers = {side: worker.ask("answers") for side, worker in ready.items()}
    needed = next(iter(answers.values()))  # the work is counted for the first side's translations
    work = task.gbytes(needed, question.precision) if question.alone else task.flops(needed, question.beam) / 1e9
    most = [one["per_s"] / 1e9 for worker in limit for one in found[worker.name]]
    seconds = {side: [one["seconds"] for one in found[worker.name]] for side, worker in ready.items()}
    sides = {}
    for side, times in seconds.items():
        speeds = [rows / sum(one) for one in times]
        sides[side] = {
            "settings": chosen[side].spell(),
            "tried": chosen[side].tried,
            "sentences/s": Spread.of(speeds),
            **({"p50 ms": part(times, 50), "p95 ms": part(times, 95)} if question.alone else {}),
            "regard is faster by": rig.ratio(costs(times, question), costs(seconds["regard"], question))
            if "regard" in seconds else None,
            "of the limit": rig.ratio([work / sum(one) for one in times], most) if most else None,
        }  # fmt: skip
    return {"name": question.name, **asdict(question), "rows": rows, "sides": sides, "answers": answers,
            "limit": Spread.of(most) if most else None, "work": work,
            "left out": {side: one.reason for side, one in chosen.items() if one.reason}}  # fmt: skip


def by_side(workers: Iterable[Worker]) -> dict[str, list[Worker]]:
    """Group workers by side: CTranslate2 has several, as some settings are fixed at start."""
    found: dict[str, list[Worker]] = {}
    for worker in workers:
        found.setdefault(worker.name.partition(",")[0], []).append(worker)
    return found


def cost(seconds: list[float], question: Question) -> float:
    """The cost to compare: the median sentence if translated one at a time, else the total time."""
    return statistics.median(seconds) if question.alone else sum(seconds)


def costs(times: list[list[float]], question: Question) -> list[float]:
    return [cost(one, question) for one in times]


def part(times: list[list[float]], percent: int) -> Spread:
    """A percentile of each repeat's sentences, in milliseconds."""
    return Spread.of(1000 * sorted(one)[min(len(one) * percent // 100, len(one) - 1)] for one in times)


def sweep(side: str, workers: list[Worker], question: Question, rows: int) -> Chosen:
    """Find the best settings, by the fastest of several runs each; a single candidate is not timed."""
    best, steps = Chosen(), stages(side, question.alone)
    what = {"beam": question.beam, "precision": question.precision, "alone": question.alone}
    some = min(rows, TRIED)
    for number, stage in enumerate(steps):
        pool = workers if number == 0 else [best.worker]
        tries = [(worker, {**best.settings, **extra}) for worker in pool if worker for extra in stage]
        seconds = [float("inf")] * len(tries)
        for _ in range(TRIES if len(tries) > 1 else 1):
            for i, (worker, settings) in enumerate(tries):
                try:
                    reason = worker.ask("choose", **what, rows=some, settings=settings)
                    if not reason and len(tries) > 1:
                        seconds[i] = min(seconds[i], cost(worker.ask("repeat")["seconds"], question))
                except RuntimeError as error:
                    reason = str(error)
                if reason:
                    return Chosen(reason=reason)
        best.tried += [{"name": worker.name, **settings, "seconds": took}
                       for (worker, settings), took in zip(tries, seconds, strict=True) if took < float("inf")]  # fmt: skip
        best.worker, best.settings = tries[seconds.index(min(seconds))]
    if best.worker:
        best.worker.ask("choose", **what, rows=rows, settings=best.settings)
    say(f"  {side}: {best.spell()}")
    return best


def grow(task: Task, workers: list[Worker], most: int = 512) -> list[dict[str, float]]:
    """Sentences a second of regard alone, by batch and beam; once each."""
    [ours, *_] = by_side(workers).get("regard", [None])
    rows, found = min(most, len(task.texts)), []
    if ours is None:
        return []
    say("regard by batch and beam")
    for beam in (1, 2, 5, 10):
        for batch in (1, 4, 16, 64, 256):
            ours.ask("choose", beam=beam, precision="float32", rows=rows, alone=False, settings={"batch": batch})
            seconds = sum(ours.ask("repeat")["seconds"])
            found.append({"beam": beam, "batch": batch, "sentences": rows, "sentences/s": rows / seconds})
    return found


class SlowPath:
    """The model without cache or fused kernel: each step recomputes all tokens with explicit attention."""

    def __init__(self, model: Any):
        self.model = model

    def start(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """The source (B, S), and no tokens yet."""
        return source, source[:, :0]

    def step(self, token: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Logits (B, V) after one more token (B,)."""
        source, target = state[0], torch.cat((state[1], token[:, None]), 1)
        with regard.watch(self.model):  # watching needs the attention weights, so the fused kernel is not used
            features = self.model.features(source, target)
        return self.model.output(features[:, -1]), (source, target)


def translate_slowly(task: Task, beam: int) -> list[list[int]]:
    """Translate with the slow path."""
    say(f"beam {beam} by the slow path")
    model, found = SlowPath(task.translator.model), {}
    order = sorted(range(len(task.sources)), key=lambda row: len(task.sources[row]))
    for rows in (order[start : start + 50] for start in range(0, len(order), 50)):
        source, limits = (
            pad([task.sources[row] for row in rows], task.translator.tokenizer.special),
            torch.tensor([task.limits[row] for row in rows]),
        )
        how: dict[str, Any] = {"bos": BOS, "eos": EOS}
        if beam == 1:
            answers = [[best] for best in search.greedy(model, source, limits, **how)]
        else:
            answers = search.beam(model, source, limits, width=beam, **how)
        found |= {row: best.tokens for row, (best, *_) in zip(rows, answers, strict=True)}
    return [found[row] for row in range(len(order))]


if __name__ == "__main__":
    main()
