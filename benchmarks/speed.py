"""How fast does regard train beside torch's own `nn.Transformer`?  `make bench` prints one table with ratios.

Same shape (small: dim 256, 3 + 3 layers, vocabulary 10,000), same batches, same number of threads, both float32 with fused
Adam and label smoothing 0.1; the two are interleaved, repeated, and the spread is shown.  Peers of other libraries, decoding
and scaling follow in scripts of their own.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from regard.data.batch import Batch
from regard.data.tokenizer import BOS, EOS, PAD
from regard.layers.positions import sinusoid
from regard.models.transformer import SIZES, Transformer, TransformerConfig
from regard.train.objectives import translate
from regard.train.optim import adam

VOCAB = 10_000


def make_batches(count: int, tokens: int) -> list[Batch]:
    """Batches of about `tokens` target tokens, all sentences of a batch of similar length, as the buckets give them."""
    random = torch.Generator().manual_seed(0)
    made = []
    for i in range(count):
        length = 10 + 5 * (i % 5)
        rows = tokens // length
        lengths = torch.randint(length - 3, length + 1, (rows, 1), generator=random)
        ids = torch.randint(4, VOCAB, (rows, length + 1), generator=random)
        place = torch.arange(length + 1)[None]
        source = ids.where(place < lengths, EOS).where(place <= lengths, PAD)
        target = torch.cat((torch.full((rows, 1), BOS), source), 1)
        made.append(Batch(source, target))
    return made


class TorchTransformer(nn.Module):
    """The usual way to train with `nn.Transformer`: all logits, `F.cross_entropy` with `ignore_index`."""

    def __init__(self, c: TransformerConfig):
        super().__init__()
        self.core = nn.Transformer(
            c.dim, c.heads, c.depth, c.depth, c.widen * c.dim, c.dropout, batch_first=True, norm_first=True
        )
        for layer in (*self.core.encoder.layers, *self.core.decoder.layers):
            layer.dropout = nn.Identity()  # torch also drops out inside the mlp and on the weights; the paper does not
            layer.self_attn.dropout = 0.0
        for layer in self.core.decoder.layers:
            layer.multihead_attn.dropout = 0.0
        self.tokens = nn.Embedding(VOCAB, c.dim)
        self.register_buffer("places", sinusoid(512, c.dim))
        self.dropout = nn.Dropout(c.dropout)
        self.scale = c.dim**0.5

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.tokens(ids) * self.scale + self.places[: ids.shape[1]])

    def loss(self, batch: Batch) -> Tensor:
        said, wanted = batch.target[:, :-1], batch.target[:, 1:]
        pads, causal = batch.source == PAD, nn.Transformer.generate_square_subsequent_mask(said.shape[1])
        x = self.core(self.embed(batch.source), self.embed(said), tgt_mask=causal, tgt_is_causal=True,
                      src_key_padding_mask=pads, memory_key_padding_mask=pads)  # fmt: skip
        logits = x @ self.tokens.weight.T
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD, label_smoothing=0.1)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--size", default="small", choices=list(SIZES))
    options.add_argument("--tokens", type=int, default=4096)
    options.add_argument("--repeats", type=int, default=5)
    asked = options.parse_args()
    config = TransformerConfig(**{**vars(SIZES[asked.size]), "vocab": VOCAB})
    batches = make_batches(5, asked.tokens)
    ours, theirs = Transformer(config), TorchTransformer(config)
    our_adam, their_adam = adam(ours), adam(theirs)

    def our_step(batch: Batch) -> None:
        loss, _ = translate(ours, batch, 0.1)
        (loss / batch.tokens).backward()
        our_adam.step()
        our_adam.zero_grad()

    def their_step(batch: Batch) -> None:
        theirs.loss(batch).backward()
        their_adam.step()
        their_adam.zero_grad()

    speeds: dict[str, list[float]] = {"regard": [], "torch nn.Transformer": []}
    for repeat in range(asked.repeats + 1):  # the first warms up
        for name, step in (("regard", our_step), ("torch nn.Transformer", their_step)):
            start = time.perf_counter()
            for batch in batches:
                step(batch)
            speed = sum(batch.tokens for batch in batches) / (time.perf_counter() - start)
            if repeat:
                speeds[name].append(speed)
    ratios = [a / b for a, b in zip(*speeds.values(), strict=True)]
    title = f"training, {asked.size}, {asked.tokens} tokens a batch, {torch.get_num_threads()} threads, {asked.repeats} repeats"
    table = Table("", "target tokens/s, median", "least", "most", title=title)
    for name, found in speeds.items():
        table.add_row(name, *(f"{f(found):,.0f}" for f in (statistics.median, min, max)))
    table.add_row("ratio", *(f"{f(ratios):.2f}" for f in (statistics.median, min, max)))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
