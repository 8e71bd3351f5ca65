"""The fast path of decoding: layers become plain functions with their weights bound, and keys and values are cached.

One decoding step is so short that calling modules and looking up their weights takes a measurable part of it.
`step_function` turns a layer into a function, `decoder` a model into an object with `start` and `step`.

Shapes: B sentences, W beams, R = B · W rows, S source or prompt length, K keys, D width, H heads, V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, singledispatch
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.decode.packed import packed_linear
from regard.decode.step import Decoder
from regard.layers.attention import Attention
from regard.layers.biases import BucketedPositionBias
from regard.layers.block import DecoderBlock, EncoderBlock
from regard.layers.cache import BeamCache, Cache, KeysValues, pad_caches
from regard.layers.embed import Embed
from regard.layers.linear import REDUCE_RANGE, Int8Linear
from regard.layers.mlp import MLP, GatedMLP
from regard.layers.norm import PostNorm, PreNorm, ResPostNorm
from regard.layers.positions import LearnedPositions
from regard.layers.shapes import join_rows, split_rows, stack_rows
from regard.models.caption_transformer import CaptionTransformer
from regard.models.conformer import Conformer, Utterances
from regard.models.gpt import GPT
from regard.models.image_gpt import ImageGPT
from regard.models.t5 import T5
from regard.models.transformer import Transformer

__all__ = ["CachedDecoder", "DecoderFunctions", "DecoderState", "Prompts", "column_major", "decoder", "read_memory",
           "step_function"]  # fmt: skip


class StepInputs(NamedTuple):
    """The inputs of one step that all blocks share."""

    beams: int
    bias: Tensor | None  # (B, H or 1, W, K): of the self-attention: position bias, and -inf for the keys of other beams; None = 0
    memory_mask: Tensor | None  # (B, 1, 1, S): real tokens of the source; None = all


Function = Callable[[Tensor], Tensor]
Residual = Callable[[Tensor, Function], Tensor]  # (x, sub-layer) → the sub-layer in its residual and norm
BlockFunction = Callable[[Tensor, Cache, StepInputs, KeysValues | None], tuple[Tensor, Cache]]  # x (R, D) → x and cache


# Layers → functions


@singledispatch
def step_function(layer: nn.Module, start: int = 0, stop: int | None = None) -> Callable[..., Any]:
    """The layer as a function of one token of each row, without dropout; of a linear layer, outputs `start` to `stop` - 1."""
    raise TypeError(f"{type(layer).__name__} has no step function; register one with `step_function.register`")


@step_function.register(nn.Linear)
def _(layer: nn.Linear, start: int = 0, stop: int | None = None) -> Function:
    if (packed := packed_linear(layer, start, stop)) is not None:
        return packed
    return partial(F.linear, weight=layer.weight[start:stop], bias=None if layer.bias is None else layer.bias[start:stop])


@step_function.register(Int8Linear)
def _(layer: Int8Linear, start: int = 0, stop: int | None = None) -> Function:
    return partial(torch.ops.quantized.linear_dynamic.default, W_prepack=layer.prepack(start, stop), reduce_range=REDUCE_RANGE)


@step_function.register(nn.Identity)
def _(layer: nn.Identity) -> Function:
    return lambda x: x


@step_function.register(nn.LayerNorm)
def _(norm: nn.LayerNorm) -> Function:
    return partial(
        torch.layer_norm, normalized_shape=list(norm.normalized_shape), weight=norm.weight, bias=norm.bias, eps=norm.eps
    )


@step_function.register(nn.RMSNorm)
def _(norm: nn.RMSNorm) -> Function:
    return partial(torch.rms_norm, normalized_shape=list(norm.normalized_shape), weight=norm.weight, eps=norm.eps)


@step_function.register(PreNorm)
def _(layer: PreNorm) -> Residual:
    norm = step_function(layer.norm)
    return lambda x, f: x + f(norm(x))


@step_function.register(PostNorm)
def _(layer: PostNorm) -> Residual:
    norm = step_function(layer.norm)
    return lambda x, f: norm(x + f(x))


@step_function.register(ResPostNorm)
def _(layer: ResPostNorm) -> Residual:
    norm = step_function(layer.norm)
    return lambda x, f: x + norm(f(x))


@step_function.register(MLP)
def _(mlp: MLP) -> Function:
    up, activation, down = step_function(mlp.up), mlp.activation, step_function(mlp.down)
    return lambda x: down(activation(up(x)))


@step_function.register(GatedMLP)
def _(mlp: GatedMLP) -> Function:
    up, activation, down = step_function(mlp.up), mlp.activation, step_function(mlp.down)

    def gated(x: Tensor) -> Tensor:
        gate, value = up(x).chunk(2, -1)
        return down(activation(gate) * value)

    return gated


@step_function.register(nn.Embedding)
def _(table: nn.Embedding) -> Callable[[Tensor, int | Tensor], Tensor]:
    """Ids (R,), at any position → (R, D)."""
    weight = table.weight
    return lambda ids, position: weight.index_select(0, ids)


@step_function.register(Embed)
def _(embed: Embed) -> Callable[[Tensor, int | Tensor], Tensor]:
    """Ids (R,), all at one position, or each at its own (R,) → (R, D)."""
    table, scale, positions = embed.tokens.weight, embed.scale, embed.positions.forward
    last = len(embed.positions.table) - 1 if isinstance(embed.positions, LearnedPositions) else None

    def step(ids: Tensor, position: int | Tensor) -> Tensor:
        x = table.index_select(0, ids).mul_(scale)
        if isinstance(position, int):
            return x.add_(positions(position, position + 1))
        position = position.clamp(max=last)  # a row that is done may be past the context until it leaves the batch
        return x.add_(positions(0, int(position.max()) + 1).index_select(0, position))

    return step


@step_function.register(BucketedPositionBias)
def _(bias: BucketedPositionBias) -> Callable[[Tensor, Tensor], Tensor]:
    return bias.forward


def _merge(attn: Attention) -> Function:
    """`Attention.merge` for one token of each beam: (B, H, W, E) → (R, D)."""
    out = step_function(attn.out)
    return lambda mixed: out(join_rows(mixed))


def _self_attention(block: EncoderBlock | DecoderBlock) -> Callable[[Tensor, Cache, StepInputs], tuple[Tensor, Cache]]:
    """Self-attention of a block in its residual: the new token of each beam attends to the cache and itself."""
    attn, residual = block.attn, step_function(block.attn_residual)
    qkv, merge = step_function(attn.qkv), _merge(attn)

    def step(x: Tensor, cache: Cache, inputs: StepInputs) -> tuple[Tensor, Cache]:
        def project(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            nonlocal cache
            parts = stack_rows(qkv(h), inputs.beams, attn.heads, 3)  # (3, B, H, W, E)
            cache = cache.add(parts[1:])
            return parts[0], *cache.all()

        x = residual(x, lambda h: attn.mix(h, project, merge, bias=inputs.bias))
        return x, cache

    return step


@step_function.register(EncoderBlock)
def _(block: EncoderBlock) -> BlockFunction:
    attention = _self_attention(block)
    mlp, mlp_residual = step_function(block.mlp), step_function(block.mlp_residual)

    def step(x: Tensor, cache: Cache, inputs: StepInputs, memory: KeysValues | None) -> tuple[Tensor, Cache]:
        x, cache = attention(x, cache, inputs)
        return mlp_residual(x, mlp), cache

    return step


@step_function.register(DecoderBlock)
def _(block: DecoderBlock) -> BlockFunction:
    attention, cross, cross_residual = _self_attention(block), block.cross, step_function(block.cross_residual)
    query, merge = step_function(cross.qkv, 0, cross.inner), _merge(cross)
    mlp, mlp_residual = step_function(block.mlp), step_function(block.mlp_residual)

    def step(x: Tensor, cache: Cache, inputs: StepInputs, memory: KeysValues | None) -> tuple[Tensor, Cache]:
        def project(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            assert memory is not None
            return split_rows(query(h), inputs.beams, cross.heads), *memory  # (B, H, W, E), (B, H, S, E) twice

        x, cache = attention(x, cache, inputs)
        x = cross_residual(x, lambda h: cross.mix(h, project, merge, mask=inputs.memory_mask))
        return mlp_residual(x, mlp), cache

    return step


# Models → decoders


class DecoderFunctions(NamedTuple):
    """A decoder as plain functions with their weights bound."""

    embed: Callable[[Tensor, int | Tensor], Tensor]  # ids (R,), position of all or of each (R,) → (R, D)
    blocks: tuple[BlockFunction, ...]
    norm: Function
    output: Function  # (R, D) → (R, V)
    position_bias: Callable[[Tensor, Tensor], Tensor] | None = None  # positions (Q,), (K,) → (1, H, Q, K)


class DecoderState(NamedTuple):
    """What decoding carries from step to step, for B sentences with W beams each."""

    cache: BeamCache
    memory: tuple[KeysValues | None, ...]  # the source, projected once for each block; None = no source
    memory_mask: Tensor | None = None  # (B, 1, 1, S): real tokens of the source; None = all
    key_positions: Tensor | None = None  # (K,): the position of each cached key, if there is a position bias

    def reorder(self, rows: Tensor) -> "DecoderState":
        """Select rows: (R,), or (B, W) with the beams of one sentence in each line."""
        memory, mask = self.memory, self.memory_mask
        cache, sentence = self.cache.reorder(rows)
        if sentence is not None:
            memory = tuple(kv and KeysValues(*(x.index_select(0, sentence) for x in kv)) for kv in memory)
            mask = None if mask is None else mask.index_select(0, sentence)
        return DecoderState(cache, memory, mask, self.key_positions)


@dataclass
class CachedDecoder:
    """The `Decoder` of a stack of blocks.  A step calls no modules, so no hooks; `watch` receives attention weights."""

    functions: DecoderFunctions
    start: Callable[[Any], DecoderState]  # reads the source or prompt (B, S), the images, or the utterances

    def step(self, token: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """The last token (R,) and the state before it → logits (R, V) of the next one and the state after it."""
        functions, (cache, memory, memory_mask, positions) = self.functions, state
        mask, bias = cache.next_mask, None
        if functions.position_bias is not None and positions is not None:
            positions = torch.cat((positions, positions.new_full((cache.beams,), cache.position)))
            bias = functions.position_bias(positions[-1:], positions)  # (1, H, 1, K)
        x = functions.embed(token, cache.next_positions)  # (R, D)
        if mask is not None:  # one bias for all blocks: attention would turn the mask into one in each
            bias = torch.where(mask, x.new_zeros(()) if bias is None else bias, -math.inf)  # (B, H or 1, W, K)
        inputs, caches = StepInputs(cache.beams, bias, memory_mask), []
        for block, block_cache, block_memory in zip(functions.blocks, cache.blocks, memory, strict=True):
            x, longer = block(x, block_cache, inputs, block_memory)
            caches.append(longer)
        cache = BeamCache(tuple(caches), cache.sentences, mask, cache.beams, cache.position + 1, cache.padding)
        return functions.output(functions.norm(x)), DecoderState(cache, memory, memory_mask, positions)


@singledispatch
def decoder(model: nn.Module | Decoder) -> Decoder:
    """An object with `start` and `step` for a model; a model that has both is returned as it is."""
    if not isinstance(model, Decoder):
        raise TypeError(f"{type(model).__name__} does not decode; use a Transformer, T5 or GPT, or add start and step")
    return model


@decoder.register(Transformer)
def _(model: Transformer) -> Decoder:
    blocks = tuple(step_function(block) for block in model.decoder)
    norm, output = step_function(model.decoder_norm), step_function(model.output)
    functions = DecoderFunctions(step_function(model.embed_target), blocks, norm, output)
    return CachedDecoder(functions, partial(_read_source, model))


@decoder.register(CaptionTransformer)
def _(model: CaptionTransformer) -> Decoder:
    blocks = tuple(step_function(block) for block in model.decoder)
    norm, output = step_function(model.decoder_norm), step_function(model.output)
    return CachedDecoder(DecoderFunctions(step_function(model.embed), blocks, norm, output), partial(_read_image, model))


@decoder.register(T5)
def _(model: T5) -> Decoder:
    blocks = tuple(step_function(block) for block in model.decoder)
    norm, output, scale = step_function(model.decoder_norm), step_function(model.output), model.output_scale
    embed, bias = step_function(model.tokens), step_function(model.decoder_bias)
    functions = DecoderFunctions(embed, blocks, lambda x: norm(x) * scale, output, bias)
    return CachedDecoder(functions, partial(_read_source, model))


@decoder.register(GPT)
def _(model: GPT) -> Decoder:
    blocks = tuple(step_function(block) for block in model.blocks)
    norm, output = step_function(model.final_norm), step_function(model.output)
    return CachedDecoder(DecoderFunctions(step_function(model.embed), blocks, norm, output), partial(_prefill, model))


@decoder.register(ImageGPT)
def _(model: ImageGPT) -> Decoder:
    return decoder(model.gpt)


@decoder.register(Conformer)
def _(model: Conformer) -> Decoder:
    if not model.config.decoder_depth:
        raise ValueError("the model has no attention decoder (decoder_depth 0); decode with CTC")
    blocks = tuple(step_function(block) for block in model.decoder)
    norm, output = step_function(model.decoder_norm), step_function(model.output)
    functions = DecoderFunctions(step_function(model.embed_target), blocks, norm, output)
    return CachedDecoder(functions, partial(_read_utterances, model))


def _read_source(model: Transformer | T5, source: Tensor) -> DecoderState:
    """Encode the source (B, S)."""
    return read_memory(model, *model.encode(source))


def _read_utterances(model: Conformer, source: Utterances) -> DecoderState:
    """Encode frames (B, F, C)."""
    return read_memory(model, *model.encode(source.frames, source.lengths))


def read_memory(model: Transformer | T5 | Conformer, memory: Tensor, mask: Tensor) -> DecoderState:
    """Project the encoded source (B, S, D) for each block's cross-attention, once; `mask` (B, 1, 1, S) is that of real tokens."""
    projected = tuple(block.cross.keys_values(memory) for block in model.decoder)
    cache = BeamCache(tuple(Cache() for _ in model.decoder), len(memory))
    needed = None if mask.all() else mask  # a step without a mask is faster
    return DecoderState(cache, projected, needed, torch.empty(0, dtype=torch.long, device=memory.device))


