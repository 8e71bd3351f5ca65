"""TOML and `key=value` → one frozen `Run(model, data, train, decode)`.

A config is data: frozen, flat, checked once.  A mistyped key is answered in one line that names the nearest known key.  Configs
of models and of data are defined with their models and data; this file gets them in tables of families and of tasks.
"""

import dataclasses
import difflib
import math
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import tomli_w
from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass

__all__ = [
    "STRICT",
    "DecodeConfig",
    "Family",
    "Run",
    "TaskSpec",
    "TrainConfig",
    "build",
    "build_run",
    "check_model",
    "nearest",
    "parse_value",
    "read_tables",
    "recipes",
    "require_divisible",
    "require_fraction",
    "require_max",
    "require_min",
    "tasks_of",
    "to_toml",
]  # fmt: skip

STRICT = ConfigDict(extra="forbid", strict=True)
TOP_LEVEL = ("name", "task", "init", "init_encoder", "untrained", "licence", "languages")  # keys outside any table
TABLES = ("model", "data", "train", "decode")
MAX_SIZE = 2**31 - 1  # of a model: no tensor is wider
COUNTED = ("vocab", "classes")  # keys of a model that the data decides

Config = TypeVar("Config")
Tables = dict[str, Any]  # what a TOML file holds


def require_min(low: float, /, **values: float) -> None:
    """Refuse values below `low`, by their names."""
    for key, value in values.items():
        if not value >= low:  # NaN is refused too
            raise ValueError(f"{key} is {value}; use {low} or more")


def require_max(high: float, /, **values: float) -> None:
    """Refuse values above `high`, by their names."""
    for key, value in values.items():
        if not value <= high:
            raise ValueError(f"{key} is {value}; use {high} or less")


def require_fraction(**values: float) -> None:
    """Refuse values outside [0, 1), by their names."""
    for key, value in values.items():
        if not 0 <= value < 1:
            raise ValueError(f"{key} is {value}; use 0 or more and less than 1")


def require_divisible(dim: int, heads: int) -> None:
    """Refuse a width that does not divide into the heads."""
    if dim % heads:
        raise ValueError(f"width {dim} does not split into {heads} heads; use a multiple of {heads}")


def check_model(config: Any, zero: tuple[str, ...] = (), one: tuple[str, ...] = (), weights: tuple[str, ...] = ()) -> None:
    """Refuse sizes of a model below 1, or below 0 for keys in `zero`, and rates outside [0, 1); those in `one` may be 1.

    Keys in `weights` are weights of a loss, 0 or more.
    """
    for field in dataclasses.fields(config):
        value = {field.name: getattr(config, field.name)}
        if field.type is int:
            require_max(MAX_SIZE, **value)
            require_min(0 if field.name in zero else 1, **value)
        elif field.name in (*one, *weights):
            require_min(0, **value)
            require_max(1 if field.name in one else math.inf, **value)
        elif field.type is float:
            require_fraction(**value)


@dataclass(frozen=True, config=STRICT)
class TrainConfig:
    """How to train.  Adam (0.9, 0.98), label smoothing and the inverse-square-root schedule are those of the 2017 paper."""

    steps: int = 10_000
    batch_tokens: int = 4096  # largest batch of text: tokens of its longer side, padding included
    batch_size: int = 128  # images of a batch
    accumulate: int = 1  # batches per step
    optimizer: Literal["adam", "adafactor"] = "adam"  # adafactor's lr is relative to the size of the weights, about 0.03
    lr: float = 1e-3  # peak, reached after warm-up
    warmup: int = 1000  # steps
    schedule: Literal["inverse", "cosine"] = "inverse"  # after warm-up: 1/√step, or a cosine down to a tenth
    weight_decay: float = 0.0  # of matrices, decoupled from the gradient (AdamW)
    label_smoothing: float = 0.1
    r_drop: float = 0.0  # weight of the divergence between two dropout masks (R-Drop), about 5; doubles the work; 0 = none
    clip_norm: float = 1.0  # largest gradient norm; 0 = no clipping
    seed: int = 1
    log_every: int = 20  # steps, like the next two
    eval_every: int = 500
    save_every: int = 500
    keep_every: int = 0  # steps whose weights are kept for good, to look at how the model learned; 0 = none
    average: int = 5  # last checkpoints to average at the end, if that lowers the validation loss
    ema: float = 0.0  # decay of an exponential moving average of the weights, which is then the model; 0 = none
    patience: int = 0  # stop after this many evaluations without a lower validation loss; 0 = never
    device: str = "auto"  # cuda, mps or cpu; auto takes the first available
    checkpoints: str = ""  # folder for checkpoints, such as one on another disk; empty: inside the run folder

    def __post_init__(self) -> None:
        positive = (
            "steps",
            "batch_tokens",
            "batch_size",
            "accumulate",
            "warmup",
            "log_every",
            "eval_every",
            "save_every",
            "average",
        )
        require_min(1, **{key: getattr(self, key) for key in positive})
        require_min(0, **{key: getattr(self, key) for key in ("lr", "r_drop", "clip_norm", "seed", "patience", "weight_decay")})
        if self.keep_every < 0 or self.keep_every % self.save_every:
            raise ValueError(f"keep_every is {self.keep_every}, and a checkpoint is written every {self.save_every} steps "
                             f"(save_every); use a multiple of that, train.save_every={max(self.keep_every, 1)} too, "
                             f"or 0 to keep none")  # fmt: skip
        require_max(2**63 - 1, seed=self.seed)
        require_max(10, lr=self.lr)  # Adam moves each weight by about that much in a step
        require_fraction(label_smoothing=self.label_smoothing, ema=self.ema)


