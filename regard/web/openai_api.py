"""OpenAI's API, so that its clients work: /v1/models, /v1/completions (also streamed), /v1/embeddings.

https://platform.openai.com/docs/api-reference.  A language model continues the prompt; a translator answers with the translation
of the prompt, as a T5 does with its task prefix in it.  Options that are not supported, such as echo,
logprobs and penalties, are refused by name; chat is not served.
"""

import base64
import math
import secrets
import struct
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Body, FastAPI
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from starlette.requests import Request
from starlette.responses import Response
from torch import Tensor

from regard.config import nearest
from regard.tasks.language_model import Continuation, Prompt, TextGenerator
from regard.tasks.predictors import Predictor
from regard.tasks.translation import Translator
from regard.web.batching import Job, OutOfTime, QueueFull, ThreadClosed, Work
from regard.web.error_bodies import error_body, one_line
from regard.web.explorer import ServedRun
from regard.web.routes import BadRequest
from regard.web.serving import EventStream, Serving, await_answer, gather_futures, json_bytes, map_future

__all__ = ["add_openai"]

LENIENT = ConfigDict(extra="ignore")
MAX_CHOICES = 64  # completions of one request
MAX_STOPS = 4
DEFAULT_TOKENS = 16  # as OpenAI's
EMBEDS = ("text", "words")  # inputs of predictors that embed texts


@dataclass(config=LENIENT)
class StreamOptions:
    """What else to stream."""

    include_usage: bool | None = False


@dataclass(config=LENIENT)
class CompletionRequest:
    """The body of /v1/completions."""

    model: str
    prompt: str | list[str] | list[int] | list[list[int]] = ""
    max_tokens: Annotated[int, Field(ge=1, le=100_000)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = 1
    stop: str | list[str] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**62)] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    echo: bool | None = False
    logprobs: int | None = None
    best_of: int | None = None
    suffix: str | None = None
    presence_penalty: float | None = 0.0
    frequency_penalty: float | None = 0.0
    logit_bias: dict[str, float] | None = None


@dataclass(config=LENIENT)
class EmbeddingRequest:
    """The body of /v1/embeddings."""

    model: str
    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: int | None = None


@dataclass
class ErrorDetail:
    """Why a request was refused."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


@dataclass
class Error:
    """The body of a refusal."""

    error: ErrorDetail


ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": Error, "description": "One line that says why"}}


def add_openai(app: FastAPI, serving: Serving) -> None:
    """Add the routes."""
    models, started = _Models(serving), int(time.time())
    works: dict[str, Work[Prompt, Continuation]] = {}  # one for each run: jobs of the same one share batches
    embeds: dict[str, _EmbedWork] = {}
    for run in models.runs:
        if isinstance(run.predictor, Translator):
            works[run.name] = _TranslateWork(run.predictor)
        elif isinstance(run.predictor, TextGenerator):
            works[run.name] = _GenerateWork(run.predictor)
        if "embed" in abilities(run):
            embeds[run.name] = _EmbedWork(run.predictor)

    @app.get("/v1/models", responses=ERRORS)
    async def list_models() -> dict[str, Any]:
        """The runs that complete or embed texts, and which of both."""
        return {"object": "list", "data": [models.describe(run, started) for run in models.runs]}

    @app.get("/v1/models/{model:path}", responses=ERRORS)
    async def get_model(model: str) -> dict[str, Any]:
        """One run."""
        return models.describe(models.find(model, ""), started)

    @app.post("/v1/completions", response_class=Response, responses=ERRORS | {200: {"description": "The completion", "content": {
        "application/json": {"schema": {"type": "object"}}, "text/event-stream": {"schema": {"type": "string"}}}}})  # fmt: skip
    async def complete(request: Request, body: Annotated[CompletionRequest, Body()]) -> Response:
        """Continue a prompt, or translate it if the run is a translator; with `stream`, as server-sent events."""
        _refuse_unsupported(body)
        run = models.find(body.model, "complete")
        prompts = _texts(body.prompt, "prompt")
        serving.require_texts(prompts, "prompt")
        completion = _Completion(serving, run, works[run.name], body, prompts)
        if body.stream:
            return await completion.stream(request)
        return Response(json_bytes(await completion.whole(request)), media_type="application/json")

    @app.post("/v1/embeddings", responses=ERRORS)
    async def embed(request: Request, body: Annotated[EmbeddingRequest, Body()]) -> dict[str, Any]:
        """A vector for each text."""
        run = models.find(body.model, "embed")
        if body.dimensions is not None:
            raise BadRequest("dimensions is not supported: vectors have the width of the model; leave it out")
        texts = _texts(body.input, "input")
        if not texts or not all(text.strip() for text in texts):
            raise BadRequest("input has an empty text; send texts that are not empty")
        serving.require_texts(texts, "input")
        future = serving.threads[run.name].submit(embeds[run.name], tuple(texts), cost=sum(map(len, texts)))
        vectors, tokens = await await_answer(request, future, serving.limits.seconds)
        serving.metrics.count_tokens(run.name, tokens, 0)
        rows = [vector.tolist() if body.encoding_format != "base64" else _base64(vector) for vector in vectors]
        data = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)]
        return {"object": "list", "model": run.name, "data": data, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


class _Models:
    """The runs by name, and what each can do."""

    def __init__(self, serving: Serving):
        self._serving = serving
        self.runs = [run for run in serving.explorer.runs.values() if abilities(run)]

    def find(self, name: str, ability: str) -> ServedRun:
        """A run by name that has an ability, "" for any."""
        able = [run.name for run in self.runs if not ability or ability in abilities(run)]
        if name in able:
            return self._serving.explorer.run(name)
        other = self._serving.explorer.runs.get(name)
        listed = f"use {', '.join(able)}" if able else "no run here can"
        if other is not None:
            raise BadRequest(
                f"{name} is of family {other.predictor.run.family}, which does not {ability or 'answer texts'}; {listed}"
            )
        raise BadRequest(f"no model {name[:60]!r}{nearest(name[:60], able)}; {listed}", 404)

    @staticmethod
    def describe(run: ServedRun, created: int) -> dict[str, Any]:
        """OpenAI's fields, and what the run does."""
        verbs = list(getattr(run.predictor, "VERBS", ()))
        return {"id": run.name, "object": "model", "created": created, "owned_by": "regard", "family": run.predictor.run.family,
                "abilities": abilities(run), "verbs": verbs}  # fmt: skip


