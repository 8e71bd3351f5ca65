"""What a request must be before any endpoint sees it: from this machine's page or a program, in JSON, small, and in time.

A server on 127.0.0.1 can be reached by every page that the user's browser opens.  Three rules keep such pages out: the Host
header must name this server (a DNS rebinding attack has its own name there), a request must not come from another origin
(browsers say where a request comes from), and bodies must be JSON (which a form of another page cannot send).  LibreTranslate's
clients send forms; they are read only without any header by which a browser says who asks.

A body is read here, once: with a limit of bytes, which holds without a Content-Length too, and a limit of time.  Endpoints get it
as checked JSON: valid UTF-8, not nested too deep, no NaN, no lone surrogates.
"""

import asyncio
import base64
import binascii
import hmac
import ipaddress
import json
import logging
import math
import os
import re
import socket
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from h11 import LocalProtocolError
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.web.error_bodies import INTERNAL, error_body
from regard.web.inputs import MAX_FILE

__all__ = ["CHECKED_JSON", "Guard", "Limits", "allowed_hosts", "clean_surrogates", "is_loopback", "parse_json"]

LOG = logging.getLogger("regard.serve")

CHECKED_JSON = "regard.json"  # key of a request's scope: its body
AUTHORIZED = "regard.authorized"  # key of a request's scope: whether it came with the API key
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
UPLOADS = re.compile(r"/api/v1/runs/[^/]+/inspect(/stream)?")  # addresses whose bodies hold a picture or a sound
KEY_IN_BODY = ("/translate", "/detect", "/languages")  # LibreTranslate's clients send `api_key` in the body
METHODS = ("GET", "HEAD", "POST")  # that any address answers
FROM_BROWSER = ("origin", "referer", "cookie")  # headers of browsers' requests, besides Sec-Fetch-…
PAGE_PATHS = ("/", "/index.html")  # which a link on another page may open
OPEN = ("/health",)  # answered without the API key, with less
MAX_DEPTH = 32  # of nested JSON
MAX_BRACKETS = 20_000  # in the JSON of a request
MAX_FIELDS = 20  # of a form
MAX_UPLOADS = 256 << 20  # bytes of bodies that are read at the same time
PARSED_AT_ONCE = 1 << 16  # bytes of a body that the event loop itself parses, in about a millisecond

