"""The server: the explorer's page and its API, LibreTranslate's and OpenAI's APIs, health and metrics, as one FastAPI app.

    app = create_app([ServedRun.open("runs/phrasebook")])
    uvicorn.run(app, host="127.0.0.1", port=8000)

FastAPI describes the APIs at /openapi.json.  Its pages that draw that description are off: they load scripts from elsewhere.
"""

import asyncio
import hashlib
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from fastapi import FastAPI, Query
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from regard.version import VERSION
from regard.web.batching import Job, OutOfTime, QueueFull, ThreadClosed
from regard.web.claims import add_claims
from regard.web.endpoints import ENDPOINTS, check_values
from regard.web.error_bodies import error_body, one_line
from regard.web.explorer import ServedRun
from regard.web.libretranslate import add_libretranslate
from regard.web.metrics import CONTENT_TYPE, MetricsMiddleware
from regard.web.openai_api import add_openai
from regard.web.routes import BadRequest, Endpoint, FileAnswer, Json
from regard.web.security import AUTHORIZED, CHECKED_JSON, Guard, allowed_hosts
from regard.web.serving import EventStream, Serving, Settings, await_answer, json_bytes

__all__ = ["Settings", "create_app"]

Answer = TypeVar("Answer")
PAGE = Path(__file__).parent / "page"
PAGE_ROUTE = "/{path:path}"
API = "/api/v1"
MEDIA_TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
               ".json": "application/json", ".svg": "image/svg+xml", ".png": "image/png"}  # fmt: skip
NDJSON = "application/x-ndjson"
TELEMETRY = {"tracing": False, "metrics": False, "logs": False, "operation_spans": False, "auto_configure": False}


@dataclass
class Error:
    """What a request that is refused gets."""

    error: str
    expired: bool = False  # a record is no longer in memory


@dataclass
class RunHealth:
    """A model's thread."""

    name: str
    waiting: int  # requests in its queue
    working: int  # requests that it answers now


@dataclass
class Health:
    """Whether the server answers, and how busy it is; without the API key only the first."""

    status: str
    runs: list[RunHealth] | None = None


ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": Error, "description": "One line: what came, what was wanted"}}


class CheckedRequest(Request):
    """A request whose body the guard has parsed."""

    async def json(self) -> Any:
        """The checked body."""
        return self.scope[CHECKED_JSON]


