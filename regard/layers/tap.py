"""See and change attention without changing a model: record weights, record what they were computed from, switch heads off.

`with watch(model) as weights: model(...)` records weights, `with record_calls(model, name) as calls` everything that one module
computed, `with ablate(model, {name: [0, 3]})` zeroes the outputs of heads, `with without_positions(model)` removes all positions.

Shapes: B batch, H heads, Q queries, K keys, E width of one head, D width.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor, nn

__all__ = ["AttentionCall", "HasModel", "Tap", "ablate", "attention_modules", "has_positions", "note_memory", "positions_off",
           "record_calls", "tap_of", "watch", "without_positions"]  # fmt: skip


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One call of an attention module; `bias` and `mask` broadcast to the scores (..., Q, K)."""

    q: Tensor  # (B, H, Q, E), as they are compared: Swin V2's are normalized
    k: Tensor  # (B, H, K, E)
    v: Tensor  # (B, H, K, E)
    weights: Tensor  # (B, H, Q, K), before dropout
    mixed: Tensor  # (B, H, Q, E): the weighted sums of the values
    scale: float = 1.0  # of q · k; without effect if there is a `score`
    score: Callable[[Tensor, Tensor], Tensor] | None = None  # instead of the scaled dot product
    bias: Tensor | None = None
    mask: Tensor | None = None  # True where a query may attend; the causal mask is part of it
    x: Tensor | None = None  # (B, Q, D): what the queries were computed from
    memory: Tensor | None = None  # (B, K, D): what keys and values were computed from, if not from x


Tap = Callable[[AttentionCall], Tensor]  # → the mixed values to go on with
_Listener = Callable[[AttentionCall], Tensor | None]  # → other mixed values, or None to leave them


class HasModel(Protocol):
    """A predictor."""

    @property
    def model(self) -> nn.Module:
        """The network."""


@dataclass(eq=False)
class _Scope:
    """What one `with` listens to, and the one around it."""

    listeners: dict[nn.Module, _Listener]
    memories: dict[nn.Module, Callable[[Tensor], None]]  # of modules whose memory is wanted too
    weights_only: bool  # a `watch`: an inner one takes the calls of its modules
    outer: "_Scope | None"


# Context variables, not a state of the modules: threads and tasks that share a model see and change only their own calls.
_SCOPE: ContextVar[_Scope | None] = ContextVar("scope", default=None)
_POSITIONS_OFF: ContextVar[AbstractSet[nn.Module]] = ContextVar("positions_off", default=frozenset())


def tap_of(module: nn.Module) -> Tap | None:
    """What receives the calls of an attention module and may change its mixed values, if this context listens to it.

    Inner listeners come first; each sees the mixed values that the ones within left.
    """
    scope = _SCOPE.get()
    if scope is None:
        return None
    listeners, watched = list[_Listener](), False
    while scope is not None:
        if (listener := scope.listeners.get(module)) is not None and not (watched and scope.weights_only):
            listeners.append(listener)
            watched = watched or scope.weights_only
        scope = scope.outer
    return _through(listeners) if listeners else None


def _through(listeners: list[_Listener]) -> Tap:
    def tap(call: AttentionCall) -> Tensor:
        for listener in listeners:
            if (mixed := listener(call)) is not None:
                call = replace(call, mixed=mixed)
        return call.mixed

    return tap


def note_memory(module: nn.Module, memory: Tensor) -> None:
    """Tell the listeners of a cross-attention what its keys and values are computed from: (B, K, D)."""
    scope = _SCOPE.get()
    while scope is not None:
        if (receive := scope.memories.get(module)) is not None:
            receive(memory)
        scope = scope.outer


