"""Mutations of the scale of attention scores."""

from mutation import Mutation, attend_with

MUTATIONS = [
    Mutation("scores are not divided by √d", attend_with(scale=1.0),
             ("dot_products_are_scaled_to_variance_1", "gradients_of_unscaled_softmax_vanish",
              "softmax_of_unscaled_scores_is_peaked")),
]  # fmt: skip
