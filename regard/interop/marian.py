"""The Transformer ↔ Hugging Face's marian, if post-norm, and pegasus, if pre-norm: config.json and tensor names.

Shapes: D width, V vocabulary.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from regard.interop.keys import THEIRS, KeyTable
from regard.interop.tables import FIRST_ROW, SEQ2SEQ, HFCheckpoint, HFFamily, TensorMap, Transform, map_layer
from regard.layers.positions import sinusoid
from regard.models.transformer import Transformer, TransformerConfig

__all__ = ["MARIAN", "PEGASUS"]

SIZES = {"vocab": "vocab_size", "dim": "d_model", "depth": "encoder_layers", "heads": "encoder_attention_heads",
         "max_len": "max_position_embeddings", "pad": "pad_token_id"}  # our key → theirs  # fmt: skip
KEYS = KeyTable.of(
    read="vocab_size d_model encoder_layers encoder_attention_heads encoder_ffn_dim decoder_layers decoder_attention_heads "
    "decoder_ffn_dim max_position_embeddings activation_function dropout attention_dropout tie_word_embeddings scale_embedding",
    without_effect="activation_dropout encoder_layerdrop decoder_layerdrop init_std num_hidden_layers classifier_dropout "
    "classif_dropout extra_pos_embeddings force_bos_token_to_be_generated",
    refused={"is_encoder_decoder": (True,), "normalize_embedding": (False,), "static_position_embeddings": (True,),
             "add_bias_logits": (False,), "do_blenderbot_90_layernorm": (False,)},
)  # fmt: skip
MARIAN_KEYS = KEYS | KeyTable.of("share_encoder_decoder_embeddings decoder_vocab_size", "",
                                 {"normalize_before": (False,), "add_final_layer_norm": (False,)})  # fmt: skip
PEGASUS_KEYS = KEYS | KeyTable.of("", "", {"normalize_before": (True,), "add_final_layer_norm": (True,),
                                           "share_encoder_decoder_embeddings": (True,)})  # fmt: skip
BLOCKED_LOGIT = -1e4  # never the largest, and keeps every loss finite
HINT = "no source.spm, the first of the three files of a Marian tokenizer, beside target.spm and vocab.json: download them"
ATTENTION = {"encoder": {"attn": "self_attn"}, "decoder": {"attn": "self_attn", "cross": "encoder_attn"}}
SHARED, SOURCE, TARGET = "model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
POSITIONS = "embed_positions.weight"
SINUSOID_TOLERANCE = 2e-3  # of a table that was stored with 16 bits


def _is_shared(hf: HFCheckpoint) -> bool:
    """Whether source, target and output are one matrix."""
    return hf.get("share_encoder_decoder_embeddings") is not False and hf.get("tie_word_embeddings") is not False


def _find_aliases(hf: HFCheckpoint) -> Mapping[str, str]:
    """The names of tied matrices: of all three; or of target and output, if there are two vocabularies."""
    if _is_shared(hf):
        return dict.fromkeys((SOURCE, TARGET, "lm_head.weight"), SHARED)
    return {} if hf.get("tie_word_embeddings") is False else {"lm_head.weight": TARGET}


def _normalize(hf: HFCheckpoint) -> dict[str, Tensor]:
    """Equivalent forms of a checkpoint → one: separate tables if one is not shared, an output bias without -inf.

    Refuses positions other than the sinusoids.
    """
    weights = dict(hf.weights)
    for name in [name for name in weights if name.endswith(POSITIONS)]:
        _require_sinusoid(name, weights.pop(name))
    if not _is_shared(hf) and SHARED in weights:
        shared = weights.pop(SHARED)
        weights = {SOURCE: shared, TARGET: shared, **weights}
    if (bias := weights.get("final_logits_bias")) is not None:  # old checkpoints have -inf for padding
        weights["final_logits_bias"] = bias.float().masked_fill(bias.isneginf(), BLOCKED_LOGIT)
    return weights


def _require_sinusoid(name: str, table: Tensor) -> None:
    """Refuse a stored table of positions that the model would not compute itself."""
    wanted = sinusoid(len(table), table.shape[1]) if table.ndim == 2 else None
    if wanted is None or not (table.float() - torch.cat((wanted[:, 0::2], wanted[:, 1::2]), 1)).abs().max() < SINUSOID_TOLERANCE:
        raise ValueError(f"{name} is not the sinusoid; regard's model computes its positions: use a checkpoint whose positions "
                         f"are sinusoids")  # fmt: skip


def _parse_config(hf: HFCheckpoint) -> TransformerConfig:
    hf = hf.with_defaults(scale_embedding=False, activation_function="gelu")
    hf.require(scale_embedding=True, **{f"decoder_{key}": hf.get(f"encoder_{key}") for key in ("ffn_dim", "attention_heads")})
    two = hf.get("share_encoder_decoder_embeddings") is False
    if not two:
        hf.require(decoder_vocab_size=hf.get("vocab_size"))
    tied, depth = hf.get("tie_word_embeddings") is not False, hf.get("decoder_layers")
    target = hf.get("decoder_vocab_size") if two else 0
    if not tied and target == hf.get("vocab_size"):  # three matrices for one vocabulary
        target = 0
    if not tied and "lm_head.weight" not in hf.weights:
        raise ValueError("config.json has tie_word_embeddings = False, but there is no tensor lm_head.weight; save the "
                         "checkpoint again with its output layer")  # fmt: skip
    return hf.build(TransformerConfig, SIZES, norm="pre" if hf.get("model_type") == "pegasus" else "post",
                    output_bias="final_logits_bias" in hf.weights, tied=tied, target_vocab=target,
                    activation=hf.activation("activation_function", "gelu"),
                    decoder_depth=0 if depth in (None, hf.get("encoder_layers")) else depth,
                    dropout=hf.number("dropout", 0.1), attention_dropout=hf.number("attention_dropout", 0.0),
                    **hf.mlp_width("encoder_ffn_dim", "d_model"))  # fmt: skip


def _describe_config(c: TransformerConfig) -> dict[str, object]:
    pre = c.norm == "pre"
    for key, value in {"positions": "sinusoid", **({"tied": True, "target_vocab": 0} if pre else {})}.items():
        if getattr(c, key) != value:
            raise ValueError(f"this transformer has {key} = {getattr(c, key)!r}; Hugging Face's "
                             f"({'Pegasus' if pre else 'Marian'}) has {value!r}: train it with "
                             f"model.{key}={str(value).lower()}")  # fmt: skip
    hidden, shared = c.mlp_dim or c.mlp_ratio * c.dim, c.tied and not c.target_vocab
    embeddings = {"share_encoder_decoder_embeddings": shared, "decoder_vocab_size": c.target_vocab or c.vocab}
    return {"model_type": "pegasus" if pre else "marian",
            "architectures": ["PegasusForConditionalGeneration" if pre else "MarianMTModel"], **({} if pre else embeddings),
            "decoder_layers": c.decoder_depth or c.depth, "decoder_attention_heads": c.heads, "encoder_ffn_dim": hidden,
            "decoder_ffn_dim": hidden, "activation_function": THEIRS[c.activation], "scale_embedding": True,
            "tie_word_embeddings": c.tied, "dropout": c.dropout, "attention_dropout": c.attention_dropout,
            "is_encoder_decoder": True, "forced_eos_token_id": None}  # fmt: skip


def _map_tensors(c: TransformerConfig) -> Iterator[TensorMap]:
    # Their position encoding has all sines first, then all cosines; ours alternates.  So the width D is permuted in each
    # weight that reads it (columns) or writes it (rows), and every sum stays the same.
    order = torch.cat((torch.arange(0, c.dim, 2), torch.arange(1, c.dim, 2)))
    back = order.argsort()
    rows = Transform(lambda x: x[back], lambda x: x[order])
    columns = Transform(lambda x: x[:, back], lambda x: x[:, order])
    if c.tied and not c.target_vocab:
        yield TensorMap("embed_source.tokens.weight", (SHARED,), columns)
    else:
        yield TensorMap("embed_source.tokens.weight", (SOURCE,), columns)
        yield TensorMap("embed_target.tokens.weight", (TARGET,), columns)
    if not c.tied:
        yield TensorMap("output.weight", ("lm_head.weight",), columns)
    if c.output_bias or not c.tied:
        yield TensorMap("output.bias", ("final_logits_bias",), FIRST_ROW)  # (1, V) → (V,)
    for stack, attention in ATTENTION.items():
        for i in range(c.depth if stack == "encoder" else c.decoder_depth or c.depth):
            ours, hf = f"{stack}.{i}", f"model.{stack}.layers.{i}"
            for part, name in attention.items():
                qkv = (f"{hf}.{name}.{letter}_proj" for letter in "qkv")
                yield from map_layer(f"{ours}.{part}.qkv", *qkv, weight=columns)
                yield from map_layer(f"{ours}.{part}.out", f"{hf}.{name}.out_proj", weight=rows, bias=rows)
                yield from map_layer(f"{ours}.{part}_residual.norm", f"{hf}.{name}_layer_norm", weight=rows, bias=rows)
            yield from map_layer(f"{ours}.mlp.up", f"{hf}.fc1", weight=columns)
            yield from map_layer(f"{ours}.mlp.down", f"{hf}.fc2", weight=rows, bias=rows)
            yield from map_layer(f"{ours}.mlp_residual.norm", f"{hf}.final_layer_norm", weight=rows, bias=rows)
        if c.norm == "pre":
            yield from map_layer(f"{stack}_norm", f"model.{stack}.layer_norm", weight=rows, bias=rows)


MARIAN = HFFamily(
    "marian", "transformer", Transformer, _parse_config, _describe_config, _map_tensors, SIZES, MARIAN_KEYS, "model.",
    aliases=_find_aliases, normalize=_normalize, text=replace(SEQ2SEQ, tokenizer_hint=HINT),
)  # fmt: skip
PEGASUS = replace(MARIAN, model_type="pegasus", keys=PEGASUS_KEYS, text=SEQ2SEQ)
