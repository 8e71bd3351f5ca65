"""Cross-entropy with label smoothing, for the output layer of a language model and for classes.

Each loss returns two sums over all predictions: the smoothed loss, to be minimised, and the negative log-likelihood.

Shapes: N predictions, D width, V vocabulary, C classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from regard.layers.linear import add_product, product

__all__ = ["class_cross_entropy", "linear_cross_entropy", "mixup_cross_entropy"]

ROWS = 512  # predictions whose logits are in memory at once


def class_cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Cross-entropy of classes: logits (N, C), labels (N,)."""
    nll = F.cross_entropy(logits.detach(), labels, reduction="sum")
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing), nll


def mixup_cross_entropy(
    logits: Tensor, labels: Tensor, others: Tensor, part: Tensor, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """The same for mixtures of two images: `part` (N,) is of the class in `labels`, the rest of that in `others`."""
    first, second = (
        F.cross_entropy(logits, label, reduction="none", label_smoothing=label_smoothing) for label in (labels, others)
    )
    nll = F.cross_entropy(logits.detach(), labels, reduction="sum")
    return (part * first + (1 - part) * second).sum(), nll


def linear_cross_entropy(
    features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The output layer and its cross-entropy in one, without ever storing all the logits.

    features (N, D), weight (V, D), bias (V,), labels (N,) → the sum of (1 - ε) · nll + ε · (mean over V of -log p), section 5.4
    of https://arxiv.org/abs/1706.03762, and the sum of the nll alone.
    """
    loss, nll = _LinearCrossEntropy.apply(features, weight, bias, labels, label_smoothing, torch.is_grad_enabled())
    return loss, nll


class _LinearCrossEntropy(torch.autograd.Function):
    """Loss and gradients a few hundred rows at a time, while their logits are still in the cache.

    With p = softmax(logits) the gradient of a row's logits is p - (1 - ε) · onehot - ε / V.  The last term is the same for all
    rows and tokens, so it never touches the (rows, V) block: it is added to the products at the end.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float,
                grad_enabled: bool) -> tuple[Tensor, Tensor]:  # fmt: skip
        vocab = len(weight)
        backward = grad_enabled and any(ctx.needs_input_grad)  # type: ignore[attr-defined]
        d_features = torch.empty_like(features) if backward else features.new_empty(0)
        d_weight = torch.zeros_like(weight) if backward else weight.new_empty(0)
        d_bias = torch.zeros_like(bias) if backward and bias is not None else None
        weight_sum = weight.sum(0)  # (D,): Σ over V of the logits is one product with it
        bias_sum = 0.0 if bias is None else bias.sum()
        nll, uniform = features.new_zeros(()), features.new_zeros(())

        for first in range(0, len(features), ROWS):
            # 1) logits of some rows
            x, y = features[first : first + ROWS], labels[first : first + ROWS, None]  # (n, D), (n, 1)
            logits = product(x, weight)  # (n, V)
            if bias is not None:
                logits += bias

            # 2) their loss: exponentials in place, the logits are not needed again
            top = logits.amax(1, keepdim=True)
            gold = logits.gather(1, y)
            exp = logits.sub_(top).exp_()
            total = exp.sum(1, keepdim=True)  # (n, 1)
            logsumexp = top + total.log()
            nll += (logsumexp - gold).sum()
            uniform += (logsumexp.squeeze(1) - (x @ weight_sum + bias_sum) / vocab).sum()

            # 3) their gradients, but for the ε / V of the smoothing in the weights
            if backward:
                exp.scatter_add_(1, y, total * (label_smoothing - 1))
                d_features[first : first + ROWS] = product(exp, weight.T) / total - weight_sum * (label_smoothing / vocab)
                add_product(d_weight, exp, x / total)
                if d_bias is not None:
                    d_bias.addmv_(exp.T, (1 / total).squeeze(1))

        # 4) the ε / V, the same for all rows
        if backward:
            d_weight -= features.sum(0) * (label_smoothing / vocab)
            if d_bias is not None:
                d_bias -= len(features) * label_smoothing / vocab
            ctx.save_for_backward(d_features, d_weight, d_bias)  # type: ignore[arg-type]
        ctx.mark_non_differentiable(nll)
        return (1 - label_smoothing) * nll + label_smoothing * uniform, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return (*(None if d is None else d * grad for d in ctx.saved_tensors), None, None, None)  # type: ignore[attr-defined]
