"""The explorer's answers: what they hold equals a direct forward pass, and what cannot be answered is said in one line."""

import base64
import gc
import io
import json
import os
import re
import shutil
import struct
import threading
import weakref
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
from explicit import attention
from PIL import Image
from pydantic import ValidationError
from tiny_runs import EVERY_FAMILY, PICTURES, SOUNDS, TEXT, TEXTS

from regard.layers.tap import watch
from regard.tasks.load import load
from regard.tasks.observer import Unwanted
from regard.view.record import Answer, AttentionLayer, Axis, Record
from regard.web import inputs as web_inputs
from regard.web.endpoints import ENDPOINTS, call, find_endpoint
from regard.web.explorer import ITEM_BYTES, Explorer, RecordStore, ServedRun, StoredRecord
from regard.web.routes import BadRequest, FileAnswer

FAMILY = pytest.mark.parametrize("family", EVERY_FAMILY)


@pytest.fixture(scope="module")
def explorer(runs: dict[str, Path]) -> Explorer:
    return Explorer([ServedRun.open(folder, device="cpu") for folder in runs.values()])


def encoded(file: Path | bytes) -> str:
    return base64.b64encode(file if isinstance(file, bytes) else file.read_bytes()).decode()


def body_of(family: str, inputs: dict[str, Path]) -> dict:
    if family in TEXTS:
        return {"text": TEXTS[family]}
    file = inputs["picture.png" if family in PICTURES else "sound.wav"]
    return {"file": encoded(file), "name": file.name}


def inspect(explorer: Explorer, run: str, **body: object) -> dict:
    return call(explorer, "POST", f"/runs/{run}/inspect", body=body)


def weights(text: str, *shape: int) -> torch.Tensor:
    """Decode by Python's own struct."""
    content = base64.b64decode(text)
    return torch.tensor([value / 65535 for (value,) in struct.iter_unpack("<H", content)]).reshape(*shape)


def refused(explorer: Explorer, method: str, path: str, body: dict | None = None) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        call(explorer, method, path, body=body)
    assert "\n" not in str(caught.value)
    return caught.value


# ---- runs and records


@pytest.mark.parametrize(("run", "text", "tokens"), [("gpt", "the dog", None), ("gpt", "aaaa", None), ("gpt", "the dog", "all"),
                                                     ("bert", TEXTS["bert"], None)])  # fmt: skip
def test_the_rows_that_the_alignment_names_are_those_it_is_the_mean_of(run: str, text: str, tokens: str | None,
                                                                       explorer: Explorer):  # fmt: skip
    predictor, more = explorer.run(run).predictor, {}
    if tokens:  # as many as the context has room for: the last one is not read
        more = {"tokens": predictor.context - len(predictor.encode_prompt(text, 1)[0]) + 1}
    record = inspect(explorer, run, text=text, **more)
    layers = explorer.record(record["id"]).record.layers
    mean = torch.stack([layer.weights.mean(0) for layer in layers]).mean(0)[record["alignment"]["queries"]]
    torch.testing.assert_close(weights(record["alignment"]["weights"], *mean.shape), mean, rtol=0, atol=1e-4)


@FAMILY
def test_every_tile_is_the_weight_of_a_direct_forward_pass(family: str, explorer: Explorer, inputs: dict[str, Path]):
    body = body_of(family, inputs)
    record = inspect(explorer, family, **body)
    given = body.get("text") or inputs["picture.png" if family in PICTURES else "sound.wav"]
    predictor = explorer.run(family).predictor
    if family == "gpt":  # its answer has special tokens, which its text does not show
        again = explorer.record(record["id"]).record.rerun
        with watch(predictor.model) as seen, torch.inference_mode():
            predictor.model(torch.tensor([[*again.source, *again.target]]))
        expected = {name: calls[0][0] for name, calls in seen.items()}
    else:
        expected = attention(family, predictor, given)
    assert [layer["name"] for layer in record["layers"]] == list(expected)
    for layer in record["layers"]:
        wanted, path = expected[layer["name"]], f"/records/{record['id']}/layers/{layer['index']}"
        rows, columns = (record["axes"][layer[side]]["size"] for side in ("queries", "keys"))
        # An answer that the length limit has cut is read without its last token here, and with it there: later rows change none.
        assert wanted.shape[1] - rows == (columns < wanted.shape[2]) or layer["kind"] == "cross"
        wanted = wanted[:, :rows, :columns]
        assert wanted.shape == (layer["heads"], rows, columns)
        for head in range(layer["heads"]):
            tile = call(explorer, "GET", f"{path}/weights?head={head}")
            torch.testing.assert_close(weights(tile["weights"], rows, columns), wanted[head], atol=1e-4, rtol=0)
        part = call(explorer, "GET", f"{path}/weights?head=mean&top=1&left=2&rows=3&columns=4")
        found = weights(part["weights"], part["rows"], part["columns"])
        torch.testing.assert_close(found, wanted.mean(0)[1:4, 2:6], atol=1e-4, rtol=0)
        received = weights(call(explorer, "GET", f"{path}/received?head=0")["weights"], columns)
        torch.testing.assert_close(received, wanted[0].mean(0), atol=1e-4, rtol=0)


