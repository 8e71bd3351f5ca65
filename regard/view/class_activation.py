"""Where a convolutional network without attention sees its class: class activation maps.

Zhou et al. 2016, https://arxiv.org/abs/1512.04150.  Such a network classifies the mean of its last feature map, so the logit of a
class is the mean of what each position adds to it.  Shapes: D width, Y X rows and columns of the last feature map.
"""

import torch
from torch import Tensor

from regard.models.resnet import ResNet

__all__ = ["class_activation", "evidence"]


@torch.inference_mode()
def class_activation(model: ResNet, image: Tensor, label: int) -> Tensor:
    """What each position adds to the logit of a class; its mean plus the bias is the logit: (1, C, ...) → (Y, X)."""
    features = model.encode(image)[0]  # (D, Y, X)
    return torch.einsum("d,dyx->yx", model.classifier.weight[label], features)


def evidence(activation: Tensor) -> Tensor:
    """The share of each position in all that speaks for a class; equal shares if nothing does: (Y, X) → (Y, X)."""
    positive = activation.clamp(min=0)
    total = positive.sum()
    return positive / total if total > 0 else torch.full_like(activation, 1 / activation.numel())
