"""Split a text into lines and sentences by rules; joined, the parts are the text again.

A sentence ends at . ! ? … and their relatives in other scripts, with the quotes and brackets that close after them.  A full stop
does not end one after an abbreviation (Dr., z.B., etc.) or an initial (J. S. Bach), inside a number or a name (3.14, x.com), nor
before a lower-case letter.  Chinese and Japanese put no space between sentences, all others do.
"""

import re
from collections.abc import Callable

__all__ = ["cut_text", "is_cjk", "split_sentences"]

# Abbreviations, without their last full stop, in lower case.  After these the sentence goes on whatever follows.
_ENGLISH = "dr mr mrs messrs mx prof capt cmdr lt sgt cpl pvt ste v vs viz cf e.g i.e eg ie approx ca"
_ITALIAN = "sig sigg sig.ra sig.na dott dott.ssa prof.ssa ing avv geom egr spett mons pag pagg p.es cfr c.so p.zza v.le nn lgt"
_GERMAN = "fr frl dipl z.b z.t d.h u.a v.a i.d.r o.ä bzw ggf evtl vgl jh jhd str tel inkl exkl zzgl ggü geb gest u.u s.o s.u m.e"
_FRENCH = "mme mmes mlle mlles mgr p.ex c.-à-d"
_ALWAYS = frozenset(" ".join((_ENGLISH, _ITALIAN, _GERMAN, _FRENCH)).split())

# These are also words or units of some language (no, me, 5 ms), so what follows decides.  Before a number (no. 5, Vol. II) the
# sentence goes on after all of them; before a name only after a title with a capital letter (Gen. Lee, Me. Dupont).
_REFERENCES = (
    "fig figs eq eqs sec ch vol vols pp p no nos nr n s m ed eds op ver art artt es abs mind max chap env éd réf "
    "jan feb mar apr jun jul aug sep sept oct nov dec"
)
_RANKS = "ms rev hon gen col maj adm gov sen rep pres st mt ft arch rag on gent card hr mag bd mm me av boul"
_NAME_TITLES = frozenset(_RANKS.split())
_BEFORE_NUMBERS = frozenset(_REFERENCES.split()) | _NAME_TITLES
_NUMBER = re.compile(r"\d|[IVXLC]{2,}\b")
_LETTERED = re.compile(r"[B-HJ-Z]\b")  # Fig. B; not A or I, which begin sentences

# After these it goes on unless a capital letter follows.
_FINAL = (
    "etc inc ltd co corp jr sr bros dept univ assn ave blvd rd est al a.m p.m am pm u.s u.k u.n e.u d.c ph.d b.a m.a b.sc "
    "m.sc ecc s.p.a s.r.l a.c usw usf u.s.w o.g n.chr v.chr gmbh s.a cie"
)
_OTHERS = frozenset(_FINAL.split())

LOOK_AHEAD = 40  # characters that decide whether a sentence goes on

_END = r"[.!?…‽⁇⁈⁉։؟۔॥।჻።፧፨᙮᠃᠉។៕꓿]"  # ends a sentence if a space follows
_CJK_END = "。！？｡．"  # ends a sentence without one
_TAG = r"</[A-Za-z][A-Za-z0-9-]{0,20}>"
_CLOSERS = rf"(?:[\"'”’»›)\]}}」』】》〉）〕＂＇*_]|{_TAG})"  # quotes, brackets, emphasis and tags that close with the sentence
_OPENERS = "\"'“‘„‚«‹([{¿¡「『【《〈（〔*_-–—•#"
_BOUNDARY = re.compile(rf"(?P<cjk>[{_CJK_END}]++{_CLOSERS}*+)\s*+|(?<!{_END})(?P<end>{_END}++{_CLOSERS}*+)\s++")  # linear in time
_LETTER = re.compile(r"[^\W_]")
_CLAUSE = re.compile(r"[,;:،؛、，；：–—)\]]\s*(?=\S)")
_SPACE = re.compile(r"\s+(?=\S)")
_LINE = re.compile(r"((?<!\s)\s*(?:\r\n|[\n\r\v\f\x85\u2028\u2029])\s*)")  # with the spaces around it


def split_sentences(text: str) -> list[str]:
    """Spaces and sentences in turn: space, sentence, space, …, space; joined, they are the text again.

    The first and the last space may be empty; between sentences it is empty only after a Chinese or Japanese full stop.  A line
    break ends a sentence.  A text without a letter or digit is one sentence, a text of spaces none.
    """
    pieces = [""]
    for number, part in enumerate(_LINE.split(text)):
        if number % 2:
            pieces[-1] += part
        else:
            _add_line(part, pieces)
    return pieces


