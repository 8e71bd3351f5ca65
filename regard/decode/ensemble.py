"""Several models that decode as one: the probability of the next token is the mean of theirs.

Shapes: B sentences, R rows, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.decode.step import Decoder

__all__ = ["Ensemble"]


class Ensemble:
    """A decoder of several decoders with one vocabulary; its state is a tuple of theirs."""

    def __init__(self, decoders: Sequence[Decoder]):
        self.decoders = tuple(decoders)

    def start(self, source: Tensor) -> tuple[Any, ...]:
        """Each model reads the source, token ids (B, S)."""
        return tuple(decoder.start(source) for decoder in self.decoders)

    def step(self, token: Tensor, state: tuple[Any, ...]) -> tuple[Tensor, tuple[Any, ...]]:
        """The last token (R,) and the states before it → log-probabilities (R, V) of the next one, and the states after it."""
        steps = [decoder.step(token, part) for decoder, part in zip(self.decoders, state, strict=True)]
        logprobs = torch.stack([logits.log_softmax(-1) for logits, _ in steps])  # (models, R, V)
        return logprobs.logsumexp(0) - math.log(len(steps)), tuple(after for _, after in steps)
