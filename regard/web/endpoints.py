"""All endpoints of the explorer's API, and how one is called: by the server for a request, by `export.py` for a page."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from pydantic import ValidationError

from regard.web import api_ablation, api_decoding, api_learning, api_records, api_steps
from regard.web.explorer import Explorer
from regard.web.routes import BadRequest, Endpoint, FileAnswer, Json

__all__ = ["ENDPOINTS", "call", "find_endpoint"]

ENDPOINTS: tuple[Endpoint, ...] = (
    *api_records.ENDPOINTS, *api_steps.ENDPOINTS, *api_ablation.ENDPOINTS, *api_decoding.ENDPOINTS, *api_learning.ENDPOINTS,
)  # fmt: skip


def find_endpoint(method: str, path: str) -> tuple[Endpoint, dict[str, str]]:
    """The endpoint of an address below /api/v1, and what stands in it for the names in braces."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    for endpoint in ENDPOINTS:
        names = endpoint.path.strip("/").split("/")
        if endpoint.method == method and len(names) == len(parts):
            pairs = list(zip(names, parts, strict=True))
            if all(name == part or name.startswith("{") for name, part in pairs):
                return endpoint, {name[1:-1]: part for name, part in pairs if name.startswith("{")}
    raise BadRequest(f"no endpoint {method} {path}", 404)


def call(explorer: Explorer, method: str, path: str, query: Mapping[str, Any] | None = None,
         body: Mapping[str, Any] | None = None) -> Json | FileAnswer:  # fmt: skip
    """Answer a request; its query may be in the path.  Values of a query may be text, as an address has them."""
    path, _, asked = path.partition("?")
    endpoint, values = find_endpoint(method, path)
    checked = dict[str, Any](values)
    checked |= check_values(endpoint.query, dict(parse_qsl(asked, keep_blank_values=True)) | dict(query or {}), "query")
    checked |= check_values(endpoint.body, body or {}, "body")
    return endpoint.answer(explorer, **checked)


def check_values(kind: type | None, given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The values of a query or body, checked against a pydantic dataclass; the first mistake is a `BadRequest` of one line."""
    if kind is None:
        if given:
            raise BadRequest(f"{name} with {', '.join(map(repr, list(given)[:5]))}; this address takes none")
        return {}
    known = kind.__dataclass_fields__  # type: ignore[attr-defined]
    if unknown := [key for key in given if key not in known]:
        raise BadRequest(f"{name}: unknown {', '.join(map(repr, unknown[:5]))}; known keys: {', '.join(known)}", 422)
    try:
        checked = kind(**given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or name
        raise BadRequest(f"{name}: {where}: {first['msg'].removeprefix('Value error, ')}", 422) from None
    return {field: getattr(checked, field) for field in known}