# A string of JSON, or a bracket outside of strings.  Possessive, and a string without an end reaches to the end of the body: no
# byte is looked at twice, however hostile the body.
STRING_OR_BRACKET = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|([\[{])|([\]}])', re.DOTALL)

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
                               "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """How much a request may ask for."""

    text: int = 20_000  # characters of all texts of a request
    texts: int = 256  # in a list
    body: int = 1 << 20  # bytes of JSON without a file
    upload: int = MAX_FILE * 4 // 3 + (1 << 20)  # bytes of JSON with a file, which is in base64
    body_seconds: float = 20.0  # until the whole body is there
    seconds: float = 60.0  # until the answer is there


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach a server that binds to `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def allowed_hosts(host: str, names: Sequence[str] = ()) -> frozenset[str]:
    """The names by which a server that binds to `host` may be asked, as a Host header has them, without the port.

    A server that binds to all addresses is asked by any of them, and by the name of its machine; `names` are further ones.
    """
    own = {*LOCAL_NAMES, *map(str.lower, names), f"[{host}]" if ":" in host else host.lower()}
    if host in ("0.0.0.0", "::"):  # noqa: S104
        own |= {socket.gethostname().lower(), "*.*.*.*"}
    return frozenset(own)


class Refused(Exception):
    """A request that no endpoint sees."""

    def __init__(self, status: int, message: str, **headers: str):
        super().__init__(message)
        self.status, self.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}


class ClientGone(Exception):
    """The client hung up before it was answered."""


class Guard:
    """Middleware around the whole app: checks each request, adds security headers, and turns bugs into one line of the log."""

    def __init__(self, app: ASGIApp, *, hosts: frozenset[str], api_key: str = "", limits: Limits = Limits(),
                 methods_of: Callable[[str], Sequence[str]] = lambda path: METHODS):  # fmt: skip
        self.app, self._hosts, self._key, self._limits, self._methods_of = app, hosts, api_key.encode(), limits, methods_of
        self._uploading = 0  # bytes of bodies that are being read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check and answer one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] == "websocket":  # none is served
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        started, taken = False, 0

        async def send_guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            with suppress(LocalProtocolError):  # bytes that followed were no HTTP: uvicorn has sent 400 and closed the connection
                await send(message)

        async def refuse(status: int, message: str, headers: dict[str, str] | None = None) -> None:
            body = error_body(scope["path"], status, message)
            await JSONResponse(body, status, headers)(scope, receive, send_guarded)

        try:
            headers = Headers(scope=scope)
            self._check_source(scope, headers)
            has_body = self._check_body_headers(scope, headers)
            authorized = not self._key or self._has_key(headers.get("authorization", ""))
            in_body = scope["path"] in KEY_IN_BODY
            if not authorized and not (has_body and in_body) and scope["path"] not in OPEN:
                raise _no_key()
            if has_body:
                content = await self._read(receive, headers, scope)
                taken = len(content)
                value = await self._parse(content, headers)
                if not authorized and in_body:
                    authorized = isinstance(value, dict) and self._matches_key(str(value.get("api_key", "")))
                if not authorized and scope["path"] not in OPEN:
                    raise _no_key()
                scope[CHECKED_JSON] = value
                if _is_form(headers):  # endpoints read JSON only
                    content = json.dumps(value).encode()
                    MutableHeaders(scope=scope)["content-type"] = "application/json"
                receive = _replay(content, receive)
            scope[AUTHORIZED] = authorized
            await self.app(scope, receive, send_guarded)
        except ClientGone:
            return
        except asyncio.CancelledError:  # the server stops, and has waited for this request as long as it may
            if not started:
                await refuse(503, "the server is shutting down; try again", {"Retry-After": "5", "Connection": "close"})
        except Refused as refused:
            await refuse(refused.status, str(refused), refused.headers)
        except Exception as error:
            _log_bug(error, scope)
            if not started:  # else the answer stays incomplete, and the connection is closed
                await refuse(500, INTERNAL)
        finally:
            self._uploading -= taken

    def _check_source(self, scope: Scope, headers: Headers) -> None:
        """Refuse requests that another page, or another name of this server, has made."""
        hosts = headers.getlist("host")
        host = hosts[0].strip().lower() if len(hosts) == 1 else ""
        if not self._is_own(host):
            raise Refused(
                421, f"host {host[:60]!r} is not this server; ask http://127.0.0.1 and its port, or start with --allow-host NAME"
            )
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        navigates = scope["method"] in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"
        opens_page = navigates and (site == "same-site" or scope["path"] in PAGE_PATHS)
        foreign = site in ("cross-site", "same-site") and not opens_page
        if (origin is not None and not _same_origin(origin, host)) or foreign:
            raise Refused(403, "a request of another web page; only this server's own page and programs are answered")

    def _is_own(self, host: str) -> bool:
        name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        name = name if colon else host
        if colon and not (port.isascii() and port.isdecimal()):
            return False
        return name in self._hosts or ("*.*.*.*" in self._hosts and _is_address(name))

    def _check_body_headers(self, scope: Scope, headers: Headers) -> bool:
        """Whether there is a body; refuse one that is not plain JSON."""
        if scope["method"] not in METHODS:
            methods = self._methods_of(scope["path"]) or METHODS
            raise Refused(
                405, f"method {scope['method'][:20]} is not answered; use {' or '.join(methods)}", Allow=", ".join(methods)
            )
        length = headers.get("content-length", "")
        has_body = "transfer-encoding" in headers or length not in ("", "0")
        if scope["method"] != "POST" and not has_body:
            return False
        kind = headers.get("content-type", "")
        program = not any(name in FROM_BROWSER or name.startswith("sec-fetch-") for name in headers)
        form = _is_form(headers) and program and scope["path"] in KEY_IN_BODY
        if not form and not re.fullmatch(r"application/json(\s*;\s*charset\s*=\s*\"?utf-?8\"?)?\s*", kind, re.IGNORECASE):
            shown = kind[:60] or "no content type"
            raise Refused(415, f"a body of {shown!r}; send JSON with the header Content-Type: application/json")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused(415, f"a body encoded with {headers['content-encoding'][:30]!r}; send it as it is")
        return True

    def _has_key(self, authorization: str) -> bool:
        """Whether the header has the key: as a bearer token, or as the password that a browser asks for."""
        scheme, _, value = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return self._matches_key(value.strip())
        if scheme.lower() == "basic":
            try:
                decoded = base64.b64decode(value.strip(), validate=True).decode("utf-8", "replace")
            except (binascii.Error, ValueError):
                return False
            return self._matches_key(decoded.partition(":")[2])
        return False

    def _matches_key(self, key: str) -> bool:
        return hmac.compare_digest(key.encode("utf-8", "replace"), self._key)

    async def _read(self, receive: Receive, headers: Headers, scope: Scope) -> bytes:
        """The whole body, if it is not too large and not too slow."""
        limit = self._limits.upload if UPLOADS.fullmatch(scope["path"]) else self._limits.body
        too_large = Refused(413, f"a body of over {limit:,} bytes; send less", Connection="close")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > limit:
            raise too_large
        parts, size = list[bytes](), 0
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    part = message.get("body", b"")
                    parts.append(part)
                    size += len(part)
                    self._uploading += len(part)
                    if size > limit:
                        raise too_large
                    if self._uploading > MAX_UPLOADS:
                        raise Refused(
                            429, "too many files are being sent at once; try again", Retry_After="2", Connection="close"
                        )
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            self._uploading -= size
            seconds = self._limits.body_seconds
            raise Refused(408, f"no complete body within {seconds:g} seconds; send it faster", Connection="close") from None
        except BaseException:
            self._uploading -= size
            raise

    @staticmethod
    async def _parse(content: bytes, headers: Headers) -> object:
        """The value of a body.  A large one is parsed in a thread, so that other requests do not wait for it."""
        parse = parse_form if _is_form(headers) else parse_json
        return parse(content) if len(content) <= PARSED_AT_ONCE else await asyncio.to_thread(parse, content)


def parse_form(content: bytes) -> dict[str, str]:
    """The fields of a form."""
    if content.lstrip().startswith((b"{", b"[")):  # what curl -d sends unless it is told otherwise
        raise Refused(415, "a form that is JSON; send it with the header Content-Type: application/json")
    try:
        return dict(parse_qsl(content.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        raise Refused(400, f"a form of over {MAX_FIELDS} fields; send fewer") from None


def parse_json(content: bytes) -> object:
    """The JSON of a body; refused if it is not JSON, nested too deep, or has a number that JSON lacks."""
    depth = 0
    for number, found in enumerate(STRING_OR_BRACKET.finditer(content)):
        depth += (found[1] is not None) - (found[2] is not None)
        if depth > MAX_DEPTH:
            raise Refused(400, f"JSON nested over {MAX_DEPTH} deep; send less")
        if number > MAX_BRACKETS:
            raise Refused(413, f"JSON with over {MAX_BRACKETS:,} texts and brackets; send less")

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number of JSON")

    def finite(digits: str) -> float:
        if math.isinf(number := float(digits)):
            raise ValueError(f"{digits[:30]} is too large a number")
        return number

    try:
        value = json.loads(content.decode("utf-8"), parse_constant=refuse, parse_float=finite)
    except UnicodeDecodeError as error:
        raise Refused(400, f"the body is not UTF-8 at byte {error.start + 1}; send JSON in UTF-8") from None
    except json.JSONDecodeError as error:
        raise Refused(400, f"the body is not JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from None
    return clean_surrogates(value) if b"\\ud" in content or b"\\uD" in content else value


def clean_surrogates(value: object) -> object:
    """The same JSON with U+FFFD for halves of surrogate pairs, which are not characters: no tokenizer takes them."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [clean_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {clean_surrogates(key): clean_surrogates(item) for key, item in value.items()}
    return value


def _no_key() -> Refused:
    # a browser asks for a name and a password, and sends the password as the key
    return Refused(401, "no API key, or a wrong one; send Authorization: Bearer KEY", WWW_Authenticate='Basic realm="regard: the '
                   'API key is the password", charset="UTF-8"')  # fmt: skip


def _is_form(headers: Headers) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/x-www-form-urlencoded"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _same_origin(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin.lower())
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc == host and not parts.path


def _replay(content: bytes, receive: Receive) -> Receive:
    """The body again, in one piece; then what the client does next, which is to hang up."""
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": content, "more_body": False}

    return again


def _log_bug(error: Exception, scope: Scope) -> None:
    """One line of the log for an error of ours; all of it with REGARD_DEBUG."""
    frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)
    place = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else "?"
    route = getattr(scope.get("route"), "path", "?")
    debug = error if os.environ.get("REGARD_DEBUG") else None
    LOG.error("%s %s: %s: %.200r at %s", scope["method"], route, type(error).__name__, str(error), place, exc_info=debug)
