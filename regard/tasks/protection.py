"""Protected spans of sentences (tags, placeholders, addresses, numbers) are in their translations.

Each translation is checked.  Where a span is lacking, the sentence is translated again: without its tags and emoji, which are put
beside their words (markup.py), and with the other lacking spans as phrases that the search must write; if that fails too, as
pieces with the span between them.  Sentences that keep everything are translated once, as they are.  Of the n best answers those
that lack a span are left out.
"""

import dataclasses
from itertools import pairwise
from typing import NamedTuple

from regard.data.text.placeholders import Protected, drop_surplus, find_lacking, find_protected, is_kept
from regard.decode.search import Observers
from regard.tasks.joining import MARKS, SentenceTranslator, Translation, join_translations
from regard.tasks.markup import align_words, insert_marks, take_marks
from regard.tasks.observer import quiet

__all__ = ["translate_protected"]


def translate_protected(translator: SentenceTranslator, sentences: list[str], ids: list[list[int]],
                        observers: Observers | None = None) -> list[Translation]:  # fmt: skip
    """Translate sentences such that their protected spans are in the answers; those that nobody wants any more may lack some."""
    # First as they are: usual sentences need no more.
    answers = translator.translate(ids, None, observers)
    spans = [find_protected(sentence) for sentence in sentences]
    unwanted = {n for n, of in enumerate(observers or ()) if of is not None and not of.wanted}
    bad = [n for n, found in enumerate(spans) if found and n not in unwanted and not is_kept(found, answers[n].text)]
    answers = [_keep(found, answer) if found and n not in bad else answer
               for n, (found, answer) in enumerate(zip(spans, answers, strict=True))]  # fmt: skip
    if not bad:
        return answers

    # Then without tags and emoji, and with the other spans as phrases that must be written.
    restored = {n: len(find_lacking(spans[n], answers[n].text)) for n in bad}
    bad = _translate_unmarked(translator, sentences, spans, bad, answers, restored, observers)
    if not bad:
        return answers

    # Then without the tags and emoji around the sentence, and with the other spans, tags among them, as phrases.
    inner = [_strip(sentences[n], spans[n]) for n in bad]
    bare = translator.encode([strip.text for strip in inner])
    phrases = [_phrases(translator, strip.text, answers[n].text) for n, strip in zip(bad, inner, strict=True)]
    again = translator.translate(bare, phrases if any(phrases) else None, quiet(observers, bad))
    lost = []
    for n, strip, answer in zip(bad, inner, again, strict=True):
        whole = join_translations(translator, [strip.before, "", strip.after], [answer]) if strip.changed else answer
        if is_kept(spans[n], whole.text):
            answers[n] = _keep(spans[n], dataclasses.replace(whole, restored=restored[n], sentences=1))
        else:
            lost.append((n, strip, answer.text))
    if not lost:
        return answers

    # Last in pieces, with the spans that are still lacking between them; a piece is shorter, so this comes to an end.
    cuts = [_cut_around(strip, written) for _, strip, written in lost]
    pieces = [piece for cut in cuts for piece in cut[1::2] if _has_letter(piece)]
    whose = [n for (n, _, _), cut in zip(lost, cuts, strict=True) for piece in cut[1::2] if _has_letter(piece)]
    of = quiet(observers, whose)
    found = iter(translate_protected(translator, pieces, translator.encode(pieces), of) if pieces else ())
    for (n, strip, _), cut in zip(lost, cuts, strict=True):
        parts, between = list[Translation](), [strip.before + cut[0]]
        for index in range(1, len(cut), 2):
            last = index == len(cut) - 2
            if not _has_letter(cut[index]):
                between[-1] += cut[index] + cut[index + 1]
                continue
            answer = _fragment(next(found), cut[index], last)
            parts.append(answer)
            between += ["", _apart(answer.text, cut[index + 1])]
            between[-3] = between[-3] if not between[-3] else _apart_before(between[-3], answer.text)
        between[-1] += strip.after
        joined = join_translations(translator, between, parts)
        score = None if answers[n].score is None else joined.score
        answers[n] = _keep(spans[n], dataclasses.replace(joined, restored=restored[n], sentences=1, score=score))
    return answers


def _keep(spans: list[Protected], answer: Translation) -> Translation:
    """An answer, the first of its n best, without those others that lack a span."""
    first = dataclasses.replace(answer, n_best=[])
    others = [other for other in answer.n_best[1:] if is_kept(spans, other.text)]
    return dataclasses.replace(first, n_best=[first, *others])


