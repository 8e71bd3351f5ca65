"""Texts of several sentences: split into sentences, translated, put together again with the same spaces and line breaks."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from regard.data.text.sentences import cut_text, split_sentences
from regard.tasks.joining import SentenceTranslator, Translation, join_translations
from regard.tasks.observer import TextObserver, observe_sentences
from regard.tasks.protection import translate_protected

__all__ = ["translate_texts"]


def translate_texts(translator: SentenceTranslator, texts: Sequence[str], encoded: Sequence[list[int]], split: bool,
                    protect: bool, observers: Sequence[TextObserver | None] | None = None) -> list[Translation]:  # fmt: skip
    """Translate texts of any number of sentences; all sentences of all texts are in the same batches."""
    pieces = [_pieces(translator, text, ids) if split else _whole(text) for text, ids in zip(texts, encoded, strict=True)]
    whole = dict(zip(texts, encoded, strict=True))
    sentences = [sentence for _, parts in pieces for sentence in parts[1::2]]
    others = [sentence for sentence in sentences if sentence not in whole]
    whole.update(zip(others, translator.encode(others), strict=True) if others else ())
    ids = [whole[sentence] for sentence in sentences]
    of = None if observers is None else observe_sentences(observers, [parts for _, parts in pieces], translator.decode)
    answers = iter(translate_protected(translator, sentences, ids, of) if protect else translator.translate(ids, None, of))
    results = []
    for cut, parts in pieces:
        found = [next(answers) for _ in parts[1::2]]
        joined = found[0] if len(parts) == 3 and not parts[0] and not parts[2] else join_translations(translator, parts, found)
        results.append(dataclasses.replace(joined, cut=cut) if cut else joined)
    return results


class _Pieces(NamedTuple):
    cut: int  # sentences that were too long
    parts: list[str]  # spaces and sentences in turn


def _whole(text: str) -> _Pieces:
    return _Pieces(0, ["", text, ""])


def _pieces(translator: SentenceTranslator, text: str, ids: list[int]) -> _Pieces:
    """The sentences of a text; one sentence on one line stays as it is, spaces included."""
    parts = split_sentences(text)
    if len(parts) == 1 or (len(parts) == 3 and not (parts[0] + parts[2]).strip(" \t")):
        parts = ["", text, ""]
    if len(parts) == 3 and len(ids) <= translator.max_len:
        return _Pieces(0, parts)
    lengths = [len(ids)] if len(parts) == 3 else [len(found) for found in translator.encode(parts[1::2])]
    cut, fitting = 0, [parts[0]]
    for sentence, space, length in zip(parts[1::2], parts[2::2], lengths, strict=True):
        short = ["", sentence, ""]
        if length > translator.max_len:

            def fits(piece: str, long: str = sentence) -> bool:
                return piece is not long and len(translator.encode([piece])[0]) <= translator.max_len

            short = cut_text(sentence, fits)
            cut += 1
        fitting[-1] += short[0]
        fitting += [*short[1:-1], short[-1] + space]
    return _Pieces(cut, fitting)