class CheckedRoute(APIRoute):
    """A route whose body is the JSON that the guard has checked."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Hand the parsed body to FastAPI."""
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            return await handle(CheckedRequest(request.scope, request.receive))

        return checked

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """HEAD is answered where GET is; the server leaves the body out."""
        return super().matches({**scope, "method": "GET"} if self._is_head(scope) else scope)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer HEAD too, without a description of its own."""
        await (self.app if self._is_head(scope) else super().handle)(scope, receive, send)

    def _is_head(self, scope: Scope) -> bool:
        return scope["type"] == "http" and scope["method"] == "HEAD" and "GET" in (self.methods or ())


def create_app(runs: Sequence[ServedRun], settings: Settings = Settings()) -> FastAPI:
    """The app that serves some runs; its threads end with it, or by `app.state.serving.close()`."""
    serving = Serving(runs, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(serving.close)  # meanwhile the loop sends the last answers

    off: dict[str, Any] = {"telemetry": TELEMETRY} if "telemetry" in inspect.signature(FastAPI.__init__).parameters else {}
    app = FastAPI(title="regard", version=VERSION, docs_url=None, redoc_url=None, lifespan=lifespan, **off)
    app.router.route_class = CheckedRoute
    app.state.serving = serving
    hosts = allowed_hosts(settings.host, settings.names)
    app.add_middleware(Guard, hosts=hosts, methods_of=partial(_methods_of, app), api_key=settings.api_key, limits=settings.limits)
    app.add_middleware(MetricsMiddleware, metrics=serving.metrics, route_of=partial(_route_of, app))
    _add_error_handlers(app)
    for endpoint in ENDPOINTS:
        _add_endpoint(app, serving, endpoint)
    add_libretranslate(app, serving)
    add_openai(app, serving)
    _add_health(app, serving)
    add_claims(app)
    _add_page(app)
    return app


def _add_error_handlers(app: FastAPI) -> None:
    def answer(request: Request, status: int, message: object, *, param: str | None = None, expired: bool = False,
               headers: dict[str, str] | None = None) -> Response:  # fmt: skip
        body = error_body(request.url.path, status, one_line(message), param=param, expired=expired)
        return Response(json_bytes(body), status, headers, "application/json")

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = [str(part) for part in first["loc"] if part != "body"]
        message = f"{'.'.join(where)}: {first['msg'].removeprefix('Value error, ')}" if where else first["msg"]
        status = 422 if request.url.path.startswith(API) else 400
        return answer(request, status, message, param=where[0] if where else None)

    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, BadRequest):
            return answer(request, error.status, error, expired=error.expired)
        return answer(request, 400, error)

    async def busy(request: Request, error: Exception) -> Response:
        assert isinstance(error, QueueFull)
        return answer(request, 429, error, headers={"Retry-After": f"{max(1, round(error.retry_after))}"})

    async def unavailable(request: Request, error: Exception) -> Response:
        return answer(request, 503, error, headers={"Retry-After": "5"})

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code not in (404, 405):
            return answer(request, error.status_code, error.detail, headers=dict(error.headers or {}))
        # the page's route has all addresses, so that the router cannot tell which are unknown
        if methods := _methods_of(app, request.url.path):
            message = f"{request.method} is not answered at {request.url.path}; use {' or '.join(methods)}"
            return answer(request, 405, message, headers={"Allow": ", ".join(methods)})
        return answer(request, 404, f"nothing is served at {request.url.path}; see /openapi.json")

    for kind, handler in ((RequestValidationError, invalid), (ValueError, refused), (QueueFull, busy),
                          (ThreadClosed, unavailable), (OutOfTime, unavailable), (HTTPException, http_error)):  # fmt: skip
        app.add_exception_handler(kind, handler)


def _methods_of(app: FastAPI, path: str) -> list[str]:
    """The methods that an address answers; none if there is no such address."""
    routes = [route for route in app.routes if isinstance(route, Route | APIRoute) and route.path_regex.match(path)]
    found = {method for route in routes if route.path != PAGE_ROUTE for method in route.methods or ()}
    if _page_file(path.removeprefix("/") or "index.html"):
        found.add("GET")
    return sorted(found | {"HEAD"} if "GET" in found else found)


def _route_of(app: FastAPI, path: str) -> str | None:
    """The template of the route that an address has; None if there is no such address."""
    routes = [route for route in app.routes if isinstance(route, Route | APIRoute) and route.path_regex.match(path)]
    own = next((route.path for route in routes if route.path != PAGE_ROUTE), None)
    return own or (PAGE_ROUTE if _page_file(path.removeprefix("/") or "index.html") else None)


def _add_endpoint(app: FastAPI, serving: Serving, endpoint: Endpoint) -> None:
    """Make a route of a row of the explorer's table."""
    names = [part[1:-1] for part in endpoint.path.split("/") if part.startswith("{")]

    async def handle(request: Request, **given: Any) -> Response:
        values = {name: given[name] for name in names}
        thread = serving.thread_of(values)
        if endpoint.query:
            values |= check_values(endpoint.query, {field.name: given[field.name] for field in fields(endpoint.query)}, "query")
        if endpoint.body:
            values |= check_values(endpoint.body, _require_object(request.scope[CHECKED_JSON]), "body")
            _require_short(serving, values)
        if endpoint.stream is None:
            answer: Callable[..., Json | FileAnswer] = partial(endpoint.answer, serving.explorer, **values)
            future = thread.submit(_answer_observed, answer, options=object()) if endpoint.observed else thread.run(answer)
            return _response(await await_answer(request, future, serving.limits.seconds))
        stream = partial(endpoint.stream, serving.explorer, **values)

        def start(send: Callable[[bytes], None]) -> Future[None]:
            job: Callable[..., None] = partial(stream, send=lambda item: send(json_bytes(item) + b"\n"))
            return thread.submit(_answer_observed, job, options=object())

        return await EventStream(request, start, media_type=NDJSON, seconds=serving.limits.seconds, on_error=_error_line).begin()

    parameters = [inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)]
    parameters += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=str) for name in names]
    if endpoint.query:
        found: dict[str, FieldInfo] = endpoint.query.__pydantic_fields__  # type: ignore[attr-defined]
        parameters += [_query_parameter(name, field) for name, field in found.items()]
    handle.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call = endpoint.stream or endpoint.answer
    handle.__doc__ = inspect.getdoc(call)
    responses = {**ERRORS, 200: {"description": "The answer", "content": {_media_type(endpoint): {"schema": {}}}}}
    app.add_api_route(API + endpoint.path, handle, methods=[endpoint.method], response_class=Response, responses=responses,
                      name=call.__name__, openapi_extra=_body(endpoint))  # fmt: skip


