"""A validation split of own texts that came without one.

Pairs are chosen by the hash of their source, so that all translations of a sentence are on the same side, whatever the order of
the file; a sentence with more of them than fit stays in the training data.  Of a plain text the end is held out.  The choice
depends on the text alone: resuming and scoring find the same split.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

from regard.data.cache import cached

__all__ = ["hash_source", "hold_out_pairs", "hold_out_start", "hold_out_text", "split_pairs"]

MAX_VALID = 2000  # pairs
MIN_VALID = 50  # pairs, unless that is more than a tenth
EVERY = 50  # one pair in this many is held out, and as much of a plain text
MAX_TAIL, MIN_TAIL = 2_000_000, 20_000  # characters of a plain text
MIN_TEXT = 200  # characters of a plain text that can be split
MAX_CHARACTERS = 10_000  # of a text that is held out
MAX_CLASSES = 1000  # more different targets are not classes
VERSION = 3  # of this choice and its file

Pairs = Callable[[], Iterator[tuple[str, str]]]


def hash_source(source: str) -> int:
    """A 64-bit hash of a sentence, the same on every machine and for any case."""
    return int.from_bytes(blake2b(source.strip().casefold().encode("utf-8", "replace"), digest_size=8).digest(), "big")


def hold_out_pairs(pairs: Pairs, name: str, identity: object) -> list[tuple[str, str]]:
    """The pairs held out for validation: those with the smallest hashes, found in one pass, then cached."""

    def write(_: Path) -> dict[str, object]:
        smallest, limit, total, classes = dict[int, tuple[str, str]](), 1 << 64, 0, Counter[str]()
        copies = Counter[int]()
        for source, target in pairs():
            if not source.strip() or not target.strip():
                continue
            total += 1
            if len(classes) <= MAX_CLASSES:
                classes[target] += 1
            if len(source) <= MAX_CHARACTERS and (key := hash_source(source)) < limit:
                smallest.setdefault(key, (source, target))
                copies[key] += 1 if len(target) <= MAX_CHARACTERS else MAX_VALID + 1
                if len(smallest) > 2 * MAX_VALID:
                    kept = sorted(smallest)[: MAX_VALID + 1]
                    limit, smallest = kept[-1], {key: smallest[key] for key in kept[:-1]}
                    copies = Counter({key: copies[key] for key in smallest})
        size = min(MAX_VALID, max(total // EVERY, min(MIN_VALID, total // 10), 1))
        chosen = _collect(pairs, smallest, copies, _choose(copies, size))
        if len(classes) <= MAX_CLASSES and 2 * len(classes) <= total:  # classes: at least one text of each is for training
            gone = Counter(target for several in chosen for _, target in several)
            chosen = [several for several in chosen if all(gone[target] < classes[target] for _, target in several)]
        if not chosen or len(smallest) < 2:
            if not total:
                raise ValueError(f"{name} is empty; give a file with source and target on each line")
            raise ValueError(f"{name} has {len(smallest):,} different sentences, too few to hold some out for validation; "
                             "give data.valid=FILE")  # fmt: skip
        return {"pairs": [pair for several in chosen for pair in several]}

    folder = cached(["held out", VERSION, identity], write)
    found = json.loads((folder / "about.json").read_text(encoding="utf-8"))["pairs"]
    return [(source, target) for source, target in found]


def _choose(copies: Counter[int], size: int) -> list[int]:
    """Sentences in the order of their hashes, with at most `size` pairs in all; if each has more pairs, the one with fewest."""
    chosen, taken = list[int](), 0
    for key in sorted(copies):
        if taken + copies[key] <= size:
            chosen.append(key)
            taken += copies[key]
    few = [] if chosen else sorted((count, key) for key, count in copies.items() if count <= MAX_VALID)[:1]
    return chosen or [key for _, key in few]


def _collect(
    pairs: Pairs, firsts: dict[int, tuple[str, str]], copies: Counter[int], chosen: list[int]
) -> list[list[tuple[str, str]]]:
    """All pairs of each chosen sentence: read once more, if some has several."""
    if all(copies[key] == 1 for key in chosen):
        return [[firsts[key]] for key in chosen]
    found = {key: list[tuple[str, str]]() for key in chosen}
    for source, target in pairs():
        if source.strip() and target.strip() and (several := found.get(hash_source(source))) is not None:
            several.append((source, target))
    return list(found.values())


def split_pairs(pairs: Pairs, name: str, identity: object, valid: bool) -> Pairs:
    """The training pairs, or the validation pairs: all of each sentence held out, so that each pair is in one of the two."""

    def stream() -> Iterator[tuple[str, str]]:
        validation = hold_out_pairs(pairs, name, identity)
        sources = {source.strip().casefold() for source, _ in validation}
        train = (pair for pair in pairs() if pair[0].strip().casefold() not in sources or not pair[1].strip())
        yield from validation if valid else train  # a pair without a target is for training, which counts it as left out

    return stream


def hold_out_start(text: Callable[[], Iterator[str]], name: str, identity: object) -> int:
    """The character at which the validation part of a plain text starts: at a line, if it has lines."""

    def write(_: Path) -> dict[str, object]:
        total = sum(map(len, text()))
        if total < MIN_TEXT:
            raise ValueError(f"{name} has {total} characters, too few to hold some out for validation; give data.valid=FILE")
        tail = min(MAX_TAIL, max(total // EVERY, min(MIN_TAIL, total // 10)))
        start, at = total - tail, 0
        for piece in text():
            at += len(piece)
            if at >= total - tail and piece.endswith("\n"):
                start = at if at <= total - tail // 2 else start
                break
        return {"start": start}

    folder = cached(["held out text", VERSION, identity], write)
    return int(json.loads((folder / "about.json").read_text(encoding="utf-8"))["start"])


def hold_out_text(text: Callable[[], Iterator[str]], name: str, identity: object, valid: bool) -> Callable[[], Iterator[str]]:
    """The training text, or the end of it that is held out."""

    def stream() -> Iterator[str]:
        start, at = hold_out_start(text, name, identity), 0
        for piece in text():
            part = piece[max(start - at, 0) :] if valid else piece[: max(start - at, 0)]
            if part:
                yield part
            at += len(piece)
            if not valid and at >= start:
                return

    return stream
