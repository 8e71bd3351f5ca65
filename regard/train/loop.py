"""`fit`: the only training loop.

next batch ─▶ loss ─▶ backward ─▶ clip ─▶ step ─┬▶ every n steps: log, evaluate, sample, save
     ▲                                          │
     └──────────────────────────────────────────┘
"""

import dataclasses
import math
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.text import Text
from safetensors.torch import save as to_bytes
from torch import nn

from regard.config import Run, to_toml
from regard.data.files import write_atomic
from regard.data.machine import bound_products
from regard.data.position import DataPosition
from regard.data.terminal import printable
from regard.data.units import format_size
from regard.models import load_weights, new_model, read_config, saved_tensors, state_tensors
from regard.run_folder import RunFolder
from regard.shipped import find_run
from regard.tasks import task_of
from regard.tasks.finetuning import copy_tokenizer, load_encoder_weights, load_init_weights
from regard.tasks.load import pick_device
from regard.tasks.metrics import Score, evaluate, to_device
from regard.tasks.mixing import score_mixed
from regard.tasks.task import Dataset, ScoreOptions, Task
from regard.train import checkpoint, malloc
from regard.train.card import card
from regard.train.divergence import Divergence, unchanged
from regard.train.ema import EMA
from regard.train.estimate import StepTimer, checkpoint_bytes, memory_bytes, peak_memory, shortages
from regard.train.log import Log, progress_bar, stop_on_signal
from regard.train.mixed_losses import KEY, describe, first_losses, mixed_losses
from regard.train.optim import learning_rate, make_optimizer
from regard.train.parallel import World, joined
from regard.train.state import TrainState
from regard.version import VERSION

__all__ = ["Done", "Interrupted", "fit"]

SAVE_SECONDS = 600.0  # after which a checkpoint is saved though none is due; it is deleted once the next one is there
WORSE = 0.02  # relative rise of the validation loss above its lowest that is reported at the end


class Done(NamedTuple):
    """How a training ended."""

    folder: Path
    steps: int
    loss: float  # on validation data, nats per prediction
    minutes: float
    scores: list[Score]


class Interrupted(Exception):
    """The user stopped the training; a checkpoint was written first."""


def fit(
    run: Run, folder: Path, *, fresh: bool = False, command: str = "", console: Console | None = None, notes: Sequence[str] = (),
) -> Done:  # fmt: skip
    """Train a run in its folder, from its newest checkpoint if there is one, and leave a model, its card and its log.

    With `fresh` an earlier run in the folder is deleted, once the new one's data has been checked.  `notes` are reported then.
    """
    bound_products()
    elsewhere = str(Path(run.train.checkpoints).expanduser().resolve()) if run.train.checkpoints else ""
    run = dataclasses.replace(run, train=dataclasses.replace(run.train, checkpoints=elsewhere))
    files = RunFolder(folder, elsewhere)
    with joined(pick_device(run.train.device)) as world:
        if not world.is_main:
            return _fit_worker(run, files, world)
        with files.locked(fresh):
            with files.removed_if_unused():
                training = _begin(run, files, fresh, console or Console(stderr=True), world)
            for note in notes:
                training.report(note)
            _resume(training)
            complete = training.state.step >= run.train.steps and files.card.exists()
            if training.state.step > run.train.steps:
                training.report(f"nothing is left to train: {training.state.step:,} steps are done, train.steps is "
                                f"{run.train.steps:,}; to train on, raise it")  # fmt: skip
                training.run = dataclasses.replace(
                    training.run, train=dataclasses.replace(run.train, steps=training.state.step)
                )  # run.toml says what was done
            elif complete:
                training.report("all steps are done; to train on, raise train.steps")
            if not complete:  # else run.toml and the card say how it was trained
                files.write_description(training.run.family, dataclasses.asdict(training.run.model), VERSION)
                files.write_run(to_toml(training.run))
            world.wait()  # the others may read the folder now,
            world.wait()  # and have read it
            with closing(Log(files, training.state.step)) as log, malloc.keep_freed():
                _loop(training, log)
                return _finish(training, log, "" if complete else command or _command(files))


