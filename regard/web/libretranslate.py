"""LibreTranslate's API, so that its clients work: /translate, /languages, /detect, /frontend/settings.

https://docs.libretranslate.com.  It serves the runs that name their languages; the first run of a direction is asked.  Texts are
translated as `regard translate` does: split into sentences, with tags, numbers and addresses kept.
"""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from threading import Lock
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast

from fastapi import Body, FastAPI
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from starlette.requests import Request

from regard.config import nearest
from regard.data.documents.document import Document
from regard.data.documents.html import read_html
from regard.data.text.columns import language_name, language_of
from regard.tasks.translation import Translation, Translator
from regard.web.batching import Job
from regard.web.explorer import ServedRun
from regard.web.languages import Detection, Direction, LanguageDetector, directions_of, learn_detector
from regard.web.routes import BadRequest
from regard.web.serving import Serving, await_answer

__all__ = ["add_libretranslate"]

Result = TypeVar("Result")
LENIENT = ConfigDict(extra="ignore")  # clients send more than the documented fields
MAX_ALTERNATIVES = 9
AUTO = "auto"
SURE = 100.0  # confidence of a language that was given


@dataclass(config=LENIENT)
class TranslateRequest:
    """The body of /translate."""

    q: str | list[str]  # one text or several
    source: str  # a language code, or "auto"
    target: str
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] = 0  # further translations of each text
    api_key: str = ""


@dataclass(config=LENIENT)
class DetectRequest:
    """The body of /detect."""

    q: str | list[str]
    api_key: str = ""


@dataclass
class DetectedLanguage:
    """A language, and how sure it is, from 0 to 100."""

    confidence: float
    language: str


@dataclass
class Language:
    """A language, and those it can be translated to."""

    code: str
    name: str
    targets: list[str]


@dataclass
class Error:
    """Why a request was refused."""

    error: str


class ServedDirection(NamedTuple):
    """A run, and one of the directions it translates."""

    run: ServedRun
    direction: Direction


def add_libretranslate(app: FastAPI, serving: Serving) -> None:
    """Add the routes; without runs that name their languages they say so."""
    errors: dict[int | str, dict[str, Any]] = {"4XX": {"model": Error, "description": "One line that says why"}}
    directions = _Directions(serving)

    @app.post("/translate", responses=errors | {200: {"description": "The translations", "content": {"application/json": {
        "schema": _translated_schema()}}}})  # fmt: skip
    async def translate(request: Request, body: Annotated[TranslateRequest, Body()]) -> dict[str, Any]:
        """Translate a text, or each text of a list."""
        texts = [body.q] if isinstance(body.q, str) else body.q
        if not any(text.strip() for text in texts):
            raise BadRequest("q is empty; send a text to translate")
        serving.require_texts(texts, "q")
        end = time.monotonic() + serving.limits.seconds
        detections = await directions.sources_of(request, texts, body.source, body.target)
        rows_of = dict[str, list[int]]()  # texts of one language together, all languages at the same time
        for row, detection in enumerate(detections):
            rows_of.setdefault(detection.language, []).append(row)
        seconds = end - time.monotonic()
        translations = await _gather(
            [directions.translate(request, [texts[row] for row in rows], code, body, seconds) for code, rows in rows_of.items()]
        )
        answers: list[_Answer] = [_Answer("", [])] * len(texts)
        for rows, translated in zip(rows_of.values(), translations, strict=True):
            for row, answer in zip(rows, translated, strict=True):
                answers[row] = answer
        several = not isinstance(body.q, str)
        found: dict[str, list[Any]] = {"translatedText": [answer.text for answer in answers]}
        if body.alternatives:
            found["alternatives"] = [answer.alternatives for answer in answers]
        if body.source == AUTO:
            found["detectedLanguage"] = [found._asdict() for found in detections]
        return found if several else {key: values[0] for key, values in found.items()}

    @app.post("/detect", responses=errors)
    async def detect(request: Request, body: Annotated[DetectRequest, Body()]) -> list[DetectedLanguage]:
        """The languages that a text may be in, among those of the served runs, the likeliest first."""
        text = body.q if isinstance(body.q, str) else "\n".join(body.q)
        if not text.strip():
            raise BadRequest("q is empty; send a text")
        serving.require_texts([text], "q")
        future = serving.background.run(lambda: directions.detector().detect(text))
        found = await await_answer(request, future, serving.limits.seconds)
        return [DetectedLanguage(one.confidence, one.language) for one in found]

    @app.get("/languages", responses=errors)
    async def languages() -> list[Language]:
        """The languages of the served runs."""
        return [Language(code, language_name(code), directions.targets(code)) for code in directions.codes]

    @app.get("/frontend/settings", responses=errors)
    async def settings() -> dict[str, Any]:
        """What LibreTranslate's own clients ask before they show a form."""
        first = directions.served[0].direction if directions.served else Direction("", "")
        codes = {"source": first.source, "target": first.target}
        return {
            "apiKeys": False, "keyRequired": bool(serving.settings.api_key), "charLimit": serving.limits.text,
            "frontendTimeout": 500, "suggestions": False, "filesTranslation": False, "supportedFilesFormat": [],
            "language": {side: {"code": code, "name": language_name(code)} for side, code in codes.items()},
        }  # fmt: skip


