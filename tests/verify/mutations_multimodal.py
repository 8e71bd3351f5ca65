"""Mutations of captions, cross-attention between modalities, and speech."""

import pytest
import torch
from mutation import Mutation, replace_everywhere
from torch import Tensor


def zero_scores(patch: pytest.MonkeyPatch) -> None:
    from regard.layers.scores import Additive

    forward = Additive.forward
    patch.setattr(Additive, "forward", lambda self, q, k: 0 * forward(self, q, k))


def detached_contexts(patch: pytest.MonkeyPatch) -> None:
    from regard.layers.recurrent_attention import CrossAttention

    forward = CrossAttention.forward
    patch.setattr(CrossAttention, "forward", lambda *inputs: tuple(part.detach() for part in forward(*inputs)))


def softmax_over_queries(patch: pytest.MonkeyPatch) -> None:
    from regard.layers.attention import attend

    def changed(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, **options: object) -> tuple[Tensor, Tensor]:
        weights = (q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)).softmax(-2)
        return weights @ v, weights

    replace_everywhere(patch, attend, changed)


def only_the_first_key(patch: pytest.MonkeyPatch) -> None:
    from regard.layers.attention import attend

    def changed(q: Tensor, k: Tensor, v: Tensor, **options: object) -> tuple[Tensor, Tensor | None]:
        first = (torch.arange(k.shape[-2]) == 0).expand(q.shape[-2], -1)
        return attend(q, k, v, **{**options, "mask": first})

    replace_everywhere(patch, attend, changed)


def no_mixing(patch: pytest.MonkeyPatch) -> None:
    from regard.layers.attention import Attention

    forward = Attention.forward
    patch.setattr(Attention, "forward", lambda self, x, *memory, **options: 0 * forward(self, x, *memory, **options))


def padding_counts(patch: pytest.MonkeyPatch) -> None:
    from regard.layers.masks import length_mask

    replace_everywhere(patch, length_mask, lambda lengths, longest: torch.ones_like(length_mask(lengths, longest)))


def best_path_for_the_sum(patch: pytest.MonkeyPatch) -> None:
    from regard.decode import ctc

    patch.setattr(ctc, "_log_add", max)


def repetitions_kept(patch: pytest.MonkeyPatch) -> None:
    from regard.decode.ctc import best_path
    from regard.decode.search import Hypothesis

    def changed(log_probs: Tensor, lengths: Tensor, *, blank: int = 0) -> list[Hypothesis]:
        return [Hypothesis([token for token in row.tolist() if token != blank], 0.0) for row in log_probs.argmax(-1)]

    replace_everywhere(patch, best_path, changed)


def no_positions(patch: pytest.MonkeyPatch) -> None:
    from regard.layers.tap import positions_off

    replace_everywhere(patch, positions_off, lambda module: True)


MUTATIONS = [
    Mutation("a captioner scores all places alike", zero_scores,
             ("a_captioner_attends_by_the_formulas", "a_captioner_looks_at_the_shape_it_names",
              "a_map_for_each_word_shows_where_a_captioner_looks")),
    Mutation("no gradient flows through contexts", detached_contexts, ("a_caption_is_differentiable_back_to_the_pixels",)),
    Mutation("attention divides by the sum over queries", softmax_over_queries,
             ("attention_reads_a_grid_as_a_set_of_vectors", "cross_attention_aligns_hindi_with_english")),
    Mutation("attention sees only the first key", only_the_first_key,
             ("cross_attention_joins_two_modalities", "a_conformer_block_adds_convolution_to_attention")),
    Mutation("attention adds nothing to Hindi", no_mixing, ("a_translator_to_hindi_reads_its_source",), slow=True),
    Mutation("padding of sounds is not masked", padding_counts, ("a_spectrogram_becomes_tokens",)),
    Mutation("CTC's search takes the best path for the sum of all", best_path_for_the_sum, ("ctc_sums_over_all_paths",)),
    Mutation("CTC's best path keeps repetitions", repetitions_kept,
             ("conformers_learn_to_hear_tones", "a_conformer_learns_spoken_digits"), slow=True),
    Mutation("no model knows positions", no_positions, ("every_transformer_has_tokens_attention_and_positions",)),
]  # fmt: skip
