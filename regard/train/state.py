"""The training state that a checkpoint saves, besides weights and moments."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from regard.data.position import DataPosition

__all__ = ["TrainState"]


@dataclass
class TrainState:
    """Where a training stands; written to `state.json` with every checkpoint."""

    data: str  # digest of the training data
    machine: str  # bits are the same on the same machine only
    step: int = 0
    position: DataPosition = field(default_factory=DataPosition)  # of the next batch
    best: float = math.inf  # lowest validation loss
    best_step: int = 0
    not_improved: int = 0  # evaluations since then
    seconds: float = 0.0
    first_loss: float = 0.0  # of the first step, nats per prediction; 0 in checkpoints of earlier versions
    loss_sum: float = 0.0  # since the last line of the log, for its mean over the whole interval
    predictions: int = 0

    def to_json(self) -> dict[str, object]:
        """Plain values, in the order of the fields."""
        return dataclasses.asdict(self) | {"position": list(self.position)}

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> "TrainState":
        """The inverse of `to_json`; an unknown key is a `TypeError`, as is one without a default that is missing."""
        position = values["position"]
        assert isinstance(position, list)
        return cls(**{**values, "position": DataPosition(*position)})  # type: ignore[arg-type]

    def record(self, loss: float) -> None:
        """Note the validation loss of this step."""
        if loss < self.best:
            self.best, self.best_step, self.not_improved = loss, self.step, 0
        else:
            self.not_improved += 1

    def stopped_early(self, patience: int) -> bool:
        """Whether the validation loss has not improved for `patience` evaluations; 0 = never."""
        return bool(patience) and self.not_improved >= patience
