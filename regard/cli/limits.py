"""What a model will not be able to do, said before hours of training are spent on it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.config import Run

__all__ = ["limits"]

WITHOUT_ATTENTION = ("seq2seq", "word2vec", "elmo")  # families; a ResNet is shown by its class activation map


def limits(run: "Run") -> list[str]:
    """One line each if the model of a run cannot be exported, or has no attention to show."""
    from regard.interop.weights import describe_config

    found = []
    try:
        describe_config(run.family, run.model, run.untrained)
    except ValueError as reason:
        if run.family != "word2vec":  # exported in word2vec's own format
            found.append(f"note: regard export will not take this model: {reason}")
    if run.family in WITHOUT_ATTENTION:
        found.append(f"note: regard show will have nothing to show: a {run.family} has no attention")
    return found