def _command(files: RunFolder) -> str:
    """How to train a run that Python started again."""
    return shlex.join(["regard", "train", str(files.run), "--out", f"{files.path}-again"])


def _fit_worker(run: Run, files: RunFolder, world: World) -> Done:
    """A further process: the same steps on other batches; it writes nothing."""
    world.wait()
    if not files.started:
        raise ValueError(f"{files.path} is not the folder of the first process; several machines need a shared one")
    training = _begin(run, files, False, Console(quiet=True), world)
    _resume(training)
    world.wait()
    with malloc.keep_freed():
        _loop(training, None)
    return Done(files.path, training.state.step, math.nan, 0.0, [])


@dataclass
class _Training:
    """What the stages of a training pass on."""

    run: Run
    task: Task[Any, Any, Any, Any]
    files: RunFolder
    console: Console
    report: Callable[..., None]
    device: torch.device
    dataset: Dataset
    model: nn.Module
    optimizer: torch.optim.Optimizer
    state: TrainState
    world: World
    ema: EMA | None  # if that is the model

    def averaged(self) -> AbstractContextManager[None]:
        """The EMA in place of the model's weights, if there is one."""
        return self.ema.swapped() if self.ema else nullcontext()

    def validation_loss(self) -> float:
        """Mean loss of the validation data, in nats per prediction."""
        with self.averaged():
            return evaluate(self.model, self.task.validation(self.run, self.dataset), self.task.loss)

    def last_saved(self) -> int:
        """The step of the newest checkpoint; 0 if there is none."""
        return max((saved.step for saved in self.files.saved()), default=0)

    def mixed_losses(self) -> dict[str, float]:
        """The same for the data that is mixed in, by its name."""
        with self.averaged():
            return mixed_losses(self.task, self.run, self.dataset, self.model)

    def predictor(self) -> Any:
        """The model as users will get it."""
        return self.task.predictor(self.model, self.run, self.dataset.tokenizer, self.dataset.labels)


