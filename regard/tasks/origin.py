"""Where a predictor was loaded from, and its short repr."""

from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary

from torch import nn

from regard.config import Run
from regard.shipped import short_name

__all__ = ["Loaded", "folder_of", "parameter_count", "predictor_repr", "remember_folder"]


class Loaded(Protocol):
    """What every predictor has."""

    @property
    def model(self) -> nn.Module:
        """The network."""

    @property
    def run(self) -> Run:
        """What it was trained with."""


# Beside the predictors, not a field of each: a predictor can be made without a folder, and two of the same run are equal.
_FOLDERS: "WeakKeyDictionary[nn.Module, Path]" = WeakKeyDictionary()
_COUNTS: "WeakKeyDictionary[nn.Module, int]" = WeakKeyDictionary()


def remember_folder(model: nn.Module, folder: Path, parameters: int) -> None:
    """Note the run folder of a model, and how many parameters it had before its weights were laid out for inference."""
    _FOLDERS[model], _COUNTS[model] = folder, parameters


def folder_of(predictor: Loaded) -> Path | None:
    """The run folder that a predictor was loaded from; None if it was made in another way."""
    return _FOLDERS.get(predictor.model)


def parameter_count(model: nn.Module) -> int:
    """The number of parameters of a model; shared ones count once."""
    return _COUNTS.get(model) or sum(parameter.numel() for parameter in model.parameters())


def predictor_repr(predictor: Loaded) -> str:
    """One line: the class, the run folder or name, the family and the number of parameters."""
    folder = folder_of(predictor)
    where = short_name(folder) if folder else predictor.run.name
    return f"{type(predictor).__name__}({where}, {predictor.run.family}, {parameter_count(predictor.model):,} parameters)"
