"""The Transformer as lecture notes and tutorials write it: every formula of the paper as one line of torch.

Attention is two products and a softmax with `masked_fill`; queries, keys and values have a linear layer each; the
layer norm is written out; the smoothed targets are a whole distribution for every position, padding too, and the loss
is `nn.KLDivLoss`; Adam is `torch.optim.Adam` as it comes.  Norm first and interleaved waves, so that it is the same
function as regard's model.

Shapes: B batch, S source and T target length, Q queries, K keys, D width, H heads, E width of one head, V vocabulary.
"""

import math
import re
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from worker import Training, learn, parameters, serve_training


class LayerNorm(nn.Module):
    """(x - mean) / deviation, scaled and shifted."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.gain, self.shift, self.eps = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim)), eps

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)
        return self.gain * (x - mean) / torch.sqrt(variance + self.eps) + self.shift


class MultiHeadAttention(nn.Module):
    """softmax(q kᵀ / √E) v in each head."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads, self.width = heads, dim // heads
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            layer(x).view(len(x), -1, self.heads, self.width).transpose(1, 2)  # (B, H, Q, E), (B, H, K, E)
            for layer, x in ((self.q, query), (self.k, key), (self.v, value))
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.width)  # (B, H, Q, K)
        weights = scores.masked_fill(mask == 0, -1e9).softmax(-1)
        mixed = torch.matmul(weights, v)  # (B, H, Q, E)
        return self.out(mixed.transpose(1, 2).contiguous().view(len(query), -1, self.heads * self.width))  # (B, Q, D)


class FeedForward(nn.Module):
    """max(0, x W₁ + b₁) W₂ + b₂."""

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float):
        super().__init__()
        self.attn, self.mlp = MultiHeadAttention(dim, heads), FeedForward(dim, hidden)
        self.norm_attn, self.norm_mlp = LayerNorm(dim), LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.norm_attn(x)
        x = x + self.dropout(self.attn(h, h, h, mask))
        return x + self.dropout(self.mlp(self.norm_mlp(x)))


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention and feed-forward."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float):
        super().__init__()
        self.attn, self.cross = MultiHeadAttention(dim, heads), MultiHeadAttention(dim, heads)
        self.mlp = FeedForward(dim, hidden)
        self.norm_attn, self.norm_cross, self.norm_mlp = LayerNorm(dim), LayerNorm(dim), LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, source_mask: Tensor, target_mask: Tensor) -> Tensor:
        h = self.norm_attn(x)
        x = x + self.dropout(self.attn(h, h, h, target_mask))
        x = x + self.dropout(self.cross(self.norm_cross(x), memory, memory, source_mask))
        return x + self.dropout(self.mlp(self.norm_mlp(x)))


def waves(length: int, dim: int) -> Tensor:
    """Sinusoid positions (T, D)."""
    place = torch.arange(length).unsqueeze(1)
    rate = torch.exp(torch.arange(0, dim, 2) * -(math.log(10_000.0) / dim))
    table = torch.zeros(length, dim)
    table[:, 0::2], table[:, 1::2] = torch.sin(place * rate), torch.cos(place * rate)
    return table


class Textbook(nn.Module):
    """Figure 1 of https://arxiv.org/abs/1706.03762; `forward` returns log-probabilities."""

    def __init__(self, shape: dict[str, Any]):
        super().__init__()
        dim, depth, self.pad = shape["dim"], shape["depth"], shape["pad"]
        layer = (dim, shape["heads"], shape["mlp"], shape["dropout"])
        self.encoder = nn.ModuleList(EncoderLayer(*layer) for _ in range(depth))
        self.decoder = nn.ModuleList(DecoderLayer(*layer) for _ in range(depth))
        self.encoder_norm, self.decoder_norm = LayerNorm(dim), LayerNorm(dim)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
        self.table = nn.Embedding(shape["vocab"], dim)
        nn.init.normal_(self.table.weight, std=dim**-0.5)
        self.register_buffer("waves", waves(512, dim), persistent=False)
        self.dropout = nn.Dropout(shape["dropout"])

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.table(ids) * math.sqrt(self.table.embedding_dim) + self.waves[: ids.shape[1]])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        source_mask = (source != self.pad)[:, None, None]  # (B, 1, 1, S)
        past = torch.tril(torch.ones(target.shape[1], target.shape[1], dtype=torch.bool))
        target_mask = (target != self.pad)[:, None, None] & past  # (B, 1, T, T)
        memory = self.embed(source)
        for layer in self.encoder:
            memory = layer(memory, source_mask)
        memory = self.encoder_norm(memory)
        x = self.embed(target)
        for layer in self.decoder:
            x = layer(x, memory, source_mask, target_mask)
        return (self.decoder_norm(x) @ self.table.weight.T).log_softmax(-1)  # (B, T, V)


