"""regard in generate_speed.py: token ids in and out, as in `TextGenerator.stream`, the model prepared as by `regard.load`."""

import importlib.metadata
from pathlib import Path
from typing import Any

import torch
from worker import serve, timed

from regard.decode.fast import decoder
from regard.decode.precision import PrecisionProbe
from regard.decode.search import argmax, stream
from regard.interop.hf import import_model


class Side:
    """What the requests ask of regard."""

    def prepare(self, folder: str, precision: str, prompt: list[int], tokens: int) -> None:
        """Open the model in its precision."""
        self.prompt, self.tokens = prompt, tokens
        with PrecisionProbe(precision) as probe:
            _, _, model = import_model(Path(folder))
            self.model: Any = probe.passed(model)

    def choose(self) -> None:
        """There is nothing to choose: torch has a thread for each core, as in any use of regard."""

    def write(self) -> list[int]:
        """Exactly the number of tokens asked for, without an end token."""
        source = torch.tensor([self.prompt])
        return list(stream(decoder(self.model), source, argmax, bos=source[:, -1], limit=self.tokens))

    def repeat(self) -> float:
        """Seconds of one text."""
        return timed(self.write)[0]

    def versions(self) -> dict[str, str]:
        """Of the libraries that decide the speed."""
        return {"regard": importlib.metadata.version("regard"), "torch": torch.__version__}


if __name__ == "__main__":
    side = Side()
    serve({name: getattr(side, name) for name in ("prepare", "choose", "write", "repeat", "versions")})
