"""Lexically constrained search: phrases that must appear in an output, wherever the model likes them best."""

from collections.abc import Sequence

__all__ = ["Constraint", "Phrase"]

Phrase = Sequence[int]  # token ids that follow each other
Constraint = Phrase | Sequence[Phrase]  # a phrase, or several of which one must appear