def _begin(run: Run, files: RunFolder, fresh: bool, console: Console, world: World) -> _Training:
    """Data, model, optimizer: each a function of the run and its seed."""
    saved = bool(files.saved())  # else it was stopped before its first checkpoint, and starts over
    resuming = not world.is_main or (files.started and saved and not fresh)
    if world.is_main and files.started and not saved and not fresh and files.weights.exists():
        raise ValueError(f"{files.path} holds a model, but {files.checkpoints} no checkpoint of it; restore one, or start over "
                         f"with --fresh")  # fmt: skip
    if not resuming:
        files.refuse_foreign()
    report = partial(_report, console)
    if files.started and not resuming and not fresh:
        report(f"no checkpoint in {files.path} yet; starting from step 0")
    device, task = pick_device(run.train.device), task_of(run)
    _check_r_drop(run, task)

    # 1) A resumed run keeps its model; a fine-tuned one takes its tokenizer from another run.
    if resuming:
        family, config = read_config(files.path)  # refuses a folder of another version
        run = dataclasses.replace(run, family=family, model=config)
    tokenizer = files.tokenizer if resuming else files.new_tokenizer
    if run.init and not resuming:
        if Path(run.init).resolve() == files.path.resolve():
            raise ValueError(f"init={run.init} is the folder to train in; choose another --out")
        copy_tokenizer(run, tokenizer)

    # 2) The data, encoded; it decides the size of the vocabulary and the number of classes.
    with console.status("") as status:
        dataset = task.prepare(run, tokenizer, report, lambda what, done: status.update(Text(printable(f"{what}: {done:,}"))))
    if not resuming:
        vocab = read_config(find_run(run.init))[1].vocab if run.init and dataset.tokenizer else None
        counted = {"vocab": vocab or dataset.tokenizer.vocab} if dataset.tokenizer else {}
        counted |= {"classes": len(dataset.labels)} if dataset.labels else {}
        languages = getattr(dataset, "languages", "") or run.languages
        if run.languages not in ("", languages):
            raise ValueError(f"languages={run.languages}, but the data names {languages}; leave languages out, or choose others "
                             "with data.pair or data.columns")  # fmt: skip
        run = dataclasses.replace(run, model=dataclasses.replace(run.model, **counted), languages=languages)

    # 3) The model, with weights of its own or of another run.
    model = new_model(run.family, run.model, run.train.seed).to(device)
    task.check(run, model)
    if run.init and not (resuming and saved):
        load_init_weights(run, model)  # before anything is deleted
        report(f"initialized with the weights of {run.init}")
    elif run.init_encoder and not (resuming and saved):
        load_encoder_weights(run, model)
        report(f"the encoder is initialized with the weights of {run.init_encoder}")
    elif not run.init and (advice := getattr(run.model, "advice", "")):
        report(advice)
    if advice := task.advice(run, run.train.accumulate * world.size):
        report(advice)

    # 4) Try the data before an earlier run is deleted, or hours are spent.
    if not resuming:
        make, _ = next(task.batches(run, dataset, DataPosition()))
        make()
        if next(task.validation(run, dataset), None) is None:
            raise ValueError("the validation data has nothing to predict; give more of it")
        files.begin(text=dataset.tokenizer is not None, labels=dataset.labels)

    # 5) What the loop needs.
    words = f", vocabulary of {dataset.tokenizer.vocab:,} tokens" if dataset.tokenizer else ""
    report(f"{run.family}: {sum(p.numel() for p in model.parameters()):,} parameters on {device}{words}")
    t = run.train
    steps = f"{t.steps:,} step{'s' * (t.steps > 1)} of up to {task.batch_text(run, t.accumulate * world.size)}"
    report(f"{steps}; weights, gradients and optimizer take {format_size(memory_bytes(model, t))} of memory, checkpoints up to "
           f"{format_size(checkpoint_bytes(model, t))} on disk")  # fmt: skip
    if t.warmup > t.steps:
        report(f"train.warmup={t.warmup} is longer than train.steps={t.steps}: the learning rate never reaches "
               f"train.lr={t.lr:g}; set train.warmup lower")  # fmt: skip
    for warning in shortages(model, t, files, device.type == "cpu") if world.is_main else ():
        report(warning)
    machine = f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads"
    state = TrainState(dataset.train.digest, machine + (f", {world.size} processes" if world.size > 1 else ""))
    ema = EMA(model, t.ema) if t.ema else None
    optimizer = make_optimizer(model, t)
    return _Training(run, task, files, console, report, device, dataset, model, optimizer, state, world, ema)


def _check_r_drop(run: Run, task: Task[Any, Any, Any, Any]) -> None:
    if run.train.r_drop and task.r_drop is None:
        raise ValueError(f"train.r_drop={run.train.r_drop:g}, which task {task.name} does not offer; leave it out")
    if run.train.r_drop and not any(getattr(run.model, key, 0.0) for key in ("dropout", "attention_dropout")):
        raise ValueError(f"train.r_drop={run.train.r_drop:g} compares two dropout masks, but model.dropout is 0; raise that, or "
                         f"leave train.r_drop out")  # fmt: skip


def _resume(training: _Training) -> None:
    """Go back to where an earlier training stopped, if there was one."""
    found = checkpoint.newest(training.files, training.report)
    if found is None:
        return
    saved, state = found
    if state.data != training.state.data:
        raise ValueError(f"{training.files.path}: the training data has changed since step {state.step}; restore it, or start "
                         f"over with --fresh")  # fmt: skip
    checkpoint.restore(saved, training.model, training.optimizer, training.ema)
    if state.machine != training.state.machine:
        training.report(f"was trained on {state.machine}, resumes on {training.state.machine}: the last bits may differ")
    training.state = dataclasses.replace(state, machine=training.state.machine)
    training.report(f"resumed at step {state.step:,}")


