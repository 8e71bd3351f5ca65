"""Coverage of a source by cross-attention: a low value says that a translation left something out.

A source token is covered by the attention that all steps of the decoder give it, at most 1; coverage is the mean of its tokens.
This is the sum inside the coverage penalty of https://arxiv.org/abs/1609.08144, equation 14, without its logarithm.  The weights
are the mean of all layers and heads; the source's end token is left out and the rest scaled to sum to one at each step.

Shapes: B batch, H heads, T target and S source tokens, each with one special token.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.data.text.batches import pad
from regard.data.text.tokenizer import SpecialTokens
from regard.layers.tap import attention_modules, watch

__all__ = ["attention_to_source", "source_coverage"]

PAIRS = 16  # sentence pairs read at once

Special = tuple[SpecialTokens, SpecialTokens]  # of the sources and of the targets


def source_coverage(model: nn.Module, special: Special, sources: Sequence[list[int]],
                    targets: Sequence[list[int]]) -> list[float | None]:  # fmt: skip
    """The coverage of each source while the model reads its translation; None without cross-attention, or of no token."""
    weights = attention_to_source(model, special, sources, targets)
    return [None if attended is None else _coverage(attended) for attended in weights]


@torch.inference_mode()
def attention_to_source(model: nn.Module, special: Special, sources: Sequence[list[int]],
                        targets: Sequence[list[int]]) -> list[Tensor | None]:  # fmt: skip
    """The attention (T + 1, S) of the steps of each translation, the last one that of its end, to the tokens of its source."""
    names = [name for name in attention_modules(model) if name.startswith("decoder") and name.endswith("cross")]
    found: list[Tensor | None] = [None] * len(sources)
    rows = [row for row, ids in enumerate(sources) if ids]
    device = next(model.parameters()).device
    for first in range(0, len(rows) if names else 0, PAIRS):
        some = rows[first : first + PAIRS]
        source = pad([sources[row] for row in some], special[0]).to(device)
        # no end token in the target: each token predicts the next
        target = pad([[special[1].bos, *targets[row]] for row in some], special[1])[:, :-1].to(device)
        with watch(model) as recorded:
            model.features(source, target)  # type: ignore[operator]
        # a Transformer attends with all tokens in one call, a recurrent decoder with one token a call
        weights = torch.stack([torch.cat(recorded[name], -2).mean(1) for name in names]).mean(0)  # (B, T, S)
        for row, attended in zip(some, weights, strict=True):
            found[row] = attended[: len(targets[row]) + 1, : len(sources[row])]
    return found


def _coverage(attended: Tensor) -> float:
    """Weights (T, S) of the steps of one translation over the tokens of its source."""
    steps = attended / attended.sum(-1, keepdim=True).clamp(min=1e-9)
    return float(steps.sum(0).clamp(max=1).mean())
