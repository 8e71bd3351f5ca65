"""Each model learns: it overfits one batch in seconds, a toy in a minute, and real data to a stated score."""

import json
import math
import os
import subprocess
import sys
import time

import pytest
import torch

from regard.data.text.batches import PairBatch
from regard.data.text.toys import toy_pairs
from regard.data.text.windows import BoundedBatch, MaskedBatch, WindowBatch
from regard.models.bert import BERT, BERTConfig
from regard.models.elmo import ELMo, ELMoConfig
from regard.models.gpt import GPT, GPTConfig
from regard.models.t5 import T5, T5Config
from regard.models.transformer import Transformer, TransformerConfig
from regard.tasks import read_run
from regard.tasks.bidirectional_lm import bidirectional_loss
from regard.tasks.language_model import next_token_loss
from regard.tasks.load import load
from regard.tasks.masked_lm import masked_token_loss
from regard.tasks.translation import sequence_loss
from regard.train.loop import fit
from regard.train.optim import adam
from regard.view.alignment import PREDICTING, Head, toy_accuracy


def tokens(seed: int = 0) -> torch.Tensor:
    return torch.randint(5, 30, (8, 7), generator=torch.Generator().manual_seed(seed))


def pairs() -> PairBatch:
    """Sequences and their reverse."""
    start, end = torch.full((8, 1), 1), torch.full((8, 1), 2)
    return PairBatch(torch.cat((tokens(), end), 1), torch.cat((start, tokens().flip(1), end), 1))


def masked() -> MaskedBatch:
    """Two tokens of each row masked by id 4."""
    chosen = torch.zeros(8, 7, dtype=torch.bool)
    chosen[:, [2, 5]] = True
    return MaskedBatch(tokens().masked_fill(chosen, 4), chosen, tokens())


def bounded(by_character: bool) -> BoundedBatch:
    """Windows between start and end; by character, a word is its id as a character among padding."""
    words = torch.cat((torch.full((8, 1), 1), tokens(), torch.full((8, 1), 2)), 1)
    return BoundedBatch(torch.nn.functional.pad(words[..., None], (1, 1)) if by_character else words, tokens())


SMALL = {"vocab": 30, "dim": 32, "depth": 1, "heads": 2, "dropout": 0.0, "attention_dropout": 0.0}
ELMO_SMALL = {"vocab": 30, "dim": 64, "cells": 32, "characters": 3, "filters": [32, 32], "highways": 1, "dropout": 0.0}
T5_SMALL = {**SMALL, "head_dim": 16, "mlp_dim": 64, "pad": 0}
LEARNERS = {
    "transformer, norm first": lambda: (Transformer(TransformerConfig(**SMALL, norm="pre")), sequence_loss, pairs()),
    "transformer, norm last": lambda: (Transformer(TransformerConfig(**SMALL, norm="post")), sequence_loss, pairs()),
    "gpt": lambda: (GPT(GPTConfig(**SMALL, max_len=8)), next_token_loss, WindowBatch(tokens())),
    "bert": lambda: (BERT(BERTConfig(**SMALL, max_len=8)), masked_token_loss, masked()),
    "elmo": lambda: (ELMo(ELMoConfig(**ELMO_SMALL)), bidirectional_loss, bounded(True)),
    "elmo of tokens": lambda: (ELMo(ELMoConfig(**ELMO_SMALL, inputs="tokens")), bidirectional_loss, bounded(False)),
    "t5": lambda: (T5(T5Config(**T5_SMALL)), sequence_loss, pairs()),
    "t5 v1.1": lambda: (T5(T5Config(**T5_SMALL, gated=True, tied=False)), sequence_loss, pairs()),
}


# Nothing predicts the first token of a text: for each direction of an ELMo one of 8, once in 7 tokens, ln 8 / 7 = 0.30 nats.
LIMITS = {"gpt": 1.0, "elmo": 0.35, "elmo of tokens": 0.35}


