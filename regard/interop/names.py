"""How Hugging Face writes GPT-2, BERT, T5 and Marian: one table of names for each, and what its config.json says.

A table pairs each of our tensors with the one, or the several one below another, that hold the same numbers there.

Shapes: D width, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.config import build
from regard.models.bert import BERT, BERTConfig
from regard.models.gpt import GPT, GPTConfig
from regard.models.t5 import T5, T5Config
from regard.models.transformer import Transformer, TransformerConfig

__all__ = [
    "BOTH",
    "NOWHERE",
    "ROW",
    "SAME",
    "THEIRS",
    "Described",
    "Names",
    "Theirs",
    "Way",
    "Weights",
    "classes_of",
    "make",
    "same",
]

Described = Mapping[str, Any]  # what their config.json says
Weights = dict[str, Tensor]

NEVER = -1e4  # a logit that is never the largest, and leaves every loss a number
BOTH = ("weight", "bias")


class Way(NamedTuple):
    """How a tensor of theirs becomes ours, and ours theirs."""

    here: Callable[[Tensor], Tensor]
    there: Callable[[Tensor], Tensor]


SAME = Way(lambda x: x, lambda x: x)
TURNED = Way(lambda x: x.T, lambda x: x.T)  # there a product is x W, here x Wᵀ
ROW = Way(lambda x: x[0], lambda x: x[None])  # there (1, V), here (V,)


NOWHERE = ""  # the name of what they do not have, and is zero here


class Names(NamedTuple):
    """Where the numbers of one of our tensors stand: in `theirs`, one below another."""

    ours: str
    theirs: tuple[str, ...]
    way: Way = SAME


@dataclass(frozen=True)
class Theirs:
    """How a family is written there."""

    family: str  # by our name
    build: Callable[[Any], nn.Module]
    config: Callable[[Described, Weights], Any]  # their config.json → ours, or an error that says what differs
    describe: Callable[[Any], dict[str, Any]]  # ours → their config.json, or an error that says what differs
    names: Callable[[Any], Iterator[Names]]
    prefix: str = ""  # that a checkpoint of the bare model leaves out
    again: Mapping[str, str] = field(default_factory=dict)  # the same tensor under a second name → under its first
    ignored: tuple[str, ...] = ()  # endings of tensors that hold nothing learnt, or what we have no use for
    heads: Callable[[Any], tuple[str, ...]] = lambda config: ()  # of ours, that a checkpoint may do without
    bare: str = ""  # their class of a model that has no heads
    settle: Callable[[Described, Weights], Weights] = lambda said, weights: weights  # forms that mean the same → one


def same(said: Described, wanted: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose config says what our model does not do."""
    for key, value in wanted.items():
        values = value if isinstance(value, tuple) else (value,)
        if said.get(key) is not None and said[key] not in values:
            raise ValueError(
                f"config.json has {key} = {said[key]!r}; regard's model has {' or '.join(map(repr, values))}"
            )


def make(cls: type, said: Described, sizes: Mapping[str, str], **values: Any) -> Any:
    """Our config, each size under its name there."""
    for key in sizes.values():
        if not isinstance(said.get(key), int):
            raise ValueError(f"config.json has {key} = {said.get(key)!r}; wanted a number")
    return build("config.json", cls, {**{ours: said[key] for ours, key in sizes.items()}, **values})


