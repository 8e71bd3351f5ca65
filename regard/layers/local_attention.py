"""Looking at the neighbourhood without gathering it.

The neighbourhoods of a picture are R² times as large as the picture.  But one that is laid out as a line only has to be shifted
for all of its places to meet one of their neighbours: R² passes over it, and no copies.  What is shifted over an edge meets a
place of another row or another picture; the mask hides it.

Shapes: B batch, H heads, E channels of one head, R side of a neighbourhood, S stride, P = S · S planes, Y X rows and columns of
the grid that looks, L flattened places of some heads of some pictures.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from regard.layers.scores import Alike
from regard.layers.shapes import from_planes, to_planes

__all__ = ["Line", "LocalAttention"]

PLACES = 12_000  # at once: their R² weights stay in the cache


class Line(NamedTuple):
    """How pictures with so many rows and columns of places that look are laid out and shifted."""

    kernel: int
    stride: int
    rows: int
    columns: int

    @property
    def halo(self) -> int:
        """What has to stand before and after the line, so that it can be shifted."""
        return -(-(self.kernel // 2) // self.stride) * (self.columns + 1)

    def lay(self, x: Tensor) -> Tensor:
        """(B, H, E, Y · S, X · S) → (P, E, halo + L + halo)."""
        planes = to_planes(x, self.stride)  # (P, E, B, H, Y, X)
        line = x.new_zeros(*planes.shape[:2], planes[0, 0].numel() + 2 * self.halo)
        line[:, :, self.halo : line.shape[2] - self.halo].view(planes.shape).copy_(planes)
        return line

    def lift(self, line: Tensor, like: Tensor) -> Tensor:
        """Undo `lay`, to the shape of what it was given."""
        places = line[:, :, self.halo : line.shape[2] - self.halo]
        return from_planes(places.unflatten(2, (*like.shape[:2], self.rows, self.columns)), *like.shape[3:])

    def around(self, line: Tensor) -> list[Tensor]:
        """For each neighbour, row by row, a view that brings it to its place: R · R × (E, L)."""
        planes, places = line.unbind(0), line.shape[2] - 2 * self.halo
        reach, views = range(-(self.kernel // 2), self.kernel // 2 + 1), []
        for down in reach:
            for right in reach:
                plane = planes[down % self.stride * self.stride + right % self.stride]
                shift = down // self.stride * self.columns + right // self.stride
                views.append(plane.narrow(1, self.halo + shift, places))
        return views


def weigh(scores: Tensor, bias: Tensor, hidden: Tensor) -> Tensor:
    """How much each place looks at each neighbour: (R · R, L) → (R · R, L).

    Where they stand, bias (R · R, H, 1), and whether they are outside, hidden (R · R, 1, Y · X), is added to the scores in place.
    """
    by_head = scores.unflatten(1, (-1, bias.shape[1], hidden.shape[2]))  # (R · R, B, H, Y · X)
    by_head.add_((bias + hidden)[:, None])
    return scores.softmax(0)


def pieces(batch: int, heads: int, rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Some heads of some pictures at a time, about `PLACES` places."""
    some = max(1, PLACES // (rows * columns))  # heads
    pictures, each = max(1, some // heads), min(some, heads)
    for picture in range(0, batch, pictures):
        for head in range(0, heads, each):
            yield slice(picture, picture + pictures), slice(head, head + each)


class LocalAttention(Function):
    """Attention to the neighbourhood, piece by piece.  The way back weighs once more, so that no weights have to be kept."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, hidden: Tensor, line: Line, alike: Alike
    ) -> Tensor:
        """What each place sees: q (B, H, 1, Y, X), k (B, H, 1, ...), v (B, H, E, ...) → (B, H, E, Y, X)."""
        ctx.save_for_backward(q, k, v, bias, hidden)
        ctx.line, ctx.alike = line, alike
        mixed = v.new_empty(*v.shape[:3], *q.shape[3:])
        for at in pieces(*q.shape[:2], *q.shape[3:]):
            keys = torch.cat(line.around(line.lay(k[at])))  # (R · R, L)
            weights = weigh(alike(q[at].flatten(), keys), bias[:, at[1]], hidden)  # (R · R, L)
            out = to_planes(mixed[at], 1)[0]  # (E, B, H, Y, X)
            sums = v.new_zeros(len(out), weights.shape[1])  # (E, L)
            for weight, values in zip(weights, line.around(line.lay(v[at])), strict=True):
                sums.addcmul_(weight, values)
            out.copy_(sums.view_as(out))
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of q, k, v and the bias."""
        (q, k, v, bias, hidden), line, alike = ctx.saved_tensors, ctx.line, ctx.alike
        of_q, of_k, of_v = (torch.empty_like(one) for one in (q, k, v))
        of_bias = torch.zeros_like(bias)
        for at in pieces(*q.shape[:2], *q.shape[3:]):
            laid_k, laid_v = line.lay(k[at]), line.lay(v[at])
            leaves = [one.requires_grad_() for one in (q[at].reshape(-1).detach(), torch.cat(line.around(laid_k)))]
            with torch.enable_grad():
                scores = alike(*leaves)  # (R · R, L)
            weights = weigh(scores.detach(), bias[:, at[1]], hidden)
            asked = to_planes(grad[at], 1)[0].flatten(1)  # (E, L)
            of_weights, of_values, each = torch.empty_like(weights), torch.zeros_like(laid_v), torch.empty_like(asked)
            every = zip(weights, of_weights, line.around(laid_v), line.around(of_values), strict=True)
            for weight, of_weight, values, of_these in every:
                torch.sum(torch.mul(asked, values, out=each), 0, out=of_weight)
                of_these.addcmul_(weight, asked)
            of_scores = of_weights.sub_((weights * of_weights).sum(0)).mul_(weights)  # through the softmax
            from_q, from_keys = torch.autograd.grad(scores, leaves, of_scores)
            of_keys = torch.zeros_like(laid_k)
            for one, of_this in zip(from_keys, line.around(of_keys), strict=True):
                of_this.add_(one)
            of_q[at], of_k[at], of_v[at] = from_q.view_as(q[at]), line.lift(of_keys, k[at]), line.lift(of_values, v[at])
            of_bias[:, at[1], 0] += of_scores.unflatten(1, (*grad[at].shape[:2], -1)).sum((1, 3))
        return of_q, of_k, of_v, of_bias, None, None, None
