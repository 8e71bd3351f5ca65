"""Hide some tokens of a text, to be guessed from the others: one by one, as BERT does, or in spans, as T5 does.

Shapes: B batch, T tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Hidden", "corrupt_spans", "mask_tokens"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Hidden(NamedTuple):
    """A text of which some tokens were chosen to be guessed, and mostly hidden."""

    shown: Ints  # (B, T): what the model reads
    chosen: Bools  # (B, T): where it is to guess what stood there


def mask_tokens(
    text: Ints, special_ids: Sequence[int], mask: int, vocab: int, rng: np.random.Generator, rate: float = 0.15
) -> Hidden:
    """Choose tokens and hide them, section 3.1 of https://arxiv.org/abs/1810.04805: (B, T) → (B, T) twice.

    Of those chosen, 80 % become the mask, 10 % a random token, and 10 % stay, so that the model cannot trust what it sees.
    Special tokens are neither chosen nor drawn.  Of few tokens, too, one is chosen, so that there is something to guess.
    """
    draws = np.where(np.isin(text, special_ids), np.inf, rng.random(text.shape))
    chosen = (draws < rate) | ((draws == draws.min()) & (draws < 1) & (draws.min() >= rate))
    fate = rng.random(text.shape)
    usual = np.setdiff1d(np.arange(vocab), special_ids)
    shown = np.where(chosen & (fate < 0.8), mask, text)
    shown = np.where(chosen & (fate >= 0.8) & (fate < 0.9), rng.choice(usual, text.shape), shown)
    return Hidden(shown, chosen)


def corrupt_spans(text: Ints, sentinels: Sequence[int], rng: np.random.Generator, rate: float = 0.15,
            mean: float = 3.0) -> tuple[Ints, Ints]:  # fmt: skip
    """Cut spans out of a text, section 3.1.4 of https://arxiv.org/abs/1910.10683: (T,) → what is left, and the spans.

    Each span leaves a sentinel behind, a token of its own; the answer is the spans, each after its sentinel, and one more
    sentinel at the end.  Spans have `mean` tokens on average and never touch; `rate` of all tokens are cut out.
    """
    length = len(text)
    if length < 2:
        raise ValueError(f"a text of {length} tokens has no span to spare; give 2 or more")
    if len(sentinels) < 2:
        raise ValueError(
            f"{len(sentinels)} sentinels cannot mark a span and its end; wanted <extra_id_0>, <extra_id_1>, …"
        )
    cut = min(max(round(length * rate), 1), length - 1)
    spans = min(max(round(cut / mean), 1), cut, length - cut, len(sentinels) - 1)
    inside, outside = _pieces(cut, spans, rng), _pieces(length - cut, spans, rng)
    kept: list[Ints] = []
    said: list[Ints] = []
    at = 0
    for sentinel, stay, go in zip(sentinels, outside, inside, strict=False):
        kept += [text[at : at + stay], np.array([sentinel])]
        said += [np.array([sentinel]), text[at + stay : at + stay + go]]
        at += stay + go
    return np.concatenate(kept), np.concatenate([*said, [sentinels[spans]]])


def _pieces(total: int, count: int, rng: np.random.Generator) -> list[int]:
    """A number as a sum of `count` numbers of 1 or more, all such sums equally likely."""
    cuts = np.sort(rng.choice(np.arange(1, total), count - 1, replace=False))
    return np.diff([0, *cuts, total]).tolist()
