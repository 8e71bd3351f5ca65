"""Text ↔ token numbers: a joint BPE for both languages, trained and run by `tokenizers`."""

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from regard.data.files import write_atomic

__all__ = ["BOS", "EOS", "PAD", "UNK", "Tokenizer", "train_bpe"]

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")

# A word keeps the space before it (▁bike) and a punctuation mark stands alone, so "bike." and "bike" share a token
# and decoding gives back the very text: no detokenizer needed.
PIECES = Regex(r"▁?\p{P}|▁?[^▁\p{P}]+|▁")


def train_bpe(lines: Iterable[str], vocab: int) -> "Tokenizer":
    """Learn a byte-pair encoding of `vocab` tokens from lines of text; more if there are more different characters."""
    inner = tokenizers.Tokenizer(models.BPE(unk_token=SPECIAL[UNK]))
    inner.normalizer = normalizers.Sequence([
        normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()
    ])  # fmt: skip
    inner.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Metaspace(split=False), pre_tokenizers.Split(PIECES, "isolated")
    ])  # fmt: skip
    inner.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=list(SPECIAL), show_progress=False)
    inner.train_from_iterator(lines, trainer)
    return Tokenizer(inner)


class Tokenizer:
    """A trained tokenizer; the four special tokens come first, and text can never spell them."""

    def __init__(self, inner: tokenizers.Tokenizer):
        inner.encode_special_tokens = True  # "</s>" typed by a user is text, not the end of the sentence
        self._inner = inner

    @classmethod
    def load(cls, file: Path) -> "Tokenizer":
        """Read a `tokenizer.json`."""
        try:
            inner = tokenizers.Tokenizer.from_file(os.fspath(file))
        except Exception as error:  # the library raises a bare Exception for a missing file and for a damaged one
            raise ValueError(f"cannot read the tokenizer {file}: {error}") from None
        wrong = [token for number, token in enumerate(SPECIAL) if inner.token_to_id(token) != number]
        if wrong:
            raise ValueError(f"{file} is not a tokenizer of regard: {', '.join(wrong)} must be the first of its tokens")
        return cls(inner)

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

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Each line's token numbers, without start or end."""
        try:
            encoded = self._inner.encode_batch_fast(list(lines), add_special_tokens=False)
        except TypeError:
            bad = next((line for line in lines if isinstance(line, str) and re.search("[\ud800-\udfff]", line)), None)
            if bad is None:
                raise
            raise ValueError(f"{bad!r} is not UTF-8 text (a lone surrogate); convert it") from None
        return [line.ids for line in encoded]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token numbers; special tokens leave no trace."""
        return self._inner.decode(list(ids), skip_special_tokens=True)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The tokens as they are written in the vocabulary, ▁ for a space, for labels in a picture."""
        return [self._inner.id_to_token(number) or SPECIAL[UNK] for number in ids]

    def ids(self, tokens: Sequence[str]) -> list[int]:
        """The numbers of tokens as they are written in the vocabulary."""
        return [UNK if (number := self._inner.token_to_id(token)) is None else number for token in tokens]
