"""Small Hugging Face models with random weights, and their logits beside ours.

Shapes: B batch, S source and T target length.
"""

from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn

from regard.data.text.tokenizer import SpecialTokens

CLOSE = {"rtol": 0, "atol": 1e-4}
GPT = {"vocab_size": 97, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 48}


BERT = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128,
        "max_position_embeddings": 48}  # fmt: skip


T5 = {"vocab_size": 97, "d_model": 32, "num_layers": 3, "num_heads": 3, "d_kv": 16, "d_ff": 64, "decoder_start_token_id": 0}


V11 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
MARIAN = {"vocab_size": 97, "d_model": 32, "max_position_embeddings": 48, "scale_embedding": True,
          **{f"{side}_{key}": n for side in ("encoder", "decoder")
             for key, n in (("layers", 3), ("attention_heads", 4), ("ffn_dim", 64))}}  # fmt: skip


SMALL = {  # kind → model class, config class, sizes, padding id
    "gpt2": ("GPT2LMHeadModel", transformers.GPT2Config, GPT, 0),
    "gpt2, odd mlp": ("GPT2LMHeadModel", transformers.GPT2Config, {**GPT, "n_inner": 100}, 0),
    "bert": ("BertForMaskedLM", transformers.BertConfig, BERT, 0),
    "bert, odd mlp": ("BertForMaskedLM", transformers.BertConfig, {**BERT, "intermediate_size": 75}, 0),
    "bert classes": ("BertForSequenceClassification", transformers.BertConfig, {**BERT, "num_labels": 3}, 0),
    "t5": ("T5ForConditionalGeneration", transformers.T5Config, T5, 0),
    "t5 v1.1": ("T5ForConditionalGeneration", transformers.T5Config, {**T5, **V11}, 0),
    "marian relu": ("MarianMTModel", transformers.MarianConfig,
                    {**MARIAN, "activation_function": "relu", "pad_token_id": 0, "eos_token_id": 1,
                     "decoder_start_token_id": 0, "forced_eos_token_id": None}, 0),
    "marian": ("MarianMTModel", transformers.MarianConfig,  # as released: swish, the last token is padding and start
               {**MARIAN, "activation_function": "swish", "pad_token_id": 96, "eos_token_id": 1,
                "decoder_start_token_id": 96, "forced_eos_token_id": None}, 96),
}  # fmt: skip
REAL = {  # released sizes
    "gpt2": ("GPT2LMHeadModel", transformers.GPT2Config, {}, 0),
    "bert": ("BertForMaskedLM", transformers.BertConfig, {}, 0),
    "bert classes": ("BertForSequenceClassification", transformers.BertConfig, {"num_labels": 2}, 0),
    "t5": ("T5ForConditionalGeneration", transformers.T5Config, {"decoder_start_token_id": 0}, 0),
    "t5 v1.1": ("T5ForConditionalGeneration", transformers.T5Config,
                {"num_layers": 8, "num_heads": 6, "d_ff": 1024, "decoder_start_token_id": 0, **V11}, 0),
    "marian": ("MarianMTModel", transformers.MarianConfig,  # opus-mt-en-de
               {**MARIAN, "vocab_size": 58101, "d_model": 512, "max_position_embeddings": 512,
                "activation_function": "swish",
                **{f"{side}_{key}": n for side in ("encoder", "decoder")
                   for key, n in (("layers", 6), ("attention_heads", 8), ("ffn_dim", 2048))}}, 58100),
}  # fmt: skip


class Both(NamedTuple):
    kind: str
    theirs: Any
    family: str
    config: Any
    ours: Any
    pad: int


def randomize(model: nn.Module) -> nn.Module:
    """Set random weights, large enough that a wrong layer changes the logits; also norms and biases."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "embed_positions" in name:
                continue  # computed, not learned
            norm = "norm" in name.lower() or ".ln_" in name
            mean, std = float(norm and name.endswith("weight")), 0.2 if norm or p.ndim > 1 else 0.1
            p.normal_(mean, std, generator=generator)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(std=0.3, generator=generator)
    return model.eval()


def perturb(model: nn.Module) -> nn.Module:
    """Perturb norms and biases only: larger weights in a large model would lose precision."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in (*(p for p in model.parameters() if p.ndim == 1), getattr(model, "final_logits_bias", torch.zeros(1))):
            p.add_(torch.randn(p.shape, generator=generator), alpha=0.1)
    return model.eval()


def sharpen_attention(model: nn.Module) -> nn.Module:
    """Scale queries and keys, so that heads attend to few tokens; else the output repeats one token for any source."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.mul_(5 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1)
    return model


def hf_model(kind: str, table: dict[str, tuple[str, type, dict[str, Any], int]]) -> Any:
    cls, config, sizes, _ = table[kind]
    model = getattr(transformers, cls)(config(**sizes))
    model.set_attn_implementation("eager")  # not the fused kernel that we call
    if kind == "t5 v1.1":  # transformers ties a new model; released ones are untied
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.flip(0) * model.config.d_model**-0.5)
    return model


def sentences(count: int, max_len: int, seed: int, vocab: int = 96, pad: int = 0) -> tuple[Tensor, Tensor]:
    """Random tokens of several lengths (B, S), padded, and the mask of real tokens."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, vocab, (count, max_len), generator=generator)
    real = torch.arange(max_len) < torch.randint(1, max_len + 1, (count, 1), generator=generator)
    return tokens.masked_fill(~real, pad), real


def logits(both: Both, count: int = 5, max_len: int = 40) -> tuple[Tensor, Tensor]:
    """Hugging Face's logits and ours of a padded batch, at the real tokens."""
    kind, theirs, ours, vocab = both.kind, both.theirs, both.ours, both.config.vocab - 1
    source, real = sentences(count, max_len, 0, vocab, both.pad)
    assert not real.all()
    mask, theirs_mask = real[:, None, None], real.long()
    if both.family == "gpt":
        return theirs(source, attention_mask=theirs_mask).logits[real], ours(source)[real]
    if both.family == "bert":
        kinds = (torch.arange(max_len) > 10).long().expand(count, -1)
        wanted = theirs(source, attention_mask=theirs_mask, token_type_ids=kinds).logits
        if kind == "bert classes":
            return wanted, ours.classify(source, mask, kinds)
        return wanted[real], ours(source, mask, kinds)[real]
    target, _ = sentences(count, max_len - 10, 1, vocab)
    return theirs(source, attention_mask=theirs_mask, decoder_input_ids=target).logits, ours(source, target)


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.named_parameters(), b.named_parameters(), strict=True)
    return all(name == other and torch.equal(p, q) for (name, p), (other, q) in pairs)


def special_tokens(pad: int) -> SpecialTokens:
    return SpecialTokens(pad, pad, 1, 2, None, ())
