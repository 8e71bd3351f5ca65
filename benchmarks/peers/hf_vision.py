"""Hugging Face's side of vision_speed.py: an image classifier, its attention by the fused kernel if it has one."""

import torch
import transformers
from worker import serve, timed


class Side:
    """What the requests ask of transformers."""

    def prepare(self, folder: str, side: int) -> None:
        """Open the model; some have no fused attention."""
        kind = transformers.AutoModelForImageClassification
        try:
            model = kind.from_pretrained(folder, attn_implementation="sdpa")
        except ValueError:
            model = kind.from_pretrained(folder)
        self.model, self.side = model.eval().requires_grad_(False), side

    @torch.inference_mode()
    def logits(self, batch: int) -> list[list[float]]:
        """The logits of images that are the same on each side."""
        images = torch.randn(batch, 3, self.side, self.side, generator=torch.Generator().manual_seed(batch))
        return self.model(images).logits.tolist()

    @torch.inference_mode()
    def repeat(self, batch: int, rounds: int) -> float:
        """Seconds of one forward pass, the mean of several in a row."""
        images = torch.randn(batch, 3, self.side, self.side, generator=torch.Generator().manual_seed(batch))
        return timed(lambda: [self.model(images) for _ in range(rounds)])[0] / rounds

    def versions(self) -> dict[str, str]:
        """Of the libraries that decide the speed."""
        return {"transformers": transformers.__version__, "torch": torch.__version__}


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    side = Side()
    serve({name: getattr(side, name) for name in ("prepare", "logits", "repeat", "versions")})
