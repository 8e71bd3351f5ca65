"""TOML and `key=value` → one frozen `Run(model, data, train, decode)`.

A config is data: frozen, flat, checked once.  What a user mistypes comes back as one line that names the nearest key.
The model's own config stands beside the model; this file knows it only as a value in a table of families.
"""

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tomli_w
from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass

__all__ = [
    "STRICT",
    "DataConfig",
    "DecodeConfig",
    "Family",
    "Run",
    "TrainConfig",
    "build",
    "load",
    "nearest",
    "recipes",
    "require_divisible",
    "require_fraction",
    "require_max",
    "require_min",
    "to_toml",
    "value_of",
]

STRICT = ConfigDict(extra="forbid", strict=True)
PLAIN = ("name", "task", "init", "untrained", "licence")  # keys of a run that stand in no table
FREE = ("model.dropout", "model.attention_dropout", "model.drop_path")  # not taken
TAKEN = ("model", "data.tokenizer", "data.vocab", "data.fit", "data.resize", "data.resample", "data.mean", "data.std")
# … by a run that begins from another, with all of `model.` but the free ones


def require_min(low: float, **values: float) -> None:
    """Refuse values below `low`, by their names."""
    for key, value in values.items():
        if not value >= low:  # not a number is refused too
            raise ValueError(f"{key} is {value}; use {low} or more")


def require_max(high: float, **values: float) -> None:
    """Refuse values above `high`, by their names."""
    for key, value in values.items():
        if not value <= high:
            raise ValueError(f"{key} is {value}; use {high} or less")


def require_fraction(**values: float) -> None:
    """Refuse what is no share that leaves something, by its name."""
    for key, value in values.items():
        if not 0 <= value < 1:
            raise ValueError(f"{key} is {value}; use 0 or more and less than 1")


def require_divisible(dim: int, heads: int) -> None:
    """Refuse a width that heads do not share evenly."""
    if dim % heads:
        raise ValueError(f"width {dim} does not split into {heads} heads; use a multiple of {heads}")


@dataclass(frozen=True, config=STRICT)
class DataConfig:
    """Which text, and how it becomes tokens; or which pictures, and how they are changed."""

    source: str = ""  # named data sets or a toy (multi30k, sst2, reverse), with commas between; empty: own files
    pair: str = ""  # languages of a named data set, source first; empty: its first
    text: Literal["raw", "tok"] = (
        "raw"  # multi30k also has "tok": lower-cased and tokenised, as published scores use it
    )
    train: str = ""  # own file (TSV, JSONL, text; plain or .gz), or two line-aligned ones: "train.en,train.de"
    valid: str = ""  # the same, held out
    columns: str = "source,target"  # keys of a JSONL line; a TSV line has source and target (text and class) first
    prefixed: bool = False  # each sentence begins with its task, as T5's do: "translate English to German: "
    tokenizer: Literal["bpe", "bytes", "wordpiece", "characters"] = "bpe"
    vocab: int = 8000  # tokens to learn; more if there are more different characters
    max_len: int = 256  # tokens; a longer pair is left out, a longer text is cut into windows of so many
    pairs: int = 20_000  # how many a toy generates
    crop: int = 0  # pixels by which a picture may be moved: it is padded by so many (mirrored), then cut at random
    flip: bool = False  # half of the pictures are mirrored, left to right
    augment: float = 0.0  # strength from 0 to 1 of RandAugment's changes, two of them a picture
    mixup: float = 0.0  # two pictures are laid over each other, with a share drawn from Beta(this, this); 0 = never
    erase: float = 0.0  # share of the pictures of which a random rectangle is made grey
    fit: Literal["crop", "squash"] = "crop"  # of a picture that is no square the middle is taken, or it is squashed
    resize: int = 0  # pixels to which it is scaled, before training cuts out what the model sees; 0: 8/7 of that
    resample: Literal["bicubic", "bilinear"] = "bicubic"  # how it is scaled
    fraction: float = (
        1.0  # of the pictures to learn from, of each class alike; a smaller share lies within a larger one
    )
    mean: list[float] = dataclasses.field(default_factory=list)  # of each channel, of pixels from 0 to 1; empty: 0.5
    std: list[float] = dataclasses.field(default_factory=list)  # the same, how far they spread; empty: 0.5

    def __post_init__(self) -> None:
        require_min(1, vocab=self.vocab, pairs=self.pairs)
        require_min(2, max_len=self.max_len)
        require_max(65_535, max_len=self.max_len)
        require_min(0, crop=self.crop, resize=self.resize, augment=self.augment, mixup=self.mixup, erase=self.erase)
        require_max(1, augment=self.augment, erase=self.erase, fraction=self.fraction)
        require_max(100, mixup=self.mixup)
        if not self.fraction > 0:
            raise ValueError(f"fraction is {self.fraction}; use more than 0, and 1 or less")
        for value in self.mean:
            require_min(0, mean=value)
            require_max(1, mean=value)
        for value in self.std:
            require_max(1, std=value)
            if not value > 0:
                raise ValueError(f"std is {value}; use more than 0, and 1 or less")
        if self.mean and self.std and len(self.mean) != len(self.std):
            raise ValueError(
                f"mean has {len(self.mean)} numbers and std {len(self.std)}; give each one for every channel"
            )
        if self.source and (self.train or self.valid):
            raise ValueError(
                f"source={self.source} and {'train' if self.train else 'valid'}={self.train or self.valid} were both given; "
                f"for own files add data.source="
            )


