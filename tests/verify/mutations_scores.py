"""Mutations of how queries and keys are compared, and of which vectors they are."""

import pytest
import torch
from mutation import Mutation, attend_with, replace_everywhere
from torch import Tensor

from regard.layers.attention import Attention, attend
from regard.layers.cache import KeysValues
from regard.layers.scores import Additive, General, Location
from regard.models.captioner import sampled_place


def project_each_place_differently(patch: pytest.MonkeyPatch) -> None:
    project = Attention.project

    def changed(self: Attention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return project(self, x * (1 + torch.arange(x.shape[1])[:, None]))

    patch.setattr(Attention, "project", changed)


def drop_tanh(patch: pytest.MonkeyPatch) -> None:
    def changed(self: Additive, q: Tensor, k: Tensor) -> Tensor:
        return self.value(self.query(q).unsqueeze(-2) + k.unsqueeze(-3)).squeeze(-1)

    patch.setattr(Additive, "forward", changed)


def add_instead_of_multiplying(patch: pytest.MonkeyPatch) -> None:
    def score(q: Tensor, k: Tensor) -> Tensor:
        return torch.tanh(q.unsqueeze(-2) + k.unsqueeze(-3)).sum(-1)

    def changed(q: Tensor, k: Tensor, v: Tensor, **options: object) -> tuple[Tensor, Tensor | None]:
        return attend(q, k, v, **{"score": score, **options})

    replace_everywhere(patch, attend, changed)


def score_keys_by_their_place(patch: pytest.MonkeyPatch) -> None:
    def changed(self: General, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) + torch.arange(k.shape[-2])

    patch.setattr(General, "forward", changed)


def score_places_by_their_keys(patch: pytest.MonkeyPatch) -> None:
    forward = Location.forward
    patch.setattr(Location, "forward", lambda self, q, k: forward(self, q, k) + k.sum(-1).unsqueeze(-2))


def take_the_best_place(patch: pytest.MonkeyPatch) -> None:
    def changed(context: Tensor, weights: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        return sampled_place(context, (1000 * weights.log()).softmax(-1), places)

    replace_everywhere(patch, sampled_place, changed)


def query_with_the_keys(patch: pytest.MonkeyPatch) -> None:
    forward = Attention.forward

    def changed(self: Attention, x: Tensor, memory: KeysValues | None = None, **options: object) -> Tensor:
        if memory is None:
            return forward(self, x, **options)
        return self.mix(x, lambda h: (memory.keys, *memory), self.merge, **options)

    patch.setattr(Attention, "forward", changed)


def use_keys_as_values(patch: pytest.MonkeyPatch) -> None:
    keys_values = Attention.keys_values

    def changed(self: Attention, memory: Tensor) -> KeysValues:
        keys, _ = keys_values(self, memory)
        return KeysValues(keys, keys)

    patch.setattr(Attention, "keys_values", changed)


MUTATIONS = [
    Mutation("all keys get the same weight", attend_with(scale=0.0),
             ("idioms_need_learned_queries_and_keys", "random_projections_are_learned",
              "attention_functions_equal_their_formulas", "soft_attention_hardens_as_the_temperature_falls",
              "attention_is_a_soft_dictionary",
              "scores_are_scaled_by_the_width_of_keys", "queries_keys_and_values_have_their_own_matrices")),
    Mutation("scores are divided by √512 in every head", attend_with(scale=512**-0.5),
             ("scores_are_scaled_by_the_width_of_keys", "attention_functions_equal_their_formulas")),
    Mutation("each word has projections of its own", project_each_place_differently, ("one_projection_serves_all_words",)),
    Mutation("additive scores have no tanh", drop_tanh, ("attention_functions_equal_their_formulas",)),
    Mutation("dot products are replaced by sums of tanh(q + k)", add_instead_of_multiplying,
             ("dot_products_are_cheaper_than_additive_scores",)),
    Mutation("scores of the content depend on the place", score_keys_by_their_place,
             ("content_scores_depend_on_the_words_and_location_scores_on_the_place", "attention_functions_equal_their_formulas")),
    Mutation("scores of the place depend on the content", score_places_by_their_keys,
             ("content_scores_depend_on_the_words_and_location_scores_on_the_place",)),
    Mutation("hard attention always takes the best place", take_the_best_place,
             ("hard_attention_samples_by_the_weights_of_soft_attention", "reinforce_finds_the_gradient_of_hard_attention")),
    Mutation("cross-attention takes its queries from the source", query_with_the_keys,
             ("attention_has_as_many_outputs_as_queries", "cross_attention_queries_the_source_from_the_target")),
    Mutation("keys are used as values", use_keys_as_values, ("queries_keys_and_values_have_their_own_matrices",)),
]  # fmt: skip
