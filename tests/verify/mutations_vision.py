"""Mutations of attention for images: gates, neighbourhoods, windows, shifts, biases and pooling."""

from functools import partial
from typing import Any

import pytest
import torch
from mutation import Mutation, attend_with, replace_everywhere
from torch import Tensor

from regard.layers.attention import CosineAttention
from regard.layers.biases import ContinuousPositionBias, RelativePositionBias
from regard.layers.conv import ConvNorm, Residual
from regard.layers.embed import Embed
from regard.layers.linear import Linear
from regard.layers.masks import neighborhood_mask
from regard.layers.shapes import to_grid, to_neighborhoods, to_tokens
from regard.models.lrnet import LocalRelation
from regard.models.mvit import plan_blocks
from regard.models.resnet import GatedAttention
from regard.models.swin import Block, plan_windows


def without_gate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GatedAttention, "forward", lambda self, x: x + to_grid(self.attn(to_tokens(x)), x.shape[2]))


def without_attention(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GatedAttention, "forward", lambda self, x: x + 0 * self.gate)


def look_outside(patch: pytest.MonkeyPatch) -> None:
    replace_everywhere(patch, neighborhood_mask, lambda *args: torch.ones_like(neighborhood_mask(*args)))


def smaller_neighborhoods(patch: pytest.MonkeyPatch) -> None:
    replace_everywhere(patch, to_neighborhoods, lambda x, heads, kernel, stride=1: to_neighborhoods(x, heads, kernel - 2, stride))


def project_every_shortcut(patch: pytest.MonkeyPatch) -> None:
    init = Residual.__init__

    def changed(self: Residual, body: Any, inputs: int, outputs: int, stride: int = 1, drop_path: float = 0.0) -> None:
        init(self, body, inputs, outputs, stride, drop_path)
        self.shortcut = ConvNorm(inputs, outputs, 1, stride)

    patch.setattr(Residual, "__init__", changed)


def empty_local_relation(patch: pytest.MonkeyPatch) -> None:
    shift = LocalRelation.shift
    patch.setattr(LocalRelation, "shift", lambda self, *args: 0 * shift(self, *args))


def same_tokens(patch: pytest.MonkeyPatch) -> None:
    forward = Embed.forward
    patch.setattr(Embed, "forward", lambda self, ids, start=0: forward(self, 0 * ids, start))


def keep_the_grid(patch: pytest.MonkeyPatch) -> None:
    init = ConvNorm.__init__
    patch.setattr(ConvNorm, "__init__", lambda self, inputs, outputs, kernel=1, stride=1: init(self, inputs, outputs, kernel))


def ignore_windows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Block, "attend_windows", lambda self, x: self.attn(x.flatten(1, 2)).view(x.shape))


def replan(patch: pytest.MonkeyPatch, **changes: Any) -> None:
    plan_again = plan_windows.__wrapped__  # not the cache, which would keep what is changed here

    def changed(rows: int, columns: int, window: int, shift: int, device: torch.device) -> Any:
        plan = plan_again(rows, columns, window, changes.get("shift", shift), device)
        return plan._replace(mask=changes.get("mask", plan.mask))

    replace_everywhere(patch, plan_windows, changed)


def transpose_bias(patch: pytest.MonkeyPatch) -> None:
    forward = RelativePositionBias.forward
    patch.setattr(RelativePositionBias, "forward", lambda self, window: forward(self, window).transpose(-2, -1))


def compare_lengths(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CosineAttention, "forward", lambda self, q, k: (q, k))


def shrink_offsets(patch: pytest.MonkeyPatch) -> None:
    forward = ContinuousPositionBias.forward

    def changed(self: ContinuousPositionBias, window: int) -> Tensor:
        patch.setattr(self, "max_distance", max(1, window - 1))
        return forward(self, window)

    patch.setattr(ContinuousPositionBias, "forward", changed)


def pool_no_keys(patch: pytest.MonkeyPatch) -> None:
    replace_everywhere(patch, plan_blocks, lambda config: [plan._replace(keys=1) for plan in plan_blocks(config)])


def multiply_often(patch: pytest.MonkeyPatch, times: int = 20) -> None:
    forward = Linear.forward

    def changed(self: Linear, *args: Any) -> Tensor:
        for _ in range(times - 1):
            forward(self, *args)
        return forward(self, *args)

    patch.setattr(Linear, "forward", changed)


MUTATIONS = [
    Mutation("the attention of a CNN has no gate", without_gate,
             ("attention_is_added_between_the_blocks_of_a_cnn", "attention_in_a_cnn_sees_the_whole_map")),
    Mutation("scores of images are not divided by √d", attend_with(scale=1.0),
             ("attention_in_a_cnn_sees_the_whole_map", "relative_positions_are_a_bias_on_the_scores")),
    Mutation("a CNN leaves its attention out", without_attention, ("attention_compares_distant_places",), slow=True),
    Mutation("local attention looks outside of the image", look_outside,
             ("local_attention_equals_a_loop", "lr_net_50_repeats_its_blocks")),
    Mutation("neighbourhoods are too small", smaller_neighborhoods, ("gathered_neighbourhoods_are_large",)),
    Mutation("every residual has a projection", project_every_shortcut,
             ("lr_net_50_has_the_size_of_the_table", "lr_net_50_repeats_its_blocks")),
    Mutation("local relation gives zeros", empty_local_relation, ("lr_net_is_about_as_accurate_as_a_resnet",), slow=True),
    Mutation("all pixels look the same", same_tokens, ("a_transformer_learns_pixels",)),
    Mutation("convolutions do not halve the grid", keep_the_grid, ("cnns_are_hierarchical_and_vit_is_isotropic",)),
    Mutation("Swin attends to the whole grid", ignore_windows,
             ("windows_need_m_squared_h_w_entries", "window_attention_is_linear_in_the_image", "swin_has_windows_of_7_throughout",
              "shifted_windows_connect_windows", "shifted_windows_are_ragged_at_the_edges")),
    Mutation("windows are not shifted", lambda patch: replan(patch, shift=0),
             ("shifted_windows_connect_windows", "shifted_windows_are_ragged_at_the_edges")),
    Mutation("the regions of a rolled window are not masked", lambda patch: replan(patch, mask=None),
             ("shifted_windows_are_ragged_at_the_edges",)),
    Mutation("the relative position bias swaps queries and keys", transpose_bias,
             ("relative_positions_are_a_bias_on_the_scores", "shifted_windows_are_ragged_at_the_edges")),
    Mutation("Swin V2 compares queries and keys by their dot product", compare_lengths,
             ("swin_v2_has_cosine_attention_and_continuous_biases",)),
    Mutation("Swin V2 scales offsets by the window it is given", shrink_offsets,
             ("swin_v2_has_cosine_attention_and_continuous_biases",)),
    Mutation("MViT does not pool its keys", pool_no_keys, ("mvit_pools_queries_and_keys",)),
    Mutation("a linear layer computes its products 20 times", multiply_often,
             ("matrix_products_run_faster_than_some_convolutions",)),
    Mutation("the products of ViT's linear layers are computed 4 times", partial(multiply_often, times=4),
             ("vit_is_about_as_fast_on_a_cpu_as_a_resnet_of_as_many_flops",), slow=True),
]  # fmt: skip