@FAMILY
def test_a_record_says_what_its_axes_and_answer_are(family: str, explorer: Explorer, inputs: dict[str, Path]):
    record = inspect(explorer, family, **body_of(family, inputs))
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    rows, columns = (record["axes"][record["alignment"][side]] for side in ("rows", "columns"))
    alignment = weights(record["alignment"]["weights"], rows["size"], columns["size"])
    assert bool((alignment.sum(1) <= 1 + 1e-3).all())
    for axis in record["axes"].values():
        if axis["kind"] == "tokens":
            assert len(axis["labels"]) == axis["size"]
            places = [n for word in axis["words"] for n in range(word["start"], word["end"])]
            assert places == list(range(axis["size"]))
    assert all(0 <= item["query"] < rows["size"] for item in record["answer"]["items"])
    if family in TEXTS:
        assert record["input"]["text"] == TEXTS[family]
    if family in SOUNDS:
        sound = record["input"]["spectrogram"]
        assert len(base64.b64decode(sound["levels"])) == sound["rows"] * sound["columns"]
        assert len(sound["frequencies"]) == sound["rows"]


def test_the_answer_is_that_of_the_run(explorer: Explorer, inputs: dict[str, Path], runs: dict[str, Path]):
    translator = load(runs["transformer"], "cpu")
    assert inspect(explorer, "transformer", text=TEXT)["answer"]["text"] == translator.translate([TEXT], split=False)[0].text
    greedy = inspect(explorer, "transformer", text=TEXT, beam=1)["answer"]["text"]
    assert greedy == translator.translate([TEXT], beam=1, split=False)[0].text
    [[best]] = load(runs["vit"], "cpu").classify([inputs["picture.png"]])
    assert inspect(explorer, "vit", **body_of("vit", inputs))["answer"]["text"] == best.text


def test_runs_say_what_they_read(explorer: Explorer):
    answer = call(explorer, "GET", "/runs")
    found = {run["name"]: run for run in answer["runs"]}
    assert found["transformer"]["input"] == "text"
    assert found["transformer"]["languages"] == {"source": "en", "target": "it"}
    assert found["transformer"]["max_tokens"] == 64
    assert found["vit"]["input"] == "image"
    assert found["vit"]["example"] is None
    assert found["conformer"]["input"] == "audio"
    assert found["learner"]["checkpoints"] == [0, 50, 100, 150]
    assert found["learner"]["about"].startswith("trained for 150 steps")
    decoders = {"transformer", "bahdanau", "t5", "gpt", "captioner"}
    assert {name for name in EVERY_FAMILY if found[name]["decodes"]} == decoders
    inspect(explorer, "learner", text=found["learner"]["example"])  # an example can be inspected


def test_a_checkpoint_is_inspected_with_its_own_weights(explorer: Explorer):
    run = explorer.run("learner")
    text = "I love you"
    for step in (0, 50):
        record = inspect(explorer, "learner", text=text, checkpoint=step)
        assert record["checkpoint"] == step
        assert record["answer"]["text"] == load(run.folder, "cpu", step=step).translate([text], split=False)[0].text
    last = [inspect(explorer, "learner", text=text, checkpoint=step)["alignment"]["weights"] for step in (0, 150)]
    assert last[0] != last[1]


