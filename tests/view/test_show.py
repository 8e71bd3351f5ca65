"""`regard.show`: one function for every kind of predictor and input."""

import dataclasses
import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from tiny_captioners import captioner, random_image

import regard
from regard.config import Run, to_toml
from regard.data.image.config import ImageData
from regard.models import saved_tensors
from regard.tasks.captioning import Caption
from regard.tasks.origin import predictor_repr
from regard.tasks.predictors import Predictor
from regard.tasks.speech import TimedWord, Transcript
from regard.tasks.translation import Translation
from regard.view.caption_maps import map_caption
from regard.view.maps import map_attention
from regard.view.show import free_file, show


def test_a_run_folder_and_a_predictor_give_the_same_map(small_run):
    translator = regard.load(small_run)
    assert regard.show(small_run, "a b c") == regard.show(translator, "a b c") == map_attention(translator, "a b c")
    assert show(translator, "a b c", which="decoder", layer=1) == map_attention(translator, "a b c", which="decoder", layer=1)


def test_an_image_may_be_a_file_an_array_or_pils(tmp_path):
    predictor, pixels = captioner(), random_image(50)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    wanted = map_caption(predictor, pixels, beam=1)
    for image in (pixels, Image.fromarray(pixels), tmp_path / "x.png", str(tmp_path / "x.png")):
        assert show(predictor, image, beam=1) == wanted
    with pytest.raises(ValueError, match="which 'cross' is for translators; tiny reads images, leave it out"):
        show(predictor, pixels, which="cross")


def test_something_else_than_a_sentence_is_refused(small_run):
    with pytest.raises(ValueError, match="reads text, and got ndarray; give one sentence as a string"):
        regard.show(small_run, np.zeros(3))


# -- values of a wrong type


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> Path:
    from regard.models.vit import ViT, ViTConfig
    from regard.run_folder import RunFolder

    config = ViTConfig(image=8, patch=4, channels=1, dim=8, depth=1, heads=2, classes=2)
    run = Run("tiny", "vit", config, task="image_classification", data=ImageData())
    files = RunFolder(tmp_path_factory.mktemp("runs") / "two")
    files.path.mkdir()
    files.write_description("vit", dataclasses.asdict(config), "0")
    files.run.write_text(to_toml(run))
    files.write_labels(("cat", "dog"))
    save_file(saved_tensors(ViT(config)), files.weights)
    return files.path


GREY = np.zeros((9, 9), np.uint8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda v: v.classify(None), "a list of images is wanted, and got NoneType; give files"),
        (lambda v: v.classify({}), "a list of images is wanted, and got dict"),
        (lambda v: v.classify([3]), "an image of type int; wanted a file's name, PIL's image or an array of bytes"),
        (lambda v: v.classify([b"x"]), "the image is not a readable image"),
        (lambda v: v.classify([GREY], top=0), "top 0; ask for 1 or more classes"),
        (lambda v: v.classify([GREY], top="1"), "top '1'; ask for"),
        (lambda v: show(v, [GREY, GREY]), "an image of type list; wanted a file's name"),
        (lambda v: show(v, None), "an image of type NoneType"),
        (lambda v: show(3, GREY), "a model of type int; wanted a run folder, or what regard.load returns"),
        (lambda v: show(None, GREY), "a model of type NoneType"),
        (lambda v: show(v, GREY, layer="1"), "layer '1' of type str; give a whole number, from 1"),
        (lambda v: show(v, GREY, head=1.5), "head 1.5 of type float; give a whole number, from 1"),
        (lambda v: show(v, GREY, layer=True), "layer True of type bool"),
        (lambda v: show(v, GREY, beam="2"), "beam '2' of type str"),
        (lambda v: show(v, GREY).save(None), "a file of type NoneType; give a name that ends in .png"),
        (lambda v: regard.load(None), "a run folder of type NoneType; give its path"),
        (lambda v: regard.load("x", 3), "a device of type int; there is"),
        (lambda v: regard.map_positions(3), "a model of type int; wanted a run folder, a torch module, or what regard.load"),
        (lambda v: regard.map_positions(v, length="8"), "length '8' of type str; give a whole number"),
        (lambda v: regard.watch(3).__enter__(), "a model of type int; wanted a torch module, or what regard.load returns"),
    ],
)
def test_a_value_of_a_wrong_type_is_one_clear_line(classifier, call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}") as caught:
        call(regard.load(classifier))
    assert "\n" not in str(caught.value)


def test_a_closed_image_is_named(classifier, tmp_path):
    predictor = regard.load(classifier)
    Image.fromarray(GREY).save(tmp_path / "x.png")
    opened, read = Image.open(tmp_path / "x.png"), Image.open(tmp_path / "x.png")
    read.load()
    for image in (opened, read):
        image.close()
        with pytest.raises(ValueError, match=r"^PIL's image is closed; use it before it is closed, or give the file's name$"):
            predictor.classify([image])


def test_positions_are_mapped_of_a_folder_and_of_a_predictor(classifier):
    predictor = regard.load(classifier)
    of_folder = regard.map_positions(classifier)
    assert of_folder == regard.map_positions(str(classifier)) == regard.map_positions(predictor.model, "two")
    assert regard.map_positions(predictor).panels == of_folder.panels
    assert len(repr(of_folder.panels[0])) < 150


