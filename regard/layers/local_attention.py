"""Attention to the neighbourhood of each position, without gathering the neighbourhoods.

Gathered neighbourhoods are R² times as large as the image.  Flattened to one line per channel, an image only has to be shifted
for every position to meet one of its neighbours: R² passes over views, no copies.  A shift across an edge meets a position of
another row or another image, which gets -inf as its score.

Shapes: B batch, H heads, E channels of one head, R side of a neighbourhood, S stride, P = S · S planes, Y X rows and columns of
queries, L queries of one chunk, flattened.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from regard.layers.scores import ScalarScore
from regard.layers.shapes import from_planes, to_planes

__all__ = ["LocalAttention", "ShiftedLayout"]

CHUNK = 12_000  # queries of one chunk: their R² weights stay in the cache


class ShiftedLayout(NamedTuple):
    """How keys and values are flattened for `rows` × `columns` queries, and shifted."""

    kernel: int
    stride: int
    rows: int
    columns: int

    @property
    def halo(self) -> int:
        """Zeros before and after the line, so that it can be shifted."""
        return -(-(self.kernel // 2) // self.stride) * (self.columns + 1)

    def pack(self, x: Tensor) -> Tensor:
        """(B, H, E, Y · S, X · S) → (P, E, halo + L + halo)."""
        planes = to_planes(x, self.stride)  # (P, E, B, H, Y, X)
        line = x.new_zeros(*planes.shape[:2], planes[0, 0].numel() + 2 * self.halo)
        line[:, :, self.halo : line.shape[2] - self.halo].view(planes.shape).copy_(planes)
        return line

    def unpack(self, line: Tensor, like: Tensor) -> Tensor:
        """Undo `pack`, to the shape of `like`."""
        inner = line[:, :, self.halo : line.shape[2] - self.halo]
        return from_planes(inner.unflatten(2, (*like.shape[:2], self.rows, self.columns)), *like.shape[3:])

    def shifted_views(self, line: Tensor) -> list[Tensor]:
        """A view for each neighbour, row by row, that aligns it with its query: R · R × (E, L)."""
        planes, length = line.unbind(0), line.shape[2] - 2 * self.halo
        offsets, views = range(-(self.kernel // 2), self.kernel // 2 + 1), []
        for down in offsets:
            for right in offsets:
                plane = planes[down % self.stride * self.stride + right % self.stride]
                shift = down // self.stride * self.columns + right // self.stride
                views.append(plane.narrow(1, self.halo + shift, length))
        return views


def attention_weights(scores: Tensor, bias: Tensor, outside: Tensor) -> Tensor:
    """Softmax over the neighbours of each query: (R · R, L) → (R · R, L).

    Adds to the scores, in place, the position bias (R · R, H, 1) and `outside` (R · R, 1, Y · X): -inf outside the image, else 0.
    """
    by_head = scores.unflatten(1, (-1, bias.shape[1], outside.shape[2]))  # (R · R, B, H, Y · X)
    by_head.add_((bias + outside)[:, None])
    return scores.softmax(0)


def chunks(batch: int, heads: int, rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Slices of images and heads with about `CHUNK` queries each."""
    maps = max(1, CHUNK // (rows * columns))  # one for each head of each image
    images, heads_each = max(1, maps // heads), min(maps, heads)
    for image in range(0, batch, images):
        for head in range(0, heads, heads_each):
            yield slice(image, image + images), slice(head, head + heads_each)


class Context(Protocol):
    """State that `forward` saves for `backward`."""

    saved_tensors: tuple[Tensor, ...]
    layout: ShiftedLayout
    score: ScalarScore

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Filled by torch."""


class LocalAttention(Function):
    """Attention to the neighbourhood, chunk by chunk.  `backward` computes the weights again, so none are stored."""

    @staticmethod
    def forward(ctx: Context, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, outside: Tensor, layout: ShiftedLayout,
                score: ScalarScore) -> Tensor:  # fmt: skip
        """Mix the values: q (B, H, 1, Y, X), k (B, H, 1, ...), v (B, H, E, ...) → (B, H, E, Y, X)."""
        ctx.save_for_backward(q, k, v, bias, outside)
        ctx.layout, ctx.score = layout, score
        mixed = v.new_empty(*v.shape[:3], *q.shape[3:])
        for chunk in chunks(*q.shape[:2], *q.shape[3:]):
            # Compare each query with its R² keys.
            keys = torch.cat(layout.shifted_views(layout.pack(k[chunk])))  # (R · R, L)
            weights = attention_weights(score(q[chunk].flatten(), keys), bias[:, chunk[1]], outside)  # (R · R, L)

            # Add up the values of one neighbour of all queries at a time.
            out = to_planes(mixed[chunk], 1)[0]  # (E, B, H, Y, X)
            sums = v.new_zeros(len(out), weights.shape[1])  # (E, L)
            for weight, values in zip(weights, layout.shifted_views(layout.pack(v[chunk])), strict=True):
                sums.addcmul_(weight, values)
            out.copy_(sums.view_as(out))
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of q, k, v and the bias."""
        (q, k, v, bias, outside), layout, score = ctx.saved_tensors, ctx.layout, ctx.score
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        grad_bias = torch.zeros_like(bias)
        for chunk in chunks(*q.shape[:2], *q.shape[3:]):
            # Compute scores and weights again; autograd follows the scores alone, which may be any function.
            packed_k, packed_v = layout.pack(k[chunk]), layout.pack(v[chunk])
            queries = q[chunk].reshape(-1).detach().requires_grad_()  # (L,)
            keys = torch.cat(layout.shifted_views(packed_k)).requires_grad_()  # (R · R, L)
            with torch.enable_grad():
                scores = score(queries, keys)  # (R · R, L)
            weights = attention_weights(scores.detach(), bias[:, chunk[1]], outside)

            # Back through the weighted sum, one neighbour at a time: to its weight, and to its value at its own position.
            grad_out = to_planes(grad[chunk], 1)[0].flatten(1)  # (E, L)
            grad_weights, packed_grad_v = torch.empty_like(weights), torch.zeros_like(packed_v)
            product = torch.empty_like(grad_out)
            views_v, views_grad_v = layout.shifted_views(packed_v), layout.shifted_views(packed_grad_v)
            for weight, grad_weight, values, grad_values in zip(weights, grad_weights, views_v, views_grad_v, strict=True):
                torch.sum(torch.mul(grad_out, values, out=product), 0, out=grad_weight)
                grad_values.addcmul_(weight, grad_out)

            # Back through the softmax and the scores.
            grad_scores = grad_weights.sub_((weights * grad_weights).sum(0)).mul_(weights)
            grad_queries, grad_keys = torch.autograd.grad(scores, (queries, keys), grad_scores)

            # Add up the gradients of all R² copies of a key.
            packed_grad_k = torch.zeros_like(packed_k)
            for grad_key, target in zip(grad_keys, layout.shifted_views(packed_grad_k), strict=True):
                target.add_(grad_key)

            grad_q[chunk] = grad_queries.view_as(q[chunk])
            grad_k[chunk] = layout.unpack(packed_grad_k, k[chunk])
            grad_v[chunk] = layout.unpack(packed_grad_v, v[chunk])
            grad_bias[:, chunk[1], 0] += grad_scores.unflatten(1, (*grad[chunk].shape[:2], -1)).sum((1, 3))
        return grad_q, grad_k, grad_v, grad_bias, None, None, None
