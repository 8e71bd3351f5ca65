"""(model, batch) → loss and numbers: what differs between families when they train.

Each returns the sum over all that is predicted of the smoothed loss, to be minimised, and of the negative log-likelihood.

Shapes: N tokens to predict, D width, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.data.image.batches import ImageBatch
from regard.data.text.batches import LabeledBatch, PairBatch
from regard.data.text.windows import MaskedBatch, WindowBatch

__all__ = ["classify", "guess", "linear_cross_entropy", "look", "next_token", "translate"]

ROWS = 512  # tokens whose logits are held at once


def translate(model: Any, batch: PairBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Teacher forcing: each target token is predicted from the source and the true ones before it."""
    said, next_one = batch.target[:, :-1], batch.target[:, 1:]
    real = next_one != batch.pad
    features = model.features(batch.source, said)[real]  # (N, D): no work on padding
    return linear_cross_entropy(features, model.output.weight, model.output.bias, next_one[real], label_smoothing)


def next_token(model: Any, batch: WindowBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Each token of a text is predicted from those before it: a GPT."""
    features = model.features(batch.text[:, :-1]).flatten(0, 1)  # (N, D)
    return linear_cross_entropy(
        features, model.output.weight, model.output.bias, batch.text[:, 1:].flatten(), label_smoothing
    )


def guess(model: Any, batch: MaskedBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Tokens that were chosen, and mostly hidden, are guessed from all others: a BERT."""
    features = model.lm_head.features(model.encode(batch.shown)[batch.chosen])  # (N, D): no work on what is not guessed
    output = model.lm_head.output
    return linear_cross_entropy(features, output.weight, output.bias, batch.truth[batch.chosen], label_smoothing)


def classify(model: Any, batch: LabeledBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """The class of each text."""
    logits = model.classify(batch.text, batch.mask)  # (B, classes)
    nll = F.cross_entropy(logits, batch.label, reduction="sum")
    return F.cross_entropy(logits, batch.label, reduction="sum", label_smoothing=label_smoothing), nll.detach()


def look(model: Any, batch: ImageBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """The class of each picture; of two that were mixed, each by its part."""
    logits = model(batch.image)  # (B, classes)
    first, second = (
        F.cross_entropy(logits, label, reduction="none", label_smoothing=label_smoothing)
        for label in (batch.label, batch.other)
    )
    nll = F.cross_entropy(logits.detach(), batch.label, reduction="sum")
    return (batch.part * first + (1 - batch.part) * second).sum(), nll


def linear_cross_entropy(
    features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The output layer and its cross-entropy in one, without ever holding all the logits.

    features (N, D), weight (V, D), bias (V,), labels (N,) → the sum of (1 - ε) · nll + ε · (mean over V of
    -log p), section 5.4 of https://arxiv.org/abs/1706.03762, and the sum of the nll alone.
    """
    loss, nll = _LinearCrossEntropy.apply(features, weight, bias, labels, label_smoothing, torch.is_grad_enabled())
    return loss, nll


class _LinearCrossEntropy(torch.autograd.Function):
    """Loss and gradients a few hundred rows at a time, while their logits are still in the cache.

    With p = softmax(logits) the gradient of a row's logits is p - (1 - ε) · onehot - ε / V.  The last term is the same
    for all rows and tokens, so it never touches the (rows, V) block: it is added to the products at the end.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        label_smoothing: float,
        learning: bool,
    ) -> tuple[Tensor, Tensor]:
        vocab = len(weight)
        learning = learning and any(ctx.needs_input_grad)
        to_features = torch.empty_like(features) if learning else features.new_empty(0)
        to_weight = torch.empty_like(weight) if learning else weight.new_empty(0)
        to_bias = torch.zeros_like(bias) if learning and bias is not None else None
        weight_sum = weight.sum(0)  # (D,): Σ over V of the logits is one product with it
        bias_sum = 0.0 if bias is None else bias.sum()
        nll, spread = features.new_zeros(()), features.new_zeros(())
        block = features.new_empty(min(ROWS, len(features)), vocab)
        for first in range(0, len(features), ROWS):
            x, y = features[first : first + ROWS], labels[first : first + ROWS, None]  # (n, D), (n, 1)
            logits = torch.mm(x, weight.T, out=block[: len(x)])  # (n, V)
            if bias is not None:
                logits += bias
            top = logits.amax(1, keepdim=True)
            gold = logits.gather(1, y)
            odds = logits.sub_(top).exp_()  # in place: the logits are not needed again
            total = odds.sum(1, keepdim=True)  # (n, 1)
            blocked_logsumexp = top + total.log()
            nll += (blocked_logsumexp - gold).sum()
            spread += (blocked_logsumexp.squeeze(1) - (x @ weight_sum + bias_sum) / vocab).sum()
            if learning:
                odds.scatter_add_(1, y, total * (label_smoothing - 1))
                scaled = x / total
                to_features[first : first + ROWS] = (odds @ weight) / total - weight_sum * (label_smoothing / vocab)
                to_weight.addmm_(odds.T, scaled, beta=0 if first == 0 else 1)
                if to_bias is not None:
                    to_bias.addmv_(odds.T, (1 / total).squeeze(1))
        if learning:
            if not len(features):
                to_weight.zero_()  # no block has written it
            to_weight -= features.sum(0) * (label_smoothing / vocab)
            if to_bias is not None:
                to_bias -= len(features) * label_smoothing / vocab
            ctx.save_for_backward(to_features, to_weight, to_bias)
        loss = (1 - label_smoothing) * nll + label_smoothing * spread
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        to_features, to_weight, to_bias = ctx.saved_tensors
        return (
            to_features * grads[0],
            to_weight * grads[0],
            None if to_bias is None else to_bias * grads[0],
            None,
            None,
            None,
        )
