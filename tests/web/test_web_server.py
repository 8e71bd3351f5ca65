"""The app: the page's files, the explorer's endpoints, LibreTranslate's, health and metrics, queues and hang-ups."""

import base64
import http.client
import json
import shutil
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from asgi_client import Reply, ask
from conftest import serve
from serving_runs import served_app

import regard
from regard.web.batching import Job, ModelThread
from regard.web.languages import Detection
from regard.web.routes import Endpoint, FileAnswer
from regard.web.security import Limits
from regard.web.server import PAGE, create_app

LEARNED = "I love you very much"
HOSTILE = [
    "<script>alert(1)</script>", "a\0b", "\x1b[31mred\x07", "\u202egnp.exe\u2066", "\N{WOMAN}\u200d\N{GIRL}" * 30, "a" * 3000,
    "\ufeff\u200b", "\ufdfa" * 200, "Za\u0334\u034d\u031el " * 40, "\u2028\u2029", "\u200f\u0639\u0631", "%00%n%s{0}${x}",
    "'; DROP TABLE runs; --", "../../etc/passwd", "\t\n \r\n",
]  # fmt: skip


@pytest.fixture(scope="module")
def app(runs: dict[str, Path]) -> Iterator[object]:
    app = served_app(runs)
    yield app
    app.state.serving.close()


def post(app: object, path: str, body: object, **headers: str) -> Reply:
    return ask(app, "POST", path, body, headers=headers)


def translate(app: object, q: object, source: str = "en", target: str = "it", **more: object) -> Reply:
    return post(app, "/translate", {"q": q, "source": source, "target": target, **more})


# The page


