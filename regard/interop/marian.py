"""The post-norm Transformer ↔ Hugging Face's marian: config.json and tensor names.

Shapes: D width, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from regard.interop.tables import FIRST_ROW, SEQ2SEQ, HFCheckpoint, HFFamily, TensorMap, Transform, map_layer
from regard.models.transformer import Transformer, TransformerConfig

__all__ = ["FAMILY"]

SIZES = {"vocab": "vocab_size", "dim": "d_model", "depth": "encoder_layers", "heads": "encoder_attention_heads",
         "max_len": "max_position_embeddings", "pad": "pad_token_id"}  # our key → theirs  # fmt: skip
BLOCKED_LOGIT = -1e4  # never the largest, and keeps every loss finite
HINT = ("Marian's source.spm, target.spm and vocab.json are not read; put one there, made with the tokenizers library, that "
        "splits text as source.spm does and has the ids of vocab.json")  # fmt: skip
ATTENTION = {"encoder": {"attn": "self_attn"}, "decoder": {"attn": "self_attn", "cross": "encoder_attn"}}


def _normalize_output(hf: HFCheckpoint) -> dict[str, Tensor]:
    """Block padding in the output bias, if the checkpoint blocks it in `bad_words_ids` or with -inf."""
    weights, pad, blocked = hf.weights, hf.get("pad_token_id"), hf.get("bad_words_ids")
    bias = weights.get("final_logits_bias")
    if bias is None or not isinstance(pad, int) or pad not in range(*bias.shape[-1:]):
        return weights
    if not (isinstance(blocked, list) and [pad] in blocked) and not bias[..., pad].isneginf().all():
        return weights
    return {**weights, "final_logits_bias": bias.float().index_fill(-1, torch.tensor(pad), BLOCKED_LOGIT)}


def _parse_config(hf: HFCheckpoint) -> TransformerConfig:
    hf = hf.with_defaults(scale_embedding=False, activation_function="gelu")
    decoder = {f"decoder_{key}": hf.get(f"encoder_{key}") for key in ("layers", "ffn_dim", "attention_heads")}
    hf.require(activation_function=("relu", "swish", "silu"), scale_embedding=True, normalize_before=False,
               normalize_embedding=False, add_final_layer_norm=False, static_position_embeddings=True,
               share_encoder_decoder_embeddings=True, tie_word_embeddings=True,
               decoder_vocab_size=hf.get("vocab_size"), **decoder)  # fmt: skip
    width = hf.mlp_ratio("encoder_ffn_dim", "d_model")
    return hf.build(TransformerConfig, SIZES, norm="post", output_bias="final_logits_bias" in hf.weights,
                    activation="relu" if hf.get("activation_function") == "relu" else "silu",
                    dropout=hf.get("dropout", 0.1), attention_dropout=hf.get("attention_dropout", 0.0), **width)  # fmt: skip


def _describe_config(c: TransformerConfig) -> dict[str, object]:
    for key, value in {"norm": "post", "positions": "sinusoid", "tied": True}.items():
        if getattr(c, key) != value:
            raise ValueError(f"this transformer has {key} = {getattr(c, key)!r}; Hugging Face's (Marian) has {value!r}: "
                             f"train it with model.{key}={str(value).lower()}")  # fmt: skip
    hidden = c.mlp_ratio * c.dim
    return {"model_type": "marian", "architectures": ["MarianMTModel"], "decoder_vocab_size": c.vocab, "decoder_layers": c.depth,
            "decoder_attention_heads": c.heads, "encoder_ffn_dim": hidden, "decoder_ffn_dim": hidden,
            "activation_function": "swish" if c.activation == "silu" else "relu", "scale_embedding": True,
            "share_encoder_decoder_embeddings": True, "tie_word_embeddings": True, "dropout": c.dropout,
            "attention_dropout": c.attention_dropout, "is_encoder_decoder": True, "forced_eos_token_id": None}  # fmt: skip


def _map_tensors(c: TransformerConfig) -> Iterator[TensorMap]:
    # Marian's position encoding has all sines first, then all cosines; ours alternates.  So the width D is permuted in each
    # weight that reads it (columns) or writes it (rows), and every sum stays the same.
    order = torch.cat((torch.arange(0, c.dim, 2), torch.arange(1, c.dim, 2)))
    back = order.argsort()
    rows = Transform(lambda x: x[back], lambda x: x[order])
    columns = Transform(lambda x: x[:, back], lambda x: x[:, order])
    yield TensorMap("embed_source.tokens.weight", ("model.shared.weight",), columns)
    if c.output_bias:
        yield TensorMap("output.bias", ("final_logits_bias",), FIRST_ROW)  # (1, V) → (V,)
    for stack, attention in ATTENTION.items():
        for i in range(c.depth):
            ours, hf = f"{stack}.{i}", f"model.{stack}.layers.{i}"
            for part, name in attention.items():
                qkv = (f"{hf}.{name}.{letter}_proj" for letter in "qkv")
                yield from map_layer(f"{ours}.{part}.qkv", *qkv, weight=columns)
                yield from map_layer(f"{ours}.{part}.out", f"{hf}.{name}.out_proj", weight=rows, bias=rows)
                yield from map_layer(f"{ours}.{part}_residual.norm", f"{hf}.{name}_layer_norm", weight=rows, bias=rows)
            yield from map_layer(f"{ours}.mlp.up", f"{hf}.fc1", weight=columns)
            yield from map_layer(f"{ours}.mlp.down", f"{hf}.fc2", weight=rows, bias=rows)
            yield from map_layer(f"{ours}.mlp_residual.norm", f"{hf}.final_layer_norm", weight=rows, bias=rows)


FAMILY = HFFamily(
    "marian", "transformer", Transformer, _parse_config, _describe_config, _map_tensors, SIZES, "model.",
    aliases=dict.fromkeys(("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
                          "model.shared.weight"),
    ignored=("embed_positions.weight",), normalize=_normalize_output, text=replace(SEQ2SEQ, tokenizer_hint=HINT),
)  # fmt: skip
