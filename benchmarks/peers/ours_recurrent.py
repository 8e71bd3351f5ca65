"""regard's side of recurrent_training.py: the step of ours_training.py on a recurrent translator."""

from dataclasses import fields
from typing import Any

from ours_training import training
from torch import Tensor
from worker import Training, serve_training

from regard.models import FAMILIES


def begin(shape: dict[str, Any], pairs: list[tuple[Tensor, Tensor]]) -> Training:
    family = FAMILIES[shape["family"]]
    config = family.config(**{field.name: shape[field.name] for field in fields(family.config)})
    return training(family.build(config), shape, pairs)


if __name__ == "__main__":
    serve_training(begin)
