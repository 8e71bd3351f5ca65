"""The Conformer: attention and convolution over the frames of speech, read out by CTC, by a decoder, or by both.

Gulati et al. 2020, https://arxiv.org/abs/2005.08100, Figure 1

       CTC logits          logits
           │ ctc             │ output
           │        ┌────────┴────────┐
      ┌────┴────┐   │ mlp             │
      │ norm    │   │ cross-attention │ × decoder_depth
      │ ½ mlp   ├──▶│ causal attention│
      │ conv    │   └────────┬────────┘
      │ attn    │          embed
      │ ½ mlp   │ × depth    │
      └────┬────┘      target so far
       subsample
           │
         frames

CTC: Graves et al. 2006; both at once: Watanabe et al. 2017, https://arxiv.org/abs/1609.06773.

Shapes: B batch, F frames, C features of a frame, S frames after subsampling, T target length, D width, H heads, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass as plain_dataclass
from functools import partial
from typing import Literal, cast

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, Family, check_model, require_divisible
from regard.data.text.tokenizer import PAD
from regard.layers.attention import Attention, attend_tapped
from regard.layers.biases import SinusoidalPositionBias
from regard.layers.block import DecoderBlock
from regard.layers.dropout import Dropout
from regard.layers.embed import Embed, token_table
from regard.layers.linear import Linear
from regard.layers.masks import length_mask
from regard.layers.mlp import MLP
from regard.layers.norm import PreNorm
from regard.layers.positions import SinusoidalDistances, SinusoidalPositions
from regard.layers.shapes import to_channels_last, to_frames, to_tokens
from regard.layers.tap import tap_of

__all__ = ["FAMILY", "SIZES", "Conformer", "ConformerConfig", "Utterances"]

STRIDES = {1: (1, 1), 2: (2, 1), 4: (2, 2)}  # in time, of the two convolutions before the encoder


@dataclass(frozen=True, config=STRICT)
class ConformerConfig:
    """The defaults are Conformer (L), Table 1 of the paper, with CTC instead of its transducer."""

    features: int = 80  # of a frame, such as log-mel channels
    vocab: int = 1000
    dim: int = 512
    depth: int = 17  # blocks of the encoder
    heads: int = 8
    mlp_ratio: int = 4  # width of each mlp, as a multiple of dim
    kernel: int = 31  # frames of the convolution module; the paper's 32 has no middle
    subsample: Literal[1, 2, 4] = 4  # frames that become one before the first block
    decoder_depth: int = 0  # blocks of the attention decoder; 0 = CTC alone
    ctc_weight: float = 1.0  # of the CTC loss: 1 = CTC alone, 0 = attention alone, 0.3 = joint
    dropout: float = 0.1  # after each sub-layer and inside each mlp
    attention_dropout: float = 0.0  # on the attention weights
    pad: int = PAD  # id of the padding token, which is also the blank of CTC

    def __post_init__(self) -> None:
        check_model(self, zero=("pad", "decoder_depth"), one=("ctc_weight",))
        require_divisible(self.dim, self.heads)
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel {self.kernel} has no middle; use an odd number such as {self.kernel - 1}")
        if self.ctc_weight < 1 and not self.decoder_depth:
            raise ValueError(f"ctc_weight {self.ctc_weight} needs an attention decoder; use decoder_depth=1 or more, "
                             f"or ctc_weight=1.0")  # fmt: skip
        if self.ctc_weight == 1 and self.decoder_depth:
            raise ValueError(f"ctc_weight 1.0 trains no decoder; use a smaller one such as 0.3 with decoder_depth "
                             f"{self.decoder_depth}, or decoder_depth=0")  # fmt: skip


SIZES = {  # s, m and l are the encoders of Table 1; tiny is for small data
    "tiny": ConformerConfig(dim=144, depth=4, heads=4, kernel=15),
    "s": ConformerConfig(dim=144, depth=16, heads=4), "m": ConformerConfig(dim=256, depth=16, heads=4), "l": ConformerConfig(),
}  # fmt: skip


@plain_dataclass(frozen=True)
class Utterances:
    """A batch of speech, the source of a decoder: frames (B, F, C), and how many of each row are real (B,)."""

    frames: Tensor
    lengths: Tensor

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def device(self) -> torch.device:
        """Of the frames."""
        return self.frames.device


class Subsample(nn.Module):
    """Two convolutions of 3 × 3 over time and frequency, section 2; each halves the frequencies, and may halve the time.

    Padding is set to zero before each, as outside of a recording, so that it changes nothing.
    """

    def __init__(self, features: int, dim: int, factor: int):
        super().__init__()
        first, second = STRIDES[factor]
        convs = nn.Conv2d(1, dim, 3, (first, 2), 1), nn.Conv2d(dim, dim, 3, (second, 2), 1)
        self.convs = cast(Sequence[nn.Conv2d], nn.ModuleList(convs))
        self.out = Linear(-(-features // 4) * dim, dim)

    def lengths(self, lengths: Tensor) -> Tensor:
        """Frames left of `lengths` frames: any shape → the same shape."""
        for conv in self.convs:
            lengths = -(-lengths // conv.stride[0])
        return lengths

    def forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """(B, F, C), of which the first `lengths` (B,) are real, or all → (B, S, D)."""
        if lengths is not None:
            x = x * length_mask(lengths, x.shape[1])[:, 0, 0, :, None]
        x = to_channels_last(x[..., None])  # (B, 1, F, C)
        for conv in self.convs:
            x = conv(x)  # (B, D, S, ⌈C / 2⌉), then (B, D, S, ⌈C / 4⌉)
            if lengths is not None:
                lengths = -(-lengths // conv.stride[0])
                x = x.mul_(length_mask(lengths, x.shape[2]).transpose(2, 3))  # in place: this is the largest tensor of all
            x = torch.relu_(x)
        return self.out(to_frames(x))  # (B, S, D)


class ConvolutionModule(nn.Module):
    """Figure 2: a gated linear unit, a convolution of each channel over time, batch norm, swish, a linear layer.

    Padding is set to zero before the convolution and left out of the statistics of the batch norm.  Channels are last in
    memory: torch's convolution of single channels is tens of times faster so on a CPU.
    """

    def __init__(self, dim: int, kernel: int):
        super().__init__()
        self.up, self.down = Linear(dim, 2 * dim, bias=False), Linear(dim, dim, bias=False)
        self.depthwise = nn.Conv2d(dim, dim, (1, kernel), padding=(0, kernel // 2), groups=dim, bias=False)
        self.norm = nn.BatchNorm1d(dim)
        self.norm.num_batches_tracked = None  # only a norm without momentum reads it

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """(B, S, D), of which the frames `real` (B, S) are not padding, or all → (B, S, D)."""
        x = F.glu(self.up(x))
        if real is not None:
            x = x.mul_(real[:, :, None])
        if not self.training:  # the norm is a scale and a shift, so the convolution applies it
            scale, shift = self._scale_and_shift()
            weight = self.depthwise.weight * scale[:, None, None, None]
            return self.down(F.silu(to_tokens(self._convolve(x, weight, shift)), inplace=True))
        x = to_tokens(self._convolve(x, self.depthwise.weight))
        if real is None:
            x = self.norm(x.flatten(0, 1)).view_as(x)
        else:
            x = torch.zeros_like(x).index_put((real,), self.norm(x[real]))
        return self.down(F.silu(x))

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """(B, S, D) → (B, D, 1, S)."""
        return F.conv2d(to_channels_last(x[:, None]), weight, bias, padding=self.depthwise.padding, groups=len(weight))

    def _scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """Of the batch norm in inference: (D,) each."""
        norm = self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        return scale, norm.bias - norm.running_mean * scale


class ConformerBlock(nn.Module):
    """x ─ ½ mlp ─ self-attention ─ convolution ─ ½ mlp ─ norm ─ out, each but the norm in a residual, norm first: Figure 1."""

    def __init__(self, c: ConformerConfig):
        super().__init__()
        mlp = partial(MLP, c.dim, c.mlp_ratio * c.dim, F.silu, dropout=c.dropout)
        wrap = partial(PreNorm, c.dim, c.dropout)
        self.mlp1, self.mlp1_residual = mlp(), wrap()
        self.attn, self.attn_residual = Attention(c.dim, c.heads, c.attention_dropout), wrap()
        self.position_bias = SinusoidalPositionBias(c.dim, c.heads)
        self.conv, self.conv_residual = ConvolutionModule(c.dim, c.kernel), wrap()
        self.mlp2, self.mlp2_residual = mlp(), wrap()
        self.norm = nn.LayerNorm(c.dim)

    def forward(self, x: Tensor, distances: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, S, D), the sinusoids of all distances (2S - 1, D) and a mask of real frames (B, 1, 1, S) → (B, S, D)."""
        real = None if mask is None else mask[:, 0, 0]  # (B, S)
        x = self.mlp1_residual(x, lambda h: 0.5 * self.mlp1(h))
        x = self.attn_residual(x, lambda h: self.attend(h, distances, mask))
        x = self.conv_residual(x, lambda h: self.conv(h, real))
        x = self.mlp2_residual(x, lambda h: 0.5 * self.mlp2(h))
        return self.norm(x)

    def attend(self, x: Tensor, distances: Tensor, mask: Tensor | None) -> Tensor:
        """Self-attention with relative positions, section 2.1: (B, S, D) → (B, S, D)."""
        attn, dropout = self.attn, self.attn.dropout if self.training else 0.0
        tap = tap_of(attn)
        q, k, v = attn.project(x)  # (B, H, S, E)
        q, bias = self.position_bias(q, distances)
        if mask is not None and tap is None and not torch.is_grad_enabled():  # `attend` would copy the bias, read only here
            bias, mask = bias.masked_fill_(~mask, -math.inf), None
        return attn.merge(attend_tapped(tap, q, k, v, bias=bias, mask=mask, dropout=dropout, x=x))