def positions_off(module: nn.Module) -> bool:
    """Whether this context runs its model without positions: a module of positions then gives zeros."""
    return module in _POSITIONS_OFF.get()


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that give their calls to `tap_of`, by name: those whose class has `watchable = True`."""
    return {name: part for name, part in model.named_modules() if getattr(type(part), "watchable", False)}


def has_positions(model: nn.Module) -> bool:
    """Whether `without_positions` would change anything."""
    return any(True for _ in _positional(model))


def _positional(model: nn.Module) -> Iterator[nn.Module]:
    """The modules that ask `positions_off`: those whose class has `positional = True`."""
    return (part for part in model.modules() if getattr(type(part), "positional", False))


def _network(model: "nn.Module | HasModel") -> nn.Module:
    network = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    if not isinstance(network, nn.Module):
        raise ValueError(f"a model of type {type(model).__name__}; wanted a torch module, or what regard.load returns")
    return network


def _named(model: nn.Module, name: str) -> nn.Module:
    modules = attention_modules(model)
    if name not in modules:
        names = ", ".join(map(repr, modules)) or "none: the model has no attention"
        raise ValueError(f"no attention module is called {name!r}; wanted one of {names}")
    return modules[name]


@contextmanager
def _listen(listeners: dict[nn.Module, _Listener], memories: dict[nn.Module, Callable[[Tensor], None]] | None = None, *,
            weights_only: bool = False) -> Iterator[None]:  # fmt: skip
    memories = {} if memories is None else memories
    token = _SCOPE.set(_Scope(listeners, memories, weights_only, _SCOPE.get()))
    try:
        yield
    finally:
        listeners.clear()  # also for tasks and threads that were started inside and go on
        memories.clear()
        with suppress(ValueError):  # a generator closed in another context than it was started in has nothing to undo there
            _SCOPE.reset(token)


@contextmanager
def watch(model: "nn.Module | HasModel") -> Iterator[dict[str, list[Tensor]]]:
    """Collect the attention weights of every call inside the `with`, by the name of the attention module.

    `weights["decoder.2.cross"]` is a list with one (B, H, Q, K) tensor for each call.  Cached decoding makes one call a
    token: its queries are the beams, its keys in `decoder.N.attn` the tokens of all beams, with weight 0 for other beams'
    tokens.  While a model is watched the explicit path runs; tests compare it with the fused kernel.

    Only calls of this context are seen: those of other threads and tasks that use the same model are not.  Of a predictor, its
    model is watched.
    """
    recorded: dict[str, list[Tensor]] = {}
    listeners: dict[nn.Module, _Listener] = {}
    for name, part in attention_modules(_network(model)).items():
        recorded[name] = []
        listeners[part] = lambda call, calls=recorded[name]: calls.append(call.weights.detach())  # type: ignore[misc]
    with _listen(listeners, weights_only=True):
        yield recorded


@contextmanager
def record_calls(model: "nn.Module | HasModel", name: str) -> Iterator[list[AttentionCall]]:
    """Collect everything that one attention module computes inside the `with`: a list with one `AttentionCall` for each call."""
    part = _named(_network(model), name)
    recorded, memories = list[AttentionCall](), list[Tensor]()

    def listen(call: AttentionCall) -> None:
        recorded.append(replace(call, memory=memories[-1]) if memories else call)

    def keep(memory: Tensor) -> None:
        memories[:] = [memory]

    with _listen({part: listen}, {part: keep}):
        yield recorded


@contextmanager
def ablate(model: "nn.Module | HasModel", heads: Mapping[str, Collection[int] | None]) -> Iterator[None]:
    """Switch heads off inside the `with`: `ablate(model, {"decoder.2.cross": [0, 3], "decoder.2.attn": None})`.

    A switched-off head gives zeros instead of its weighted sum of values; None switches off all heads of a module.  The output
    projection still adds its bias, and MViT V2 its pooled queries.  Other heads of the same layer are as they were.  Training,
    plain calls and cached decoding are changed alike, in this context only.
    """
    network, listeners = _network(model), dict[nn.Module, _Listener]()
    for name, indices in heads.items():
        part, count = _named(network, name), int(getattr(_named(network, name), "heads", 1))
        if wrong := [index for index in indices or () if not 0 <= index < count]:
            raise ValueError(f"{name!r} has heads 0 to {count - 1}, not {wrong[0]}")
        if indices is None or len(indices):
            listeners[part] = _zero_heads(None if indices is None else sorted(set(indices)))
    with _listen(listeners):
        yield


def _zero_heads(heads: list[int] | None) -> _Listener:
    def listen(call: AttentionCall) -> Tensor:
        mixed = call.mixed  # (B, H, Q, E)
        return mixed.new_zeros(mixed.shape) if heads is None else mixed.index_fill(1, mixed.new_tensor(heads).long(), 0.0)

    return listen


@contextmanager
def without_positions(model: "nn.Module | HasModel") -> Iterator[None]:
    """Remove the positions inside the `with`: added position embeddings and position biases are zeros.

    Recurrences and convolutions carry order too; they stay.  Only this context is changed.
    """
    parts = {*_positional(_network(model)), *_POSITIONS_OFF.get()}
    token = _POSITIONS_OFF.set(parts)
    try:
        yield
    finally:
        parts.clear()  # as in `_listen`
        with suppress(ValueError):
            _POSITIONS_OFF.reset(token)
