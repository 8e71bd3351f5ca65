"""Mutations of feature superposition."""

import pytest
from mutation import Mutation
from torch import Tensor


def linear_units(patch: pytest.MonkeyPatch) -> None:
    from regard.layers.mlp import ACTIVATIONS

    def identity(x: Tensor) -> Tensor:
        return x

    patch.setitem(ACTIVATIONS, "relu", identity)


MUTATIONS = [
    Mutation("the ReLU passes negative values", linear_units,
             ("five_features_share_two_neurons_as_a_pentagon", "a_sparse_autoencoder_recovers_the_features")),
]  # fmt: skip