class SmoothedLoss(nn.Module):
    """KL divergence from smoothed targets, section 5.4."""

    def __init__(self, vocab: int, pad: int, label_smoothing: float):
        super().__init__()
        self.divergence, self.vocab, self.pad, self.label_smoothing = (nn.KLDivLoss(reduction="sum"), vocab, pad, label_smoothing)
        gold, other = 1 - label_smoothing + label_smoothing / vocab, label_smoothing / vocab
        self.entropy = -gold * math.log(gold) - (vocab - 1) * other * math.log(other)

    def forward(self, log_p: Tensor, wanted: Tensor) -> Tensor:
        wanted = wanted.reshape(-1, 1)  # (B · T, 1)
        targets = torch.full((len(wanted), self.vocab), self.label_smoothing / self.vocab)
        targets.scatter_(1, wanted, 1 - self.label_smoothing + self.label_smoothing / self.vocab)
        targets.masked_fill_(wanted == self.pad, 0.0)
        return self.divergence(log_p.reshape(-1, self.vocab), targets)


def load_weights(model: Textbook, file: str) -> None:
    """Load the weights of a regard model: other names, and regard stores q, k and v as one matrix."""
    found = {}
    for theirs, value in load_file(file).items():
        name = re.sub(r"(\w+)_residual\.norm\.", r"norm_\1.", theirs)
        if ".qkv." in name:
            found |= {name.replace("qkv", part): rows for part, rows in zip("qkv", value.chunk(3), strict=True)}
        elif "norm" in name:
            found[name.replace("weight", "gain").replace("bias", "shift")] = value
        elif name == "output.weight":
            found["table.weight"] = value
        elif not name.startswith("embed"):  # tied: the same table again
            found[name] = value
    model.load_state_dict(found)


def begin(shape: dict[str, Any], pairs: list[tuple[Tensor, Tensor]]) -> Training:
    model, loss_of = Textbook(shape).train(), SmoothedLoss(shape["vocab"], shape["pad"], shape["label_smoothing"])
    adam = torch.optim.Adam(model.parameters(), lr=shape["rate"], betas=(0.9, 0.98), eps=1e-9)
    losses: list[float] = []  # without smoothing, for `curve`

    def loss(batch: tuple[Tensor, Tensor], watched: bool = False) -> Tensor:
        inputs, wanted = batch[1][:, :-1], batch[1][:, 1:]
        log_p, real = model(batch[0], inputs), wanted != shape["pad"]
        if watched:
            losses.append(-float(log_p.detach()[real].gather(1, wanted[real][:, None]).mean()))
        return loss_of(log_p, wanted) / real.sum()

    def curve(rates: list[float]) -> list[float]:
        losses.clear()
        step = learn(lambda batch: loss(batch, watched=True), adam)
        for batch, rate in zip(pairs, rates, strict=True):
            for group in adam.param_groups:
                group["lr"] = rate
            step(batch)
        return losses

    step = learn(loss, adam)
    about = {"version": "", "torch": torch.__version__, "parameters": parameters(model), "given": "default Adam"}
    # A divergence lies below the cross-entropy that others report by the entropy of the targets.
    return Training(
        lambda batch: step(batch) + loss_of.entropy,
        pairs,
        about,
        {"curve": curve, "take": lambda file: load_weights(model, file)},
    )


if __name__ == "__main__":
    serve_training(begin)
