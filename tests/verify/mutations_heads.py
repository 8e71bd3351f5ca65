"""Mutations of multi-head attention."""

from collections.abc import Callable

import pytest
from mutation import Mutation, attend_with, replace_everywhere
from torch import Tensor

from regard.layers.attention import Attention, attend


def attention_with(*, fixed: int | None = None, full_width: bool = False) -> Callable[[pytest.MonkeyPatch], None]:
    """Every `Attention` is built with this fixed number of heads, or with heads as wide as the layer."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        init = Attention.__init__

        def changed(self: Attention, dim: int, heads: int, *rest: object, **options: object) -> None:
            width = {"width": dim} if full_width else {}
            init(self, dim, fixed or heads, *rest, **{**options, **width})

        patch.setattr(Attention, "__init__", changed)

    return apply


def alike(patch: pytest.MonkeyPatch) -> None:
    """The queries and keys of all heads are those of their mean."""

    def changed(q: Tensor, k: Tensor, v: Tensor, **options: object) -> tuple[Tensor, Tensor | None]:
        q, k = (x.mean(1, keepdim=True).expand_as(x) if x.ndim == 4 else x for x in (q, k))
        return attend(q, k, v, **options)

    replace_everywhere(patch, attend, changed)


def keys_are_queries(patch: pytest.MonkeyPatch) -> None:
    """W_K is W_Q."""
    project = Attention.project

    def changed(self: Attention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, _, v = project(self, x)
        return q, q, v

    patch.setattr(Attention, "project", changed)


MUTATIONS = [
    Mutation("every layer has one head", attention_with(fixed=1),
             ("two_readings_need_two_heads", "multi_head_attention_equals_a_loop_over_heads",
              "multi_head_attention_equals_torchs", "each_head_has_its_own_matrices", "the_original_transformer_has_8_heads")),
    Mutation("all heads attend alike", alike,
             ("two_readings_need_two_heads", "heads_of_a_trained_model_attend_to_different_words")),
    Mutation("each head is as wide as the layer", attention_with(full_width=True),
             ("all_heads_cost_as_much_as_one_of_full_width",)),
    Mutation("keys are projected like queries", keys_are_queries, ("attention_is_no_similarity_search",)),
    Mutation("attention drops a tenth of its weights, whatever its rate", attend_with(dropout=0.1),
             ("the_dropout_of_attention_must_be_passed_on",)),
]  # fmt: skip
