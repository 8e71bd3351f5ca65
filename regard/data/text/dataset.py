"""From a `DataConfig` and a task to a tokenizer and two encoded splits: everything training reads.

- `translate` learns from sentence pairs, or from labelled texts, whose class is the answer; several sets make a mixture;
- `next`, `masked` and `spans` learn from one plain text;
- `class` learns from labelled texts.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from regard.config import DataConfig, nearest
from regard.data.sources import SOURCES, locate, prefix_of
from regard.data.text.readers import Pair, read_fraction, read_labeled, read_pairs, read_text
from regard.data.text.store import UNKNOWN, PairStore, Text, encode, encode_labels, encode_text
from regard.data.text.tokenizer import SENTINELS, Tokenizer, train_tokenizer
from regard.data.text.toys import TOYS, toy_pairs

__all__ = ["Split", "TextDataset", "encode_split", "find_split", "licence_of", "members", "prepare"]

LEARNT = 500_000  # pairs or lines; a tokenizer is learnt from at most so many, evenly spread, so its memory is bounded
SAMPLES = 3  # held-out sentences translated at every evaluation
PROMPT = 40  # characters of held-out text, to be gone on with at every evaluation
CLASSES = 1000  # the most of a file of one's own; more are probably no classes
FEW = 20  # classes that are named before training
TOY_HELD_OUT = 500  # pairs of a toy's valid and test

FITS = {  # task → kinds of data
    "translate": ("pairs", "labels"), "next": ("text",), "masked": ("text",), "spans": ("text",), "class": ("labels",),
}  # fmt: skip
WORDS = {"pairs": "sentence pairs", "text": "plain text", "labels": "labelled texts"}


class Split(NamedTuple):
    """One split of a corpus: how to stream its pairs, or its text, again, and what they depend on."""

    name: str
    pairs: Callable[[], Iterator[Pair]]  # source and target, or text and class
    identity: object
    text: Callable[[], Iterator[str]]  # a plain text, in pieces with their line ends


class TextDataset(NamedTuple):
    """What training reads."""

    tokenizer: Tokenizer
    train: PairStore | Text
    valid: PairStore | Text
    samples: list[Pair]  # a few held-out pairs, to show answers while training
    labels: tuple[str, ...] = ()  # the names of the classes, by number
    text_sample: str = ""  # how the held-out text begins, to be gone on with while training


def members(config: DataConfig) -> list[str]:
    """The named sets a config mixes: usually one; files of one's own are one set without a name."""
    return [name for part in config.source.split(",") if (name := part.strip())] or [""]


def find_split(config: DataConfig, split: str, only: str = "") -> Split:
    """A split by name (`train`, `valid`, `test_2016_flickr`), or a file of one's own.

    A mixture's are those of its sets, one after the other, or that of one set `only`.
    """
    names = [only] if only else [name for name in members(config) if name]
    known = [*SOURCES, *TOYS]
    for name in names:
        if name not in known:
            raise ValueError(
                f"no data set {name!r}{nearest(name, known)}; known are {', '.join(known)}; "
                f"for own files set data.train and data.valid"
            )
    if config.prefixed and not names:
        raise ValueError(
            "data.prefixed is for named data sets; in files of your own write the prefix before each sentence"
        )
    if names and all(split in ("train", "valid") or split in _splits(name) for name in names):
        _check_choices(config)
        parts = [_named(name, config, split) for name in names]
        if len(parts) == 1:
            return parts[0]
        return Split(
            f"{config.source} {split}",
            lambda: chain.from_iterable(part.pairs() for part in parts),
            [part.identity for part in parts],
            partial(_no_text, config.source),
        )
    own = {"train": config.train, "valid": config.valid}.get(split, split)
    if not own:
        raise ValueError(
            f"no {split} data; give data.{split}=FILE (TSV, JSONL, two line-aligned files with a comma, or plain text), "
            f"or data.source=NAME; to score, --on FILE"
        )
    if names and not Path(own.split(",")[0]).exists():
        lacks = next(name for name in names if split not in _splits(name))
        raise ValueError(
            f"{lacks} has no split {split!r}{nearest(split, _splits(lacks))}, and there is no such file; "
            f"splits are {', '.join(_splits(lacks))}"
        )
    lock_folder = len(members(config)) == 1 and names  # a file for a mixture has its prefixes in it
    prefix = _prefix(names[0], config) if lock_folder else ""
    return _from_files([Path(part).expanduser() for part in own.split(",")], config, own, prefix)


