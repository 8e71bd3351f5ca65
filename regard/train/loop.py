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
from typing import Any, NamedTuple

import torch
from rich.console import Console
from safetensors.torch import save as to_bytes
from torch import nn

from regard.config import Run, to_toml
from regard.data.batch import Place
from regard.data.corpus import Corpus, members
from regard.data.files import alone, write_atomic
from regard.data.gallery import Gallery
from regard.decode.folder import answering, pick_device
from regard.models import FAMILIES, begun, describe, fill, read_config
from regard.train import checkpoint, memory
from regard.train.card import card
from regard.train.journal import Log, progress, stop_politely
from regard.train.mean import RunningMean
from regard.train.metrics import Score, evaluate, score_split
from regard.train.optim import make_optimizer, rate
from regard.train.parallel import Team, joined
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
    with joined(pick_device(run.train.device)) as team:
        if not team.writes:
            return _help(run, folder, team)
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder):
            with _nothing_left(folder):
                work = _begin(run, folder, fresh, console or Console(stderr=True), team)
            _resume(work)
            about = describe(work.run.family, work.model.config, VERSION)
            write_atomic(folder / "config.json", json.dumps(about, indent=1).encode())
            write_atomic(folder / "run.toml", to_toml(work.run).encode())
            team.wait()  # the others may read what is here now,
            team.wait()  # and have read it
            with closing(Log(folder, work.state["step"])) as log, memory.kept():
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


def _help(run: Run, folder: Path, team: Team) -> Done:
    """What a further process does: the same steps on other batches; it writes nothing."""
    team.wait()
    if not (folder / "run.toml").exists():
        raise ValueError(f"{folder} is not the folder of the first process; several machines need a shared one")
    work = _begin(run, folder, False, Console(quiet=True), team)
    _resume(work)
    team.wait()
    with memory.kept():
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
    corpus: Corpus | Gallery
    model: Any
    optimizer: torch.optim.Optimizer
    state: dict[str, Any]  # what a checkpoint remembers beside weights and moments
    team: Team
    mean: RunningMean | None  # of the weights, if that is the model


def _begin(run: Run, folder: Path, fresh: bool, console: Console, team: Team) -> _Work:
    """Data, model, optimizer: each a function of the run and its seed."""
    going_on = (folder / "run.toml").exists() and not fresh
    if going_on:
        family, config = read_config(folder)  # refuses a folder of another version
        run = dataclasses.replace(run, family=family, model=config)
    for part in folder.glob(".*.part") if team.writes else ():  # left behind by a kill
        part.unlink()
    say = partial(console.print, soft_wrap=True, highlight=False, markup=False)
    device = pick_device(run.train.device)
    tokenizer = folder / ("tokenizer.json" if going_on else ".tokenizer.part")
    if run.init and not going_on:
        if Path(run.init).resolve() == folder.resolve():
            raise ValueError(f"init={run.init} is the folder to train in; choose another --out")
        run = begun(run)
        if (Path(run.init) / "tokenizer.json").exists():  # pictures have none
            shutil.copyfile(Path(run.init) / "tokenizer.json", tokenizer)
    task = TASKS[run.task]
    with console.status("") as status:
        count = lambda what, n: status.update(f"{what}: {n:,}")  # noqa: E731
        corpus = task.reads(run, tokenizer, say, count)
    run = run if going_on else _sized(run, corpus)
    torch.manual_seed(run.train.seed)
    model = FAMILIES[run.family].build(run.model).to(device)
    if isinstance(corpus, Corpus):
        _check_places(run, task, model.longest)
    if run.init and not (going_on and any((folder / "checkpoints").glob("step-*"))):
        fill(model, Path(run.init) / "model.safetensors", fresh="classes.")  # before anything is thrown away
        say(f"begins with the weights of {run.init}")
    if not run.init and (advice := getattr(run.model, "advice", "")):
        say(advice)
    if len(members(run.data)) > 1 and run.train.accumulate * team.size < 4:
        say("a batch holds texts of one length, and so often of one set: a step of several learns better, such as with "
            "train.tokens=1024 train.accumulate=4")  # fmt: skip
    if not going_on:
        _try(task, run, corpus)
        _clear(folder)
        if isinstance(corpus, Corpus):
            os.replace(tokenizer, folder / "tokenizer.json")
        if corpus.labels:
            write_atomic(folder / "labels.txt", "".join(f"{label}\n" for label in corpus.labels).encode())
    words = f", {corpus.tokenizer.vocab:,} tokens in the vocabulary" if isinstance(corpus, Corpus) else ""
    say(f"{run.family}: {_size(model):,} parameters on {device}{words}")
    machine = f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads"
    machine += f", {team.size} processes" if team.size > 1 else ""
    state = {"step": 0, "place": Place(), "best": math.inf, "worse": 0, "seconds": 0.0,
             "data": corpus.train.digest, "machine": machine}  # fmt: skip
    mean = RunningMean(model, run.train.ema) if run.train.ema else None
    optimizer = make_optimizer(model, run.train)
    return _Work(run, task, folder, console, say, device, corpus, model, optimizer, state, team, mean)


