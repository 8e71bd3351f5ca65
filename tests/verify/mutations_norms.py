"""Mutations of norms and residuals."""

from collections.abc import Callable

import pytest
from mutation import Mutation, replace_everywhere
from torch import Tensor, nn

from regard.layers.conv import batch_norm
from regard.layers.dropout import Dropout
from regard.layers.norm import PostNorm, PreNorm
from regard.models.conformer import ConvolutionModule


def layer_norm_with(normalize: Callable[[Tensor], Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    """Every layer norm normalizes like this."""

    def forward(self: nn.LayerNorm, x: Tensor) -> Tensor:
        return normalize(x) * self.weight + self.bias

    return lambda patch: patch.setattr(nn.LayerNorm, "forward", forward)


def across_rows(x: Tensor) -> Tensor:
    """Normalize each feature over the tokens."""
    return (x - x.mean(-2, keepdim=True)) / (x.var(-2, unbiased=False, keepdim=True) + 1e-5).sqrt()


def with_torchs_std(x: Tensor) -> Tensor:
    """The notes' class."""
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)


def batch_norm_of_rows(patch: pytest.MonkeyPatch) -> None:
    """A norm of each sample by itself, over its channels."""

    class Rows(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return across_rows(x.flatten(1).mT).mT.view_as(x)

    replace_everywhere(patch, batch_norm, Rows)


def padding_counted(patch: pytest.MonkeyPatch) -> None:
    """The Conformer's convolution module never hears of padding."""
    forward = ConvolutionModule.forward
    patch.setattr(ConvolutionModule, "forward", lambda self, x, real=None: forward(self, x))


def residual_with(add: Callable[[Dropout, Tensor, Tensor], Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    """The sum of input and branch is made like this."""
    return lambda patch: patch.setattr(Dropout, "add_residual", add)


MUTATIONS = [
    Mutation("layer norm is over the tokens", layer_norm_with(across_rows),
             ("batch_norm_takes_columns_and_layer_norm_rows", "padding_changes_batch_norm_and_not_layer_norm",
              "layer_norm_has_the_values_of_the_formula", "normalized_values_are_not_between_0_and_1")),
    Mutation("layer norm divides by torch's std", layer_norm_with(with_torchs_std),
             ("layer_norm_has_the_values_of_the_formula", "the_class_of_the_notes_divides_by_d_minus_1",
              "normalized_values_are_not_between_0_and_1")),
    Mutation("layer norm is no norm", layer_norm_with(lambda x: x), ("residuals_and_norms_keep_gradients",)),
    Mutation("batch norm is over the channels", batch_norm_of_rows,
             ("batch_norm_takes_columns_and_layer_norm_rows", "padding_changes_batch_norm_and_not_layer_norm")),
    Mutation("the Conformer's batch norm counts padding", padding_counted, ("padding_changes_batch_norm_and_not_layer_norm",)),
    Mutation("the residual is not added", residual_with(lambda dropout, x, branch: dropout(branch)),
             ("a_residual_adds_the_input", "dropout_is_of_the_branch", "residuals_and_norms_keep_gradients")),
    Mutation("dropout is of the sum", residual_with(lambda dropout, x, branch: dropout(x + branch)),
             ("dropout_is_of_the_branch",)),
    Mutation("post-norm has its norm first", lambda patch: patch.setattr(PostNorm, "forward", PreNorm.forward),
             ("a_residual_adds_the_input", "norm_first_is_another_model")),
    Mutation("pre-norm ends without a norm", lambda patch: patch.setattr(PreNorm, "final_norm", nn.Identity),
             ("norm_first_is_another_model",)),
]  # fmt: skip
