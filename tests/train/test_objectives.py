"""The loss without all the logits is the loss with them; and training in parallel is decoding step by step.

Shapes: N tokens, B batch, S source and T target length, D width, V vocabulary.
"""

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.text.batches import PairBatch
from regard.data.text.tokenizer import BOS, EOS, PAD
from regard.decode.fast import decoder
from regard.models.transformer import Transformer, TransformerConfig
from regard.tasks.loss import ROWS, linear_cross_entropy, translate
from regard.train import objectives

VOCAB = 40


def problem(rows: int, *, bias: bool, dtype: torch.dtype, dim: int = 16, vocab: int = 37) -> tuple[list[Any], Tensor]:
    """Features (N, D), weight (V, D), bias (V,) or None, each a leaf that learns; and labels (N,)."""
    torch.manual_seed(rows)
    leaves = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in ((rows, dim), (vocab, dim), (vocab,))]
    return [*leaves[:2], leaves[2] if bias else None], torch.randint(0, vocab, (rows,))


def reference(leaves: list[Any], labels: Tensor, label_smoothing: float) -> Tensor:
    return F.cross_entropy(F.linear(*leaves), labels, label_smoothing=label_smoothing, reduction="sum")


def gradients(loss: Tensor, leaves: list[Any]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, [leaf for leaf in leaves if leaf is not None])


@pytest.mark.parametrize("rows", [1, 7, ROWS, ROWS + 1, 2 * ROWS + 37])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_value_and_gradients_equal_torchs_cross_entropy(rows, label_smoothing, bias):
    for dtype, rtol in ((torch.float64, 1e-11), (torch.float32, 1e-4)):
        leaves, labels = problem(rows, bias=bias, dtype=dtype)
        loss, nll = linear_cross_entropy(*leaves, labels, label_smoothing)
        wanted = reference(leaves, labels, label_smoothing)
        torch.testing.assert_close(loss, wanted, rtol=rtol, atol=0)
        torch.testing.assert_close(nll, reference(leaves, labels, 0.0), rtol=rtol, atol=0)
        torch.testing.assert_close(gradients(loss, leaves), gradients(wanted, leaves), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_equal_finite_differences(label_smoothing, bias, monkeypatch):
    monkeypatch.setattr(objectives, "ROWS", 4)  # eleven rows in blocks of four, four and three
    leaves, labels = problem(11, bias=bias, dtype=torch.float64, dim=3, vocab=5)
    assert torch.autograd.gradcheck(
        lambda *inputs: linear_cross_entropy(*inputs, *leaves[len(inputs) :], labels, label_smoothing)[0],
        tuple(leaf for leaf in leaves if leaf is not None),
    )


def test_logits_that_overflow_an_exponential_are_no_danger():
    leaves, labels = problem(9, bias=True, dtype=torch.float32)
    leaves[0] = (leaves[0].detach() * 100).requires_grad_()
    loss, _ = linear_cross_entropy(*leaves, labels, 0.1)
    assert F.linear(*leaves).amax() > 100  # exp of it is infinite in float32
    wanted = reference(leaves, labels, 0.1)
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradients(loss, leaves), gradients(wanted, leaves), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("scale", [3.0, -0.25, 0.0])
def test_gradients_scale_with_what_comes_from_above(scale):
    leaves, labels = problem(20, bias=True, dtype=torch.float64)
    loss, _ = linear_cross_entropy(*leaves, labels, 0.1)
    wanted = gradients(scale * reference(leaves, labels, 0.1), leaves)
    torch.testing.assert_close(gradients(scale * loss, leaves), wanted, rtol=1e-11, atol=1e-12)


def test_the_log_likelihood_is_a_number_to_read_not_to_minimise():
    leaves, labels = problem(5, bias=True, dtype=torch.float32)
    loss, nll = linear_cross_entropy(*leaves, labels, 0.1)
    assert loss.requires_grad
    assert not nll.requires_grad


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_a_frozen_part_gets_no_gradient_and_the_others_keep_theirs(frozen):
    leaves, labels = problem(20, bias=True, dtype=torch.float64)
    leaves[frozen].requires_grad_(False)
    linear_cross_entropy(*leaves, labels, 0.1)[0].backward()
    learning = [leaf for i, leaf in enumerate(leaves) if i != frozen]
    assert leaves[frozen].grad is None
    wanted = torch.autograd.grad(reference(leaves, labels, 0.1), learning)
    torch.testing.assert_close(tuple(leaf.grad for leaf in learning), wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_values_are_the_same_when_nothing_learns(mode):
    leaves, labels = problem(ROWS + 3, bias=True, dtype=torch.float64)
    wanted = [reference(leaves, labels, label_smoothing).item() for label_smoothing in (0.1, 0.0)]
    with mode():
        loss, nll = linear_cross_entropy(*leaves, labels, 0.1)
    assert not loss.requires_grad
    assert [loss.item(), nll.item()] == pytest.approx(wanted, rel=1e-11)


def test_its_inputs_are_left_as_they_were():
    leaves, labels = problem(ROWS + 3, bias=True, dtype=torch.float32)
    before = [leaf.detach().clone() for leaf in leaves]
    linear_cross_entropy(*leaves, labels, 0.1)[0].backward()
    for leaf, old in zip(leaves, before, strict=True):
        assert torch.equal(leaf, old)


# The objective of translation, on a small Transformer in double precision.


def model(tied: bool) -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig(VOCAB, dim=16, depth=2, heads=2, dropout=0.0, tied=tied)).double()


def sentence(length: int) -> list[int]:
    return torch.randint(4, VOCAB, (length,)).tolist()


def padded(rows: list[list[int]], extra: int = 0) -> Tensor:
    table = torch.full((len(rows), max(map(len, rows)) + extra), PAD)
    for place, row in zip(table, rows, strict=True):
        place[: len(row)] = torch.tensor(row)
    return table


def pairs() -> tuple[list[list[int]], list[list[int]]]:
    """Sources with their ends, and targets between start and end, of unlike lengths."""
    torch.manual_seed(1)
    sources = [[*sentence(n), EOS] for n in (3, 8, 1, 5)]
    targets = [[BOS, *sentence(n), EOS] for n in (6, 2, 9, 0)]
    return sources, targets


def weight_gradients(loss: Tensor, of: Transformer) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(of.parameters())))