@dataclass(frozen=True, config=STRICT)
class DecodeConfig:
    """How to search for an answer."""

    beam_size: int = 5  # 1 = greedy
    length_penalty: float = 1.0  # a score is log-probability / length ** length_penalty
    batch_size: int = 64  # sentences, or images, at once
    min_length: int = 0  # fewest tokens of an answer, end not counted
    max_length: int = 0  # most tokens of an answer, end included; 0: what the task allows
    no_repeat_ngram_size: int = 0  # no n tokens in a row occur twice in an answer; 0: they may
    repetition_penalty: float = 1.0  # divides the positive logits of tokens already in the answer and multiplies the negative
    suppress_tokens: list[int] = dataclasses.field(default_factory=list)  # token ids that no answer holds
    bad_words: list[list[int]] = dataclasses.field(default_factory=list)  # sequences of token ids that no answer holds
    forced_bos: int = -1  # the first token id of every answer; -1: none
    forced_eos: int = -1  # the last token id of an answer that reaches its limit; -1: none
    renormalize_logits: bool = False  # whether the probabilities of what these options leave sum to 1 in a beam

    def __post_init__(self) -> None:
        require_min(1, beam_size=self.beam_size, batch_size=self.batch_size)
        require_max(1000, beam_size=self.beam_size)  # memory grows with it
        require_max(100_000, batch_size=self.batch_size)
        require_min(0, min_length=self.min_length, max_length=self.max_length, no_repeat_ngram_size=self.no_repeat_ngram_size)
        require_min(-1, forced_bos=self.forced_bos, forced_eos=self.forced_eos)
        if not 0.01 <= self.repetition_penalty <= 100:
            raise ValueError(f"repetition_penalty is {self.repetition_penalty}; use 0.01 to 100, 1 for none")
        require_min(-10, length_penalty=self.length_penalty)
        require_max(10, length_penalty=self.length_penalty)


class Family(NamedTuple):
    """A model family: its config class, its sizes by name, its module, and its kind, by which tasks choose their models."""

    config: type
    sizes: Mapping[str, Any]
    build: Any
    kind: str


class TaskSpec(Protocol):
    """What this file asks of a task."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of models that learn it."""

    @property
    def data(self) -> type:
        """The config class of its data."""


@dataclass(frozen=True, config=STRICT)
class Run:
    """All that makes a training run: written to `run.toml`, enough to do it again."""

    name: str
    family: str
    model: Any  # config of the family
    task: str = "translation"
    init: str = ""  # run folder to fine-tune: its model, tokenizer and weights
    init_encoder: str = ""  # run folder of an image classifier: the image encoder of a caption model, with its weights
    untrained: tuple[str, ...] = ()  # heads that an imported checkpoint lacked: lm_head, pooler, classifier
    data: Any = None  # config of the task's data
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    decode: DecodeConfig = dataclasses.field(default_factory=DecodeConfig)
    licence: str = ""  # of the data, for the model card
    languages: str = ""  # of a translator of own files, source first: en-de; found in their header row, if it names them


def recipes() -> dict[str, Path]:
    """The recipes that ship with the package, by name."""
    return {path.stem: path for path in sorted(Path(str(resources.files("regard") / "recipes")).glob("*.toml"))}


