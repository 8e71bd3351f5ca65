"""Which requests reach an endpoint.  Each rule is tried on a request that is answered without the offence, refused with it."""

import asyncio
import base64
import json
import logging
import threading
import time

import pytest
from asgi_client import JSON, Reply, ask, ask_async
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from regard.web.security import CHECKED_JSON, MAX_DEPTH, Guard, Limits, allowed_hosts, clean_surrogates, is_loopback

KEY = "correct-horse-battery"
LIMITS = Limits(body=2000, upload=5000, body_seconds=0.2)
HOST = {"host": "127.0.0.1:8000"}
CHUNKED = JSON | {"transfer-encoding": "chunked"}


def guarded(**options: object) -> Starlette:
    """An app that answers with the JSON it was sent."""

    async def echo(request: Request) -> JSONResponse:
        return JSONResponse({"got": request.scope.get(CHECKED_JSON)})

    async def fail(request: Request) -> JSONResponse:
        raise RuntimeError("the secret is 42")

    async def fail_late(request: Request) -> StreamingResponse:
        async def pieces():
            yield b"first"
            raise RuntimeError("the secret is 42")

        return StreamingResponse(pieces())

    paths = ("/translate", "/v1/completions", "/api/v1/runs/x/inspect", "/health", "/")
    routes = [Route(path, echo, methods=["GET", "POST", "PUT", "DELETE"]) for path in paths]
    guard = Middleware(Guard, **({"hosts": allowed_hosts("127.0.0.1"), "limits": LIMITS} | options))
    return Starlette(routes=[*routes, Route("/fail", fail), Route("/fail-late", fail_late)], middleware=[guard])


def test_json_that_is_sent_as_a_form_says_which_header_is_missing():
    form = HOST | {"content-type": "application/x-www-form-urlencoded"}
    reply = ask(guarded(), "POST", "/translate", b'{"q": "a"}', headers=form)
    assert reply.status == 415
    assert "send it with the header Content-Type: application/json" in reply.json()["error"]


def test_a_json_request_of_a_program_is_answered():
    reply = ask(guarded(), "POST", "/translate", {"q": "a"})
    assert (reply.status, reply.json()) == (200, {"got": {"q": "a"}})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "localhost:9", "LOCALHOST", "[::1]", "[::1]:8000"])
def test_names_of_this_machine_are_answered(host):
    assert ask(guarded(), "GET", "/", headers={"host": host}).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "127.0.0.1:80:80", "127.0.0.1:x",
                                  "", "localhost.", "[::1", "192.168.0.2", None])  # fmt: skip
def test_another_name_of_this_server_is_refused(host):
    reply = ask(guarded(), "GET", "/", headers={"host": host})
    assert reply.status == 421, "a page that has rebound its name to 127.0.0.1 could read the answer"


def test_the_host_that_was_given_is_answered():
    assert ask(guarded(hosts=allowed_hosts("Gpu-Box")), "GET", "/", headers={"host": "gpu-box:8000"}).status == 200


def test_further_names_that_were_given_are_answered():
    app = guarded(hosts=allowed_hosts("127.0.0.1", ["Translate.Example.org"]))
    assert ask(app, "GET", "/", headers={"host": "translate.example.org"}).status == 200
    assert ask(app, "GET", "/", headers={"host": "example.org"}).status == 421
    assert "--allow-host" in ask(app, "GET", "/", headers={"host": "example.org"}).error


def test_a_server_of_all_addresses_is_asked_by_any_address_and_no_foreign_name():
    app = guarded(hosts=allowed_hosts("0.0.0.0"))
    assert ask(app, "GET", "/", headers={"host": "192.168.0.2:8000"}).status == 200
    assert ask(app, "GET", "/", headers={"host": "[fe80::1]:8000"}).status == 200
    assert ask(app, "GET", "/", headers={"host": "evil.example"}).status == 421


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:8001", "http://localhost:8000",
                                    "http://127.0.0.1:8000.evil.example", "file://", "http://[",
                                    "http://127.0.0.1:8000/"])  # fmt: skip
def test_a_request_of_another_origin_is_refused(method, origin):
    reply = ask(guarded(), method, "/translate", {"q": "a"} if method == "POST" else b"", headers=HOST | {"origin": origin})
    assert reply.status == 403
    assert not [name for name in reply.headers if name.startswith("access-control")]


