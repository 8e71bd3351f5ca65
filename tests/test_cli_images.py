"""The command line for image models: train on a folder, classify, generate; each mistake is one line."""

import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

SHAPE = ("model=vit-tiny", "model.image=16", "model.patch=8", "model.dim=16", "model.depth=1", "model.heads=2")
FEW = ("train.steps=2", "train.batch_size=4", "train.eval_every=2", "train.save_every=2")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    home = tmp_path_factory.mktemp("mine")
    for label, grey in (("day", 200), ("night", 40)):
        (home / label).mkdir()
        for number in range(5):
            Image.fromarray(np.full((20, 30 + number, 3), grey + number, np.uint8)).save(home / label / f"{number}.png")
    return home


@pytest.fixture
def trained(regard, photos, tmp_path):
    result = regard("train", "images", *SHAPE, *FEW, f"data.train={photos}", "--out", tmp_path / "run")
    assert result.code == 0, result.err
    assert "classes: 'day' 5, 'night' 5" in result.err
    assert "% on 2 validation images" in result.err
    return tmp_path / "run"


def test_classify_prints_a_line_for_each_image(regard, trained, photos):
    files = [photos / "day" / "0.png", photos / "night" / "3.png"]
    result = regard("classify", trained, *files, "--top", 2)
    assert result.code == 0
    assert [line.split("\t")[0] for line in result.out.splitlines()] == [str(file) for file in files]
    assert all(line.count("%") == 2 for line in result.out.splitlines())
    found = [json.loads(line) for line in regard("classify", trained, *files, "--json").out.splitlines()]
    assert [line["source"] for line in found] == [str(file) for file in files]
    assert {prediction["text"] for line in found for prediction in line["classes"]} <= {"day", "night"}


def test_a_file_that_is_not_an_image_is_refused_in_one_line(regard, trained, tmp_path):
    (tmp_path / "no.png").write_bytes(b"not an image")
    result = regard("classify", trained, tmp_path / "no.png")
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert "no.png is not a readable image" in result.err


def test_an_unreadable_image_is_skipped_and_marked(regard, trained, photos, tmp_path):
    (tmp_path / "no.png").write_bytes(b"not an image")
    files = [photos / "day" / "0.png", tmp_path / "no.png", photos / "night" / "0.png"]
    result = regard("classify", trained, *files)
    assert result.code == 0
    assert result.err.count("\n") == 1
    assert f"skipped 1 of 3: {tmp_path / 'no.png'} is not a readable image" in result.err
    rows = [line.split("\t") for line in result.out.splitlines()]
    assert [row[0] for row in rows] == [str(file) for file in files]
    assert [bool(row[1]) for row in rows] == [True, False, True]
    assert regard("classify", trained, *files, "--strict").code == 2
    lines = [json.loads(line) for line in regard("classify", trained, *files, "--json").out.splitlines()]
    assert ["error" in line for line in lines] == [False, True, False]
    nothing = regard("classify", trained, tmp_path / "no.png", tmp_path / "none.png")
    assert (nothing.code, nothing.out) == (2, "")
    assert nothing.err.startswith("regard: skipped 2 of 2:\n")


def test_classify_takes_folders_and_lists_their_images_by_name(regard, trained, photos, tmp_path):
    result = regard("classify", trained, photos)
    files = sorted(str(file) for file in photos.rglob("*.png"))
    assert result.code == 0
    assert [line.split("\t")[0] for line in result.out.splitlines()] == files
    (tmp_path / "none").mkdir()
    empty = regard("classify", trained, tmp_path / "none", photos / "day")
    assert empty.code == 0
    assert "the folder" in empty.err
    assert "holds no file that ends in" in empty.err
    assert "give another folder, or files by name" in empty.err


