"""`fit`: the only training loop.

next batch ─▶ objective ─▶ backward ─▶ clip ─▶ step ─┬▶ every n steps: log, evaluate, sample, save
     ▲                                               │
     └───────────────────────────────────────────────┘
"""

import dataclasses
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from rich.console import Console
from safetensors.torch import save as to_bytes
from torch import nn

from regard.config import Run, to_toml
from regard.data.files import lock_folder, write_atomic
from regard.data.image.store import ImageDataset
from regard.data.position import DataPosition
from regard.data.text.config import TextData
from regard.data.text.dataset import TextDataset
from regard.data.text.splits import source_names
from regard.decode.folder import make_predictor, pick_device
from regard.models import FAMILIES, describe, inherit_from_init, load_weights, read_config
from regard.train import checkpoint, malloc
from regard.train.card import card
from regard.train.ema import EMA
from regard.train.log import Log, progress, stop_politely
from regard.train.metrics import Score, evaluate, score_split
from regard.train.optim import make_optimizer, rate
from regard.train.parallel import World, joined
from regard.train.tasks import TASKS, Task
from regard.version import VERSION

__all__ = ["Done", "Interrupted", "fit"]

WORSE = 0.02  # share by which the end may be worse than the best before a word is said


class Done(NamedTuple):
    """How a training ended."""

    folder: Path
    steps: int
    loss: float  # on held-out data, nats a prediction
    minutes: float
    scores: list[Score]


class Interrupted(Exception):
    """The user stopped the training; a checkpoint was written first."""


def fit(run: Run, folder: Path, *, fresh: bool = False, command: str = "", console: Console | None = None) -> Done:
    """Train a run in its folder, from its newest checkpoint if there is one, and leave a model, its card and its log.

    With `fresh` an earlier run in the folder is thrown away, once the new one's data is found to be good.
    """
    with joined(pick_device(run.train.device)) as world:
        if not world.writes:
            return _help(run, folder, world)
        folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(folder):
            with _nothing_left(folder):
                work = _begin(run, folder, fresh, console or Console(stderr=True), world)
            _resume(work)
            about = describe(work.run.family, work.model.config, VERSION)
            write_atomic(folder / "config.json", json.dumps(about, indent=1).encode())
            write_atomic(folder / "run.toml", to_toml(work.run).encode())
            world.wait()  # the others may read what is here now,
            world.wait()  # and have read it
            with closing(Log(folder, work.state["step"])) as log, malloc.keep_freed():
                _loop(work, log)
                return _finish(work, log, command or f"regard train {run.name}")


@contextmanager
def _nothing_left(folder: Path) -> Iterator[None]:
    """A training that cannot begin leaves no empty folder behind."""
    try:
        yield
    except BaseException:
        if {file.name for file in folder.iterdir()} <= {".lock", ".tokenizer.part"}:
            shutil.rmtree(folder)
        raise


def _help(run: Run, folder: Path, world: World) -> Done:
    """What a further process does: the same steps on other batches; it writes nothing."""
    world.wait()
    if not (folder / "run.toml").exists():
        raise ValueError(f"{folder} is not the folder of the first process; several machines need a shared one")
    work = _begin(run, folder, False, Console(quiet=True), world)
    _resume(work)
    world.wait()
    with malloc.keep_freed():
        _loop(work, None)
    return Done(folder, work.state["step"], math.nan, 0.0, [])


@dataclass
class _Work:
    """What the stages of a training hand on."""

    run: Run
    task: Task
    folder: Path
    console: Console
    say: Callable[..., None]
    device: torch.device
    corpus: TextDataset | ImageDataset
    model: Any
    optimizer: torch.optim.Optimizer
    state: dict[str, Any]  # what a checkpoint remembers beside weights and moments
    world: World
    mean: EMA | None  # of the weights, if that is the model