@dataclass(frozen=True, config=STRICT)
class TrainConfig:
    """How to learn.  Adam (0.9, 0.98), label smoothing and the inverse-square-root schedule are those of the paper."""

    steps: int = 10_000
    batch_tokens: int = 4096  # the most tokens of a batch on its longer side, padding counted
    batch_size: int = 128  # the pictures of a batch
    accumulate: int = 1  # batches for one step
    optimizer: Literal["adam", "adafactor"] = "adam"  # of the latter lr is a share of the weights' own size, some 0.03
    lr: float = 1e-3  # the peak, reached after warm-up
    warmup: int = 1000  # steps
    schedule: Literal["inverse", "cosine"] = "inverse"  # after it: 1/√step, or half a cosine down to a tenth
    weight_decay: float = 0.0  # of the weights of matrices, times the learning rate, each step
    label_smoothing: float = 0.1  # label smoothing
    clip_norm: float = 1.0  # largest norm of the gradient; 0 = never clipped
    seed: int = 1
    log_every: int = 20  # steps, as all the following
    eval_every: int = 500
    save_every: int = 500
    average: int = (
        5  # the end is the mean of this many last checkpoints, if held-out data likes it better than the last
    )
    ema: float = (
        0.0  # the model is a running mean of its weights, of which each step keeps this share; 0 = the last weights
    )
    patience: int = 0  # stop after this many evaluations without a better loss, and keep the last; 0 = never
    device: str = "auto"  # cuda, mps or cpu; auto takes the first there is

    def __post_init__(self) -> None:
        require_min(1, steps=self.steps, batch_tokens=self.batch_tokens, batch_size=self.batch_size, accumulate=self.accumulate, warmup=self.warmup,
                  log_every=self.log_every, eval_every=self.eval_every, save_every=self.save_every,
                  average=self.average)  # fmt: skip
        require_min(
            0,
            lr=self.lr,
            clip_norm=self.clip_norm,
            seed=self.seed,
            patience=self.patience,
            weight_decay=self.weight_decay,
        )
        require_max(2**63 - 1, seed=self.seed)
        require_fraction(label_smoothing=self.label_smoothing, ema=self.ema)


@dataclass(frozen=True, config=STRICT)
class DecodeConfig:
    """How to search for a translation."""

    beam_size: int = 5  # 1 = greedy
    length_penalty: float = 1.0  # a score is its log-probability / length ** this
    batch_size: int = 64  # sentences at once

    def __post_init__(self) -> None:
        require_min(1, beam_size=self.beam_size, batch_size=self.batch_size)
        require_min(-10, length_penalty=self.length_penalty)
        require_max(10, length_penalty=self.length_penalty)