def test_photos_of_kinds_that_are_not_read_are_skipped_and_listed(regard, trained, photos, tmp_path):
    mine = shutil.copytree(photos / "day", tmp_path / "mine")
    (mine / "IMG_1.HEIC").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(50))
    (mine / "logo.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (mine / "notes.txt").write_text("not tried")
    result = regard("classify", trained, mine)
    assert result.code == 0
    assert [line.split("\t")[0] for line in result.out.splitlines()] == sorted(map(str, {*mine.iterdir()} - {mine / "notes.txt"}))
    assert "skipped 2 of 7:" in result.err
    assert (
        f"{mine}/IMG_1.HEIC is not a readable image: it is a film, or a photo as iPhones store it (HEIC); save it as"
        in result.err
    )
    assert f"{mine}/logo.svg is not a readable image: it begins with" in result.err


def test_an_image_classifier_refuses_the_verbs_of_text(regard, trained):
    for verb, *words in (("generate", "once"), ("fill", "the [MASK]"), ("embed", "a", "b"), ("translate", "a")):
        result = regard(verb, trained, *words)
        assert result.code == 2
        assert "is of family vit, which regard" in result.err
        assert "use regard classify" in result.err


def test_score_takes_a_folder_and_refuses_a_missing_one(regard, trained, photos):
    result = regard("score", trained, "--on", photos)
    assert re.search(r" of 10 images; 95 % confidence [\d.]+ to [\d.]+\)", result.out)
    assert regard("score", trained, "--on", "nowhere").err.startswith("regard: no folder nowhere")


def test_invalid_data_is_refused_before_a_folder_is_made(regard, photos, tmp_path):
    for words, wanted in (
        ((), "no train data; give data.train=FOLDER"),
        (("data.source=sst2",), "data.source=sst2 is not a set of images"),
        (("data.source=cifar",), "did you mean 'cifar10'?"),
        ((f"data.train={photos}/day",), "holds no folders"),
        ((f"data.train={photos}", "model.patch=5"), "patch 5 does not tile an image of 16 pixels; use a side of 15 or 20"),
    ):
        result = regard("train", "images", *SHAPE, *FEW, *words, "--out", tmp_path / "none")
        assert result.code == 2
        assert wanted in result.err
        assert not (tmp_path / "none").exists()


def test_files_that_are_not_images_are_skipped_with_a_note(regard, tmp_path):
    for label in ("a", "b"):
        (tmp_path / "mine" / label).mkdir(parents=True)
        (tmp_path / "mine" / label / "notes.txt").write_text("x")
        for number in range(3):
            Image.new("RGB", (20, 20), (number, ord(label), 0)).save(tmp_path / "mine" / label / f"{number}.png")
    (tmp_path / "mine" / "a" / "photo.HEIC").write_bytes(b"x")
    result = regard("train", "images", *SHAPE, *FEW, f"data.train={tmp_path}/mine", "--out", tmp_path / "run")
    assert result.code == 0
    assert "are left out: 2 .txt, 1 .heic" in result.err


def test_damaged_photos_are_left_out_of_training_and_scoring_and_listed_once(regard, photos, tmp_path):
    mine = shutil.copytree(photos, tmp_path / "mine")
    bad = [mine / "day" / "1.png", mine / "night" / "4.png"]
    for file in bad:
        file.write_bytes(b"not an image")
    train = ("train", "images", *SHAPE, *FEW, f"data.train={mine}", "--out", tmp_path / "run")
    result = regard(*train, "data.strict=true")
    assert (result.code, result.out) == (2, "")
    assert all(str(file) in result.err for file in bad)
    result = regard(*train)
    assert result.code == 0, result.err
    assert f"{mine}: 2 of 10 images cannot be read and are left out" in result.err.replace("\n", "")
    assert all(result.err.count(f"{file} is not a readable image") == 1 for file in bad)
    result = regard("score", tmp_path / "run", "--on", mine)
    assert result.code == 0, result.err
    assert " of 8 images;" in result.out
    assert all(f"{file} is not a readable image" in result.err for file in bad)


def test_an_image_generator_writes_a_grid_and_takes_no_prompt(regard, photos, tmp_path):
    shape = ("model.image=6", "model.dim=16", "model.depth=1", "model.heads=2")
    run = tmp_path / "image-gpt"
    result = regard("train", "mnist-image-gpt", *shape, *FEW, "data.source=", f"data.train={photos}", "--out", run)
    assert result.code == 0, result.err
    result = regard("generate", run, "--out", tmp_path / "grid.png", "--count", 5)
    assert result.out == f"saved 5 images in {tmp_path / 'grid.png'}\n"
    with Image.open(tmp_path / "grid.png") as grid:
        size = grid.size
    assert size == (3 * (84 + 6) + 6, 2 * (84 + 6) + 6)  # three in a row, each pixel 14 wide
    for words, wanted in (
        (("a word", "--out", "x.png"), "generates images; PROMPT does not apply to images"),
        ((), "images need a file; give --out"),
        (("--out", tmp_path / "grid.jpg"), "cannot write grid.jpg"),
        (("--out", tmp_path / "no" / "x.png"), "no folder"),
        (("--out", tmp_path / "x.png", "--count", 0), "0 images; ask for 1 to"),
    ):
        result = regard("generate", run, *words)
        assert result.code == 2
        assert wanted in result.err
    result = regard("show", run, photos / "day" / "0.png")
    assert result.code == 2
    assert f"{run} generates images and takes none; see some: regard generate {run} --out samples.png" in result.err.replace(
        "\n", " "
    )


@pytest.fixture
def speech_run(monkeypatch):
    """A run whose predictor takes neither text nor an image."""
    monkeypatch.setattr("regard.tasks.load.load", lambda *_: SimpleNamespace(INPUT="sound", VERBS=("transcribe", "embed")))


def test_show_names_the_verbs_of_a_run_that_takes_neither_text_nor_an_image(regard, speech_run):
    result = regard("show", "runs/some", "a.wav")
    assert (result.code, result.out) == (2, "")
    assert result.err.strip() == "regard: runs/some cannot be shown; use regard transcribe or embed"
