"""GPT-2 ↔ Hugging Face's gpt2: config.json and tensor names."""

from collections.abc import Iterator

from regard.interop.keys import THEIRS, KeyTable
from regard.interop.tables import HFCheckpoint, HFFamily, TensorMap, TextFormat, Transform, map_layer
from regard.models.gpt import GPT, GPTConfig

__all__ = ["FAMILY"]

KEYS = KeyTable.of(
    read="vocab_size n_embd n_layer n_head n_positions n_inner activation_function layer_norm_epsilon resid_pdrop attn_pdrop "
    "tie_word_embeddings",
    without_effect="n_ctx embd_pdrop reorder_and_upcast_attn summary_type summary_use_proj summary_activation "
    "summary_proj_to_labels summary_first_dropout predict_special_tokens n_special",
    refused={"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
)
SIZES = {"vocab": "vocab_size", "dim": "n_embd", "depth": "n_layer", "heads": "n_head", "max_len": "n_positions"}
TRANSPOSED = Transform(lambda x: x.T, lambda x: x.T)  # a Conv1D computes x W, our Linear x Wᵀ
NORMS = {"attn_residual.norm": "ln_1", "mlp_residual.norm": "ln_2"}
LINEARS = {"attn.qkv": "attn.c_attn", "attn.out": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}


def _parse_config(hf: HFCheckpoint) -> GPTConfig:
    width = {} if hf.get("n_inner") is None else hf.mlp_width("n_inner", "n_embd")
    return hf.build(GPTConfig, SIZES, dropout=hf.number("resid_pdrop", 0.1), attention_dropout=hf.number("attn_pdrop", 0.1),
                    activation=hf.activation("activation_function", "gelu_new"), eps=hf.number("layer_norm_epsilon", 1e-5),
                    tied=hf.get("tie_word_embeddings") is not False, **width)  # fmt: skip


def _describe_config(c: GPTConfig) -> dict[str, object]:
    return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_inner": c.mlp_dim or c.mlp_ratio * c.dim,
            "activation_function": THEIRS[c.activation], "layer_norm_epsilon": c.eps, "resid_pdrop": c.dropout,
            "embd_pdrop": c.dropout, "attn_pdrop": c.attention_dropout, "tie_word_embeddings": c.tied,
            "bos_token_id": None, "eos_token_id": None}  # fmt: skip


def _map_tensors(c: GPTConfig) -> Iterator[TensorMap]:
    yield TensorMap("embed.tokens.weight", ("transformer.wte.weight",))
    yield TensorMap("embed.positions.table", ("transformer.wpe.weight",))
    for i in range(c.depth):
        for ours, hf in NORMS.items():
            yield from map_layer(f"blocks.{i}.{ours}", f"transformer.h.{i}.{hf}")
        for ours, hf in LINEARS.items():
            yield from map_layer(f"blocks.{i}.{ours}", f"transformer.h.{i}.{hf}", weight=TRANSPOSED)
    yield from map_layer("final_norm", "transformer.ln_f")
    if not c.tied:
        yield TensorMap("output.weight", ("lm_head.weight",))


FAMILY = HFFamily(
    "gpt2", "gpt", GPT, _parse_config, _describe_config, _map_tensors, SIZES, KEYS, "transformer.",
    aliases=lambda hf: {} if hf.get("tie_word_embeddings") is False else {"lm_head.weight": "transformer.wte.weight"},
    ignored=(".attn.bias", ".attn.masked_bias"),
    unsupported=("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "DoubleHeadsModel"),
    text=TextFormat("bytes", {"pad_token_id": "pad", "eos_token_id": "eos", "bos_token_id": "bos"},
                    unchecked=("pad_token_id",), adds_eos=False, padding_side="left"),
)  # fmt: skip