class Conformer(nn.Module):
    """Encoder, CTC layer and decoder, of which the weight of CTC decides whether both are there.

    `encode` reads frames.  `ctc_logits` gives a distribution for each encoded frame, for `decode.ctc`; `features` and `output`
    one for each next token, for teacher forcing; `decode.fast.decoder` decodes one token at a time.
    """

    def __init__(self, config: ConformerConfig):
        super().__init__()
        self.config = c = config
        self.max_len = math.inf  # tokens of the target
        self.subsample = Subsample(c.features, c.dim, c.subsample)
        self.dropout, self.distances = Dropout(c.dropout), SinusoidalDistances(c.dim)
        blocks = [ConformerBlock(c) for _ in range(c.depth)]
        self.encoder = cast(Sequence[ConformerBlock], nn.ModuleList(blocks))
        self.ctc = Linear(c.dim, c.vocab) if c.ctc_weight else None
        attention = partial(Attention, c.dim, c.heads, c.attention_dropout)
        decoder = [
            DecoderBlock(attention(), attention(), MLP(c.dim, c.mlp_ratio * c.dim), partial(PreNorm, c.dim, c.dropout))
            for _ in range(c.decoder_depth)
        ]
        if decoder:
            tokens = token_table(c.vocab, c.dim)
            self.embed_target = Embed(tokens, SinusoidalPositions(c.dim), c.dropout, scale=c.dim**0.5)
            self.decoder = cast(Sequence[DecoderBlock], nn.ModuleList(decoder))
            self.decoder_norm = nn.LayerNorm(c.dim)
            self.output = Linear(c.dim, c.vocab)

    def subsampled(self, lengths: Tensor) -> Tensor:
        """Encoded frames of recordings of `lengths` frames: (B,) → (B,)."""
        return self.subsample.lengths(lengths)

    def encode(self, frames: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Frames (B, F, C), of which the first `lengths` (B,) are real, or all → memory (B, S, D), and its mask (B, 1, 1, S)."""
        if frames.shape[-1] != self.config.features:
            raise ValueError(f"frames have {frames.shape[-1]} features, the model reads {self.config.features}; compute the "
                             f"features it was trained on, or train with model.features={frames.shape[-1]}")  # fmt: skip
        if lengths is not None and bool((lengths >= frames.shape[1]).all()):
            lengths = None  # without a mask everything is faster
        x = self.dropout(self.subsample(frames, lengths))  # (B, S, D)
        mask = None if lengths is None else length_mask(self.subsampled(lengths), x.shape[1])  # (B, 1, 1, S)
        distances = self.distances(x.shape[1])  # (2S - 1, D)
        for block in self.encoder:
            x = block(x, distances, mask)
        return x, torch.ones(len(x), 1, 1, x.shape[1], dtype=torch.bool, device=x.device) if mask is None else mask

    def ctc_logits(self, memory: Tensor) -> Tensor:
        """Logits of the token of each encoded frame, `pad` being the blank: (B, S, D) → (B, S, V)."""
        if self.ctc is None:
            raise ValueError("the model was trained without CTC (ctc_weight 0); decode with its attention decoder")
        return self.ctc(memory)

    def features(self, memory: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        """Input of the output layer: memory (B, S, D), its mask and target tokens (B, T) → (B, T, D)."""
        x = self.embed_target(target)  # (B, T, D)
        for block in self.decoder:
            x = block(x, block.cross.keys_values(memory), mask)
        return self.decoder_norm(x)

    def forward(self, frames: Tensor, lengths: Tensor | None = None, target: Tensor | None = None) -> Tensor:
        """CTC logits (B, S, V); with target tokens (B, T), the decoder's logits of the token after each (B, T, V)."""
        memory, mask = self.encode(frames, lengths)
        return self.ctc_logits(memory) if target is None else self.output(self.features(memory, mask, target))


FAMILY = Family(ConformerConfig, SIZES, Conformer, "speech")