def _wide(hidden: Any, dim: Any) -> dict[str, Any]:
    """The width of the mlp, as a multiple of the model's if it is one."""
    whole = isinstance(hidden, int) and isinstance(dim, int) and dim > 0 and hidden > 0 and hidden % dim == 0
    return {"mlp_ratio": hidden // dim} if whole else {"mlp_dim": hidden}


def classes_of(said: Described, weights: Weights, name: str) -> int:
    """How many classes of pictures there are, as transformers counts them: two, if nothing is said.

    There may be none if the head, whose weights have this name, was not trained.
    """
    names, trained = said.get("id2label"), name in weights
    count = len(names) if isinstance(names, dict) else said.get("num_labels", 2)
    if trained and count == 1:
        raise ValueError(f"{name} gives each picture one number; regard's model gives it one of two or more classes: use a "
                         f"checkpoint that does")  # fmt: skip
    return count if trained else count or 2


# GPT-2


def _gpt_config(said: Described, weights: Weights) -> GPTConfig:
    same(said, {"activation_function": ("gelu_new", "gelu_pytorch_tanh"), "layer_norm_epsilon": 1e-5,
                 "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
                 "add_cross_attention": False})  # fmt: skip
    sizes = {"vocab": "vocab_size", "dim": "n_embd", "depth": "n_layer", "heads": "n_head", "max_len": "n_positions"}
    wide = {} if said.get("n_inner") is None else _wide(said["n_inner"], said.get("n_embd"))
    return make(GPTConfig, said, sizes, dropout=said.get("resid_pdrop", 0.1),
                 attention_dropout=said.get("attn_pdrop", 0.1), **wide)  # fmt: skip


def _gpt_describe(c: GPTConfig) -> dict[str, Any]:
    return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": c.vocab, "n_embd": c.dim,
            "n_layer": c.depth, "n_head": c.heads, "n_inner": c.mlp_dim or c.mlp_ratio * c.dim, "n_positions": c.max_len,
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "resid_pdrop": c.dropout,
            "embd_pdrop": c.dropout, "attn_pdrop": c.attention_dropout, "tie_word_embeddings": True,
            "bos_token_id": None, "eos_token_id": None}  # fmt: skip


def _gpt_names(c: GPTConfig) -> Iterator[Names]:
    yield Names("embed.tokens.weight", ("transformer.wte.weight",))
    yield Names("embed.positions.table", ("transformer.wpe.weight",))
    for i in range(c.depth):
        ours, theirs = f"blocks.{i}", f"transformer.h.{i}"
        for kind, way in (("weight", TURNED), ("bias", SAME)):
            yield Names(f"{ours}.attn_residual.norm.{kind}", (f"{theirs}.ln_1.{kind}",))
            yield Names(f"{ours}.attn.qkv.{kind}", (f"{theirs}.attn.c_attn.{kind}",), way)
            yield Names(f"{ours}.attn.out.{kind}", (f"{theirs}.attn.c_proj.{kind}",), way)
            yield Names(f"{ours}.mlp_residual.norm.{kind}", (f"{theirs}.ln_2.{kind}",))
            yield Names(f"{ours}.mlp.up.{kind}", (f"{theirs}.mlp.c_fc.{kind}",), way)
            yield Names(f"{ours}.mlp.down.{kind}", (f"{theirs}.mlp.c_proj.{kind}",), way)
    for kind in BOTH:
        yield Names(f"final_norm.{kind}", (f"transformer.ln_f.{kind}",))


# BERT


def _bert_config(said: Described, weights: Weights) -> BERTConfig:
    same(said, {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "position_embedding_type": "absolute",
                 "is_decoder": False})  # fmt: skip
    for name in said.get("architectures") or ():
        if name in ("BertForTokenClassification", "BertForMultipleChoice"):
            raise ValueError(f"config.json has architectures = {name!r}; regard's model gives classes to texts, as "
                             f"'BertForSequenceClassification' does")  # fmt: skip
    sizes = {"vocab": "vocab_size", "dim": "hidden_size", "depth": "num_hidden_layers", "heads": "num_attention_heads",
             "max_len": "max_position_embeddings", "segments": "type_vocab_size"}  # fmt: skip
    classes = sum(weights["classifier.weight"].shape[:1]) if "classifier.weight" in weights else 0
    if classes == 1:
        raise ValueError("classifier.weight gives each text one number (a score, as cross-encoders do); regard's model "
                         "gives it one of two or more classes: use a checkpoint that does")  # fmt: skip
    if said.get("problem_type") not in (None, "single_label_classification"):
        raise ValueError(f"config.json has problem_type = {said['problem_type']!r}; regard's model gives each text one "
                         f"class, 'single_label_classification': use a checkpoint that does")  # fmt: skip
    return make(BERTConfig, said, sizes, classes=classes, dropout=said.get("hidden_dropout_prob", 0.1),
                 attention_dropout=said.get("attention_probs_dropout_prob", 0.1),
                 **_wide(said.get("intermediate_size"), said.get("hidden_size")))  # fmt: skip


def _bert_describe(c: BERTConfig) -> dict[str, Any]:
    return {"model_type": "bert",
            "architectures": ["BertForSequenceClassification" if c.classes else "BertForMaskedLM"],
            "vocab_size": c.vocab, "hidden_size": c.dim, "num_hidden_layers": c.depth, "num_attention_heads": c.heads,
            "intermediate_size": c.mlp_dim or c.mlp_ratio * c.dim, "max_position_embeddings": c.max_len,
            "type_vocab_size": c.segments, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
            "hidden_dropout_prob": c.dropout, "attention_probs_dropout_prob": c.attention_dropout,
            "tie_word_embeddings": True,
            **({"id2label": {str(i): f"LABEL_{i}" for i in range(c.classes)}} if c.classes else {})}  # fmt: skip