def test_requests_of_the_own_page_are_answered():
    headers = HOST | {"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
    assert ask(guarded(), "POST", "/translate", {"q": "a"}, headers=headers).status == 200


@pytest.mark.parametrize(("site", "mode", "status"), [
    ("none", "navigate", 200), ("same-origin", "cors", 200), ("same-site", "navigate", 200), ("cross-site", "navigate", 200),
    ("cross-site", "no-cors", 403), ("cross-site", "cors", 403), ("same-site", "no-cors", 403)])  # fmt: skip
def test_what_browsers_say_of_a_request_is_believed(site, mode, status):
    assert ask(guarded(), "GET", "/", headers={"sec-fetch-site": site, "sec-fetch-mode": mode}).status == status


def test_a_link_on_another_page_opens_the_page_and_asks_nothing_else():
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert ask(guarded(), "HEAD", "/", headers=link).status == 200
    for method, path in (("GET", "/health"), ("GET", "/v1/completions"), ("POST", "/"), ("POST", "/translate")):
        assert ask(guarded(), method, path, {} if method == "POST" else b"", headers=link).status == 403


def test_a_preflight_request_gets_no_permission():
    headers = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    reply = ask(guarded(), "OPTIONS", "/translate", headers=headers)
    assert reply.status == 403
    assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=x", "text/plain", "",
                                  "application/jsonp", "application/json; charset=latin-1", "text/json"])  # fmt: skip
def test_only_json_bodies_are_read(kind):
    assert ask(guarded(), "POST", "/translate", b'{"q":"a"}', headers={"content-type": kind}).status == 415


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", 'application/json;charset="UTF-8"'])
def test_json_bodies_are_read_however_they_are_announced(kind):
    assert ask(guarded(), "POST", "/translate", b'{"q":"a"}', headers={"content-type": kind}).status == 200


def test_a_form_post_without_a_body_is_refused_too():
    assert ask(guarded(), "POST", "/translate").status == 415


def test_a_compressed_body_is_refused():
    assert ask(guarded(), "POST", "/translate", b"{}", headers=JSON | {"content-encoding": "gzip"}).status == 415


def test_forms_are_read_only_from_programs_and_only_for_libretranslate():
    form = {"content-type": "application/x-www-form-urlencoded"}
    body = b"q=I+love+you&source=en&target=it"
    reply = ask(guarded(), "POST", "/translate", body, headers=form)
    assert reply.json() == {"got": {"q": "I love you", "source": "en", "target": "it"}}
    assert ask(guarded(), "POST", "/v1/completions", body, headers=form).status == 415
    for browser in ({"origin": "http://127.0.0.1:8000"}, {"sec-fetch-site": "same-origin"}, {"referer": "http://x.example"},
                    {"sec-fetch-dest": "document"}, {"cookie": "a=b"}):  # fmt: skip
        assert ask(guarded(), "POST", "/translate", body, headers=form | browser).status == 415
    assert ask(guarded(), "POST", "/translate", body, headers=form | {"origin": "http://evil.example"}).status == 403


def test_the_place_of_a_mistake_is_said_once():
    reply = ask(guarded(), "POST", "/translate", b'{"q": "a\nb"}', headers=JSON)
    assert reply.error == "the body is not JSON: Invalid control character at character 9"


def test_a_form_of_many_fields_is_refused():
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert ask(guarded(), "POST", "/translate", b"q=a" + b"&q=a" * 19, headers=form).status == 200
    assert ask(guarded(), "POST", "/translate", b"q=a" + b"&q=a" * 20, headers=form).status == 400


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "QUERY"])
def test_other_methods_are_refused(method):
    assert ask(guarded(), method, "/").status == 405


def test_a_large_body_is_refused_before_it_is_read():
    reply = ask(guarded(), "POST", "/translate", b"", headers=JSON | {"content-length": "2001"})
    assert reply.status == 413
    assert "2,000 bytes" in reply.error


def test_a_large_body_without_a_length_is_refused_while_it_is_read():
    reply = ask(guarded(), "POST", "/translate", [b" " * 500] * 100, headers=JSON)
    assert reply.status == 413
    reply = ask(guarded(), "POST", "/translate", [b" " * 500] * 3 + [b"{}"], headers=JSON)
    assert reply.status == 200, "1,502 bytes are fewer than 2,000"


def test_a_length_that_lies_does_not_help():
    assert ask(guarded(), "POST", "/translate", [b" " * 2001], headers=JSON | {"content-length": "5"}).status == 413