def _splits(name: str) -> tuple[str, ...]:
    return SOURCES[name].splits if name in SOURCES else ("train", "valid", "test")


def _check_choices(config: DataConfig) -> None:
    """In a mixture `pair` and `text` are for the sets that have them; one must."""
    named = [SOURCES[name] for name in members(config) if name in SOURCES]
    for key, value, known in (
        ("pair", config.pair, dict.fromkeys(pair for source in named for pair in source.pairs)),
        ("text", config.text, dict.fromkeys(["raw", *(text for source in named for text in source.files)])),
    ):
        if value and value not in known and len(members(config)) > 1:
            has = ", ".join(known) or "none"
            raise ValueError(f"no set of {config.source} has {key} {value!r}{nearest(value, known)}; they have {has}")


def _named(name: str, config: DataConfig, split: str) -> Split:
    """A split of one named set or toy."""
    prefix = _prefix(name, config)
    if name in TOYS:
        count = config.pairs if split == "train" else TOY_HELD_OUT
        pairs = _prefixed(lambda: toy_pairs(name, split, count), prefix)
        return Split(f"{name} {split}", pairs, [name, split, count, prefix], partial(_no_text, name))
    source = SOURCES[name]
    real = source.valid if split == "valid" else split
    files = locate(name, real, *_choices(name, config))
    found = _from_files(files, config, f"{name} {real}", prefix)
    if source.kind == "labels":
        pairs = _prefixed(lambda: read_labeled(files[0], source.labels), prefix)
        return found._replace(pairs=pairs, identity=[found.identity, source.labels], text=partial(_no_text, name))
    if source.kind == "text":
        part = source.parts.get(real)
        text = (lambda: read_fraction(files, *part)) if part else found.text
        shown = (lambda: (piece.replace(source.unknown, UNKNOWN) for piece in text())) if source.unknown else text
        return found._replace(
            text=shown, identity=[found.identity, part, source.unknown], pairs=partial(_no_pairs, name)
        )
    return found._replace(text=partial(_no_text, name))


def _choices(name: str, config: DataConfig) -> tuple[str, str]:
    """The pair of languages and the kind of text of one set; in a mixture, its own if it lacks those asked for."""
    source = SOURCES[name]
    if len(members(config)) == 1:
        return config.pair, config.text
    return config.pair if config.pair in source.pairs else "", config.text if config.text in source.files else "raw"


def _prefix(name: str, config: DataConfig) -> str:
    if not config.prefixed:
        return ""
    return prefix_of(name, _choices(name, config)[0]) if name in SOURCES else f"{name}: "


def task_prefixes(config: DataConfig) -> tuple[str, ...]:
    """What stands before the texts of each set of a run, if it was trained with such."""
    return tuple(filter(None, (_prefix(name, config) for name in members(config)))) if config.prefixed else ()


def _prefixed(pairs: Callable[[], Iterator[Pair]], prefix: str) -> Callable[[], Iterator[Pair]]:
    return (lambda: ((prefix + source, target) for source, target in pairs())) if prefix else pairs


def _from_files(files: list[Path], config: DataConfig, name: str, prefix: str) -> Split:
    for file in files:
        if not file.exists():
            raise ValueError(f"no file {file}; check the path")
    stamps = [(str(file.resolve()), (s := file.stat()).st_size, s.st_mtime_ns) for file in files]
    pairs = _prefixed(lambda: read_pairs(files, config.columns), prefix)
    return Split(name, pairs, [stamps, config.columns, prefix], lambda: read_text(files))


def _no_text(name: str) -> Iterator[str]:
    raise ValueError(f"{name} is not one plain text; texts are {', '.join(_of_kind('text'))}")


