"""Hugging Face's side of generate_speed.py: `generate` of a GPT2LMHeadModel, its attention by torch's fused kernel."""

import torch
import transformers
from worker import serve, timed


class Side:
    """What the requests ask of transformers."""

    def prepare(self, folder: str, precision: str, prompt: list[int], tokens: int) -> None:
        """Open the model."""
        if precision != "float32":
            raise ValueError(f"transformers itself has no {precision} for a CPU")
        self.model = transformers.GPT2LMHeadModel.from_pretrained(folder, attn_implementation="sdpa").eval()
        self.model.generation_config = transformers.GenerationConfig(do_sample=False, max_new_tokens=tokens)  # no end
        self.prompt = prompt

    def choose(self, threads: int) -> None:
        """How many threads the next texts may use."""
        torch.set_num_threads(threads)

    @torch.inference_mode()
    def write(self) -> list[int]:
        """Generate the requested number of tokens, without an end token."""
        source = torch.tensor([self.prompt])
        [found] = self.model.generate(source, attention_mask=torch.ones_like(source)).tolist()
        return found[len(self.prompt) :]

    def repeat(self) -> float:
        """Seconds of one text."""
        return timed(self.write)[0]

    def versions(self) -> dict[str, str]:
        """Of the libraries that decide the speed."""
        return {"transformers": transformers.__version__, "torch": torch.__version__}


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    side = Side()
    serve({name: getattr(side, name) for name in ("prepare", "choose", "write", "repeat", "versions")})
