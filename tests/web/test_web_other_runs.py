"""Runs that cannot do everything are served as far as they can: word vectors, ELMo, classifiers, images."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from asgi_client import Reply, ask
from tiny_runs import _write
from tiny_tasks import tiny_run, write_data

import regard
from regard.data.image.config import ImageData
from regard.train.loop import fit
from regard.web.explorer import ServedRun
from regard.web.server import create_app


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("other-runs")
    write_data(home)
    for task in ("word_vectors", "bidirectional_lm", "text_classification"):
        fit(tiny_run(task, home), home / task)
    pixels = {"image": 4, "levels": 8, "dim": 8, "depth": 1, "heads": 2}
    return {task: home / task for task in ("word_vectors", "bidirectional_lm", "text_classification")} | {
        "image-gpt": _write(home, "image-gpt", pixels, "image_generation", ImageData(train="none", resize=4))
    }


@pytest.fixture(scope="module")
def app(folders: dict[str, Path]) -> Iterator[object]:
    app = create_app([ServedRun.open(folder, name, "cpu") for name, folder in folders.items()])
    yield app
    app.state.serving.close()


def embed(app: object, model: str, *texts: str) -> Reply:
    return ask(app, "POST", "/v1/embeddings", {"model": model, "input": list(texts)})


@pytest.mark.parametrize(("name", "texts"), [("word_vectors", ("cat", "dog")), ("bidirectional_lm", ("the cat sat", "a dog")),
                                             ("text_classification", ("a good film", "bad"))])  # fmt: skip
def test_texts_are_embedded_as_the_predictor_does(app, folders, name, texts):
    rows = [item["embedding"] for item in embed(app, name, *texts).json()["data"]]
    for row, vector in zip(rows, regard.load(folders[name], "cpu").embed(texts).tolist(), strict=True):
        assert all(math.isclose(a, b, abs_tol=1e-5) for a, b in zip(row, vector, strict=True))


def test_a_word_that_has_no_vector_is_refused_and_its_neighbours_in_the_batch_are_not(app):
    reply = embed(app, "word_vectors", "cat", "zzzz")
    assert (reply.status, "'zzzz'" in reply.error) == (400, True)
    assert embed(app, "word_vectors", "cat").status == 200


def test_runs_without_text_are_listed_for_the_page_only(app):
    assert [model["id"] for model in ask(app, "GET", "/v1/models").json()["data"]] == ["word_vectors", "bidirectional_lm",
                                                                                        "text_classification"]  # fmt: skip
    runs = {run["name"]: run["input"] for run in ask(app, "GET", "/api/v1/runs").json()["runs"]}
    assert runs == {"word_vectors": "none", "bidirectional_lm": "none", "text_classification": "text", "image-gpt": "none"}
    reply = embed(app, "image-gpt", "a")
    assert (reply.status, "does not embed" in reply.error) == (400, True)


@pytest.mark.parametrize("name", ["word_vectors", "bidirectional_lm", "image-gpt"])
def test_inspecting_what_has_no_attention_says_so(app, name):
    reply = ask(app, "POST", f"/api/v1/runs/{name}/inspect", {"text": "the cat"})
    assert 400 <= reply.status < 500, reply.body
    assert name in reply.error or "attention" in reply.error
