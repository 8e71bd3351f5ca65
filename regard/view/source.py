"""What a drawing is of: the run, the file, and how long the model was trained."""

from pathlib import Path

from regard.data.terminal import printable
from regard.tasks.origin import Loaded, folder_of
from regard.train.inventory import RunSummary, summarize

__all__ = ["FEW_STEPS", "describe_source", "describe_training", "few_steps", "name_of"]

FEW_STEPS = 100  # attention after fewer training steps is nearly that of random weights


def name_of(predictor: Loaded) -> str:
    """The name of the run folder, or of the run if the folder is not known."""
    folder = folder_of(predictor)
    return printable(folder.resolve().name if folder else predictor.run.name, keep="")


def describe_source(predictor: Loaded, what: object) -> str:
    """The file that was given, if it was one, and how long the model was trained; empty if neither is known."""
    file = printable(Path(what).name, keep="") if isinstance(what, str | Path) else ""
    return ", ".join(text for text in (file, describe_training(predictor)) if text)


def describe_training(predictor: Loaded) -> str:
    """The number of training steps and the first score on validation data, as the log has them; empty without a log."""
    found = _trained(predictor)
    if found is None:
        return ""
    name, value = next(iter(found.scores.items()), ("loss", found.loss))
    how = "fine-tuned" if predictor.run.init else "trained"
    score = "" if value is None else f", validation {name} {value:.{2 if name == 'loss' else 1}f}"
    return f"{how} for {found.step:,} step{'' if found.step == 1 else 's'}{score}"


def few_steps(predictor: Loaded) -> str:
    """A warning if a model was trained from random weights for fewer than `FEW_STEPS` steps."""
    found = _trained(predictor)
    if found is None or found.step >= FEW_STEPS or predictor.run.init or predictor.run.init_encoder:
        return ""
    about = f"{name_of(predictor)} was {describe_training(predictor)}"
    return f"{about}; maps after fewer than {FEW_STEPS} steps show little that was learned"


def _trained(predictor: Loaded) -> RunSummary | None:
    folder = folder_of(predictor)
    found = summarize(folder) if folder else None
    return found if found is not None and found.step else None