def _no_pairs(name: str) -> Iterator[Pair]:
    raise ValueError(f"{name} is one plain text, without pairs; sets of pairs are {', '.join(_of_kind('pairs'))}")


def _of_kind(*kinds: str) -> list[str]:
    return [name for name, source in SOURCES.items() if source.kind in kinds]


def _check_fit(config: DataConfig, task: str) -> None:
    """Refuse sets that hold something else than the task learns from."""
    names = members(config)
    for name in names:
        kind = SOURCES[name].kind if name in SOURCES else "pairs"
        if name in (*SOURCES, *TOYS) and kind not in FITS[task]:
            fits = " or ".join(other for other, kinds in FITS.items() if kind in kinds)
            raise ValueError(
                f"{name} holds {WORDS[kind]}, task {task} learns from {WORDS[FITS[task][0]]}; use task={fits}, "
                f"or data.source={' or '.join(_of_kind(*FITS[task]))}"
            )
    if len(names) > 1 and task != "translate":
        raise ValueError(
            f"data.source={config.source} names {len(names)} sets; task {task} takes one, only translate mixes them"
        )


def prepare(
    config: DataConfig,
    task: str,
    tokenizer_file: Path,
    say: Callable[[str], None],
    progress: Callable[[str, int], None],
) -> TextDataset:
    """Find the corpus, learn its tokenizer (or read the one a resumed run has), and encode train and valid."""
    if task not in FITS:
        raise ValueError(f"no task {task!r}{nearest(task, FITS)}; tasks are {', '.join(FITS)}")
    _check_fit(config, task)
    train, valid = find_split(config, "train"), find_split(config, "valid")
    if not tokenizer_file.exists():
        _learn_tokenizer(config, task, train, progress).save(tokenizer_file)
    tokenizer = Tokenizer.load(tokenizer_file)
    _check_special_tokens(tokenizer, task, tokenizer_file)
    labels = _classes(config, say) if task == "class" else ()
    held = [encode_split(config, task, split, tokenizer, say, progress, labels) for split in ("train", "valid")]
    samples = [] if FITS[task] == ("text",) else _samples(config, tokenizer)
    return TextDataset(
        tokenizer, held[0], held[1], samples, labels, _prompt(valid.text()) if FITS[task] == ("text",) else ""
    )


