"""Which languages runs name, and how well a text's language is told."""

import os
from pathlib import Path

import pytest

from regard.config import Run
from regard.data.text.config import TextData
from regard.data.text.splits import find_split
from regard.web.languages import Detection, Direction, LanguageDetector, directions_of, learn_detector


def run_of(**data: object) -> Run:
    return Run("x", "transformer", None, data=TextData(**data))


@pytest.mark.parametrize(("data", "wanted"), [
    ({"source": "multi30k"}, [("en", "de")]), ({"source": "multi30k", "pair": "fr-en"}, [("fr", "en")]),
    ({"source": "tatoeba-en-it"}, [("en", "it")]), ({"source": "phrasebook"}, [("en", "it")]),
    ({"source": "reverse"}, []), ({"train": "a.tsv"}, []), ({"train": "a.tsv", "pair": "EN-pt"}, [("en", "pt")]),
    ({"train": "news.en.gz,news.de.gz"}, [("en", "de")]), ({"train": "a.tsv,b.tsv"}, []), ({"source": "sst2"}, []),
])  # fmt: skip
def test_runs_name_their_languages(data, wanted):
    assert [direction[:2] for direction in directions_of(run_of(**data))] == wanted


def test_a_mixture_has_a_direction_for_each_set_with_its_prefix():
    run = run_of(source="tatoeba-en-it,sst2,multi30k", pair="de-en", prefixed=True)
    assert directions_of(run) == [
        Direction("en", "it", "translate English to Italian: ", "tatoeba-en-it"),
        Direction("de", "en", "translate German to English: ", "multi30k"),
    ]


def test_confidence_is_the_posterior_of_naive_bayes():
    """One word of one letter in each language: a trigram each, counted by hand."""
    detector = LanguageDetector({"aa": ["x x x"], "bb": ["x y y"]})
    # the vocabulary has " x ", " y " and what is unseen; half a count more for each
    likelihoods = [(3.5 / 4.5) ** (1 / 3), (1.5 / 4.5) ** (1 / 3)]
    share = round(100 * likelihoods[0] / sum(likelihoods), 1)
    assert detector.detect("x") == [Detection("aa", share), Detection("bb", round(100 - share, 1))]


def test_a_text_without_letters_has_no_language():
    detector = LanguageDetector({"en": ["the cat"], "it": ["il gatto"]})
    assert detector.detect("123 !? 😀") == []


def test_a_text_of_a_third_language_is_told_with_little_confidence():
    detector, _ = learn_detector([run_of(source="phrasebook")])
    assert detector.detect("I love the cat")[0].confidence > 95
    assert detector.detect("Привет, как дела?")[0].confidence == 0
    assert detector.detect("Wij houden van mooie fietsen")[0].confidence < 60


def test_nothing_is_downloaded_to_learn_languages(monkeypatch, tmp_path, cache):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a download")

    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    monkeypatch.setattr("regard.data.sources._download", refuse)
    detector, missing = learn_detector([run_of(source="multi30k"), run_of(train=f"{tmp_path}/gone.tsv", pair="en-it")])
    assert detector.languages == []
    assert missing == {"en", "de", "it"}


@pytest.mark.parametrize("name", ["tatoeba-en-it", "tatoeba-en-de", "tatoeba-en-fr"])
def test_sentences_of_the_validation_data_are_told_apart(name):
    if not Path(os.environ.get("REGARD_DATA", ""), name).is_dir():
        pytest.skip(f"no {name}; set REGARD_DATA to a folder that holds it")
    run = run_of(source=name)
    detector, missing = learn_detector([run])
    pairs = list(find_split(run.data, "valid").pairs())[:500]
    right = sum(detector.detect(text)[0].language == language
                for pair in pairs for text, language in zip(pair, name.split("-")[1:], strict=True))  # fmt: skip
    assert not missing
    assert right / (2 * len(pairs)) > 0.97