@pytest.mark.parametrize("name", list(LEARNERS))
def test_a_small_model_overfits_one_batch(name):
    torch.manual_seed(0)
    model, loss_function, batch = LEARNERS[name]()
    optimizer = adam(model)
    for _ in range(250):
        optimizer.param_groups[0]["lr"] = 3e-3
        loss, _ = loss_function(model, batch, 0.0)
        (loss / batch.tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        loss, _ = loss_function(model, batch, 0.0)
    assert float(loss) / batch.tokens < LIMITS.get(name, 0.1)


@pytest.mark.parametrize(("toy", "steps"), [("reverse", 300), pytest.param("copy", 500, marks=pytest.mark.slow)])
def test_a_bahdanau_attends_to_the_letter_that_it_writes(tmp_path, toy, steps):
    """Copying needs longer: the source state before a letter has read that letter too, from the right, and serves as well."""
    sizes = ("model=bahdanau-tiny", "model.dim=16", "model.readout=16", "model.hidden=32", "model.align=32", "model.dropout=0.0")
    how = ("train.lr=0.01", "train.warmup=50", "train.schedule=cosine", "train.weight_decay=0.2", "train.average=1",
           "data.pairs=10000", *(f"train.{key}={steps}" for key in ("steps", "eval_every", "save_every")))  # fmt: skip
    fit(read_run(toy, (*sizes, *how)), tmp_path / "run")
    found = toy_accuracy(load(tmp_path / "run"), toy, toy_pairs(toy, "test", 200), PREDICTING)
    assert found[Head("decoder.cross", None)] >= 0.98


def regard(*words: str, cwd) -> str:
    return subprocess.run([sys.executable, "-m", "regard", *words], cwd=cwd, check=True, capture_output=True, text=True).stdout


def exact(run: str, cwd) -> float:
    scores = json.loads(regard("score", run, "--on", "test", "--json", cwd=cwd))
    return next(s["value"] for s in scores if s["name"] == "exact match")


@pytest.mark.slow
def test_reverse_is_learnt_without_errors_in_under_a_minute(tmp_path):
    start = time.monotonic()
    regard("train", "reverse", cwd=tmp_path)
    assert time.monotonic() - start < 60
    assert exact("runs/reverse", tmp_path) == 100


@pytest.mark.slow
@pytest.mark.parametrize("toy", ["copy", "phrasebook"])
def test_the_other_toys_are_learnt_in_about_a_minute(tmp_path, toy):
    regard("train", toy, cwd=tmp_path)
    assert exact(f"runs/{toy}", tmp_path) >= 99


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("REGARD_DATA"), reason="set REGARD_DATA to a folder that holds multi30k/")
def test_multi30k_reaches_its_score_with_at_most_2_7_million_parameters(tmp_path):
    """About 85 minutes on two cores; BLEU on the published lower-cased tokens, without further tokenisation."""
    regard("train", "multi30k-tok", cwd=tmp_path)
    parts = json.loads(regard("cost", "runs/multi30k-tok", "--json", cwd=tmp_path))["runs/multi30k-tok"]
    assert parts[-1]["parameters"] <= 2_700_000
    scores = json.loads(regard("score", "runs/multi30k-tok", "--on", "test_2016_flickr", "--json", cwd=tmp_path))
    assert next(s["value"] for s in scores if "tok:none" in s["signature"]) >= 40.5


def score_of(run: str, on: str, name: str, cwd) -> float:
    scores = json.loads(regard("score", run, "--on", on, "--json", cwd=cwd))
    return next(s["value"] for s in scores if s["name"] == name)


@pytest.mark.slow
@pytest.mark.skipif("REGARD_DATA" not in os.environ, reason="set REGARD_DATA to a folder that holds tinyshakespeare/")
def test_a_small_gpt_reaches_the_loss_of_nanogpt_on_shakespeare(tmp_path):
    regard("train", "shakespeare-nano", cwd=tmp_path)
    for split in ("valid", "test"):  # together they are nanoGPT's validation text
        assert math.log(score_of("runs/shakespeare-nano", split, "perplexity", tmp_path)) < 1.88