class Family(NamedTuple):
    """A kind of model: its config class, its sizes by name, how to build one, and what it can learn, the usual first."""

    config: type
    sizes: Mapping[str, Any]
    build: Any
    tasks: tuple[str, ...] = ("translate",)


@dataclass(frozen=True, config=STRICT)
class Run:
    """All that makes a training run: written to `run.toml`, enough to do it again."""

    name: str
    family: str
    model: Any
    task: str = "translate"  # what is learnt: translate, next, masked, spans, class, image or pixels
    init: str = ""  # a run folder to begin from: its model, tokenizer and weights
    untrained: str = ""  # heads that an imported checkpoint lacked, with commas between: hidden, pool, classes
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    decode: DecodeConfig = dataclasses.field(default_factory=DecodeConfig)
    licence: str = ""  # of the data, for the model card


def recipes() -> dict[str, Path]:
    """The recipes that ship with the package, by name."""
    return {path.stem: path for path in sorted(Path(str(resources.files("regard") / "recipes")).glob("*.toml"))}


def load(what: str, changes: Iterable[str], families: Mapping[str, Family]) -> Run:
    """Read a recipe by name, or a TOML file, and put `table.key=value` changes on top."""
    path = Path(what) if what.endswith(".toml") else recipes().get(what)
    if path is None:
        raise ValueError(
            f"no recipe {what!r}{nearest(what, recipes())}; recipes are {', '.join(recipes())}, or give a .toml file"
        )
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"no file {path}; give a .toml file or a recipe: {', '.join(recipes())}") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder; give a .toml file or a recipe: {', '.join(recipes())}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    if not tables:
        raise ValueError(f"{path} is empty; wanted tables such as [model], [data], [train]")
    if path.name == "run.toml" and "decode" not in tables:  # which is written last
        raise ValueError(f"{path} is cut short: it has no table [decode]; restore the file, or train again")
    changed = list(changes)
    for change in sorted(changed, key=lambda change: not change.startswith("model=")):  # a model before its keys
        _change(tables, change, families)
    for key in (change.partition("=")[0] for change in changed if tables.get("init")):
        if key in TAKEN or (key.startswith("model.") and key not in FREE):
            raise ValueError(
                f"{key} and init={tables['init']} were both given; the model and its tokenizer are those of init"
            )
    if tables.get("init"):
        _begin_from(Path(str(tables["init"])), tables, families)
    return from_tables(path.stem, tables, families)