def test_thumbnails_have_the_largest_weight_of_each_cell():
    torch.manual_seed(0)
    dense = torch.rand(2, 96, 60).softmax(-1)
    explorer, id = _explorer_of(dense)
    answer = call(explorer, "GET", f"/records/{id}/layers/0/thumbnails")
    assert (answer["rows"], answer["columns"]) == (48, 48)
    for head, thumbnail in enumerate(answer["heads"]):
        assert thumbnail["max"] == pytest.approx(float(dense[head].max()))
        cells = torch.tensor(list(base64.b64decode(thumbnail["cells"])), dtype=torch.float).reshape(48, 48)
        for row in (0, 17, 47):
            wanted = dense[head, 2 * row : 2 * row + 2].amax(0)
            for column in (0, 47):  # a cell is 1.25 columns wide: it shows those it touches
                touched = wanted[column * 60 // 48 : -(-(column + 1) * 60 // 48)].max()
                assert float(cells[row, column]) == pytest.approx(float(touched / dense[head].max() * 255), abs=0.5001)


def test_rollout_is_the_product_of_the_layers_with_half_of_each_residual(explorer: Explorer):
    record = inspect(explorer, "bert", text=TEXTS["bert"])
    size, through = record["axes"]["tokens"]["size"], None
    for layer in record["layers"]:
        tile = call(explorer, "GET", f"/records/{record['id']}/layers/{layer['index']}/weights?head=mean")
        half = weights(tile["weights"], size, size) / 2 + torch.eye(size) / 2
        through = half if through is None else half @ through
    answer = call(explorer, "GET", f"/records/{record['id']}/rollout?stack=")
    torch.testing.assert_close(weights(answer["weights"], size, size), through, atol=1e-3, rtol=0)


def test_a_model_without_a_rollout_says_why(explorer: Explorer, inputs: dict[str, Path]):
    record = inspect(explorer, "swin", **body_of("swin", inputs))
    error = refused(explorer, "GET", f"/records/{record['id']}/rollout?stack=")
    assert error.status == 404
    assert "windows" in str(error)


@FAMILY
def test_drawings_are_files_of_their_format(family: str, explorer: Explorer, inputs: dict[str, Path]):
    record = inspect(explorer, family, **body_of(family, inputs))
    path = f"/records/{record['id']}/drawing?layer={len(record['layers']) - 1}"
    begins = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG", "json": b"{"}
    for kind, head in begins.items():
        answer = call(explorer, "GET", f"{path}&head=0&format={kind}")
        assert isinstance(answer, FileAnswer)
        assert answer.content.startswith(head)
        assert answer.name.endswith(f".{kind}")


def test_a_drawn_map_has_the_weights_of_its_head(explorer: Explorer):
    record = inspect(explorer, "transformer", text=TEXT)
    cross = next(layer for layer in record["layers"] if layer["kind"] == "cross")
    answer = call(explorer, "GET", f"/records/{record['id']}/drawing?layer={cross['index']}&head=1&format=json")
    drawn = json.loads(answer.content)
    tile = call(explorer, "GET", f"/records/{record['id']}/layers/{cross['index']}/weights?head=1")
    torch.testing.assert_close(torch.tensor(drawn["weights"]), weights(tile["weights"], tile["rows"], tile["columns"]),
                               atol=1e-4, rtol=0)  # fmt: skip
    shown = [label.removeprefix("+") for label in record["axes"]["answer"]["labels"]]
    assert [label.removeprefix("▁") for label in drawn["rows"]] == shown
    assert drawn["columns"] == ["▁they", "▁wan", "t", "▁the", "▁old", "▁do", "g", "</s>"]
    assert "head 2" in drawn["title"]


def test_a_drawing_too_large_to_read_is_refused():
    explorer, id = _explorer_of(torch.rand(1, 200, 200).softmax(-1))
    assert "128 × 128 at most" in str(refused_value(explorer, f"/records/{id}/drawing?format=png"))
    assert call(explorer, "GET", f"/records/{id}/drawing?format=json").content


def refused_value(explorer: Explorer, path: str) -> ValueError:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        call(explorer, "GET", path)
    return caught.value


@dataclass
class Reader:
    """Reads a stream until it has `most` lines."""

    most: int = 1000
    lines: list[dict] = field(default_factory=list)
    partial = None

    @property
    def wanted(self) -> bool:
        return len(self.lines) < self.most


def stream(explorer: Explorer, run: str, reader: Reader | None = None, **body: object) -> list[dict]:
    endpoint, values = find_endpoint("POST", f"/runs/{run}/inspect/stream")
    reader = reader or Reader()
    endpoint.stream(explorer, **values, **body, send=reader.lines.append, observer=reader)
    return reader.lines


@pytest.mark.parametrize(("family", "options"), [("transformer", {}), ("transformer", {"beam": 1}), ("gpt", {"tokens": 6})])
def test_the_answer_is_streamed_as_it_is_decoded(explorer: Explorer, family: str, options: dict):
    *texts, last = stream(explorer, family, text=TEXTS[family], **options)
    assert {event["event"] for event in texts} == {"text"}
    assert len(texts) > 2  # pieces, not the answer at once
    assert last["event"] == "record"
    assert texts[-1]["text"] == last["record"]["answer"]["text"]
    assert last["record"]["answer"] == inspect(explorer, family, text=TEXTS[family], **options)["answer"]


@FAMILY
def test_every_stream_ends_with_the_record(family: str, explorer: Explorer, inputs: dict[str, Path]):
    *texts, last = stream(explorer, family, **body_of(family, inputs))
    assert texts[-1]["text"] == last["record"]["answer"]["text"]


def test_a_stream_that_nobody_reads_ends(explorer: Explorer):
    reader = Reader(most=1)
    with pytest.raises(Unwanted):
        stream(explorer, "transformer", reader, text=TEXT)
    assert len(reader.lines) == 1


def test_a_stream_is_decoded_in_the_thread_of_its_model(explorer: Explorer, monkeypatch: pytest.MonkeyPatch):
    """A new thread would compute with another number of torch's threads than the model's."""
    threads, model = set[threading.Thread](), explorer.run("transformer").predictor.model
    with monkeypatch.context() as patch:
        forward = model.forward
        patch.setattr(model, "forward", lambda *given: (threads.add(threading.current_thread()), forward(*given))[1])
        stream(explorer, "transformer", text=TEXT)
    assert threads == {threading.current_thread()}


def test_an_error_of_a_stream_is_that_of_the_answer(explorer: Explorer):
    with pytest.raises(BadRequest, match="the text is empty"):
        stream(explorer, "transformer", text="")


def test_every_path_is_found_and_no_two_endpoints_share_one():
    assert len({(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}) == len(ENDPOINTS)
    for endpoint in ENDPOINTS:
        found, values = find_endpoint(endpoint.method, re.sub(r"\{(\w+)\}", r"a%20\1", endpoint.path))
        assert found is endpoint
        assert values == {name: f"a {name}" for name in re.findall(r"\{(\w+)\}", endpoint.path)}


# ---- what is refused


@pytest.mark.parametrize(
    ("run", "body", "status", "words"),
    [
        ("transformer", {}, 400, "the text is empty; type a sentence"),
        ("transformer", {"text": " \n\t"}, 400, "the text is empty"),
        ("transformer", {"text": "dog " * 100}, 400, "transformer reads at most 64 tokens: shorten it"),
        ("transformer", {"text": "a" * 100_001}, 400, "100,001 characters"),
        ("transformer", {"text": "\ud800"}, 400, "half of a surrogate pair"),
        ("transformer", {"text": "dog", "beam": 0}, 422, "beam"),
        ("transformer", {"text": "dog", "beam": 10**9}, 422, "beam"),
        ("transformer", {"text": "dog", "beam": "2"}, 422, "beam"),
        ("transformer", {"text": "dog", "tokens": 4096}, 400, "ask for a shorter answer"),
        ("t5", {"text": "dog", "tokens": 4096}, 400, "the answer may have 4,096 more"),
        ("transformer", {"text": "dog", "tokens": 100_000}, 422, "tokens"),
        ("transformer", {"text": 3}, 422, "text"),
        ("transformer", {"text": "dog", "temperature": float("nan")}, 422, "temperature"),
        ("transformer", {"text": "dog", "colour": 1}, 422, "colour"),
        ("transformer", {"text": "dog", "file": "YQ=="}, 400, "both given"),
        ("transformer", {"text": "dog", "checkpoint": 7}, 400, "no checkpoint of step 7"),
        ("gpt", {"text": "the dog " * 9}, 400, "gpt reads at most"),
        ("bert", {"text": "the dog " * 40}, 400, "bert reads at most"),
        ("vit", {"text": "a dog"}, 400, "vit reads images; give an image file"),
        ("vit", {"file": ""}, 400, "the file is empty"),
        ("vit", {"file": "###"}, 400, "not base64"),
        ("conformer", {"text": "a dog"}, 400, "conformer reads sound; give a sound file"),
        ("nobody", {"text": "dog"}, 404, "no run 'nobody'"),
        ("transformr", {"text": "dog"}, 404, "did you mean 'transformer'"),
    ],
)
def test_a_bad_request_is_answered_with_one_line(explorer: Explorer, run: str, body: dict, status: int, words: str):
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        inspect(explorer, run, **body)
    assert getattr(caught.value, "status", 400) == status
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("run", "file", "words"),
    [
        ("vit", "sound.wav", "vit reads images (png, jpeg, webp, gif, bmp, tiff); got a sound file (wav)"),
        ("vit", "notes.txt", "got a text file"),
        ("vit", "broken.png", "damaged or cut short"),
        ("conformer", "picture.png", "conformer reads sound (wav, flac, ogg, mp3); got an image file (png)"),
        ("conformer", "broken.wav", "sound"),
        ("transformer", "picture.png", "transformer reads text; got an image file (png)"),
        ("transformer", "notes.txt", "transformer reads text; give the text itself, not a file"),
    ],
)
def test_a_file_of_another_kind_or_a_damaged_one_is_refused(
    explorer: Explorer, inputs: dict[str, Path], run: str, file: str, words: str
):
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        inspect(explorer, run, file=encoded(inputs[file]), name="../../etc/../" + file)
    assert "/" not in str(caught.value).replace(f"{file}", "")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def test_a_picture_that_would_fill_the_memory_is_refused_before_it_is_decoded(explorer: Explorer):
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(bytes(10_000))) + _chunk(b"IEND", b"")
    error = refused(explorer, "POST", "/runs/vit/inspect", {"file": encoded(bomb)})
    assert "60,000 × 60,000 pixels" in str(error)
    assert error.status == 413


def test_a_file_beyond_the_limit_is_refused_before_it_is_decoded(explorer: Explorer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(web_inputs, "MAX_FILE", 100)
    error = refused(explorer, "POST", "/runs/vit/inspect", {"file": encoded(bytes(200)), "name": "big.png"})
    assert str(error).startswith("big.png is larger than")


@pytest.mark.parametrize(("seconds", "rate", "words"), [(31, 8000, "lasts 31.0 seconds"), (1, 44_101, "44,101 samples a second")])
def test_sounds_that_would_take_too_long_are_refused(explorer: Explorer, seconds: int, rate: int, words: str):
    stream = io.BytesIO()
    soundfile.write(stream, np.zeros(seconds * rate), rate, format="WAV")
    assert words in str(refused(explorer, "POST", "/runs/conformer/inspect", {"file": encoded(stream.getvalue())}))


def test_a_sound_whose_power_would_overflow_is_refused(explorer: Explorer):
    content = io.BytesIO()
    soundfile.write(content, np.full(8000, 1e18), 8000, format="WAV", subtype="FLOAT")
    with pytest.raises(ValueError, match="has a sample of 1e"):
        inspect(explorer, "conformer", file=encoded(content.getvalue()), name="loud.wav")


def test_a_header_that_lies_about_the_length_of_a_sound_is_not_believed(explorer: Explorer, monkeypatch: pytest.MonkeyPatch):
    stream = io.BytesIO()
    soundfile.write(stream, 0.1 * np.random.default_rng(0).standard_normal(40 * 8000), 8000, format="WAV")
    monkeypatch.setattr(web_inputs, "audio_seconds", lambda content: 1.0)
    assert "more than 30 seconds" in str(
        refused(explorer, "POST", "/runs/conformer/inspect", {"file": encoded(stream.getvalue())})
    )


def test_pictures_in_records_are_clean_pngs(explorer: Explorer):
    pixels, stream = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8), io.BytesIO()
    exif = Image.Exif()
    exif[0x010E] = "a secret place"
    Image.fromarray(pixels).save(stream, "PNG", exif=exif, pnginfo=None)
    assert b"a secret place" in stream.getvalue()
    record = inspect(explorer, "vit", file=encoded(stream.getvalue()))
    kind, _, data = record["input"]["picture"].partition(",")
    content = base64.b64decode(data)
    assert kind == "data:image/png;base64"
    assert b"a secret place" not in content
    assert {content[at + 4 : at + 8] for at in _chunks(content)} <= {b"IHDR", b"PLTE", b"IDAT", b"IEND"}
    np.testing.assert_array_equal(np.array(Image.open(io.BytesIO(content)).convert("RGB")), pixels)


def _chunks(png: bytes) -> list[int]:
    places, at = [], 8
    while at < len(png):
        places.append(at)
        at += 12 + struct.unpack(">I", png[at : at + 4])[0]
    return places


def test_hostile_text_comes_back_as_it_was(explorer: Explorer):
    text = "<script>alert(1)</script> \u202edog\u202c \x07 👩‍👩‍👧"
    record = inspect(explorer, "transformer", text=text)
    assert record["input"]["text"] == text
    drawn = call(explorer, "GET", f"/records/{record['id']}/drawing?layer=0&head=0&format=svg").content.decode()
    assert "<script" not in drawn


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("layers/99/thumbnails", 404),
        ("layers/-1/thumbnails", 404),
        ("layers/x/weights?head=0", 404),
        ("layers/0/weights?head=3", 404),
        ("layers/0/weights?head=-1", 422),
        ("layers/0/weights?head=all", 422),
        ("layers/0/weights?top=1000", 400),
        ("layers/0/weights?rows=257", 422),
        ("layers/0/weights?rows=0", 422),
        ("rollout?stack=nothing", 404),
        ("drawing?format=exe", 422),
        ("drawing?layer=99", 404),
        ("nothing", 404),
    ],
)
def test_parts_that_a_record_does_not_have_are_refused(explorer: Explorer, path: str, status: int):
    record = inspect(explorer, "transformer", text=TEXT)
    assert refused(explorer, "GET", f"/records/{record['id']}/{path}").status == status


