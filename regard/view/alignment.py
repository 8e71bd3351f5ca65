"""Word alignments from cross-attention: the source word that each word of a given translation attends to most.

The reference translation is forced through the model.  Which row of the weights belongs to a target token is a choice: the row
that predicts it, whose query is the token before, or the row that reads it and knows which word to look for.  The second aligned
better in Transformers (Chen et al. 2020, https://arxiv.org/abs/2004.14837), so the row is passed in as an offset.

Shapes: B batch, H heads, T target and S source tokens, without start and end tokens.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from regard.data.text.alignments import Link
from regard.data.text.readers import Pair
from regard.tasks.translation import Translator
from regard.view.maps import cross_attention

__all__ = ["PREDICTING", "READING", "TOY_POSITIONS", "Head", "align", "align_diagonally", "align_words", "attention_accuracy",
           "toy_accuracy", "weights_of_heads", "words_of_tokens"]  # fmt: skip

PREDICTING, READING = 0, 1  # offsets: the row of a target token is that of the step that predicts it, or the one after

# The source position that each position of a toy's target comes from, by the length of the text.
TOY_POSITIONS: dict[str, Callable[[int], Sequence[int]]] = {"copy": range, "reverse": lambda length: range(length - 1, -1, -1)}


class Head(NamedTuple):
    """A cross-attention by its module's name, and one of its heads, counted from 1; None is the mean of all heads."""

    module: str
    head: int | None


def weights_of_heads(translator: Translator, source: list[int], target: list[int]) -> dict[Head, Tensor]:
    """The cross-attention weights while the model reads a given target, of each head and of their mean: (1 + T, S + 1)."""
    for number, ids in enumerate((source, target), 1):
        translator.require_short(ids, number)
    heads: dict[Head, Tensor] = {}
    for name, weights in cross_attention(translator, source, target).items():
        heads[Head(name, None)] = weights.mean(0)
        heads.update({Head(name, number): head for number, head in enumerate(weights, 1)})
    return heads


def words_of_tokens(encode: Callable[[Sequence[str]], list[list[int]]], text: str) -> tuple[list[int], list[int]]:
    """The token ids of a text, and the index of the word that each token belongs to; words are separated by spaces."""
    words = text.split()
    encoded = encode([" ".join(words[:count]) for count in range(1, len(words) + 1)])
    if not words or any(ids != encoded[-1][: len(ids)] for ids in encoded):
        raise ValueError(f"{text!r} does not split into words and their tokens; give words that are separated by spaces")
    sizes = (stop - start for start, stop in pairwise([0, *map(len, encoded)]))
    return encoded[-1], [word for word, size in enumerate(sizes) for _ in range(size)]


def align_words(weights: Tensor, source_words: Sequence[int], target_words: Sequence[int]) -> frozenset[Link]:
    """Link each target word to the source word with the largest weight, summed over the tokens of both; (T, S) weights.

    Of several source words with the same weight the first is taken.  The weights are those of words only, without start and end
    tokens, so every target word gets one link.
    """
    to_target, to_source = (torch.tensor(words, device=weights.device) for words in (target_words, source_words))
    by_target = weights.new_zeros(1 + max(target_words), weights.shape[1]).index_add(0, to_target, weights)  # (target words, S)
    sums = weights.new_zeros(len(by_target), 1 + max(source_words)).index_add(1, to_source, by_target)  # (…, source words)
    rows = sums.tolist()
    return frozenset((rows[word].index(max(rows[word])), word) for word in set(target_words))


def align(translator: Translator, source: str, target: str, offset: int = PREDICTING) -> dict[Head, frozenset[Link]]:
    """Align the words of a sentence with those of its given translation by each head, and by the mean of each layer's heads."""
    source_ids, source_words = words_of_tokens(translator.encode, source)
    target_ids, target_words = words_of_tokens(translator.encode, target)
    return {
        head: align_words(_target_rows(weights, offset)[:, :-1], source_words, target_words)
        for head, weights in weights_of_heads(translator, source_ids, target_ids).items()
    }


def _target_rows(weights: Tensor, offset: int) -> Tensor:
    """The row of each target token: (1 + T, S + 1) → (T, S + 1)."""
    if offset not in (PREDICTING, READING):
        raise ValueError(
            f"offset {offset}; use {PREDICTING} for the row that predicts a token, {READING} for the row that reads it"
        )
    return weights[offset : len(weights) - 1 + offset]


def align_diagonally(source: int, target: int) -> frozenset[Link]:
    """A baseline without a model: target word j of T is linked to the source word at the same relative position."""
    return frozenset(((2 * word + 1) * source // (2 * target), word) for word in range(target))


def attention_accuracy(weights: Tensor, wanted: Sequence[int]) -> float:
    """The fraction of target tokens that attend most to the wanted source position: weights (T, S), one position each."""
    right = weights.argmax(-1) == torch.tensor(wanted, device=weights.device)
    return float(right.float().mean())


def toy_accuracy(translator: Translator, toy: str, pairs: Iterable[Pair], offset: int = PREDICTING) -> dict[Head, float]:
    """How often each head attends most to the letter to be written, over all letters of some pairs of `copy` or `reverse`.

    Attention to the end token counts as wrong.
    """
    if toy not in TOY_POSITIONS:
        raise ValueError(f"no known alignment of {toy!r}; use {' or '.join(TOY_POSITIONS)}")
    right: dict[Head, float] = {}
    letters = 0
    for source, target in pairs:
        [source_ids, target_ids], length = translator.encode([source, target]), len(source.split())
        if not len(source_ids) == len(target_ids) == length:
            raise ValueError(f"{source!r} has {length} letters and {len(source_ids)} tokens; wanted a token for each letter")
        for head, weights in weights_of_heads(translator, source_ids, target_ids).items():
            accuracy = attention_accuracy(_target_rows(weights, offset), TOY_POSITIONS[toy](length))
            right[head] = right.get(head, 0.0) + accuracy * length
        letters += length
    if not letters:
        raise ValueError(f"no pairs of {toy}; give some, such as toy_pairs({toy!r}, 'test', 100)")
    return {head: count / letters for head, count in right.items()}
