"""The vector of a word in its context: the mean of its tokens, whatever the batch; static vectors ignore the context."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from regard.config import DecodeConfig, Run
from regard.data.text.characters import CharacterTokenizer
from regard.data.text.config import TextData
from regard.data.text.tokenizer import train_tokenizer
from regard.models.elmo import ELMo, ELMoConfig
from regard.tasks import TASKS
from regard.tasks.bidirectional_lm import BidirectionalLM
from regard.tasks.text_classification import TextClassifier

BANKS = ["money bank grows", "river bank flows"]


def elmo(inputs: str) -> BidirectionalLM:
    """A small ELMo with large random weights."""
    torch.manual_seed(0)
    words = train_tokenizer([*BANKS, "the cat sat on the mat"], "words", 60)
    config = ELMoConfig(vocab=words.vocab, dim=16, cells=8, inputs=inputs, characters=12, filters=[8, 8], highways=1)
    model = ELMo(config).eval()
    for p in (*model.forward_lstms.parameters(), *model.backward_lstms.parameters()):
        torch.nn.init.normal_(p, std=1.0)
    run = Run("tiny", "elmo", config, "bidirectional_lm", data=TextData(source="wikitext-2", max_len=20),
              decode=DecodeConfig(batch_size=2))  # fmt: skip
    return TASKS["bidirectional_lm"].predictor(model, run, words, ())


@pytest.fixture(scope="module", params=["tokens", "characters"])
def embedder(request) -> BidirectionalLM:
    return elmo(request.param)


def test_a_run_of_characters_reads_characters_and_one_of_tokens_does_not():
    assert isinstance(elmo("characters").tokenizer, CharacterTokenizer)
    assert elmo("tokens").tokenizer.encode(["river bank"]) == [elmo("tokens").tokenizer.tokens_to_ids(["river", "bank"])]


def test_bank_has_one_static_vector_and_a_contextual_one_in_each_text(embedder):
    with torch.no_grad():
        embedder.model.mix.weights.copy_(torch.tensor([0.0, -torch.inf, -torch.inf]))
        _, static = embedder.embed_word(BANKS, "bank")
        embedder.model.mix.weights.zero_()
        _, contextual = embedder.embed_word(BANKS, "bank")
    torch.testing.assert_close(static[0], static[1], rtol=0, atol=1e-6)
    assert contextual[0] @ contextual[1] < 0.999


def test_each_occurrence_has_the_vector_of_its_token(embedder):
    texts = ["the cat sat on the mat", "bank", "the bank, the river bank flows"]
    found = embedder.embed_word([texts[0], texts[2]], "THE")
    assert found.occurrences == [(0, 0, 3), (0, 15, 18), (1, 0, 3), (1, 10, 13)]
    special = embedder.tokenizer.special
    wanted = []
    for text, positions in ((texts[0], (0, 4)), (texts[2], (0, 3))):
        words = torch.tensor([[special.bos, *embedder.encode([text])[0], special.eos]])
        states = embedder.model.encode(words)[0]
        wanted += [normalize(states[1 + position], dim=0) for position in positions]
    torch.testing.assert_close(found.vectors, torch.stack(wanted), rtol=0, atol=1e-5)


def test_a_batch_gives_the_vectors_of_its_texts_alone(embedder):
    texts = ["the bank", "money bank grows on the mat", "bank", "a river, a bank; a cat", "bank of the bank"]
    together = embedder.embed_word(texts, "bank").vectors
    alone = torch.cat([embedder.embed_word([text], "bank").vectors for text in texts])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


def test_a_word_of_several_tokens_is_their_mean(classifier: TextClassifier):
    text = "the catmat sat"
    [ids], [spans] = classifier.encode([text]), classifier.tokenizer.offsets([text])
    pieces = [n for n, (start, end) in enumerate(spans) if start >= 4 and end <= 10]
    assert len(pieces) > 1
    special = classifier.tokenizer.special
    states = classifier.model.encode(torch.tensor([[special.bos, *ids, special.eos]]))[0]
    wanted = normalize(states[[1 + n for n in pieces]].mean(0), dim=0)
    torch.testing.assert_close(classifier.embed_word([text], "catmat").vectors, wanted[None], rtol=0, atol=1e-5)


def test_words_outside_the_vocabulary_differ_only_by_their_characters():
    texts = ["the dog sat", "the fish sat"]
    tokens, characters = (elmo(inputs) for inputs in ("tokens", "characters"))
    torch.testing.assert_close(tokens.embed(texts[:1]), tokens.embed(texts[1:]))  # both words are unknown
    assert (characters.embed(texts[:1]) @ characters.embed(texts[1:]).T) < 0.999


def test_a_word_must_be_whole(embedder):
    with pytest.raises(ValueError, match=r"text 8, 'the bankers', does not contain the word 'bank'"):
        embedder.embed_word(["the bank", "the bankers"], "bank", first=7)
    assert embedder.embed_word(["the «bank»", "river-bank"], "bank").occurrences == [(0, 5, 9), (1, 6, 10)]


def test_a_model_without_a_context_limit_reads_the_whole_of_a_text_longer_than_its_windows(embedder):
    texts = ["the cat sat on " * 20 + end for end in ("the river bank", "the money bank")]  # windows have 20 tokens
    assert embedder.max_len == math.inf
    first, second = embedder.embed(texts)
    assert (first - second).abs().max() > 1e-4  # also by the last words
    special = embedder.tokenizer.special
    words = torch.tensor([[special.bos, *embedder.encode(texts[:1])[0], special.eos]])
    wanted = normalize(embedder.model.encode(words)[0, -2], dim=0)
    torch.testing.assert_close(embedder.embed_word(texts, "bank").vectors[0], wanted, rtol=0, atol=1e-5)


def test_one_string_instead_of_a_list_is_refused(embedder):
    with pytest.raises(ValueError, match="a list of texts is wanted"):
        embedder.embed_word("the bank", "bank")
