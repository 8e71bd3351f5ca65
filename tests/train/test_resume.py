"""A run that is killed or interrupted resumes to the same bits."""

import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from resume_bench import STEPS, Bench, left


def test_two_uninterrupted_runs_are_equal_and_another_seed_is_not(bench):
    bench.finish(bench.new())
    run = bench.new()
    bench.train(run, "train.seed=2")
    assert left(run)["model.safetensors"] != bench.whole()["left"]["model.safetensors"]


# --- killed from outside -----------------------------------------------------------------------------------------


def kill_at_random(bench: Bench, number: int) -> list[int]:
    """Kill a run one to three times, each after a random time, and finish it; returns the steps it had saved."""
    rng = random.Random(number)
    changes = (f"train.accumulate={1 + number % 2}",)
    run, saved = bench.new(), []
    seconds = bench.whole(*changes)["seconds"]
    for _ in range(rng.randint(1, 3)):
        ended = bench.train(run, *changes, after=rng.uniform(0, seconds))
        while ended["status"] == 0 and not saved:  # faster than the uninterrupted run: it must be killed at least once
            shutil.rmtree(run)
            seconds /= 2
            ended = bench.train(run, *changes, after=rng.uniform(0, seconds))
        if ended["status"] == 0:
            break
        assert ended["status"] == -signal.SIGKILL, ended["output"]
        saved.append(max((int(folder.name[5:]) for folder in run.glob("checkpoints/step-*")), default=0))
    assert saved
    bench.finish(run, *changes)
    return saved


def test_runs_killed_at_random_moments_resume_to_the_same_bits(bench):
    for number in range(3):
        kill_at_random(bench, number)


