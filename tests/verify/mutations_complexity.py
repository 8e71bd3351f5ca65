"""Mutations of what self-attention, recurrence and convolution compute, and how much."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from mutation import Mutation, attend_with, replace_everywhere
from torch import Tensor

from regard.layers.attention import Attention, attend
from regard.layers.conv import ConvNorm
from regard.layers.dropout import Dropout
from regard.layers.recurrent import GRUCell
from regard.models.swin import Block, plan_windows


def attend_to_neighbours(patch: pytest.MonkeyPatch) -> None:
    def changed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
        near = (torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])).abs() <= 1
        return attend(q, k, v, **{**options, "mask": near})

    replace_everywhere(patch, attend, changed)


def attend_twice_to_every_key(patch: pytest.MonkeyPatch) -> None:
    def changed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
        return attend(q, torch.cat((k, k), -2), torch.cat((v, v), -2), **options)

    replace_everywhere(patch, attend, changed)


def forget_the_state(patch: pytest.MonkeyPatch) -> None:
    forward = GRUCell.forward
    patch.setattr(GRUCell, "forward", lambda cell, inputs, hidden: forward(cell, inputs, torch.zeros_like(hidden)))


def attend_to_the_whole_grid(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Block, "attend_windows", lambda block, x: block.attn(x.flatten(1, 2)).view(x.shape))


def leave_windows_unshifted(patch: pytest.MonkeyPatch) -> None:
    replace_everywhere(
        patch, plan_windows, lambda rows, columns, window, shift, device: plan_windows(rows, columns, window, 0, device)
    )


def normalize_over_positions(patch: pytest.MonkeyPatch) -> None:
    def forward(layer: ConvNorm, x: Tensor) -> Tensor:
        y = layer.conv(x)
        return (y - y.mean((2, 3), keepdim=True)) / y.std((2, 3), keepdim=True)

    patch.setattr(ConvNorm, "forward", forward)


def give_each_head_the_full_width(patch: pytest.MonkeyPatch) -> None:
    init = Attention.__init__
    patch.setattr(Attention, "__init__", lambda layer, dim, heads, *args, **options: init(layer, dim, heads, *args, width=dim))


def compute_one_query_at_a_time(patch: pytest.MonkeyPatch) -> None:
    mix: Callable[..., Tensor] = Attention.mix

    def changed(layer: Attention, x: Tensor, *args: Any, **options: Any) -> Tensor:
        memory = layer.keys_values(x)
        rows = [mix(layer, row, lambda h: (layer.queries(h), *memory), layer.merge) for row in x.split(1, 1)]
        return torch.cat([*rows[:1], *(row + 0 * rows[0] for row in rows[1:])], 1)

    patch.setattr(Attention, "mix", changed)


def attend_within_windows_of_16(patch: pytest.MonkeyPatch) -> None:
    def changed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
        windows = [x.unflatten(-2, (-1, 16)) for x in (q, k, v)]
        return attend(*windows, **options)[0].flatten(-3, -2), None

    replace_everywhere(patch, attend, changed)


def step_longer_and_longer(patch: pytest.MonkeyPatch) -> None:
    forward, steps = GRUCell.forward, 0

    def changed(cell: GRUCell, inputs: Tensor, hidden: Tensor) -> Tensor:
        nonlocal steps
        steps = steps + 1 if hidden.any() else 0  # from zeros, another sequence starts
        for _ in range(steps // 16):
            forward(cell, inputs, hidden)
        return forward(cell, inputs, hidden)

    patch.setattr(GRUCell, "forward", changed)


def convolve_512_positions(patch: pytest.MonkeyPatch) -> None:
    forward = ConvNorm.forward
    patch.setattr(ConvNorm, "forward", lambda layer, x: forward(layer, x[..., :512]))


def attend_in_the_first_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Block, "attend_windows", lambda block, x: block.attn(x[:, :, : block.window].flatten(1, 2))[:, None])


MUTATIONS = [
    Mutation("a position attends only to its neighbours", attend_to_neighbours,
             ("self_attention_sees_all_inputs_after_one_layer", "path_lengths_grow_as_the_table_says",
              "being_good_at_long_sequences_is_a_plus")),
    Mutation("every key is attended to twice", attend_twice_to_every_key,
             ("self_attention_takes_fewer_operations_if_n_is_below_d",)),
    Mutation("attention keeps its weights", attend_with(need_weights=True), ("kept_weights_take_memory_quadratic_in_n",)),
    Mutation("a GRU forgets its state", forget_the_state,
             ("self_attention_sees_all_inputs_after_one_layer", "only_recurrence_waits_for_the_position_before",
              "sequential_operations_grow_as_the_table_says", "path_lengths_grow_as_the_table_says")),
    Mutation("windows are as large as the grid", attend_to_the_whole_grid,
             ("operations_grow_as_the_table_says", "path_lengths_grow_as_the_table_says")),
    Mutation("windows are not shifted", leave_windows_unshifted, ("path_lengths_grow_as_the_table_says",)),
    Mutation("a convolution's norm has the mean of the sequence", normalize_over_positions,
             ("self_attention_sees_all_inputs_after_one_layer", "contiguous_convolutions_need_n_over_k_layers")),
    Mutation("each head has the full width", give_each_head_the_full_width,
             ("self_attention_has_fewer_parameters_than_recurrence",)),
    Mutation("there are no residuals", lambda patch: patch.setattr(Dropout, "add_residual", lambda dropout, x, branch: branch),
             ("residuals_alleviate_vanishing_gradients",)),
    Mutation("queries are computed one after the other", compute_one_query_at_a_time,
             ("self_attention_trains_faster_than_recurrence",), slow=True),
    Mutation("self-attention sees windows of 16 only", attend_within_windows_of_16, ("seconds_grow_as_the_table_says",),
             slow=True),
    Mutation("a GRU's steps take longer and longer", step_longer_and_longer, ("seconds_grow_as_the_table_says",), slow=True),
    Mutation("a convolution computes 512 positions only", convolve_512_positions, ("seconds_grow_as_the_table_says",), slow=True),
    Mutation("only the first window is computed", attend_in_the_first_window, ("seconds_grow_as_the_table_says",), slow=True),
]  # fmt: skip