def _bert_names(c: BERTConfig) -> Iterator[Names]:
    at = "bert.embeddings"
    yield Names("tokens.weight", (f"{at}.word_embeddings.weight",))
    yield Names("positions.table", (f"{at}.position_embeddings.weight",))
    yield Names("segments.weight", (f"{at}.token_type_embeddings.weight",))
    for kind in BOTH:
        yield Names(f"norm.{kind}", (f"{at}.LayerNorm.{kind}",))
        for i in range(c.depth):
            ours, theirs = f"blocks.{i}", f"bert.encoder.layer.{i}"
            three = tuple(f"{theirs}.attention.self.{one}.{kind}" for one in ("query", "key", "value"))
            yield Names(f"{ours}.attn.qkv.{kind}", three)
            yield Names(f"{ours}.attn.out.{kind}", (f"{theirs}.attention.output.dense.{kind}",))
            yield Names(f"{ours}.attn_residual.norm.{kind}", (f"{theirs}.attention.output.LayerNorm.{kind}",))
            yield Names(f"{ours}.mlp.up.{kind}", (f"{theirs}.intermediate.dense.{kind}",))
            yield Names(f"{ours}.mlp.down.{kind}", (f"{theirs}.output.dense.{kind}",))
            yield Names(f"{ours}.mlp_residual.norm.{kind}", (f"{theirs}.output.LayerNorm.{kind}",))
        yield Names(f"pooler.{kind}", (f"bert.pooler.dense.{kind}",))
        yield Names(f"lm_head.transform.{kind}", (f"cls.predictions.transform.dense.{kind}",))
        yield Names(f"lm_head.norm.{kind}", (f"cls.predictions.transform.LayerNorm.{kind}",))
        if c.classes:
            yield Names(f"classifier.{kind}", (f"classifier.{kind}",))
    yield Names("lm_head.output.bias", ("cls.predictions.bias",))


# T5


def _t5_settle(said: Described, weights: Weights) -> Weights:
    """Their output is tied or not, scaled or not; ours is tied and scaled (v1.0), or neither (v1.1).  The rest is folded in."""
    key, table = "lm_head.weight", weights.get("shared.weight")
    # Older transformers had one word for both; newer ones always write tie_word_embeddings = true.
    scaled = said.get("scale_decoder_outputs", said.get("tie_word_embeddings", True)) is not False
    if table is None:
        return weights
    own = said.get("tie_word_embeddings") is False or said.get("feed_forward_proj") == "gated-gelu"  # v1.1
    if key not in weights and own and said.get("architectures") != ["T5ForConditionalGeneration"]:
        raise ValueError(f"there is no tensor {key}; the checkpoint was saved without its output: save it again as a "
                         f"transformers.T5ForConditionalGeneration")  # fmt: skip
    output = weights.get(key, table)
    tied = output.shape == table.shape and torch.equal(output.float(), table.float())
    if scaled and tied:
        return {name: weight for name, weight in weights.items() if name != key}
    return {**weights, key: output.float() * table.shape[-1] ** -0.5 if scaled else output}


def _t5_config(said: Described, weights: Weights) -> T5Config:
    same(said, {"feed_forward_proj": ("relu", "gated-gelu"), "layer_norm_epsilon": 1e-6,
                 "num_decoder_layers": said.get("num_layers")})  # fmt: skip
    sizes = {"vocab": "vocab_size", "dim": "d_model", "depth": "num_layers", "heads": "num_heads", "head_dim": "d_kv",
             "mlp_dim": "d_ff"}  # fmt: skip
    dropout, pad = said.get("dropout_rate", 0.1), said.get("pad_token_id")
    return make(T5Config, said, sizes, gated=said.get("feed_forward_proj", "relu") == "gated-gelu",
                 tied="lm_head.weight" not in weights, buckets=said.get("relative_attention_num_buckets", 32),
                 max_distance=said.get("relative_attention_max_distance", 128), dropout=dropout,
                 attention_dropout=dropout, pad=0 if pad is None else pad)  # fmt: skip


