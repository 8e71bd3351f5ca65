"""Greedy search, beam search and a sample of an inspected input, step by step, as JSON."""

import dataclasses
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from regard.config import STRICT
from regard.tasks.observer import TextObserver
from regard.tasks.translation import Sampling
from regard.view.trace import DecodingTrace, trace_decoding
from regard.web.explorer import Explorer, StoredRecord
from regard.web.inputs import input_kind, read_sound
from regard.web.routes import BadRequest, Endpoint, Json

__all__ = ["ENDPOINTS", "DecodingBody"]

MAX_BEAM = 12  # beams of a tree that can still be read
MAX_TOP = 20
MAX_TOKENS = 256  # of an answer: each step is sent with what it read


@dataclass(frozen=True, config=STRICT)
class DecodingBody:
    """How to search and to sample; `beam` is the run's, at least 2, unless given."""

    beam: Annotated[int, Field(ge=1, le=MAX_BEAM)] | None = None
    top: Annotated[int, Field(ge=1, le=MAX_TOP)] = 8
    tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    temperature: Annotated[float, Field(gt=0, le=100)] = 1.0
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**53)] = 0


def trace_record(
    explorer: Explorer, record: str, beam: int | None, top: int, tokens: int | None, temperature: float, top_k: int, top_p: float,
    seed: int, observer: TextObserver | None = None,
) -> Json:  # fmt: skip
    """The steps of three searches for the answer to the same input."""
    inspected = explorer.record(record)
    predictor = inspected.predictor
    width = min(beam or max(2, predictor.run.decode.beam_size), MAX_BEAM)
    sampling = Sampling(temperature, top_k, top_p, seed)
    how: dict[str, Any] = {"top": top, "tokens": tokens, "max_tokens": MAX_TOKENS, "observer": observer}
    try:
        what = _given(inspected)
        greedy = trace_decoding(predictor, what, beam=1, **how)
        searched = trace_decoding(predictor, what, beam=width, **how)
        sample = trace_decoding(predictor, what, sampling=sampling, **how)
    except BadRequest:
        raise
    except ValueError as error:
        raise BadRequest(str(error)) from None
    return {"greedy": _trace_json(greedy), "beam": _trace_json(searched), "sample": _trace_json(sample)}


def _given(inspected: StoredRecord) -> str | bytes | Tensor:
    """What was inspected, as the predictor takes it."""
    if inspected.file is None:
        return inspected.text or ""
    if input_kind(inspected.predictor) == "image":
        return inspected.file
    return read_sound(inspected.file, inspected.name or "the file", inspected.predictor.run.data.rate)


def _trace_json(trace: DecodingTrace) -> Json:
    return dataclasses.asdict(trace)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("POST", "/records/{record}/decoding", trace_record, body=DecodingBody, observed=True),
)
