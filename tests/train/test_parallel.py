"""Processes started by torchrun train as one process that accumulates more batches; they stop, resume and fail together."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from killed import import_for_training
from rich.console import Console
from safetensors.torch import load_file
from torch import nn

from regard.run_folder import RunFolder
from regard.tasks import TASKS, read_run, task_of
from regard.train import loop
from regard.train.parallel import World, joined

COPY = ("train", "copy", "model.dim=16", "model.heads=2", "data.pairs=300", "train.batch_tokens=256", "train.eval_every=1000",
        "train.save_every=1000", "train.log_every=1", "train.warmup=4", "train.average=1")  # fmt: skip
EVEN, DROPS = "model.dropout=0.0", "model.dropout=0.3"
ALONE = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "TERM": "dumb"}
PATIENCE = 600  # seconds until a process counts as hanging, on any machine


@contextmanager
def torchrun(*words: object) -> Iterator[subprocess.Popen]:
    """Two processes, as a user starts them; none is left running."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.Popen([*launcher, *map(str, words)], stdout=-1, stderr=-1, text=True, env={**os.environ, **ALONE})
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()  # and it ends the others
                process.communicate()


# --- a server: torch is imported once by each of torchrun's processes, and a training is then a fork away -----------


def serve(home: Path) -> None:
    """Be one of the processes: do the orders one after another, each in a child, and write down its exit code."""
    import_for_training()
    rank = int(os.environ["RANK"])
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # torchrun's store serves one process group only
    for number, order in enumerate(json.loads((home / "orders.json").read_text())):
        if rank == 0:
            with socket.create_server(("127.0.0.1", 0)) as free:
                tell(home / f"{number}.port", free.getsockname()[1])
        while not (home / f"{number}.port").exists():
            time.sleep(0.01)
        if not (child := os.fork()):
            os.environ["MASTER_PORT"] = (home / f"{number}.port").read_text()
            obey(order, rank, home / f"{number}.{rank}.log")
        tell(home / f"{number}.{rank}.status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        while len(list(home.glob(f"{number}.*.status"))) < 2:
            time.sleep(0.01)


def tell(file: Path, number: int) -> None:
    """Write a number atomically."""
    file.with_suffix(".part").write_text(str(number))
    file.with_suffix(".part").rename(file)


def obey(order: dict, rank: int, log: Path) -> None:
    """Be the child; `ask` is a rank and the step in which it, alone, is asked to stop."""
    from regard.cli import main

    out = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    real, (asked, last) = loop.learning_rate, order.get("ask", (None, None))

    def learning_rate(step, *rest):
        if (rank, step) == (asked, last):
            for _ in range(2):  # as when torchrun forwards a signal that all have got already
                os.kill(os.getpid(), signal.SIGTERM)
        return real(step, *rest)

    loop.learning_rate = learning_rate
    sys.argv = ["regard", *order["args"]]
    code = 70
    try:
        code = main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


ORDERS = {
    "even": [{"changes": (EVEN, "train.steps=6")}],
    "whole": [{"changes": (DROPS, "train.steps=6")}],
    "halved": [{"changes": (DROPS, "train.steps=3")}, {"changes": (DROPS, "train.steps=6", "--resume")}],
    "asked": [{"changes": (DROPS, "train.steps=6"), "ask": (1, 2)},
              {"changes": (DROPS, "train.steps=6", "--resume")}],
    "mistaken": [{"changes": ("data.source=", "data.train=none.tsv", "data.valid=none.tsv")}],
}  # fmt: skip


class Trained:
    """What the processes did: the folders of their runs, exit codes and output."""

    def __init__(self, home: Path):
        self.home = home
        orders = [
            {**order, "args": [*COPY, *order["changes"], "--out", str(home / name)]}
            for name, orders in ORDERS.items()
            for order in orders
        ]
        (home / "orders.json").write_text(json.dumps(orders))
        with torchrun(__file__, home) as process:
            _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors
        self.names = [name for name, orders in ORDERS.items() for _ in orders]

    def ended(self, name: str) -> list[list[int]]:
        """The exit codes of both processes, for each order with this folder."""
        numbers = [number for number, known in enumerate(self.names) if known == name]
        return [[int((self.home / f"{n}.{rank}.status").read_text()) for rank in (0, 1)] for n in numbers]

    def output(self, name: str, rank: int) -> str:
        numbers = [number for number, known in enumerate(self.names) if known == name]
        return "".join((self.home / f"{n}.{rank}.log").read_text() for n in numbers)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Trained:
    return Trained(tmp_path_factory.mktemp("parallel"))


@pytest.fixture
def alone(regard, tmp_path):
    """Train in this process, with one core as each of torchrun's has, and return the folder."""
    before, made = torch.get_num_threads(), 0

    def train(*changes: str, out: Path | None = None) -> Path:
        nonlocal made
        made += 1
        out = out or tmp_path / f"alone {made}"
        result = regard(*COPY, *changes, "--out", out)
        assert result.code == 0, result.err
        return out

    torch.set_num_threads(1)
    yield train
    torch.set_num_threads(before)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


def log(run: Path, *names: str) -> list[list[float]]:
    """These values of each log line that has them all."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [[line[name] for name in names] for line in lines if all(name in line for name in names)]


def near(run: Path, other: Path) -> bool:
    left, right = weights(run), weights(other)
    assert left.keys() == right.keys()
    return all(torch.allclose(left[name], right[name], rtol=0, atol=1e-6) for name in left)


# --- training ------------------------------------------------------------------------------------------------


def test_two_processes_train_as_one_that_accumulates_two_batches(trained, alone):
    assert trained.ended("even") == [[0, 0]]
    both = alone(EVEN, "train.steps=6", "train.accumulate=2")
    assert near(trained.home / "even", both)
    names = ("step", "loss", "norm", "lr", "epoch")
    for got, wanted in zip(log(trained.home / "even", *names), log(both, *names), strict=True):
        assert got == pytest.approx(wanted, abs=1e-5)
    assert not near(trained.home / "even", alone(EVEN, "train.steps=6"))  # one batch a step is another training


def test_only_the_first_process_reports_and_writes(trained):
    assert "saved in" in trained.output("even", 0)
    assert trained.output("even", 1) == ""
    assert len(log(trained.home / "even", "loss")) == 6
    assert len(log(trained.home / "even", "final_loss")) == 1


def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(trained):
    assert trained.ended("whole") == [[0, 0]]
    assert trained.ended("halved") == [[0, 0], [0, 0]]
    assert "resumed at step 3" in trained.output("halved", 0)
    whole, halved = (trained.home / name / "model.safetensors" for name in ("whole", "halved"))
    assert whole.read_bytes() == halved.read_bytes()
    assert not near(whole.parent, trained.home / "even")  # dropout was on
    names = ("step", "loss", "norm")
    assert log(whole.parent, *names) == log(halved.parent, *names)


def test_if_one_process_is_asked_to_stop_both_stop_after_the_same_step_and_resume_to_the_same_bits(trained):
    assert trained.ended("asked") == [[130, 130], [0, 0]]
    assert "stopped at step 3, saved in" in trained.output("asked", 0)  # the step after the one in which it was asked
    assert "resumed at step 3" in trained.output("asked", 0)
    whole, asked = (trained.home / name / "model.safetensors" for name in ("whole", "asked"))
    assert whole.read_bytes() == asked.read_bytes()


# --- the command line -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)], ids=["SIGINT", "SIGTERM"]
)
def test_a_torchrun_that_is_asked_to_stop_leaves_a_checkpoint_to_resume_from(alone, tmp_path, number):
    run = tmp_path / "run"
    with torchrun("-m", "regard", *COPY, EVEN, "train.steps=100000", "--out", run) as process:
        patience = time.monotonic() + PATIENCE
        while process.poll() is None and not (run / "log.jsonl").exists() and time.monotonic() < patience:
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode not in (0, None)
    [saved] = (run / "checkpoints").iterdir()
    step = int(saved.name.removeprefix("step-"))
    assert f"regard: stopped at step {step:,}, saved in {run}; continue with --resume" in errors
    assert [logged for logged, _ in log(run, "step", "loss")] == list(range(1, step + 1))
    more = (EVEN, "train.accumulate=2", f"train.steps={step + 2}")
    assert near(alone(*more, "--resume", out=run), alone(*more))


def test_a_second_training_in_the_same_folder_is_refused_in_one_line_by_all(trained):
    run = trained.home / "whole"
    before = weights(run)
    with torchrun("-m", "regard", *COPY, "--out", run) as process:
        output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode not in (0, None)
    [line] = [line for line in errors.splitlines() if line.startswith("regard: ")]
    assert line.startswith(f"regard: {run} holds a run already; continue with --resume")
    assert output == ""
    assert all(torch.equal(weights(run)[name], before[name]) for name in before)


def test_an_error_of_the_first_process_is_one_line_and_no_process_waits(trained):
    [[first, second]] = trained.ended("mistaken")
    assert first == 2
    assert second != 0
    assert trained.output("mistaken", 0) == "regard: no file none.tsv; check the path\n"
    assert trained.output("mistaken", 1) == ""


# --- batches ---


class Ranked(World):
    """One of several processes, without the others: reductions return its own values."""

    def wait(self) -> None: ...

    def broadcast(self, value: float) -> float:
        return value

    def total(self, count: int) -> int:
        return count

    def copy_from_main(self, tensors) -> None: ...

    def all_reduce(self, model: nn.Module, *values: float) -> list[float]:
        return list(values)


def batches_made(monkeypatch, folder: Path, rank: int, size: int, accumulate: int) -> list[int]:
    """Train two steps as one of `size` processes; returns the indices of the batches it made in the loop."""
    run = read_run("copy", [*COPY[2:], EVEN, "train.steps=2", f"train.accumulate={accumulate}", "train.device=cpu"])
    task, made = task_of(run), []

    def counted(run, dataset, position):
        def build(make, index):
            made.append(index)
            return make()

        for index, (make, after) in enumerate(task.batches(run, dataset, position)):
            yield partial(build, make, index), after

    files = RunFolder(folder)
    with monkeypatch.context() as patch, files.locked():
        patch.setitem(TASKS, run.task, dataclasses.replace(task, batches=counted))
        training = loop._begin(run, files, True, Console(quiet=True), Ranked(0, size))
        training.world = Ranked(rank, size)  # a worker begins in the folder that the first process has made
        made.clear()  # the batch that tries the data
        loop._loop(training, None)
    return made


@pytest.mark.parametrize("accumulate", [1, 2])
def test_each_process_makes_its_own_batches_only(monkeypatch, tmp_path, accumulate):
    size = 3
    made = [batches_made(monkeypatch, tmp_path / str(rank), rank, size, accumulate) for rank in range(size)]
    assert [len(indices) for indices in made] == [2 * accumulate] * size
    assert made == [list(range(rank, 2 * accumulate * size, size)) for rank in range(size)]


# --- World ---------------------------------------------------------------------------------------------------------


def test_without_torchrun_there_is_one_process_that_reduces_and_seeds_nothing(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    model = nn.Linear(2, 2)
    model(torch.ones(2)).sum().backward()
    before, grad = torch.get_rng_state(), model.weight.grad.clone()
    with joined(torch.device("cpu")) as world:
        assert (world.rank, world.size, world.is_main) == (0, 1, True)
        world.wait()
        world.seed(1, 1)
        assert world.all_reduce(model, 2.5, True) == [2.5, True]
        assert world.total(7) == 7
        assert world.broadcast(2.5) == 2.5
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(model.weight.grad, grad)


@pytest.mark.parametrize("device", ["mps", "cuda:0"])
def test_several_processes_on_one_device_are_refused_before_they_meet(monkeypatch, device):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=f"train.device={device} and several processes"), joined(torch.device(device)):
        pass


def test_each_process_samples_other_dropout_masks_at_each_step_and_the_same_ones_again():
    def sampled(rank: int, size: int, seed: int, step: int) -> float:
        World(rank, size).seed(seed, step)
        return torch.rand(1, dtype=torch.float64).item()

    with torch.random.fork_rng():
        for size in (2, 3):
            every = [(rank, size, seed, step) for rank in range(size) for seed in (0, 1, 2) for step in range(1, 20)]
            numbers = [sampled(*case) for case in every]
            assert len(set(numbers)) == len(every)
            assert numbers == [sampled(*case) for case in every]


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