def test_files_may_be_larger_than_texts():
    body = json.dumps({"file": "A" * 4000}).encode()
    assert ask(guarded(), "POST", "/api/v1/runs/x/inspect", body, headers=JSON).status == 200
    assert ask(guarded(), "POST", "/translate", body, headers=JSON).status == 413


def test_a_slow_body_is_given_up():
    assert ask(guarded(), "POST", "/translate", [b"{", b"}"], headers=JSON, pause=0.15).status == 408
    assert ask(guarded(), "POST", "/translate", [b"{", b"}"], headers=JSON, pause=0.01).status == 200


def test_all_bodies_together_have_a_limit(monkeypatch):
    monkeypatch.setattr("regard.web.security.MAX_UPLOADS", 1500)
    app = guarded()
    assert ask(app, "POST", "/translate", b" " * 1600 + b"{}", headers=JSON).status == 429
    for _ in range(3):  # what was read before does not count any more, whether it was refused or answered
        assert ask(app, "POST", "/translate", b" " * 1400 + b"{}", headers=JSON).status == 200


@pytest.mark.parametrize("body", [b"", b"{", b"{'a': 1}", b"[NaN]", b"[Infinity]", b"\xff{}", b'"' + b"\\" * 9,
                                  b"[1" + b"0" * 9999, b"[1e999]", b'{"a":1}{"b":2}', b"\xef\xbb\xbf{}"])  # fmt: skip
def test_what_is_not_json_is_refused_with_a_reason(body):
    limits = Limits(body=20_000)
    reply = ask(guarded(limits=limits), "POST", "/translate", body, headers=JSON | {"content-length": str(len(body))})
    assert (reply.status, reply.error[:8]) == (400, "the body")


@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}")])
def test_nested_json_is_refused_before_it_is_parsed(brackets):
    start, end = brackets
    app = guarded(limits=Limits(body=10_000_000))
    for depth, status in ((MAX_DEPTH, 200), (MAX_DEPTH + 1, 400), (100_000, 400)):
        assert ask(app, "POST", "/translate", start * depth + b"1" + end * depth, headers=JSON).status == status
    text = json.dumps({"q": "[" * 100_000}).encode()
    assert ask(app, "POST", "/translate", text, headers=JSON).status == 200, "brackets inside a text are text"


@pytest.mark.parametrize("body", [b'{"q":"' + b'\\"' * (1 << 19), b'{"q":"' + b"\\" * (1 << 20), b'"\\' * (1 << 19),
                                  b'"' * 19_999 + b'\\"' * (1 << 19), b"[" + b"1" * (1 << 20)])  # fmt: skip
def test_a_hostile_body_takes_no_longer_than_another_of_its_size(body):
    app = guarded(limits=Limits(body=2 << 20))
    start = time.process_time()
    assert ask(app, "POST", "/translate", body, headers=JSON).status == 400
    assert time.process_time() - start < 0.5, "1 MB of plain text takes about 0.01 seconds"


@pytest.mark.parametrize("text", ["", "\\", '\\"', '"[', "\\\\", '\\\\"]', "a\\", "\n", "}\u2028"])
def test_brackets_are_counted_outside_of_strings_only(text):
    app = guarded(limits=Limits(body=1 << 20))
    value = [text * 3, {text: ["[" * 50 + text]}]
    assert ask(app, "POST", "/translate", value).json() == {"got": value}
    deep = b"[" * MAX_DEPTH + json.dumps(value).encode() + b"]" * MAX_DEPTH
    assert "nested" in ask(app, "POST", "/translate", deep, headers=JSON).error


def test_other_requests_are_answered_while_a_large_body_is_parsed(monkeypatch):
    started, answered = threading.Event(), threading.Event()

    def slow(content: bytes) -> object:
        started.set()
        return answered.wait(20)

    monkeypatch.setattr("regard.web.security.parse_json", slow)
    app = guarded(limits=Limits(body=1 << 20))

    async def both() -> tuple[Reply, Reply]:
        large = asyncio.ensure_future(ask_async(app, "POST", "/translate", [b" " * (1 << 17)], HOST | CHUNKED))
        await asyncio.to_thread(started.wait, 20)
        health = await ask_async(app, "GET", "/health", [b""], HOST)
        answered.set()
        return health, await large

    health, large = asyncio.run(both())
    assert health.status == 200
    assert large.json() == {"got": True}


def test_many_small_lists_are_refused():
    app = guarded(limits=Limits(body=10_000_000))
    assert ask(app, "POST", "/translate", b"[" + b"[]," * 50_000 + b"1]", headers=JSON).status == 413


