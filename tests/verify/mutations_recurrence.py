"""Mutations of recurrent layers, and of attention between a recurrent encoder and decoder."""

import pytest
import torch
from mutation import Mutation, attend_with, replace_everywhere
from mutations_complexity import attend_to_neighbours, compute_one_query_at_a_time
from torch import Tensor, nn

from regard.layers.cache import KeysValues
from regard.layers.recurrent import GRUCell, LSTMCell, LSTMState, reversing_index, run_unpadded
from regard.layers.recurrent_attention import CrossAttention
from regard.layers.scores import Additive
from regard.models.bahdanau import Bahdanau, Decoder
from regard.models.seq2seq import Seq2Seq


def invert_the_gate(patch: pytest.MonkeyPatch) -> None:
    def forward(cell: GRUCell, inputs: Tensor, hidden: Tensor) -> Tensor:
        recurrent = cell.recurrent(hidden)
        reset, update, _ = torch.sigmoid(inputs + recurrent).chunk(3, -1)
        candidate = torch.tanh(inputs.chunk(3, -1)[2] + reset * recurrent.chunk(3, -1)[2])
        return update * candidate + (1 - update) * hidden

    patch.setattr(GRUCell, "forward", forward)


def forget_the_cell(patch: pytest.MonkeyPatch) -> None:
    forward = LSTMCell.forward
    patch.setattr(LSTMCell, "forward", lambda layer, inputs, hidden, cell: forward(layer, inputs, hidden, 0 * cell))


def read_the_padding(patch: pytest.MonkeyPatch) -> None:
    def changed(rnn: nn.RNNBase, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return rnn(x)

    replace_everywhere(patch, run_unpadded, changed)


def read_in_order(patch: pytest.MonkeyPatch) -> None:
    replace_everywhere(patch, reversing_index, lambda lengths, steps: torch.arange(steps).expand(len(lengths), -1))


def ignore_the_context(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Decoder, "update", lambda decoder, inputs, context, hidden: decoder.cell(inputs, hidden))


def detach_the_source(patch: pytest.MonkeyPatch) -> None:
    keys_values = CrossAttention.keys_values

    def changed(attention: CrossAttention, memory: Tensor) -> KeysValues:
        return keys_values(attention, memory.detach())

    patch.setattr(CrossAttention, "keys_values", changed)


def attend_evenly(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Additive, "forward", lambda score, q, k: q.new_zeros(*q.shape[:-1], k.shape[-2]) + 0 * k.sum() + 0 * q.sum())


def mix_nothing(patch: pytest.MonkeyPatch) -> None:
    forward = CrossAttention.forward

    def changed(
        attention: CrossAttention, hidden: Tensor, memory: KeysValues, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        contexts, weights = forward(attention, hidden, memory, mask)
        return 0 * contexts, weights

    patch.setattr(CrossAttention, "forward", changed)


def keep_only_the_last_state(patch: pytest.MonkeyPatch) -> None:
    encode = Bahdanau.encode

    def changed(model: Bahdanau, source: Tensor) -> tuple[Tensor, Tensor]:
        states, mask = encode(model, source)
        return states[:, -1:], mask[..., -1:]

    patch.setattr(Bahdanau, "encode", changed)


def forget_the_source(patch: pytest.MonkeyPatch) -> None:
    encode = Seq2Seq.encode
    patch.setattr(Seq2Seq, "encode", lambda model, source: LSTMState(*(0 * part for part in encode(model, source))))


MUTATIONS = [
    Mutation("a GRU's update gate is inverted", invert_the_gate,
             ("a_gru_unrolls_with_the_later_gates", "a_gru_is_a_weighted_sum_of_its_candidates",
              "freed_weights_and_candidates_are_attention", "a_decoder_step_equals_its_formula")),
    Mutation("an LSTM forgets its cell", forget_the_cell, ("gradients_vanish_or_explode_over_time",)),
    Mutation("a backward GRU starts in the padding", read_the_padding, ("encoder_states_join_both_directions",)),
    Mutation("seq2seq does not reverse the source", read_in_order, ("the_state_forgets_what_it_read_first",)),
    Mutation("a recurrent decoder ignores the context", ignore_the_context,
             ("a_decoder_step_equals_its_formula", "errors_reach_every_weight_through_attention",
              "a_decoder_step_is_attend_update_predict")),
    Mutation("no gradient flows from attention to the source", detach_the_source,
             ("errors_reach_every_weight_through_attention",)),
    Mutation("additive scores are zero", attend_evenly, ("a_decoder_step_equals_its_formula",)),
    Mutation("attention ignores the padding mask", attend_with(mask=None), ("the_map_has_the_weight_of_each_source_word",)),
    Mutation("contexts are zero", mix_nothing,
             ("the_decoder_sees_one_state_of_fixed_size", "attention_reaches_every_word_of_a_long_sentence")),
    Mutation("a recurrent decoder sees only the last state", keep_only_the_last_state,
             ("the_decoder_sees_one_state_of_fixed_size",)),
    Mutation("causal attention sees the future", attend_with(causal=False),
             ("freed_weights_and_candidates_are_attention", "separate_keys_values_and_heads_are_the_transformers_attention")),
    Mutation("self-attention computes one query after the other", compute_one_query_at_a_time,
             ("recurrence_takes_one_call_after_the_other",)),
    Mutation("seq2seq's decoder starts from zeros", forget_the_source,
             ("a_narrow_state_holds_fewer_letters", "sentences_of_30_words_lose_words"), slow=True),
    Mutation("additive scores are zero in training", attend_evenly,
             ("trained_attention_finds_the_letter_that_is_written", "attention_copies_long_texts"), slow=True),
    Mutation("self-attention sees only neighbours", attend_to_neighbours,
             ("recurrent_layers_do_not_learn_to_recall_a_distant_word",), slow=True),
]  # fmt: skip
