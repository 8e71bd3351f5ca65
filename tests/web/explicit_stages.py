"""The stages of one head, as "Step by step" must show them: its formula, from the weights of the model and what hooks have seen.

Shapes: Q queries, K keys, D width, E width of one head, N windows, M window side.
"""

from dataclasses import dataclass

import torch
from explicit import swin_windows, window_places
from tiny_runs import TEXTS
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Head:
    """One head in a forward pass, of a window the only one that is computed: what its formula needs."""

    queries: list[int]  # positions of the rows of q on their axis
    keys: list[int]
    x: Tensor  # (Q, D)
    memory: Tensor | None  # (K, D): of keys and values, if not x
    q: Tensor  # (Q, E)
    k: Tensor  # (K, E)
    v: Tensor  # (K, ·)
    scores: Tensor  # (Q, K)
    scale: float | None  # None: the model does not scale
    bias: Tensor | None  # (Q, K)
    mask: Tensor | None  # (Q, K): True where a query may attend, if a mask has a meaning; None: it has none
    masked: bool  # whether the model has that mask itself

    def stages(self, *, scaled: bool = True, flip_mask: bool = False, temperature: float = 1.0) -> dict[str, Tensor]:
        """All that is computed, by the names that the page gives it."""
        total, found = self.scores, {"x": self.x, "q": self.q, "k": self.k, "v": self.v, "scores": self.scores}
        if self.memory is not None:
            found["memory"] = self.memory
        if self.scale is not None:
            total = found["scaled"] = total * self.scale if scaled else total
        if self.bias is not None:
            found["bias"] = self.bias
            total = found["sum"] = total + self.bias
        if self.mask is not None:
            total = found["masked"] = total.masked_fill(~self.mask, -torch.inf) if self.masked != flip_mask else total
        weights = (total / temperature).softmax(-1)
        return found | {"weights": weights, "output": weights @ self.v}


@torch.inference_mode()
def head_of(family: str, model: nn.Module, name: str, head: int, read: tuple[Tensor, ...], query: int = 0) -> Head:
    """One head of an attention module while the model reads its input; of windows, in the one that holds the query."""
    attention, x = model.get_submodule(name), inputs_of(model, name, *read)  # (N, Q, D)
    windows = window_places(*swin_windows(model, name)) if family == "swin" else [list(range(x.shape[1]))]
    [window] = [places for places in windows if query in places]
    x, memory = x[windows.index(window)], memory_of(model, read[0]) if name.endswith("cross") else None
    keys = window if memory is None else list(range(len(memory)))
    if family in ("bahdanau", "captioner"):
        q, k, scores = additive_scores(attention.score, x, memory)
        return Head(window, keys, x, memory, q, k, memory, scores, None, None, None, False)

    q, k, v = projections(attention, head, x, memory)
    bias, mask, masked = None, None, False
    if family == "swin":
        bias, mask = window_bias(model, name, head), same_region(model, name, window)
        masked = not bool(mask.all())
        mask = mask if masked else None
    if family == "conformer":
        q, bias = distance_bias(model, name, head, q)
    if family == "t5" and memory is None:
        at, table = torch.arange(len(x)), model.encoder_bias if name.startswith("encoder") else model.decoder_bias
        bias = table(at, at)[0, head]
    if family in TEXTS and memory is None:  # later tokens may be hidden
        mask, masked = torch.ones(len(x), len(x)).tril().bool(), family == "gpt" or name.startswith("decoder")
    scale = None if family == "t5" else q.shape[-1] ** -0.5
    return Head(window, keys, x, memory, q, k, v, q @ k.T, scale, bias, mask, masked)


def additive_scores(score: nn.Module, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """W s, U h, and v · tanh(W s + U h) of all pairs: states (Q, D), source (K, ·) → (Q, E), (K, E), (Q, K)."""
    q, k = x @ score.query.weight.T, memory @ score.key.weight.T
    rows = [[(score.value.weight[0] * torch.tanh(one + other)).sum() for other in k] for one in q]
    return q, k, torch.tensor(rows)


def window_bias(model: nn.Module, name: str, head: int) -> Tensor:
    """Swin's learned number for the offset of each pair of a window, of its own table: (M · M, M · M)."""
    table, largest = model.get_submodule(name.removesuffix("attn") + "bias").table[:, head], model.config.window
    _, window, _ = swin_windows(model, name)
    cells = [(row, column) for row in range(window) for column in range(window)]
    offsets = table.view(2 * largest - 1, 2 * largest - 1)  # the middle is that of a position to itself
    return torch.stack([
        torch.stack([offsets[y - row + largest - 1, x - column + largest - 1] for row, column in cells]) for y, x in cells
    ])  # fmt: skip


def same_region(model: nn.Module, name: str, places: list[int]) -> Tensor:
    """Which pairs of a window are as far apart in the image as in the window, so not at opposite edges: (M · M, M · M)."""
    side, window, _ = swin_windows(model, name)
    in_image, in_window = torch.tensor(places), torch.arange(window**2)
    same = [image[:, None] - image == cell[:, None] - cell for image, cell in
            ((in_image // side, in_window // window), (in_image % side, in_window % window))]  # fmt: skip
    return same[0] & same[1]


def distance_bias(model: nn.Module, name: str, head: int, q: Tensor) -> tuple[Tensor, Tensor]:
    """The Conformer's (q + u) and its bias (q + v) · W r / √E, r the sinusoids of query - key: q (Q, E) → (Q, E), (Q, Q)."""
    part, width, dim = model.get_submodule(name.removesuffix("attn") + "position_bias"), q.shape[1], model.config.dim
    at, even = (torch.arange(*span, dtype=torch.float64) for span in ((len(q),), (0, dim, 2)))
    angles = (at[:, None] - at)[..., None] / 10_000 ** (even / dim)  # (Q, Q, D / 2)
    r = torch.stack((angles.sin(), angles.cos()), -1).flatten(2).float()  # (Q, Q, D)
    r = r @ part.distances.weight[head * width : (head + 1) * width].T  # (Q, Q, E)
    bias = ((q + part.position[head])[:, None] * r).sum(-1) / width**0.5
    return q + part.content[head], bias


def projections(attention: nn.Module, head: int, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Q (Q, E), k and v (K, E) of one head, from its rows of the projection matrix: x (Q, D), memory (K, D)."""
    width = attention.inner // attention.heads
    memory = x if memory is None else memory
    found = []
    for part, given in enumerate((x, memory, memory)):
        rows = slice(part * attention.inner + head * width, part * attention.inner + (head + 1) * width)
        product = given @ attention.qkv.weight[rows].T
        found.append(product if attention.qkv.bias is None else product + attention.qkv.bias[rows])
    return found[0], found[1], found[2]


@torch.inference_mode()
def inputs_of(model: nn.Module, name: str, *read: Tensor) -> Tensor:
    """What the queries of an attention module are computed from in a forward pass of the model: (N, Q, D), of windows N > 1."""
    caught: list[Tensor] = []
    part = model.get_submodule(name)
    part = part if name.endswith("cross") else part.qkv  # the Conformer calls only the parts of its attention
    hook = part.register_forward_pre_hook(lambda _, given: caught.append(given[0]))
    try:
        model(*read)
    finally:
        hook.remove()
    return torch.cat(caught, 1)  # a recurrent decoder makes a call for each token


@torch.inference_mode()
def memory_of(model: nn.Module, source: Tensor) -> Tensor:
    """What a decoder attends to: the output of the encoder for one source, (K, D)."""
    found = model.encode(source)
    return found[0][0] if isinstance(found, tuple) else found[0]  # without its mask
