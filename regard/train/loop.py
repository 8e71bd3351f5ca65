"""`fit`: the only training loop.

next batch ─▶ objective ─▶ backward ─▶ clip ─▶ step ─┬▶ every n steps: log, evaluate, sample, save
     ▲                                               │
     └───────────────────────────────────────────────┘
"""

import dataclasses
import json
import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from safetensors.torch import save as to_bytes
from torch import nn
from torch.utils.tensorboard.writer import SummaryWriter

from regard.config import Run, to_toml
from regard.data.batch import Place, all_batches, batches
from regard.data.corpus import Corpus, find_split, prepare
from regard.data.files import alone, write_atomic
from regard.data.store import Store
from regard.decode.translator import Translator
from regard.models import FAMILIES, describe, fill
from regard.train import checkpoint, objectives
from regard.train.card import card
from regard.train.metrics import Score, score
from regard.train.optim import adam, inverse_square_root
from regard.version import VERSION

__all__ = ["Done", "Interrupted", "fit", "pick_device", "score_split"]


class Done(NamedTuple):
    """How a training ended."""

    folder: Path
    steps: int
    loss: float  # on held-out data, nats a token
    minutes: float
    scores: list[Score]


class Interrupted(Exception):
    """The user stopped the training; a checkpoint was written first."""


def fit(run: Run, folder: Path, *, command: str = "", console: Console | None = None) -> Done:
    """Train a run in its folder, from its newest checkpoint if there is one, and leave a model, its card and its log."""
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder):
        work = _begin(run, folder, console or Console(stderr=True))
        _resume(work)
        log = _Log(folder, work.state["step"])
        _loop(work, log)
        return _finish(work, log, command or f"regard train {run.name}")


@dataclass
class _Work:
    """What the stages of a training hand on."""

    run: Run
    folder: Path
    console: Console
    say: Callable[..., None]
    device: torch.device
    corpus: Corpus
    model: Any
    optimizer: torch.optim.Adam
    state: dict[str, Any]  # what a checkpoint remembers beside weights and moments


def _begin(run: Run, folder: Path, console: Console) -> _Work:
    """Data, model, optimizer: each a function of the run and its seed."""
    say = partial(console.print, soft_wrap=True, highlight=False, markup=False)
    device = pick_device(run.train.device)
    if not (folder / "run.toml").exists():
        (folder / "tokenizer.json").unlink(missing_ok=True)  # of a try that did not get past its data
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # of a --fresh that was killed halfway
    with console.status("") as status:
        count = lambda what, n: status.update(f"{what}: {n:,} pairs")  # noqa: E731
        corpus = prepare(run.data, folder / "tokenizer.json", say, count)
    config = dataclasses.replace(run.model, vocab=corpus.tokenizer.vocab)
    torch.manual_seed(run.train.seed)
    model = FAMILIES[run.family].build(config).to(device)
    if run.data.longest + 1 > model.longest:
        raise ValueError(
            f"data.longest={run.data.longest} and an end are more than the model's {model.longest} learned positions; "
            f"set data.longest={model.longest - 1} or model.longest={run.data.longest + 1}"
        )
    write_atomic(folder / "run.toml", to_toml(run).encode())
    write_atomic(folder / "config.json", json.dumps(describe(run.family, config, VERSION), indent=1).encode())
    say(f"{run.family}: {_size(model):,} parameters on {device}, {config.vocab:,} tokens in the vocabulary")
    state = {"step": 0, "place": Place(), "best": math.inf, "worse": 0, "seconds": 0.0, "data": corpus.train.digest}
    return _Work(run, folder, console, say, device, corpus, model, adam(model), state)


def _resume(work: _Work) -> None:
    """Go back to where an earlier training stopped, if there was one."""
    found = checkpoint.newest(work.folder, work.say)
    if found is None:
        return
    place, state = found
    if state["data"] != work.state["data"]:
        raise ValueError(
            f"{work.folder}: the training data has changed since step {state['step']}; restore it, or start over with --fresh"
        )
    checkpoint.restore(place, work.model, work.optimizer)
    work.state = state
    work.say(f"resumed at step {state['step']:,}")


