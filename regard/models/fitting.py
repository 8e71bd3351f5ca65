"""Whether a config can be that of a weights file, told before any memory is allocated for it."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = ["build_without_memory", "require_fitting", "without_random_values"]

ALWAYS = 16_384  # a size up to this needs no tensor of that size, such as the side of an image
DRAWS = (Tensor.uniform_, Tensor.normal_, nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_)
FREE = ("max_len", "max_distance", "pad")  # sizes that no tensor need have


def require_fitting(config: Any, shapes: Sequence[tuple[int, ...]], name: str) -> None:
    """Refuse a config that asks for more layers than a weights file has tensors, or for sizes that none of them has."""
    largest = max((side for shape in shapes for side in shape), default=0)
    for key, size in _sizes(dataclasses.asdict(config)):
        limit = len(shapes) if "depth" in key else max(largest, ALWAYS)
        if key.rpartition(".")[2] not in FREE and size > limit:
            what = f"{len(shapes):,} tensors" if "depth" in key else f"no tensor larger than {largest:,} on a side"
            raise ValueError(f"{name} has {key} = {size:,}, but its weights file has {what}; restore the "
                             f"config.json that these weights were saved with, or the weights file")  # fmt: skip


def build_without_memory(build: Callable[[], nn.Module]) -> nn.Module:
    """A model of shapes without values, to compare with a weights file."""
    try:
        with torch.device("meta"), _WithoutValues():
            return build()
    except (RuntimeError, TypeError, OverflowError) as error:
        reason = str(error).split("\n", 1)[0]
        raise ValueError(f"config.json describes a model that cannot be built ({reason}); restore the file") from None


class without_random_values(TorchFunctionMode):
    """Make the initial weights of a model zero instead of random, if they are then read from a file, which is faster."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if func in DRAWS:
            weight: Tensor = args[0] if args else options["tensor"]
            return weight.detach().zero_()
        return func(*args, **options)


class _WithoutValues(TorchFunctionMode):
    """Skip what sets values: on tensors without memory the first such call imports kernels of torch for a second."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if func is Tensor.normal_ or func is nn.init.normal_:
            return args[0] if args else options["tensor"]
        if func is torch.randn:
            return torch.empty(*args, **options)
        if func is torch.cat and len(args) == 1 and not options:
            first = args[0][0]
            return torch.empty(sum(map(len, args[0])), *first.shape[1:], dtype=first.dtype)
        if func is Tensor.mul and isinstance(args[1], int | float) and args[0].is_floating_point():
            return torch.empty(args[0].shape, dtype=args[0].dtype)
        return func(*args, **options)


def _sizes(values: dict[str, Any], inside: str = "") -> Iterator[tuple[str, int]]:
    """All whole numbers of a config, also those of lists (a sum, for depths) and of tables."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _sizes(value, f"{inside}{key}.")
        elif isinstance(value, int) and not isinstance(value, bool):
            yield f"{inside}{key}", value
        elif isinstance(value, list | tuple) and all(isinstance(item, int) for item in value):
            yield f"{inside}{key}", sum(value) if "depth" in key else max(value, default=0)
