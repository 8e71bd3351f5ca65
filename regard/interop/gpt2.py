"""GPT-2 ↔ Hugging Face's gpt2: config.json and tensor names."""

from collections.abc import Iterator

from regard.interop.tables import HFCheckpoint, HFFamily, TensorMap, TextFormat, Transform, map_layer
from regard.models.gpt import GPT, GPTConfig

__all__ = ["FAMILY"]

SIZES = {"vocab": "vocab_size", "dim": "n_embd", "depth": "n_layer", "heads": "n_head", "max_len": "n_positions"}
TRANSPOSED = Transform(lambda x: x.T, lambda x: x.T)  # a Conv1D computes x W, our Linear x Wᵀ
NORMS = {"attn_residual.norm": "ln_1", "mlp_residual.norm": "ln_2"}
LINEARS = {"attn.qkv": "attn.c_attn", "attn.out": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}


def _parse_config(hf: HFCheckpoint) -> GPTConfig:
    hf.require(activation_function=("gelu_new", "gelu_pytorch_tanh"), layer_norm_epsilon=1e-5, scale_attn_weights=True,
               scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)  # fmt: skip
    width = {} if hf.get("n_inner") is None else hf.mlp_width("n_inner", "n_embd")
    return hf.build(GPTConfig, SIZES, dropout=hf.get("resid_pdrop", 0.1), attention_dropout=hf.get("attn_pdrop", 0.1), **width)


def _describe_config(c: GPTConfig) -> dict[str, object]:
    return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_inner": c.mlp_dim or c.mlp_ratio * c.dim,
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "resid_pdrop": c.dropout,
            "embd_pdrop": c.dropout, "attn_pdrop": c.attention_dropout, "tie_word_embeddings": True,
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


FAMILY = HFFamily(
    "gpt2", "gpt", GPT, _parse_config, _describe_config, _map_tensors, SIZES, "transformer.",
    aliases={"lm_head.weight": "transformer.wte.weight"},
    ignored=(".attn.bias", ".attn.masked_bias"),
    text=TextFormat("bytes", {"pad_token_id": "pad", "eos_token_id": "eos", "bos_token_id": "bos"},
                    unchecked=("pad_token_id",), adds_eos=False, padding_side="left"),
)  # fmt: skip
