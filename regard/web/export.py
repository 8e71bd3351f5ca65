"""`map.html`: the explorer's page and the answers to its requests in one file, which opens from disk without a server.

The page's modules become one script and its style a style element.  The answers of the endpoints are deflated and held in
base64, which no text in them can end.  A Content-Security-Policy allows that one script, and no connection at all.
"""

import base64
import hashlib
import itertools
import json
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from regard.data.files import write_atomic
from regard.tasks.predictors import Predictor
from regard.view.attention_steps import MAX_QUERIES
from regard.view.draw import check_file
from regard.view.record import AttentionLayer
from regard.web.api_records import TILE
from regard.web.endpoints import call
from regard.web.explorer import Explorer, ServedRun, StoredRecord
from regard.web.inline_modules import inline_modules
from regard.web.inputs import display_name, input_kind
from regard.web.routes import FileAnswer, Json

__all__ = ["export_page", "request_key", "to_page"]

ESSENTIAL = 12_000_000  # bytes of answers in the page without which it shows little: averages of each layer
BUDGET = 1_500_000  # bytes of all answers, beyond which others are left out: a page of a sentence stays below 2 MB
SECONDS = 300.0  # after which no more answers are computed; the page is bounded in bytes, so the same on any machine
LONG = 2000  # characters of a string that is held once, however many answers have it
CHECKPOINTS = 12  # of the slider over the training
SWITCHES: tuple[Json, ...] = (  # of step by step
    {"positions": True}, {"positions": False}, {"positions": True, "shuffle": 1}, {"positions": False, "shuffle": 1},
)  # fmt: skip
POLICY = ("default-src 'none'; script-src '{script}'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
          "form-action 'none'")  # fmt: skip
OTHER_FILE = re.compile(r'<(?:link|script|img|iframe|source)\b[^>]*\s(?:src|href)="(?!data:)[^"]*"')
GLANCE, AVERAGES, WHAT_IF = "small maps of early layers", "averages of early layers", "some experiments of What if"

Request = tuple[str, str, Json | None]  # method, path with query, body
Read = Callable[[str], str]  # the text of a file of the page, by its name


def export_page(predictor: str | Path | Predictor, what: str | Path, file: str | Path, *, beam: int | None = None,
                device: str = "auto") -> Path:  # fmt: skip
    """Write the explorer's page for one text, or one image or sound file, of a run or of what `regard.load` returns.

    The file needs neither a server nor a network: open it in a browser, or send it to somebody.
    """
    path = Path(file)
    check_file(path, kinds=(".html",))
    run = ServedRun.open(predictor, device=device) if isinstance(predictor, str | Path) else ServedRun.of(predictor)
    write_atomic(path, to_page(Explorer([run]), run, what, beam=beam).encode())
    return path


def to_page(explorer: Explorer, run: ServedRun, what: str | Path, *, beam: int | None = None, read: Read | None = None) -> str:
    """The page for one input of a run; `read` reads the page's files."""
    kind = input_kind(run.predictor)
    options: Json = {} if beam is None else {"beam": beam}
    if kind == "text":
        sent = shown = {"text": str(what), **options}
    else:
        file = Path(what)
        if kind in ("image", "audio") and not file.is_file():
            raise ValueError(f"no file {file}; give {'an image' if kind == 'image' else 'a sound'} file")
        shown = {"name": display_name(file.name), **options}  # the page shows what the record holds of the file
        sent = shown | {"file": base64.b64encode(file.read_bytes()).decode() if file.is_file() else ""}
    return build_page(collect_answers(explorer, run, sent, shown), read or read_page_file)


def _quoted(name: str) -> str:
    """As JavaScript's encodeURIComponent writes it."""
    return quote(name, safe="!*'()")


def request_key(method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
    """How `api.js` finds the answer to a request: method, path and query, and the body as JSON with sorted keys."""
    return f"{method} {path}" if body is None else f"{method} {path} {canonical_json(body)}"


def canonical_json(value: Any) -> str:
    """JSON as `sortedJson` of `api.js` writes it: sorted keys, no spaces, no nulls, numbers as JavaScript has them."""
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(key)}:{canonical_json(value[key])}" for key in sorted(value) if value[key] is not None)
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(canonical_json, value)) + "]"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False)


# ---- the answers