def read_tables(what: str | Path, changes: Collection[str], families: Mapping[str, Family]) -> tuple[str, Tables]:
    """The name and the tables of a recipe or a TOML file, with `table.key=value` changes on top."""
    path = Path(what) if str(what).endswith(".toml") else recipes().get(str(what))
    if path is None:
        near = nearest(str(what), recipes())
        raise ValueError(f"no recipe {what!r}{near}; recipes are {', '.join(recipes())}, or give a .toml file")
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"no file {path}; give a .toml file or a recipe: {', '.join(recipes())}") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder; give a .toml file or a recipe: {', '.join(recipes())}") from None
    except RecursionError:
        raise ValueError(f"{path} is not TOML: its tables are nested too deeply") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise ValueError(f"{path} is not TOML: {error}") from None
    if not tables:
        raise ValueError(f"{path} is empty; wanted tables such as [model], [data], [train]")
    for change in sorted(changes, key=lambda change: not change.startswith("model=")):  # a model before its keys
        _change(tables, change, families)
    changed = {change.partition("=")[0] for change in changes}
    if "languages" not in changed and changed & {"data.source", "data.train", "data.pair", "data.columns"}:
        tables.pop("languages", None)  # those of the data it was trained on before
    return path.stem, tables


def _change(tables: Tables, change: str, families: Mapping[str, Family]) -> None:
    """Put one `table.key=value` into the tables."""
    key, equals, text = change.partition("=")
    *path, name = key.split(".")
    if not equals or (not path and key not in ("model", *TOP_LEVEL)):
        full = [f"{table}.{key}" for table, kind in (("train", TrainConfig), ("decode", DecodeConfig)) if hasattr(kind, key)]
        full = full or [f"{table}.{key}" for table in ("data", "model") if key in tables.get(table, ())]
        meant = f"; did you mean {full[0]}?" if full and equals else ", such as train.steps=2000"
        raise ValueError(f"{change!r} is not of the form table.key=value{meant}")
    if key == "model":
        _choose_size(tables.setdefault("model", {}), text, families)
        return
    target = tables
    for part in path:  # a table may hold another, such as model.encoder
        target = target.setdefault(part, {})
        if not isinstance(target, dict):
            raise ValueError(f"{change!r}: {part} has no keys")
    target[name] = parse_value(text)