def test_bodies_are_strict():
    from regard.web.api_records import InspectBody

    with pytest.raises(ValidationError):
        InspectBody(text="a", beam=True)
    assert InspectBody(text="a", temperature=1).temperature == 1.0


# ---- the store


class NoRerun:
    source: tuple[int, ...] = ()


def _record_of(dense: torch.Tensor) -> Record:
    axes = {
        name: Axis("tokens", size, [f"{name}{n}" for n in range(size)]) for name, size in zip("qk", dense.shape[1:], strict=True)
    }
    layer = AttentionLayer("decoder.0.cross", "decoder layer 1, cross-attention", "cross", "decoder", "q", "k", dense)
    return Record("a title", Answer("none", "", []), axes, [layer], dense.mean(0), ("q", "k"), "", NoRerun())


def _explorer_of(dense: torch.Tensor, store: RecordStore | None = None) -> tuple[Explorer, str]:
    explorer = Explorer([], store)
    return explorer, explorer.keep(ServedRun("x", None, None), None, _record_of(dense)).id


def test_records_that_were_not_used_for_longest_leave_first_and_say_so():
    store = RecordStore(max_bytes=3 * (2 * 400 + 20 * ITEM_BYTES))
    explorer = Explorer([], store)
    run = ServedRun("x", None, None)
    first, second, third = (explorer.keep(run, None, _record_of(torch.zeros(1, 10, 10))).id for _ in range(3))
    explorer.record(first)
    fourth = explorer.keep(run, None, _record_of(torch.zeros(1, 10, 10))).id
    for id in (first, third, fourth):
        assert explorer.record(id).id == id
    with pytest.raises(BadRequest, match="no longer in memory") as caught:
        explorer.record(second)
    assert caught.value.status == 404
    assert caught.value.expired
    assert store.bytes <= store.max_bytes
    assert len({first, second, third, fourth}) == 4