class _Answers:
    """The answers to the page's requests, until the budget is spent, and what was left out."""

    def __init__(self, explorer: Explorer):
        self.explorer, self.held, self.left_out = explorer, dict[str, Json](), dict[str, int]()
        self.spent, self.began = 0, time.monotonic()
        self.shared: dict[str, int] = {}  # long strings, such as the inputs of all heads of a layer, and their numbers

    def add(self, key: str, answer: Json) -> Json:
        """Hold an answer, whatever it takes."""
        self.spent += _size(self._share(answer, self.shared))
        self.held[key] = answer
        return answer

    def _added(self, answer: Json) -> int:
        """The bytes that an answer would add."""
        numbers = dict(self.shared)
        rest = self._share(answer, numbers)
        return _size(rest) + sum(_size({"text": text}) for text in [*numbers][len(self.shared) :])

    def to_json(self) -> Json:
        """What the page reads: each long string is held once, and `{"shared": number}` stands in its place."""
        numbers = dict(self.shared)
        return {"requests": {key: self._share(answer, numbers) for key, answer in self.held.items()}, "shared": [*numbers]}

    def _share(self, value: Any, numbers: dict[str, int]) -> Any:
        """A value with numbers in place of long strings; a string without a number gets the next one."""
        if isinstance(value, dict):
            return {key: self._share(part, numbers) for key, part in value.items()}
        if isinstance(value, list):
            return [self._share(part, numbers) for part in value]
        if not isinstance(value, str) or len(value) < LONG:
            return value
        if value not in numbers:
            numbers[value] = len(numbers)
            self.spent += _size({"text": value}) if numbers is self.shared else 0
        return {"shared": numbers[value]}

    def ask(self, group: str, request: Request, shown: Json | None = None) -> Json | None:
        """Hold the answer to a request if there is room and time; `shown` is the body that the page will send."""
        budget = ESSENTIAL if group in (GLANCE, AVERAGES) else BUDGET
        if self.spent < budget and time.monotonic() - self.began < SECONDS:
            try:
                answer = _answer(self.explorer, request)
            except ValueError:  # not of this model; the page says so itself
                return None
            if self.spent + self._added(answer) <= budget:
                method, path, body = request
                return self.add(request_key(method, path, shown or body), answer)
        self.left_out[group] = self.left_out.get(group, 0) + 1
        return None


def collect_answers(explorer: Explorer, run: ServedRun, sent: Json, shown: Json) -> Json:
    """Ask what the page would ask, the most important first; `shown` is what the page shows of the input that is `sent`."""
    answers, path = _Answers(explorer), f"/runs/{_quoted(run.name)}/inspect"
    record = answers.add(request_key("POST", path, shown), _answer(explorer, ("POST", path, sent)))
    inspected = explorer.record(record["id"])
    for group, request in _requests(inspected):
        answers.ask(group, request)
    for step in _some(run.checkpoints):  # of the view of learning
        at_step = {"checkpoint": step}
        if earlier := answers.ask("some checkpoints", ("POST", path, sent | at_step), shown | at_step):
            for layer in earlier["layers"]:
                answers.ask("some checkpoints", ("GET", f"/records/{earlier['id']}/layers/{layer['index']}/thumbnails", None))
    others = (_steps(inspected, layer, SWITCHES[0]) for layer in reversed(range(1, len(record["layers"]))))
    for group, request in itertools.chain(_ablations(inspected), *others):
        answers.ask(group, request)
    if answers.left_out:
        left = " and ".join(filter(None, (", ".join([*answers.left_out][:-1]), [*answers.left_out][-1])))
        record["notes"].append(f"this saved page leaves out {left}; regard serve {run.name} shows all")
    return answers.to_json() | {"notes": record["notes"]}