def test_half_surrogates_become_replacement_characters_and_whole_ones_stay():
    reply = ask(guarded(), "POST", "/translate", b'{"\\ud800": ["\\udc00a\\ud800", "\\ud83d\\ude00"]}', headers=JSON)
    assert reply.json() == {"got": {"\ufffd": ["\ufffda\ufffd", "\N{GRINNING FACE}"]}}


def test_clean_surrogates_leaves_other_values():
    value = {"a": [1, 2.5, None, True, "ü\0\u202e"]}
    assert clean_surrogates(value) == value


def test_without_the_key_nothing_is_answered():
    app = guarded(api_key=KEY)
    for method, path in (("GET", "/"), ("POST", "/v1/completions"), ("POST", "/translate")):
        reply = ask(app, method, path, {} if method == "POST" else b"")
        assert reply.status == 401
        assert "Basic" in reply.headers["www-authenticate"], "so that a browser asks for it"
    assert ask(app, "GET", "/", headers={"authorization": "Bearer correct-horse"}).status == 401
    assert ask(app, "GET", "/", headers={"authorization": f"Bearer {KEY}x"}).status == 401
    assert ask(app, "GET", "/", headers={"authorization": f"Token {KEY}"}).status == 401
    assert ask(app, "GET", "/", headers={"authorization": "Basic !!!"}).status == 401


def test_the_key_is_taken_from_either_header_and_for_libretranslate_from_the_body():
    app = guarded(api_key=KEY)
    basic = base64.b64encode(f"anyone:{KEY}".encode()).decode()
    assert ask(app, "GET", "/", headers={"authorization": f"Bearer {KEY}"}).status == 200
    assert ask(app, "GET", "/", headers={"authorization": f"basic {basic}"}).status == 200
    assert ask(app, "POST", "/translate", {"q": "a", "api_key": KEY}).status == 200
    assert ask(app, "POST", "/translate", {"q": "a", "api_key": KEY + "x"}).status == 401
    assert ask(app, "POST", "/translate", {"q": "a", "api_key": ["x"]}).status == 401
    assert ask(app, "POST", "/translate", ["api_key", KEY]).status == 401
    assert ask(app, "POST", "/v1/completions", {"api_key": KEY}).status == 401


def test_the_key_is_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr("regard.web.security.hmac.compare_digest", lambda *both: compared.append(both) or False)
    assert ask(guarded(api_key=KEY), "GET", "/", headers={"authorization": f"Bearer {KEY}"}).status == 401
    assert compared == [(KEY.encode(), KEY.encode())]


def test_a_large_body_without_the_key_is_not_read():
    reply = ask(guarded(api_key=KEY), "POST", "/api/v1/runs/x/inspect", b"", headers=JSON | {"content-length": "4000"})
    assert reply.status == 401


def test_health_is_answered_without_the_key():
    assert ask(guarded(api_key=KEY), "GET", "/health").status == 200


def test_a_bug_is_one_line_for_the_user_and_one_of_the_log(caplog):
    with caplog.at_level(logging.ERROR, "regard.serve"):
        reply = ask(guarded(), "GET", "/fail")
    assert (reply.status, reply.json()) == (500, {"error": "internal error; see the server's log"})
    assert len(caplog.records) == 1
    assert "RuntimeError" in caplog.text
    assert "Traceback" not in caplog.text
    assert "secret" not in reply.body.decode()


def test_a_bug_in_the_middle_of_an_answer_ends_it(caplog):
    with caplog.at_level(logging.ERROR, "regard.serve"):
        reply = ask(guarded(), "GET", "/fail-late")
    assert reply.body == b"first"
    assert len(caplog.records) == 1


def test_every_answer_carries_the_security_headers():
    for reply in (
        ask(guarded(), "GET", "/"),
        ask(guarded(), "GET", "/", headers={"host": "evil"}),
        ask(guarded(), "GET", "/fail"),
    ):
        policy = reply.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe-eval" not in policy
        assert "script-src" not in policy, "scripts fall under default-src 'self': none inline, none from elsewhere"
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert reply.headers["cross-origin-opener-policy"] == "same-origin"
        assert reply.headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in reply.headers


def test_openai_clients_get_their_own_shape_of_error():
    reply = ask(guarded(), "POST", "/v1/completions", b"{", headers=JSON)
    assert reply.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("host", "local"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("127.1.2.3", True),
                                             ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.org", False),
                                             ("", False)])  # fmt: skip
def test_which_addresses_are_of_this_machine_only(host, local):
    assert is_loopback(host) == local
