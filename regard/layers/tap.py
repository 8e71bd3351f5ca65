"""Record attention weights without changing a model: `with watch(model) as weights: model(...)`.

Shapes: B batch, H heads, Q queries, K keys.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

__all__ = ["HasModel", "Tap", "attention_modules", "tap_of", "watch"]

Tap = Callable[[Tensor], None]  # receives the weights (..., Q, K)


class HasModel(Protocol):
    """A predictor."""

    @property
    def model(self) -> nn.Module:
        """The network."""


@dataclass(eq=False)
class _Watch:
    """The taps of one `watch`, and the watch around it."""

    taps: dict[nn.Module, Tap]
    outer: "_Watch | None"


# A context variable, not a state of the modules: threads and tasks that share a model see only their own calls.
_WATCH: ContextVar[_Watch | None] = ContextVar("watch", default=None)


def tap_of(module: nn.Module) -> Tap | None:
    """What receives the attention weights of a module, if this context watches it."""
    watched = _WATCH.get()
    while watched is not None:
        if (tap := watched.taps.get(module)) is not None:
            return tap
        watched = watched.outer
    return None


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that give their weights to `tap_of`, by name: those whose class has `watchable = True`."""
    return {name: part for name, part in model.named_modules() if getattr(type(part), "watchable", False)}


@contextmanager
def watch(model: "nn.Module | HasModel") -> Iterator[dict[str, list[Tensor]]]:
    """Collect the attention weights of every call inside the `with`, by the name of the attention module.

    `weights["decoder.2.cross"]` is a list with one (B, H, Q, K) tensor for each call.  Cached decoding makes one call a
    token: its queries are the beams, its keys in `decoder.N.attn` the tokens of all beams, with weight 0 for other beams'
    tokens.  While a model is watched the explicit path runs; tests compare it with the fused kernel.

    Only calls of this context are seen: those of other threads and tasks that use the same model are not.  Of a predictor, its
    model is watched.
    """
    network = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    if not isinstance(network, nn.Module):
        raise ValueError(f"a model of type {type(model).__name__}; wanted a torch module, or what regard.load returns")
    recorded: dict[str, list[Tensor]] = {}
    taps: dict[nn.Module, Tap] = {}
    for name, part in attention_modules(network).items():
        recorded[name] = []
        taps[part] = lambda weights, calls=recorded[name]: calls.append(weights.detach())  # type: ignore[misc]
    token = _WATCH.set(_Watch(taps, _WATCH.get()))
    try:
        yield recorded
    finally:
        taps.clear()  # also for tasks and threads that were started inside and go on
        with suppress(ValueError):  # a generator closed in another context than it was started in has nothing to undo there
            _WATCH.reset(token)