def _some(steps: Sequence[int]) -> list[int]:
    """At most `CHECKPOINTS` of them, evenly, the first and the last included."""
    if len(steps) <= CHECKPOINTS:
        return list(steps)
    return [steps[n * (len(steps) - 1) // (CHECKPOINTS - 1)] for n in range(CHECKPOINTS)]


def _answer(explorer: Explorer, request: Request) -> Json:
    method, path, body = request
    answer = call(explorer, method, path, body=body)
    assert not isinstance(answer, FileAnswer)
    return answer


def _size(answer: Json) -> int:
    """Bytes in the page, about: answers are deflated, and then written in base64."""
    return len(zlib.compress(json.dumps(answer).encode(), 1)) * 4 // 3


def _requests(inspected: StoredRecord) -> Iterator[tuple[str, Request]]:
    """What the views of the page ask, the most important first, with the words for a note if it is left out."""
    record, run = f"/records/{inspected.id}", f"/runs/{_quoted(inspected.run.name)}"
    layers = inspected.record.layers
    last_first = sorted(range(len(layers)), key=lambda index: (layers[index].kind != "cross", -index))
    yield GLANCE, ("GET", "/runs", None)

    # 1) Every layer at a glance, and what needs no layer.
    for index in last_first:
        yield GLANCE, ("GET", f"{record}/layers/{index}/thumbnails", None)
    for stack in sorted({layer.stack for layer in layers}):
        yield "the rollout", ("GET", f"{record}/rollout?stack={_quoted(stack)}", None)
    yield "the training log", ("GET", f"{run}/log", None)
    yield "positions", ("GET", f"{run}/positions", None)
    for switches in SWITCHES:
        yield "the lecture's example", ("POST", "/lecture/steps", switches)
    for index in last_first:
        yield from _weights(AVERAGES, f"{record}/layers/{index}", layers[index], "mean")

    # 2) Every head; of the layer that the page begins with also its numbers, step by step.
    for index in last_first:
        for head in range(layers[index].heads):
            yield from _weights("single heads of early layers", f"{record}/layers/{index}", layers[index], head)
    for switches in SWITCHES if layers else ():
        yield from _steps(inspected, 0, switches)

    # 3) Other searches for the answer.
    yield "decoding", ("POST", f"{record}/decoding", {})
    yield WHAT_IF, ("POST", f"{record}/importance", {})


def _ablations(inspected: StoredRecord) -> Iterator[tuple[str, Request]]:
    """The answers without one head, one layer or one word."""
    record, layers = f"/records/{inspected.id}", inspected.record.layers
    for index, layer in enumerate(layers):
        for off in ({"heads": [[index, head]], "layers": []} for head in range(layer.heads)):
            yield WHAT_IF, ("POST", f"{record}/ablate", off | {"words": []})
        yield WHAT_IF, ("POST", f"{record}/ablate", {"heads": [], "layers": [index], "words": []})
    for word in _input_words(inspected):
        yield WHAT_IF, ("POST", f"{record}/ablate", {"heads": [], "layers": [], "words": [word]})


def _steps(inspected: StoredRecord, index: int, switches: Json) -> Iterator[tuple[str, Request]]:
    """The requests for the numbers of each head of a layer; the page asks for one query of a layer that has many."""
    layer = inspected.record.layers[index]
    whole = layer.windows is None and inspected.record.axes[layer.queries].size <= MAX_QUERIES
    for head in range(layer.heads):
        body = {"layer": index, "head": head, **({} if whole else {"query": 0}), **switches}
        yield "the numbers of some heads", ("POST", f"/records/{inspected.id}/steps", body)


def _weights(group: str, path: str, layer: AttentionLayer, head: int | str) -> Iterator[tuple[str, Request]]:
    """The requests for a head: what each key receives, and the weights in tiles."""
    rows, columns = layer.shape
    yield group, ("GET", f"{path}/received?head={head}", None)
    for top, left in itertools.product(range(0, rows, TILE), range(0, columns, TILE)):
        size = f"rows={min(TILE, rows - top)}&columns={min(TILE, columns - left)}"
        yield group, ("GET", f"{path}/weights?head={head}&top={top}&left={left}&{size}", None)


def _input_words(inspected: StoredRecord) -> list[list[int]]:
    """Where the words of a text are that can be switched off."""
    axis = inspected.record.axes.get("source") or inspected.record.axes.get("tokens")
    if axis is None or not inspected.record.rerun.source:
        return []
    count = len(inspected.record.rerun.source)
    return [[word.start, word.end] for word in axis.words if word.end <= count and word.start not in axis.special]


# ---- the page


def read_page_file(name: str) -> str:
    """A file of the page, as installed."""
    return resources.files("regard.web").joinpath("page", *name.split("/")).read_text(encoding="utf-8")


def build_page(embedded: Json, read: Read) -> str:
    """The page's files and its data as one HTML text."""
    script = inline_modules("app.js", read)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = POLICY.format(script=f"sha256-{digest}")
    data = json.dumps(embedded, ensure_ascii=False, separators=(",", ":")).encode()
    packed = base64.b64encode(zlib.compress(data, 9)).decode()
    page = _replace(read("index.html"), {
        r'<meta charset="utf-8" ?/?>': '<meta charset="utf-8" />\n    '
                                       f'<meta http-equiv="Content-Security-Policy" content="{policy}" />',
        r'<link rel="stylesheet" href="style\.css" ?/?>': f"<style>\n{_style(read('style.css'))}</style>",
        r'\s*<script type="module" src="app\.js"></script>': "",
    })  # fmt: skip
    if found := OTHER_FILE.search(page):
        raise ValueError(f"index.html asks for another file, {found[0]}; a page in one file has only its own style and script")
    scripts = f'<script type="application/json" id="embedded">"{packed}"</script>\n<script>{script}</script>\n</body>'
    return _replace(page, {"</body>": scripts})


def _replace(page: str, parts: Mapping[str, str]) -> str:
    """Replace what each pattern matches, once; refuse a page where it matches nothing, or more."""
    for pattern, text in parts.items():
        if len(found := re.findall(pattern, page)) != 1:
            raise ValueError(f"index.html has {len(found)} times {pattern}; wanted once")
        page = re.sub(pattern, lambda _, text=text: text, page)  # type: ignore[misc]
    return page


def _style(text: str) -> str:
    if found := re.search(r"</style|@import|url\((?!\s*[\"']?data:)", text, re.IGNORECASE):
        raise ValueError(f"style.css has {found[0]!r}; a page in one file has nothing to load")
    return text
