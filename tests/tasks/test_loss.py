"""Losses equal the cross-entropy of all logits, and of each example alone; the parallel loss equals decoding step by step.

Shapes: N tokens, B batch, S source and T target length, D width, V vocabulary.
"""

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.text.batches import LabeledBatch, PairBatch
from regard.data.text.tokenizer import BOS, EOS, PAD
from regard.data.text.windows import MaskedBatch, WindowBatch
from regard.decode.fast import decoder
from regard.layers import linear as linear_file
from regard.models.bert import BERT, BERTConfig
from regard.models.gpt import GPT, GPTConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.tasks import loss as loss_file
from regard.tasks.language_model import next_token_loss
from regard.tasks.loss import ROWS, linear_cross_entropy
from regard.tasks.masked_lm import masked_token_loss
from regard.tasks.text_classification import text_class_loss
from regard.tasks.translation import sequence_loss

VOCAB = 40


def problem(rows: int, *, bias: bool, dtype: torch.dtype, dim: int = 16, vocab: int = 37) -> tuple[list[Any], Tensor]:
    """Features (N, D), weight (V, D), bias (V,) or None, each a leaf with a gradient; and labels (N,)."""
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


@pytest.mark.skipif(not linear_file.HAS_ONEDNN, reason="this torch was built without oneDNN")
def test_the_products_of_onednn_have_the_same_gradients(monkeypatch):
    monkeypatch.setattr(linear_file, "TRAINS_BY_ONEDNN", True)
    monkeypatch.setattr(linear_file, "ONEDNN_MIN", 0)
    leaves, labels = problem(ROWS + 7, bias=True, dtype=torch.float32)
    loss, _ = linear_cross_entropy(*leaves, labels, 0.1)
    wanted = reference(leaves, labels, 0.1)
    torch.testing.assert_close(gradients(loss, leaves), gradients(wanted, leaves), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_equal_finite_differences(label_smoothing, bias, monkeypatch):
    monkeypatch.setattr(loss_file, "ROWS", 4)  # eleven rows in blocks of four, four and three
    leaves, labels = problem(11, bias=bias, dtype=torch.float64, dim=3, vocab=5)
    assert torch.autograd.gradcheck(
        lambda *inputs: linear_cross_entropy(*inputs, *leaves[len(inputs) :], labels, label_smoothing)[0],
        tuple(leaf for leaf in leaves if leaf is not None),
    )


def test_large_logits_do_not_overflow():
    leaves, labels = problem(9, bias=True, dtype=torch.float32)
    leaves[0] = (leaves[0].detach() * 100).requires_grad_()
    loss, _ = linear_cross_entropy(*leaves, labels, 0.1)
    assert F.linear(*leaves).amax() > 100  # exp of it is infinite in float32
    wanted = reference(leaves, labels, 0.1)
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradients(loss, leaves), gradients(wanted, leaves), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("scale", [3.0, -0.25, 0.0])
def test_gradients_scale_with_the_incoming_gradient(scale):
    leaves, labels = problem(20, bias=True, dtype=torch.float64)
    loss, _ = linear_cross_entropy(*leaves, labels, 0.1)
    wanted = gradients(scale * reference(leaves, labels, 0.1), leaves)
    torch.testing.assert_close(gradients(scale * loss, leaves), wanted, rtol=1e-11, atol=1e-12)


def test_the_log_likelihood_has_no_gradient():
    leaves, labels = problem(5, bias=True, dtype=torch.float32)
    loss, nll = linear_cross_entropy(*leaves, labels, 0.1)
    assert loss.requires_grad
    assert not nll.requires_grad


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_a_frozen_input_gets_no_gradient_and_the_others_keep_theirs(frozen):
    leaves, labels = problem(20, bias=True, dtype=torch.float64)
    leaves[frozen].requires_grad_(False)
    linear_cross_entropy(*leaves, labels, 0.1)[0].backward()
    learning = [leaf for i, leaf in enumerate(leaves) if i != frozen]
    assert leaves[frozen].grad is None
    wanted = torch.autograd.grad(reference(leaves, labels, 0.1), learning)
    torch.testing.assert_close(tuple(leaf.grad for leaf in learning), wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_values_are_the_same_without_gradients(mode):
    leaves, labels = problem(ROWS + 3, bias=True, dtype=torch.float64)
    wanted = [reference(leaves, labels, label_smoothing).item() for label_smoothing in (0.1, 0.0)]
    with mode():
        loss, nll = linear_cross_entropy(*leaves, labels, 0.1)
    assert not loss.requires_grad
    assert [loss.item(), nll.item()] == pytest.approx(wanted, rel=1e-11)


def test_inputs_are_not_changed():
    leaves, labels = problem(ROWS + 3, bias=True, dtype=torch.float32)
    before = [leaf.detach().clone() for leaf in leaves]
    linear_cross_entropy(*leaves, labels, 0.1)[0].backward()
    for leaf, old in zip(leaves, before, strict=True):
        assert torch.equal(leaf, old)


# Translation, with a small Transformer in double precision


def model(tied: bool) -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig(VOCAB, dim=16, depth=2, heads=2, dropout=0.0, tied=tied)).double()


def sentence(length: int) -> list[int]:
    return torch.randint(4, VOCAB, (length,)).tolist()


def padded(rows: list[list[int]], extra: int = 0) -> Tensor:
    table = torch.full((len(rows), max(map(len, rows)) + extra), PAD)
    for i, row in enumerate(rows):
        table[i, : len(row)] = torch.tensor(row)
    return table


def pairs() -> tuple[list[list[int]], list[list[int]]]:
    """Sources with their ends, and targets between start and end, of different lengths."""
    torch.manual_seed(1)
    sources = [[*sentence(n), EOS] for n in (3, 8, 1, 5)]
    targets = [[BOS, *sentence(n), EOS] for n in (6, 2, 9, 0)]
    return sources, targets


def weight_gradients(loss: Tensor, of: Transformer) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(of.parameters())))