class _Answer(NamedTuple):
    text: str
    alternatives: list[str]


class _Directions:
    """The directions that are served, and what tells their languages apart."""

    def __init__(self, serving: Serving):
        self._serving = serving
        runs = [run for run in serving.explorer.runs.values() if isinstance(run.predictor, Translator)]
        self.served = [ServedDirection(run, direction) for run in runs for direction in directions_of(run.predictor.run)]
        # one for each run: jobs of the same one share batches
        self._works = {run.name: _TranslateWork(run.predictor) for run in runs if isinstance(run.predictor, Translator)}
        self._detector: LanguageDetector | None = None
        self._missing: set[str] = set()
        self._lock = Lock()

    @property
    def codes(self) -> list[str]:
        """All languages, those that can be translated first."""
        sources = [served.direction.source for served in self.served]
        return list(dict.fromkeys(sources + [served.direction.target for served in self.served]))

    def targets(self, source: str) -> list[str]:
        """The languages that one can be translated to."""
        return list(dict.fromkeys(served.direction.target for served in self.served if served.direction.source == source))

    def detector(self) -> LanguageDetector:
        """What tells the languages apart; refused if some of them cannot be known here."""
        self._learn()
        assert self._detector
        if self._missing or not self._detector.languages:
            self._require_any()
            unknown = ", ".join(sorted(self._missing))
            raise BadRequest(f"the language of a text cannot be detected: the training texts of {unknown} are not on this "
                             f"machine; give source, one of {', '.join(self.codes)}")  # fmt: skip
        return self._detector

    def _learn(self) -> None:
        with self._lock:
            if self._detector is None:
                runs = {served.run.name: served.run.predictor.run for served in self.served}
                self._detector, self._missing = learn_detector(list(runs.values()))

    def _require_any(self) -> None:
        if not self.served:
            raise BadRequest('no run here names its languages; put languages = "en-it" at the top of its run.toml, '
                             "or use /v1/completions", 404)  # fmt: skip

    async def sources_of(self, request: Request, texts: Sequence[str], source: str, target: str) -> list[Detection]:
        """The language to translate each text from, as given or detected; to detect one takes time."""
        if source != AUTO:
            return [self._source_of("", source, target)] * len(texts)
        future = self._serving.background.run(lambda: [self._source_of(text, source, target) for text in texts])
        return await await_answer(request, future, self._serving.limits.seconds)

    def _source_of(self, text: str, source: str, target: str) -> Detection:
        self._require_any()
        self._require_known(target, "target", {served.direction.target for served in self.served})
        sources = [served.direction.source for served in self.served if served.direction.target == _code(target)]
        if source != AUTO:
            self._require_known(source, "source", {served.direction.source for served in self.served})
            if _code(source) not in sources:
                raise BadRequest(
                    f"no run here translates {source} to {target}; to {target} from {', '.join(dict.fromkeys(sources))}"
                )
            return Detection(_code(source), SURE)
        self._learn()
        assert self._detector
        if self._missing and len(set(sources)) == 1:
            return Detection(sources[0], 0.0)  # not known, but there is no choice
        found = next(iter(self.detector().detect(text)), Detection(sources[0], 0.0))
        if found.language not in sources:
            raise BadRequest(f"the text seems to be {language_name(found.language)}, which nothing here translates to {target}; "
                             f"give source, one of {', '.join(dict.fromkeys(sources))}")  # fmt: skip
        return found

    def _require_known(self, code: str, what: str, known: set[str]) -> None:
        if _code(code) in known:
            return
        if _code(code) in self.codes:  # of another direction
            pairs = ", ".join(dict.fromkeys(f"{one.source} to {one.target}" for _, one in self.served))
            raise BadRequest(f"no run here translates {'from' if what == 'source' else 'to'} {code}; available: {pairs}")
        raise BadRequest(f"{what} {code[:20]!r} is not a language that is served{nearest(code[:20], sorted(known))}; "
                         f"available: {', '.join(sorted(known))}")  # fmt: skip

    async def translate(self, request: Request, texts: list[str], language: str, body: TranslateRequest,
                        seconds: float) -> list[_Answer]:  # fmt: skip
        """Translate texts of one language."""
        wanted = language, _code(body.target)
        run, direction = next(served for served in self.served if served.direction[:2] == wanted)
        html = await asyncio.to_thread(_read_pages, texts) if body.format == "html" else None
        blocks = [block for page in html for block in page.texts] if html else texts
        future = self._serving.threads[run.name].submit(
            self._works[run.name], tuple(direction.prefix + block if block.strip() else block for block in blocks),
            options=(body.alternatives,), seconds=seconds, cost=sum(map(len, blocks)),
        )  # fmt: skip
        found = await await_answer(request, future, seconds)
        self._serving.metrics.count_tokens(run.name, sum(one.source_tokens for one in found), sum(len(one.ids) for one in found))
        if html is None:
            return [_Answer(one.text, _others(one.text, [other.text for other in one.n_best])) for one in found]
        answers, rest = list[_Answer](), iter(found)
        for page in html:
            translations = [next(rest) for _ in page.texts]
            nth = [[_nth_best(one, n) for one in translations] for n in range(body.alternatives + 1)]
            first, *others = (page.render(blocks).decode() for blocks in nth)
            answers.append(_Answer(first, _others(first, others)))
        return answers