@pytest.mark.slow
@pytest.mark.skipif("REGARD_DATA" not in os.environ, reason="set REGARD_DATA to a folder that holds tinyshakespeare/")
def test_a_larger_gpt_reaches_a_lower_loss(tmp_path):
    """About half an hour on two cores."""
    regard("train", "shakespeare-gpt", cwd=tmp_path)
    losses = [math.log(score_of("runs/shakespeare-gpt", split, "perplexity", tmp_path)) for split in ("valid", "test")]
    assert sum(losses) / 2 <= 1.55  # the two are of one length


@pytest.mark.slow
@pytest.mark.skipif("REGARD_DATA" not in os.environ, reason="set REGARD_DATA to a folder that holds wikitext-2/")
def test_a_bert_predicts_masked_words_better_than_the_baselines(tmp_path):
    """The recipe's first quarter is enough for that."""
    regard("train", "wikitext-bert", "train.steps=1200", cwd=tmp_path)
    scores = json.loads(regard("score", "runs/wikitext-bert", "--on", "test", "--json", cwd=tmp_path))
    found = {score["name"]: score for score in scores}
    for baseline in ("unigram baseline", "bigram baseline"):
        assert found["masked-token accuracy"]["value"] > found[baseline]["value"]
        assert found["perplexity"]["value"] < float(found[baseline]["signature"].rpartition(" ")[2])


@pytest.mark.slow
@pytest.mark.skipif("REGARD_DATA" not in os.environ, reason="set REGARD_DATA to a folder that holds multi30k/, …")
def test_one_t5_learns_three_tasks(tmp_path):
    """About half an hour on two cores; the floors are what the same model reached on each task alone, less two points."""
    regard("train", "t5-multitask", cwd=tmp_path)
    assert score_of("runs/t5-multitask", "valid", "multi30k: BLEU", tmp_path) >= 34.9 - 2
    assert score_of("runs/t5-multitask", "valid", "sst2: accuracy", tmp_path) >= 76.1 - 2
    assert score_of("runs/t5-multitask", "valid", "agnews-small: accuracy", tmp_path) >= 63.3 - 2


@pytest.mark.slow
@pytest.mark.skipif("REGARD_DATA" not in os.environ, reason="set REGARD_DATA to a folder that holds sst2/")
def test_a_classifier_of_film_reviews_is_initialized_from_minilm(tmp_path, minilm):
    regard("import", str(minilm), "--to", "runs/minilm", cwd=tmp_path)
    regard("train", "sst2", "init=runs/minilm", cwd=tmp_path)
    assert score_of("runs/sst2", "test", "accuracy", tmp_path) >= 88


@pytest.mark.slow
@pytest.mark.skipif("REGARD_DATA" not in os.environ, reason="set REGARD_DATA to a folder that holds fashion-mnist/")
def test_a_small_vit_classifies_clothes(tmp_path):
    """About 10 minutes on two cores."""
    regard("train", "fashion-vit", cwd=tmp_path)
    assert json.loads(regard("cost", "runs/fashion-vit", "--json", cwd=tmp_path))["runs/fashion-vit"]["parameters"] <= 300_000
    assert score_of("runs/fashion-vit", "test", "accuracy", tmp_path) >= 90


@pytest.mark.slow
@pytest.mark.skipif("REGARD_DATA" not in os.environ, reason="set REGARD_DATA to a folder that holds cifar10/")
def test_a_resnet_with_attention_classifies_small_photos(tmp_path):
    """About 40 minutes on two cores."""
    regard("train", "cifar10-attention-cnn", cwd=tmp_path)
    assert score_of("runs/cifar10-attention-cnn", "test", "accuracy", tmp_path) >= 85
