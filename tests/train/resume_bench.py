"""A corpus, a recipe, and a server that trains it in children that are killed; used by the tests of resuming."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

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
        """A new folder."""
        self.made += 1
        (self.folder / f"{self.made}").mkdir()
        return self.folder / f"{self.made}" / "run"

    def train(self, run: Path, *changes: str, cache: Path | None = None, flag: str = "--resume", **how) -> dict:
        """Train, or resume, in a folder; killed.py describes how it may end."""
        self.made += 1
        log = self.folder / f"{self.made}.log"
        args = ["train", str(self.recipe), *changes, "--out", str(run), flag]
        order = {"args": args, "log": str(log), "cache": str(cache or self.folder / "cache"), **how}
        print(json.dumps(order), file=self.server.stdin, flush=True)
        return {**json.loads(self.server.stdout.readline()), "output": log.read_text()}

    def whole(self, *changes: str) -> dict:
        """The files of an uninterrupted run, the calls it made, and its seconds."""
        if changes not in self.known:
            run = self.new()
            if not self.known:
                self.train(run)  # fills the cache, as for the runs to be compared: all have the same data
                shutil.rmtree(run)
            done = self.train(run, *changes)
            assert done["status"] == 0, done["output"]
            self.known[changes] = {**done, "left": left(run)}
        return self.known[changes]

    def finish(self, run: Path, *changes: str, **how) -> str:
        """Resume to the end and compare with the uninterrupted run; returns the output."""
        done = self.train(run, *changes, **how)
        assert done["status"] == 0, done["output"]
        found, wanted = left(run), self.whole(*changes)["left"]
        different = [name for name in wanted if found.get(name) != wanted[name]]
        assert not different, done["output"]
        assert not list((run / "checkpoints").glob(".*"))
        return done["output"]


UNLIKE = ("seconds", "seconds_left", "tokens_per_s", "minutes", "sha256")  # times, and the sums of files that hold them


def left(run: Path) -> dict[str, object]:
    """What a finished run must have in common with an uninterrupted one."""
    files = [run / "model.safetensors", *sorted(run.glob("checkpoints/*/*")), run / "config.json", run / "tokenizer.json"]
    found: dict[str, object] = {str(file.relative_to(run)): file.read_bytes() for file in files}
    assert any("optimizer" in name for name in found)
    for name in [name for name in found if name.endswith("state.json")]:
        found[name] = {key: value for key, value in json.loads(found[name]).items() if key not in UNLIKE}
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    found["log.jsonl"] = [{key: value for key, value in line.items() if key not in UNLIKE} for line in lines]
    found["newest"] = max(path.name for path in (run / "checkpoints").iterdir())
    return found


def flip(file: Path) -> None:
    """Flip one bit in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def one_line(ended: dict) -> str:
    """The error of a command that failed with one line."""
    assert "Traceback" not in ended["output"], ended["output"]
    assert ended["status"] == 2, ended["output"]
    (error,) = [line for line in ended["output"].splitlines() if line.startswith("regard: ")]
    return error
