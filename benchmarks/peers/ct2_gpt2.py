"""CTranslate2's side of generate_speed.py: `generate_batch` of a GPT-2, the prompt read at once.

Its own converter needs transformers and torch; this one needs neither.
"""

import importlib.metadata
import json
import os
from pathlib import Path
from typing import Any

import ctranslate2
from ctranslate2.specs import common_spec, transformer_spec
from safetensors.numpy import load_file
from worker import serve, timed


def convert(theirs: Path, folder: Path) -> None:
    """Write CTranslate2's folder, in float32; what is loaded as int8 is quantised while loading."""
    config, weights = json.loads((theirs / "config.json").read_text()), load_file(theirs / "model.safetensors")
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        config["n_layer"], config["n_head"], pre_norm=True, activation=common_spec.Activation.GELUTanh
    )
    fill(spec.decoder, weights)
    spec.register_vocabulary([str(i) for i in range(config["vocab_size"])])
    spec.config.unk_token = spec.config.bos_token = spec.config.eos_token = "0"  # no words, and no end token
    spec.config.layer_norm_epsilon = config["layer_norm_epsilon"]
    spec.validate()
    spec.optimize()
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    part.mkdir(parents=True)
    spec.save(str(part))
    part.rename(folder)


def fill(spec: Any, weights: dict[str, Any]) -> None:
    """Assign each weight."""
    spec.scale_embeddings = False
    spec.embeddings.weight = spec.projection.weight = weights["transformer.wte.weight"]
    spec.position_encodings.encodings = weights["transformer.wpe.weight"]
    norm(spec.layer_norm, weights, "transformer.ln_f")
    for i, layer in enumerate(spec.layer):
        at = f"transformer.h.{i}"
        norm(layer.self_attention.layer_norm, weights, f"{at}.ln_1")
        linear(layer.self_attention.linear[0], weights, f"{at}.attn.c_attn")
        linear(layer.self_attention.linear[1], weights, f"{at}.attn.c_proj")
        norm(layer.ffn.layer_norm, weights, f"{at}.ln_2")
        linear(layer.ffn.linear_0, weights, f"{at}.mlp.c_fc")
        linear(layer.ffn.linear_1, weights, f"{at}.mlp.c_proj")


def linear(spec: Any, weights: dict[str, Any], name: str) -> None:
    spec.weight, spec.bias = (weights[f"{name}.weight"].T, weights[f"{name}.bias"])  # GPT-2 stores its matrices transposed


def norm(spec: Any, weights: dict[str, Any], name: str) -> None:
    spec.gamma, spec.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]


class Side:
    """What the requests ask of CTranslate2."""

    def prepare(self, folder: str, precision: str, prompt: list[int], tokens: int) -> None:
        """Convert if need be, and convert ids to its token strings."""
        version = importlib.metadata.version("ctranslate2")
        self.folder = Path(folder).with_name(f"{Path(folder).name}-ct2-{version}")
        if not self.folder.exists():
            convert(Path(folder), self.folder)
        self.precision, self.prompt, self.tokens = precision, [str(i) for i in prompt], tokens
        self.opened: dict[str, int] = {}

    def choose(self, intra_threads: int) -> None:
        """How many threads the next texts may use; a model opened anew writes once to warm up."""
        wanted = {"intra_threads": intra_threads}
        if wanted != self.opened:
            self.generator = ctranslate2.Generator(str(self.folder), compute_type=self.precision, **wanted)
            self.opened = wanted
            self.write()

    def write(self) -> list[int]:
        """Generate the requested number of tokens, without an end token."""
        [found] = self.generator.generate_batch(
            [self.prompt], max_length=self.tokens, end_token=[], include_prompt_in_result=False
        )
        return found.sequences_ids[0]

    def repeat(self) -> float:
        """Seconds of one text."""
        return timed(self.write)[0]

    def versions(self) -> dict[str, str]:
        """Of the libraries that decide the speed."""
        asked = {key: value for key, value in os.environ.items() if key.startswith("CT2_")}
        return {"ctranslate2": importlib.metadata.version("ctranslate2"), **asked}


if __name__ == "__main__":
    side = Side()
    serve({name: getattr(side, name) for name in ("prepare", "choose", "write", "repeat", "versions")})
