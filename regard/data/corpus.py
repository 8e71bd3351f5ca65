"""From a `DataConfig` to a tokenizer and two stores: everything training reads."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from regard.config import DataConfig, nearest
from regard.data.sources import SOURCES, locate
from regard.data.store import Store, encode
from regard.data.text import Pair, read_pairs
from regard.data.tokenizer import Tokenizer, train_bpe
from regard.data.toys import TOYS, toy_pairs

__all__ = ["Corpus", "Split", "find_split", "licence_of", "prepare"]

BPE_PAIRS = 500_000  # the BPE is learnt from at most so many pairs, evenly spread, so its memory is bounded too
SAMPLES = 3  # held-out sentences translated at every evaluation
TOY_HELD_OUT = 500  # pairs of a toy's valid and test


class Split(NamedTuple):
    """One split of a corpus: how to stream its pairs again, and what they depend on."""

    name: str
    pairs: Callable[[], Iterator[Pair]]
    identity: object


class Corpus(NamedTuple):
    """What training reads."""

    tokenizer: Tokenizer
    train: Store
    valid: Store
    samples: list[Pair]  # a few held-out pairs, to show translations while training


def find_split(config: DataConfig, split: str) -> Split:
    """A split by name (`train`, `valid`, `test_2016_flickr`), or a file of one's own."""
    if config.source in TOYS and split in ("train", "valid", "test"):
        count = config.pairs if split == "train" else TOY_HELD_OUT
        return Split(
            f"{config.source} {split}", lambda: toy_pairs(config.source, split, count), [config.source, split, count]
        )
    if config.source in SOURCES and (split in ("train", "valid") or split in SOURCES[config.source].splits):
        real = SOURCES[config.source].valid if split == "valid" else split
        return _from_files(locate(config.source, real, config.pair, config.text), config, f"{config.source} {real}")
    if config.source and config.source not in (*SOURCES, *TOYS):
        known = [*SOURCES, *TOYS]
        raise ValueError(
            f"no data set {config.source!r}{nearest(config.source, known)}; known are {', '.join(known)}; "
            f"for own files set data.train and data.valid"
        )
    own = {"train": config.train, "valid": config.valid}.get(split, split)
    if not own:
        raise ValueError(
            f"no {split} data; give data.{split}=FILE (TSV, JSONL, or two line-aligned files with a comma), or data.source=NAME"
        )
    if config.source and not Path(own.split(",")[0]).exists():
        splits = SOURCES[config.source].splits if config.source in SOURCES else ("train", "valid", "test")
        raise ValueError(
            f"{config.source} has no split {split!r}{nearest(split, splits)}, and there is no such file; "
            f"splits are {', '.join(splits)}"
        )
    return _from_files([Path(part).expanduser() for part in own.split(",")], config, own)


def _from_files(files: list[Path], config: DataConfig, name: str) -> Split:
    for file in files:
        if not file.exists():
            raise ValueError(f"no file {file}; check the path")
    stamps = [(str(file.resolve()), (s := file.stat()).st_size, s.st_mtime_ns) for file in files]
    return Split(name, lambda: read_pairs(files, config.columns), [stamps, config.columns])


def prepare(
    config: DataConfig, tokenizer_file: Path, say: Callable[[str], None], progress: Callable[[str, int], None]
) -> Corpus:
    """Find the corpus, learn its BPE (or read the one a resumed run has), and encode train and valid."""
    train, valid = find_split(config, "train"), find_split(config, "valid")
    if not tokenizer_file.exists():
        total = 0
        for total, _ in enumerate(train.pairs(), 1):
            if total % 100_000 == 0:
                progress(f"reading {train.name}", total)
        if not total:
            raise ValueError(f"{train.name} is empty; give a file with source and target on each line")
        stride = -(-total // BPE_PAIRS)
        lines = (side for pair in islice(train.pairs(), 0, None, stride) for side in pair)
        train_bpe(lines, config.vocab).save(tokenizer_file)
    tokenizer = Tokenizer.load(tokenizer_file)
    stores = []
    for split in (train, valid):
        count = partial(progress, f"encoding {split.name}")
        store = encode(split.pairs, split.name, split.identity, tokenizer, config.longest, count)
        why = {"with an empty side": store.empty, f"of over {config.longest} tokens": store.too_long}
        left = [f"{n:,} {what}" for what, n in why.items() if n]
        say(f"{split.name}: {store.pairs:,} pairs" + (f"; left out: {', '.join(left)}" if left else ""))
        stores.append(store)
    fits = (pair for pair in valid.pairs() if 0 < len(tokenizer.encode([pair[0]])[0]) <= config.longest)
    return Corpus(tokenizer, stores[0], stores[1], list(islice(fits, SAMPLES)))


def licence_of(config: DataConfig) -> str:
    """The licence of the data, as far as it is known."""
    if config.source in SOURCES:
        return SOURCES[config.source].licence
    return "generated by regard" if config.source in TOYS else "not stated"