def _loop(work: _Work, log: "_Log") -> None:
    """The loop of the picture above."""
    t, state, model, optimizer, say = work.run.train, work.state, work.model, work.optimizer, work.say
    stream = batches(work.corpus.train, t.tokens, t.seed, Place(*state["place"]))
    began = time.monotonic() - state["seconds"]
    model.train()
    with _progress(work.console, work.run.name, t.steps, state["step"]) as bar, _stop_politely() as stop:
        since, seen, loss_sum = time.monotonic(), 0, 0.0
        while state["step"] < t.steps and not _enough(state, t.patience):
            step = state["step"] = state["step"] + 1
            parts = []
            for _ in range(t.accumulate):
                batch, state["place"] = next(stream)
                parts.append(batch)
            tokens = sum(batch.tokens for batch in parts)
            for batch in parts:
                loss, nll = objectives.translate(model, batch.to(work.device), t.smoothing)
                (loss / tokens).backward()
                loss_sum += float(nll)
            norm = nn.utils.clip_grad_norm_(model.parameters(), t.clip or math.inf)
            rate = inverse_square_root(step, t.lr, t.warmup)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            seen += tokens

            if not math.isfinite(loss_sum):
                raise ValueError(
                    f"the loss is {loss_sum} at step {step}; lower train.lr ({t.lr}) and go on with --resume"
                )
            if step % t.log_every == 0 or step == t.steps:
                speed = seen / (time.monotonic() - since)
                epoch = state["place"][0]
                log.write(step, loss=loss_sum / seen, lr=rate, norm=float(norm), tokens_per_s=speed, epoch=epoch)
                bar(step, loss_sum / seen, speed)
                since, seen, loss_sum = time.monotonic(), 0, 0.0
            paused = time.monotonic()
            if step % t.eval_every == 0 or step == t.steps:
                held_out = evaluate(model, work.corpus.valid, t.tokens, work.device)
                perplexity = math.exp(min(held_out, 50))
                log.write(step, valid_loss=held_out, perplexity=perplexity)
                say(f"step {step:,}: held-out loss {held_out:.4f}, perplexity {perplexity:.2f}")
                _show_samples(work)
                state["worse"] = 0 if held_out < state["best"] else state["worse"] + 1
                state["best"] = min(held_out, state["best"])
            if step % t.save_every == 0 or step == t.steps or stop or _enough(state, t.patience):
                state["seconds"] = time.monotonic() - began
                checkpoint.save(work.folder, state, model, optimizer, keep=t.average, every=t.save_every)
            since += time.monotonic() - paused
            if stop:
                raise Interrupted(f"stopped at step {step:,}, saved in {work.folder}; go on with --resume")
    if _enough(state, t.patience):
        say(f"stopped early at step {state['step']:,}: {t.patience} evaluations without a better loss")


def _finish(work: _Work, log: "_Log", command: str) -> Done:
    """Average, score, write the card."""
    run, steps = work.run, work.state["step"]
    held_out = _settle(work)
    scores = score_split(Translator(work.model, work.corpus.tokenizer, run), "valid", 1000)
    minutes = work.state["seconds"] / 60
    text = card(run, version=VERSION, command=command, parameters=_size(work.model), minutes=minutes, steps=steps,
                loss=held_out, on="the first 1,000 held-out pairs", scores=scores)  # fmt: skip
    write_atomic(work.folder / "README.md", text.encode())
    log.write(steps, final_loss=held_out, minutes=minutes, **{s.name: s.value for s in scores})
    return Done(work.folder, steps, held_out, minutes, scores)


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _enough(state: dict[str, Any], patience: int) -> bool:
    """Whether held-out data has said often enough that it gets no better."""
    return bool(patience) and state["worse"] >= patience


@torch.inference_mode()
def evaluate(model: nn.Module, store: Store, tokens: int, device: torch.device) -> float:
    """Mean negative log-likelihood of a held-out token, in nats; no smoothing, no dropout."""
    model.eval()
    total, count = 0.0, 0
    for batch in all_batches(store, tokens):
        _, nll = objectives.translate(model, batch.to(device), 0.0)
        total, count = total + float(nll), count + batch.tokens
    model.train()
    return total / count


def score_split(translator: Translator, split: str, most: int | None = None, **how: Any) -> list[Score]:
    """Translate a split of the run's data, or a file, and compare with its references."""
    data = translator.run.data
    pairs = list(islice(find_split(data, split).pairs(), most))
    sources, references = [source for source, _ in pairs], [[target] for _, target in pairs]
    if data.source.startswith("tatoeba"):  # several translations of one sentence are all right
        grouped: dict[str, list[str]] = {}
        for source, target in pairs:
            grouped.setdefault(source, []).append(target)
        sources, references = list(grouped), list(grouped.values())
    if not sources:
        raise ValueError(f"{split} is empty; give a file with source and target on each line")
    translator.model.eval()
    answers = [answer.text for answer in translator.translate(sources, **how)]
    return score(answers, references, tokenised=data.text == "tok")


