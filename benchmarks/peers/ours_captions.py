"""regard's side of caption_speed.py: images in, tokens out, as in `ImageCaptioner.caption`, on a model from `regard.load`."""

import importlib.metadata
from pathlib import Path

import torch
from worker import serve, timed

from regard.decode import search
from regard.decode.fast import decoder
from regard.decode.precision import PrecisionProbe
from regard.interop.hf import import_model
from regard.layers.conv import fold_batch_norms

SIDE, START, NO_END = 224, 50_256, -1  # pixels, the start token, an end token that no step can choose


class Side:
    """What the requests ask of regard."""

    def prepare(self, folder: str, tokens: int) -> None:
        """Open the model."""
        with PrecisionProbe("float32") as probe:
            _, _, model = import_model(Path(folder))
            self.model = fold_batch_norms(probe.passed(model.eval()))
        self.tokens = tokens

    def images(self, batch: int) -> torch.Tensor:
        """Images that are the same on each side."""
        return torch.randn(batch, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(batch))

    @torch.inference_mode()
    def logits(self, batch: int) -> list[list[list[float]]]:
        """The logits after a few tokens."""
        tokens = torch.randint(START, (batch, 4), generator=torch.Generator().manual_seed(0))
        return self.model(self.images(batch), tokens).tolist()

    def write(self, batch: int, beam: int) -> list[list[int]]:
        """Captions of the requested number of tokens, without an end token."""
        images, limits = self.images(batch), torch.full((batch,), self.tokens)
        steps, ends = decoder(self.model), {"bos": START, "eos": NO_END}
        if beam == 1:
            return [caption.tokens for caption in search.greedy(steps, images, limits, **ends)]
        return [best.tokens for best, *_ in search.beam(steps, images, limits, width=beam, **ends)]

    def repeat(self, batch: int, beam: int) -> float:
        """Seconds of one batch."""
        return timed(lambda: self.write(batch, beam))[0]

    def versions(self) -> dict[str, str]:
        """Of the libraries that decide the speed."""
        return {"regard": importlib.metadata.version("regard"), "torch": torch.__version__}


if __name__ == "__main__":
    side = Side()
    serve({name: getattr(side, name) for name in ("prepare", "logits", "write", "repeat", "versions")})
