"""Look inside a model without touching it: `with watch(model) as seen: model(...)`.

Shapes: B batch, H heads, Q queries, K keys.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

__all__ = ["watch"]


@contextmanager
def watch(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Collect the attention weights of every call inside the `with`, by the name of the attention module.

    `seen["decoder.2.cross"]` is a list with one (B, H, Q, K) tensor for each call; in a cached decoding there is
    one call a token, whose queries are the beams, and whose keys in `decoder.N.attn` are the tokens of all beams, each
    beam looking at its own.  The explicit path runs meanwhile; its numbers are tested equal to the fused one.
    """
    seen: dict[str, list[Tensor]] = {}
    watched = [(name, part) for name, part in model.named_modules() if hasattr(part, "tap")]
    before = [part.tap for _, part in watched]  # a watch inside a watch gives back what it took
    for name, part in watched:
        seen[name] = []
        part.tap = lambda weights, calls=seen[name]: calls.append(weights.detach())
    try:
        yield seen
    finally:
        for (_, part), tap in zip(watched, before, strict=True):
            part.tap = tap