def _read_image(model: CaptionTransformer, image: Tensor) -> DecoderState:
    """Encode images (B, C, height, width) and project each for each block's cross-attention, once."""
    memory = model.encode(image)
    projected = tuple(block.cross.keys_values(memory) for block in model.decoder)
    return DecoderState(BeamCache(tuple(Cache() for _ in model.decoder), len(image)), projected)


@dataclass(frozen=True, eq=False)
class Prompts:
    """Prompts of different lengths that are continued together: token ids (1, S) of each."""

    ids: Sequence[Tensor]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def device(self) -> torch.device:
        """Where the search runs."""
        return self.ids[0].device


def _prefill(model: GPT, prompt: Tensor | Prompts) -> DecoderState:
    """Read all tokens of the prompt (B, S) but the last, at once; the first step reads that one.

    Prompts of different lengths are read one after the other, which costs little as each is many tokens at once, and padded
    on the left: the last tokens of all are in one column, where the next are added.
    """
    depth = len(model.blocks)
    if isinstance(prompt, Prompts):
        caches = [_prefill(model, ids).cache for ids in prompt.ids]
        longest = max(cache.position for cache in caches)
        blocks = tuple(pad_caches([cache.blocks[n] for cache in caches]) for n in range(depth))
        padding = torch.tensor([longest - cache.position for cache in caches], device=prompt.device)
        if not padding.any():  # a step without a mask is faster
            return DecoderState(BeamCache(blocks, len(prompt), position=longest), (None,) * depth)
        mask = torch.arange(longest, device=prompt.device) >= padding[:, None]  # (B, K)
        return DecoderState(BeamCache(blocks, len(prompt), mask[:, None, None], 1, longest, padding), (None,) * depth)
    if prompt.shape[1] < 2:
        return DecoderState(BeamCache(tuple(Cache() for _ in range(depth)), len(prompt)), (None,) * depth)
    x, filled = model.embed(prompt[:, :-1]), []  # (B, S - 1, D)
    for block in model.blocks:
        x, cache = _prefill_block(block, x)
        filled.append(cache)
    return DecoderState(BeamCache(tuple(filled), len(prompt), position=x.shape[1]), (None,) * depth)


def _prefill_block(block: EncoderBlock, x: Tensor) -> tuple[Tensor, Cache]:
    """`EncoderBlock.forward`, which also caches keys and values."""
    cache = Cache()

    def project(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        nonlocal cache
        q, k, v = block.attn.project(h)
        cache = cache.add(torch.stack((k, v)))
        return q, k, v

    x = block.attn_residual(x, lambda h: block.attn.mix(h, project, block.attn.merge, causal=block.causal))
    return block.mlp_residual(x, block.mlp), cache


def column_major(model: nn.Module) -> nn.Module:
    """Store the weights of every linear layer column by column, in place: for decoding on a CPU, not for training.

    The values stay the same; a product of few rows reads them up to twice as fast.  An embedding tied to the output layer
    keeps its own row-major table.
    """
    for part in model.modules():
        if isinstance(part, nn.Linear):
            part.weight = nn.Parameter(part.weight.detach().t().contiguous().t())
    return model.requires_grad_(False)
