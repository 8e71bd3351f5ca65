"""R-Drop, https://arxiv.org/abs/2106.14448: two dropout masks of one model should agree.

Each example runs through the model twice, with different masks.  The paper's loss is CE₁ + CE₂ + α · (KL(p₁‖p₂) + KL(p₂‖p₁)) / 2;
here it is half of that, so that it compares with the plain one.

Shapes: N predictions, D width, V vocabulary.
"""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from regard.layers.linear import add_product, product
from regard.tasks.loss import ROWS

__all__ = ["linear_r_drop"]


def linear_r_drop(
    features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float, r_drop: float
) -> tuple[Tensor, Tensor]:
    """The output layer and R-Drop's loss in one, a few hundred rows at a time, without storing all the logits.

    features (2N, D): all predictions with the first mask, then all with the second; weight (V, D), bias (V,), labels (N,) → the
    loss, `r_drop` being its α, and the negative log-likelihood, both as sums over N predictions, of the mean of both passes.
    """
    loss, nll = _LinearRDrop.apply(features, weight, bias, labels, label_smoothing, r_drop)
    return loss, nll


class _LinearRDrop(torch.autograd.Function):
    """Loss and gradients of some predictions while their logits are in the cache.

    With δ = log p₁ - log p₂, the divergence J = ½ Σ (p₁ - p₂) δ has the gradient ½ (p₁ (δ - Σ p₁ δ) + p₁ - p₂) by the first
    logits, and the same with 1 and 2 exchanged, and -δ, by the second.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float,
                r_drop: float) -> tuple[Tensor, Tensor]:  # fmt: skip
        passes = features.unflatten(0, (2, -1))  # (2, N, D)
        vocab = len(weight)
        d_passes = torch.empty_like(passes)
        d_weight, d_bias = torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias)
        loss, nll = features.new_zeros(()), features.new_zeros(())

        for first in range(0, len(labels), ROWS // 2):
            # 1) both predictions of some rows
            x, y = passes[:, first : first + ROWS // 2].flatten(0, 1), labels[first : first + ROWS // 2]  # (2n, D), (n,)
            rows = y.repeat(2)[:, None]
            logits = product(x, weight)  # (2n, V)
            if bias is not None:
                logits += bias
            logp = logits.log_softmax(1)
            p = logp.exp()

            # 2) the loss
            own = -logp.gather(1, rows).sum()
            uniform = -logp.mean(1).sum()
            delta = logp[: len(y)] - logp[len(y) :]  # (n, V)
            apart = p[: len(y)] - p[len(y) :]
            kl = torch.cat(((p[: len(y)] * delta).sum(1), -(p[len(y) :] * delta).sum(1)))[:, None]  # (2n, 1)
            nll += own / 2
            loss += ((1 - label_smoothing) * own + label_smoothing * uniform + r_drop * kl.sum() / 2) / 2

            # 3) its gradient by the logits, times two: p - (1 - ε) · onehot - ε / V, and α · that of J
            d = p - label_smoothing / vocab
            d.scatter_add_(1, rows, d.new_full(rows.shape, label_smoothing - 1))
            half = r_drop / 2
            d[: len(y)] += half * (p[: len(y)] * (delta - kl[: len(y)]) + apart)
            d[len(y) :] -= half * (p[len(y) :] * (delta + kl[len(y) :]) + apart)

            # 4) by features and weights
            d_passes[:, first : first + ROWS // 2] = product(d, weight.T).unflatten(0, (2, -1)) / 2
            add_product(d_weight, d, x / 2)
            if d_bias is not None:
                d_bias += d.sum(0) / 2

        ctx.save_for_backward(d_passes.flatten(0, 1), d_weight, d_bias)  # type: ignore[arg-type]
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return (*(None if d is None else d * grad for d in ctx.saved_tensors), None, None, None)  # type: ignore[attr-defined]