def test_the_number_of_records_is_bounded_and_the_newest_stays_however_large_it_is():
    store = RecordStore(max_bytes=100, max_records=2)
    explorer, old = _explorer_of(torch.zeros(1, 2, 2), store)
    new = explorer.keep(ServedRun("x", None, None), None, _record_of(torch.zeros(1, 50, 50))).id
    assert len(store) == 1
    assert explorer.record(new)
    with pytest.raises(BadRequest):
        explorer.record(old)


@pytest.mark.parametrize("folder", [".", "relative"])
def test_notes_name_the_run_and_not_where_it_is(folder: str, runs: dict[str, Path], tmp_path: Path, monkeypatch):
    shutil.copytree(runs["transformer"], tmp_path / "relative")
    (tmp_path / "relative" / "log.jsonl").write_text('{"step": 1, "final_loss": 1.5, "minutes": 0.1}\n')
    monkeypatch.chdir(tmp_path / "relative" if folder == "." else tmp_path)
    explorer = Explorer([ServedRun.open(folder, device="cpu")])
    note = "relative was trained for 1 step, validation loss 1.50; maps after fewer than 100 steps show little that was learned"
    assert inspect(explorer, "relative", text=TEXT)["notes"] == [note]


def test_ids_cannot_be_guessed():
    ids = {_explorer_of(torch.zeros(1, 1, 1))[1] for _ in range(50)}
    assert len(ids) == 50
    assert all(len(id) >= 16 for id in ids)


