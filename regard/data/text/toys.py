"""Toy tasks learned in seconds: copy, reverse, and an English-Italian phrasebook generated from a small grammar.

A toy's pairs are a function of (name, split): the same on every machine; no validation source is in training.
"""

import hashlib
import random
import string
from collections.abc import Callable, Iterator

from regard.data.text.readers import Pair

__all__ = ["TOYS", "toy_pairs"]


def _letters(rng: random.Random) -> str:
    return " ".join(rng.choice(string.ascii_lowercase) for _ in range(rng.randint(3, 10)))


def _copy(rng: random.Random) -> Pair:
    letters = _letters(rng)
    return letters, letters


def _reverse(rng: random.Random) -> Pair:
    letters = _letters(rng)
    return letters, letters[::-1]


# English verb: I, he; Italian io tu lui noi loro
_VERBS = {
    "see": ("sees", "vedo vedi vede vediamo vedono"), "love": ("loves", "amo ami ama amiamo amano"),
    "want": ("wants", "voglio vuoi vuole vogliamo vogliono"), "buy": ("buys", "compro compri compra compriamo comprano"),
    "look for": ("looks for", "cerco cerchi cerca cerchiamo cercano"), "find": ("finds", "trovo trovi trova troviamo trovano"),
    "paint": ("paints", "dipingo dipingi dipinge dipingiamo dipingono"),
    "remember": ("remembers", "ricordo ricordi ricorda ricordiamo ricordano"),
}  # fmt: skip
_WHO = {"I": 0, "you": 1, "he": 2, "she": 2, "we": 3, "they": 4}  # → column of the Italian verb
# noun: Italian, gender (the article follows from gender and first letter), plural in both languages
_NOUNS = {
    "house": ("casa", "f", "houses", "case"), "book": ("libro", "m", "books", "libri"),
    "car": ("macchina", "f", "cars", "macchine"), "cat": ("gatto", "m", "cats", "gatti"),
    "table": ("tavolo", "m", "tables", "tavoli"), "chair": ("sedia", "f", "chairs", "sedie"),
    "door": ("porta", "f", "doors", "porte"), "garden": ("giardino", "m", "gardens", "giardini"),
    "boat": ("barca", "f", "boats", "barche"), "horse": ("cavallo", "m", "horses", "cavalli"),
    "hat": ("cappello", "m", "hats", "cappelli"), "shirt": ("camicia", "f", "shirts", "camicie"),
}  # fmt: skip
_ADJECTIVES = {"red": "ross", "black": "ner", "white": "bianc", "yellow": "giall", "new": "nuov", "old": "vecchi",
               "small": "piccol"}  # fmt: skip
_ENDINGS = {"m": "o", "f": "a", "mp": "i", "fp": "e"}
_THE = {"m": "il", "f": "la", "mp": "i", "fp": "le"}
_A = {"m": "un", "f": "una"}
_WHOM = {"me": "mi", "you": "ti", "him": "lo", "her": "la", "us": "ci", "them": "li"}
_WHEN = {"": "", "today": "oggi", "tomorrow": "domani", "every day": "ogni giorno", "here": "qui", "very much": "molto"}


def _adjective(stem: str, form: str) -> str:
    if stem == "bianc" and form.endswith("p"):
        return "bianchi" if form == "mp" else "bianche"
    return (stem[:-1] if stem.endswith("i") and form == "mp" else stem) + _ENDINGS[form]


def _phrase(rng: random.Random) -> Pair:
    """One sentence: Italian puts adjectives after nouns and object pronouns before verbs, and drops the subject."""
    who, verb = rng.choice(list(_WHO)), rng.choice(list(_VERBS))
    she, italian = _VERBS[verb]
    says, dice = (she if who in ("he", "she") else verb), italian.split()[_WHO[who]]
    english_not = "" if rng.random() < 0.8 else ("does not" if who in ("he", "she") else "do not")
    says = f"{english_not} {verb}" if english_not else says
    when = rng.choice(list(_WHEN) if verb == "love" else list(_WHEN)[:-1])  # "very much" fits only "love"
    if rng.random() < 0.35:
        whom = rng.choice([w for w in _WHOM if (w, who) not in {("me", "I"), ("you", "you"), ("us", "we")}])
        english, before, after = whom, _WHOM[whom], ""
    else:
        noun, adjective = rng.choice(list(_NOUNS)), rng.choice(["", *_ADJECTIVES])
        nome, form, nouns, nomi = _NOUNS[noun]
        if rng.random() < 0.3:
            noun, nome, form = nouns, nomi, form + "p"
            article, articolo = "the", _THE[form]
        else:
            indefinite = "an" if adjective == "old" else "a"
            article, articolo = ("the", _THE[form]) if rng.random() < 0.5 else (indefinite, _A[form])
        english = " ".join(filter(None, (article, adjective, noun)))
        stem = _ADJECTIVES.get(adjective)
        before, after = "", " ".join(filter(None, (articolo, nome, _adjective(stem, form) if stem else "")))
    left = " ".join(filter(None, (who, says, english, when)))
    right = " ".join(filter(None, ("non" if english_not else "", before, dice, after, _WHEN[when])))
    return left[0].upper() + left[1:], right[0].upper() + right[1:]


TOYS: dict[str, Callable[[random.Random], Pair]] = {"copy": _copy, "reverse": _reverse, "phrasebook": _phrase}

VALID_EVERY = 20  # one source in this many is for validation, and another for test


def toy_pairs(name: str, split: str, count: int) -> Iterator[Pair]:
    """Generate `count` pairs of a toy; the hash of a source decides its split."""
    if split not in ("train", "valid", "test"):
        raise ValueError(f"{name} has no split {split!r}; it has train, valid, test")
    rng = random.Random(f"{name} {split}")
    made = 0
    while made < count:
        pair = TOYS[name](rng)
        bucket = hashlib.sha256(pair[0].encode()).digest()[19] % VALID_EVERY
        if {0: "valid", 1: "test"}.get(bucket, "train") == split:
            made += 1
            yield pair
