"""A run folder: the only code that knows the names of its files.

    config.json           the model's family and sizes, and the format of the folder
    run.toml              the whole run; written last, so a folder that has it can be resumed
    model.safetensors     the newest weights; at the end the average of the last checkpoints, if that is better
    tokenizer.json        of a model that reads text; target_tokenizer.json of one with two vocabularies, for its answers
    labels.txt            a class name a line, of a classifier
    README.md             the model card
    log.jsonl, events/    the training log, for people and for TensorBoard
    checkpoints/step-N/   weights, optimizer and training state with their checksums
    .lock                 held while a training runs
    .fresh                until run.toml is there: other files of a run, if any, are left of an earlier one

safetensors, JSON and TOML only: nothing that is loaded can run code.  Nothing is written through a link that leads out of it.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from regard.config import nearest
from regard.data.files import new_file_mode, write_atomic
from regard.data.json_files import load_json
from regard.shipped import find_run, require_writable, shipped_models

__all__ = ["FORMAT", "Checkpoint", "RunFolder"]

FORMAT = 3  # raised when an older regard could not read what a newer one writes
DESCRIPTION = ("model_type", "regard_version", "format")  # keys of config.json that are not the model's own
FILES = ("run.toml", "config.json", "model.safetensors", "labels.txt", "README.md", "log.jsonl", "tokenizer.json",
         "target_tokenizer.json")  # fmt: skip
PARTS = {".lock", ".tokenizer.part", ".fresh"}  # present before a training has begun


class Checkpoint:
    """The files of one checkpoint: weights, optimizer state, and the training state with the checksums of all three."""

    def __init__(self, path: Path):
        self.path, self.weights, self.optimizer = path, path / "model.safetensors", path / "optimizer.safetensors"
        self.state = path / "state.json"

    @property
    def step(self) -> int:
        """The training step after which it was written."""
        return int(self.path.name.removeprefix("step-"))


class RunFolder:
    """The files of one run; with `checkpoints` (`train.checkpoints`) its checkpoints are in a folder of its name in there."""

    def __init__(self, path: str | Path, checkpoints: str = ""):
        self.path, self.created = Path(path), False
        self.config, self.run, self.weights = self.path / FILES[1], self.path / FILES[0], self.path / FILES[2]
        self.labels, self.card, self.log, self.tokenizer, self.target_tokenizer = (self.path / name for name in FILES[3:])
        self.events = self.path / "events"
        self.checkpoints = Path(checkpoints).expanduser() / self.path.resolve().name if checkpoints else self.path / "checkpoints"
        self.part_checkpoint = Checkpoint(self.checkpoints / ".part")  # one that is being written
        self.new_tokenizer = self.path / ".tokenizer.part"  # until the data is known to be usable
        self.beginning = self.path / ".fresh"

    @classmethod
    def find(cls, name: str | Path) -> "RunFolder":
        """A run that is read: that of a folder, or a model that ships with the package, by its name."""
        return cls(find_run(name))

    @property
    def started(self) -> bool:
        """Whether a training has begun here."""
        return self.run.exists()

    @staticmethod
    def holds(file: Path) -> bool:
        """Whether a TOML file is that of a started run."""
        return file.name == FILES[0] and RunFolder(file.parent).config.exists()

    @property
    def remains(self) -> bool:
        """Whether this is what a kill has left of a run: in the middle of its deletion, or before run.toml was written."""
        if self.started or not self.path.is_dir():
            return False
        return self.beginning.is_file() or (self._signed and not self._unsigned)

    @property
    def foreign(self) -> list[str]:
        """Names of files that a new run would replace though they are not those of a run."""
        if self.started or self.remains or not self.path.is_dir():
            return []
        return [name for name in (*FILES, self.events.name, "checkpoints") if (self.path / name).exists()]

    def refuse_foreign(self) -> None:
        """Refuse a folder in which a new run would replace files that are not those of a run."""
        if foreign := self.foreign:
            raise ValueError(f"{self.path} holds {' and '.join(foreign)}, not of a run, which training would replace; choose "
                             f"another --out")  # fmt: skip

    @property
    def _signed(self) -> bool:
        """Whether a file says that it is of a run."""
        return self._described(self.config) or self._carded(self.card) or any(saved.state.is_file() for saved in self.saved())

    @property
    def _unsigned(self) -> list[Path]:
        """Visible files that are not of a run: of other names, or a description or card of something else."""
        ours = {*FILES, self.events.name, "checkpoints"}
        others = [file for file in self.path.iterdir() if file.name not in ours and not file.name.startswith(".")]
        others += [self.config] if self.config.exists() and not self._described(self.config) else []
        return others + ([self.card] if self.card.exists() and not self._carded(self.card) else [])

    @staticmethod
    def _described(config: Path) -> bool:
        return config.is_file() and b'"regard_version"' in config.read_bytes()[:10_000]

    @staticmethod
    def _carded(card: Path) -> bool:
        return card.is_file() and b"library_name: regard" in card.read_bytes()[:10_000]

    @property
    def neighbours(self) -> list[str]:
        """Names of the run folders beside this one; for a bare name also of the models that ship with the package."""
        here = [file.parent.name for file in self.path.parent.glob(f"*/{self.run.name}")]
        return [*here, *shipped_models()] if self.path.parent == Path() else here

    def write_description(self, family: str, config: Mapping[str, object], version: str) -> None:
        """Write config.json."""
        about = dict(zip(DESCRIPTION, (f"regard-{family}", version, FORMAT), strict=True))
        write_atomic(self.config, json.dumps({**about, **config}, indent=1).encode())

    def read_description(self) -> tuple[str, dict[str, object]]:
        """Read config.json: the model's family and the keys of its config."""
        file, wrong = self.config, "train again, or restore the file"
        try:
            about = load_json(file)
        except (FileNotFoundError, NotADirectoryError):
            near = nearest(self.path.name, self.neighbours)
            raise ValueError(f"{self.path} is not a run folder: it has no {file.name}{near}; `regard train` makes one") from None
        except ValueError as error:
            raise ValueError(f"{file} is damaged ({error}); {wrong}") from None
        if not isinstance(about, dict):
            raise ValueError(f"{file} is damaged (no table of keys); {wrong}")
        kind, written = str(about.get("model_type", "")), about.get("format")
        if "format" not in about and kind and not kind.startswith("regard-"):
            raise ValueError(f"{self.path} is a {kind} of another library; import it first: "
                             f"regard import {self.path} --to runs/NAME")  # fmt: skip
        if written != FORMAT:
            raise ValueError(
                f"{self.path} was written by regard {about.get('regard_version', 'of unknown version')} in format {written}; "
                f"this regard reads format {FORMAT}: use that version, or train again"
            )
        return kind.removeprefix("regard-"), {key: value for key, value in about.items() if key not in DESCRIPTION}

    def read_labels(self) -> tuple[str, ...]:
        """Class names by index; empty if the run has none."""
        if not self.labels.exists():
            return ()
        return tuple(self.labels.read_text(encoding="utf-8").removesuffix("\n").split("\n"))

    def write_labels(self, labels: Sequence[str]) -> None:
        """Write the class names, one a line."""
        write_atomic(self.labels, "".join(f"{label}\n" for label in labels).encode())

    def begin(self, *, text: bool, labels: Sequence[str]) -> None:
        """Replace an earlier run by a new one, whose tokenizer lies in `new_tokenizer` if it reads text.

        run.toml goes first, so that a folder left half cleared is no run; `.fresh` says that the rest may be replaced.
        """
        self.refuse_foreign()
        write_atomic(self.beginning, b"")
        for file in (self.run, self.config, self.weights, self.labels, self.card, self.log, self.target_tokenizer):
            file.unlink(missing_ok=True)
        for folder in (*(checkpoint.path for checkpoint in self.saved()), self.part_checkpoint.path, self.events):
            shutil.rmtree(folder, ignore_errors=True)
        if text:
            os.replace(self.new_tokenizer, self.tokenizer)
        if labels:
            self.write_labels(labels)

    def write_run(self, toml: str) -> None:
        """Write run.toml, with which a run has begun."""
        write_atomic(self.run, toml.encode())
        self.beginning.unlink(missing_ok=True)

    def saved(self) -> list[Checkpoint]:
        """All checkpoints, oldest first."""
        return [Checkpoint(path) for path in sorted(self.checkpoints.glob("step-*")) if re.fullmatch(r"step-\d{8,}", path.name)]

    def checkpoint(self, step: int) -> Checkpoint:
        """The checkpoint of a step, whether it exists or not."""
        return Checkpoint(self.checkpoints / f"step-{step:08d}")

    def publish(self, weights: Path) -> None:
        """Make a checkpoint's weights those of the run, for whoever may read a new file here; a hard link where possible."""
        part = self.path / f".{self.weights.name}.part"
        part.unlink(missing_ok=True)
        try:
            os.link(weights, part)
            part.chmod(new_file_mode(self.path))
        except OSError:
            part.unlink(missing_ok=True)
            shutil.copyfile(weights, part)
        os.replace(part, self.weights)

    @contextmanager
    def locked(self, fresh: bool = False) -> Iterator[None]:
        """Create the folder and keep other trainings out of it and of its checkpoints; a killed process frees its locks.

        With `fresh` its run is about to be replaced by a new one.
        """
        require_writable(self.path)
        self.created = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        self._refuse_links()
        with _lock(self.path):
            self._refuse_links()  # again, now that nobody else trains here
            for part in self.path.glob(".*.part"):  # left by a killed process
                part.unlink()
            if self.checkpoints.parent != self.path:
                self._claim_checkpoints(moved=self.started and not fresh)
            yield

    def _claim_checkpoints(self, moved: bool) -> None:
        """Refuse a folder of checkpoints that belongs to another run; one that is resumed may have `moved` to here.

        A new run would delete them: their run may be on a disk that is not mounted now.
        """
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        owner, here = self.checkpoints / ".run", str(self.path.resolve())
        other = owner.read_text(encoding="utf-8") if owner.exists() else here
        if other != here and RunFolder(other).run.exists():
            raise ValueError(f"{self.checkpoints} holds the checkpoints of {other}; choose another train.checkpoints, or --out")
        if other != here and not moved and self.saved():
            raise ValueError(f"{self.checkpoints} holds the checkpoints of {other}, which is not there now; choose another "
                             f"train.checkpoints or --out, or delete {self.checkpoints} if they are not needed")  # fmt: skip
        write_atomic(owner, here.encode())

    @contextmanager
    def removed_if_unused(self) -> Iterator[None]:
        """A training that cannot begin leaves no folder behind."""
        try:
            yield
        except BaseException:
            if self.created and {file.name for file in self.path.iterdir()} <= PARTS:
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    def _refuse_links(self) -> None:
        """Refuse a folder in which something would be written, or deleted, through a link that leads out of it."""
        inside = [self.path / name for name in (*FILES, *PARTS)] + [self.events, *self.events.glob("*")]
        inside += [self.checkpoints] if self.checkpoints.parent == self.path else []
        inside += [file for saved in self.saved() for file in (saved.path, *saved.path.glob("*"))]
        home = self.path.resolve()
        for file in inside:
            if file.is_symlink() and not file.resolve().is_relative_to(home):
                where = "; for checkpoints on another disk use train.checkpoints=FOLDER" if file == self.checkpoints else ""
                raise ValueError(f"{file} is a link that leads out of the run folder, to {file.resolve()}; remove it{where}")


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    if os.name != "posix":  # no such lock there
        yield
        return
    import fcntl

    try:  # neither through a link nor truncating: the name may be somebody else's file
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if not (folder / ".lock").is_symlink():
            raise
        raise ValueError(f"{folder / '.lock'} is a link ({error.strerror}); remove it") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another training is running in {folder}; wait for it, or choose another --out") from None
        yield
    finally:
        os.close(handle)