def _begin(run: Run, folder: Path, fresh: bool, console: Console, world: World) -> _Work:
    """Data, model, optimizer: each a function of the run and its seed."""
    going_on = (folder / "run.toml").exists() and not fresh
    if going_on:
        family, config = read_config(folder)  # refuses a folder of another version
        run = dataclasses.replace(run, family=family, model=config)
    for part in folder.glob(".*.part") if world.writes else ():  # left behind by a kill
        part.unlink()
    say = partial(console.print, soft_wrap=True, highlight=False, markup=False)
    device = pick_device(run.train.device)
    tokenizer = folder / ("tokenizer.json" if going_on else ".tokenizer.part")
    if run.init and not going_on:
        if Path(run.init).resolve() == folder.resolve():
            raise ValueError(f"init={run.init} is the folder to train in; choose another --out")
        run = inherit_from_init(run)
        if (Path(run.init) / "tokenizer.json").exists():  # pictures have none
            shutil.copyfile(Path(run.init) / "tokenizer.json", tokenizer)
    task = TASKS[run.task]
    with console.status("") as status:
        count = lambda what, n: status.update(f"{what}: {n:,}")  # noqa: E731
        corpus = task.reads(run, tokenizer, say, count)
    run = run if going_on else _sized(run, corpus)
    torch.manual_seed(run.train.seed)
    model = FAMILIES[run.family].build(run.model).to(device)
    if isinstance(corpus, TextDataset):
        _check_places(run, task, model.max_len)
    if run.init and not (going_on and any((folder / "checkpoints").glob("step-*"))):
        load_weights(model, Path(run.init) / "model.safetensors", fresh="classifier.")  # before anything is thrown away
        say(f"begins with the weights of {run.init}")
    if not run.init and (advice := getattr(run.model, "advice", "")):
        say(advice)
    if len(source_names(cast(TextData, run.data))) > 1 and run.train.accumulate * world.size < 4:
        say("a batch holds texts of one length, and so often of one set: a step of several learns better, such as with "
            "train.batch_tokens=1024 train.accumulate=4")  # fmt: skip
    if not going_on:
        _try(task, run, corpus)
        _clear(folder)
        if isinstance(corpus, TextDataset):
            os.replace(tokenizer, folder / "tokenizer.json")
        if corpus.labels:
            write_atomic(folder / "labels.txt", "".join(f"{label}\n" for label in corpus.labels).encode())
    words = f", {corpus.tokenizer.vocab:,} tokens in the vocabulary" if isinstance(corpus, TextDataset) else ""
    say(f"{run.family}: {_size(model):,} parameters on {device}{words}")
    machine = f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads"
    machine += f", {world.size} processes" if world.size > 1 else ""
    state = {"step": 0, "place": DataPosition(), "best": math.inf, "worse": 0, "seconds": 0.0,
             "data": corpus.train.digest, "machine": machine}  # fmt: skip
    mean = EMA(model, run.train.ema) if run.train.ema else None
    optimizer = make_optimizer(model, run.train)
    return _Work(run, task, folder, console, say, device, corpus, model, optimizer, state, world, mean)


def _check_places(run: Run, task: Task, max_len: int) -> None:
    """Refuse texts longer than the model has places for, or places that no text would reach."""
    if run.data.max_len + task.ends > max_len:
        raise ValueError(
            f"data.max_len={run.data.max_len} and {task.ends} for start or end are more than the model's {max_len} learned "
            f"positions; set data.max_len={max_len - task.ends}"
            + ("" if run.init else f" or model.max_len={run.data.max_len + task.ends}")
        )
    if run.task == "next" and not run.init and run.data.max_len < max_len:
        raise ValueError(
            f"data.max_len={run.data.max_len} would leave places {run.data.max_len + 1} to {max_len} of the model without "
            f"training; set model.max_len={run.data.max_len} too, or data.max_len={max_len}"
        )


def _try(task: Task, run: Run, corpus: TextDataset | ImageDataset) -> None:
    """Take the first batches: what is wrong with the data is said before anything is thrown away, or hours are spent."""
    next(task.batches(run, corpus, DataPosition()))[0]()
    if next(task.held_out(run, corpus, corpus.valid), None) is None:
        raise ValueError("the held-out data has nothing to predict; give more of it")