def _settle(work: _Work) -> float:
    """Keep the mean of the last checkpoints if held-out data likes it better than the last one; leave it in the model."""
    folder, t = work.folder, work.run.train
    checkpoint.prune(folder, t.average, t.save_every)  # if a kill came before it
    files = checkpoint.steps_saved(folder)[-t.average :]
    last = evaluate(work.model, work.corpus.valid, t.tokens, work.device)
    if len(files) == 1:
        return last
    write_atomic(folder / "model.safetensors", to_bytes(checkpoint.average(files)))
    fill(work.model, folder / "model.safetensors")
    mean = evaluate(work.model, work.corpus.valid, t.tokens, work.device)
    kept = "mean" if mean < last else "last"
    work.say(
        f"held-out loss of the last checkpoint {last:.4f}, of the mean of {len(files)} {mean:.4f}: kept the {kept}"
    )
    if kept == "last":
        fill(work.model, files[-1])
        write_atomic(folder / "model.safetensors", files[-1].read_bytes())
    return min(mean, last)


def _show_samples(work: _Work) -> None:
    """A few held-out sentences as the model translates them now."""
    work.model.eval()
    answers = Translator(work.model, work.corpus.tokenizer, work.run).translate(
        [s for s, _ in work.corpus.samples], beam=1
    )
    for (source, wanted), answer in zip(work.corpus.samples, answers, strict=True):
        work.say(f"  {source}  →  {answer.text}   (wanted: {wanted})", style="dim")
    work.model.train()


def pick_device(wanted: str) -> torch.device:
    """The device named, or the best there is: cuda, mps, cpu.  Numbers stay float32 on all of them."""
    have = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return torch.device(next(name for name, there in have.items() if there))
    if not have.get(wanted.split(":")[0]):
        raise ValueError(
            f"no device {wanted!r} on this machine; there is {', '.join(n for n, there in have.items() if there)}, or auto"
        )
    return torch.device(wanted)


class _Log:
    """`log.jsonl` and TensorBoard events, cut back to the step a run resumes from."""

    def __init__(self, folder: Path, step: int):
        self.file = folder / "log.jsonl"
        if self.file.exists():
            lines = self.file.read_text(encoding="utf-8").splitlines()
            read = [(line, json.loads(line)) for line in lines if line.endswith("}")]  # a kill can tear the last one
            kept = [line for line, numbers in read if numbers["step"] <= step and "final_loss" not in numbers]
            write_atomic(self.file, "".join(f"{line}\n" for line in kept).encode())
        self.events = SummaryWriter(str(folder / "events"), purge_step=step + 1)

    def write(self, step: int, **numbers: float) -> None:
        """One line of numbers."""
        with open(self.file, "a", encoding="utf-8") as out:
            out.write(json.dumps({"step": step, **numbers}) + "\n")
        for name, number in numbers.items():
            self.events.add_scalar(name, number, step)
        self.events.flush()


@contextmanager
def _progress(console: Console, name: str, steps: int, done: int) -> Iterator[Any]:
    """A bar with loss, speed and time left; yields `bar(step, loss, speed)`."""
    columns = ("{task.description}", BarColumn(), "{task.completed:,}/{task.total:,}", TextColumn("{task.fields[numbers]}"),
               TimeElapsedColumn(), TimeRemainingColumn(elapsed_when_finished=True))  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(name, total=steps, completed=done, numbers="")

        def bar(step: int, loss: float, speed: float) -> None:
            progress.update(task, completed=step, numbers=f"loss {loss:.3f} · {speed:,.0f} tokens/s")

        yield bar


class _Stop:
    """True once the user has asked to stop."""

    asked = False

    def __bool__(self) -> bool:
        return self.asked


@contextmanager
def _stop_politely() -> Iterator[_Stop]:
    """Turn the first Ctrl-C (or SIGTERM) into a wish that the loop grants at the end of its step; a second one kills."""
    stop = _Stop()

    def ask(number: int, frame: Any) -> None:
        stop.asked = True
        for n, old in before.items():
            signal.signal(n, old)

    before = {}
    with suppress(ValueError):  # not the main thread: there are no signals to turn
        before = {n: signal.signal(n, ask) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for n, old in before.items():
            signal.signal(n, old)
