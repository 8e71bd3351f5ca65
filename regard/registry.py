"""Names of models or tasks, each with the module that defines it, which is imported when it is first asked for."""

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Generic, TypeVar

__all__ = ["Registry"]

T = TypeVar("T")


class Registry(MutableMapping[str, T], Generic[T]):
    """A table of values that are constants of modules: `registry["gpt"]` imports the module of "gpt" and returns its constant.

    A verb thus waits for the one model and the one task it uses.  A value may also be put in directly.
    """

    def __init__(self, constant: str, modules: Mapping[str, str]):
        self.constant, self._modules = constant, dict[str, str | T](modules)

    def __getitem__(self, name: str) -> T:
        value = self._modules[name]
        if isinstance(value, str):
            found: T = getattr(import_module(value), self.constant)
            self._modules[name] = value = found
        return value

    def __setitem__(self, name: str, value: str | T) -> None:
        self._modules[name] = value

    def __delitem__(self, name: str) -> None:
        del self._modules[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __contains__(self, name: object) -> bool:
        return name in self._modules
