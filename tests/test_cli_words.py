"""`regard neighbors`, and what the other verbs say of word vectors."""

import json

import numpy as np
import pytest
from cli_checks import assert_refused
from tiny_tasks import WORDS, tiny_run, write_data

import regard as package
from regard.train.loop import fit


@pytest.fixture(scope="module")
def words_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    write_data(folder)
    fit(tiny_run("word_vectors", folder), folder / "run")
    return folder / "run"


def test_neighbors_prints_a_column_of_words_and_cosines_for_each_word(regard, words_run):
    result = regard("neighbors", words_run, "cat", "Dog", "--top", 3)
    assert result.code == 0, result.err
    head, *rows = result.out.splitlines()
    assert head.split() == ["cat", "Dog"]
    vectors = package.load(words_run)
    near = [vectors.neighbors(word, 3) for word in ("cat", "dog")]
    wanted = [[near[0][n].word, f"{near[0][n].cosine:.3f}", near[1][n].word, f"{near[1][n].cosine:.3f}"] for n in range(3)]
    assert [row.split() for row in rows] == wanted


def test_many_words_are_printed_in_several_tables(regard, words_run):
    words = list(dict.fromkeys(WORDS))[:7]
    tables = regard("neighbors", words_run, *words, "--top", 2).out.split("\n\n")
    assert [len(table.splitlines()[0].split()) for table in tables] == [5, 2]


def test_neighbors_prints_json(regard, words_run):
    lines = regard("neighbors", words_run, "cat", "dog", "--top", 2, "--json").out.splitlines()
    assert [json.loads(line)["word"] for line in lines] == ["cat", "dog"]
    assert all(set(near) == {"word", "cosine"} for line in lines for near in json.loads(line)["neighbors"])
    assert [len(json.loads(line)["neighbors"]) for line in lines] == [2, 2]


def test_an_analogy_prints_words_other_than_its_three(regard, words_run):
    result = regard("neighbors", words_run, "--analogy", "cat", "dog", "bird")
    head, *rows = result.out.splitlines()
    assert head.strip() == "cat - dog + bird"
    assert len(rows) == 10
    assert not {"cat", "dog", "bird"} & {row.split()[0] for row in rows}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("catt",), ("no word 'catt' in the vocabulary of 16 words; did you mean cat",)),
        (("",), ("'' is no word",)),
        (("a cat",), ("'a cat' is 2 words",)),
        (("--analogy", "cat", "dog"), ("an analogy of 2 words; give three",)),
        (("--analogy", "cat", "dog", "bird", "tree"), ("an analogy of 4 words",)),
        (("--analogy", "cat", "dog", "brid"), ("no word 'brid'", "did you mean bird")),
        (("cat", "--top", "0"), ("--top 0",)),
    ],
)
def test_wrong_words_are_one_line(regard, words_run, words, message):
    assert_refused(regard("neighbors", words_run, *words), *message)


def test_a_run_of_another_kind_has_no_neighbors(regard, small_run, words_run):
    assert_refused(
        regard("neighbors", small_run, "cat"),
        "is of family transformer, which regard neighbors does not take; use regard translate",
    )
    assert_refused(regard("translate", words_run, "cat"), "is of family word2vec", "use regard neighbors or embed")


def test_a_word_has_the_same_static_vector_in_every_text(regard, words_run):
    result = regard("embed", words_run, "--word", "cat", "the cat sat", "a Cat; a cat")
    assert result.code == 0, result.err
    rows = [line.split()[-3:] for line in result.out.splitlines()[1:]]
    assert rows == [["1.000"] * 3] * 3
    lines = [json.loads(line) for line in regard("embed", words_run, "--word", "cat", "a cat", "--json").out.splitlines()]
    assert [(line["start"], line["end"]) for line in lines] == [(2, 5)]
    assert lines[0]["vector"] == package.load(words_run).embed(["cat"])[0].tolist()
    result = regard("embed", words_run, "--word", "cat", "a cat", "a dog")
    assert (result.code, "skipped 1 of 2: text 2, 'a dog', does not contain the word" in result.err) == (0, True)
    assert_refused(regard("embed", words_run, "--word", "zebra", "a zebra"), "no word 'zebra' in the vocabulary")


def test_other_verbs_say_what_applies_to_word_vectors(regard, words_run):
    assert_refused(regard("show", words_run, "cat"), "have no attention to show; use regard neighbors", words_run)
    parts = json.loads(regard("cost", words_run, "--json").out)[str(words_run)]
    assert [(part["name"], part["parameters"]) for part in parts] == [
        ("input vectors", 20 * 8), ("output vectors", 20 * 8), ("all", 2 * 20 * 8)]  # fmt: skip
    assert "negative-sampling loss" in regard("score", words_run).out
    assert regard("embed", words_run, "cat", "dog").code == 0
    card = (words_run / "README.md").read_text()
    assert "A word2vec that gives each word a vector" in card
    assert "nats per pair" in card
    assert "regard neighbors" in card


def test_exported_vectors_read_back_exactly(regard, words_run, tmp_path):
    file = tmp_path / "vectors.txt"
    assert regard("export", words_run, "--to", "word2vec", file).code == 0
    head, *lines = file.read_text().splitlines()
    vectors = package.load(words_run)
    assert head == "16 8"
    assert [line.split(" ")[0] for line in lines] == vectors.words
    numbers = np.array([line.split(" ")[1:] for line in lines], dtype=np.float32)
    assert np.array_equal(numbers, vectors.vectors.numpy())


def test_an_export_that_cannot_be_is_refused(regard, words_run, small_run, tmp_path):
    there = tmp_path / "there.txt"
    there.write_text("")
    assert_refused(regard("export", words_run, "--to", "word2vec", there), "already exists")
    assert_refused(regard("export", words_run, "--to", "word2vec", tmp_path / "no" / "v.txt"), "no folder")
    assert_refused(
        regard("export", small_run, "--to", "word2vec", tmp_path / "v.txt"), "is of family transformer, which has no word vectors"
    )
    assert_refused(regard("export", words_run, "--to", "gensim", tmp_path / "v.txt"), "no format 'gensim'; there is hf, word2vec")
    assert_refused(regard("export", words_run, tmp_path / "hf"), "cannot be exported to Hugging Face")