def test_a_predictor_is_watched_by_its_model(classifier):
    predictor = regard.load(classifier)
    with regard.watch(predictor) as weights:
        predictor.classify([GREY])
    assert [len(calls) for calls in weights.values()] == [1]


def test_the_repr_of_a_predictor_is_one_line(classifier, small_run):
    predictor = regard.load(classifier)
    count = sum(p.numel() for p in predictor.model.parameters())
    assert repr(predictor) == f"ImageClassifier({classifier}, vit, {count:,} parameters)"
    bare = type(predictor)(regard.load(classifier).model, predictor.run, predictor.labels)
    assert repr(dataclasses.replace(bare, model=torch.nn.Linear(2, 3))) == "ImageClassifier(tiny, vit, 9 parameters)"
    assert repr(regard.load(small_run)).startswith(f"Translator({small_run}, transformer, ")
    assert "\n" not in repr(captioner())
    assert repr(show(predictor, GREY).panels[0]) == "Panel('rollout to layer 1', 2 × 2 cells)"


@pytest.mark.parametrize("kind", get_args(Predictor))
def test_every_predictor_has_the_short_repr(kind):
    assert kind.__repr__ is predictor_repr


@pytest.mark.parametrize(("name", "kind"), [("cat.png", "an image"), ("clip.WAV", "a sound")])
@pytest.mark.parametrize("out", ["map.html", "map.svg"])
def test_an_image_or_a_sound_given_to_a_run_that_reads_text_is_refused(regard, small_run, tmp_path, monkeypatch, name, kind, out):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(b"RIFF")
    result = regard("show", small_run, name, "--out", out)
    assert result.code == 2
    [line] = result.err.splitlines()
    assert f"{small_run} reads text, and {name} is {kind} file; give a sentence in quotes" in line
    assert not (tmp_path / out).exists()


def test_the_name_of_a_file_that_does_not_exist_is_a_sentence(regard, small_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert regard("show", small_run, "clip.wav", "--out", "map.svg").code == 0


def test_an_empty_line_of_file_names_is_called_empty(regard, classifier, tmp_path):
    Image.fromarray(GREY).save(tmp_path / "cat.png")
    (tmp_path / "list.txt").write_text(f"{tmp_path}/cat.png\n\n{tmp_path}/cat.png\n")
    result = regard("classify", classifier, "--input", tmp_path / "list.txt")
    assert (result.code, len(result.out.splitlines())) == (0, 3)
    assert result.err == f"regard: skipped 1 of 3: {tmp_path}/list.txt line 2 is empty; give a file on each line\n"


def test_show_maps_each_side_of_a_translator_in_the_terminal(regard, small_run):
    for which, words in (("encoder", "self-attention of the encoder"), ("decoder", "masked self-attention of the"),
                         ("cross", "cross-attention")):  # fmt: skip
        result = regard("show", small_run, "a b c", "--which", which)
        assert result.code == 0, result.err
        assert words in " ".join(result.out.split())
        assert ("masked" in result.out.splitlines()[-1]) == (which == "decoder")
    result = regard("show", small_run, "a b c", "--which", "both")
    assert (result.code, result.err) == (2, "regard: which 'both'; use encoder, decoder or cross\n")
    assert len(regard("show", small_run, "a b", "b c").out.split("cross-attention")) == 3


def test_a_free_file_is_never_one_that_exists(tmp_path):
    names = []
    for _ in range(3):
        names.append(free_file(tmp_path / "x-attention.png").name)
        (tmp_path / names[-1]).write_bytes(b"")
    assert names == ["x-attention.png", "x-attention-2.png", "x-attention-3.png"]
    (tmp_path / "y.png").symlink_to(tmp_path / "gone.png")
    assert free_file(tmp_path / "y.png").name == "y-2.png"


# -- answers in a notebook


@pytest.mark.parametrize("kind", [Translation, Caption])
def test_an_answer_has_a_short_repr_and_escaped_html(kind):
    best = [kind("<b>ein</b> & \x1b[1m", ["<b>ein"], [5], -0.25), kind("zwei", ["zwei"], [6], -1.5)]
    answer = kind(best[0].text, best[0].tokens, best[0].ids, best[0].score, best)
    assert repr(kind("x" * 500, ["x"] * 500, [1] * 500, -0.25)) == f"{kind.__name__}({'x' * 59 + '…'!r}, score -0.250)"
    assert repr(kind("ein Hund", [], [], None)) == f"{kind.__name__}('ein Hund')"
    page = answer._repr_html_()
    assert "<b>" not in page
    assert "\x1b" not in page
    assert "&lt;b&gt;ein&lt;/b&gt; &amp; \\x1b[1m" in page
    assert "<td>-1.500</td><td>zwei</td>" in page
    assert "<table>" not in best[1]._repr_html_()


def test_a_transcript_shows_its_words_with_their_times():
    transcript = Transcript("a <c>", [TimedWord("a", 0.1, 0.25), TimedWord("<c>", 0.5, 1.0)], -3.0)
    assert repr(transcript) == "Transcript('a <c>', 2 timed words, score -3.000)"
    assert "<td>0.50</td><td>1.00</td><td>&lt;c&gt;</td>" in transcript._repr_html_()
    assert "<table>" not in Transcript("a")._repr_html_()
