"""Record attention weights without changing a model: `with watch(model) as weights: model(...)`.

Shapes: B batch, H heads, Q queries, K keys.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

__all__ = ["watch"]


@contextmanager
def watch(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Collect the attention weights of every call inside the `with`, by the name of the attention module.

    `weights["decoder.2.cross"]` is a list with one (B, H, Q, K) tensor for each call.  Cached decoding makes one call a
    token: its queries are the beams, its keys in `decoder.N.attn` the tokens of all beams, with weight 0 for other beams'
    tokens.  While a model is watched the explicit path runs; tests compare it with the fused kernel.
    """
    recorded: dict[str, list[Tensor]] = {}
    watched = [(name, part) for name, part in model.named_modules() if hasattr(part, "tap")]
    before = [part.tap for _, part in watched]  # so that watches can nest
    for name, part in watched:
        recorded[name] = []
        part.tap = lambda weights, calls=recorded[name]: calls.append(weights.detach())
    try:
        yield recorded
    finally:
        for (_, part), tap in zip(watched, before, strict=True):
            part.tap = tap
