"""Mutations of the scale of attention scores."""

from collections.abc import Callable

import pytest
from mutation import Mutation
from torch import Tensor

import regard.layers.attention
import regard.verify.scaling


def attend_with(**changes: object) -> Callable[[pytest.MonkeyPatch], None]:
    """`attend` whatever it is called with, and with these arguments."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        original = regard.layers.attention.attend

        def changed(*qkv: Tensor, **options: object) -> tuple[Tensor, Tensor | None]:
            return original(*qkv, **{**options, **changes})

        for module in (regard.layers.attention, regard.verify.scaling):
            patch.setattr(module, "attend", changed)

    return apply


MUTATIONS = [
    Mutation("scores are not divided by √d", attend_with(scale=1.0),
             ("dot_products_are_scaled_to_variance_1", "softmax_of_unscaled_scores_is_peaked")),
]  # fmt: skip
