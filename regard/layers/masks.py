"""Who may look at whom.  A mask is boolean and True means "may look".

Shapes: B batch, Q queries, K keys.
"""

import torch
from torch import Tensor

__all__ = ["causal_mask", "padding_mask"]


def padding_mask(tokens: Tensor, pad: int) -> Tensor:
    """Every query may look at real tokens, never at padding: (B, K) → (B, 1, 1, K)."""
    return (tokens != pad)[:, None, None]


def causal_mask(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """A query may look at itself and at what came before it: (Q, K).

    The last query stands at the last key, so a step with a cache (one query, many keys) sees its whole past.
    torch's own `is_causal` aligns the first query with the first key instead and is right only if Q = K.
    """
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
