"""CTranslate2's side of translation.py.

Its own converter for Marian does not fit: it drops the last token of the vocabulary and starts from a zero embedding, as
models of OPUS do.  So the specification is filled here, by hand, from the folder that to_marian.py wrote.
"""

import importlib.metadata
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.specs import common_spec, transformer_spec
from safetensors.numpy import load_file
from worker import each, serve

BOS, EOS, UNK = "<s>", "</s>", "<unk>"
CLOSE = 1e-4  # two log-probabilities this near are equal but for rounding


def convert(marian: Path, folder: Path) -> None:
    """Write CTranslate2's folder, in float32; what is loaded as int8 is quantised while loading."""
    config, weights = json.loads((marian / "config.json").read_text()), load_file(marian / "model.safetensors")
    tokens = json.loads((marian / "tokens.json").read_text(encoding="utf-8"))
    heads, depths = config["encoder_attention_heads"], (config["encoder_layers"], config["decoder_layers"])
    spec = transformer_spec.TransformerSpec.from_config(depths, heads, pre_norm=False, activation=common_spec.Activation.RELU)
    fill(spec, config, weights)
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = UNK, BOS, EOS
    spec.config.decoder_start_token = BOS
    spec.config.add_source_bos, spec.config.add_source_eos = False, False  # the end is passed with the tokens
    spec.config.layer_norm_epsilon = 1e-5
    spec.validate()
    spec.optimize()
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    spec.save(str(part))
    part.rename(folder)


def fill(spec: Any, config: dict[str, Any], weights: dict[str, Any]) -> None:
    """Assign each weight."""
    table = positions(config["max_position_embeddings"], config["d_model"])
    for name, side in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        side.scale_embeddings = math.sqrt(config["d_model"])
        side.position_encodings.encodings = table
        embeddings = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embeddings.weight = weights["model.shared.weight"]
        for i, layer in enumerate(side.layer):
            at = f"model.{name}.layers.{i}"
            attend(layer.self_attention, weights, f"{at}.self_attn", ["qkv"])
            if name == "decoder":
                attend(layer.attention, weights, f"{at}.encoder_attn", ["q", "kv"])
            linear(layer.ffn.linear_0, weights, [f"{at}.fc1"])
            linear(layer.ffn.linear_1, weights, [f"{at}.fc2"])
            norm(layer.ffn.layer_norm, weights, f"{at}.final_layer_norm")
    spec.decoder.projection.weight = weights["model.shared.weight"]


def attend(spec: Any, weights: dict[str, Any], at: str, groups: list[str]) -> None:
    """One attention; projections of a group are one matrix."""
    for layer, group in zip(spec.linear, groups, strict=False):
        linear(layer, weights, [f"{at}.{letter}_proj" for letter in group])
    linear(spec.linear[-1], weights, [f"{at}.out_proj"])
    norm(spec.layer_norm, weights, f"{at}_layer_norm")


def linear(spec: Any, weights: dict[str, Any], names: list[str]) -> None:
    spec.weight = np.concatenate([weights[f"{name}.weight"] for name in names])
    spec.bias = np.concatenate([weights[f"{name}.bias"] for name in names])


def norm(spec: Any, weights: dict[str, Any], name: str) -> None:
    spec.gamma, spec.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]


def positions(length: int, dim: int) -> Any:
    """Marian's table: the sines, then the cosines; (T, D)."""
    rate = np.exp(np.arange(0, dim, 2) * (-math.log(10_000.0) / dim))
    angle = np.arange(length)[:, None] * rate
    return np.concatenate((np.sin(angle), np.cos(angle)), axis=1).astype(np.float32)


class Side:
    """What the requests ask of CTranslate2."""

    def prepare(self, marian: str, sources: list[list[int]], limits: list[int], **_: Any) -> None:
        """Convert if need be, compare log-probabilities with regard's, and turn ids into its token strings."""
        self.tokens = json.loads((Path(marian) / "tokens.json").read_text(encoding="utf-8"))
        version = importlib.metadata.version("ctranslate2")
        self.folder = Path(marian).parent / f"{Path(marian).name.replace('marian', 'ct2')}-{version}"
        if not self.folder.exists():
            convert(Path(marian), self.folder)
        self.sources, self.limits = [[*(self.tokens[i] for i in ids), EOS] for ids in sources], limits
        self.opened: dict[str, Any] = {}
        self.check(load_file(Path(marian) / "probe.safetensors"))

    def check(self, probe: dict[str, Any]) -> None:
        """The converted model must be the same function as regard's."""
        translator = ctranslate2.Translator(str(self.folder), compute_type="float32", intra_threads=1)
        for source, target, logits in zip(probe["source"], probe["target"], probe["logits"], strict=True):
            output, after = [int(i) for i in target[target != 0]][1:], logits[target != 0].astype(np.float64)
            wanted = (after - np.log(np.exp(after).sum(1, keepdims=True)))[range(len(output) + 1), [*output, 2]]
            words = [[self.tokens[i] for i in ids] for ids in (source[source != 0], output)]
            [found] = translator.score_batch([words[0]], [words[1]])
            off = np.abs(np.array(found.log_probs) - wanted).max()
            if off > CLOSE:
                raise RuntimeError(f"a log-probability is {off:.1e} off regard's; more than {CLOSE} is no rounding")

    def choose(self, beam: int, precision: str, rows: int, alone: bool, settings: dict[str, Any]) -> str:
        """Set what the next repeats do; return the reason if it is impossible."""
        wanted = {"compute_type": precision, **{key: settings.pop(key) for key in ("inter_threads", "intra_threads")}}
        if wanted != self.opened:
            self.translator, self.opened = ctranslate2.Translator(str(self.folder), **wanted), wanted
        self.how = {"beam_size": beam, "length_penalty": 1, "patience": 1, **settings}  # the rest says how to cut batches
        self.groups = [[row] for row in range(rows)] if alone else [list(range(rows))]
        return ""

    def translate(self, rows: list[int]) -> list[Any]:
        most = max(self.limits[row] for row in rows)  # one limit for all sentences of a call
        return self.translator.translate_batch([self.sources[row] for row in rows], max_decoding_length=most, **self.how)

    def repeat(self) -> dict[str, list[float]]:
        """Seconds of all sentences at once, or of each alone."""
        seconds, self.found = each(self.translate, self.groups)
        return {"seconds": seconds}

    def answers(self) -> list[list[int]]:
        """The tokens that the last repeat found, without start and end."""
        ids = {token: i for i, token in enumerate(self.tokens)}
        return [[ids[token] for token in found.hypotheses[0]] for group in self.found for found in group]

    def versions(self) -> dict[str, str]:
        """Of the libraries that decide the speed."""
        asked = {key: value for key, value in os.environ.items() if key.startswith("CT2_")}
        return {"ctranslate2": importlib.metadata.version("ctranslate2"), **asked}


if __name__ == "__main__":
    side = Side()
    serve({name: getattr(side, name) for name in ("prepare", "choose", "repeat", "answers", "versions")})