def _sized(run: Run, corpus: TextDataset | ImageDataset) -> Run:
    """The run with what its data decides: how many tokens, and how many classes."""
    found: dict[str, int] = (
        {"vocab": corpus.tokenizer.vocab} if isinstance(corpus, TextDataset) and not run.init else {}
    )
    found |= {"classes": len(corpus.labels)} if corpus.labels else {}
    return dataclasses.replace(run, model=dataclasses.replace(run.model, **found))


def _clear(folder: Path) -> None:
    """Take away what an earlier run left, and nothing else; `run.toml` first, so that half of a run is none."""
    for name in ("run.toml", "config.json", "model.safetensors", "labels.txt", "README.md", "log.jsonl"):
        (folder / name).unlink(missing_ok=True)
    for name in ("checkpoints", "events"):
        shutil.rmtree(folder / name, ignore_errors=True)


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
    checkpoint.restore(place, work.model, work.optimizer, work.mean)
    if state["machine"] != work.state["machine"]:
        work.say(f"was trained on {state['machine']}, goes on with {work.state['machine']}: the last bits may differ")
    work.state = {**state, "machine": work.state["machine"]}
    work.say(f"resumed at step {state['step']:,}")


def _loop(work: _Work, log: Log | None) -> None:
    """The loop of the picture above; without a log, that of a process that only helps."""
    t, state, model, optimizer, say, world = (
        work.run.train,
        work.state,
        work.model,
        work.optimizer,
        work.say,
        work.world,
    )
    stream = work.task.batches(work.run, work.corpus, DataPosition(*state["place"]))
    began = time.monotonic() - state["seconds"]
    model.train()
    with progress(work.console, work.run.name, t.steps, state["step"]) as bar, stop_politely(world) as stop:
        since, seen, loss_sum = time.monotonic(), 0, 0.0
        while state["step"] < t.steps and not _enough(state, t.patience):
            step = state["step"] = state["step"] + 1
            parts = []
            for _ in range(t.accumulate * world.size):
                make, state["place"] = next(stream)
                parts.append(make())
            tokens, mine = sum(batch.tokens for batch in parts), 0.0
            world.seed(t.seed, step)
            for batch in parts[world.rank :: world.size]:
                loss, nll = work.task.loss(model, batch.to(work.device), t.label_smoothing)
                (loss / tokens).backward()
                mine += float(nll)
            added, asked = world.add_up(model, mine, bool(stop))
            loss_sum += added
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), t.clip_norm or math.inf))
            if not math.isfinite(loss_sum + norm):  # before it reaches the weights, and so a checkpoint
                raise ValueError(
                    f"the loss is {loss_sum / tokens:.3g} and its gradient {norm:.3g} at step {step}; "
                    f"go on with --resume and a lower train.lr than {t.lr}"
                )
            lr = rate(step, t)
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if work.mean is not None:
                work.mean.update(step)
            seen += tokens

            if step % t.log_every == 0 or step == t.steps:
                speed = seen / (time.monotonic() - since)
                epoch = state["place"][0]
                if log is not None:
                    log.write(step, loss=loss_sum / seen, lr=lr, norm=norm, tokens_per_s=speed, epoch=epoch)
                bar(step, f"loss {loss_sum / seen:.3f} · {speed:,.0f} {work.task.unit}/s")
                since, seen, loss_sum = time.monotonic(), 0, 0.0
            paused = time.monotonic()
            if step % t.eval_every == 0 or step == t.steps:
                held_out = world.first(_held_out(work))
                perplexity = math.exp(min(held_out, 50))
                if log is not None:
                    log.write(step, valid_loss=held_out, perplexity=perplexity)
                    say(f"step {step:,}: held-out loss {held_out:.4f}, perplexity {perplexity:.2f}")
                    _show_samples(work)
                state["worse"] = 0 if held_out < state["best"] else state["worse"] + 1
                state["best_step"] = step if held_out < state["best"] else state.get("best_step", step)
                state["best"] = min(held_out, state["best"])
            asked = asked if world.size > 1 else bool(stop)  # alone, one need not have told the others
            saving = step % t.save_every == 0 or step == t.steps or bool(asked) or _enough(state, t.patience)
            if saving and log is not None:
                state["seconds"] = time.monotonic() - began
                checkpoint.save(work.folder, state, model, optimizer, t.average, t.save_every, work.mean)
            since += time.monotonic() - paused
            if asked or (saving and stop and world.size == 1):  # a wish that comes later is granted at the next step
                world.wait()  # until it is saved: torchrun ends all once one has ended
                raise Interrupted(f"stopped at step {step:,}, saved in {work.folder}; go on with --resume")
    if _enough(state, t.patience):
        say(f"stopped early at step {state['step']:,}: {t.patience} evaluations without a better loss")


