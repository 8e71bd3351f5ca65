"""Mutations of the Transformer's stacks, masks, loss and output layer."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from mutation import Mutation, attend_with, replace_everywhere
from torch import Tensor, nn

from regard.data.text import tokenizer
from regard.data.text.batches import PairBatch
from regard.decode import fast, search, topk
from regard.layers.attention import attend
from regard.layers.block import DecoderBlock
from regard.layers.embed import Embed
from regard.layers.masks import causal_mask, padding_mask
from regard.layers.mlp import ACTIVATIONS, MLP
from regard.layers.norm import PostNorm, PreNorm
from regard.models.transformer import Transformer
from regard.models.vit import Patches
from regard.tasks.loss import linear_cross_entropy
from regard.tasks.translation import sequence_loss


def read_layer_by_layer(patch: pytest.MonkeyPatch) -> None:
    def features(self: Transformer, source: Tensor, target: Tensor) -> Tensor:
        mask, memory, x = padding_mask(source, self.config.pad), self.embed_source(source), self.embed_target(target)
        for encoder, block in zip(self.encoder, self.decoder, strict=True):
            memory = encoder(memory, mask)
            x = block(x, block.cross.keys_values(memory), mask)
        return self.decoder_norm(x)

    patch.setattr(Transformer, "features", features)


def mix_positions_in_the_mlp(patch: pytest.MonkeyPatch) -> None:
    forward = MLP.forward

    def mixed(self: MLP, x: Tensor) -> Tensor:
        return forward(self, x + x.cumsum(-2))

    patch.setattr(MLP, "forward", mixed)


def share_layers(patch: pytest.MonkeyPatch) -> None:
    build = Transformer.__init__

    def shared(self: Transformer, config: Any) -> None:
        build(self, config)
        for stack in ("encoder", "decoder"):
            layers = getattr(self, stack)
            setattr(self, stack, nn.ModuleList([layers[0]] * len(layers)))

    patch.setattr(Transformer, "__init__", shared)


def initialize_as_normal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nn.init, "xavier_uniform_", lambda weight: nn.init.normal_(weight, std=0.02))


def remove_residuals(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PreNorm, "forward", lambda self, x, f: self.dropout(f(self.norm(x))))
    patch.setattr(PostNorm, "forward", lambda self, x, f: self.norm(f(x)))


def halve_normalizer(patch: pytest.MonkeyPatch) -> None:
    replace_everywhere(patch, topk.blocked_logsumexp, lambda logits: logits.logsumexp(-1) / 2)


def cut_vocabulary(patch: pytest.MonkeyPatch) -> None:
    train = tokenizer.train_tokenizer

    def changed(lines: Sequence[str], kind: str, vocab: int, extra: Sequence[str] = ()) -> tokenizer.Tokenizer:
        return train([line.split()[0] for line in lines], kind, vocab, extra)

    replace_everywhere(patch, train, changed)


def shift_causal_mask(patch: pytest.MonkeyPatch) -> None:
    def shifted(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
        return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries + 1)

    replace_everywhere(patch, causal_mask, shifted)


def mask_after_softmax(patch: pytest.MonkeyPatch) -> None:
    def changed(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, causal: bool = False,
                **options: Any) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        _, weights = attend(q, k, v, **{**options, "need_weights": True})
        assert weights is not None
        allowed = causal_mask(q.shape[-2], k.shape[-2]) if causal else torch.ones((), dtype=torch.bool)
        weights = weights * (allowed if mask is None else allowed & mask)
        return weights @ v, weights

    replace_everywhere(patch, attend, changed)


def mask_by_a_large_number(patch: pytest.MonkeyPatch) -> None:
    def changed(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
        return attend(q, k, v, bias=torch.zeros(mask.shape).masked_fill(~mask, -1e9), **options)

    replace_everywhere(patch, attend, changed)


def return_dropped_weights(patch: pytest.MonkeyPatch) -> None:
    def changed(q: Tensor, k: Tensor, v: Tensor, *, dropout: float = 0.0, **options: Any) -> tuple[Tensor, Tensor | None]:
        mixed, weights = attend(q, k, v, dropout=0.0, **options)
        if weights is None:
            return mixed, None
        weights = F.dropout(weights, dropout)
        return weights @ v, weights

    replace_everywhere(patch, attend, changed)


def forget_tokens(patch: pytest.MonkeyPatch) -> None:
    step = fast.CachedDecoder.step

    def forgetful(self: fast.CachedDecoder, token: Tensor, state: fast.DecoderState) -> tuple[Tensor, fast.DecoderState]:
        logits, after = step(self, token, state)
        return logits, after._replace(cache=state.cache)  # keys and values of the token are not kept

    patch.setattr(fast.CachedDecoder, "step", forgetful)


def count_padding(patch: pytest.MonkeyPatch) -> None:
    def changed(model: Any, batch: PairBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
        inputs, targets = batch.target[:, :-1], batch.target[:, 1:]
        features = model.features(batch.source, inputs).flatten(0, 1)
        return linear_cross_entropy(features, model.output.weight, model.output.bias, targets.flatten(), label_smoothing)

    replace_everywhere(patch, sequence_loss, changed)


def do_not_shift(patch: pytest.MonkeyPatch) -> None:
    def changed(model: Any, batch: PairBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
        targets = batch.target[:, 1:]
        real = targets != batch.pad
        features = model.features(batch.source, targets)[real]
        return linear_cross_entropy(features, model.output.weight, model.output.bias, targets[real], label_smoothing)

    replace_everywhere(patch, sequence_loss, changed)


def cross_attention_first(patch: pytest.MonkeyPatch) -> None:
    def forward(self: DecoderBlock, x: Tensor, memory: Any, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        x = self.cross_residual(x, lambda h: self.cross(h, memory, mask=mask))
        x = self.attn_residual(x, lambda h: self.attn(h, bias=bias, causal=True))
        return self.mlp_residual(x, self.mlp)

    patch.setattr(DecoderBlock, "forward", forward)


def forget_positions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Embed, "forward", lambda self, ids, start=0: self.dropout(self.tokens(ids) * self.scale))


def choose_least(patch: pytest.MonkeyPatch) -> None:
    replace_everywhere(patch, search.argmax, lambda logits: logits.argmin(-1))


def read_one_channel(patch: pytest.MonkeyPatch) -> None:
    build = Patches.__init__

    def one_channel(self: Patches, config: Any) -> None:
        build(self, config)
        self.features //= config.channels

    patch.setattr(Patches, "__init__", one_channel)


def see_padding(patch: pytest.MonkeyPatch) -> None:
    replace_everywhere(patch, padding_mask, lambda tokens, pad: torch.ones_like(tokens, dtype=torch.bool)[:, None, None])


MUTATIONS = [
    Mutation("decoder layer n reads encoder layer n", read_layer_by_layer,
             ("every_decoder_layer_reads_the_last_encoder_layer", "stacks_equal_those_of_torch")),
    Mutation("the feed-forward network has a gelu", lambda patch: patch.setitem(ACTIVATIONS, "relu", F.gelu),
             ("feed_forward_is_two_linear_layers_and_a_relu", "stacks_equal_those_of_torch")),
    Mutation("the feed-forward network mixes positions", mix_positions_in_the_mlp,
             ("feed_forward_treats_each_position_alone",)),
    Mutation("the layers of a stack share their weights", share_layers,
             ("layers_of_a_stack_have_their_own_weights", "base_model_has_the_parameters_of_the_formula")),
    Mutation("matrices are initialized by N(0, 0.02)", initialize_as_normal, ("matrices_are_initialized_by_xavier",)),
    Mutation("no residual connections", remove_residuals,
             ("stacks_equal_those_of_torch", "how_are_you_goes_through_a_block_step_by_step")),
    Mutation("no positions are added to the tokens", forget_positions, ("how_are_you_goes_through_a_block_step_by_step",)),
    Mutation("log-probabilities are not normalized", halve_normalizer, ("generator_is_a_linear_layer_and_a_log_softmax",)),
    Mutation("a vocabulary has the first word of each sentence", cut_vocabulary, ("output_layer_has_a_neuron_for_each_word",)),
    Mutation("no causal mask", attend_with(causal=False),
             ("logits_have_no_gradient_to_later_tokens", "masked_table_has_the_weights_of_a_softmax_over_the_past",
              "without_the_mask_training_leaks_the_answer")),
    Mutation("the causal mask is shifted by one", shift_causal_mask,
             ("causal_mask_is_a_lower_triangle", "masked_table_has_the_weights_of_a_softmax_over_the_past")),
    Mutation("masked weights are set to zero after the softmax", mask_after_softmax,
             ("masked_table_has_the_weights_of_a_softmax_over_the_past",)),
    Mutation("masked scores are -1e9", mask_by_a_large_number, ("masked_keys_get_no_weight_in_any_row_and_precision",)),
    Mutation("weights are returned after dropout", return_dropped_weights, ("weights_are_returned_before_dropout",)),
    Mutation("a decoding step forgets the token it read", forget_tokens, ("one_pass_gives_the_loss_of_all_steps",)),
    Mutation("the decoder reads the token it has to predict", do_not_shift, ("decoder_input_is_the_target_shifted_right",)),
    Mutation("padding is a target", count_padding, ("loss_is_the_cross_entropy_of_real_tokens",)),
    Mutation("padding is not masked", see_padding, ("source_and_target_have_lengths_of_their_own",)),
    Mutation("greedy search takes the least likely token", choose_least, ("logits_have_a_score_for_each_position_and_token",)),
    Mutation("cross-attention comes before self-attention", cross_attention_first, ("modules_run_in_the_order_of_the_figures",)),
    Mutation("patches have one channel", read_one_channel, ("vit_base_projects_768_numbers_to_768",)),
]  # fmt: skip