def abilities(run: ServedRun) -> list[str]:
    """What this API can ask of a run: "complete", "embed"."""
    predictor = run.predictor
    embeds = "embed" in getattr(predictor, "VERBS", ()) and getattr(predictor, "INPUT", "") in EMBEDS
    completes = isinstance(predictor, TextGenerator | Translator)
    return ["complete"] * completes + ["embed"] * embeds


def _texts(given: object, name: str) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    assert isinstance(texts, list)
    if not all(isinstance(text, str) for text in texts):
        raise BadRequest(f"{name} of token ids is not supported; send text, or a list of texts")
    if not texts:
        raise BadRequest(f"{name} is an empty list; send a text, or a list of texts")
    return texts


def _refuse_unsupported(body: CompletionRequest) -> None:
    unsupported = {
        "echo": body.echo, "logprobs": body.logprobs is not None, "suffix": body.suffix, "logit_bias": body.logit_bias,
        "best_of": body.best_of is not None and body.best_of != (body.n or 1), "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
    }  # fmt: skip
    for name, given in unsupported.items():
        if given:
            raise BadRequest(f"{name} is not supported; leave it out")


class _EmbedWork:
    """Jobs of several texts each → their vectors and their number of tokens."""

    def __init__(self, predictor: Predictor):
        self._predictor: Any = predictor  # one of those that embed texts

    def __call__(self, jobs: Sequence[Job[tuple[str, ...], tuple[Tensor, int]]]) -> list[tuple[Tensor, int]]:
        texts = [text for job in jobs for text in job.item]
        counts = [len(ids) for ids in self._predictor.tokenizer.encode(texts)]
        # the predictor would truncate a longer text: its vector would be that of another text
        if max(counts) > (limit := getattr(self._predictor, "max_len", math.inf)):
            raise ValueError(f"a text of {max(counts):,} tokens; the context length is {limit} tokens: send shorter texts")
        vectors = self._predictor.embed(texts)
        found, first = list[tuple[Tensor, int]](), 0
        for job in jobs:
            last = first + len(job.item)
            found.append((vectors[first:last], sum(counts[first:last])))
            first = last
        return found


def _base64(vector: Tensor) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector.tolist())).decode()


class _GenerateWork:
    """Prompts, also of several requests → what follows each, decoded together."""

    def __init__(self, generator: TextGenerator):
        self._generator = generator

    def __call__(self, jobs: Sequence[Job[Prompt, Continuation]]) -> list[Continuation]:
        prompts = [job.item if job.item.tokens else self._limit(job.item) for job in jobs]
        return self._generator.generate_batch(prompts, jobs)

    def _limit(self, prompt: Prompt) -> Prompt:
        _, room = self._generator.encode_prompt(prompt.text)
        return replace(prompt, tokens=min(room, DEFAULT_TOKENS))


class _TranslateWork:
    """Prompts → their translations, decoded together unless they are sampled."""

    def __init__(self, translator: Translator):
        self._translator = translator

    def __call__(self, jobs: Sequence[Job[Prompt, Continuation]]) -> list[Continuation]:
        translator, first, texts = self._translator, jobs[0].item, [job.item.text for job in jobs]
        tokens = first.tokens and min(first.tokens, translator.max_answer(translator.max_len))  # more than any answer needs
        sampled: dict[str, Any] = {}
        if first.temperature:
            sampled = {"temperature": first.temperature, "top_p": first.top_p, "seed": first.seed}
        answers = translator.translate(texts, tokens=tokens, observers=[_WithoutPartial(job) for job in jobs], **sampled)
        found = []
        for answer, job in zip(answers, jobs, strict=True):
            text, stopped = _cut(answer.text, job.item.stop)
            long = not stopped and len(answer.ids) >= translator.max_answer(answer.source_tokens, tokens)
            found.append(Continuation(text, len(answer.ids), answer.source_tokens, "length" if long else "stop"))
        return found