def _t5_describe(c: T5Config) -> dict[str, Any]:
    return {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": c.vocab,
            "d_model": c.dim, "num_layers": c.depth, "num_decoder_layers": c.depth, "num_heads": c.heads,
            "d_kv": c.head_dim, "d_ff": c.mlp_dim, "feed_forward_proj": "gated-gelu" if c.gated else "relu",
            "tie_word_embeddings": c.tied, "scale_decoder_outputs": c.tied, "relative_attention_num_buckets": c.buckets,
            "relative_attention_max_distance": c.max_distance, "dropout_rate": c.dropout, "layer_norm_epsilon": 1e-6,
            "is_encoder_decoder": True, "pad_token_id": c.pad}  # fmt: skip


def _t5_names(c: T5Config) -> Iterator[Names]:
    yield Names("tokens.weight", ("shared.weight",))
    if not c.tied:
        yield Names("output.weight", ("lm_head.weight",))
    up = ("wi_0", "wi_1") if c.gated else ("wi",)
    looks = {"encoder": {"attn": "SelfAttention"}, "decoder": {"attn": "SelfAttention", "cross": "EncDecAttention"}}
    for side, parts in looks.items():
        first = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield Names(f"{side}_bias.table.weight", (first,))
        yield Names(f"{side}_norm.weight", (f"{side}.final_layer_norm.weight",))
        for i in range(c.depth):
            ours, theirs = f"{side}.{i}", f"{side}.block.{i}.layer"
            for n, (mine, name) in enumerate(parts.items()):
                three = tuple(f"{theirs}.{n}.{name}.{letter}.weight" for letter in "qkv")
                yield Names(f"{ours}.{mine}.qkv.weight", three)
                yield Names(f"{ours}.{mine}.out.weight", (f"{theirs}.{n}.{name}.o.weight",))
                yield Names(f"{ours}.{mine}_residual.norm.weight", (f"{theirs}.{n}.layer_norm.weight",))
            last = f"{theirs}.{len(parts)}"
            yield Names(f"{ours}.mlp.up.weight", tuple(f"{last}.DenseReluDense.{one}.weight" for one in up))
            yield Names(f"{ours}.mlp.down.weight", (f"{last}.DenseReluDense.wo.weight",))
            yield Names(f"{ours}.mlp_residual.norm.weight", (f"{last}.layer_norm.weight",))


# Marian


def _marian_settle(said: Described, weights: Weights) -> Weights:
    """A checkpoint may say that its padding is never to be an answer, or have -inf there; ours says so in the bias."""
    pad, bias = said.get("pad_token_id"), weights.get("final_logits_bias")
    if bias is None or pad not in range(*bias.shape[-1:]):
        return weights
    if [pad] not in (said.get("bad_words_ids") or ()) and not bias[..., pad].isneginf().all():
        return weights
    return {**weights, "final_logits_bias": bias.float().index_fill(-1, torch.tensor(pad), NEVER)}


def _marian_config(said: Described, weights: Weights) -> TransformerConfig:
    said = {"scale_embedding": False, "activation_function": "gelu", **said}  # their defaults
    sides = {f"decoder_{key}": said.get(f"encoder_{key}") for key in ("layers", "ffn_dim", "attention_heads")}
    same(said, {"activation_function": ("relu", "swish", "silu"), "scale_embedding": True, "normalize_before": False,
                 "normalize_embedding": False, "add_final_layer_norm": False, "static_position_embeddings": True,
                 "share_encoder_decoder_embeddings": True, "tie_word_embeddings": True,
                 "decoder_vocab_size": said.get("vocab_size"), **sides})  # fmt: skip
    sizes = {"vocab": "vocab_size", "dim": "d_model", "depth": "encoder_layers", "heads": "encoder_attention_heads",
             "max_len": "max_position_embeddings", "pad": "pad_token_id"}  # fmt: skip
    wide = _wide(said.get("encoder_ffn_dim"), said.get("d_model"))
    if "mlp_dim" in wide:
        raise ValueError(
            f"config.json has encoder_ffn_dim = {wide['mlp_dim']}; regard's model has a multiple of d_model"
        )
    return make(TransformerConfig, said, sizes, norm="post", output_bias="final_logits_bias" in weights,
                 activation="relu" if said["activation_function"] == "relu" else "silu",
                 dropout=said.get("dropout", 0.1), attention_dropout=said.get("attention_dropout", 0.0), **wide)  # fmt: skip


