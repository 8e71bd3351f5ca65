"""Mutations of positions: what the table holds, how far it reaches, and how it meets the tokens."""

from collections.abc import Callable

import pytest
import torch
from mutation import Mutation, replace_everywhere
from torch import Tensor

from regard.layers.embed import Embed
from regard.layers.positions import SinusoidalPositions, sinusoid


def change_sinusoid(change: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A mutation of the table of sinusoids."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        def changed(length: int, dim: int) -> Tensor:
            table = sinusoid(length + 1, dim)
            if change == "from 1":
                return table[1:]
            if change == "halves":
                return torch.cat((table[:-1, ::2], table[:-1, 1::2]), 1)
            if change == "one wavelength":
                return table[:-1, :2].repeat(1, dim // 2)
            assert change == "counts"
            return torch.arange(length)[:, None].expand(length, dim).float()

        replace_everywhere(patch, sinusoid, changed)

    return apply


def leave_the_scale_out(patch: pytest.MonkeyPatch) -> None:
    def changed(self: Embed, ids: Tensor, start: int = 0) -> Tensor:
        return self.dropout(self.tokens(ids) + self.positions(start, start + ids.shape[1]))

    patch.setattr(Embed, "forward", changed)


def leave_positions_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Embed, "forward", lambda self, ids, start=0: self.dropout(self.tokens(ids) * self.scale))


def add_in_place(patch: pytest.MonkeyPatch) -> None:
    def changed(self: Embed, ids: Tensor, start: int = 0) -> Tensor:
        x = self.tokens(ids)
        x += self.positions(start, start + ids.shape[1])
        return self.dropout(x * self.scale)

    patch.setattr(Embed, "forward", changed)


def do_not_grow(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SinusoidalPositions, "forward", lambda self, start, stop: self.table[start:stop])


MUTATIONS = [
    Mutation("embeddings are not multiplied by √d_model", leave_the_scale_out, ("embeddings_are_multiplied_by_root_d",)),
    Mutation("positions are not added to the tokens", leave_positions_out,
             ("the_encoder_input_is_embedding_plus_position", "positions_are_learned_or_fixed_added_or_concatenated",
              "positions_are_not_added_in_place")),
    Mutation("positions are added in place", add_in_place, ("positions_are_not_added_in_place",)),
    Mutation("the table of positions does not grow", do_not_grow, ("positions_are_not_added_in_place",)),
    Mutation("positions are counts", change_sinusoid("counts"), ("sinusoids_are_bounded_continuous_periodic_and_unique",)),
    Mutation("positions count from 1", change_sinusoid("from 1"),
             ("the_sinusoid_has_the_values_of_the_formula", "positions_and_dimensions_count_from_0")),
    Mutation("sines fill the first half of the dimensions, cosines the second", change_sinusoid("halves"),
             ("the_sinusoid_has_the_values_of_the_formula", "higher_dimensions_are_almost_constant", "an_offset_is_a_rotation",
              "positions_and_dimensions_count_from_0", "sines_are_in_the_even_dimensions")),
    Mutation("all sinusoids have one wavelength", change_sinusoid("one wavelength"),
             ("sinusoids_are_bounded_continuous_periodic_and_unique", "higher_dimensions_are_almost_constant",
              "each_pair_of_dimensions_changes_less_often_like_higher_bits")),
]  # fmt: skip
