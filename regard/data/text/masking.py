"""Corrupt a text for a model to restore: single tokens masked, as in BERT, or spans cut out, as in T5.

Shapes: B batch, T tokens.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["corrupt_spans", "mask_tokens"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def mask_tokens(text: Ints, special_ids: Sequence[int], mask: int, vocab: int, rng: np.random.Generator,
                rate: float = 0.15) -> tuple[Ints, Bools]:  # fmt: skip
    """Mask tokens as in section 3.1 of https://arxiv.org/abs/1810.04805: the text to read, and which tokens to predict, (B, T).

    Of the chosen tokens 80 % become the mask token, 10 % a random one and 10 % stay, so a model cannot trust its input.
    Special tokens are neither chosen nor sampled.  At least one other token is chosen, however short the text.
    """
    draws = np.where(np.isin(text, special_ids), np.inf, rng.random(text.shape))
    chosen = (draws < rate) | ((draws == draws.min()) & (draws < 1) & (draws.min() >= rate))
    action = rng.random(text.shape)
    ordinary = np.setdiff1d(np.arange(vocab), special_ids)
    shown = np.where(chosen & (action < 0.8), mask, text)
    shown = np.where(chosen & (action >= 0.8) & (action < 0.9), rng.choice(ordinary, text.shape), shown)
    return shown, chosen


def corrupt_spans(text: Ints, sentinels: Sequence[int], rng: np.random.Generator, rate: float = 0.15,
            mean: float = 3.0) -> tuple[Ints, Ints]:  # fmt: skip
    """Cut spans out of a text, section 3.1.4 of https://arxiv.org/abs/1910.10683: (T,) → source and target.

    A sentinel token replaces each span in the source; the target is the spans, each after its sentinel, and a final
    sentinel.  Spans have `mean` tokens on average and never touch; a fraction `rate` of all tokens is cut out.
    """
    length = len(text)
    if length < 2:
        raise ValueError(f"a text of {length} tokens has no span to spare; give 2 or more")
    if len(sentinels) < 2:
        raise ValueError(f"{len(sentinels)} sentinels cannot mark a span and its end; use <extra_id_0>, <extra_id_1> …")
    cut = min(max(round(length * rate), 1), length - 1)
    spans = min(max(round(cut / mean), 1), cut, length - cut, len(sentinels) - 1)
    inside, outside = _partition(cut, spans, rng), _partition(length - cut, spans, rng)
    source, target, at = list[Ints](), list[Ints](), 0
    for sentinel, stay, go in zip(sentinels, outside, inside, strict=False):
        source += [text[at : at + stay], np.array([sentinel])]
        target += [np.array([sentinel]), text[at + stay : at + stay + go]]
        at += stay + go
    return np.concatenate(source), np.concatenate([*target, [sentinels[spans]]])


def _partition(total: int, count: int, rng: np.random.Generator) -> list[int]:
    """Split `total` into `count` positive integers, all such splits equally likely."""
    cuts = np.sort(rng.choice(np.arange(1, total), count - 1, replace=False))
    return np.diff([0, *cuts, total]).tolist()