def parse_value(text: str) -> Any:
    """The value of a `key=value`, read as TOML; anything else is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def _choose_size(model: Tables, wanted: str, families: Mapping[str, Family]) -> None:
    """Take a size by name.

    With its family (`model=swin-tiny`), or in a recipe for images, it replaces the recipe's whole model but for the image size.
    """
    family = next((family for family in families if wanted.startswith(f"{family}-")), None)
    if family is not None:
        known = [f"{family}-{size}" for size in families[family].sizes]
        if wanted not in known:
            raise ValueError(f"no model {wanted!r}{nearest(wanted, known)}; there is {', '.join(known)}")
        model["family"] = family
    if wanted in families and wanted not in families[_family_name(model, families)].sizes:
        known = [f"{wanted}-{size}" for size in families[wanted].sizes]
        raise ValueError(f"model={wanted} is a family; choose a size of it: model={', model='.join(known)}")
    if family is not None or "image" in model:
        for key in [key for key in model if key not in ("family", "image", "channels")]:
            del model[key]
    model["size"] = wanted


def _family_name(model: Tables, families: Mapping[str, Family]) -> str:
    """The family of a table of a model; of an unknown one, the default."""
    name = str(model.get("family", "transformer"))
    return name if name in families else next(iter(families))


def tasks_of(family: Family, tasks: Mapping[str, TaskSpec]) -> list[str]:
    """The tasks that a family learns, the default first."""
    return [name for name, task in tasks.items() if family.kind in task.kinds]


def build_run(name: str, tables: Tables, families: Mapping[str, Family], tasks: Mapping[str, TaskSpec], base: Any = None) -> Run:
    """Check the tables of a TOML file and make one frozen object of them; `base` is a model config to start from."""
    for table in tables:
        if table not in (*TABLES, *TOP_LEVEL):
            raise ValueError(f"unknown table {table!r}{nearest(table, TABLES)}; tables are {', '.join(sorted(TABLES))}")
        if table in TABLES and not isinstance(tables[table], dict):
            raise ValueError(f"{table} is {tables[table]!r}; wanted a table with keys, such as [{table}]")
    name = str(tables.get("name", name))
    if not re.fullmatch(r"[\w+-][\w.+-]*", name):
        raise ValueError(f"name is {name!r}; use letters, digits and - only: it becomes a folder of runs/")
    model = dict(tables.get("model", {}))
    family_name = str(model.pop("family", "transformer"))
    if family_name not in families:
        near = nearest(family_name, families)
        raise ValueError(f"unknown model.family {family_name!r}{near}; families are {', '.join(families)}")
    family = families[family_name]
    default = "base" if "base" in family.sizes else next(iter(family.sizes))
    size = str(model.pop("size", default)).removeprefix(f"{family_name}-")
    if size not in family.sizes:
        alike = [f"{name}-{size}" for name, other in families.items() if other.kind == family.kind for size in other.sizes]
        near = nearest(size, family.sizes) or nearest(size, alike)
        others = [name for name, other in families.items() if other.kind == family.kind and name != family_name]
        more = f", or another family: {', '.join(others)}" if others else ""
        raise ValueError(f"unknown model.size {size!r}{near}; sizes of {family_name} are {', '.join(family.sizes)}: choose one, "
                         f"such as model={family_name}-{next(iter(family.sizes))}{more}")  # fmt: skip
    task = str(tables["task"] if "task" in tables else tasks_of(family, tasks)[0])
    if task not in tasks or family.kind not in tasks[task].kinds:  # only then are the other tasks imported
        supported = tasks_of(family, tasks)
        near = nearest(task, supported)
        raise ValueError(f"a {family_name} does not learn task {task!r}{near}; it learns {', '.join(supported)}")
    if "vocab" in model:
        raise ValueError("model.vocab is counted from the tokenizer; set data.vocab instead")
    base = family.sizes[size] if base is None else base
    languages = str(tables.get("languages", ""))
    if languages and not re.fullmatch(r"[^\W\d_]{2,3}-[^\W\d_]{2,3}", languages):
        raise ValueError(f"languages is {languages!r}; wanted the codes of two languages, source first, such as en-de")
    if languages and (family.kind != "encoder-decoder" or tables.get("data", {}).get("source")):
        raise ValueError(f"languages={languages} is for translators of own files; a named data set has its languages, and other "
                         "models have none")  # fmt: skip
    untrained = tables.get("untrained", ())
    if not isinstance(untrained, list | tuple) or not all(isinstance(head, str) for head in untrained):
        raise ValueError(f'untrained is {untrained!r}; wanted a list of heads, such as ["pooler"]')
    return Run(
        name=name,
        family=family_name,
        task=task,
        init=str(tables.get("init", "")),
        init_encoder=str(tables.get("init_encoder", "")),
        untrained=tuple(untrained),
        model=build("model", family.config, model, {f.name: getattr(base, f.name) for f in dataclasses.fields(family.config)}),
        data=build("data", tasks[task].data, tables.get("data", {})),
        train=build("train", TrainConfig, tables.get("train", {})),
        decode=build("decode", DecodeConfig, tables.get("decode", {})),
        licence=str(tables.get("licence", "")),
        languages=languages,
    )


def build(table: str, cls: type[Config], values: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> Config:
    """Make one config of a table, or say in one line what is wrong with it."""
    known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise ValueError(
                f"unknown key {table}.{key}{nearest(key, known, f'{table}.')}; keys of {table} are {', '.join(known)}"
            )
    base = base or {}
    inner = {  # a table in this one, such as model.encoder, changes the keys it names; with a family it is another model
        key: {**base[key], **value}
        for key, value in values.items()
        if isinstance(value, dict) and "family" not in value and isinstance(base.get(key), dict)
    }
    try:
        return cls(**{**base, **values, **inner})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join([table, *map(str, first["loc"])])
        what = first["msg"].removeprefix("Value error, ") + (", such as [1,2]" if first["type"] == "list_type" else "")
        raise ValueError(f"{key}: {what}" + (f", got {first['input']!r}" if first["loc"] else "")) from None


def nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """The words "did you mean …?", or nothing if no known word is close; `prefix` is put before the known word."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {prefix + close[0]!r}?)" if close else ""


def to_toml(run: Run) -> str:
    """The whole run as TOML; reading it back gives an equal `Run`."""
    model = {key: value for key, value in dataclasses.asdict(run.model).items() if key != "vocab"}
    top = {key: getattr(run, key) for key in TOP_LEVEL} | {"untrained": list(run.untrained)}
    rest = {table: dataclasses.asdict(getattr(run, table)) for table in ("data", "train", "decode")}
    return tomli_w.dumps({**top, "model": {"family": run.family, **model}, **rest})