@pytest.mark.parametrize("tied", [True, False])
def test_the_objective_equals_cross_entropy_on_all_the_logits(tied):
    net, (sources, targets) = model(tied), pairs()
    batch = PairBatch(padded(sources), padded(targets))
    loss, nll = translate(net, batch, 0.1)
    logits, labels = net(batch.source, batch.target[:, :-1]).flatten(0, 1), batch.target[:, 1:].flatten()
    keep = labels != PAD
    wanted = F.cross_entropy(logits[keep], labels[keep], label_smoothing=0.1, reduction="sum")
    plain = F.cross_entropy(logits, labels, ignore_index=PAD, reduction="sum")
    torch.testing.assert_close((loss, nll), (wanted, plain), rtol=1e-11, atol=0)
    torch.testing.assert_close(weight_gradients(loss, net), weight_gradients(wanted, net), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("tied", [True, False])
def test_the_parallel_loss_equals_the_loss_of_one_step_at_a_time(tied):
    net, (sources, targets) = model(tied), pairs()
    _, nll = translate(net, PairBatch(padded(sources), padded(targets)), 0.1)
    total = 0.0
    for source, target in zip(sources, targets, strict=True):  # alone, so without padding
        steps = decoder(net)
        state = steps.start(torch.tensor([source]))
        for token, following in pairwise(target):
            logits, state = steps.step(torch.tensor([token]), state)
            total -= logits.log_softmax(-1)[0, following].item()
    assert nll.item() == pytest.approx(total, rel=1e-11)


def test_padding_changes_neither_loss_nor_gradients():
    net, (sources, targets) = model(tied=True), pairs()
    tight = translate(net, PairBatch(padded(sources), padded(targets)), 0.1)
    loose = translate(net, PairBatch(padded(sources, extra=4), padded(targets, extra=7)), 0.1)
    torch.testing.assert_close(tight, loose, rtol=1e-11, atol=0)
    torch.testing.assert_close(weight_gradients(tight[0], net), weight_gradients(loose[0], net), rtol=1e-9, atol=1e-10)


def test_a_batch_costs_the_sum_of_its_sentences():
    net, (sources, targets) = model(tied=True), pairs()
    whole = translate(net, PairBatch(padded(sources), padded(targets)), 0.1)
    each = [translate(net, PairBatch(padded([s]), padded([t])), 0.1) for s, t in zip(sources, targets, strict=True)]
    torch.testing.assert_close(whole, tuple(sum(parts) for parts in zip(*each, strict=True)), rtol=1e-11, atol=0)
