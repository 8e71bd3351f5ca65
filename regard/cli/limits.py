"""What a model will not be able to do, said before hours of training are spent on it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.config import Run

__all__ = ["describe_limits"]


def describe_limits(run: "Run") -> list[str]:
    """One line each if the model of a run cannot be exported, or has nothing to show."""
    from regard.interop.weights import describe_config
    from regard.layers.tap import attention_modules
    from regard.models import FAMILIES, build_without_memory
    from regard.models.resnet import ResNet

    found = []
    try:
        describe_config(run.family, run.model, run.untrained)
    except ValueError as reason:
        if run.family != "word2vec":  # exported in word2vec's own format
            found.append(f"note: regard export will not take this model: {reason}")
    model = build_without_memory(lambda: FAMILIES[run.family].build(run.model))
    if not attention_modules(model) and not isinstance(model, ResNet):  # a ResNet is shown by its class activation map
        found.append(f"note: regard show will have nothing to show: a {run.family} has no attention")
    return found