class _WithoutPartial:
    """The observer of a translation that is sent when it is complete: a beam search may still change its first words."""

    partial = None

    def __init__(self, job: Job[Prompt, Continuation]):
        self._job = job

    @property
    def wanted(self) -> bool:
        return self._job.wanted


class _Completion:
    """One request for completions: every prompt `n` times."""

    def __init__(self, serving: Serving, run: ServedRun, work: Work[Prompt, Continuation], body: CompletionRequest,
                 prompts: list[str]):  # fmt: skip
        self._serving, self._run, self._work, self._body = serving, run, work, body
        count = body.n or 1
        if len(prompts) * count > MAX_CHOICES:
            raise BadRequest(
                f"{len(prompts)} prompts and n {count} are {len(prompts) * count} completions; ask for {MAX_CHOICES}"
            )
        if len(prompts) * count > (limit := serving.threads[run.name].limit):  # there would never be room
            raise BadRequest(f"{len(prompts) * count} completions, and {limit} may wait for a model; ask for at most {limit}")
        stop = tuple(filter(None, [body.stop] if isinstance(body.stop, str) else body.stop or []))
        if len(stop) > MAX_STOPS:
            raise BadRequest(f"{len(stop)} stop strings; give at most {MAX_STOPS}")
        temperature = body.temperature
        if temperature is None:
            temperature = 1.0 if isinstance(run.predictor, TextGenerator) else 0.0  # a translator searches unless told
        seed = secrets.randbits(60) if body.seed is None else body.seed
        how = Prompt("", body.max_tokens, temperature, 0, body.top_p or 1.0, seed, stop)
        self._prompts = [replace(how, text=text, seed=seed + number) for text in prompts for number in range(count)]
        self._id, self._created = f"cmpl-{secrets.token_hex(12)}", int(time.time())

    def _submit(self, show: Callable[[int, str], None] | None = None) -> "Future[list[Continuation]]":
        """A job for each prompt; `show` gets the number of a prompt and what follows it so far."""
        thread, jobs = self._serving.threads[self._run.name], list[Future[Continuation]]()
        translates = isinstance(self._run.predictor, Translator)
        try:
            for index, prompt in enumerate(self._prompts):
                # translations share a batch if they are searched alike; samples of one batch would share its random numbers
                options: Hashable = (prompt.tokens, object() if prompt.temperature else None) if translates else ()
                jobs.append(thread.submit(self._work, prompt, options=options, partial=show and partial(show, index),
                                          cost=len(prompt.text)))  # fmt: skip
        except QueueFull:
            for job in jobs:
                job.cancel()
            raise
        return gather_futures(jobs)

    def _usage(self, found: list[Continuation]) -> dict[str, int]:
        prompt, answer = sum(one.prompt_tokens for one in found), sum(one.tokens for one in found)
        self._serving.metrics.count_tokens(self._run.name, prompt, answer)
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}

    def _json(self, choices: list[dict[str, Any]], **more: object) -> dict[str, Any]:
        return {"id": self._id, "object": "text_completion", "created": self._created, "model": self._run.name,
                "choices": choices, **more}  # fmt: skip

    async def whole(self, request: Request) -> dict[str, Any]:
        """All completions at once."""
        found = await await_answer(request, self._submit(), self._serving.limits.seconds)
        return self._json([_choice(index, one.text, one.reason) for index, one in enumerate(found)], usage=self._usage(found))

    async def stream(self, request: Request) -> EventStream:
        """Server-sent events: pieces of text, the end of each completion, the usage if it was asked for, [DONE]."""
        sent = [0] * len(self._prompts)  # characters of each completion

        def start(send: Callable[[bytes], None]) -> "Future[None]":
            def show(index: int, text: str) -> None:
                if len(text) > sent[index]:
                    piece, sent[index] = text[sent[index] :], len(text)
                    send(_event(self._json([_choice(index, piece, None)])))

            def finish(found: list[Continuation]) -> None:
                for index, one in enumerate(found):
                    send(_event(self._json([_choice(index, one.text[sent[index] :], one.reason)])))
                usage = self._usage(found)
                if self._body.stream_options and self._body.stream_options.include_usage:
                    send(_event(self._json([], usage=usage)))

            return map_future(self._submit(show), finish)

        seconds = self._serving.limits.seconds
        stream = EventStream(request, start, media_type="text/event-stream", seconds=seconds, on_error=_error_event, end=DONE)
        return await stream.begin()


def _choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


DONE = b"data: [DONE]\n\n"


def _event(value: object) -> bytes:
    return b"data: " + json_bytes(value) + b"\n\n"


def _error_event(error: Exception) -> bytes:
    if not isinstance(error, ValueError | QueueFull | OutOfTime | ThreadClosed):
        raise error
    return _event(error_body("/v1/", 400, one_line(error)))


def _cut(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """A text up to the first of the stop strings, and whether there was one."""
    places = [place for string in stop if (place := text.find(string)) >= 0]
    return (text[: min(places)], True) if places else (text, False)