def test_two_runs_of_one_name_are_refused(runs: dict[str, Path]):
    run = ServedRun.open(runs["vit"], device="cpu")
    with pytest.raises(ValueError, match="two runs are called vit"):
        Explorer([run, run])


def test_an_inspected_input_counts_all_it_holds():
    record = _record_of(torch.zeros(2, 3, 4))
    bare = StoredRecord("a", ServedRun("x", None, None), None, record)
    items = sum(len(axis.labels) + len(axis.words) + len(axis.times) for axis in record.axes.values())
    assert bare.bytes == 4 * (2 * 3 * 4 + 3 * 4) + ITEM_BYTES * items
    assert replace(bare, file=b"12345", text="abc").bytes == bare.bytes + 8
    image = SimpleNamespace(x=torch.zeros(1, 3, 5, 5), source=[])
    assert replace(bare, record=replace(record, rerun=image)).bytes == bare.bytes + 4 * 3 * 5 * 5
    axes = {**record.axes, "frames": Axis("frames", 7, times=[0.0] * 7)}
    assert replace(bare, record=replace(record, axes=axes)).bytes == bare.bytes + 7 * ITEM_BYTES


def test_a_checkpoint_that_is_unloaded_takes_its_records_along(runs: dict[str, Path]):
    explorer = Explorer([ServedRun.open(runs[name], device="cpu") for name in ("learner", "gpt")])
    kept = [inspect(explorer, "gpt", text="the dog"), inspect(explorer, "learner", text="I love you")]
    early = [inspect(explorer, "learner", text="I love you", checkpoint=step) for step in (0, 50, 50)]
    model = weakref.ref(explorer.record(early[0]["id"]).predictor.model)
    inspect(explorer, "learner", text="I love you", checkpoint=100)
    assert refused(explorer, "GET", f"/records/{early[0]['id']}/layers/0/thumbnails").expired
    gc.collect()
    assert model() is None, "no record keeps the weights of a checkpoint that was unloaded"
    for record in (*kept, *early[1:]):
        assert call(explorer, "GET", f"/records/{record['id']}/layers/0/thumbnails")
    assert explorer.store.bytes == sum(record.bytes for record in explorer.store._records.values())


def test_a_checkpoint_that_a_new_training_wrote_is_loaded_again(runs: dict[str, Path], tmp_path: Path):
    folder = Path(shutil.copytree(runs["learner"], tmp_path / "learner"))
    explorer = Explorer([ServedRun.open(folder, device="cpu")])
    before, other = (inspect(explorer, "learner", text="I love you", checkpoint=step) for step in (150, 50))
    weights = [folder / "checkpoints" / f"step-{step:08}" / "model.safetensors" for step in (150, 50)]
    shutil.copyfile(weights[1], weights[0])
    os.utime(weights[0], (1, 1))  # another time, however coarse the clock of the disk
    after = inspect(explorer, "learner", text="I love you", checkpoint=150)
    assert after["alignment"] == other["alignment"] != before["alignment"]


def test_records_of_a_checkpoint_count_as_those_of_the_final_weights(explorer: Explorer):
    """Its model is bounded by itself: counted with each record it would drop the records of others."""
    records = [inspect(explorer, "learner", text="I love you", tokens=1, checkpoint=step) for step in (None, 150)]
    final, early = (explorer.record(record["id"]) for record in records)
    assert final.bytes == early.bytes
