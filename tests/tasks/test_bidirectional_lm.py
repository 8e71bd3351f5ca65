"""Bidirectional language modelling: its batches, its loss and its scores against plain loops."""

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from tiny_tasks import tiny_run, write_data

from regard.data.position import DataPosition
from regard.data.text.tokenizer import SpecialTokens
from regard.data.text.windows import all_bounded_windows, bounded_windows
from regard.models.elmo import ELMo
from regard.tasks import TASKS
from regard.tasks.task import ScoreOptions
from regard.train.loop import fit

SPECIAL = SpecialTokens(pad=0, bos=1, eos=2, unk=3, mask=None, sentinels=())
TEXT = np.arange(10, 33, dtype=np.uint16)
TASK = TASKS["bidirectional_lm"]


def test_each_token_is_between_a_start_and_an_end_and_predicted_once_in_each_direction():
    batches = list(all_bounded_windows(TEXT, 5, 10, SPECIAL))
    assert torch.cat([batch.labels.flatten() for batch in batches]).tolist() == TEXT.tolist()
    assert [tuple(batch.words.shape) for batch in batches] == [(2, 7), (2, 7), (1, 5)]  # the last window is shorter
    for batch in batches:
        assert (batch.words[:, 0] == 1).all()
        assert (batch.words[:, -1] == 2).all()
        assert torch.equal(batch.words[:, 1:-1], batch.labels)
    assert sum(batch.tokens for batch in batches) == 2 * len(TEXT)


def test_an_epoch_has_each_window_once_and_a_seed_of_its_own():
    stream = bounded_windows(TEXT, 5, 10, 1, SPECIAL)
    first = [next(stream) for _ in range(2)]
    starts = sorted(int(row[0]) for make, _ in first for row in make().labels)
    assert [b - a for a, b in pairwise(starts)] == [5] * (len(starts) - 1)
    assert first[-1][1] == DataPosition(1)


@pytest.fixture(params=["characters", "tokens"])
def prepared(request, tmp_path):
    """A run, its data set and a model with random weights."""
    write_data(tmp_path)
    run = tiny_run("bidirectional_lm", tmp_path)
    dataset = TASK.prepare(run, tmp_path / "tokenizer.json", lambda text: None, lambda what, n: None)
    model = dataclasses.replace(run.model, vocab=dataset.tokenizer.vocab, inputs=request.param)
    torch.manual_seed(0)
    return dataclasses.replace(run, model=model), dataset, ELMo(model).eval()


def test_rare_tokens_are_predicted_as_unknown_and_still_read(prepared):
    run, dataset, model = prepared
    make, _ = next(TASK.batches(run, dataset, DataPosition()))
    batch, kept = make(), run.model.output_vocab
    assert kept < dataset.tokenizer.vocab
    assert model.output.out_features == kept
    assert batch.labels.max() < kept
    assert (batch.labels == dataset.tokenizer.special.unk).any()
    different = batch.words[:, 1:-1].flatten(0, 1).unique(dim=0)
    assert len(different) > len(batch.labels.unique())


@pytest.mark.parametrize("outputs", [1, 3])
def test_an_output_vocabulary_without_the_unknown_token_is_refused_in_one_line(tmp_path, outputs):
    write_data(tmp_path)
    run = tiny_run("bidirectional_lm", tmp_path)
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, output_vocab=outputs))
    message = f"^model.output_vocab={outputs} leaves out the unknown token, number 4 of the vocabulary, .* set it to 4 or more"
    with pytest.raises(ValueError, match=message):
        fit(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@torch.no_grad()
def test_the_score_is_the_perplexity_of_each_direction(prepared):
    run, dataset, model = prepared
    nats = torch.zeros(2, dtype=torch.float64)
    count = 0
    for batch in TASK.validation(run, dataset):
        following, preceding = (logits.log_softmax(-1) for logits in model(batch.words))
        for row, labels in enumerate(batch.labels.tolist()):
            for position, label in enumerate(labels, 1):  # position 0 is the start token
                nats[0] -= following[row, position - 1, label]
                nats[1] -= preceding[row, position + 1, label]
                count += 1
    predictor = TASK.predictor(model, run, dataset.tokenizer, ())
    forward, backward = TASK.score(predictor, "valid", ScoreOptions())
    assert (forward.name, backward.name) == ("forward perplexity", "backward perplexity")
    assert forward.value == pytest.approx(math.exp(nats[0] / count), rel=1e-4)
    assert backward.value == pytest.approx(math.exp(nats[1] / count), rel=1e-4)
    assert forward.value != pytest.approx(backward.value, rel=1e-3)


def test_the_loss_is_the_sum_of_both_directions(prepared):
    run, dataset, model = prepared
    batch = next(TASK.validation(run, dataset))
    loss, nll = TASK.loss(model, batch, 0.0)
    following, preceding = model(batch.words)
    wanted = sum(
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="sum")
        for logits in (following[:, :-2], preceding[:, 2:])
    )
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(nll, wanted.detach(), rtol=1e-5, atol=1e-3)
    loss.backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if not name.startswith("mix."))
    assert model.mix.weights.grad is None  # the layers' weights are not trained by it
