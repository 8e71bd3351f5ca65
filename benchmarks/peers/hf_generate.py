"""Hugging Face's side of translation.py: `generate` of the MarianMTModel that to_marian.py wrote."""

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from worker import each, serve

PAD, EOS = 0, 2
CLOSE = 1e-4  # two logits this near are equal but for rounding


def pad(sentences: list[list[int]]) -> Tensor:
    """Sentences of token ids → one padded tensor (B, S), with end tokens."""
    rows = [torch.tensor([*ids, EOS]) for ids in sentences]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


class Side:
    """What the requests ask of transformers."""

    def prepare(self, marian: str, sources: list[list[int]], limits: list[int], **_: Any) -> None:
        """Open the model and compare its logits with regard's."""
        self.model = transformers.MarianMTModel.from_pretrained(marian, attn_implementation="sdpa").eval()
        self.sources, self.limits, self.cores = sources, limits, torch.get_num_threads()
        self.check(load_file(Path(marian) / "probe.safetensors"))

    @torch.inference_mode()
    def check(self, probe: dict[str, Tensor]) -> None:
        """The model must be the same function as regard's."""
        source, target = probe["source"], probe["target"]
        there = (source != PAD).long()
        logits = self.model(input_ids=source, attention_mask=there, decoder_input_ids=target).logits
        off = (logits - probe["logits"])[target != PAD].abs().max().item()
        if off > CLOSE:
            raise RuntimeError(f"a logit is {off:.1e} off regard's; more than {CLOSE} is no rounding")

    def choose(self, beam: int, precision: str, rows: int, alone: bool, settings: dict[str, Any]) -> str:
        """Set what the next repeats do; return the reason if it is impossible."""
        if precision != "float32":
            return f"transformers itself has no {precision} for a CPU"
        torch.set_num_threads(settings.get("threads", self.cores))
        self.how = {"num_beams": beam, "do_sample": False, "use_cache": True}
        if beam > 1:
            self.how |= {"early_stopping": True, "length_penalty": 1.0}
        self.order = list(range(rows)) if alone else sorted(range(rows), key=lambda row: -len(self.sources[row]))
        size = 1 if alone else settings["batch"]
        cut = [self.order[i : i + size] for i in range(0, rows, size)]
        self.groups = [[batch] for batch in cut] if alone else [cut]
        return ""

    @torch.inference_mode()
    def translate(self, batches: list[list[int]]) -> list[Tensor]:
        found = []
        for rows in batches:
            source = pad([self.sources[row] for row in rows])
            there, most = (source != PAD).long(), max(self.limits[row] for row in rows)
            found.append(self.model.generate(source, attention_mask=there, max_new_tokens=most, **self.how))
        return found

    def repeat(self) -> dict[str, list[float]]:
        """Seconds of all sentences at once, or of each alone."""
        seconds, self.found = each(self.translate, self.groups)
        return {"seconds": seconds}

    def answers(self) -> list[list[int]]:
        """The tokens that the last repeat found, without start and end."""
        outputs = [row[1:] for group in self.found for batch in group for row in batch.tolist()]
        placed = dict(zip(self.order, outputs, strict=True))
        return [ids[: ids.index(EOS)] if EOS in ids else ids for _, ids in sorted(placed.items())]

    def versions(self) -> dict[str, str]:
        """Of the libraries that decide the speed."""
        return {"transformers": transformers.__version__, "torch": torch.__version__}


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    side = Side()
    serve({name: getattr(side, name) for name in ("prepare", "choose", "repeat", "answers", "versions")})
