"""Text ↔ token numbers, trained and run by `tokenizers`.

- `bpe`: pieces of words, ▁ for a space; one vocabulary for both languages; it knows no line ends;
- `bytes`: pieces of words made of bytes, as GPT-2's; any text comes back exactly, nothing is unknown;
- `wordpiece`: pieces of lower-cased words, ## inside a word, as BERT's;
- `characters`: every character is a token, a line end too.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from regard.config import nearest
from regard.data.files import write_atomic

__all__ = [
    "BOS",
    "EOS",
    "KINDS",
    "PAD",
    "SENTINELS",
    "UNK",
    "SpecialTokens",
    "Tokenizer",
    "train_bpe",
    "train_tokenizer",
]

PAD, BOS, EOS, UNK = 0, 1, 2, 3  # of our own, wordpiece too
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
BERTS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
SENTINELS = tuple(f"<extra_id_{number}>" for number in range(100))  # T5's: each stands for a span that was cut out
KINDS = ("bpe", "bytes", "wordpiece", "characters")

# A word keeps the space before it (▁bike) and a punctuation mark stands alone, so "bike." and "bike" share a token
# and decoding gives back the very text: no detokenizer needed.
PIECES = Regex(r"▁?\p{P}|▁?[^▁\p{P}]+|▁")


class SpecialTokens(NamedTuple):
    """The numbers of the tokens that are no text."""

    pad: int  # fills a row
    bos: int  # starts a text
    eos: int  # ends it
    unk: int  # stands for what the vocabulary lacks
    mask: int | None  # hides a token
    sentinels: tuple[int, ...]  # each stands for a span that was cut out


def train_tokenizer(lines: Iterable[str], kind: str, vocab: int, extra: Sequence[str] = ()) -> "Tokenizer":
    """Learn a tokenizer of `vocab` tokens from lines of text; more if there are more different characters.

    `extra` are further special tokens; they come right after the usual ones.
    """
    train = {"bpe": train_bpe, "bytes": _train_bytes, "wordpiece": _train_wordpiece, "characters": _train_characters}
    if kind not in train:
        raise ValueError(f"no tokenizer {kind!r}{nearest(kind, KINDS)}; kinds are {', '.join(KINDS)}")
    return train[kind](lines, vocab, extra)


def train_bpe(lines: Iterable[str], vocab: int, extra: Sequence[str] = ()) -> "Tokenizer":
    """Learn a byte-pair encoding: pieces of words, the frequent ones whole."""
    special = [*SPECIAL, *extra]
    inner = tokenizers.Tokenizer(models.BPE(unk_token=SPECIAL[UNK]))
    inner.normalizer = normalizers.Sequence([
        normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()
    ])  # fmt: skip
    pieces = [pre_tokenizers.Metaspace(split=False), pre_tokenizers.Split(PIECES, "isolated")]
    # "<unk>" in the text falls apart after its "<" while learning, lest a merge builds that name and text could spell it.
    names = "|".join(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in special)
    inner.pre_tokenizer = pre_tokenizers.Sequence([*pieces, pre_tokenizers.Split(Regex(names), "merged_with_previous")])
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, show_progress=False)
    inner.train_from_iterator(lines, trainer)
    inner.pre_tokenizer = pre_tokenizers.Sequence(pieces)
    inner.decoder = decoders.Metaspace()
    return Tokenizer(inner)


def _train_bytes(lines: Iterable[str], vocab: int, extra: Sequence[str]) -> "Tokenizer":
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # "<", "unk", ">": no merge builds a name
    inner.decoder = decoders.ByteLevel()
    # A word has the space before it inside, and so has what hides a word.
    special = [*SPECIAL, *(tokenizers.AddedToken(token, lstrip=True, special=True) for token in extra)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(lines, trainer)
    return Tokenizer(inner)


def _train_wordpiece(lines: Iterable[str], vocab: int, extra: Sequence[str]) -> "Tokenizer":
    """Learn BERT's word pieces, from a byte-pair encoding: the library's own trainer finds others every time it runs."""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.normalizer = normalizers.BertNormalizer(lowercase=True)
    learner.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    ])  # fmt: skip
    most = 2 * vocab + 1000  # some pieces come out twice, as ▁b and b
    learner.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=most, show_progress=False))
    numbers = learner.get_vocab()
    learnt = sorted(numbers, key=numbers.__getitem__)
    letters = [piece for piece in learnt if len(piece) == 1 and piece != "▁"]
    pieces = [piece[1:] if piece[0] == "▁" else f"##{piece}" for piece in learnt if piece != "▁"]
    special = dict.fromkeys([*BERTS, *extra])
    needed = dict.fromkeys([*special, *letters, *(f"##{c}" for c in letters)])
    chosen = list(dict.fromkeys([*needed, *pieces]))[: max(vocab, len(needed))]
    inner = tokenizers.Tokenizer(models.WordPiece({t: n for n, t in enumerate(chosen)}, unk_token=BERTS[UNK]))
    inner.normalizer, inner.pre_tokenizer = learner.normalizer, pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.post_processor = processors.TemplateProcessing(  # what other libraries put around a text; we do it in batches
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", BOS), ("[SEP]", EOS)]
    )
    inner.add_special_tokens([*special])
    return Tokenizer(inner)


def _train_characters(lines: Iterable[str], vocab: int, extra: Sequence[str]) -> "Tokenizer":
    special = [*SPECIAL, *extra]
    found = {"\n"}
    for line in lines:
        found.update(line)
    numbers = {token: number for number, token in enumerate([*special, *sorted(found)])}
    inner = tokenizers.Tokenizer(models.BPE(numbers, [], unk_token=SPECIAL[UNK]))  # a BPE without merges
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(special)
    return Tokenizer(inner)


class Tokenizer:
    """A trained tokenizer, ours or one of Hugging Face's; text can never spell its special tokens."""

    def __init__(self, inner: tokenizers.Tokenizer):
        inner.no_truncation()  # lengths are our own affair
        inner.no_padding()
        inner.encode_special_tokens = True  # "</s>" typed by a user is text, not the end of the sentence
        self._inner = inner

    @classmethod
    def load(cls, file: Path) -> "Tokenizer":
        """Read a `tokenizer.json`."""
        try:
            inner = tokenizers.Tokenizer.from_file(os.fspath(file))
        except Exception as error:  # the library raises a bare Exception for a missing file and for a damaged one
            raise ValueError(f"cannot read the tokenizer {file}: {error}") from None
        found = cls(inner)
        try:
            _ = found.special  # looked for now, not in the midst of training
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
        return found

    def save(self, file: Path) -> None:
        """Write a `tokenizer.json` that Hugging Face's libraries read too."""
        write_atomic(file, self._inner.to_str(pretty=True).encode())

    @property
    def vocab(self) -> int:
        """How many tokens there are."""
        return self._inner.get_vocab_size()

    @property
    def digest(self) -> str:
        """A fingerprint: equal only for equal tokenizers."""
        return hashlib.sha256(self._inner.to_str().encode()).hexdigest()

    @cached_property
    def special(self) -> SpecialTokens:
        """The special tokens, found by their names; one that is missing is stood in for by another.

        A token that is flagged as special goes before a piece of text that is only called so.
        """
        added = self._inner.get_added_tokens_decoder().items()
        flagged = {token.content: number for number, token in added if token.special}

        def find(*names: str) -> int | None:
            numbers = (*map(flagged.get, names), *map(self._inner.token_to_id, names))
            return next((number for number in numbers if number is not None), None)

        eos = find("</s>", "[SEP]", "<|endoftext|>")
        if eos is None:
            raise ValueError("the tokenizer has no end token; wanted </s>, [SEP] or <|endoftext|> in its vocabulary")
        pad, unk = find("<pad>", "[PAD]"), find("<unk>", "[UNK]")
        pad = eos if pad is None else pad  # GPT-2 never pads
        bos = find("<s>", "[CLS]", "<|endoftext|>")
        sentinels: list[int] = []
        while (number := find(f"<extra_id_{len(sentinels)}>")) is not None:
            sentinels.append(number)
        return SpecialTokens(
            pad=pad,
            bos=pad if bos is None else bos,  # T5 and Marian start an answer with it
            eos=eos,
            unk=eos if unk is None else unk,
            mask=find("[MASK]", "<mask>"),
            sentinels=tuple(sentinels),
        )

    @cached_property
    def special_ids(self) -> tuple[int, ...]:
        """The numbers of all special tokens."""
        return tuple(sorted(n for n, token in self._inner.get_added_tokens_decoder().items() if token.special))

    @cached_property
    def keeps_newlines(self) -> bool:
        """Whether a line end is text to this tokenizer, and not merely a space."""
        return self.decode(self.encode(["\n"])[0]) == "\n"

    def encode(self, lines: Sequence[str], parse_special: bool = False) -> list[list[int]]:
        """Each line's token numbers, without start or end; with `parse_special` a special token's name is that token."""
        try:
            inner = self._parsing_special if parse_special else self._inner
            encoded = inner.encode_batch_fast(list(lines), add_special_tokens=False)
        except TypeError:
            bad = next((line for line in lines if isinstance(line, str) and re.search("[\ud800-\udfff]", line)), None)
            if bad is None:
                raise
            raise ValueError(f"{bad!r} is not UTF-8 text (a lone surrogate); convert it") from None
        if self._spelt and not parse_special:
            return [[self.special.unk if number in self._spelt else number for number in line.ids] for line in encoded]
        return [line.ids for line in encoded]

    @cached_property
    def _parsing_special(self) -> tokenizers.Tokenizer:
        """A second one, so that threads never see the first change its mind."""
        inner = tokenizers.Tokenizer.from_str(self._inner.to_str())
        inner.encode_special_tokens = False
        return inner

    @cached_property
    def _spelt(self) -> frozenset[int]:
        """Special tokens that text could spell none the less: T5's vocabulary has "</s>" as a piece of text too."""
        names = self.tokens(self.special_ids)
        written = self._inner.encode_batch_fast([*names, *(f"a{name}a" for name in names)], add_special_tokens=False)
        return frozenset(number for line in written for number in line.ids) & {*self.special_ids} - {self.special.unk}

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token numbers; special tokens leave no trace."""
        return self._inner.decode(list(ids), skip_special_tokens=True)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The tokens as they are written in the vocabulary, ▁ for a space, for labels in a picture."""
        unknown = self._inner.id_to_token(self.special.unk) or SPECIAL[UNK]
        return [self._inner.id_to_token(number) or unknown for number in ids]

    def labels(self, ids: Sequence[int]) -> list[str]:
        """The tokens for a picture, whatever the kind: ▁ before what begins a word, ⏎ for the end of a line."""
        known = self._inner.get_vocab()
        tokens = [
            ("" if number in self.special_ids else "▁") + token
            for number, token in zip(ids, self.tokens(ids), strict=True)
        ]
        if any(token.startswith("##") for token in known):
            return [token.replace("▁##", "", 1) for token in tokens]
        if "Ġ" in known:
            return [token.replace("▁Ġ", "▁▁", 1).replace("Ċ", "⏎").replace("▁", "", 1) for token in tokens]
        if any(token.startswith("▁") for token in known):
            return self.tokens(ids)
        return [token.replace("\n", "⏎").replace("▁ ", "▁␣") for token in tokens]

    def ids(self, tokens: Sequence[str]) -> list[int]:
        """The numbers of tokens as they are written in the vocabulary."""
        return [self.special.unk if (n := self._inner.token_to_id(token)) is None else n for token in tokens]
