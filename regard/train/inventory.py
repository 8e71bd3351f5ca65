"""The runs of a folder: what each one is, how far it came, what it takes on disk, and what of that can be deleted.

Read from the files alone, without torch, so that a list of runs is there at once; a damaged run is a line of it, not an error.
"""

import json
import os
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from regard.run_folder import Checkpoint, RunFolder

__all__ = ["RunSummary", "deletable", "delete", "find_runs", "summarize"]

Status = Literal[
    "finished", "interrupted", "running", "imported", "not started", "no checkpoint", "damaged", "left over", "not a run"
]

TAIL = 65_536  # bytes of a log that are read, from its end
TEXT = 1_000_000  # most bytes of run.toml and config.json
HEADER = 50_000_000  # most bytes of the header of a safetensors file


@dataclass
class RunSummary:
    """One folder of a list of runs; what could not be read is empty."""

    folder: Path
    status: Status = "not a run"
    note: str = ""  # what is wrong with it
    task: str = ""
    family: str = ""
    parameters: int = 0
    bytes: int = 0  # on disk; a file with two names counts once
    step: int = 0
    steps: int = 0
    loss: float | None = None  # on validation data
    scores: dict[str, float] = field(default_factory=dict)
    modified: float = 0.0  # seconds since 1970
    checkpoints: str = ""  # `train.checkpoints`

    @property
    def files(self) -> RunFolder:
        """The files of the run, its checkpoints where they are."""
        return RunFolder(self.folder, self.checkpoints)


def find_runs(place: Path) -> list[RunSummary]:
    """The run in a folder, or those of all folders in it, by name."""
    if not place.is_dir():
        raise ValueError(f"no folder {place}; give a folder of runs, such as runs/")
    if _is_run(place):
        return [summarize(place)]
    inside = sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [summarize(path) for path in inside]


def _is_run(path: Path) -> bool:
    files = RunFolder(path)
    return files.started or files.remains or (files.config.is_file() and files.weights.is_file())


