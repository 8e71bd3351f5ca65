"""A glossary: terms of the source language, each with the terms of the target language of which one must translate it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from regard.data.files import read_lines
from regard.data.text.columns import is_header, language_of
from regard.data.text.delimited import read_csv_records, sniff_delimiter
from regard.data.text.rows import BadRow
from regard.data.text.tokenizer import Tokenizer

__all__ = ["Glossary", "GlossaryLike", "Term", "continuing_tokens", "read_glossary", "to_glossary"]

IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"  # written without spaces: each is a word
WORDS = re.compile(rf"[{IDEOGRAPHS}]|[^\W{IDEOGRAPHS}]+|[^\w\s]")
SHOWN = 3  # bad lines named in an error


@dataclass(frozen=True)
class Term:
    """A term, and its translations: one of them must appear."""

    source: str
    targets: tuple[str, ...]


@dataclass(frozen=True)
class Glossary:
    """Terms by which a text is searched."""

    terms: tuple[Term, ...]
    header: tuple[str, ...] = ()  # the first line of its file, if that names languages or columns

    def find(self, text: str) -> list[Term]:
        """The terms in a text, each as often as it occurs: whole words, in any case, the longest where several start."""
        words, found, at = _words(text), list[Term](), 0
        while at < len(words):
            lengths = self._lengths.get(words[at], ())
            length = next((n for n in lengths if words[at : at + n] in self._by_words), None)
            if length is None:
                at += 1
                continue
            found.append(self._by_words[words[at : at + length]])
            at += length
        return found

    def phrases(self, tokenizer: Tokenizer) -> dict[Term, list[list[int]]]:
        """The token ids of each term's translations, as they are at the start of a text and inside it, also with a capital."""
        spelled = {term: [form for target in term.targets for form in _forms(target)] for term in self.terms}
        texts = [text for forms in spelled.values() for form in forms for text in (form, f", {form}")]
        encoded, comma = iter(tokenizer.encode(texts)), tokenizer.encode([","])[0]
        phrases: dict[Term, list[list[int]]] = {}
        for term, forms in spelled.items():
            for form in forms:
                alone, inside = next(encoded), next(encoded)
                if tokenizer.special.unk in alone or not alone:
                    if form in term.targets:
                        raise ValueError(f"the glossary's {form!r} has characters that this model's tokenizer does not know; "
                                         f"spell it otherwise, or leave it out")  # fmt: skip
                    continue
                ids = [alone, inside[len(comma) :]] if inside[: len(comma)] == comma else [alone]
                known = phrases.setdefault(term, [])
                known += [option for option in ids if option and option not in known]
        return phrases

    @cached_property
    def _by_words(self) -> dict[tuple[str, ...], Term]:
        return {_words(term.source): term for term in self.terms}

    @cached_property
    def _lengths(self) -> dict[str, list[int]]:
        """For each first word, the lengths of its terms in words, longest first."""
        lengths: dict[str, set[int]] = {}
        for words in self._by_words:
            lengths.setdefault(words[0], set()).add(len(words))
        return {first: sorted(several, reverse=True) for first, several in lengths.items()}


GlossaryLike = Glossary | Mapping[str, str] | str | Path  # a glossary, terms with translations, or a file


def to_glossary(glossary: GlossaryLike) -> Glossary:
    """A glossary from any form of it."""
    if isinstance(glossary, Glossary):
        return glossary
    if isinstance(glossary, Mapping):
        return _build(((source, (target,)) for source, target in glossary.items()), "the glossary")
    return read_glossary(Path(glossary))


def read_glossary(file: Path) -> Glossary:
    """Read lines of a source term and its translation, separated by a tab; further columns are other forms that count as well.

    A .csv file may have commas or semicolons instead.  A first line that names languages or columns is a header, not a term.
    """
    rows, bad, header = list[tuple[str, tuple[str, ...]]](), list[int](), tuple[str, ...]()
    for at, (number, cells) in enumerate(_read_cells(file)):
        source, *targets = (" ".join(cell.split()) for cell in cells)
        targets = [target for target in targets if target]
        if at == 0 and _is_header([source, *targets]):
            header = (source, targets[0])
        elif _words(source) and targets:
            rows.append((source, tuple(targets)))
        else:
            bad.append(number)
    if bad:
        names = ", ".join(map(str, bad[:SHOWN])) + (f" and {len(bad) - SHOWN} more" if len(bad) > SHOWN else "")
        lines = "line" if len(bad) == 1 else "lines"
        raise ValueError(f"{file} {lines} {names}: wanted a source term, a tab and a target term; correct or remove them, or "
                         "name a file with commas or semicolons .csv")  # fmt: skip
    return replace(_build(rows, str(file)), header=header)


def _is_header(cells: Sequence[str]) -> bool:
    """Whether the first two cells name columns; "English, Englisch" is a term: both are one language."""
    languages = [language_of(cell) for cell in cells[:2]]
    return is_header(cells[:2]) and not (languages[0] and languages[0] == languages[1])


def _read_cells(file: Path) -> Iterator[tuple[int, list[str]]]:
    """The number and cells of each line that is not empty."""
    if file.suffix.lower() != ".csv":
        yield from ((number, line.split("\t")) for number, line in enumerate(read_lines(file), 1) if line.strip())
        return
    for record in read_csv_records(file, sniff_delimiter(file)):
        if isinstance(record, BadRow):
            raise ValueError(f"{file} line {record.number} {record.reason}; {record.advice}")
        yield record


def _build(rows: Iterable[tuple[str, tuple[str, ...]]], name: str) -> Glossary:
    """Terms by their words; several lines for one source term give its translations."""
    merged: dict[tuple[str, ...], Term] = {}
    for source, targets in rows:
        words = _words(source)
        if not words or not all(targets):
            raise ValueError(f"{name} has a term {source!r} → {', '.join(targets)!r}; write a word on both sides")
        before = merged.get(words)
        merged[words] = Term(before.source, (*before.targets, *targets)) if before else Term(source, targets)
    if not merged:
        raise ValueError(f"{name} has no terms; write lines of source term, tab, target term")
    return Glossary(tuple(merged.values()))


def _words(text: str) -> tuple[str, ...]:
    return tuple(WORDS.findall(text.casefold()))


def _forms(target: str) -> Sequence[str]:
    """A term, and the same at the start of a sentence."""
    return list(dict.fromkeys((target, target[:1].upper() + target[1:])))


def continuing_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens that continue the word before them, so that after "Rad", "io" makes another word of it."""
    shown = tokenizer.display(range(tokenizer.vocab))
    special = set(tokenizer.special_ids)
    return frozenset(i for i, token in enumerate(shown) if i not in special and token[:1].isalnum())
