"""Classes and vectors of texts equal those of one plain forward pass for each text."""

import dataclasses

import pytest
import torch

from regard.tasks.text_classification import TextClassifier
from regard.tasks.text_embedding import TextEmbedder


def ids_of(predictor: TextClassifier, text: str) -> torch.Tensor:
    """The tokens of one text, as the model reads them: (1, T)."""
    special = predictor.tokenizer.special
    return torch.tensor([[special.bos, *predictor.tokenizer.encode([text])[0][:18], special.eos]])


@pytest.fixture
def embedder(classifier) -> TextEmbedder:
    return TextEmbedder(classifier.model, classifier.tokenizer, classifier.run)


def test_the_classes_of_a_text_do_not_depend_on_its_batch(classifier, texts):
    for text, predictions in zip(texts, classifier.classify(texts, top=3), strict=True):
        probabilities = classifier.model.classify(ids_of(classifier, text))[0].softmax(-1)
        wanted = sorted(zip(probabilities.tolist(), classifier.labels, strict=True), reverse=True)
        assert [prediction.text for prediction in predictions] == [label for _, label in wanted]
        assert [prediction.probability for prediction in predictions] == pytest.approx([p for p, _ in wanted], abs=1e-5)


def test_a_vector_is_the_normalized_mean_of_its_tokens(classifier, embedder, texts):
    vectors = embedder.embed(texts)
    for text, vector in zip(texts, vectors, strict=True):
        mean = classifier.model.encode(ids_of(classifier, text))[0].mean(0)
        torch.testing.assert_close(vector, mean / mean.norm(), atol=1e-5, rtol=0)


def test_every_text_encoder_embeds_alike(classifier, masked_lm, embedder, texts):
    wanted = embedder.embed(texts)
    assert torch.equal(classifier.embed(texts), wanted)
    assert torch.equal(masked_lm.embed(texts), wanted)


def test_token_ids_are_as_good_as_texts(classifier, embedder, texts):
    assert classifier.classify(classifier.encode(texts), top=3) == classifier.classify(texts, top=3)
    assert torch.equal(embedder.embed(embedder.encode(texts)), embedder.embed(texts))


def test_a_text_beyond_the_context_is_truncated(classifier, texts):
    assert [row for row, ids in enumerate(classifier.encode(texts)) if len(ids) > classifier.max_len] == [4]
    cut = classifier.tokenizer.decode(classifier.tokenizer.encode([texts[4]])[0][:18])
    torch.testing.assert_close(classifier.embed([texts[4]]), classifier.embed([cut]))


def test_progress_counts_the_texts(classifier, texts):
    counts: list[int] = []
    classifier.classify(texts, progress=counts.append)
    assert counts == [2, 4, 5]


def test_no_texts_have_no_classes_and_no_vectors(classifier):
    assert classifier.classify([]) == []
    assert classifier.embed([]).shape == (0, 16)


def test_one_string_instead_of_a_list_is_refused(classifier, masked_lm, embedder):
    for method in (classifier.classify, classifier.embed, masked_lm.embed, embedder.embed):
        with pytest.raises(ValueError, match="not one string"):
            method("the cat")


def test_a_mixture_of_texts_and_token_ids_is_refused(classifier, masked_lm, embedder, texts):
    [ids] = classifier.encode(texts[:1])
    for method in (classifier.classify, classifier.embed, masked_lm.embed, embedder.embed):
        for mixed in ([ids, "a dog"], ["a dog", ids]):
            with pytest.raises(ValueError, match=r"^1 of 2 texts are lists of token ids, the others strings; give one kind$"):
                method(mixed)


def test_an_untrained_classifier_embeds_but_does_not_classify(classifier, texts):
    untrained = dataclasses.replace(classifier, run=dataclasses.replace(classifier.run, untrained=("classifier",)))
    with pytest.raises(ValueError, match=r"no trained classes; use regard train classify init=THIS_FOLDER data\.train=FILE$"):
        untrained.classify(texts)
    assert torch.equal(untrained.embed(texts), classifier.embed(texts))
