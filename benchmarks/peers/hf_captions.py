"""Hugging Face's side of caption_speed.py: `generate` of a VisionEncoderDecoderModel, its attention by torch's fused kernel."""

import torch
import transformers
from worker import serve, timed

SIDE, START = 224, 50_256  # pixels, the start token
SCALE = 3  # of cross-attention and positions: otherwise every caption repeats one token


class Side:
    """What the requests ask of transformers."""

    def prepare(self, folder: str, tokens: int) -> None:
        """Save a model with random weights, and open it."""
        save_random_model(folder)
        model = transformers.VisionEncoderDecoderModel.from_pretrained(folder, attn_implementation="sdpa")
        self.model = model.eval().requires_grad_(False)
        self.model.generation_config = transformers.GenerationConfig(decoder_start_token_id=START, pad_token_id=START)  # no end
        self.tokens = tokens

    def images(self, batch: int) -> torch.Tensor:
        """Images that are the same on each side."""
        return torch.randn(batch, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(batch))

    @torch.inference_mode()
    def logits(self, batch: int) -> list[list[list[float]]]:
        """The logits after a few tokens."""
        tokens = torch.randint(START, (batch, 4), generator=torch.Generator().manual_seed(0))
        return self.model(pixel_values=self.images(batch), decoder_input_ids=tokens).logits.tolist()

    @torch.inference_mode()
    def write(self, batch: int, beam: int) -> list[list[int]]:
        """Captions of the requested number of tokens, without an end token."""
        found = self.model.generate(self.images(batch), do_sample=False, num_beams=beam, max_new_tokens=self.tokens)
        return found[:, 1:].tolist()

    def repeat(self, batch: int, beam: int) -> float:
        """Seconds of one batch."""
        return timed(lambda: self.write(batch, beam))[0]

    def versions(self) -> dict[str, str]:
        """Of the libraries that decide the speed."""
        return {"transformers": transformers.__version__, "torch": torch.__version__}


def save_random_model(folder: str) -> None:
    """Write a ViT-B/16 with the smallest GPT-2; biases and norms are random too, so that a difference would show."""
    torch.manual_seed(1)
    decoder = transformers.GPT2Config(add_cross_attention=True, is_decoder=True)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(transformers.ViTConfig(), decoder)
    config.decoder_start_token_id = config.pad_token_id = config.eos_token_id = START
    model = transformers.VisionEncoderDecoderModel(config=config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.add_(torch.randn_like(p), alpha=0.02).mul_(SCALE if "crossattention" in name or "wpe" in name else 1)
    model.save_pretrained(folder)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    side = Side()
    serve({name: getattr(side, name) for name in ("prepare", "logits", "write", "repeat", "versions")})