def test_the_page_and_its_modules_have_their_types_and_are_checked_each_time(app):
    for file in sorted(PAGE.rglob("*.*")):
        path = "/" + file.relative_to(PAGE).as_posix()
        reply = ask(app, "GET", path)
        assert (reply.status, reply.body) == (200, file.read_bytes())
        kind = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}[file.suffix]
        assert reply.headers["content-type"] == f"{kind}; charset=utf-8"
        assert reply.headers["cache-control"] == "no-cache"
        again = ask(app, "GET", path, headers={"if-none-match": reply.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
    assert ask(app, "GET", "/").body == (PAGE / "index.html").read_bytes()
    assert ask(app, "HEAD", "/").status == 200


@pytest.mark.parametrize("path", [
    "/../server.py", "/parts/../../server.py", "/..%2fserver.py", "//etc/passwd", "/etc/passwd", "/.git/config", "/a\0b",
    "/parts", "/parts/", "/" + "a" * 5000, "/..\\server.py", "/./index.html", "/index.html/", "/app.js/../../server.py", "/~root",
])  # fmt: skip
def test_only_the_files_of_the_page_are_served(app, path):
    assert ask(app, "GET", path).status == 404


def test_a_link_out_of_the_page_is_not_followed(app, tmp_path, monkeypatch):
    (tmp_path / "page").mkdir()
    (tmp_path / "secret.js").write_text("secret")
    (tmp_path / "page" / "in.js").write_text("shown")
    (tmp_path / "page" / "link.js").symlink_to(tmp_path / "secret.js")
    monkeypatch.setattr("regard.web.server.PAGE", tmp_path / "page")
    assert ask(app, "GET", "/in.js").body == b"shown"
    assert ask(app, "GET", "/link.js").status == 404


def test_pages_that_load_scripts_from_elsewhere_are_off(app):
    assert ask(app, "GET", "/docs").status == 404
    assert ask(app, "GET", "/redoc").status == 404
    assert ask(app, "GET", "/openapi.json").json()["openapi"].startswith("3.")


def test_telemetry_is_off(app):
    telemetry = getattr(app, "_telemetry", {})
    assert not any(telemetry.get(key) for key in ("tracing", "metrics", "logs", "operation_spans", "auto_configure"))


@pytest.mark.parametrize("path", ["/health", "/metrics", "/languages", "/v1/models", "/v1/models/gpt", "/api/v1/runs", "/app.js"])
def test_head_is_answered_where_get_is(app, path):
    head, get = ask(app, "HEAD", path), ask(app, "GET", path)
    assert (head.status, head.headers["content-type"]) == (200, get.headers["content-type"])


@pytest.mark.parametrize(("method", "path", "status", "allowed"), [
    ("GET", "/translate", 405, "POST"), ("HEAD", "/translate", 405, "POST"), ("PUT", "/health", 405, "GET, HEAD"),
    ("OPTIONS", "/translate", 405, "POST"), ("POST", "/health", 405, "GET, HEAD"), ("POST", "/", 405, "GET, HEAD"),
    ("POST", "/app.js", 405, "GET, HEAD"), ("POST", "/v1/chat/completions", 404, None), ("GET", "/nothing", 404, None),
    ("POST", "/openapi.json", 405, "GET, HEAD"),
])  # fmt: skip
def test_an_address_says_which_methods_it_answers(app, method, path, status, allowed):
    reply = ask(app, method, path, {} if method == "POST" else b"")
    assert (reply.status, reply.headers.get("allow")) == (status, allowed)


# The explorer's endpoints


@dataclass
class Question:
    words: list[str]
    loud: bool = False


def _say(explorer: object, run: str, words: list[str], loud: bool) -> dict:
    explorer.run(run)
    return {"said": " ".join(words).upper() if loud else " ".join(words), "thread": threading.current_thread().name}


def _draw(explorer: object, run: str) -> FileAnswer:
    return FileAnswer(b"<svg/>", "image/svg+xml", 'a "b"\r\nX: y.svg')


def _count(explorer: object, run: str, words: list[str], loud: bool, send: Callable[[dict], None], observer: Job) -> None:
    assert observer.wanted
    for number, word in enumerate(words):
        if word == "stop":
            raise ValueError("stopped at a word")
        send({"number": number, "word": word})


@pytest.fixture
def small_app(runs, monkeypatch) -> Iterator[object]:
    from pydantic.dataclasses import dataclass as checked

    question = checked(Question)
    rows = (Endpoint("POST", "/runs/{run}/say", _say, body=question), Endpoint("GET", "/runs/{run}/draw", _draw),
            Endpoint("GET", "/runs/{run}/ask", _say, query=question),
            Endpoint("POST", "/runs/{run}/count", _say, body=question, stream=_count))  # fmt: skip
    monkeypatch.setattr("regard.web.server.ENDPOINTS", rows)
    app = served_app(runs, limits=Limits(text=100))
    yield app
    app.state.serving.close()


def test_an_endpoint_gets_its_values_in_the_thread_of_its_run(small_app):
    reply = post(small_app, "/api/v1/runs/gpt/say", {"words": ["a", "b"], "loud": True})
    assert reply.json() == {"said": "A B", "thread": "model gpt"}
    assert ask(small_app, "GET", "/api/v1/runs/bert/ask?words=a&words=b").json() == {"said": "a b", "thread": "model bert"}


@pytest.mark.parametrize(
    "body", [{}, {"words": "a"}, {"words": [1]}, {"words": [], "loud": 3}, {"words": [], "more": 1}, [], "x", None]
)
def test_a_body_that_does_not_fit_is_refused_in_one_line(small_app, body):
    reply = post(small_app, "/api/v1/runs/gpt/say", body)
    assert reply.status == 422
    assert "\n" not in reply.error


def test_an_unknown_run_or_record_is_not_found(app):
    assert ask(app, "GET", "/api/v1/runs/gpd/log").status == 404
    assert "'gpt'" in ask(app, "GET", "/api/v1/runs/gpd/log").error
    reply = ask(app, "GET", "/api/v1/records/none/layers/0/weights")
    assert (reply.status, reply.json()["expired"]) == (404, True)


def test_a_file_is_downloaded_under_a_harmless_name(small_app):
    reply = ask(small_app, "GET", "/api/v1/runs/gpt/draw")
    assert (reply.body, reply.headers["content-type"]) == (b"<svg/>", "image/svg+xml")
    assert reply.headers["content-disposition"] == 'attachment; filename="a--b---X--y.svg"'


def test_a_stream_is_lines_of_json_and_an_error_is_its_last(small_app):
    reply = post(small_app, "/api/v1/runs/gpt/count", {"words": ["a", "b"]})
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line) for line in reply.body.splitlines()] == [{"number": 0, "word": "a"}, {"number": 1, "word": "b"}]
    broken = post(small_app, "/api/v1/runs/gpt/count", {"words": ["a", "stop", "b"]})
    assert [json.loads(line) for line in broken.body.splitlines()][1:] == [{"event": "error", "error": "stopped at a word"}]
    refused = post(small_app, "/api/v1/runs/gpt/count", {"words": ["stop"]})
    assert (refused.status, refused.error) == (400, "stopped at a word")