def _begin_from(init: Path, tables: dict[str, Any], families: Mapping[str, Family]) -> None:
    """A run that begins from another is of its family, if that learns the same; of the recipe's model stay the free keys."""
    try:
        kind = tomllib.loads((init / "run.toml").read_text(encoding="utf-8"))["model"]["family"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # whoever opens it says what is wrong
    model = tables.setdefault("model", {})
    own = model.get("family", "transformer")
    if kind == own or kind not in families or own not in families:
        return
    if tables.get("task", families[own].tasks[0]) in families[kind].tasks:
        tables["model"] = {"family": kind, **{key: value for key, value in model.items() if f"model.{key}" in FREE}}


def _change(tables: dict[str, Any], change: str, families: Mapping[str, Family]) -> None:
    """Put one `table.key=value` into the tables."""
    key, equals, text = change.partition("=")
    table, dot, name = key.partition(".")
    if not equals or (not dot and key not in ("model", *PLAIN)):
        tables_of = {"data": DataConfig, "train": TrainConfig, "decode": DecodeConfig}
        full = [f"{table}.{key}" for table, kind in tables_of.items() if equals and hasattr(kind, key)]
        meant = f"; did you mean {full[0]}?" if full else ", such as train.steps=2000"
        raise ValueError(f"{change!r} is not of the form table.key=value{meant}")
    if key == "model":
        _choose(tables.setdefault("model", {}), text, families)
        return
    if not dot:
        name, place = key, tables
    else:
        place = tables.setdefault(table, {})
        if not isinstance(place, dict):
            raise ValueError(f"{change!r}: {table} has no keys")
    place[name] = value_of(text)


def value_of(text: str) -> Any:
    """The value of a `key=value`, read as TOML; what is none is a bare word or a path."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _choose(model: dict[str, Any], wanted: str, families: Mapping[str, Family]) -> None:
    """Take a size by its name.

    One named with its family (`model=swin-tiny`), or any of a family for pictures, is that model whole: of the recipe's stays
    only which pictures it sees.
    """
    kind = next((kind for kind in families if wanted.startswith(f"{kind}-")), None)
    if kind is not None:
        known = [f"{kind}-{size}" for size in families[kind].sizes]
        if wanted not in known:
            raise ValueError(f"no model {wanted!r}{nearest(wanted, known)}; there is {', '.join(known)}")
        model["family"] = kind
    if kind is not None or "image" in model:
        for key in [key for key in model if key not in ("family", "image", "channels")]:
            del model[key]
    model["size"] = wanted


def from_tables(name: str, tables: dict[str, Any], families: Mapping[str, Family]) -> Run:
    """Check the tables of a TOML file, and make the one frozen object of them."""
    known: dict[str, type] = {"data": DataConfig, "train": TrainConfig, "decode": DecodeConfig}
    for table in tables:
        if table not in (*known, "model", *PLAIN):
            raise ValueError(
                f"unknown table {table!r}{nearest(table, [*known, 'model'])}; tables are data, decode, model, train"
            )
        if table not in PLAIN and not isinstance(tables[table], dict):
            raise ValueError(f"{table} is {tables[table]!r}; wanted a table with keys, such as [{table}]")
    name = str(tables.get("name", name))
    if not re.fullmatch(r"[\w+-][\w.+-]*", name):
        raise ValueError(f"name is {name!r}; use letters, digits and - only: it becomes a folder of runs/")
    model = dict(tables.get("model", {}))
    kind = str(model.pop("family", "transformer"))
    if kind not in families:
        raise ValueError(f"unknown model.family {kind!r}{nearest(kind, families)}; families are {', '.join(families)}")
    family = families[kind]
    usual = "base" if "base" in family.sizes else next(iter(family.sizes))
    size = str(model.pop("size", usual)).removeprefix(f"{kind}-")
    if size not in family.sizes:
        raise ValueError(
            f"unknown model.size {size!r}{nearest(size, family.sizes)}; sizes are {', '.join(family.sizes)}"
        )
    task = str(tables.get("task", family.tasks[0]))
    if task not in family.tasks:
        raise ValueError(
            f"a {kind} does not learn task {task!r}{nearest(task, family.tasks)}; it learns {', '.join(family.tasks)}"
        )
    if "vocab" in model:
        raise ValueError("model.vocab is counted from the tokenizer; set data.vocab instead")
    base = {field.name: getattr(family.sizes[size], field.name) for field in dataclasses.fields(family.config)}
    parts = {table: build(table, cls, tables.get(table, {})) for table, cls in known.items()}
    return Run(
        name=name,
        family=kind,
        task=task,
        init=str(tables.get("init", "")),
        untrained=str(tables.get("untrained", "")),
        model=build("model", family.config, model, base),
        licence=str(tables.get("licence", "")),
        **parts,
    )


def build(table: str, cls: type, values: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> Any:
    """Make one config of a table, or say in one line what is wrong with it."""
    known = [field.name for field in dataclasses.fields(cls)]
    for key in values:
        if key not in known:
            raise ValueError(f"unknown key {table}.{key}{nearest(key, known)}; keys of {table} are {', '.join(known)}")
    try:
        return cls(**{**(base or {}), **values})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join([table, *map(str, first["loc"])])
        what = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{key}: {what}" + (f", got {first['input']!r}" if first["loc"] else "")) from None


def nearest(word: str, known: Iterable[str]) -> str:
    """The words "did you mean …?", or nothing if no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def to_toml(run: Run) -> str:
    """The whole run as TOML; `load` reads it back to an equal `Run`."""
    model = {key: value for key, value in dataclasses.asdict(run.model).items() if key != "vocab"}
    return tomli_w.dumps({
        "name": run.name,
        "task": run.task,
        "init": run.init,
        "untrained": run.untrained,
        "licence": run.licence,
        "model": {"family": run.family, **model},
        **{table: dataclasses.asdict(getattr(run, table)) for table in ("data", "train", "decode")},
    })  # fmt: skip
