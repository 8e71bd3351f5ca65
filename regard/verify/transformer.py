"""The Transformer of 2017: layers, stacks, sizes, masks, training with teacher forcing.

Shapes: B batch, S source and T target length, D width, V vocabulary, Q queries, K keys.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.text.batches import PairBatch, pad
from regard.data.text.tokenizer import BOS, EOS, PAD, train_tokenizer
from regard.data.text.toys import toy_pairs
from regard.decode import search
from regard.decode.fast import decoder
from regard.layers.attention import Attention, attend
from regard.layers.block import DecoderBlock, EncoderBlock
from regard.layers.masks import causal_mask
from regard.layers.tap import ablate, attention_modules, record_calls, watch, without_positions
from regard.models.gpt import GPT, GPTConfig
from regard.models.transformer import SIZES, Transformer, TransformerConfig
from regard.tasks.load import load
from regard.tasks.loss import linear_cross_entropy
from regard.tasks.translation import sequence_loss
from regard.verify.claim import Finding, at_least, at_most, between, claim, close, equals, refutes
from regard.verify.plots import Curves, Heatmap
from regard.view.cost import cost

__all__: list[str] = []

VOCAB = 50
TABLE = torch.tensor([  # attention weights of YOUR CAT IS A LOVELY CAT, as the notes print them
    [0.268, 0.119, 0.134, 0.148, 0.179, 0.152], [0.124, 0.278, 0.201, 0.128, 0.154, 0.115],
    [0.147, 0.132, 0.262, 0.097, 0.218, 0.145], [0.210, 0.128, 0.206, 0.212, 0.119, 0.125],
    [0.146, 0.158, 0.152, 0.143, 0.227, 0.174], [0.195, 0.114, 0.203, 0.103, 0.157, 0.229],
])  # fmt: skip


def small(**changes: Any) -> Transformer:
    """A small Transformer with random weights, without dropout."""
    return Transformer(replace(TransformerConfig(VOCAB, 64, 2, 4), **changes)).eval()


def random_tokens(length: int, batch: int = 1) -> Tensor:
    """Tokens that are not special: (B, T)."""
    return torch.randint(4, VOCAB, (batch, length))


@claim(34, "001", "Every decoder layer attends to the output of the last encoder layer, not to the encoder layer of the same height.")
def every_decoder_layer_reads_the_last_encoder_layer() -> Iterator[Finding]:
    model, outputs = small(depth=6, norm="post"), list[Tensor]()  # without a norm after the last layer
    for block in model.encoder:
        block.register_forward_hook(lambda *call: outputs.append(call[2]))
    with ExitStack() as stack:
        calls = [stack.enter_context(record_calls(model, f"decoder.{layer}.cross")) for layer in range(6)]
        model(random_tokens(8), random_tokens(8))
    read = [call.memory for [call] in calls if call.memory is not None]
    differences = torch.tensor([[(memory - output).abs().max() for output in outputs] for memory in read])
    yield equals("encoder layer that decoder layers 1 to 6 read", (differences.argmin(1) + 1).tolist(), [6] * 6)
    yield at_most("largest difference from the output of the last encoder layer", differences[:, -1].max().item(), 0)
    yield at_least("smallest difference from that of an earlier one", differences[:, :-1].min().item(), 0.1)
    names = [str(layer) for layer in range(1, 7)]
    yield Heatmap("What a decoder layer reads minus an encoder layer's output", "encoder layer", "decoder layer", differences, names,
                  names)  # fmt: skip


@claim(50, "001 002", "The feed-forward network is max(0, xW₁ + b₁)W₂ + b₂, from 512 to 2048 and back: (3 × 512)(512 × 2048) is 3 × 2048.")
def feed_forward_is_two_linear_layers_and_a_relu() -> Iterator[Finding]:
    mlp = Transformer(replace(SIZES["base"], vocab=VOCAB, depth=1)).encoder[0].mlp
    for layer in (mlp.up, mlp.down):
        nn.init.normal_(layer.bias)  # zero before training
    w1, w2 = mlp.up.weight.T, mlp.down.weight.T
    x = torch.randn(3, len(w1))
    inside = x @ w1 + mlp.up.bias
    yield equals("shapes of W₁ and W₂", [tuple(w1.shape), tuple(w2.shape)], [(512, 2048), (2048, 512)])
    yield equals("shape inside, for 3 tokens", tuple(inside.shape), (3, 2048))
    yield close("our network, 3 × 512", mlp(x), inside.clamp(min=0) @ w2 + mlp.down.bias, within=1e-4)


@claim(50, "001 004", "The feed-forward network is applied to each position separately and identically.")
def feed_forward_treats_each_position_alone() -> Iterator[Finding]:
    mlp, x = small().encoder[0].mlp, torch.randn(1, 6, 64)
    changed = x.clone()
    changed[:, 2] += 1
    change = (mlp(changed) - mlp(x)).abs().amax((0, 2))
    yield equals("positions that change with position 3", (change.nonzero()[:, 0] + 1).tolist(), [3])
    yield close("six positions together and one by one", mlp(x)[0], torch.cat([mlp(token[None]) for token in x[0]]), within=1e-5)
    order = torch.randperm(6)
    yield close("positions in another order", mlp(x[:, order]), mlp(x)[:, order], within=1e-5)


@claim(51, "001 002", "A stack has N layers of the same design with weights of their own: clones() must not leave them equal.")
def layers_of_a_stack_have_their_own_weights() -> Iterator[Finding]:
    model = small(depth=6)
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        layers = [dict(block.named_parameters()) for block in stack]
        places = {weight.data_ptr() for layer in layers for weight in layer.values()}
        yield equals(f"{name}: tensors of 6 layers, none shared", len(places), 6 * len(layers[0]))
        matrices = [weight.flatten() for weight in layers[0] if False] or [
            torch.cat([weight.flatten() for weight in layer.values() if weight.ndim == 2]) for layer in layers
        ]
        correlation = torch.corrcoef(torch.stack(matrices)).fill_diagonal_(0)
        yield at_most(f"{name}: largest correlation of two layers' first weights", correlation.abs().max().item(), 0.05)