def test_the_description_names_every_endpoint_and_its_values(app):
    from regard.web.endpoints import ENDPOINTS

    paths = ask(app, "GET", "/openapi.json").json()["paths"]
    for endpoint in ENDPOINTS:
        found = paths[f"/api/v1{endpoint.path}"][endpoint.method.lower()]
        if endpoint.body:
            schema = found["requestBody"]["content"]["application/json"]["schema"]
            assert set(schema["properties"]) == set(endpoint.body.__dataclass_fields__)
        names = {parameter["name"] for parameter in found.get("parameters", ()) if parameter["in"] == "query"}
        assert names == set(endpoint.query.__dataclass_fields__ if endpoint.query else ())


def test_inspecting_a_text_answers_what_the_predictor_does(app, runs):
    reply = post(app, "/api/v1/runs/learner/inspect", {"text": LEARNED})
    assert reply.status == 200, reply.body
    [wanted] = regard.load(runs["learner"], "cpu").translate([LEARNED], split=False, protect=False)
    assert reply.json()["answer"]["text"] == wanted.text


@pytest.fixture(scope="module")
def senses(runs: dict[str, Path]) -> Iterator[object]:
    app = served_app(runs, ("vit", "captioner", "conformer", "transformer"))
    yield app
    app.state.serving.close()


@pytest.mark.parametrize(("run", "file", "status", "words"), [
    ("vit", "picture.png", 200, ""), ("conformer", "sound.wav", 200, ""),
    ("vit", "sound.wav", 400, "a sound file"), ("captioner", "notes.txt", 400, "a text file"),
    ("conformer", "picture.png", 400, "an image file"), ("vit", "broken.png", 400, "damaged or cut short"),
    ("conformer", "broken.wav", 400, "not readable"), ("transformer", "picture.png", 400, "reads text"),
])  # fmt: skip
def test_files_of_the_wrong_kind_and_broken_ones_are_refused_with_a_reason(senses, inputs, run, file, status, words):
    content = base64.b64encode(inputs[file].read_bytes()).decode()
    reply = post(senses, f"/api/v1/runs/{run}/inspect", {"file": content, "name": file})
    assert reply.status == status, reply.body
    assert status == 200 or words in reply.error


def test_a_picture_that_unpacks_to_gigabytes_is_refused_before_it_is_unpacked(senses):
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = zlib.compress(bytes(50_000_000), 9)  # 50 kB
    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)  # 7.5 GB of pixels
    picture = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    start = time.monotonic()
    reply = post(senses, "/api/v1/runs/vit/inspect", {"file": base64.b64encode(picture).decode(), "name": "bomb.png"})
    assert reply.status in (400, 413)
    assert "pixels" in reply.error
    assert time.monotonic() - start < 5


def test_a_file_that_is_too_large_is_refused(senses):
    from regard.web.inputs import MAX_FILE

    content = base64.b64encode(b"\x89PNG" + bytes(MAX_FILE)).decode()
    reply = post(senses, "/api/v1/runs/vit/inspect", {"file": content, "name": "big.png"})
    assert (reply.status, "big.png" in reply.error) == (413, True)
    assert post(senses, "/api/v1/runs/vit/inspect", {"file": content * 2}).status == 413


# LibreTranslate


def test_a_list_is_translated_text_by_text(app):
    one, other = translate(app, LEARNED).json(), translate(app, "They want the cat").json()
    both = translate(app, [LEARNED, "", "They want the cat"]).json()
    assert both == {"translatedText": [one["translatedText"], "", other["translatedText"]]}


def test_alternatives_are_further_hypotheses_of_the_beam(app, runs):
    reply = translate(app, LEARNED, alternatives=2).json()
    [wanted] = regard.load(runs["learner"], "cpu").translate([LEARNED], n_best=3)
    assert [reply["translatedText"], *reply["alternatives"]] == [one.text for one in wanted.n_best]