def _add_line(line: str, pieces: list[str]) -> None:
    """Append the sentences of a line and the spaces after them; the space before the first joins the last one."""
    body = line.strip()
    if not body:
        pieces[-1] += line
        return
    at = line.index(body[0])
    pieces[-1] += line[:at]
    cased, last = body != body.lower(), next((n for n in range(len(body) - 1, -1, -1) if body[n].isalnum()), -1)
    start, word = 0, _first_word(body, 0)
    for found in _BOUNDARY.finditer(body):
        end = found.end("cjk") if found["cjk"] else found.end("end")
        if found.end() >= len(body) or end > last or word >= end:
            continue
        if found["cjk"] or _is_end(body, start, found, cased):
            pieces += [body[start:end], body[end : found.end()]]
            start = found.end()
            word = _first_word(body, start)
    pieces += [body[start:], line[at + len(body) :]]


def _first_word(text: str, start: int) -> int:
    """Where the first letter or digit is: punctuation alone is no sentence."""
    found = _LETTER.search(text, start)
    return found.start() if found else len(text)


def _is_end(body: str, start: int, found: re.Match[str], cased: bool) -> bool:
    """Whether a mark with a space after it ends a sentence, by the word before it and the letter after it."""
    mark, after = found["end"], body[found.end() : found.end() + LOOK_AHEAD]
    following = after.lstrip(_OPENERS + " ")[:1]
    lower = cased and following.islower()
    if mark[0] != ".":  # a question or an exclamation; "Really?" he asked
        return not lower
    if mark.startswith(("...", "..")) or "…" in mark:
        return not lower
    before = body[max(start, found.start() - LOOK_AHEAD) : found.start()]
    word = re.split(r"[\s(\[{\"“„«'’‘]", before)[-1]
    bare = word.strip("*_-")
    name = bare.lower()
    closed = len(re.sub(_TAG, "", mark).strip("*_")) > 1  # a quote or a bracket after the full stop
    if name in _ALWAYS and not closed:
        return False
    if lower:
        return False
    if name in _BEFORE_NUMBERS and not closed and (len(bare) > 1 or bare.islower()):  # a single capital is an initial
        return not _goes_on(bare, after.lstrip(_OPENERS + " "))
    if name in _OTHERS:
        return closed or following.isupper() or not cased
    if len(word) == 1 and word.isalpha() and word.isupper() and not closed:
        return word == "I" and not re.search(r"(?:^|\s)[A-Z]\.\s*$|^$", before[:-1])  # an initial
    if re.fullmatch(r"(?:[^\W\d_]\.)+[^\W\d_]", word) and not closed:  # initials or an abbreviation: J.R.R., U.S.
        return False
    if word.isdigit() and not closed:  # a German ordinal (am 3. Mai) or a numbered item (1. First) goes on
        return not (len(word) <= 2 and (before.strip() == word or re.match(_MONTHS, after) is not None))
    return True


def _goes_on(word: str, after: str) -> bool:
    """Whether a sentence goes on after an abbreviation that may also be an ordinary word, by its case and what follows."""
    if _NUMBER.match(after):
        return True
    if not word[0].isupper() or (word + after[:2]).isupper():  # in a text of capitals they say nothing
        return False
    return after[:1].isupper() if word.lower() in _NAME_TITLES else _LETTERED.match(after) is not None


_MONTHS = re.compile(
    r"(?:Jänner|Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember|Jahrhundert|Klasse|Platz|Stock)\b"
)


def cut_text(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Spaces and pieces in turn, as of `split_sentences`, each piece short: cut after a comma, at a space, or inside a word."""
    if len(text) < 2 or fits(text):
        return ["", text, ""]
    at = _cut_position(text)
    left, right = text[:at], text[at:]
    space = left[len(left.rstrip()) :] if left.strip() else ""
    first, second = cut_text(left[: len(left) - len(space)], fits), cut_text(right, fits)
    return [*first[:-1], first[-1] + space + second[0], *second[1:]]


def _cut_position(text: str) -> int:
    """Where to cut: the clause nearest to the middle, if it is in the middle half; else a space; else the middle."""
    middle, size = len(text) / 2, len(text)
    for pattern in (_CLAUSE, _SPACE):
        ends = [found.end() for found in pattern.finditer(text) if size / 4 <= found.end() <= 3 * size / 4]
        if ends:
            return min(ends, key=lambda end: abs(end - middle))
    ends = [found.end() for found in _SPACE.finditer(text) if 0 < found.end() < size]
    return min(ends, key=lambda end: abs(end - middle)) if ends else size // 2


def is_cjk(character: str) -> bool:
    """Whether a character is written without a space before the next: Chinese, Japanese, and their punctuation."""
    return "\u2e80" <= character <= "\u9fff" or "\uf900" <= character <= "\ufaff" or "\uff00" <= character <= "\uffef"
