"""A run that is killed, interrupted, or meets a full or faulty disk goes on to the very bits it would have had."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regard.data.text.toys import toy_pairs

STEPS, SAVE_EVERY = 40, 5
RECIPE = f"""
[model]
dim = 16
heads = 2
depth = 1
mlp_ratio = 2
dropout = 0.2  # so that the random state matters

[data]
train = "{{folder}}/train.tsv"
valid = "{{folder}}/valid.tsv"
vocab = 60

[train]
steps = {STEPS}
batch_tokens = 64
lr = 0.01
warmup = 10
log_every = 1
eval_every = 10
save_every = {SAVE_EVERY}
average = 3

[decode]
beam_size = 1
"""
ALONE = {**dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
         "TOKENIZERS_PARALLELISM": "false", "TERM": "dumb"}  # fmt: skip


class Bench:
    """A corpus, a recipe, and a server that trains it in forked children."""

    def __init__(self, folder: Path):
        self.folder, self.made = folder, 0
        for split, count in (("train", 120), ("valid", 12)):
            lines = (f"{source}\t{target}\n" for source, target in toy_pairs("reverse", split, count))
            (folder / f"{split}.tsv").write_text("".join(lines))
        self.recipe = folder / "tiny.toml"
        self.recipe.write_text(RECIPE.format(folder=folder))
        self.env = {**os.environ, **ALONE, "XDG_CACHE_HOME": str(folder / "cache")}
        command = [sys.executable, str(Path(__file__).with_name("killed.py"))]
        self.server = subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=self.env)
        self.known: dict[tuple[str, ...], dict] = {}

    def new(self) -> Path:
        """A folder no run was in yet."""
        self.made += 1
        (self.folder / f"{self.made}").mkdir()
        return self.folder / f"{self.made}" / "run"

    def train(self, run: Path, *changes: str, cache: Path | None = None, **how) -> dict:
        """Train, or go on, in a folder; see killed.py for how it may end."""
        self.made += 1
        log = self.folder / f"{self.made}.log"
        args = ["train", str(self.recipe), *changes, "--out", str(run), "--resume"]
        order = {"args": args, "log": str(log), "cache": str(cache or self.folder / "cache"), **how}
        print(json.dumps(order), file=self.server.stdin, flush=True)
        return {**json.loads(self.server.stdout.readline()), "said": log.read_text()}

    def whole(self, *changes: str) -> dict:
        """What an uninterrupted run leaves, the calls it made, and its seconds."""
        if changes not in self.known:
            run = self.new()
            self.train(run, *changes)  # fills the cache, as the runs to be compared find it
            shutil.rmtree(run)
            done = self.train(run, *changes)
            assert done["status"] == 0, done["said"]
            self.known[changes] = {**done, "left": left(run)}
        return self.known[changes]

    def finish(self, run: Path, *changes: str, **how) -> str:
        """Resume to the end, and compare with the uninterrupted run; returns what was said."""
        done = self.train(run, *changes, **how)
        assert done["status"] == 0, done["said"]
        found, wanted = left(run), self.whole(*changes)["left"]
        different = [name for name in wanted if found.get(name) != wanted[name]]
        assert not different, done["said"]
        assert not list((run / "checkpoints").glob(".*"))
        return done["said"]


UNLIKE = ("seconds", "tokens_per_s", "minutes", "sha256")  # times, and the sums of files that hold them


def left(run: Path) -> dict[str, object]:
    """All that a finished run must have in common with an uninterrupted one."""
    files = [
        run / "model.safetensors",
        *sorted(run.glob("checkpoints/*/*")),
        run / "config.json",
        run / "tokenizer.json",
    ]
    found: dict[str, object] = {str(file.relative_to(run)): file.read_bytes() for file in files}
    assert any("optimizer" in name for name in found)
    for name in [name for name in found if name.endswith("state.json")]:
        found[name] = {key: value for key, value in json.loads(found[name]).items() if key not in UNLIKE}
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    found["log.jsonl"] = [{key: value for key, value in line.items() if key not in UNLIKE} for line in lines]
    found["newest"] = max(path.name for path in (run / "checkpoints").iterdir())
    return found


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    bench = Bench(tmp_path_factory.mktemp("resume"))
    yield bench
    bench.server.stdin.close()
    assert bench.server.wait(100) == 0
    bench.server.stdout.close()


def test_two_uninterrupted_runs_are_equal_and_another_seed_is_not(bench):
    bench.finish(bench.new())
    run = bench.new()
    bench.train(run, "train.seed=2")
    assert left(run)["model.safetensors"] != bench.whole()["left"]["model.safetensors"]


# --- killed from outside -----------------------------------------------------------------------------------------


def kill_at_random(bench: Bench, number: int) -> list[int]:
    """Kill a run one to three times, each a random while after it began, and finish it; the steps it had saved."""
    rng = random.Random(number)
    changes = (f"train.accumulate={1 + number % 2}",)
    run, saved = bench.new(), []
    max_len = bench.whole(*changes)["seconds"]
    for _ in range(rng.randint(1, 3)):
        ended = bench.train(run, *changes, after=rng.uniform(0, max_len))
        while ended["status"] == 0 and not saved:  # faster than the uninterrupted run: it must be killed at least once
            shutil.rmtree(run)
            max_len /= 2
            ended = bench.train(run, *changes, after=rng.uniform(0, max_len))
        if ended["status"] == 0:
            break
        assert ended["status"] == -signal.SIGKILL, ended["said"]
        saved.append(max((int(place.name[5:]) for place in run.glob("checkpoints/step-*")), default=0))
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
def test_a_process_of_its_own_resumes_to_the_same_bits_too(bench, number):
    run = bench.new()
    command = [sys.executable, "-m", "regard", "train", str(bench.recipe), "--out", str(run), "--resume"]
    process = subprocess.Popen(command, env=bench.env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while not list(run.glob("checkpoints/step-*")):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(number)
    said = process.communicate()[1]
    assert process.returncode == (-number if number == signal.SIGKILL else 130), said
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
def test_no_kill_inside_any_write_of_a_run_keeps_it_from_the_same_bits(bench, how):
    run, cache = bench.new(), bench.folder / f"cache of {how}"
    calls = bench.train(run, *SHORT, cache=cache)["calls"]  # with an empty cache, encoding is part of it
    bad = []
    for number, call in enumerate(calls):
        shutil.rmtree(cache)
        run = bench.new()
        ended = bench.train(run, *SHORT, cache=cache, call=number, how=how)
        assert (ended["status"], ended["calls"][-1]) == (-signal.SIGKILL, call), ended["said"]
        try:
            bench.finish(run, *SHORT, cache=cache)
        except AssertionError as error:
            bad.append((number, call, str(error)[:300]))
        shutil.rmtree(run)
    print(f"{len(calls)} kills, {how} each of {len(set(calls))} kinds of call")
    assert not bad


# --- stopped politely --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [7, STEPS - 3, STEPS])  # the checkpoint of the last but one is among those averaged
def test_the_first_ctrl_c_saves_and_the_run_goes_on_to_the_same_bits(bench, step):
    run = bench.new()
    stopped = bench.train(run, step=step, signal=int(signal.SIGINT))
    assert stopped["status"] == 130
    assert f"stopped at step {step}, saved in {run}; go on with --resume" in stopped["said"].replace("\n", " ")
    assert (run / "checkpoints" / f"step-{step:08d}" / "state.json").exists()
    assert f"resumed at step {step}" in bench.finish(run)


def test_ctrl_c_inside_a_checkpoint_write_lets_it_end(bench):
    calls = bench.whole()["calls"]
    run, number = bench.new(), calls.index("os.replace step-00000010")
    stopped = bench.train(run, call=number, signal=int(signal.SIGINT))
    assert stopped["status"] == 130
    assert "stopped at step 10" in stopped["said"]
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


# --- a faulty disk -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(bench):
    """A run killed in step 23: its checkpoints of steps 15 and 20 can be resumed."""
    run = bench.new()
    bench.train(run, step=23)
    return run


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def skip_a_batch(file: Path) -> None:
    state = json.loads(file.read_text())
    state["place"][2] += 1
    file.write_text(json.dumps(state, indent=1))


DAMAGES = {
    "a truncated model": ("model.safetensors", lambda file: os.truncate(file, 1000)),
    "a flipped bit of the model": ("model.safetensors", flip),
    "a flipped bit of the optimizer": ("optimizer.safetensors", flip),
    "a lost optimizer": ("optimizer.safetensors", Path.unlink),
    "a lost state": ("state.json", Path.unlink),
    "a garbled state": ("state.json", lambda file: file.write_bytes(b"\x93garbage")),
    "a changed digit of the state": ("state.json", skip_a_batch),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_gives_the_same_bits(bench, killed, damage):
    run = shutil.copytree(killed, bench.new())
    name, spoil = DAMAGES[damage]
    spoil(run / "checkpoints" / "step-00000020" / name)
    said = bench.finish(run).replace("\n", "")
    assert "step-00000020 is damaged" in said
    assert "resumed at step 15" in said


def test_with_no_whole_checkpoint_the_error_says_what_to_do(bench, killed):
    run = shutil.copytree(killed, bench.new())
    for file in run.glob("checkpoints/*/model.safetensors"):
        flip(file)
    ended = bench.train(run)
    assert ended["status"] == 2
    assert "Traceback" not in ended["said"]
    assert "is whole; train again with --fresh, or restore" in ended["said"]


def test_changed_training_data_is_refused(bench, killed):
    run, file = shutil.copytree(killed, bench.new()), bench.folder / "train.tsv"
    before = file.read_text()
    file.write_text(before.replace("a", "b"))
    try:
        ended = bench.train(run)
    finally:
        file.write_text(before)
    assert ended["status"] == 2
    assert "the training data has changed since step 20; restore it, or start over with --fresh" in ended["said"]
    bench.finish(run)


# --- a full disk -------------------------------------------------------------------------------------------------


def one_line(ended: dict) -> str:
    """The error of a command that ended in one, which is a line and no more."""
    assert "Traceback" not in ended["said"], ended["said"]
    assert ended["status"] == 2, ended["said"]
    (error,) = [line for line in ended["said"].splitlines() if line.startswith("regard: ")]
    return error


@pytest.mark.parametrize(
    "call",
    ["save_file model.safetensors", "save_file optimizer.safetensors", "os.fsync optimizer.safetensors",
     "os.fsync .state.json.PID.part", "Path.mkdir .part"],
)  # fmt: skip
def test_a_disk_full_in_a_checkpoint_is_one_line_and_the_one_before_it_stays(bench, call):
    calls = bench.whole()["calls"]
    third = [number for number, made in enumerate(calls) if made == call][2]
    run = bench.new()
    ended = bench.train(run, call=third, how="full")
    assert "No space left on device" in one_line(ended)
    assert "--resume" in one_line(ended)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000005", "step-00000010"]
    assert not list(run.rglob("*.part"))
    assert "resumed at step 10" in bench.finish(run)


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system of so many KiB, then make it larger."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(size: int, *options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", ",".join((f"size={size}k", *options)), "tmpfs", str(place)]
        if os.geteuid() or not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("a small file system is mounted here to be filled; run as root where mount is allowed")
        return place

    mount.place = place
    yield mount
    if os.path.ismount(place):
        subprocess.run(["umount", str(place)], check=True)


def fill_and_go_on(bench: Bench, mount, size: int) -> str | None:
    """Train on a disk of so many KiB until it is full, then on a larger one to the end; the error, if there was one."""
    disk = mount(size)
    run = disk / "run"
    ended = bench.train(run)
    error = None
    if ended["status"]:
        error = one_line(ended)
        assert "No space left on device" in error
        assert not list(run.rglob("*.part"))
    mount(100_000, "remount")
    bench.finish(run)
    shutil.rmtree(run)
    return error


@pytest.mark.parametrize("share", [0.4, 0.8])
def test_a_really_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(bench, small_disk, share):
    disk = small_disk(100_000)
    assert bench.train(disk / "run")["status"] == 0
    used = shutil.disk_usage(disk).used // 1024
    shutil.rmtree(disk / "run")
    subprocess.run(["umount", str(disk)], check=True)
    assert fill_and_go_on(bench, small_disk, int(used * share))


@pytest.mark.slow
def test_at_whatever_size_a_disk_is_full_the_run_goes_on_when_there_is_room(bench, small_disk):
    errors, size = [], 4
    while not errors or errors[-1]:
        errors.append(fill_and_go_on(bench, small_disk, size))
        subprocess.run(["umount", str(small_disk.place)], check=True)
        size += 4
    print(f"{len(errors) - 1} sizes were too small, {size - 4} KiB was enough")
    assert len(errors) > 20