def _answer_observed(jobs: Sequence[Job[Callable[..., Answer], Answer]]) -> list[Answer]:
    """Answer jobs that know whether anyone still waits for them."""
    return [job.item(observer=job) for job in jobs]


def _media_type(endpoint: Endpoint) -> str:
    """What an endpoint answers with; one that makes files makes several kinds."""
    if endpoint.stream:
        return NDJSON
    answer = get_type_hints(endpoint.answer)["return"]
    return "*/*" if FileAnswer in (answer, *get_args(answer)) else "application/json"


def _body(endpoint: Endpoint) -> Json:
    """The description of a body.  FastAPI would check it less strictly than `map.html`'s requests are checked."""
    if endpoint.method != "POST":
        return {}
    schema = TypeAdapter(endpoint.body).json_schema() if endpoint.body else {"type": "object"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _require_object(body: object) -> Json:
    if not isinstance(body, dict):
        raise BadRequest(f"a body that is {type(body).__name__}; send a JSON object, {{…}}", 422)
    return body


def _query_parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    annotated: Any = Annotated  # whose type is known only here
    kind = annotated[(field.annotation, *field.metadata, Query())]
    default = inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _require_short(serving: Serving, values: Json) -> None:
    if isinstance(text := values.get("text"), str):
        serving.require_texts([text], "text")


def _response(answer: Json | FileAnswer) -> Response:
    if not isinstance(answer, FileAnswer):
        return Response(json_bytes(answer), media_type="application/json")
    name = "".join(character if character.isalnum() or character in "-_." else "-" for character in answer.name)
    ascii_name = name.encode("ascii", "replace").decode().replace("?", "-")
    disposition = f'attachment; filename="{ascii_name}"'
    return Response(answer.content, media_type=answer.media_type, headers={"Content-Disposition": disposition})


def _error_line(error: Exception) -> bytes:
    """An error as the last line of a stream that has begun."""
    if not isinstance(error, ValueError | QueueFull | OutOfTime | ThreadClosed):
        raise error
    return json_bytes({"event": "error", **error_body(API, 400, one_line(error))}) + b"\n"


def _add_health(app: FastAPI, serving: Serving) -> None:
    @app.get("/health", responses=ERRORS)
    async def health(request: Request) -> Health:
        """Whether the server answers, and how many requests wait."""
        if not request.scope[AUTHORIZED]:
            return Health("ok")
        return Health("ok", [RunHealth(name, thread.depth, thread.busy) for name, thread in serving.threads.items()])

    @app.get("/metrics", response_class=Response, responses={
        **ERRORS, 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})  # fmt: skip
    async def metrics() -> Response:
        """Counts and times for Prometheus."""
        return Response(serving.metrics.text(), headers={"Content-Type": CONTENT_TYPE})


def _add_page(app: FastAPI) -> None:
    """Serve the files of the page's folder, and no others."""

    @app.api_route(PAGE_ROUTE, methods=["GET", "HEAD"], include_in_schema=False)
    async def page(request: Request, path: str) -> Response:
        file = _page_file(path or "index.html")
        if file is None:
            if path == "favicon.ico":  # browsers ask for it unasked
                return Response(status_code=204)
            raise HTTPException(404)
        content = file.read_bytes()
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"', "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers | {"Content-Type": MEDIA_TYPES[file.suffix]})


def _page_file(path: str) -> Path | None:
    """A file of the page's folder; None if there is no such file in it."""
    if "\0" in path or "\\" in path or any(part in ("", "..") or part.startswith(".") for part in path.split("/")):
        return None
    try:
        file, folder = (PAGE / path).resolve(), PAGE.resolve()
        return file if file.is_relative_to(folder) and file.suffix in MEDIA_TYPES and file.is_file() else None
    except (OSError, ValueError):  # a name that is too long
        return None
