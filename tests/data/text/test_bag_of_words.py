"""One-hot and TF-IDF: by hand, as an embedding, and equal to scikit-learn's."""

import math

import pytest
import torch

from regard.data.text.bag_of_words import one_hot, split_words, tf_idf

NOTES = ["mat", "cat", "rat"]
TEXTS = ["the cat sat on the mat", "the dog sat", "A cat, a dog -- and the Rat!", "", "naïve Übung 42 l'été"]


def test_the_one_hot_vectors_of_mat_cat_and_rat_are_the_identity():
    assert one_hot(torch.arange(len(NOTES)), 3).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_a_one_hot_vector_times_a_matrix_is_an_embedding():
    weight, ids = torch.randn(7, 4), torch.randint(0, 7, (2, 5))
    torch.testing.assert_close(one_hot(ids, 7) @ weight, torch.nn.Embedding.from_pretrained(weight)(ids))


def test_an_id_outside_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match="ids from -1 to 3; a vocabulary of 3 has 0 to 2"):
        one_hot(torch.tensor([-1, 3]), 3)


def test_tf_idf_of_three_texts_is_that_computed_by_hand():
    found = tf_idf(["cat sat", "cat cat dog", "dog"])
    assert found.words == ("cat", "dog", "sat")
    two, one = 1 + math.log(4 / 3), 1 + math.log(4 / 2)  # words that two texts have, and one
    assert found.idf.tolist() == pytest.approx([two, two, one])
    rows = [[two, 0, one], [2 * two, two, 0], [0, two, 0]]
    for row, vector in zip(rows, found.vectors.tolist(), strict=True):
        assert vector == pytest.approx([x / math.hypot(*row) for x in row])


@pytest.mark.parametrize("texts", [TEXTS, TEXTS[:3], ["one text only"]])
def test_tf_idf_is_that_of_scikit_learn(texts):
    reference = pytest.importorskip("sklearn.feature_extraction.text", reason="no scikit-learn; pip install '.[test]'")
    vectorizer = reference.TfidfVectorizer()
    wanted, found = vectorizer.fit_transform(texts).toarray(), tf_idf(texts)
    assert list(found.words) == vectorizer.get_feature_names_out().tolist()
    assert found.idf.tolist() == pytest.approx(vectorizer.idf_.tolist())
    torch.testing.assert_close(found.vectors, torch.from_numpy(wanted))


def test_words_have_two_characters_or_more_in_lower_case():
    assert split_words("A Cat, isn't 42!") == ["cat", "isn", "42"]


@pytest.mark.parametrize(
    ("texts", "message"), [("a text", "put it in brackets"), (["a", "!"], "2 texts without a word"), ([], "0 texts")]
)
def test_texts_without_words_are_refused(texts, message):
    with pytest.raises(ValueError, match=message):
        tf_idf(texts)
