"""T5, versions 1.0 and 1.1 ↔ Hugging Face's t5: config.json and tensor names."""

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.interop.tables import SEQ2SEQ, HFCheckpoint, HFFamily, TensorMap
from regard.models.t5 import T5, T5Config

__all__ = ["FAMILY"]

SIZES = {"vocab": "vocab_size", "dim": "d_model", "depth": "num_layers", "heads": "num_heads", "head_dim": "d_kv",
         "mlp_dim": "d_ff"}  # our key → theirs  # fmt: skip
# stack → our attention → theirs, in the order of their sublayers
ATTENTION = {"encoder": {"attn": "SelfAttention"}, "decoder": {"attn": "SelfAttention", "cross": "EncDecAttention"}}


def _normalize_output(hf: HFCheckpoint) -> dict[str, Tensor]:
    """Their output layer may be tied and may be scaled; ours is both (v1.0) or neither (v1.1).  Fold the scale in."""
    key, weights, table = "lm_head.weight", hf.weights, hf.weights.get("shared.weight")
    # Older versions of transformers wrote one key for both; newer ones always write tie_word_embeddings = true.
    scaled = hf.get("scale_decoder_outputs", hf.get("tie_word_embeddings", True)) is not False
    if table is None:
        return weights
    untied = hf.get("tie_word_embeddings") is False or hf.get("feed_forward_proj") == "gated-gelu"  # v1.1
    if key not in weights and untied and hf.get("architectures") != ["T5ForConditionalGeneration"]:
        raise ValueError(f"there is no tensor {key}; the checkpoint was saved without its output layer: save it again as a "
                         f"transformers.T5ForConditionalGeneration")  # fmt: skip
    output = weights.get(key, table)
    tied = output.shape == table.shape and torch.equal(output.float(), table.float())
    if scaled and tied:
        return {name: weight for name, weight in weights.items() if name != key}
    return {**weights, key: output.float() * table.shape[-1] ** -0.5 if scaled else output}


def _parse_config(hf: HFCheckpoint) -> T5Config:
    hf.require(feed_forward_proj=("relu", "gated-gelu"), layer_norm_epsilon=1e-6, num_decoder_layers=hf.get("num_layers"))
    dropout, pad = hf.get("dropout_rate", 0.1), hf.get("pad_token_id")
    return hf.build(T5Config, SIZES, gated=hf.get("feed_forward_proj", "relu") == "gated-gelu",
                    tied="lm_head.weight" not in hf.weights, buckets=hf.get("relative_attention_num_buckets", 32),
                    max_distance=hf.get("relative_attention_max_distance", 128), dropout=dropout,
                    attention_dropout=dropout, pad=0 if pad is None else pad)  # fmt: skip


def _describe_config(c: T5Config) -> dict[str, object]:
    return {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"],
            "num_decoder_layers": c.depth, "feed_forward_proj": "gated-gelu" if c.gated else "relu",
            "tie_word_embeddings": c.tied, "scale_decoder_outputs": c.tied, "relative_attention_num_buckets": c.buckets,
            "relative_attention_max_distance": c.max_distance, "dropout_rate": c.dropout, "layer_norm_epsilon": 1e-6,
            "is_encoder_decoder": True, "pad_token_id": c.pad}  # fmt: skip


def _map_tensors(c: T5Config) -> Iterator[TensorMap]:
    yield TensorMap("tokens.weight", ("shared.weight",))
    if not c.tied:
        yield TensorMap("output.weight", ("lm_head.weight",))
    up = ("wi_0", "wi_1") if c.gated else ("wi",)
    for stack, attention in ATTENTION.items():
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield TensorMap(f"{stack}_bias.table.weight", (bias,))
        yield TensorMap(f"{stack}_norm.weight", (f"{stack}.final_layer_norm.weight",))
        for i in range(c.depth):
            ours, hf = f"{stack}.{i}", f"{stack}.block.{i}.layer"
            for n, (part, name) in enumerate(attention.items()):
                qkv = tuple(f"{hf}.{n}.{name}.{letter}.weight" for letter in "qkv")
                yield TensorMap(f"{ours}.{part}.qkv.weight", qkv)
                yield TensorMap(f"{ours}.{part}.out.weight", (f"{hf}.{n}.{name}.o.weight",))
                yield TensorMap(f"{ours}.{part}_residual.norm.weight", (f"{hf}.{n}.layer_norm.weight",))
            mlp = f"{hf}.{len(attention)}"
            yield TensorMap(f"{ours}.mlp.up.weight", tuple(f"{mlp}.DenseReluDense.{name}.weight" for name in up))
            yield TensorMap(f"{ours}.mlp.down.weight", (f"{mlp}.DenseReluDense.wo.weight",))
            yield TensorMap(f"{ours}.mlp_residual.norm.weight", (f"{mlp}.layer_norm.weight",))


FAMILY = HFFamily(
    "t5", "t5", T5, _parse_config, _describe_config, _map_tensors, SIZES,
    aliases={"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"},
    ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
    normalize=_normalize_output, text=SEQ2SEQ,
)  # fmt: skip
