"""Endpoints of the view "Step by step": the numbers of one head, of a record or of the lecture's six words."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from regard.config import STRICT
from regard.view.attention_steps import AttentionSteps, attention_steps, lecture_steps
from regard.web.encode import encode_bytes, encode_matrix
from regard.web.explorer import Explorer
from regard.web.routes import BadRequest, Endpoint, Json

__all__ = ["ENDPOINTS", "LectureBody", "StepsBody", "to_json"]

Number = Annotated[int, Field(ge=0, le=10_000_000)]
Seed = Annotated[int, Field(ge=0, lt=2**53)]


@dataclass(frozen=True, config=STRICT)
class StepsBody:
    """Which head and query, and what to change; all counted from 0."""

    layer: Number = 0
    head: Number = 0
    query: Number = 0
    positions: bool = True  # False: position embeddings and biases are zeros
    shuffle: Seed | None = None  # seed: the words of the source change places


@dataclass(frozen=True, config=STRICT)
class LectureBody:
    """The same of the lecture's example, which has one layer, one head and few queries."""

    positions: bool = True
    shuffle: Seed | None = None


def steps(explorer: Explorer, record: str, layer: int, head: int, query: int, positions: bool, shuffle: int | None) -> Json:
    """`Steps` of a head of a record."""
    inspected = explorer.record(record)
    try:
        found = attention_steps(
            inspected.predictor.model, inspected.record, layer, head, query, positions=positions, shuffle=shuffle
        )
    except ValueError as error:
        raise BadRequest(str(error)) from error
    return {"layer": layer, "head": head} | to_json(found)


def lecture(explorer: Explorer, positions: bool, shuffle: int | None) -> Json:
    """`Steps` of the six words; no run is needed."""
    return {"layer": 0, "head": 0} | to_json(lecture_steps(positions=positions, shuffle=shuffle))


def to_json(steps: AttentionSteps) -> Json:
    """Matrices as float32, the mask as bytes."""
    matrices = {
        name: getattr(steps, name) for name in ("x", "memory", "q", "k", "v", "scores", "bias", "weights", "output", "vector")
    }
    return {
        "title": steps.title, "formula": steps.formula, "scale": steps.scale, "queries": steps.queries, "keys": steps.keys,
        "chosen": steps.chosen, "query_positions": steps.query_positions, "key_positions": steps.key_positions,
        "same_tokens": steps.same_tokens, "has_positions": steps.has_positions, "notes": steps.notes,
        "mask": None if steps.mask is None else encode_bytes(steps.mask),
        **{name: None if matrix is None else encode_matrix(matrix) for name, matrix in matrices.items()},
    }  # fmt: skip


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("POST", "/records/{record}/steps", steps, body=StepsBody),
    Endpoint("POST", "/lecture/steps", lecture, body=LectureBody),
)
