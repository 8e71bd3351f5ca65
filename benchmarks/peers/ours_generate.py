"""regard's side of generate_speed.py: tokens in, tokens out, as in `TextGenerator.stream`, on a model from `regard.load`."""

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
        with PrecisionProbe(precision) as trial:
            _, _, model = import_model(Path(folder))
            self.model: Any = trial.passed(model)

    def choose(self) -> None:
        """No settings: torch has one thread per core, as always in regard."""

    def write(self) -> list[int]:
        """Generate the requested number of tokens, without an end token."""
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
