"""T5, versions 1.0 and 1.1 ↔ Hugging Face's t5: config.json and tensor names."""

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.interop.keys import THEIRS, KeyTable, read_activation
from regard.interop.tables import SEQ2SEQ, HFCheckpoint, HFFamily, TensorMap
from regard.models.t5 import T5, T5Config

__all__ = ["FAMILY"]

SIZES = {"vocab": "vocab_size", "dim": "d_model", "depth": "num_layers", "heads": "num_heads", "head_dim": "d_kv",
         "mlp_dim": "d_ff"}  # our key → theirs  # fmt: skip
KEYS = KeyTable.of(
    read="vocab_size d_model num_layers num_decoder_layers num_heads d_kv d_ff feed_forward_proj dense_act_fn is_gated_act "
    "layer_norm_epsilon relative_attention_num_buckets relative_attention_max_distance dropout_rate tie_word_embeddings "
    "scale_decoder_outputs",
    without_effect="n_positions classifier_dropout initializer_factor",
    refused={"is_encoder_decoder": (True,)},
)
# stack → our attention → theirs, in the order of their sublayers
ATTENTION = {"encoder": {"attn": "SelfAttention"}, "decoder": {"attn": "SelfAttention", "cross": "EncDecAttention"}}


def _normalize_output(hf: HFCheckpoint) -> dict[str, Tensor]:
    """Their output layer may be tied and may be scaled; ours is both (v1.0) or neither (v1.1).  Fold the scale in."""
    key, weights, table = "lm_head.weight", hf.weights, hf.weights.get("shared.weight")
    # Older versions of transformers wrote one key for both; newer ones always write tie_word_embeddings = true.
    scaled = hf.get("scale_decoder_outputs", hf.get("tie_word_embeddings", True)) is not False
    if table is None:
        return weights
    v11 = hf.get("feed_forward_proj") == "gated-gelu" and hf.get("architectures") != ["T5ForConditionalGeneration"]
    if key not in weights and (v11 or hf.get("tie_word_embeddings") is False):
        raise ValueError(f"there is no tensor {key}; the checkpoint was saved without its output layer: save it again as a "
                         f"transformers.T5ForConditionalGeneration")  # fmt: skip
    output = weights.get(key, table)
    tied = output.shape == table.shape and torch.equal(output.float(), table.float())
    if scaled and tied:
        return {name: weight for name, weight in weights.items() if name != key}
    return {**weights, key: output.float() * table.shape[-1] ** -0.5 if scaled else output}


def _parse_config(hf: HFCheckpoint) -> T5Config:
    dropout, pad, depth = hf.number("dropout_rate", 0.1), hf.get("pad_token_id"), hf.get("num_decoder_layers")
    gated, activation = _parse_mlp(hf)
    return hf.build(T5Config, SIZES, gated=gated, activation=activation, eps=hf.number("layer_norm_epsilon", 1e-6),
                    decoder_depth=0 if depth in (None, hf.get("num_layers")) else depth,
                    tied="lm_head.weight" not in hf.weights, buckets=hf.get("relative_attention_num_buckets", 32),
                    max_distance=hf.get("relative_attention_max_distance", 128), dropout=dropout,
                    attention_dropout=dropout, pad=0 if pad is None else pad)  # fmt: skip


def _parse_mlp(hf: HFCheckpoint) -> tuple[bool, str]:
    """Whether the MLP is gated, and its activation: two keys of their own, or both in `feed_forward_proj`."""
    projection = hf.get("feed_forward_proj", "relu")
    gate, _, name = str(projection).rpartition("-")
    if gate not in ("", "gated"):
        raise ValueError(f"config.json has feed_forward_proj = {projection!r}; wanted an activation, or gated- and an activation")
    gated = hf.get("is_gated_act")
    gated = gate == "gated" if gated is None else gated is True
    if hf.get("dense_act_fn") is not None:
        ours = hf.activation("dense_act_fn", "")
    else:
        ours = read_activation("config.json", "feed_forward_proj", "gelu_new" if projection == "gated-gelu" else name)
    return gated, "auto" if ours == ("gelu_tanh" if gated else "relu") else ours


def _describe_config(c: T5Config) -> dict[str, object]:
    name = ("gelu_tanh" if c.gated else "relu") if c.activation == "auto" else c.activation
    proj = "gelu" if c.gated and name == "gelu_tanh" else THEIRS[name]  # transformers reads gated-gelu as gated-gelu_new
    return {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"],
            "num_decoder_layers": c.decoder_depth or c.depth,
            "feed_forward_proj": f"gated-{proj}" if c.gated else proj, "dense_act_fn": THEIRS[name], "is_gated_act": c.gated,
            "tie_word_embeddings": c.tied, "scale_decoder_outputs": c.tied, "relative_attention_num_buckets": c.buckets,
            "relative_attention_max_distance": c.max_distance, "dropout_rate": c.dropout, "layer_norm_epsilon": c.eps,
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
        for i in range(c.depth if stack == "encoder" else c.decoder_depth or c.depth):
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
    "t5", "t5", T5, _parse_config, _describe_config, _map_tensors, SIZES, KEYS,
    aliases=lambda hf: {"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"},
    ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
    normalize=_normalize_output, text=SEQ2SEQ,
)  # fmt: skip
