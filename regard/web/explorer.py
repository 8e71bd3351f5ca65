"""The explorer: the runs it serves, and the inputs that were inspected, whose attention the page then asks for in parts."""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from regard.config import Run, nearest
from regard.run_folder import RunFolder
from regard.tasks.load import load, steps_of
from regard.tasks.origin import folder_of
from regard.tasks.predictors import Predictor
from regard.view.record import AttentionLayer, Record
from regard.web.routes import BadRequest

__all__ = ["Explorer", "RecordStore", "ServedRun", "StoredRecord"]

MAX_BYTES = 256 << 20  # of records that are kept
MAX_RECORDS = 512
ITEM_BYTES = 100  # of a label, a word or a time of an axis, about
LOADED = 2  # checkpoints of a run that are kept in memory beside its final weights


class ServedRun:
    """A run that is served under a name, also with the weights of earlier steps of its training."""

    def __init__(self, name: str, folder: Path | None, predictor: Predictor, precision: str = "float32"):
        self.name, self.folder, self.predictor, self.precision = name, folder, predictor, precision
        self.on_unload: Callable[[Predictor], None] = lambda predictor: None  # called with a checkpoint that makes room
        self._loaded: OrderedDict[tuple[int, float], Predictor] = OrderedDict()  # by step and the time its weights were written
        self._lock = threading.Lock()

    @classmethod
    def open(cls, folder: str | Path, name: str = "", device: str = "auto", precision: str = "float32") -> "ServedRun":
        """Load a run folder; its name is that of the folder unless another is given."""
        path = Path(folder)
        predictor = load(path, device, precision)
        return cls(name or path.resolve().name, path, predictor, precision)

    @classmethod
    def of(cls, predictor: Predictor) -> "ServedRun":
        """Serve what `regard.load` has returned."""
        folder = folder_of(predictor)
        return cls(folder.resolve().name if folder else predictor.run.name, folder, predictor)

    @property
    def checkpoints(self) -> list[int]:
        """The training steps whose weights can be asked for, ascending; a training that goes on adds some and deletes others."""
        steps = self._steps
        return steps if any(steps) else []  # step 0 alone is no history

    @property
    def _steps(self) -> list[int]:
        """The same, with step 0 alone; none if the folder is gone."""
        return steps_of(self.folder, self.predictor.run) if self.folder is not None and self.folder.is_dir() else []

    def at(self, step: int | None) -> Predictor:
        """The predictor with the weights after a training step, 0 before training; None: the final ones."""
        if step is None:
            return self.predictor
        if self.folder is None:
            raise BadRequest(f"{self.name} was not loaded from a run folder and has no checkpoints", 404)
        key = step, _time_written(self.folder, step, self.predictor.run)
        with self._lock:
            if key not in self._loaded:
                if step not in (steps := self._steps):  # before another checkpoint makes room for it
                    have = f"steps {', '.join(f'{n:,}' for n in steps)}" if steps else "no checkpoints"
                    raise BadRequest(f"{self.name} has no checkpoint of step {step:,}; it has {have}")
                device = str(next(self.predictor.model.parameters()).device)
                while len(self._loaded) >= LOADED:  # before the next one is loaded, so that never more are in memory
                    self.on_unload(self._loaded.popitem(last=False)[1])
                self._loaded[key] = load(self.folder, device, self.precision, step)
            self._loaded.move_to_end(key)
            return self._loaded[key]


def _time_written(folder: Path, step: int, run: Run) -> float:
    """When the weights of a checkpoint were written: a new training in the same folder has steps of the same numbers."""
    weights = RunFolder(folder, run.train.checkpoints).checkpoint(step).weights if step else RunFolder(folder).run
    return weights.stat().st_mtime if weights.is_file() else 0.0


