"""Predictions of masked words equal those of one plain forward pass."""

import dataclasses
import json

import pytest
import tokenizers
import torch

from regard.data.text.tokenizer import Tokenizer, train_tokenizer
from regard.tasks import masked_lm as task
from regard.tasks.masked_lm import MaskedLM
from regard.tasks.text_embedding import TextEmbedder


def test_a_masked_word_is_the_most_likely_of_a_forward_pass(masked_lm):
    found = masked_lm.fill("the [MASK] sat on the [MASK]", top=4)
    special = masked_lm.tokenizer.special
    [the], [sat], [on] = masked_lm.tokenizer.encode(["the", "sat", "on"])
    ids = [the, special.mask, sat, on, the, special.mask]
    logits = masked_lm.model(torch.tensor([[special.bos, *ids, special.eos]]))[0, [2, 6]]
    probabilities = logits.detach().softmax(-1)
    logits[:, list(masked_lm.tokenizer.special_ids)] = -torch.inf
    best = logits.argmax(-1).tolist()
    assert [word[0].text for word in found.predictions] == [masked_lm.tokenizer.decode([token]) for token in best]
    assert all(len(word) == 4 and word == sorted(word, key=lambda p: -p.probability) for word in found.predictions)
    wanted = [float(row[token]) for row, token in zip(probabilities, best, strict=True)]
    assert [word[0].probability for word in found.predictions] == pytest.approx(wanted, rel=1e-4)  # not of words alone
    ids[1], ids[5] = best
    assert found.text == masked_lm.tokenizer.decode(ids)


def test_an_encoder_with_an_untrained_head_embeds_only(masked_lm):
    predictor = task.TASK.predictor(masked_lm.model, masked_lm.run, masked_lm.tokenizer, ())
    assert isinstance(predictor, MaskedLM)
    imported = dataclasses.replace(masked_lm.run, untrained=("lm_head", "pooler"))
    predictor = task.TASK.predictor(masked_lm.model, imported, masked_lm.tokenizer, ())
    assert isinstance(predictor, TextEmbedder)
    assert predictor.VERBS == ("embed",)
    assert not hasattr(predictor, "fill")


def test_a_text_that_cannot_be_filled_is_refused_in_one_line(masked_lm, texts):
    with pytest.raises(ValueError, match=r"no \[MASK\] in 'the cat'; write \[MASK\]"):
        masked_lm.fill("the cat")
    with pytest.raises(ValueError, match=r"44 tokens.* at most 18"):
        masked_lm.fill("[MASK] cat " * 22)
    with pytest.raises(ValueError, match="not a list"):
        masked_lm.fill(["the [MASK]"])
    plain = json.loads(masked_lm.tokenizer._inner.to_str())
    plain["added_tokens"] = [token for token in plain["added_tokens"] if token["content"] != "[MASK]"]
    unflagged = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(plain)))
    with pytest.raises(ValueError, match=r"has \[MASK\] among its words, not as a special token"):
        dataclasses.replace(masked_lm, tokenizer=unflagged).fill("the [MASK] sat")
    with pytest.raises(ValueError, match="no mask token"):
        dataclasses.replace(masked_lm, tokenizer=train_tokenizer(texts, "bpe", 60)).fill("the [MASK]")