def summarize(folder: Path, ours: bool = False) -> RunSummary:
    """Read what a folder says of its run; `ours`: we hold its lock, no training does."""
    found, files = RunSummary(folder), RunFolder(folder)
    try:
        if not files.started:
            if files.remains:
                found.status, found.note = "left over", "of a run that was being replaced; train it again with --fresh"
            elif files.config.is_file():
                found.note = "no run.toml; if it is a checkpoint of another library, use regard import"
            return found
        _read_config(files, found)
        files = found.files
        _read_log(files, found)
        found.status, found.note = _status(files, ours)
        if found.status == "interrupted":  # the log may be ahead of what can be resumed
            found.step = max((saved.step for saved in files.saved()), default=0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        found.status, found.note = "damaged", f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    finally:
        found.bytes = sum(_sizes(_all_files(found.files)).values())
    return found


def _read_config(files: RunFolder, found: RunSummary) -> None:
    found.modified = files.run.stat().st_mtime
    tables = tomllib.loads(_text(files.run))
    train = tables.get("train", {})
    found.task, found.steps = str(tables.get("task", "")), int(train.get("steps", 0))
    found.checkpoints = str(train.get("checkpoints", ""))
    kind = str(json.loads(_text(files.config))["model_type"])
    found.family = kind.removeprefix("regard-")
    if files.weights.is_file():
        found.modified = max(found.modified, files.weights.stat().st_mtime)
        found.parameters = _parameters(files.weights)


def _read_log(files: RunFolder, found: RunSummary) -> None:
    for values in _log_lines(files.log):
        found.step = max(found.step, int(values.get("step", 0)))
        found.loss = values.get("final_loss", values.get("valid_loss", found.loss))
        if "final_loss" in values:
            known = ("step", "final_loss", "minutes")
            found.scores = {str(key): float(value) for key, value in values.items() if key not in known}


def _status(files: RunFolder, ours: bool) -> tuple[Status, str]:
    saved = files.saved()
    if not ours and _locked(files):
        return "running", ""
    if not files.weights.is_file():
        if saved:
            return "interrupted", "its weights are in the checkpoint; continue with --resume"
        if files.card.exists():
            return "damaged", "no model.safetensors"
        if files.log.exists() or files.events.exists():
            return "no checkpoint", "stopped before its first one; --resume starts from step 0"
        return "not started", "no checkpoint yet"
    if not files.log.exists() and not saved:
        return "imported", ""
    return ("finished" if _finished(files) else "interrupted"), ""


def _finished(files: RunFolder) -> bool:
    lines = list(_log_lines(files.log))
    return "final_loss" in lines[-1] if lines else files.card.is_file()


def _locked(files: RunFolder) -> bool:
    """Whether a training holds the lock of the folder; nothing is created or changed."""
    if os.name != "posix":
        return False
    import fcntl

    try:
        handle = os.open(files.path / ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(handle)


def _text(file: Path) -> str:
    """A small text file; neither a device nor a huge file is read."""
    if not stat.S_ISREG(file.stat().st_mode):
        raise ValueError(f"{file.name} is not a regular file")
    with open(file, "rb") as content:
        return content.read(TEXT).decode("utf-8")


def _log_lines(log: Path) -> Iterator[Mapping[str, float]]:
    """The last lines of a log; those torn by a kill are left out."""
    if not log.is_file():
        return
    with open(log, "rb") as content:
        content.seek(max(0, content.seek(0, os.SEEK_END) - TAIL))
        for line in content.read(TAIL).splitlines():
            try:
                values = json.loads(line)
            except ValueError:
                continue
            if isinstance(values, dict):
                yield values


def _parameters(weights: Path) -> int:
    """The number of weights, from the header of their file; statistics of batch norms are none."""
    with open(weights, "rb") as content:
        length = int.from_bytes(content.read(8), "little")
        if not 2 <= length <= min(HEADER, weights.stat().st_size):
            raise ValueError(f"{weights.name} is not a safetensors file")
        tensors = json.loads(content.read(length))
    count = 0
    for name, tensor in tensors.items():
        if name != "__metadata__" and not name.endswith((".running_mean", ".running_var")):
            product = 1
            for side in tensor["shape"]:
                product *= int(side)
            count += product
    return count


def _all_files(files: RunFolder) -> Iterator[Path]:
    for place in (files.path, files.checkpoints) if files.checkpoints.parent != files.path else (files.path,):
        for folder, _, names in os.walk(place):
            yield from (Path(folder) / name for name in names)


def _sizes(paths: Iterable[Path]) -> dict[tuple[int, int], int]:
    """Bytes by file; a hard link, which publishes a checkpoint's weights, is the same file."""
    found = {}
    for path in paths:
        try:
            about = path.lstat()
        except OSError:  # a training has just deleted it
            continue
        found[about.st_dev, about.st_ino] = about.st_size
    return found


# --- deleting what is not needed


def deletable(run: RunSummary) -> tuple[list[Path], int]:
    """The files that neither prediction nor, in an unfinished run, resuming needs; and the bytes that deleting them frees.

    Of a finished run all checkpoints: it cannot be trained on afterwards.  Of an interrupted one the optimizer states before the
    newest intact checkpoint; weights of earlier checkpoints are part of the average at the end.
    """
    if run.status not in ("finished", "interrupted", "imported"):
        return [], 0
    files = run.files
    paths = [file for file in files.path.glob(".*.part") if file.is_file()] + _own(files.part_checkpoint)
    if run.status == "finished":
        paths += [file for saved in files.saved() for file in _own(saved)]
    elif run.status == "interrupted":
        intact = _newest_intact(files)
        paths += [saved.optimizer for saved in files.saved() if intact and saved.step < intact.step and saved.optimizer.is_file()]
    kept = _sizes(file for file in _all_files(files) if file not in set(paths))
    freed = _sizes(paths)
    return paths, sum(size for file, size in freed.items() if file not in kept)


def _own(checkpoint: Checkpoint) -> list[Path]:
    """The files of a checkpoint that we have written; not those of others in its folder, nor through a link."""
    if checkpoint.path.is_symlink():
        return []
    return [
        file for file in (checkpoint.state, checkpoint.optimizer, checkpoint.weights) if file.is_file() and not file.is_symlink()
    ]


def _newest_intact(files: RunFolder) -> Checkpoint | None:
    from regard.train.checkpoint import newest  # imports torch

    try:
        found = newest(files, lambda text: None)
    except ValueError:
        return None
    return found[0] if found else None


def delete(run: RunSummary) -> int:
    """Delete what `deletable` lists, under the lock of the run; returns the bytes freed."""
    files = run.files
    with files.locked():
        paths, freed = deletable(summarize(run.folder, ours=True))  # a training may have come and gone since
        for path in paths:
            path.unlink(missing_ok=True)
        emptied = {path.parent for path in paths} - {files.path}
        for folder in (*emptied, *([files.checkpoints] if files.checkpoints.parent == files.path else [])):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
    return freed