def test_alternatives_differ_from_the_translation_and_from_each_other(app, monkeypatch):
    """Different tokens may be the same text."""
    from regard.tasks.translation import Translator

    search = Translator.translate

    def repeat(self, texts, **options):
        found = search(self, texts, **options)
        return [replace(one, n_best=[one, one, *[replace(one, text="altro")] * 2]) for one in found]

    monkeypatch.setattr(Translator, "translate", repeat)
    assert translate(app, LEARNED, alternatives=3).json()["alternatives"] == ["altro"]
    assert translate(app, f"<p>{LEARNED}</p>", alternatives=3, format="html").json()["alternatives"] == ["<p>altro</p>"]


def test_long_texts_say_what_they_cost(app, monkeypatch):
    """By this, a batch is bounded, and short requests pass."""
    costs, submit = [], ModelThread.submit

    def note(self, *given, cost=0, **options):
        costs.append(cost)
        return submit(self, *given, cost=cost, **options)

    monkeypatch.setattr(ModelThread, "submit", note)
    translate(app, [LEARNED] * 3)
    post(app, "/v1/embeddings", {"model": "bert", "input": ["a dog", "a"]})
    post(app, "/v1/completions", {"model": "gpt", "prompt": ["the dog", "a"], "max_tokens": 1})
    assert costs == [3 * len(LEARNED), 6, 7, 1]


def test_html_keeps_its_tags(app):
    reply = translate(app, '<p class="x">I love you</p><script>var cat = 1</script>', format="html").json()
    text = translate(app, "I love you").json()["translatedText"]
    assert reply["translatedText"] == f'<p class="x">{text}</p><script>var cat = 1</script>'


def test_the_language_is_detected_if_asked(app):
    reply = translate(app, LEARNED, source="auto").json()
    assert reply["detectedLanguage"]["language"] == "en"
    assert reply["detectedLanguage"]["confidence"] > 90
    assert reply["translatedText"] == translate(app, LEARNED).json()["translatedText"]
    wrong = translate(app, "Non vogliono i vecchi gatti", source="auto")
    assert (wrong.status, "Italian" in wrong.error) == (400, True)


@pytest.mark.parametrize("section", ["<![x]>", "<![x I love you>", "<![ x]>", "<![>", "<![if x]>", "<![CDATA[x]]>"])
def test_a_marked_section_stays_as_it_is(app, section):
    plain = translate(app, LEARNED).json()["translatedText"]
    page = translate(app, f"<p>{LEARNED}</p>{section}<p>{LEARNED}</p>", format="html").json()["translatedText"]
    assert page == f"<p>{plain}</p>{section}<p>{plain}</p>"


@pytest.mark.parametrize("page", ["<![x I love you", "<![", "<![ "])
def test_a_marked_section_without_an_end_is_answered(app, page):
    assert translate(app, page, format="html").status == 200


def test_region_codes_are_languages(app):
    assert translate(app, LEARNED, "en-US", "it-IT").status == 200


@pytest.mark.parametrize(("body", "words"), [
    ({"q": "", "source": "en", "target": "it"}, "q is empty"), ({"q": [], "source": "en", "target": "it"}, "q is empty"),
    ({"q": "  \n", "source": "en", "target": "it"}, "q is empty"), ({"q": "a", "source": "xx", "target": "it"}, "available: en"),
    ({"q": "a", "source": "en", "target": "de"}, "available: it"),
    ({"q": "a", "source": "it", "target": "it"}, "available: en to it"),
    ({"q": "a", "source": "it", "target": "en"}, "no run here translates to en; available: en to it"),
    ({"q": "a", "source": "en"}, "target"), ({"q": 3, "source": "en", "target": "it"}, "q"),
    ({"source": "en", "target": "it"}, "q"),
    ({"q": "a", "source": "en", "target": "it", "format": "pdf"}, "format"),
    ({"q": "a", "source": "en", "target": "it", "alternatives": 99}, "alternatives"),
])  # fmt: skip
def test_bad_translate_requests_get_a_reason(app, body, words):
    reply = post(app, "/translate", body)
    assert reply.status == 400
    assert words in reply.error
    assert list(reply.json()) == ["error"]


def test_too_much_text_is_refused_with_the_limit(app):
    assert translate(app, "a" * 20_001).status == 413
    assert "20,000" in translate(app, "a" * 20_001).error
    assert translate(app, ["a"] * 257).status == 413
    assert post(app, "/detect", {"q": "a" * 20_001}).status == 413
    assert post(app, "/v1/completions", {"model": "gpt", "prompt": "a" * 20_001}).status == 413
    assert post(app, "/v1/embeddings", {"model": "bert", "input": "a" * 20_001}).status == 413
    assert post(app, "/api/v1/runs/learner/inspect", {"text": "a" * 20_001}).status == 413


