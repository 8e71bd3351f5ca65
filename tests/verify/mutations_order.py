"""Mutations of weights, masks and positions."""

import pytest
import torch
from mutation import Mutation, attend_with, replace_everywhere
from torch import Tensor

from regard.layers.attention import attend
from regard.layers.masks import causal_mask
from regard.layers.positions import SinusoidalPositions


def softmax_over_queries(patch: pytest.MonkeyPatch) -> None:
    """Each column of the weights sums to one, instead of each row."""

    def changed(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, bias: Tensor | None = None,
                need_weights: bool = False, **_: object) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        weights = (scores if bias is None else scores + bias).softmax(-2)
        return weights @ v, weights if need_weights else None

    replace_everywhere(patch, attend, changed)


def values_shifted(patch: pytest.MonkeyPatch) -> None:
    """A weight is that of the value before its key."""
    replace_everywhere(patch, attend, lambda q, k, v, **options: attend(q, k, v.roll(1, -2), **options))


def queries_shifted(patch: pytest.MonkeyPatch) -> None:
    """Dimension i of a query meets dimension i + 1 of a key."""
    replace_everywhere(patch, attend, lambda q, k, v, **options: attend(q.roll(1, -1), k, v, **options))


def positions_stay(patch: pytest.MonkeyPatch) -> None:
    """`without_positions` leaves the sinusoids."""
    patch.setattr(SinusoidalPositions, "forward", lambda self, start, stop: self.table[start:stop])


def no_positions(patch: pytest.MonkeyPatch) -> None:
    """Sinusoids are never added."""
    patch.setattr(SinusoidalPositions, "forward", lambda self, start, stop: torch.zeros(stop - start, self.dim))


def rolling_window(patch: pytest.MonkeyPatch) -> None:
    """A query attends to its own and the three positions before."""
    replace_everywhere(patch, causal_mask, lambda *sizes: causal_mask(*sizes) & ~causal_mask(*sizes).tril(-4))


MUTATIONS = [
    Mutation("the softmax is over the queries", softmax_over_queries,
             ("self_attention_without_parameters_is_parallel", "dot_products_become_weights_by_softmax")),
    Mutation("biases are not added to the scores", attend_with(bias=None),
             ("bank_depends_on_its_sentence", "the_table_of_six_words_mixes_their_values",
              "the_weights_of_bank_are_given_twice")),
    Mutation("values are shifted by one position", values_shifted,
             ("attention_of_one_query_is_permutation_invariant", "masked_positions_do_not_interact",
              "outputs_move_with_the_inputs", "self_attention_is_permutation_equivariant")),
    Mutation("the dimensions of queries are shifted by one", queries_shifted,
             ("the_diagonal_is_highest_for_vectors_of_one_length", "the_table_of_six_words_is_not_that_of_one_input")),
    Mutation("masks are ignored", attend_with(mask=None), ("masked_positions_do_not_interact",)),
    Mutation("sinusoids stay in a model without positions", positions_stay,
             ("self_attention_is_permutation_equivariant", "without_positions_the_lion_and_nithish_are_alike",
              "self_attention_alone_knows_no_positions")),
    Mutation("sinusoids are not added", no_positions,
             ("self_attention_is_permutation_equivariant", "without_positions_the_lion_and_nithish_are_alike",
              "self_attention_alone_knows_no_positions")),
    Mutation("the causal mask is a rolling window of 4", rolling_window, ("the_causal_mask_is_no_rolling_window",)),
]  # fmt: skip