def _marian_describe(c: TransformerConfig) -> dict[str, Any]:
    for key, value in {"norm": "post", "positions": "sinusoid", "tied": True}.items():
        if getattr(c, key) != value:
            raise ValueError(f"this transformer has {key} = {getattr(c, key)!r}; Hugging Face's (Marian) has {value!r}: "
                             f"train it with model.{key}={str(value).lower()}")  # fmt: skip
    both = {"layers": c.depth, "ffn_dim": c.mlp_ratio * c.dim, "attention_heads": c.heads}
    return {"model_type": "marian", "architectures": ["MarianMTModel"], "vocab_size": c.vocab,
            "decoder_vocab_size": c.vocab, "d_model": c.dim, "max_position_embeddings": c.max_len,
            **{f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in both.items()},
            "activation_function": "swish" if c.activation == "silu" else "relu", "scale_embedding": True,
            "share_encoder_decoder_embeddings": True, "tie_word_embeddings": True, "dropout": c.dropout,
            "attention_dropout": c.attention_dropout, "is_encoder_decoder": True, "pad_token_id": c.pad,
            "forced_eos_token_id": None}  # fmt: skip


def _marian_names(c: TransformerConfig) -> Iterator[Names]:
    # There the sines of a place come first and then its cosines, here they take turns: the width is put into another order,
    # in all that reads it (columns) or writes it (rows), and every sum stays the same.
    order = torch.cat((torch.arange(0, c.dim, 2), torch.arange(1, c.dim, 2)))
    back = order.argsort()
    rows, columns = Way(lambda x: x[back], lambda x: x[order]), Way(lambda x: x[:, back], lambda x: x[:, order])
    yield Names("embed_source.tokens.weight", ("model.shared.weight",), columns)
    if c.output_bias:
        yield Names("output.bias", ("final_logits_bias",), ROW)
    looks = {"encoder": {"attn": "self_attn"}, "decoder": {"attn": "self_attn", "cross": "encoder_attn"}}
    for side, parts in looks.items():
        for i in range(c.depth):
            ours, theirs = f"{side}.{i}", f"model.{side}.layers.{i}"
            for kind, reading in (("weight", columns), ("bias", SAME)):
                for mine, name in parts.items():
                    three = tuple(f"{theirs}.{name}.{letter}_proj.{kind}" for letter in "qkv")
                    yield Names(f"{ours}.{mine}.qkv.{kind}", three, reading)
                    yield Names(f"{ours}.{mine}.out.{kind}", (f"{theirs}.{name}.out_proj.{kind}",), rows)
                    yield Names(f"{ours}.{mine}_residual.norm.{kind}", (f"{theirs}.{name}_layer_norm.{kind}",), rows)
                yield Names(f"{ours}.mlp.up.{kind}", (f"{theirs}.fc1.{kind}",), reading)
                yield Names(f"{ours}.mlp.down.{kind}", (f"{theirs}.fc2.{kind}",), rows)
                yield Names(f"{ours}.mlp_residual.norm.{kind}", (f"{theirs}.final_layer_norm.{kind}",), rows)


THEIRS = {  # by their model_type
    "gpt2": Theirs("gpt", GPT, _gpt_config, _gpt_describe, _gpt_names, "transformer.",
                   again={"lm_head.weight": "transformer.wte.weight"}, ignored=(".attn.bias", ".attn.masked_bias")),
    "bert": Theirs("bert", BERT, _bert_config, _bert_describe, _bert_names, "bert.",
                   again={"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
                          "cls.predictions.decoder.bias": "cls.predictions.bias"},
                   ignored=("embeddings.position_ids", "cls.seq_relationship.weight", "cls.seq_relationship.bias"),
                   heads=lambda c: ("lm_head",) if c.classes else ("lm_head", "pooler"), bare="BertModel"),
    "t5": Theirs("t5", T5, _t5_config, _t5_describe, _t5_names,
                 again={"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"},
                 ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",), settle=_t5_settle),
    "marian": Theirs("transformer", Transformer, _marian_config, _marian_describe, _marian_names, "model.",
                     again={"model.encoder.embed_tokens.weight": "model.shared.weight",
                            "model.decoder.embed_tokens.weight": "model.shared.weight",
                            "lm_head.weight": "model.shared.weight"},
                     ignored=("embed_positions.weight",), settle=_marian_settle),
}  # fmt: skip