@dataclass(frozen=True, eq=False)
class StoredRecord:
    """An input that was inspected: what all further questions of the page are about."""

    id: str
    run: ServedRun
    predictor: Predictor  # with the final weights, or those of a checkpoint
    record: Record
    checkpoint: int | None = None  # None: the final weights
    text: str | None = None
    name: str | None = None  # of a file that was given
    file: bytes | None = None  # its content

    def layer(self, index: int | str) -> AttentionLayer:
        """A layer of attention by its number, from 0."""
        layers = self.record.layers
        if not str(index).isdecimal() or not int(index) < len(layers):
            have = f"layers 0 to {len(layers) - 1}" if layers else "no attention layers"
            raise BadRequest(f"no layer {index}; this record has {have}", 404)
        return layers[int(index)]

    @property
    def bytes(self) -> int:
        """What the record keeps in memory, about, without its model."""
        tensors: list[Tensor] = [self.record.alignment]
        for layer in self.record.layers:
            tensors += [layer.weights, *((layer.windows.queries, layer.windows.keys) if layer.windows else ())]
        tensors += [self.record.spectrogram.levels] if self.record.spectrogram else []
        inputs = getattr(self.record.rerun, "__dict__", {}).values()  # an image, or frames
        tensors += [value for value in inputs if isinstance(value, Tensor)]
        items = sum(len(axis.labels) + len(axis.words) + len(axis.times) for axis in self.record.axes.values())
        given = sum(len(part or "") for part in (self.record.picture, self.file, self.text))
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors) + ITEM_BYTES * items + given


class RecordStore:
    """The records used last, by a random id, bounded in bytes and number.

    The newest one stays even if it is larger than the bound.  Threads of several models share the store.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, max_records: int = MAX_RECORDS):
        self.max_bytes, self.max_records, self.bytes = max_bytes, max_records, 0
        self._records: OrderedDict[str, StoredRecord] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._records)

    def add(self, inspected: StoredRecord) -> None:
        """Keep a record, and drop those that were not used for longest until it fits."""
        with self._lock:
            self._records[inspected.id] = inspected
            self.bytes += inspected.bytes
            while len(self._records) > 1 and (self.bytes > self.max_bytes or len(self._records) > self.max_records):
                _, oldest = self._records.popitem(last=False)
                self.bytes -= oldest.bytes

    def drop(self, predictor: Predictor) -> None:
        """Drop the records of a predictor, which they keep in memory."""
        with self._lock:
            for id in [id for id, kept in self._records.items() if kept.predictor is predictor]:
                self.bytes -= self._records.pop(id).bytes

    def get(self, id: str) -> StoredRecord:
        """A record by its id."""
        with self._lock:
            if id not in self._records:
                raise BadRequest("this record is no longer in memory; inspect the input again", 404, expired=True)
            self._records.move_to_end(id)
            return self._records[id]


class Explorer:
    """What every endpoint is given: the runs by name, and the records."""

    def __init__(self, runs: Sequence[ServedRun], store: RecordStore | None = None):
        self.runs: dict[str, ServedRun] = {}
        for run in runs:
            if run.name in self.runs:
                raise ValueError(f"two runs are called {run.name}: {self.runs[run.name].folder} and {run.folder}; rename one")
            self.runs[run.name] = run
        self.store = RecordStore() if store is None else store
        for run in runs:
            run.on_unload = self.store.drop

    def run(self, name: str) -> ServedRun:
        """A served run by its name."""
        if name not in self.runs:
            raise BadRequest(f"no run {name!r}{nearest(name, self.runs)}; served are {', '.join(self.runs)}", 404)
        return self.runs[name]

    def record(self, id: str) -> StoredRecord:
        """An inspected input by its id."""
        return self.store.get(id)

    def keep(self, run: ServedRun, predictor: Predictor, record: Record, *, checkpoint: int | None = None,
             text: str | None = None, name: str | None = None, file: bytes | None = None) -> StoredRecord:  # fmt: skip
        """Store a record under a new id that cannot be guessed."""
        inspected = StoredRecord(secrets.token_urlsafe(12), run, predictor, record, checkpoint, text, name, file)
        self.store.add(inspected)
        return inspected