def test_a_text_beyond_the_context_is_not_embedded_as_another(app, runs):
    bert = regard.load(runs["bert"], "cpu")
    fits = "a " * int(bert.max_len)
    assert len(bert.encode([fits])[0]) == bert.max_len
    reply = post(app, "/v1/embeddings", {"model": "bert", "input": ["a dog", fits]})
    assert reply.json()["usage"]["prompt_tokens"] == bert.max_len + len(bert.encode(["a dog"])[0])
    reply = post(app, "/v1/embeddings", {"model": "bert", "input": ["a dog", fits + "a"]})
    assert reply.status == 400
    assert f"{int(bert.max_len) + 1} tokens; the context length is {int(bert.max_len)}" in reply.error


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_text(app, text):
    replies = [
        translate(app, text), translate(app, text, source="auto"), translate(app, text, format="html"),
        post(app, "/detect", {"q": text}), post(app, "/v1/completions", {"model": "gpt", "prompt": text, "max_tokens": 2}),
        post(app, "/v1/completions", {"model": "learner", "prompt": text, "max_tokens": 2, "stop": [text]}),
        post(app, "/v1/embeddings", {"model": "bert", "input": text}),
        post(app, "/v1/completions", {"model": text, "prompt": ""}),
        post(app, "/api/v1/runs/learner/inspect", {"text": text}), translate(app, "a", text, text),
    ]  # fmt: skip
    for reply in replies:
        assert reply.status < 500, reply.body
        if reply.status >= 400:
            assert reply.error.isprintable(), "a message is one line without control characters"


def test_half_of_a_surrogate_pair_is_translated_like_the_replacement_character(app):
    body = b'{"q": "I love \\ud83d you", "source": "en", "target": "it"}'
    reply = ask(app, "POST", "/translate", body, headers={"content-type": "application/json"})
    assert reply.json() == translate(app, "I love \ufffd you").json()


def test_the_run_is_chosen_by_its_languages(runs, tmp_path):
    shutil.copytree(runs["bahdanau"], tmp_path / "other")
    config = (tmp_path / "other" / "run.toml").read_text()
    assert 'pair = "en-it"' in config
    (tmp_path / "other" / "run.toml").write_text(config.replace('pair = "en-it"', 'pair = "de-fr"'))
    app = served_app({**runs, "other": tmp_path / "other"}, ("transformer", "other"))
    try:
        for source, target, folder in (("en", "it", runs["transformer"]), ("de", "fr", runs["bahdanau"])):
            [wanted] = regard.load(folder, "cpu").translate(["the old dog"])
            assert translate(app, "the old dog", source, target).json() == {"translatedText": wanted.text}
        reply = translate(app, "the old dog", "de", "it")
        assert (reply.status, "from en" in reply.error) == (400, True)
        assert [language["code"] for language in ask(app, "GET", "/languages").json()] == ["en", "de", "it", "fr"]
    finally:
        app.state.serving.close()


def test_texts_of_several_languages_are_translated_at_the_same_time(runs, tmp_path, monkeypatch):
    shutil.copytree(runs["bahdanau"], tmp_path / "other")
    config = (tmp_path / "other" / "run.toml").read_text()
    (tmp_path / "other" / "run.toml").write_text(config.replace('pair = "en-it"', 'pair = "de-it"'))

    def detect(self, text, source, target):
        return Detection("de" if "Hund" in text else "en", 90.0)

    monkeypatch.setattr("regard.web.libretranslate._Directions._source_of", detect)
    texts = ["the old dog", "der Hund", "the cat"]
    app = served_app({**runs, "other": tmp_path / "other"}, ("transformer", "other"))
    try:
        english = [one.text for one in regard.load(runs["transformer"], "cpu").translate(texts)]
        german = [one.text for one in regard.load(runs["bahdanau"], "cpu").translate(texts)]
        wanted = [english[0], german[1], english[2]]
        assert translate(app, texts, source="auto").json()["translatedText"] == wanted
        threads, gates = app.state.serving.threads, [blocked(app, name) for name in ("transformer", "other")]
        with ThreadPoolExecutor(1) as executor:
            reply = executor.submit(translate, app, texts, source="auto")
            wait_for(lambda: threads["transformer"].depth == threads["other"].depth == 1)
            for gate in gates:
                gate.set()
            assert reply.result(30).json()["translatedText"] == wanted
    finally:
        app.state.serving.close()