def _translate_unmarked(translator: SentenceTranslator, sentences: list[str], spans: list[list[Protected]], bad: list[int],
                        answers: list[Translation], restored: dict[int, int], observers: Observers | None,
                        ) -> list[int]:  # fmt: skip
    """Translate those of `bad` that have tags or emoji without them, and put them back; return the sentences left to do."""
    around = {n: _strip(sentences[n], spans[n]) for n in bad}  # these stay around the whole translation
    taken = {n: take_marks(around[n].text) for n in bad}
    some = [n for n in bad if (taken[n].marks or around[n].changed) and _has_letter(taken[n].text)]
    if not some:
        return bad
    texts = [taken[n].text for n in some]
    bare = translator.encode(texts)
    phrases = [_phrases(translator, text, answers[n].text) for n, text in zip(some, texts, strict=True)]
    again = translator.translate(bare, phrases if any(phrases) else None, quiet(observers, some))
    every = [(row, hypothesis) for row, answer in enumerate(again) for hypothesis in answer.n_best]
    weights = translator.attend([bare[row] for row, _ in every], [hypothesis.ids for _, hypothesis in every])
    offsets, marked = translator.offsets(texts), [list[Translation]() for _ in some]
    for (row, hypothesis), attended in zip(every, weights, strict=True):
        n, ids = some[row], hypothesis.ids
        ends = [len(translator.decode(ids[:count])) for count in range(1, len(ids) + 1)]
        aligned = align_words(texts[row], hypothesis.text, offsets[row], list(pairwise([0, *ends])), attended)
        whole = around[n].before + insert_marks(hypothesis.text, taken[n].marks, *aligned) + around[n].after
        marked[row].append(dataclasses.replace(hypothesis, text=whole, restored=restored[n]))
    done = set()
    for n, answer, best in zip(some, again, marked, strict=True):
        if is_kept(spans[n], best[0].text):
            answers[n] = _keep(spans[n], dataclasses.replace(answer, text=best[0].text, restored=restored[n], n_best=best))
            done.add(n)
    return [n for n in bad if n not in done]


class _Strip(NamedTuple):
    """A sentence without what stands before and after it."""

    before: str
    text: str
    after: str

    @property
    def changed(self) -> bool:
        return bool(self.before or self.after)


def _strip(sentence: str, spans: list[Protected]) -> _Strip:
    """Take off tags and emoji, with the spaces beside them, from both ends; something with a letter stays."""
    start, end = 0, len(sentence)
    outer = [span for span in spans if span.kind in ("tag", "emoji")]
    for span in outer:
        if not sentence[start : span.start].strip() and _has_letter(sentence[span.end : end]):
            start = span.end + len(sentence[span.end :]) - len(sentence[span.end :].lstrip())
    for span in reversed(outer):
        if span.start >= start and not sentence[span.end : end].strip() and _has_letter(sentence[start : span.start]):
            end = len(sentence[: span.start].rstrip())
    return _Strip(sentence[:start], sentence[start:end], sentence[end:])


def _phrases(translator: SentenceTranslator, text: str, written: str) -> list[list[int]]:
    """The spans that an answer must contain, as token ids, if the tokens can spell them exactly; written numbers may stay."""
    spans = find_protected(text)
    numbers = [span for span in find_lacking(spans, written) if span.kind == "number"]
    wanted = [span.text for span in spans if span.kind != "number" or span in numbers]
    encoded = translator.encode_answers(wanted) if wanted else []
    return [ids for span, ids in zip(wanted, encoded, strict=True)
            if ids and translator.unk not in ids and translator.decode(ids) == span]  # fmt: skip


def _cut_around(strip: _Strip, written: str) -> list[str]:
    """Cut a sentence around the spans that its answer lacks, or around all if it has too many: texts to copy, pieces in turn."""
    spans = find_protected(strip.text)
    missing = (
        find_lacking(spans, written) or [span for span in spans if span.kind != "number"] or (spans if not strip.changed else [])
    )
    parts, at = [""], 0
    for span in missing:
        _add_piece(parts, strip.text[at : span.start])
        parts[-1] += span.text
        at = span.end
    _add_piece(parts, strip.text[at:])
    return parts


def _add_piece(parts: list[str], text: str) -> None:
    """Append a piece to translate; the spaces around it are copied."""
    body = text.strip()
    if not body:
        parts[-1] += text
        return
    at = text.index(body)
    parts[-1] += text[:at]
    parts += [body, text[at + len(body) :]]


def _has_letter(text: str) -> bool:
    return any(character.isalpha() for character in text)


def _fragment(answer: Translation, source: str, last: bool) -> Translation:
    """The answer to a piece of a sentence, and its n best: no tags it made up, and no full stop unless the piece has one."""
    text = answer.text
    if not any(span.kind != "number" for span in find_protected(source)):
        text = drop_surplus(text)
    if not last and source[-1] not in MARKS:
        text = text.rstrip(MARKS + " ")
    return dataclasses.replace(answer, text=text, n_best=[_fragment(other, source, last) for other in answer.n_best])


def _apart(before: str, after: str) -> str:
    """A space before a copied span that would otherwise run into the letters or digits before it."""
    return " " + after if before and after and before[-1].isalnum() and after[0].isalnum() else after


def _apart_before(before: str, after: str) -> str:
    return before + " " if before and after and before[-1].isalnum() and after[0].isalnum() else before