def _finish(work: _Work, log: Log, command: str) -> Done:
    """Average, score, write the card."""
    run, steps = work.run, work.state["step"]
    held_out = _settle(work)
    best = work.state["best"]
    if held_out > best * (1 + WORSE):
        work.say(
            f"the held-out loss was lowest, {best:.4f}, at step {work.state.get('best_step', steps):,}, and rose after it: give "
            f"more data, or stop there with train.patience=2, or train.steps"
        )
    work.say("scoring held-out data")
    scores = score_split(_answering(work), "valid", 1000 if run.task == "translate" else None)
    minutes = work.state["seconds"] / 60
    text = card(run, version=VERSION, command=command, parameters=_size(work.model), minutes=minutes, steps=steps,
                loss=held_out, scores=scores)  # fmt: skip
    write_atomic(work.folder / "README.md", text.encode())
    log.write(steps, final_loss=held_out, minutes=minutes, **{s.name: s.value for s in scores})
    return Done(work.folder, steps, held_out, minutes, scores)


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _enough(state: dict[str, Any], patience: int) -> bool:
    """Whether held-out data has said often enough that it gets no better."""
    return bool(patience) and state["worse"] >= patience


def _held_out(work: _Work) -> float:
    """The mean loss of held-out data, in nats a prediction."""
    with work.mean.swapped() if work.mean else nullcontext():
        return evaluate(
            work.model, work.task.held_out(work.run, work.corpus, work.corpus.valid), work.task.loss, work.device
        )


def _settle(work: _Work) -> float:
    """Keep the mean of the last checkpoints if held-out data likes it better than the last one; leave it in the model."""
    folder, t = work.folder, work.run.train
    checkpoint.prune(folder, t.average, t.save_every)  # if a kill came before it
    files = checkpoint.models_saved(folder, work.say)[-t.average :]
    last = _held_out(work)
    if work.mean is not None:
        work.mean.apply()  # from here on the model is the mean
        work.mean = None
    if len(files) < 2:
        return last
    write_atomic(folder / "model.safetensors", to_bytes(checkpoint.average(files)))
    load_weights(work.model, folder / "model.safetensors")
    mean = _held_out(work)
    kept = "mean" if mean < last else "last"
    work.say(
        f"held-out loss of the last checkpoint {last:.4f}, of the mean of {len(files)} {mean:.4f}: kept the {kept}"
    )
    if kept == "last":
        load_weights(work.model, files[-1])
        write_atomic(folder / "model.safetensors", files[-1].read_bytes())
    return min(mean, last)


def _show_samples(work: _Work) -> None:
    """A few held-out examples, and what the model makes of them by now."""
    work.model.eval()
    with work.mean.swapped() if work.mean else nullcontext():
        for line in work.task.samples(_answering(work), work.corpus):
            work.say(f"  {line}", style="dim")
    work.model.train()


def _answering(work: _Work) -> Any:
    tokenizer = work.corpus.tokenizer if isinstance(work.corpus, TextDataset) else None
    return make_predictor(work.model, tokenizer, work.run, work.corpus.labels)
