"""The splits of a text corpus by name: of named sets, toys, mixtures of them, or own files."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from regard.config import nearest
from regard.data.sources import SOURCES, locate, prefix_of
from regard.data.text.columns import language_of
from regard.data.text.config import TextData
from regard.data.text.formats import expand_paths, find_pair_files, read_rows
from regard.data.text.held_out import hold_out_text, split_pairs
from regard.data.text.readers import Pair, read_fraction, read_labeled, read_text
from regard.data.text.rows import ReadNotes, Row
from regard.data.text.store import UNKNOWN
from regard.data.text.toys import TOYS, toy_pairs

__all__ = ["Split", "find_split", "languages_of", "licence_of", "require_kind", "source_names", "task_prefixes"]

READERS = 4  # version of the readers of own files; raise it to read them again
TOY_VALID = 500  # pairs of a toy's valid and test splits
KINDS = {"pairs": "sentence pairs", "text": "plain text", "labels": "labelled texts", "images": "images",
         "captions": "captioned images", "ratings": "rated word pairs", "speech": "speech"}  # fmt: skip


class Split(NamedTuple):
    """One split of a corpus: functions that stream its pairs or its text, and what they depend on."""

    name: str
    pairs: Callable[[], Iterator[Pair]]  # source and target, or text and class
    identity: object
    text: Callable[[], Iterator[str]]  # a plain text, in pieces with their line ends
    rows: Callable[[ReadNotes], Iterator[Row]] | None = None  # of own files: the pairs, and notes on how they were read
    references: Callable[[ReadNotes], Iterator[Row]] | None = None  # the same, and columns that may be references


def source_names(data: TextData) -> list[str]:
    """The named sets of a config: usually one, several in a mixture, [""] for own files."""
    return [name for part in data.source.split(",") if (name := part.strip())] or [""]


def find_split(data: TextData, split: str, only: str = "") -> Split:
    """A split by name, or an own file; a split of a mixture chains those of its sets, or is that of the set `only`."""
    names = [only] if only else [name for name in source_names(data) if name]
    known = [*SOURCES, *TOYS]
    for name in names:
        if name not in known:
            raise ValueError(f"no data set {name!r}{nearest(name, known)}; known are {', '.join(known)}; for own files set "
                             "data.train and data.valid")  # fmt: skip
    if data.prefixed and not names:
        raise ValueError("data.prefixed is for named data sets; in own files write the prefix before each sentence")
    if names and all(split in ("train", "valid") or split in _splits(name) for name in names):
        _require_choices(data)
        parts = [_named(name, data, split) for name in names]
        if len(parts) == 1:
            return parts[0]
        return Split(f"{data.source} {split}", lambda: chain.from_iterable(part.pairs() for part in parts),
                     [part.identity for part in parts], partial(_no_text, data.source))  # fmt: skip
    if not names and data.train and not data.valid and split in ("train", "valid"):
        return _hold_out(_from_files(data.train, data, data.train, ""), split)
    own = {"train": data.train, "valid": data.valid}.get(split, split)
    if not own:
        raise ValueError(f"no {split} data; give data.{split}=FILE (TSV, CSV, JSONL, TMX, .xlsx, .parquet, two line-aligned "
                         "files with a comma, or plain text), or data.source=NAME; to score, --on FILE")  # fmt: skip
    if names and not _exists(own):
        lacks = next(name for name in names if split not in _splits(name))
        raise ValueError(f"{lacks} has no split {split!r}{nearest(split, _splits(lacks))}, and there is no such file; splits are "
                         f"{', '.join(_splits(lacks))}")  # fmt: skip
    prefix = _prefix(names[0], data) if names and len(source_names(data)) == 1 else ""  # files for a mixture have prefixes
    return _from_files(own, data, own, prefix, lenient=split not in ("train", "valid"))


def _exists(own: str) -> bool:
    try:
        return bool(expand_paths(own))
    except ValueError:
        return False


def require_kind(data: TextData, kinds: Sequence[str], task: str, mixed: bool = False) -> None:
    """Refuse named sets of another kind than `kinds`, and mixtures unless `mixed`; messages name the task."""
    names = source_names(data)
    for name in names:
        kind = SOURCES[name].kind if name in SOURCES else "pairs"
        if name in (*SOURCES, *TOYS) and kind not in kinds:
            raise ValueError(f"{name} holds {KINDS[kind]}, task {task} learns from {KINDS[kinds[0]]}; use "
                             f"data.source={' or '.join(_of_kind(*kinds))}, or another task")  # fmt: skip
    if len(names) > 1 and not mixed:
        raise ValueError(f"data.source={data.source} names {len(names)} sets; task {task} takes one")


def _splits(name: str) -> tuple[str, ...]:
    return SOURCES[name].splits if name in SOURCES else ("train", "valid", "test")


def _require_choices(data: TextData) -> None:
    """In a mixture `pair` and `text` are for the sets that have them; at least one must."""
    sources = [SOURCES[name] for name in source_names(data) if name in SOURCES]
    pairs = dict.fromkeys(pair for source in sources for pair in source.pairs)
    texts = dict.fromkeys(["raw", *(text for source in sources for text in source.files)])
    for key, value, known in (("pair", data.pair, pairs), ("text", data.text, texts)):
        if value and value not in known and len(source_names(data)) > 1:
            has = ", ".join(known) or "none"
            raise ValueError(f"no set of {data.source} has {key} {value!r}{nearest(value, known)}; they have {has}")


def _named(name: str, data: TextData, split: str) -> Split:
    """A split of one named set or toy."""
    prefix = _prefix(name, data)
    if name in TOYS:
        count = data.pairs if split == "train" else TOY_VALID
        pairs = _prefixed(lambda: toy_pairs(name, split, count), prefix)
        return Split(f"{name} {split}", pairs, [name, split, count, prefix], partial(_no_text, name))
    source = SOURCES[name]
    split = source.valid if split == "valid" else split
    files = locate(name, split, *_choices(name, data))
    found = _from_files(files, TextData(), f"{name} {split}", prefix)._replace(rows=None, references=None)
    if source.kind == "labels":
        pairs = _prefixed(lambda: read_labeled(files[0], source.labels), prefix)
        return found._replace(pairs=pairs, identity=[found.identity, source.labels], text=partial(_no_text, name))
    if source.kind == "text":
        part = source.parts.get(split)
        text = (lambda: read_fraction(files, *part)) if part else found.text
        shown = (lambda: (piece.replace(source.unknown, UNKNOWN) for piece in text())) if source.unknown else text
        identity = [found.identity, part, source.unknown]
        return found._replace(text=shown, identity=identity, pairs=partial(_no_pairs, name))
    return found._replace(text=partial(_no_text, name))


def _choices(name: str, data: TextData) -> tuple[str, str]:
    """The language pair and text version of one set; a set of a mixture uses its default where it lacks the choice."""
    source = SOURCES[name]
    if len(source_names(data)) == 1:
        return data.pair, data.text
    return data.pair if data.pair in source.pairs else "", data.text if data.text in source.files else "raw"


def _prefix(name: str, data: TextData) -> str:
    if not data.prefixed:
        return ""
    return prefix_of(name, _choices(name, data)[0]) if name in SOURCES else f"{name}: "


def task_prefixes(data: TextData) -> tuple[str, ...]:
    """The T5 task prefix of each set, if the run uses them."""
    return tuple(filter(None, (_prefix(name, data) for name in source_names(data)))) if data.prefixed else ()


def _prefixed(pairs: Callable[[], Iterator[Pair]], prefix: str) -> Callable[[], Iterator[Pair]]:
    return (lambda: ((prefix + source, target) for source, target in pairs())) if prefix else pairs


def _from_files(own: str | list[Path], data: TextData, name: str, prefix: str, lenient: bool = False) -> Split:
    """Own files, or those of a named set; `lenient`: test data may lack the columns that are named for training."""
    files = own if isinstance(own, list) else expand_paths(own)
    stamps = [(str(file.resolve()), (s := file.stat()).st_size, s.st_mtime_ns) for file in files]

    def rows(notes: ReadNotes, every: bool = False) -> Iterator[Row]:
        paired = own if isinstance(own, list) else find_pair_files(own, notes)
        found = read_rows(paired, data.columns, data.pair, notes, every=every, lenient=lenient)
        return ((prefix + row[0], *row[1:]) for row in found) if prefix else found

    pairs = lambda: map(itemgetter(0, 1), rows(ReadNotes(data.strict)))  # noqa: E731
    identity = [READERS, stamps, data.columns, data.pair, prefix, data.strict, lenient]
    return Split(name, pairs, identity, lambda: read_text(files), rows, partial(rows, every=True))


def _hold_out(found: Split, split: str) -> Split:
    """The training or validation part of own files that came without validation data."""
    valid, rows = split == "valid", found.rows
    assert rows

    def part(notes: ReadNotes) -> Iterator[Row]:
        read = found.pairs if valid else lambda: map(itemgetter(0, 1), rows(notes))
        return split_pairs(read, found.name, found.identity, valid)()

    name = f"{found.name}, held out for validation" if valid else found.name
    return Split(name, split_pairs(found.pairs, found.name, found.identity, valid), [found.identity, "held out", split],
                 hold_out_text(found.text, found.name, found.identity, valid), part, part)  # fmt: skip


def _no_text(name: str) -> Iterator[str]:
    raise ValueError(f"{name} is not one plain text; texts are {', '.join(_of_kind('text'))}")


def _no_pairs(name: str) -> Iterator[Pair]:
    raise ValueError(f"{name} is one plain text, without pairs; sets of pairs are {', '.join(_of_kind('pairs'))}")


def _of_kind(*kinds: str) -> list[str]:
    return [name for name, source in SOURCES.items() if source.kind in kinds]


def languages_of(split: Split) -> str:
    """The two languages that the header row of own files names, as "en-de"; "" if they name none."""
    notes = ReadNotes()
    if split.rows is None or next(split.rows(notes), None) is None:
        return ""
    named = [language_of(name.rpartition(".")[2]) for names in notes.names.values() for name in names[:2]]
    return "-".join(named) if len(named) == 2 and all(named) else ""


def licence_of(data: TextData) -> str:
    """The licence of the data, as far as it is known."""
    known = [SOURCES[name].licence if name in SOURCES else "generated by regard" for name in source_names(data) if name]
    return "; ".join(dict.fromkeys(known)) or "not stated"