@pytest.mark.parametrize("tied", [True, False])
def test_the_sequence_loss_equals_cross_entropy_of_all_logits(tied):
    net, (sources, targets) = model(tied), pairs()
    batch = PairBatch(padded(sources), padded(targets))
    loss, nll = sequence_loss(net, batch, 0.1)
    logits, labels = net(batch.source, batch.target[:, :-1]).flatten(0, 1), batch.target[:, 1:].flatten()
    keep = labels != PAD
    wanted = F.cross_entropy(logits[keep], labels[keep], label_smoothing=0.1, reduction="sum")
    plain = F.cross_entropy(logits, labels, ignore_index=PAD, reduction="sum")
    torch.testing.assert_close((loss, nll), (wanted, plain), rtol=1e-11, atol=0)
    torch.testing.assert_close(weight_gradients(loss, net), weight_gradients(wanted, net), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("tied", [True, False])
def test_the_parallel_loss_equals_decoding_step_by_step(tied):
    net, (sources, targets) = model(tied), pairs()
    _, nll = sequence_loss(net, PairBatch(padded(sources), padded(targets)), 0.1)
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
    tight = sequence_loss(net, PairBatch(padded(sources), padded(targets)), 0.1)
    loose = sequence_loss(net, PairBatch(padded(sources, extra=4), padded(targets, extra=7)), 0.1)
    torch.testing.assert_close(tight, loose, rtol=1e-11, atol=0)
    torch.testing.assert_close(weight_gradients(tight[0], net), weight_gradients(loose[0], net), rtol=1e-9, atol=1e-10)


def test_the_loss_of_a_batch_is_the_sum_over_its_sentences():
    net, (sources, targets) = model(tied=True), pairs()
    whole = sequence_loss(net, PairBatch(padded(sources), padded(targets)), 0.1)
    each = [sequence_loss(net, PairBatch(padded([s]), padded([t])), 0.1) for s, t in zip(sources, targets, strict=True)]
    torch.testing.assert_close(whole, tuple(sum(parts) for parts in zip(*each, strict=True)), rtol=1e-11, atol=0)


# The other tasks


def text(*shape):
    return torch.randint(5, 40, shape, generator=torch.Generator().manual_seed(0))


def test_the_next_token_loss_is_that_of_all_logits_and_of_each_window_alone():
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab=40, dim=16, depth=2, heads=2, max_len=16, dropout=0.0)).double()
    model.eval()
    windows = text(5, 9)
    loss, nll = next_token_loss(model, WindowBatch(windows), 0.1)
    logits, wanted = model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()
    torch.testing.assert_close(loss, F.cross_entropy(logits, wanted, reduction="sum", label_smoothing=0.1))
    torch.testing.assert_close(nll, F.cross_entropy(logits, wanted, reduction="sum"))
    alone = sum(next_token_loss(model, WindowBatch(row[None]), 0.1)[0] for row in windows)
    torch.testing.assert_close(loss, alone)
    # Packed as one batch, or each window padded behind its end: later tokens do not change the loss of an earlier one.
    padded = model(F.pad(windows[:, :-1], (0, 4), value=1))[:, :8].flatten(0, 1)
    torch.testing.assert_close(nll, F.cross_entropy(padded, wanted, reduction="sum"))


def test_the_masked_token_loss_is_that_of_the_logits_at_masked_positions():
    torch.manual_seed(0)
    model = BERT(BERTConfig(vocab=40, dim=16, depth=2, heads=2, max_len=16)).double().eval()
    shown, truth = text(4, 9), text(4, 9).flip(0)
    chosen = torch.rand(4, 9, generator=torch.Generator().manual_seed(1)) < 0.4
    loss, nll = masked_token_loss(model, MaskedBatch(shown, chosen, truth), 0.1)
    logits, labels = model(shown).flatten(0, 1), truth.masked_fill(~chosen, -100).flatten()
    torch.testing.assert_close(nll, F.cross_entropy(logits, labels, reduction="sum"))
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels, reduction="sum", label_smoothing=0.1))


def test_the_text_class_loss_is_that_of_each_text_alone():
    torch.manual_seed(0)
    model = BERT(BERTConfig(vocab=40, dim=16, depth=2, heads=2, max_len=16, classes=3)).double().eval()
    rows, labels = text(3, 9), torch.tensor([0, 2, 1])
    mask = torch.ones(3, 1, 1, 9, dtype=torch.bool)
    mask[1, ..., 5:] = False
    loss, nll = text_class_loss(model, LabeledBatch(rows, mask, labels), 0.1)
    logits = torch.cat([model.classify(rows[:1]), model.classify(rows[1:2, :5]), model.classify(rows[2:])])
    torch.testing.assert_close(nll, F.cross_entropy(logits, labels, reduction="sum"))
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels, reduction="sum", label_smoothing=0.1))
