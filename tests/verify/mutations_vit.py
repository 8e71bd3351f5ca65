"""Mutations of ViT: its patches, positions, attention and mlp, and the convolutions that it is compared with."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from mutation import Mutation, attend_with, replace_everywhere
from torch import Tensor

from regard.layers.attention import Attention
from regard.layers.conv import ConvNorm
from regard.layers.mlp import MLP
from regard.layers.positions import LearnedGridPositions
from regard.layers.shapes import to_patches
from regard.models.vit import SIZES, Patches


def read_patches_by_columns(patch: pytest.MonkeyPatch) -> None:
    replace_everywhere(patch, to_patches, lambda x, side: to_patches(x.transpose(2, 3), side))


def empty_patches(patch: pytest.MonkeyPatch) -> None:
    forward = Patches.forward
    patch.setattr(Patches, "forward", lambda self, x: torch.zeros_like(forward(self, x)))


def no_positions(patch: pytest.MonkeyPatch) -> None:
    forward = LearnedGridPositions.forward
    patch.setattr(LearnedGridPositions, "forward", lambda self, rows, columns: 0 * forward(self, rows, columns))


def attend_to_8_tokens(patch: pytest.MonkeyPatch) -> None:
    project = Attention.project

    def changed(self: Attention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = project(self, x)
        return q, k[:, :, :8], v[:, :, :8]

    patch.setattr(Attention, "project", changed)


def widen_mlp(patch: pytest.MonkeyPatch) -> None:
    init = MLP.__init__
    patch.setattr(MLP, "__init__", lambda self, dim, hidden, *args, **kwargs: init(self, dim, 2 * hidden, *args, **kwargs))


def pointwise_convolutions(patch: pytest.MonkeyPatch) -> None:
    init = ConvNorm.__init__

    def changed(self: ConvNorm, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> Any:
        init(self, inputs, outputs, 1, stride)

    patch.setattr(ConvNorm, "__init__", changed)


MUTATIONS = [
    Mutation("patches of an image are read column by column", read_patches_by_columns,
             ("an_image_is_cut_into_patches", "vit_makes_tokens_in_five_steps")),
    Mutation("an image has no position embeddings", no_positions,
             ("vit_makes_tokens_in_five_steps", "vit_has_neither_locality_nor_translation_equivariance",
              "vit_does_not_know_which_patches_are_neighbours", "swin_knows_relative_positions_only")),
    Mutation("scores of ViT's blocks are not divided by √d", attend_with(scale=1.0), ("vit_is_a_transformer_encoder",)),
    Mutation("all tokens attend to the first 8 tokens only", attend_to_8_tokens,
             ("each_patch_sees_all_patches_after_one_layer", "attention_costs_n_squared_d",
              "cost_is_quadratic_in_the_number_of_patches", "patch_size_decides_the_cost",
              "attention_matrices_of_patches_are_small", "attention_sizes_are_in_powers_of_1024",
              "attention_on_pixels_needs_r_to_the_4", "patches_shorten_the_sequence")),
    Mutation("the mlp is twice as wide", widen_mlp, ("hierarchical_vits_have_their_published_sizes",)),
    Mutation("ViT-B has patches of 32 pixels", lambda patch: patch.setitem(SIZES, "base", replace(SIZES["base"], patch=32)),
             ("vit_base_has_more_parameters_and_flops_than_resnet_50",)),
    Mutation("ViT sees empty patches", empty_patches,
             ("vit_is_data_hungry", "vit_is_sensitive_to_the_patch_size",
              "pre_training_narrows_the_gap_between_vit_and_resnet"), slow=True),
    Mutation("convolutions see their own position only", pointwise_convolutions,
             ("vit_learns_slower_than_a_cnn", "vit_learns_local_features_slowly"), slow=True),
]  # fmt: skip
