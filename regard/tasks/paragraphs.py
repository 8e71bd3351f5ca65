"""Texts of several sentences: split into sentences, translated, put together again with the same spaces and line breaks.

What must not change (tags, placeholders, addresses, numbers) is checked in each translation.  Where it is lacking, the sentence
is translated again: without its tags and emoji, which are put beside their words (markup.py), and with the other lacking spans as
phrases that the search must write; if that fails too, as pieces with the span between them.  Sentences that keep everything are
translated once, as they are.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from regard.data.text.placeholders import Protected, drop_surplus, find_protected, is_kept, lacking
from regard.data.text.sentences import cut_text, is_cjk, split_sentences
from regard.tasks.answer_html import answer_html, shorten
from regard.tasks.markup import align_words, insert_marks, take_marks

__all__ = ["SentenceTranslator", "Translation", "join_translations", "translate_texts"]

MARKS = ".!?…。！？।؟"


@dataclass(frozen=True)
class Translation:
    """One answer: its text, tokens, ids and score, and the n best answers, itself first; and what to know about it.

    Of a text of several sentences, tokens and ids are those of all sentences, the score is that of all tokens together, and the
    n-th best answer is made of the n-th best of each sentence.
    """

    text: str
    tokens: list[str]
    ids: list[int]
    score: float | None  # log-probability / length ** penalty; of a greedy answer or a sample only if asked for
    n_best: list["Translation"] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)  # of each token, with `details`; 1.0 of a copied one
    coverage: float | None = None  # of the source by attention, with `details`; see tasks/coverage.py
    source_tokens: int = 0
    unknown: int = 0  # tokens of the source that are not in the vocabulary; copied ones do not count
    sentences: int = 1
    cut: int = 0  # sentences that were longer than the model takes, and were translated in pieces
    restored: int = 0  # placeholders, tags, addresses and numbers that the model left out, and that were put back

    def __repr__(self) -> str:
        score = "" if self.score is None else f", score {self.score:.3f}"
        return f"Translation({shorten(self.text)}{score})"

    def _repr_html_(self) -> str:
        best = [(f"{hypothesis.score:.3f}", hypothesis.text) for hypothesis in self.n_best if hypothesis.score is not None]
        return answer_html(self.text, ("score", "text"), best if len(best) > 1 else ())


class SentenceTranslator(NamedTuple):
    """How sentences are translated: their token ids, the phrases each answer must contain → answers."""

    encode: Callable[[Sequence[str]], list[list[int]]]  # sources → token ids
    encode_answers: Callable[[Sequence[str]], list[list[int]]]  # answers, or parts of them → token ids
    decode: Callable[[list[int]], str]
    spell: Callable[[list[int]], list[str]]  # token ids → tokens
    translate: Callable[[list[list[int]], list[list[list[int]]] | None], list[Translation]]
    offsets: Callable[[Sequence[str]], list[list[tuple[int, int]]]]  # where the tokens of `encode` are in a text
    attend: Callable[[list[list[int]], list[list[int]]], list[list[list[float]] | None]]  # sources, targets → weights (T, S)
    max_len: int
    unk: int  # of answers
    penalty: float


def translate_texts(translator: SentenceTranslator, texts: Sequence[str], encoded: Sequence[list[int]], split: bool,
                    protect: bool) -> list[Translation]:  # fmt: skip
    """Translate texts of any number of sentences; all sentences of all texts are in the same batches."""
    pieces = [_pieces(translator, text, ids) if split else _whole(text) for text, ids in zip(texts, encoded, strict=True)]
    whole = dict(zip(texts, encoded, strict=True))
    sentences = [sentence for _, parts in pieces for sentence in parts[1::2]]
    others = [sentence for sentence in sentences if sentence not in whole]
    whole.update(zip(others, translator.encode(others), strict=True) if others else ())
    ids = [whole[sentence] for sentence in sentences]
    answers = iter(_translate_protected(translator, sentences, ids) if protect else translator.translate(ids, None))
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


def join_translations(translator: SentenceTranslator, parts: Sequence[str], answers: Sequence[Translation]) -> Translation:
    """Put answers between the texts around them: `parts` are the texts at even places, `answers` belong to those at odd ones.

    After a Chinese or Japanese full stop there is no space; a language that needs one gets it.
    """
    text, tokens, probabilities, ids = [parts[0]], list[str](), list[float](), list[int]()
    _add_copy(translator, parts[0], tokens, ids, probabilities)
    for number, (answer, after) in enumerate(zip(answers, parts[2::2], strict=True)):
        written = answer.text
        apart = number and not parts[2 * number] and written and text[-1] and text[-1][-1] in MARKS
        if apart and not is_cjk(text[-1][-1]) and not is_cjk(written[0]):
            written = " " + written
        text += [written, after] if after else [written]
        tokens += answer.tokens
        ids += answer.ids
        probabilities += answer.probabilities
        _add_copy(translator, after, tokens, ids, probabilities)
    covered = [(answer.coverage, answer.source_tokens) for answer in answers if answer.coverage is not None]
    weight = sum(count for _, count in covered)
    joined = Translation(
        "".join(text), tokens, ids, _joint_score(answers, translator.penalty),
        probabilities=probabilities if any(answer.probabilities for answer in answers) else [],
        coverage=sum(value * count for value, count in covered) / weight if weight else None,
        source_tokens=sum(answer.source_tokens for answer in answers), unknown=sum(answer.unknown for answer in answers),
        sentences=len(answers), cut=sum(answer.cut for answer in answers), restored=sum(answer.restored for answer in answers),
    )  # fmt: skip
    ranks = max((len(answer.n_best) for answer in answers), default=0)
    best = [joined, *(
        join_translations(translator, parts, [answer.n_best[min(rank, len(answer.n_best) - 1)] for answer in answers])
        for rank in range(1, ranks)
    )]  # fmt: skip
    return dataclasses.replace(joined, n_best=best) if ranks else joined


def _add_copy(translator: SentenceTranslator, text: str, tokens: list[str], ids: list[int], probabilities: list[float]) -> None:
    """The tokens of a text that was copied instead of translated; spaces have none."""
    if text.strip():
        [copied] = translator.encode_answers([text.strip()])
        ids += copied
        tokens += translator.spell(copied)
        probabilities += [1.0] * len(copied)


def _joint_score(answers: Sequence[Translation], penalty: float) -> float | None:
    """The score of all tokens together: the sum of the log-probabilities / the sum of the lengths ** penalty."""
    if any(answer.score is None for answer in answers):
        return None
    scored = [(answer.score, len(answer.ids) + 1) for answer in answers if answer.score is not None and answer.source_tokens]
    total = sum(score * length**penalty for score, length in scored)
    return total / sum(length for _, length in scored) ** penalty if scored else 0.0


def _translate_protected(translator: SentenceTranslator, sentences: list[str], ids: list[list[int]]) -> list[Translation]:
    """Translate sentences such that their protected spans are in the answers."""
    # First as they are: usual sentences need no more.
    answers = translator.translate(ids, None)
    spans = [find_protected(sentence) for sentence in sentences]
    bad = [n for n, found in enumerate(spans) if found and not is_kept(found, answers[n].text)]
    if not bad:
        return answers

    # Then without tags and emoji, and with the other spans as phrases that must be written.
    restored = {n: len(lacking(spans[n], answers[n].text)) for n in bad}
    bad = _translate_unmarked(translator, sentences, spans, bad, answers, restored)
    if not bad:
        return answers

    # Then without the tags and emoji around the sentence, and with the other spans, tags among them, as phrases.
    inner = [_strip(sentences[n], spans[n]) for n in bad]
    bare = translator.encode([strip.text for strip in inner])
    phrases = [_phrases(translator, strip.text, answers[n].text) for n, strip in zip(bad, inner, strict=True)]
    again = translator.translate(bare, phrases if any(phrases) else None)
    lost = []
    for n, strip, answer in zip(bad, inner, again, strict=True):
        whole = join_translations(translator, [strip.before, "", strip.after], [answer]) if strip.changed else answer
        if is_kept(spans[n], whole.text):
            answers[n] = dataclasses.replace(whole, restored=restored[n], sentences=1)
        else:
            lost.append((n, strip, answer.text))
    if not lost:
        return answers

    # Last in pieces, with the spans that are still lacking between them; a piece is shorter, so this comes to an end.
    cuts = [_cut_around(strip, written) for _, strip, written in lost]
    pieces = [piece for cut in cuts for piece in cut[1::2] if _has_letter(piece)]
    found = iter(_translate_protected(translator, pieces, translator.encode(pieces)) if pieces else ())
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
        answers[n] = dataclasses.replace(joined, restored=restored[n], sentences=1, score=score)
    return answers


def _translate_unmarked(translator: SentenceTranslator, sentences: list[str], spans: list[list[Protected]], bad: list[int],
                        answers: list[Translation], restored: dict[int, int]) -> list[int]:  # fmt: skip
    """Translate those of `bad` that have tags or emoji without them, and put them back; return the sentences left to do."""
    around = {n: _strip(sentences[n], spans[n]) for n in bad}  # these stay around the whole translation
    taken = {n: take_marks(around[n].text) for n in bad}
    some = [n for n in bad if (taken[n].marks or around[n].changed) and _has_letter(taken[n].text)]
    if not some:
        return bad
    texts = [taken[n].text for n in some]
    bare = translator.encode(texts)
    phrases = [_phrases(translator, text, answers[n].text) for n, text in zip(some, texts, strict=True)]
    again = translator.translate(bare, phrases if any(phrases) else None)
    weights = translator.attend(bare, [answer.ids for answer in again])
    offsets = translator.offsets(texts)
    done = set()
    for n, text, answer, attended, tokens in zip(some, texts, again, weights, offsets, strict=True):
        ends = [len(translator.decode(answer.ids[:count])) for count in range(1, len(answer.ids) + 1)]
        words, aligned = align_words(text, answer.text, tokens, list(pairwise([0, *ends])), attended)
        marked = around[n].before + insert_marks(answer.text, taken[n].marks, words, aligned) + around[n].after
        if is_kept(spans[n], marked):
            answers[n] = dataclasses.replace(answer, text=marked, n_best=[], restored=restored[n])
            answers[n] = dataclasses.replace(answers[n], n_best=[answers[n], *answer.n_best[1:]])
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
    numbers = [span for span in lacking(spans, written) if span.kind == "number"]
    wanted = [span.text for span in spans if span.kind != "number" or span in numbers]
    encoded = translator.encode_answers(wanted) if wanted else []
    return [ids for span, ids in zip(wanted, encoded, strict=True)
            if ids and translator.unk not in ids and translator.decode(ids) == span]  # fmt: skip


def _cut_around(strip: _Strip, written: str) -> list[str]:
    """Cut a sentence around the spans that its answer lacks, or around all if it has too many: texts to copy, pieces in turn."""
    spans = find_protected(strip.text)
    missing = lacking(spans, written) or [span for span in spans if span.kind != "number"] or (spans if not strip.changed else [])
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
    """The answer to a piece of a sentence: no tags it made up, and no full stop unless the piece has one."""
    text = answer.text
    if not any(span.kind != "number" for span in find_protected(source)):
        text = drop_surplus(text)
    if not last and source[-1] not in MARKS:
        text = text.rstrip(MARKS + " ")
    return dataclasses.replace(answer, text=text, n_best=[]) if text != answer.text else answer


def _apart(before: str, after: str) -> str:
    """A space before a copied span that would otherwise run into the letters or digits before it."""
    return " " + after if before and after and before[-1].isalnum() and after[0].isalnum() else after


def _apart_before(before: str, after: str) -> str:
    return before + " " if before and after and before[-1].isalnum() and after[0].isalnum() else before
