"""Where a key stands, as a number added to its score.

Shapes: Q queries, K keys, H heads.
"""

import math

import torch
from torch import Tensor, nn

__all__ = ["Buckets", "bucket"]


def bucket(distance: Tensor, buckets: int, furthest: int, both_ways: bool) -> Tensor:
    """T5's bucket of each distance key - query: near ones have a bucket each, further ones share, the furthest all one.

    Section 2.1 of https://arxiv.org/abs/1910.10683.  Half of the buckets are for one distance each, the others grow with
    the logarithm up to `furthest`.  Both ways, half are for keys that come after; else those all fall into bucket 0.
    """
    first = torch.zeros_like(distance)
    if both_ways:
        buckets //= 2
        first, distance = (distance > 0).long() * buckets, distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    near = buckets // 2
    grown = torch.log(distance.clamp(min=1).float() / near) / math.log(furthest / near) * (buckets - near)
    far = (near + grown.long()).clamp(max=buckets - 1)
    return first + torch.where(distance < near, distance, far)


class Buckets(nn.Module):
    """A learned number for each bucket and head; one table serves all layers of a stack."""

    def __init__(self, heads: int, buckets: int = 32, furthest: int = 128, *, both_ways: bool):
        super().__init__()
        self.table = nn.Embedding(buckets, heads)
        self.furthest, self.both_ways = furthest, both_ways

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """For queries and keys that stand at these places, (Q,) and (K,) → (1, H, Q, K)."""
        numbers = bucket(keys - queries[:, None], self.table.num_embeddings, self.furthest, self.both_ways)  # (Q, K)
        return self.table(numbers).permute(2, 0, 1)[None]  # (1, H, Q, K)