@pytest.mark.slow
def test_twenty_five_runs_killed_at_random_moments_resume_to_the_same_bits(bench):
    saved = [kill_at_random(bench, number) for number in range(100, 125)]
    print(f"{sum(map(len, saved))} kills of {len(saved)} runs, which had saved steps {saved}")
    assert any(steps[0] > 0 for steps in saved)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_separate_process_resumes_to_the_same_bits_too(bench, number):
    run = bench.new()
    command = [sys.executable, "-m", "regard", "train", str(bench.recipe), "--out", str(run), "--resume"]
    process = subprocess.Popen(command, env=bench.env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while not list(run.glob("checkpoints/step-*")):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(number)
    output = process.communicate()[1]
    assert process.returncode == (-number if number == signal.SIGKILL else 130), output
    assert not (run / "README.md").exists()
    done = subprocess.run(command, env=bench.env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert left(run) == bench.whole()["left"]


# --- killed inside a write ---------------------------------------------------------------------------------------

SHORT = ("train.steps=12", "train.save_every=3", "train.eval_every=6")


@pytest.mark.parametrize(
    ("call", "how"),
    [
        ("os.fsync .run.toml.PID.part", "torn"),
        ("os.replace tokenizer.json", "before"),
        ("save_file model.safetensors", "torn"),
        ("os.fsync optimizer.safetensors", "torn"),
        ("os.replace step-00000012", "before"),
        ("os.replace model.safetensors", "before"),
        ("Path.unlink optimizer.safetensors", "before"),
        ("shutil.rmtree step-00000003", "torn"),
        ("os.replace README.md", "before"),
    ],
)
def test_a_run_killed_inside_a_write_resumes_to_the_same_bits(bench, call, how):
    calls = bench.whole(*SHORT)["calls"]
    run, number = bench.new(), len(calls) - 1 - calls[::-1].index(call)  # the last of that name
    ended = bench.train(run, *SHORT, call=number, how=how)
    assert ended["status"] == -signal.SIGKILL
    assert ended["calls"][-1] == call
    bench.finish(run, *SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before", "torn"])
def test_a_run_killed_inside_any_write_resumes_to_the_same_bits(bench, how):
    run, cache = bench.new(), bench.folder / f"cache of {how}"
    calls = bench.train(run, *SHORT, cache=cache)["calls"]  # with an empty cache, encoding is part of it
    bad = []
    for number, call in enumerate(calls):
        shutil.rmtree(cache)
        run = bench.new()
        ended = bench.train(run, *SHORT, cache=cache, call=number, how=how)
        assert (ended["status"], ended["calls"][-1]) == (-signal.SIGKILL, call), ended["output"]
        try:
            bench.finish(run, *SHORT, cache=cache)
        except AssertionError as error:
            bad.append((number, call, str(error)[:300]))
        shutil.rmtree(run)
    print(f"{len(calls)} kills, {how} each of {len(set(calls))} kinds of call")
    assert not bad


@pytest.mark.parametrize("how", ["before", "torn"])
def test_fresh_after_a_kill_at_each_deletion_of_fresh_works(bench, how):
    first = bench.new()
    assert bench.train(first, *SHORT, "train.seed=2")["status"] == 0
    whole = shutil.copytree(first, bench.new())
    calls = bench.train(whole, *SHORT, flag="--fresh")["calls"]
    begin, end = calls.index("Path.unlink run.toml"), calls.index("os.replace run.toml")
    deletions = [n for n in range(begin, end + 1) if "torn" not in how or calls[n].startswith(("shutil.rmtree", "os.fsync"))]
    assert len(deletions) > 5
    for number in deletions:
        run = shutil.copytree(first, bench.new())
        (run / "notes.txt").write_text("of the user")
        ended = bench.train(run, *SHORT, flag="--fresh", call=number, how=how)
        assert (ended["status"], ended["calls"][-1]) == (-signal.SIGKILL, calls[number]), ended["output"]
        bench.finish(run, *SHORT, flag="--fresh")
        assert (run / "notes.txt").exists()
        assert not (run / ".fresh").exists()
        shutil.rmtree(run)


# --- stopped by Ctrl-C --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [7, STEPS - 3, STEPS])  # the checkpoint of the last but one is among those averaged
def test_the_first_ctrl_c_saves_and_the_run_resumes_to_the_same_bits(bench, step):
    run = bench.new()
    stopped = bench.train(run, step=step, signal=int(signal.SIGINT))
    assert stopped["status"] == 130
    assert f"stopped at step {step}, saved in {run}; continue with --resume" in stopped["output"].replace("\n", " ")
    assert (run / "checkpoints" / f"step-{step:08d}" / "state.json").exists()
    assert f"resumed at step {step}" in bench.finish(run)


def test_ctrl_c_inside_a_checkpoint_write_lets_it_finish(bench):
    calls = bench.whole()["calls"]
    run, number = bench.new(), calls.index("os.replace step-00000010")
    stopped = bench.train(run, call=number, signal=int(signal.SIGINT))
    assert stopped["status"] == 130
    assert "stopped at step 10" in stopped["output"]
    bench.finish(run)


def test_a_finished_run_resumed_stays_as_it_is(bench):
    run = bench.new()
    bench.train(run)
    bench.finish(run)


EARLY = ("train.lr=0.0", "train.patience=2", "train.eval_every=4", "train.save_every=7")  # it never gets better


def test_a_run_that_stops_early_keeps_the_model_it_stopped_with(bench):
    left = bench.whole(*EARLY)["left"]
    assert left["newest"] == "step-00000012"
    assert left["model.safetensors"]
    assert [line["step"] for line in left["log.jsonl"]][-1] == 12


def test_a_run_that_stops_early_does_so_after_a_kill_as_well(bench):
    run = bench.new()
    bench.train(run, *EARLY, step=11)
    bench.finish(run, *EARLY)


def test_each_step_is_logged_once_however_often_the_run_was_killed(bench):
    run = bench.new()
    for step in (3, 9, 24):
        assert bench.train(run, step=step)["status"] == -signal.SIGKILL
    with open(run / "log.jsonl", "a") as log:
        log.write('{"step": 23, "lo')  # as a power cut leaves it
    bench.finish(run)
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, STEPS + 1))
    assert [line["step"] for line in lines if "valid_loss" in line] == [10, 20, 30, 40]


def test_the_log_of_a_resumed_run_has_the_loss_of_all_steps_of_its_interval(bench):
    rare = ("train.log_every=8", "train.accumulate=2")  # checkpoints, every 5 steps, lie inside the intervals
    run = bench.new()
    for step, number in ((7, signal.SIGKILL), (13, signal.SIGINT), (22, signal.SIGKILL)):
        bench.train(run, *rare, step=step, signal=int(number))
    bench.finish(run, *rare)
    losses = [line["loss"] for line in map(json.loads, (run / "log.jsonl").read_text().splitlines()) if "loss" in line]
    every = bench.new()
    assert bench.train(every, "train.log_every=1", "train.accumulate=2")["status"] == 0
    single = [line["loss"] for line in map(json.loads, (every / "log.jsonl").read_text().splitlines()) if "loss" in line]
    for number, loss in enumerate(losses):  # a mean weighted by predictions, so about that of the steps
        assert loss == pytest.approx(sum(single[8 * number : 8 * number + 8]) / 8, rel=0.02)


def test_a_checkpoint_of_an_earlier_version_resumes(bench):
    run = bench.new()
    bench.train(run, step=13)
    for file in run.glob("checkpoints/*/state.json"):
        values = json.loads(file.read_text())
        sums = values.pop("sha256")
        for key in ("first_loss", "loss_sum", "predictions"):
            del values[key]
        sums["state"] = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        file.write_text(json.dumps({**values, "sha256": sums}))
    done = bench.train(run)
    assert done["status"] == 0, done["output"]
    assert "resumed at step 10" in done["output"]
    assert (run / "model.safetensors").read_bytes() == bench.whole()["left"]["model.safetensors"]
