"""From `TextData` to a tokenizer and two encoded splits: all that training on text reads.

The kinds of data: sentence pairs (or labelled texts whose class is the target, and mixtures), one plain text, labelled texts.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from regard.data.progress import Progress, Report
from regard.data.sources import SOURCES
from regard.data.text.checks import check_pairs
from regard.data.text.config import TextData
from regard.data.text.mixture import MixedStore, MixedValidation, MixPart
from regard.data.text.readers import Pair
from regard.data.text.splits import Split, find_split, languages_of, require_kind, source_names
from regard.data.text.store import UNKNOWN, PairStore, TextStore, encode_labeled, encode_pairs, encode_text
from regard.data.text.tokenizer import Tokenizer, train_tokenizer

__all__ = ["TextDataset", "encode_labeled_split", "encode_pairs_split", "encode_text_split", "prepare_labeled", "prepare_pairs",
           "prepare_text", "require_special"]  # fmt: skip

MAX_EXAMPLES = 500_000  # pairs or lines, evenly spread, that a tokenizer is trained on; bounds its memory
SAMPLES = 3  # validation sentences shown at every evaluation
TRIED = 1000  # first ones, among which these are chosen
PROMPT = 40  # characters of validation text, continued at every evaluation
MAX_CLASSES = 1000  # of an own file; more are probably not classes
NAMED_CLASSES = 20  # named before training

Check = Callable[[Tokenizer], None]


class TextDataset(NamedTuple):
    """The text that training reads."""

    tokenizer: Tokenizer
    train: PairStore | TextStore | MixedStore
    valid: PairStore | TextStore
    samples: list[Pair]  # a few validation pairs, to show outputs during training
    labels: tuple[str, ...] = ()  # class names by id
    text_sample: str = ""  # the start of the validation text, to be continued during training
    mixed: tuple[MixedValidation, ...] = ()  # validation data of the sets that are mixed in
    languages: str = ""  # those that own files name, source first: en-de


def prepare_pairs(data: TextData, tokenizer_file: Path, report: Report, progress: Progress, *, task: str,
                  check: Check = lambda tokenizer: None, mix: Sequence[MixPart] = ()) -> TextDataset:  # fmt: skip
    """Prepare sentence pairs of one set or a mixture; `check` may refuse an existing tokenizer before any is encoded."""
    require_kind(data, ("pairs", "labels"), task, mixed=True)
    train, valid = find_split(data, "train"), find_split(data, "valid")
    what, findings = "source and target on each line", _check(data, train, valid, progress, languages=True)
    examples = _with_mixed(train.pairs, mix)
    tokenizer = _prepare_tokenizer(data, tokenizer_file, train.name, examples, what, (), progress, check)
    encode = partial(encode_pairs_split, tokenizer=tokenizer, report=report, progress=progress)
    own, mixed = _mix_in(encode(data, "train"), mix, encode, report)
    held_out = encode(data, "valid")
    for line in findings:
        report(line)
    return TextDataset(tokenizer, own, held_out, _sample_pairs(data, tokenizer), mixed=mixed, languages=languages_of(train))


def prepare_text(data: TextData, tokenizer_file: Path, report: Report, progress: Progress, *, extra_tokens: tuple[str, ...],
                 task: str, check: Check = lambda tokenizer: None) -> TextDataset:  # fmt: skip
    """Prepare one plain text; `extra_tokens` are the mask token or the sentinels that the task needs."""
    require_kind(data, ("text",), task)
    _refuse_bpe_dropout(data, task)
    if data.mix:
        raise ValueError(f"data.mix={data.mix} mixes sentence pairs or labelled texts; task {task} reads one plain text: put "
                         f"both texts into one file")  # fmt: skip
    train, valid = find_split(data, "train"), find_split(data, "valid")
    lines, what = lambda: zip(train.text()), "text in it"
    tokenizer = _prepare_tokenizer(data, tokenizer_file, train.name, lines, what, extra_tokens, progress, check)
    stores = [encode_text_split(data, split, tokenizer, report, progress) for split in ("train", "valid")]
    return TextDataset(tokenizer, stores[0], stores[1], [], text_sample=_prompt(valid.text()))


def prepare_labeled(data: TextData, tokenizer_file: Path, report: Report, progress: Progress, *,
                    task: str, check: Check = lambda tokenizer: None, mix: Sequence[MixPart] = ()) -> TextDataset:  # fmt: skip
    """Prepare labelled texts; the tokenizer is trained on the texts alone."""
    require_kind(data, ("labels",), task)
    _refuse_bpe_dropout(data, task)
    train, valid = find_split(data, "train"), find_split(data, "valid")
    pairs, what = _with_mixed(train.pairs, mix), "text and class on each line"
    texts = lambda: (pair[:1] for pair in pairs())  # noqa: E731
    findings = _check(data, train, valid, progress, languages=False)
    tokenizer = _prepare_tokenizer(data, tokenizer_file, train.name, texts, what, (), progress, check)
    labels = SOURCES[data.source].labels if data.source in SOURCES else _find_classes(train, report)
    for part in mix:  # classes that only the data mixed in has come last
        known = SOURCES.get(part.data.source)
        more = known.labels if known else _find_classes(find_split(part.data, "train"), report)
        labels += tuple(label for label in more if label not in labels)
    encode = partial(encode_labeled_split, tokenizer=tokenizer, report=report, progress=progress, labels=labels)
    own, mixed = _mix_in(encode(data, "train"), mix, encode, report)
    held_out = encode(data, "valid")
    for line in findings:
        report(line)
    return TextDataset(tokenizer, own, held_out, _sample_pairs(data, tokenizer), labels, mixed=mixed)


def _refuse_bpe_dropout(data: TextData, task: str) -> None:
    if data.bpe_dropout:
        raise ValueError(f"data.bpe_dropout={data.bpe_dropout:g} splits the words of sentence pairs again; task {task} does not "
                         f"offer it: leave it out")  # fmt: skip


def _with_mixed(own: Callable[[], Iterator[Pair]], mix: Sequence[MixPart]) -> Callable[[], Iterator[Pair]]:
    """The training pairs and those of the sets that are mixed in, for a tokenizer of both."""
    splits = [find_split(part.data, "train") for part in mix if part.share]
    return (lambda: chain(own(), *(split.pairs() for split in splits))) if splits else own


def _mix_in(own: PairStore, mix: Sequence[MixPart], encode: Callable[..., PairStore], report: Report,
            ) -> tuple[PairStore | MixedStore, tuple[MixedValidation, ...]]:  # fmt: skip
    """Encode the sets that are mixed in, and report how much of each an epoch reads."""

    def report_for(part: MixPart) -> Report:  # "valid.tsv" alone could be anyone's
        return lambda line: report(line if line.startswith(part.name) else f"{part.name}: {line}")

    parts = [(part, encode(part.data, "train", report=report_for(part))) for part in mix if part.share]
    train = MixedStore(own, [(store, part.share) for part, store in parts]) if parts else own
    for (part, store), count in zip(parts, train.counts if isinstance(train, MixedStore) else (), strict=True):
        report(f"mixed in from {part.name}: {count:,} examples in an epoch of {train.pairs:,}, of its {store.pairs:,}")
    mixed = []
    for part in mix:
        try:
            mixed.append(MixedValidation(part.name, encode(part.data, "valid", report=report_for(part))))
        except ValueError as error:
            report(f"{part.name} has no validation data to compare with: {error}")
    return train, tuple(mixed)


def _check(data: TextData, train: Split, valid: Split, progress: Progress, languages: bool) -> list[str]:
    """What to report of own files, before anything is trained on them."""
    if not train.rows or not valid.rows:
        return []
    return check_pairs(train, valid, languages=languages, strict=data.strict, progress=progress)


def _prepare_tokenizer(data: TextData, file: Path, name: str, examples: Callable[[], Iterator[tuple[str, ...]]], what: str,
                       extra: tuple[str, ...], progress: Progress, check: Check) -> Tokenizer:  # fmt: skip
    """Read the tokenizer of a resumed or initialized run, or train one on examples spread over the whole corpus."""
    if not file.exists():
        total = 0
        for total, _ in enumerate(examples(), 1):
            if total % 100_000 == 0:
                progress(f"reading {name}", total)
        if not total:
            raise ValueError(f"{name} is empty; give a file with {what}")
        stride = 1 if data.tokenizer == "characters" else -(-total // MAX_EXAMPLES)  # every character must be read
        lines = chain.from_iterable(islice(examples(), 0, None, stride))
        known = (line.replace(UNKNOWN, "") for line in lines)  # no token of its own: it is read as the unknown token
        train_tokenizer(known, data.tokenizer, data.vocab, extra).save(file)
    tokenizer = Tokenizer.load(file)
    check(tokenizer)
    return tokenizer


def require_special(tokenizer: Tokenizer, file: Path, task: str, *, mask: bool = False, sentinels: int = 0,
                    pad: bool = False) -> None:  # fmt: skip
    """Refuse a tokenizer without the special tokens that a task needs; `pad` must differ from the end token."""
    special, lacks = tokenizer.special, ""
    if mask and special.mask is None:
        lacks = "[MASK]"
    elif len(special.sentinels) < sentinels:
        lacks = "<extra_id_0>, <extra_id_1>, …"
    elif pad and special.pad == special.eos:
        lacks = "<pad>"
    if lacks:
        raise ValueError(f"the tokenizer {file} has no {lacks}, which task {task} needs; init from another run, or none")


def encode_pairs_split(data: TextData, split: str, tokenizer: Tokenizer, report: Report,
                       progress: Progress = lambda what, done: None) -> PairStore:  # fmt: skip
    """Encode one split of sentence pairs and report its size."""
    found = find_split(data, split)
    done = partial(progress, f"encoding {found.name}")
    store = encode_pairs(found.pairs, found.name, found.identity, tokenizer, data.max_len, done)
    why = {"with an empty side": store.empty, f"of over {data.max_len} tokens": store.too_long}
    left_out = ", ".join(f"{count:,} {which}" for which, count in why.items() if count)
    report(f"{found.name}: {store.pairs:,} pairs" + (f"; left out: {left_out}" if left_out else ""))
    return store


def encode_text_split(data: TextData, split: str, tokenizer: Tokenizer, report: Report,
                      progress: Progress = lambda what, done: None) -> TextStore:  # fmt: skip
    """Encode one split of a plain text and report its size."""
    found = find_split(data, split)
    store = encode_text(found.text, found.name, found.identity, tokenizer, partial(progress, f"encoding {found.name}"))
    report(f"{found.name}: {len(store):,} tokens")
    return store


def encode_labeled_split(data: TextData, split: str, tokenizer: Tokenizer, report: Report,
                         progress: Progress = lambda what, done: None, labels: Sequence[str] = ()) -> PairStore:  # fmt: skip
    """Encode one split of labelled texts and report its size; `labels` are the class names by id."""
    found = find_split(data, split)
    done = partial(progress, f"encoding {found.name}")
    store = encode_labeled(found.pairs, labels, found.name, found.identity, tokenizer, data.max_len, done)
    notes = {"empty ones left out": store.empty, f"cut to {data.max_len} tokens": store.too_long}
    parts = [f"{store.pairs:,} texts", *(f"{count:,} {note}" for note, count in notes.items() if count)]
    report(f"{found.name}: {'; '.join(parts)}")
    return store


def _find_classes(train: Split, report: Report) -> tuple[str, ...]:
    """The classes of an own file, sorted; they are reported with their counts."""
    counts: Counter[str] = Counter()
    for number, (text, label) in enumerate(train.pairs(), 1):
        if label.splitlines() != [label] or not label.strip():
            raise ValueError(f"{train.name} has the class {label!r} in its text {number:,}, {text[:40]!r}; a class is one "
                             f"line of text, name it so")  # fmt: skip
        counts[label] += 1
        if len(counts) > MAX_CLASSES:
            break
    if len(counts) > MAX_CLASSES or (len(counts) > NAMED_CLASSES and 2 * len(counts) > counts.total()):
        raise ValueError(f"{train.name} has {len(counts):,} different classes in its first {counts.total():,} texts; wanted "
                         "text, a tab, and one of a few classes on each line")  # fmt: skip
    if len(counts) == 1:
        raise ValueError(f"{train.name} has one class only, {label!r}; give texts of two or more classes")
    if counts:
        shown = [f"{label!r} {count:,}" for label, count in sorted(counts.items())[:NAMED_CLASSES]]
        more = len(counts) - NAMED_CLASSES
        report(f"classes: {', '.join(shown)}{f', and {more} more' if more > 0 else ''}")
    return tuple(sorted(counts))


def _sample_pairs(data: TextData, tokenizer: Tokenizer) -> list[Pair]:
    """A few validation pairs that fit the model, from each set of a mixture."""
    names, found = source_names(data), list[Pair]()
    for name in names:
        pairs = find_split(data, "valid", name).pairs()
        fits = (pair for pair in pairs if 0 < len(tokenizer.encode([pair[0]])[0]) <= data.max_len)
        found += _different(fits, max(1, SAMPLES // len(names)))
    return found


def _different(pairs: Iterator[Pair], count: int) -> list[Pair]:
    """The first pairs with different sources."""
    found: dict[str, Pair] = {}
    for source, target in islice(pairs, TRIED):
        found.setdefault(source.strip().casefold(), (source, target))
        if len(found) == count:
            break
    return list(found.values())


def _prompt(pieces: Iterator[str]) -> str:
    """The first words of a text."""
    prompt = ""
    for piece in pieces:
        prompt = (prompt + piece).lstrip()
        if len(prompt) > PROMPT:
            words = prompt[: PROMPT + 1].rsplit(maxsplit=1)
            return words[0] if len(words) == 2 else prompt[:PROMPT]
    return prompt.rstrip()