def test_detection_is_refused_where_the_training_texts_are_gone(runs):
    app = served_app(runs, ("transformer",))  # trained on a file that does not exist
    try:
        reply = post(app, "/detect", {"q": LEARNED})
        assert (reply.status, "not on this machine" in reply.error) == (400, True)
        [only] = [translate(app, LEARNED, source="auto").json()["detectedLanguage"]]
        assert only == {"language": "en", "confidence": 0.0}, "there is one direction to Italian; that it is known is not claimed"
    finally:
        app.state.serving.close()


def test_a_server_without_languages_says_so(runs):
    app = served_app(runs, ("gpt",))
    try:
        assert ask(app, "GET", "/languages").json() == []
        assert "no run here names its languages" in translate(app, "a").error
        assert "no run here names its languages" in post(app, "/detect", {"q": "a"}).error
        assert ask(app, "GET", "/frontend/settings").status == 200
    finally:
        app.state.serving.close()


# Health and metrics


def test_health_names_the_runs_only_to_those_with_the_key(runs, app):
    wanted = [{"name": name, "waiting": 0, "working": 0} for name in ("learner", "gpt", "bert")]
    assert ask(app, "GET", "/health").json() == {"status": "ok", "runs": wanted}
    locked = served_app(runs, ("gpt",), api_key="correct-horse")
    try:
        assert ask(locked, "GET", "/health").json() == {"status": "ok", "runs": None}
        assert ask(locked, "GET", "/metrics").status == 401
    finally:
        locked.state.serving.close()


def test_metrics_count_requests_by_route_and_tokens_by_run(runs):
    from prometheus_client.parser import text_string_to_metric_families

    app = served_app(runs, ("gpt",))
    try:
        for path in ("/health", "/health", "/nothing/1", "/nothing/2", "/api/v1/runs/gpt/log", "/api/v1/runs/other/log"):
            ask(app, "GET", path)
        post(app, "/v1/completions", {"model": "gpt", "prompt": "the dog", "max_tokens": 3, "temperature": 0})
        for path in ("/v1/completions", "/api/v1/runs/gpt/inspect", "/nothing/3"):
            ask(app, "POST", path, body=b"{", headers={"content-type": "application/json"})  # refused before the router sees it
        reply = ask(app, "GET", "/metrics")
        assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    finally:
        app.state.serving.close()
    text = app.state.serving.metrics.text().decode()  # now that the last batch is counted, which is after its answer
    found = {(sample.name, *sorted(sample.labels.values())): sample.value
             for family in text_string_to_metric_families(text) for sample in family.samples}  # fmt: skip
    assert found["regard_requests_total", "/health", "200", "GET"] == 2
    assert found["regard_requests_total", "/{path:path}", "404", "GET"] == 2
    assert found["regard_requests_total", "/api/v1/runs/{run}/log", "404", "GET"] == 1
    assert found["regard_requests_total", "/v1/completions", "400", "POST"] == 1
    assert found["regard_requests_total", "/api/v1/runs/{run}/inspect", "400", "POST"] == 1
    assert found["regard_requests_total", "400", "POST", "other"] == 1
    assert found["regard_tokens_total", "gpt", "prompt"] == 7
    assert found["regard_tokens_total", "answer", "gpt"] == 3
    assert found["regard_queue_jobs", "gpt"] == 0
    assert found["regard_batch_jobs_count", "gpt"] == 2
    assert "nothing" not in text, "a client cannot make new labels"


# HTTP


def test_these_tests_serve_as_the_program_does(runs):
    with contextmanager(serve)(served_app(runs, ("gpt",))) as address:
        place = urlsplit(address)
        connection = http.client.HTTPConnection(place.hostname, place.port)
        connection.request("GET", "/health")
        reply = connection.getresponse()
        assert (reply.status, reply.getheader("server")) == (200, None), "uvicorn would name itself"
        connection.close()


# The queue


def blocked(app: object, name: str) -> threading.Event:
    """Keep the thread of a run busy until the event is set."""
    begun, go = threading.Event(), threading.Event()
    app.state.serving.threads[name].run(lambda: (begun.set(), go.wait(30)))
    assert begun.wait(30)
    return go