def _learn_tokenizer(config: DataConfig, task: str, train: Split, progress: Callable[[str, int], None]) -> Tokenizer:
    def examples() -> Iterator[Pair] | Iterator[str]:
        return train.text() if FITS[task] == ("text",) else train.pairs()

    total = 0
    for total, _ in enumerate(examples(), 1):
        if total % 100_000 == 0:
            progress(f"reading {train.name}", total)
    if not total:
        wanted = {"translate": "source and target on each line", "class": "text and class on each line"}
        raise ValueError(f"{train.name} is empty; give a file with {wanted.get(task, 'text in it')}")
    stride = 1 if config.tokenizer == "characters" else -(-total // LEARNT)  # each character must be seen
    read: Iterator[str] = chain.from_iterable(
        [one] if isinstance(one, str) else one[:1] if task == "class" else one
        for one in islice(examples(), 0, None, stride)
    )
    lines = (line.replace(UNKNOWN, "") for line in read)  # so that it is no token, and is read as the unknown one
    extra = {"masked": () if config.tokenizer == "wordpiece" else ("[MASK]",), "spans": SENTINELS}.get(task, ())
    return train_tokenizer(lines, config.tokenizer, config.vocab, extra)


def _check_special_tokens(tokenizer: Tokenizer, task: str, file: Path) -> None:
    special, lacks = tokenizer.special, ""
    if task == "masked" and special.mask is None:
        lacks = "[MASK]"
    elif task == "spans" and len(special.sentinels) < 2:
        lacks = "<extra_id_0>, <extra_id_1>, …"
    elif task in ("translate", "spans") and special.pad == special.eos:
        lacks = "<pad>"
    if lacks:
        raise ValueError(
            f"the tokenizer {file} has no {lacks}, which task {task} needs; begin from another, or from none"
        )


def encode_split(
    config: DataConfig,
    task: str,
    split: str,
    tokenizer: Tokenizer,
    say: Callable[[str], None],
    progress: Callable[[str, int], None] = lambda what, done: None,
    labels: Sequence[str] = (),
) -> PairStore | Text:
    """Encode one split as its task reads it, and say how much there is; `labels` are the classes, by number."""
    found = find_split(config, split)
    heard = partial(progress, f"encoding {found.name}")
    what = found.name, found.identity, tokenizer
    if FITS[task] == ("text",):
        text = encode_text(found.text, *what, heard)
        say(f"{found.name}: {len(text):,} tokens")
        return text
    if task == "class":
        store = encode_labels(found.pairs, labels, *what, config.max_len, heard)
        notes = {"empty ones left out": store.empty, f"cut to {config.max_len} tokens": store.too_long}
        say("; ".join([f"{found.name}: {store.pairs:,} texts", *(f"{n:,} {note}" for note, n in notes.items() if n)]))
        return store
    store = encode(found.pairs, *what, config.max_len, heard)
    why = {"with an empty side": store.empty, f"of over {config.max_len} tokens": store.too_long}
    left = [f"{n:,} {which}" for which, n in why.items() if n]
    say(f"{found.name}: {store.pairs:,} pairs" + (f"; left out: {', '.join(left)}" if left else ""))
    return store


def _classes(config: DataConfig, say: Callable[[str], None]) -> tuple[str, ...]:
    """The names of the classes: those of the named set, or all that training has, which are said with their counts."""
    if config.source in SOURCES:
        return SOURCES[config.source].labels
    train = find_split(config, "train")
    found: Counter[str] = Counter()
    for number, (text, label) in enumerate(train.pairs(), 1):
        if label.splitlines() != [label] or not label.strip():
            raise ValueError(f"{train.name} has the class {label!r} in its text {number:,}, {text[:40]!r}; a class is one "
                             f"line of text, name it so")  # fmt: skip
        found[label] += 1
        if len(found) > CLASSES:
            break
    if len(found) > CLASSES or (len(found) > FEW and 2 * len(found) > found.total()):
        raise ValueError(
            f"{train.name} has {len(found):,} different classes in its first {found.total():,} texts; wanted text, a tab, and "
            f"one of a few classes on each line"
        )
    if len(found) == 1:
        raise ValueError(f"{train.name} has one class only, {label!r}; give texts of two or more, to be told apart")
    if found:
        shown = [f"{label!r} {n:,}" for label, n in sorted(found.items())[:FEW]]
        say(f"classes: {', '.join(shown)}{f', and {len(found) - FEW} more' if len(found) > FEW else ''}")
    return tuple(sorted(found))


def _samples(config: DataConfig, tokenizer: Tokenizer) -> list[Pair]:
    """A few held-out pairs that are not too long, some of each set of a mixture."""
    names, found = members(config), list[Pair]()
    for name in names:
        pairs = find_split(config, "valid", name).pairs()
        fits = (pair for pair in pairs if 0 < len(tokenizer.encode([pair[0]])[0]) <= config.max_len)
        found += islice(fits, max(1, SAMPLES // len(names)))
    return found


def _prompt(pieces: Iterator[str]) -> str:
    """The first words of a text."""
    inherit_from_init = ""
    for piece in pieces:
        inherit_from_init = (inherit_from_init + piece).lstrip()
        if len(inherit_from_init) > PROMPT:
            whole = inherit_from_init[: PROMPT + 1].rsplit(maxsplit=1)
            return whole[0] if len(whole) == 2 else inherit_from_init[:PROMPT]
    return inherit_from_init.rstrip()


def licence_of(config: DataConfig) -> str:
    """The licence of the data, as far as it is known."""
    known = [SOURCES[name].licence if name in SOURCES else "generated by regard" for name in members(config) if name]
    return "; ".join(dict.fromkeys(known)) or "not stated"
