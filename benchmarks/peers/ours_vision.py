"""regard's side of vision_speed.py: images in, logits out, the model as `regard.load` opens it."""

import importlib.metadata
from pathlib import Path

import torch
from worker import serve, timed

from regard.interop.hf import import_model
from regard.layers.conv import fold_batch_norms


class Side:
    """What the requests ask of regard."""

    def prepare(self, folder: str, side: int) -> None:
        """Open the model."""
        _, _, model = import_model(Path(folder))
        self.model, self.side = fold_batch_norms(model.eval()), side

    @torch.inference_mode()
    def logits(self, batch: int) -> list[list[float]]:
        """The logits of images that are the same on each side."""
        images = torch.randn(batch, 3, self.side, self.side, generator=torch.Generator().manual_seed(batch))
        return self.model(images).tolist()

    @torch.inference_mode()
    def repeat(self, batch: int, rounds: int) -> float:
        """Seconds of one forward pass, the mean of several in a row."""
        images = torch.randn(batch, 3, self.side, self.side, generator=torch.Generator().manual_seed(batch))
        return timed(lambda: [self.model(images) for _ in range(rounds)])[0] / rounds

    def versions(self) -> dict[str, str]:
        """Of the libraries that decide the speed."""
        return {"regard": importlib.metadata.version("regard"), "torch": torch.__version__}


if __name__ == "__main__":
    side = Side()
    serve({name: getattr(side, name) for name in ("prepare", "logits", "repeat", "versions")})