def _check_places(run: Run, task: Task, longest: int) -> None:
    """Refuse texts longer than the model has places for, or places that no text would reach."""
    if run.data.longest + task.ends > longest:
        raise ValueError(
            f"data.longest={run.data.longest} and {task.ends} for start or end are more than the model's {longest} learned "
            f"positions; set data.longest={longest - task.ends}"
            + ("" if run.init else f" or model.longest={run.data.longest + task.ends}")
        )
    if run.task == "next" and not run.init and run.data.longest < longest:
        raise ValueError(
            f"data.longest={run.data.longest} would leave places {run.data.longest + 1} to {longest} of the model without "
            f"training; set model.longest={run.data.longest} too, or data.longest={longest}"
        )


def _try(task: Task, run: Run, corpus: Corpus | Gallery) -> None:
    """Take the first batches: what is wrong with the data is said before anything is thrown away, or hours are spent."""
    next(task.batches(run, corpus, Place()))
    if next(task.held_out(run, corpus, corpus.valid), None) is None:
        raise ValueError("the held-out data has nothing to predict; give more of it")


def _sized(run: Run, corpus: Corpus | Gallery) -> Run:
    """The run with what its data decides: how many tokens, and how many classes."""
    found: dict[str, int] = {"vocab": corpus.tokenizer.vocab} if isinstance(corpus, Corpus) and not run.init else {}
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
    t, state, model, optimizer, say, team = work.run.train, work.state, work.model, work.optimizer, work.say, work.team
    stream = work.task.batches(work.run, work.corpus, Place(*state["place"]))
    began = time.monotonic() - state["seconds"]
    model.train()
    with progress(work.console, work.run.name, t.steps, state["step"]) as bar, stop_politely(team) as stop:
        since, seen, loss_sum = time.monotonic(), 0, 0.0
        while state["step"] < t.steps and not _enough(state, t.patience):
            step = state["step"] = state["step"] + 1
            parts = []
            for _ in range(t.accumulate * team.size):
                batch, state["place"] = next(stream)
                parts.append(batch)
            tokens, mine = sum(batch.tokens for batch in parts), 0.0
            team.seed(t.seed, step)
            for batch in parts[team.rank :: team.size]:
                loss, nll = work.task.loss(model, batch.to(work.device), t.smoothing)
                (loss / tokens).backward()
                mine += float(nll)
            added, asked = team.add_up(model, mine, bool(stop))
            loss_sum += added
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), t.clip or math.inf))
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
                work.mean.follow(step)
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
                held_out = team.first(_held_out(work))
                perplexity = math.exp(min(held_out, 50))
                if log is not None:
                    log.write(step, valid_loss=held_out, perplexity=perplexity)
                    say(f"step {step:,}: held-out loss {held_out:.4f}, perplexity {perplexity:.2f}")
                    _show_samples(work)
                state["worse"] = 0 if held_out < state["best"] else state["worse"] + 1
                state["best_step"] = step if held_out < state["best"] else state.get("best_step", step)
                state["best"] = min(held_out, state["best"])
            asked = asked if team.size > 1 else bool(stop)  # alone, one need not have told the others
            saving = step % t.save_every == 0 or step == t.steps or bool(asked) or _enough(state, t.patience)
            if saving and log is not None:
                state["seconds"] = time.monotonic() - began
                checkpoint.save(work.folder, state, model, optimizer, t.average, t.save_every, work.mean)
            since += time.monotonic() - paused
            if asked or (saving and stop and team.size == 1):  # a wish that comes later is granted at the next step
                team.wait()  # until it is saved: torchrun ends all once one has ended
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
    with work.mean.instead() if work.mean else nullcontext():
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
        work.mean.settle()  # from here on the model is the mean
        work.mean = None
    if len(files) < 2:
        return last
    write_atomic(folder / "model.safetensors", to_bytes(checkpoint.average(files)))
    fill(work.model, folder / "model.safetensors")
    mean = _held_out(work)
    kept = "mean" if mean < last else "last"
    work.say(
        f"held-out loss of the last checkpoint {last:.4f}, of the mean of {len(files)} {mean:.4f}: kept the {kept}"
    )
    if kept == "last":
        fill(work.model, files[-1])
        write_atomic(folder / "model.safetensors", files[-1].read_bytes())
    return min(mean, last)


def _show_samples(work: _Work) -> None:
    """A few held-out examples, and what the model makes of them by now."""
    work.model.eval()
    with work.mean.instead() if work.mean else nullcontext():
        for line in work.task.samples(_answering(work), work.corpus):
            work.say(f"  {line}", style="dim")
    work.model.train()


def _answering(work: _Work) -> Any:
    tokenizer = work.corpus.tokenizer if isinstance(work.corpus, Corpus) else None
    return answering(work.model, tokenizer, work.run, work.corpus.labels)