def test_a_full_queue_is_answered_with_429(runs):
    app = served_app(runs, ("gpt",), queue=2)
    go = blocked(app, "gpt")
    try:
        app.state.serving.threads["gpt"].run(lambda: None)
        reply = post(app, "/v1/completions", {"model": "gpt", "prompt": ["a", "b"]})
        assert (reply.status, reply.json()["error"]["type"]) == (429, "rate_limit_error")
        assert int(reply.headers["retry-after"]) >= 1
        streamed = post(app, "/v1/completions", {"model": "gpt", "prompt": ["a", "b"], "stream": True})
        assert streamed.status == 429
        assert app.state.serving.threads["gpt"].depth == 1, "the first prompt, which had room, was taken back"
        assert ask(app, "GET", "/health").status == 200, "the server itself is not busy"
    finally:
        go.set()
        app.state.serving.close()


def test_more_completions_than_the_queue_has_room_for_are_refused_for_good(runs):
    app = served_app(runs, ("gpt",), queue=2)
    body = {"model": "gpt", "prompt": ["a", "b"], "max_tokens": 1}
    try:
        for stream in (False, True):
            assert post(app, "/v1/completions", body | {"stream": stream}).status == 200
            reply = post(app, "/v1/completions", body | {"n": 2, "stream": stream})
            assert (reply.status, "at most 2" in reply.error) == (400, True), "a 429 would be tried again for ever"
    finally:
        app.state.serving.close()


def test_an_answer_that_takes_too_long_is_given_up(runs):
    app = served_app(runs, ("gpt",), limits=Limits(seconds=0.3))
    go = blocked(app, "gpt")
    try:
        reply = post(app, "/v1/completions", {"model": "gpt", "prompt": "a"})
        assert (reply.status, "0.3 seconds" in reply.json()["error"]["message"]) == (503, True)
        streamed = post(app, "/v1/completions", {"model": "gpt", "prompt": "a", "stream": True})
        assert streamed.status == 503
    finally:
        go.set()
        app.state.serving.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_gives_its_place_back(runs, stream):
    app = served_app(runs, ("gpt",))
    thread = app.state.serving.threads["gpt"]
    with contextmanager(serve)(app) as address:
        go = blocked(app, "gpt")
        place = urlsplit(address)
        body = json.dumps({"model": "gpt", "prompt": "a", "max_tokens": 5, "stream": stream})
        connection = http.client.HTTPConnection(place.hostname, place.port)
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        wait_for(lambda: thread.depth == 1)
        job = thread._waiting[0]
        assert job.wanted
        connection.close()
        wait_for(lambda: not job.wanted)
        go.set()


def test_a_client_that_hangs_up_ends_the_decoding(runs, monkeypatch):
    """The job is being decoded: it leaves before its last token."""
    app = served_app(runs, ("gpt",))
    begun, steps = threading.Event(), []
    from regard.tasks.language_model import _WrittenText

    add = _WrittenText.add

    def slow(self, token):
        steps.append(token)
        begun.set()
        time.sleep(0.05)
        add(self, token)

    monkeypatch.setattr(_WrittenText, "add", slow)
    thread = app.state.serving.threads["gpt"]
    with contextmanager(serve)(app) as address:
        place = urlsplit(address)
        body = json.dumps({"model": "gpt", "prompt": "a", "max_tokens": 20, "temperature": 0, "stream": True})
        connection = http.client.HTTPConnection(place.hostname, place.port)
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        assert begun.wait(30)
        connection.close()
        wait_for(lambda: not thread.busy)
    assert 0 < len(steps) < 20


def wait_for(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def test_closing_ends_all_threads(runs):
    app = served_app(runs)
    threads = [thread._thread for thread in (*app.state.serving.threads.values(), app.state.serving.background)]
    assert [thread.name for thread in threads] == ["model learner", "model gpt", "model bert", "model background"]
    assert all(thread.is_alive() for thread in threads)
    app.state.serving.close()
    assert not any(thread.is_alive() for thread in threads)


def test_two_runs_of_one_name_are_refused(runs):
    from regard.web.explorer import ServedRun

    one = ServedRun.open(runs["gpt"], "x", "cpu")
    with pytest.raises(ValueError, match="two runs are called x"):
        create_app([one, one])
