"""Mutations of GPT, BERT, T5 and ELMo, of what they are trained on, and of patches and frames."""

from typing import Any

import numpy as np
import pytest
import torch
from mutation import Mutation, attend_with, replace_everywhere
from torch import Tensor

from regard.data.text import masking, splits
from regard.data.text.windows import MaskedBatch, WindowBatch
from regard.layers.recurrent import reversing_index
from regard.layers.shapes import to_patches
from regard.models.elmo import ELMo
from regard.models.t5 import T5
from regard.tasks.language_model import next_token_loss
from regard.tasks.loss import linear_cross_entropy
from regard.tasks.masked_lm import masked_token_loss


def do_not_shift(patch: pytest.MonkeyPatch) -> None:
    def same(model: Any, batch: WindowBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
        features = model.features(batch.text[:, 1:]).flatten(0, 1)
        return linear_cross_entropy(
            features, model.output.weight, model.output.bias, batch.text[:, 1:].flatten(), label_smoothing
        )

    replace_everywhere(patch, next_token_loss, same)


def predict_all_tokens(patch: pytest.MonkeyPatch) -> None:
    def changed(model: Any, batch: MaskedBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
        return masked_token_loss(model, batch._replace(chosen=torch.ones_like(batch.chosen)), label_smoothing)

    replace_everywhere(patch, masked_token_loss, changed)


def mask_always(patch: pytest.MonkeyPatch) -> None:
    original = masking.mask_tokens

    def always(text: Any, special_ids: Any, mask: int, vocab: int, rng: np.random.Generator, rate: float = 0.15) -> Any:
        _, chosen = original(text, special_ids, mask, vocab, rng, 2 * rate)
        return np.where(chosen, mask, text), chosen

    replace_everywhere(patch, original, always)


def leave_out_spans(patch: pytest.MonkeyPatch) -> None:
    original = masking.corrupt_spans

    def without(text: Any, sentinels: Any, rng: np.random.Generator, rate: float = 0.15, mean: float = 3.0) -> Any:
        source, target = original(text, sentinels, rng, rate, mean)
        return source[~np.isin(source, sentinels)], target  # nothing shows where a span was

    replace_everywhere(patch, original, without)


def leave_out_prefixes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(splits, "_prefix", lambda name, data: "")


def hide_the_prefix(patch: pytest.MonkeyPatch) -> None:
    encode = T5.encode

    def without(source: Tensor) -> Tensor:
        return torch.cat((torch.full_like(source[:, :1], 3), source[:, 1:]), 1)

    patch.setattr(T5, "encode", lambda self, source, mask=None: encode(self, without(source), mask))


def read_forward_twice(patch: pytest.MonkeyPatch) -> None:
    def as_it_is(lengths: Tensor, length: int) -> Tensor:
        return torch.arange(length).expand(len(lengths), -1)

    replace_everywhere(patch, reversing_index, as_it_is)


def leave_out_the_context(patch: pytest.MonkeyPatch) -> None:
    layers = ELMo.layers
    patch.setattr(ELMo, "layers", lambda self, words, mask=None: layers(self, words, mask)[:1].expand(3, -1, -1, -1))


def mix_patches(patch: pytest.MonkeyPatch) -> None:
    def rolled(x: Tensor, side: int) -> Tensor:
        patches = to_patches(x, side)
        return patches + patches.mean(1, keepdim=True)

    replace_everywhere(patch, to_patches, rolled)


MUTATIONS = [
    Mutation("attention is causal everywhere", attend_with(causal=True),
             ("examples_decide_where_a_network_attends", "gpt_reads_the_past_bert_both_sides_and_t5_both_ways")),
    Mutation("attention is nowhere causal", attend_with(causal=False),
             ("gpt_reads_the_past_bert_both_sides_and_t5_both_ways", "gpt_predicts_each_next_word")),
    Mutation("a language model predicts the token it reads", do_not_shift, ("gpt_predicts_each_next_word",)),
    Mutation("BERT predicts all tokens", predict_all_tokens, ("bert_predicts_masked_tokens",)),
    Mutation("twice as many tokens are masked, all by [MASK]", mask_always, ("bert_predicts_masked_tokens",)),
    Mutation("spans leave no sentinel in the source", leave_out_spans, ("t5_restores_spans_that_are_cut_out",)),
    Mutation("tasks have no prefix", leave_out_prefixes, ("task_prefixes_are_part_of_the_source",)),
    Mutation("T5 does not see the first word", hide_the_prefix, ("one_t5_learns_three_tasks_by_their_prefixes",), slow=True),
    Mutation("ELMo's backward half reads forward", read_forward_twice,
             ("elmo_joins_a_reader_of_the_past_and_one_of_the_future",)),
    Mutation("ELMo's vectors have no context", leave_out_the_context, ("contextual_vectors_tell_two_meanings_apart",)),
    Mutation("each patch has a part of all", mix_patches, ("text_images_and_sound_become_vectors_for_one_block",)),
]  # fmt: skip