def _loop(training: _Training, log: Log | None) -> None:
    """The loop of the figure above; without a log, that of a worker process."""
    t, state, model, optimizer, world = (training.run.train, training.state, training.model, training.optimizer, training.world)
    task, report = training.task, training.report
    r_drop = task.r_drop
    loss_of = (lambda model, batch, smoothing: r_drop(model, batch, smoothing, t.r_drop)) if r_drop and t.r_drop else task.loss
    stream = task.batches(training.run, training.dataset, state.position)
    began = time.monotonic() - state.seconds
    world.copy_from_main(state_tensors(model).values())
    old_losses = _first_losses(training, log) if log is not None else {}
    model.train()
    divergence: Divergence | None = None
    timer, name = StepTimer(t), training.run.name
    with progress_bar(training.console, report, name, timer, state.step) as progress, stop_on_signal(world) as stop:
        since, timed = time.monotonic(), 0
        saved_at = since
        while state.step < t.steps and not state.stopped_early(t.patience):
            state.step, started = state.step + 1, time.monotonic()

            # 1) The batches of this step; each process makes its own only.
            batches = []
            for i in range(t.accumulate * world.size):
                make, state.position = next(stream)
                if i % world.size == world.rank:
                    batches.append(make())
            tokens, nll = world.total(sum(batch.tokens for batch in batches)), 0.0

            # 2) Loss and gradients, averaged over the predictions of all processes.
            world.seed(t.seed, state.step)
            for batch in batches:
                loss, batch_nll = loss_of(model, to_device(batch, training.device), t.label_smoothing)
                (loss / tokens).backward()
                nll += float(batch_nll)
            nll, asked = world.all_reduce(model, nll, bool(stop))
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), t.clip_norm or math.inf))
            state.first_loss = state.first_loss or nll / tokens
            divergence = divergence or Divergence(model, t, state.first_loss, training.last_saved)
            divergence.check_step(state.step, nll / tokens, norm)  # before it reaches the weights

            # 3) One step of the optimizer.
            lr = learning_rate(state.step, t)
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if training.ema is not None:
                training.ema.update(state.step)
            state.loss_sum, state.predictions, timed = state.loss_sum + nll, state.predictions + tokens, timed + tokens

            # 4) Log.
            last, paused = state.step == t.steps, time.monotonic()
            timer.step(paused - started)
            speed, mean = timed / (paused - since), state.loss_sum / state.predictions
            progress.update(state.step, mean, f"{speed:,.0f} {task.unit}s/s")
            if timer.ready:
                report(timer.summary(state.step, peak_memory(training.device.type == "cuda")))
            if state.step % t.log_every == 0 or last:
                if log is not None:
                    log.write(state.step, loss=mean, lr=lr, norm=norm, tokens_per_s=speed, epoch=state.position.epoch,
                              seconds_left=round(timer.left(state.step), 1))  # fmt: skip
                since, timed, state.loss_sum, state.predictions = time.monotonic(), 0, 0.0, 0
            paused, valid = time.monotonic(), 0.0

            # 5) Evaluate and show samples.
            if state.step % t.eval_every == 0 or last:
                valid = world.broadcast(training.validation_loss())
                if log is not None:
                    perplexity = {"perplexity": math.exp(min(valid, 50))} if task.perplexity else {}
                    mixed = training.mixed_losses()
                    log.write(state.step, valid_loss=valid, **perplexity, **{KEY + name: loss for name, loss in mixed.items()})
                    words = "".join(f", {name} {value:.2f}" for name, value in perplexity.items())
                    report(f"step {state.step:,}: validation loss {valid:.4f}{describe(mixed, old_losses)}{words}")
                    _show_samples(training)
                state.record(valid)
                timer.pause("evaluation", t.eval_every, time.monotonic() - paused)
            evaluated = time.monotonic()

            # 6) Save, and stop if asked to.
            asked = asked if world.size > 1 else bool(stop)  # several processes stop at the step they have agreed on
            saving = state.step % t.save_every == 0 or last or bool(asked) or state.stopped_early(t.patience)
            saving = saving or (world.size == 1 and time.monotonic() - saved_at >= SAVE_SECONDS)  # several would have to agree
            if saving:  # only weights that have not diverged
                with unchanged(model):
                    after = float(task.loss(model, to_device(batches[-1], training.device), t.label_smoothing)[1])
                count = max(1, int(world.broadcast(batches[-1].tokens)))
                before, after = (world.broadcast(value / count) for value in (float(batch_nll), after))
                divergence.check_weights(state.step, state_tensors(model).values(), before, after, count, valid)
            if saving and log is not None:
                state.seconds = time.monotonic() - began
                checkpoint.save(training.files, state, model, optimizer, t.average, t.save_every, training.ema, t.keep_every)
                saved_at = time.monotonic()
                timer.pause("checkpoint", t.save_every, saved_at - evaluated)
            since += time.monotonic() - paused
            if asked or (saving and stop and world.size == 1):  # a later request is met at the next step
                world.wait()  # until it is saved: torchrun ends all once one has ended
                raise Interrupted(f"stopped at step {state.step:,}, saved in {training.files.path}; continue with --resume")
    if state.stopped_early(t.patience):
        report(f"stopped early at step {state.step:,}: {t.patience} evaluations without a lower validation loss")


