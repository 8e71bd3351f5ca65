"""Endpoints of the view "What if": heads, layers and words switched off, and how much each head matters."""

import dataclasses
from dataclasses import field
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from regard.config import STRICT
from regard.tasks.observer import TextObserver
from regard.view.ablation import Loss, Scored, ablate_record, importance
from regard.web.explorer import Explorer
from regard.web.routes import BadRequest, Endpoint, Json

__all__ = ["ENDPOINTS", "AblateBody", "ImportanceBody"]

MAX_SWITCHES = 10_000  # of one request

Number = Annotated[int, Field(ge=0, le=10_000_000)]
Pair = Annotated[list[Number], Field(min_length=2, max_length=2)]  # JSON has no tuples


@dataclass(frozen=True, config=STRICT)
class AblateBody:
    """What to switch off, counted from 0."""

    heads: Annotated[list[Pair], Field(max_length=MAX_SWITCHES)] = field(default_factory=list)  # layer and head
    layers: Annotated[list[Number], Field(max_length=MAX_SWITCHES)] = field(default_factory=list)
    words: Annotated[list[Pair], Field(max_length=MAX_SWITCHES)] = field(
        default_factory=list
    )  # start and end on the input's axis


@dataclass(frozen=True, config=STRICT)
class ImportanceBody:
    """Nothing to choose."""


def ablate(explorer: Explorer, record: str, heads: list[list[int]], layers: list[int], words: list[list[int]],
           observer: TextObserver | None = None) -> Json:  # fmt: skip
    """The answer of the changed model, and the probability of the recorded answer before and after."""
    inspected = explorer.record(record)
    try:
        found = ablate_record(inspected.predictor.model, inspected.record, heads=[(layer, head) for layer, head in heads],
                              layers=layers, words=[(start, end) for start, end in words], observer=observer)  # fmt: skip
    except ValueError as error:
        raise BadRequest(str(error)) from error
    return {"answer": dataclasses.asdict(found.answer), "base": _scored(found.base), "changed": _scored(found.changed)}


def rank(explorer: Explorer, record: str, observer: TextObserver | None = None) -> Json:
    """Heads and layers by what the recorded answer loses without each, largest first."""
    inspected = explorer.record(record)
    if not inspected.record.answer.items:
        raise BadRequest("this model gave no answer, so nothing can make it less probable")
    found = importance(inspected.predictor.model, inspected.record, observer=observer)
    answer = inspected.record.answer.text
    return {
        "base": _scored(found.base), "heads": [_loss(loss, answer) for loss in found.heads],
        "layers": [_loss(loss, answer) for loss in found.layers], "total": found.total,
    }  # fmt: skip


def _scored(scored: Scored) -> Json:
    return {"logprob": scored.logprob, "probabilities": scored.probabilities}


def _loss(loss: Loss, answer: str) -> Json:
    changes = None if loss.answer is None else loss.answer != answer
    return {"layer": loss.layer, "head": loss.head, "drop": loss.drop, "answer": loss.answer, "answer_changes": changes}


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("POST", "/records/{record}/ablate", ablate, body=AblateBody, observed=True),
    Endpoint("POST", "/records/{record}/importance", rank, body=ImportanceBody, observed=True),
)
