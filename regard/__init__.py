"""regard: train, run and see inside Transformers, on your own data, on your own machine.

The public names are those of `__init__.pyi`, each imported when it is first used: `import regard` does not wait for torch.
"""

import re
from importlib import import_module
from pathlib import Path

from regard.version import VERSION as __version__

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_MODULES = {name: module for module, name in re.findall(r"^from (regard\S+) import \w+ as ([A-Za-z]\w*)$", _STUB, flags=re.M)}

__all__ = ["__version__", *_MODULES]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}; it has {', '.join(_MODULES)}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