def _first_losses(training: _Training, log: Log) -> dict[str, float]:
    """The losses of the data that is mixed in before fine-tuning; a resumed run reads them from its log."""
    before = first_losses(log.file)
    if training.run.init and not training.state.step and not before:
        before = training.mixed_losses()
        if before:
            log.write(0, **{KEY + name: loss for name, loss in before.items()})
            training.report(f"before fine-tuning: validation loss of {describe(before, {})[2:-1]}")
    return before


def _finish(training: _Training, log: Log, command: str) -> Done:
    """Average, score, write the card; without a command, the card stays as it is."""
    run, state, task = training.run, training.state, training.task
    loss = _average(training)
    if loss > state.best * (1 + WORSE):
        training.report(f"the validation loss was lowest, {state.best:.4f}, at step {state.best_step:,}, and rose after it: give "
                        f"more data, or stop there with train.patience=2, or train.steps")  # fmt: skip
    training.report("scoring the validation data")
    training.model.eval()
    predictor, options = training.predictor(), ScoreOptions(limit=task.score_limit)
    scores = [*task.score(predictor, "valid", options), *score_mixed(task, predictor, options)]
    minutes, count = state.seconds / 60, sum(p.numel() for p in training.model.parameters())
    text = card(run, folder=training.files.path, version=VERSION, command=command, parameters=count, minutes=minutes,
                steps=state.step, loss=loss, scores=scores, batches=run.train.accumulate * training.world.size)  # fmt: skip
    if command:
        write_atomic(training.files.card, text.encode())
    log.write(state.step, final_loss=loss, minutes=minutes, **{score.name: score.value for score in scores})
    return Done(training.files.path, state.step, loss, minutes, scores)


def _average(training: _Training) -> float:
    """Average the last checkpoints, if that lowers the validation loss, and leave the better weights in the model."""
    files, t = training.files, training.run.train
    checkpoint.prune(files, t.average, t.save_every, training.state.step, t.keep_every)  # if a kill came before it
    weights = checkpoint.intact_weights(files, training.report)[-t.average :]
    last = training.validation_loss()
    if training.ema is not None:
        training.ema.apply()  # from here on the model is the average
        training.ema = None
    if len(weights) < 2:
        return last
    trained = to_bytes(saved_tensors(training.model))
    write_atomic(files.weights, to_bytes(checkpoint.average(weights)))
    load_weights(training.model, files.weights)
    mean = training.validation_loss()
    kept = "average" if mean < last else "last"
    how = f"{mean:.4f} of the average of {len(weights)}: kept the {kept}"
    training.report(f"validation loss {last:.4f} of the last checkpoint, {how}")
    if kept == "last":
        write_atomic(files.weights, trained)
        load_weights(training.model, files.weights)
    return min(mean, last)


def _report(console: Console, text: str, style: str | None = None) -> None:
    """Print a line that may quote data: neither its brackets nor its control characters are obeyed."""
    console.print(printable(text), style=style, soft_wrap=True, highlight=False, markup=False)


def _show_samples(training: _Training) -> None:
    """Show the model's output on a few validation examples."""
    training.model.eval()
    with training.averaged():
        for line in training.task.samples(training.predictor(), training.dataset):
            training.report(f"  {line}", style="dim")
    training.model.train()
