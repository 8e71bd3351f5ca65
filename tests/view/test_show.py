"""`regard.show`: one function for every kind of predictor and input."""

import numpy as np
import pytest
from PIL import Image
from tiny_captioners import captioner, random_image

import regard
from regard.tasks.captioning import Caption
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
