"""A reader: hidden words, classes and vectors equal those of one plain forward pass for each text."""

import dataclasses
import json

import pytest
import tokenizers
import torch
from regard.decode.reader import Reader

from regard.config import DecodeConfig, Run
from regard.data.text.tokenizer import Tokenizer, train_tokenizer
from regard.models.bert import BERT, BERTConfig

TEXTS = ["the cat sat on the mat", "a dog", "the mat", "", "the cat and the dog sat on a mat " * 3]
LABELS = ("bad", "good", "neither")


@pytest.fixture(scope="module")
def reader() -> Reader:
    torch.manual_seed(0)
    tokenizer = train_tokenizer(TEXTS * 3, "wordpiece", 60)
    config = BERTConfig(vocab=tokenizer.vocab, dim=16, depth=2, heads=2, max_len=20, classes=3)
    model = BERT(config).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return Reader(
        model,
        tokenizer,
        Run("tiny", "bert", config, task="text_classification", decode=DecodeConfig(batch_size=2)),
        LABELS,
    )


def lock_folder(reader: Reader, text: str) -> torch.Tensor:
    """The tokens of one text, as the model reads them: (1, T)."""
    special = reader.tokenizer.special
    return torch.tensor([[special.bos, *reader.tokenizer.encode([text])[0][:18], special.eos]])


def test_classes_are_those_of_each_text_alone(reader):
    for text, guesses in zip(TEXTS, reader.classify(TEXTS, top=3), strict=True):
        odds = reader.model.classify(lock_folder(reader, text))[0].softmax(-1)
        wanted = sorted(zip(odds.tolist(), LABELS, strict=True), reverse=True)
        assert [guess.text for guess in guesses] == [label for _, label in wanted]
        assert [guess.probability for guess in guesses] == pytest.approx([p for p, _ in wanted], abs=1e-5)


def test_a_vector_is_the_mean_of_its_tokens_made_one_long(reader):
    vectors = reader.embed(TEXTS)
    for text, vector in zip(TEXTS, vectors, strict=True):
        mean = reader.model.encode(lock_folder(reader, text))[0].mean(0)
        torch.testing.assert_close(vector, mean / mean.norm(), atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def guesser(reader) -> Reader:
    """The same model, said to have been trained on hidden words."""
    return dataclasses.replace(reader, run=dataclasses.replace(reader.run, task="masked_lm"), labels=())


def test_one_that_was_not_trained_to_guess_says_so(reader, guesser):
    with pytest.raises(ValueError, match="not trained to guess"):
        reader.fill("the [MASK]")
    imported = dataclasses.replace(guesser, run=dataclasses.replace(guesser.run, untrained="lm_head,pooler"))
    with pytest.raises(ValueError, match="not trained to guess"):
        imported.fill("the [MASK]")


def test_a_hidden_word_is_the_likeliest_of_a_forward_pass(guesser):
    reader = guesser
    found = reader.fill("the [MASK] sat on the [MASK]", top=4)
    special = reader.tokenizer.special
    ids = [
        special.mask if token == "[MASK]" else reader.tokenizer.ids([token])[0]
        for token in ["the", "[MASK]", "sat", "on", "the", "[MASK]"]
    ]
    logits = reader.model(torch.tensor([[special.bos, *ids, special.eos]]))[0, [2, 6]]
    logits[:, list(reader.tokenizer.special_ids)] = -torch.inf
    best = logits.argmax(-1).tolist()
    assert [word[0].text for word in found.guesses] == [reader.tokenizer.decode([token]) for token in best]
    assert all(len(word) == 4 and word == sorted(word, key=lambda g: -g.probability) for word in found.guesses)
    ids[1], ids[5] = best
    assert found.text == reader.tokenizer.decode(ids)


def test_a_text_too_long_is_known_and_cut(reader):
    assert [len(ids) > reader.max_len for ids in reader.tokenizer.encode(TEXTS)] == [
        row == 4 for row in range(len(TEXTS))
    ]
    cut = reader.tokenizer.decode(reader.tokenizer.encode([TEXTS[4]])[0][:18])
    torch.testing.assert_close(reader.embed([TEXTS[4]]), reader.embed([cut]))


def test_progress_hears_of_all(reader):
    heard = []
    reader.classify(TEXTS, progress=heard.append)
    assert heard == [2, 4, 5]


def test_what_cannot_be_read_is_refused_in_one_line(reader, guesser):
    with pytest.raises(ValueError, match=r"no \[MASK\] in 'the cat'; write \[MASK\]"):
        guesser.fill("the cat")
    with pytest.raises(ValueError, match=r"44 tokens.* at most 18"):
        guesser.fill("[MASK] cat " * 22)
    with pytest.raises(ValueError, match="no classes"):
        Reader(reader.model, reader.tokenizer, reader.run).classify(["the cat"])
    with pytest.raises(ValueError, match="not one string"):
        reader.embed("the cat")
    bpe = Reader(reader.model, train_tokenizer(TEXTS, "bpe", 60), reader.run)
    plain = json.loads(guesser.tokenizer._inner.to_str())
    plain["added_tokens"] = [one for one in plain["added_tokens"] if one["content"] != "[MASK]"]
    told = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(plain)))
    with pytest.raises(ValueError, match=r"has \[MASK\] among its words, not as a mark"):
        dataclasses.replace(guesser, tokenizer=told).fill("the [MASK] sat")
    with pytest.raises(ValueError, match="no mask token"):
        bpe.fill("the [MASK]")