def _read_pages(texts: Sequence[str]) -> list[Document]:
    return [read_html(text.encode()) for text in texts]


async def _gather(awaited: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """The results of all, at the same time; if one fails, the others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in awaited]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class _TranslateWork:
    """Jobs of several texts each → their translations, all decoded together."""

    def __init__(self, translator: Translator):
        self._translator = translator

    def __call__(self, jobs: Sequence[Job[tuple[str, ...], list[Translation]]]) -> list[list[Translation]]:
        translator = self._translator
        [alternatives] = cast(tuple[int], jobs[0].options)
        n_best = alternatives + 1
        beam = max(n_best, translator.run.decode.beam_size)
        texts, observers = [text for job in jobs for text in job.item], [job for job in jobs for _ in job.item]
        found = iter(translator.translate(texts, beam=beam, n_best=n_best, observers=observers))
        return [[next(found) for _ in job.item] for job in jobs]


def _others(text: str, n_best: Sequence[str]) -> list[str]:
    """The alternatives of a translation: different tokens may be the same text."""
    return [other for other in dict.fromkeys(n_best) if other != text]


def _nth_best(answer: Translation, n: int) -> str:
    return answer.n_best[n].text if n < len(answer.n_best) else answer.text


def _code(language: str) -> str:
    return language_of(language) or language


def _translated_schema() -> dict[str, Any]:
    """One text, or a list of them, and the same of what else was asked for."""
    text = {"type": "string"}
    language = {"type": "object", "properties": {"confidence": {"type": "number"}, "language": text}}

    def one_or_list(kind: dict[str, Any]) -> dict[str, Any]:
        return {"anyOf": [kind, {"type": "array", "items": kind}]}

    return {"type": "object", "required": ["translatedText"], "properties": {
        "translatedText": one_or_list(text), "alternatives": one_or_list({"type": "array", "items": text}),
        "detectedLanguage": one_or_list(language)}}  # fmt: skip
