"""The command line of caption models: caption and show; each mistake is one line."""

import json
from pathlib import Path

import pytest
from cli_checks import assert_refused
from PIL import Image
from tiny_captioners import captioner, random_image, save_run


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Runs of both kinds of caption models, untrained, and images of all sizes."""
    folder = tmp_path_factory.mktemp("captions")
    save_run(folder / "recurrent", captioner("captioner"))
    save_run(folder / "transformer", captioner("caption-transformer"))
    for name, image in (("dog.png", random_image(40)), ("cat.png", random_image(60, seed=1)), ("one.png", random_image(1))):
        Image.fromarray(image).save(folder / name)
    Image.new("RGB", (12_000, 4000), "red").save(folder / "huge.jpg")
    (folder / "text.jpg").write_text("this is no image")
    (folder / "list.txt").write_text(f"{folder}/dog.png\n{folder}/cat.png\n")
    return folder


@pytest.fixture(params=["recurrent", "transformer"])
def run(request, home, monkeypatch, tmp_path) -> Path:
    monkeypatch.chdir(tmp_path)
    return home / request.param


def test_caption_prints_the_file_and_its_caption(regard, run, home):
    result = regard("caption", run, home / "dog.png", home / "cat.png")
    assert result.code == 0, result.err
    rows = [line.split("\t") for line in result.out.splitlines()]
    assert [name for name, _ in rows] == [str(home / "dog.png"), str(home / "cat.png")]
    assert all(text.strip() for _, text in rows)
    assert regard("caption", run, "--input", home / "list.txt").out == result.out
    single = regard("caption", run, home / "cat.png")
    assert single.out.splitlines() == result.out.splitlines()[1:]


def test_n_best_and_json_give_all_captions_with_their_scores(regard, run, home):
    [best, second, third] = regard("caption", run, home / "dog.png", "--beam", 4, "--n-best", 3).out.splitlines()
    name, rank, score, text = best.split("\t")
    assert (name, rank) == (str(home / "dog.png"), "1")
    assert float(score) >= float(second.split("\t")[2]) >= float(third.split("\t")[2])
    read = json.loads(regard("caption", run, home / "dog.png", "--beam", 4, "--n-best", 3, "--json").out)
    assert (read["source"], read["text"], len(read["n_best"])) == (name, text, 3)
    assert read["score"] == pytest.approx(float(score), abs=1e-3)
    longer = regard("caption", run, home / "dog.png", "--beam", 4, "--length-penalty", -5, "--json").out
    assert json.loads(longer)["score"] != read["score"]


def test_show_draws_the_image_once_per_word(regard, run, home, tmp_path):
    result = regard("caption", run, home / "dog.png", "--show", "words.png")
    assert result.code == 0, result.err
    assert result.err.rstrip().endswith("saved words.png")
    with Image.open("words.png") as drawn:
        assert drawn.format == "PNG"
        assert drawn.width > 800
    regard("caption", run, home / "dog.png", "--beam", 3, "--show", "words.json")
    read = json.loads((tmp_path / "words.json").read_text(encoding="utf-8"))
    caption = regard("caption", run, home / "dog.png", "--beam", 3).out.rstrip("\n").split("\t")[1]
    assert read["caption"] == caption
    assert [word["title"] for word in read["words"]] == caption.split()


def test_one_pixel_and_huge_images_have_captions(regard, run, home):
    result = regard("caption", run, home / "one.png", home / "huge.jpg")
    assert (result.code, len(result.out.splitlines())) == (0, 2), result.err
    assert regard("caption", run, home / "one.png", "--show", "one.png").code == 0


def test_an_unreadable_image_is_skipped_and_marked(regard, run, home):
    files = [home / "dog.png", home / "text.jpg", home / "cat.png"]
    result = regard("caption", run, *files)
    assert result.code == 0
    assert [line.split("\t")[0] for line in result.out.splitlines()] == [str(file) for file in files]
    assert result.out.splitlines()[1] == f"{home / 'text.jpg'}\t"
    assert result.err.startswith("regard: skipped 1 of 3: ")
    assert result.err.count("\n") == 1
    assert regard("caption", run, *files, "--strict").code == 2


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("none.jpg",), "no file none.jpg; check the path"),
        (("HOME/text.jpg",), "is not a readable image: it begins with 'this is no image'"),
        (("HOME/dog.png", "--beam", "0"), "beam 0"),
        (("HOME/dog.png", "--beam", "2", "--n-best", "3"), "n_best from 1 to the beam"),
        (("HOME/dog.png", "--length-penalty", "11"), "length_penalty 11.0; use -10 to 10"),
        (("HOME/dog.png", "HOME/cat.png", "--show", "w.png"), "--show w.png draws one image"),
        (("--input", "HOME/list.txt", "--show", "w.png"), "--show w.png draws one image"),
        (("HOME/dog.png", "--show", "w.gif"), "cannot write w.gif"),
        (("HOME/dog.png", "--show", "no/w.png"), "no folder no; make it, or choose another --show"),
        (("HOME/dog.png", "--input", "HOME/list.txt"), "both given"),
    ],
)
def test_mistakes_of_caption_are_one_line(regard, home, tmp_path, monkeypatch, words, hint):
    monkeypatch.chdir(tmp_path)
    assert_refused(regard("caption", home / "recurrent", *(word.replace("HOME", str(home)) for word in words)), hint)
    assert not list(tmp_path.iterdir())


def test_a_model_of_another_task_is_refused(regard, small_run, home):
    assert_refused(regard("caption", small_run, home / "dog.png"), "regard translate")


def test_show_prints_grids_and_draws_over_the_image(regard, run, home, tmp_path):
    result = regard("show", run, home / "dog.png", "--beam", 2)
    assert result.code == 0, result.err
    assert (tmp_path / "dog-attention.png").is_file()
    caption = regard("caption", run, home / "dog.png", "--beam", 2).out.rstrip("\n").split("\t")[1]
    *words, last = result.out.splitlines()
    assert last == f"{home / 'dog.png'}: {caption}, saved dog-attention.png"
    assert [line.split("\t")[0] for line in words] == caption.split()  # a pipe has no colours
    assert all("uniform" in line or "no preference" in line for line in words)
    regard("show", run, home / "dog.png", "--beam", 2, "--out", "dog.json")
    assert json.loads((tmp_path / "dog.json").read_text(encoding="utf-8"))["caption"] == caption


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("none.png",), "no file none.png"),
        (("HOME/text.jpg",), "is not a readable image"),
        (("HOME/dog.png", "--layer", "4"), "no layer 4; this model has layers 1 to 3"),
        (("HOME/dog.png", "--head", "3"), "no head 3; this model has heads 1 to 2"),
        (("HOME/dog.png", "--out", "w.gif"), "cannot write w.gif"),
    ],
)
def test_mistakes_of_show_are_one_line(regard, home, tmp_path, monkeypatch, words, hint):
    monkeypatch.chdir(tmp_path)
    assert_refused(regard("show", home / "transformer", *(word.replace("HOME", str(home)) for word in words)), hint)
    assert not list(tmp_path.iterdir())
