"""R-Drop's loss and gradients equal its formula on all logits; it trains, where dropout makes two passes differ."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from regard.data.text.batches import PairBatch
from regard.layers import linear as linear_file
from regard.models.transformer import Transformer, TransformerConfig
from regard.tasks import r_drop as r_drop_file
from regard.tasks.r_drop import linear_r_drop
from regard.tasks.translation import sequence_loss, sequence_r_drop

CONFIG = TransformerConfig(vocab=40, dim=16, heads=2, depth=1, mlp_ratio=2, dropout=0.3, max_len=20)


def problem(rows, bias, dtype):
    torch.manual_seed(rows)
    leaves = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in ((2 * rows, 16), (37, 16), (37,))]
    return leaves if bias else [*leaves[:2], None], torch.randint(0, 37, (rows,))


def formula(leaves, labels, label_smoothing, weight):
    logits = F.linear(*leaves)
    first, second = logits.log_softmax(1).chunk(2)
    both = F.cross_entropy(logits, labels.repeat(2), label_smoothing=label_smoothing, reduction="sum")
    divergence = sum(F.kl_div(a, b, reduction="sum", log_target=True) for a, b in ((first, second), (second, first)))
    return (both + weight * divergence / 2) / 2


@pytest.mark.parametrize("by_onednn", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("rows", "weight"), [(1, 5.0), (11, 0.0), (11, 5.0)])
def test_value_and_gradients_equal_the_formula(rows, weight, label_smoothing, bias, by_onednn, monkeypatch):
    monkeypatch.setattr(r_drop_file, "ROWS", 8)  # eleven predictions in blocks of four, four and three
    monkeypatch.setattr(linear_file, "ONEDNN_MIN", 0)
    monkeypatch.setattr(linear_file, "TRAINS_BY_ONEDNN", by_onednn and linear_file.HAS_ONEDNN)
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-4)):
        leaves, labels = problem(rows, bias, dtype)
        given = [leaf for leaf in leaves if leaf is not None]
        loss, nll = linear_r_drop(*leaves, labels, label_smoothing, weight)
        wanted = formula(leaves, labels, label_smoothing, weight)
        torch.testing.assert_close(loss, wanted, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(nll, formula(leaves, labels, 0.0, 0.0), rtol=tolerance, atol=tolerance)
        found, exact = (torch.autograd.grad(3 * value, given) for value in (loss, wanted))
        torch.testing.assert_close(found, exact, rtol=tolerance, atol=10 * tolerance)
        assert not nll.requires_grad


def batch():
    torch.manual_seed(0)
    source, target = torch.randint(4, 40, (3, 5)), torch.randint(4, 40, (3, 7))
    source[0, 3:], target[1, 4:], target[:, 0] = 0, 0, 1
    return PairBatch(source, target)


def test_without_dropout_it_is_the_plain_loss():
    model = Transformer(replace(CONFIG, dropout=0.0))
    plain, r_drop = sequence_loss(model, batch(), 0.1), sequence_r_drop(model, batch(), 0.1, 5.0)
    torch.testing.assert_close(r_drop, plain)
    parameters = list(model.parameters())
    grads = [torch.autograd.grad(loss, parameters) for loss, _ in (plain, r_drop)]
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-5)


def test_training_with_it_brings_two_passes_together():
    def divergence(model):
        torch.manual_seed(1)
        with torch.no_grad():  # the loss without its cross-entropies
            return float(sequence_r_drop(model, batch(), 0.0, 1.0)[0] - sequence_r_drop_nll(model))

    def sequence_r_drop_nll(model):
        torch.manual_seed(1)
        return sequence_r_drop(model, batch(), 0.0, 1.0)[1]

    ends = {}
    for weight in (0.0, 5.0):
        torch.manual_seed(0)
        model = Transformer(CONFIG).train()
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(40):
            optimizer.zero_grad()
            sequence_r_drop(model, batch(), 0.1, weight)[0].backward()
            optimizer.step()
        ends[weight] = divergence(model)
    assert 0 < ends[5.0] < ends[0.0] / 2
