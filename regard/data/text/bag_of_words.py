"""Texts as vectors of counts: one-hot words, and TF-IDF (Spärck Jones 1972, https://doi.org/10.1108/eb026526).

A one-hot vector knows which word it is and nothing else: any two words are equally far apart.  TF-IDF sums the one-hot vectors of
a text and weights each word by how few texts have it.

Shapes: N texts, V vocabulary; `...` is any shape.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["TfIdf", "one_hot", "split_words", "tf_idf"]

WORD = re.compile(r"\b\w\w+\b")  # two characters or more


class TfIdf(NamedTuple):
    """TF-IDF vectors, and what they count."""

    words: tuple[str, ...]  # the vocabulary, sorted
    idf: Tensor  # (V,): weight of each word
    vectors: Tensor  # (N, V): rows of length 1, or 0 for a text without words


def one_hot(ids: Tensor, vocab: int) -> Tensor:
    """A vector with a single 1 for each id: (...) → (..., V).  Times a matrix W, it is row `id` of W: an embedding."""
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < vocab:
        raise ValueError(f"ids from {int(ids.min())} to {int(ids.max())}; a vocabulary of {vocab} has 0 to {vocab - 1}")
    return torch.eye(vocab)[ids]


def split_words(text: str) -> list[str]:
    """The lower-cased words of a text; single characters and punctuation are left out."""
    return WORD.findall(text.lower())


def tf_idf(texts: Sequence[str]) -> TfIdf:
    """Count of each word × (1 + ln((1 + N) / (1 + texts with it))), each text scaled to length 1.

    These are the defaults of scikit-learn's `TfidfVectorizer`: idf as if one more text had every word.
    """
    if isinstance(texts, str):
        raise ValueError("a list of texts is wanted, not one string; put it in brackets")
    counts = [Counter(split_words(text)) for text in texts]
    words = tuple(sorted(set().union(*counts)))
    if not words:
        raise ValueError(f"{len(texts)} texts without a word of two characters or more; give texts with words")
    tf = torch.tensor([[float(count[word]) for word in words] for count in counts], dtype=torch.float64)  # (N, V)
    idf = 1 + ((1 + len(texts)) / (1 + (tf > 0).sum(0))).log()  # (V,)
    return TfIdf(words, idf, torch.nn.functional.normalize(tf * idf))
