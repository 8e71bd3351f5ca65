"""How a run learned and how it knows positions, as JSON."""

import dataclasses
from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from regard.view.learning import read_learning
from regard.view.positions import PositionPanel, map_positions
from regard.web.encode import encode_matrix
from regard.web.explorer import Explorer
from regard.web.routes import BadRequest, Endpoint, Json

__all__ = ["ENDPOINTS", "PositionsQuery"]

MAX_POSITIONS = 256  # that are sent: as many rows as a page can show


@dataclass(frozen=True)
class PositionsQuery:
    """How many positions of a text, and of models with a bias in each layer, which layer, counted from 0."""

    length: Annotated[int, Field(ge=2, le=MAX_POSITIONS)] = 64
    layer: Annotated[int, Field(ge=0, le=10_000)] | None = None


def read_log(explorer: Explorer, run: str) -> Json:
    """The curves of a training, the steps whose weights can be asked for, and how often weights were to be kept."""
    served = explorer.run(run)
    train = served.predictor.run.train
    about = {
        "checkpoints": served.checkpoints,
        "steps": train.steps,
        "save_every": train.save_every,
        "keep_every": train.keep_every,
    }
    if served.folder is None:
        return {"points": [], "validation": [], "final": None, **about}
    try:
        return {**dataclasses.asdict(read_learning(served.folder)), **about}
    except (OSError, ValueError) as error:
        raise BadRequest(f"the log of {run} cannot be read: {error}", 404) from None


def show_positions(explorer: Explorer, run: str, length: int, layer: int | None) -> Json:
    """The tables, similarities and biases of a run's positions."""
    served = explorer.run(run)
    try:
        found = map_positions(served.predictor, served.name, length=length, layer=None if layer is None else layer + 1)
    except ValueError as error:  # no positions, or no such layer
        raise BadRequest(str(error), 404) from None
    return {"title": found.title, "panels": [_panel_json(panel) for panel in found.panels]}


def _panel_json(panel: PositionPanel) -> Json:
    values = {field.name: getattr(panel, field.name) for field in dataclasses.fields(panel)}
    return {**values, "first": list(panel.first), "values": encode_matrix(torch.tensor(panel.values))}


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/runs/{run}/log", read_log),
    Endpoint("GET", "/runs/{run}/positions", show_positions, query=PositionsQuery),
)
