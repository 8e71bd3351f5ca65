"""BERT ↔ Hugging Face's bert: config.json and tensor names."""

from collections.abc import Iterator

from regard.interop.keys import THEIRS, KeyTable
from regard.interop.tables import HFCheckpoint, HFFamily, TensorMap, TextFormat, map_layer
from regard.models.bert import BERT, BERTConfig

__all__ = ["FAMILY"]

KEYS = KeyTable.of(
    read="vocab_size hidden_size num_hidden_layers num_attention_heads max_position_embeddings type_vocab_size intermediate_size "
    "hidden_act layer_norm_eps hidden_dropout_prob attention_probs_dropout_prob tie_word_embeddings",
    without_effect="classifier_dropout directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers "
    "pooler_size_per_head pooler_type",
    refused={"position_embedding_type": ("absolute",)},
)
SIZES = {"vocab": "vocab_size", "dim": "hidden_size", "depth": "num_hidden_layers", "heads": "num_attention_heads",
         "max_len": "max_position_embeddings", "segments": "type_vocab_size"}  # our key → theirs  # fmt: skip
BLOCK = {
    "attn.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"), "attn.out": ("attention.output.dense",),
    "attn_residual.norm": ("attention.output.LayerNorm",), "mlp.up": ("intermediate.dense",), "mlp.down": ("output.dense",),
    "mlp_residual.norm": ("output.LayerNorm",),
}  # fmt: skip


def _parse_config(hf: HFCheckpoint) -> BERTConfig:
    head = any(name.startswith("cls.predictions.") for name in hf.weights)
    if hf.get("tie_word_embeddings") is False and head and "cls.predictions.decoder.weight" not in hf.stored:
        raise ValueError("config.json has tie_word_embeddings = False, but there is no tensor cls.predictions.decoder.weight; "
                         "save the checkpoint again with its output layer")  # fmt: skip
    for name in hf.architectures:
        if name in ("BertForTokenClassification", "BertForMultipleChoice"):
            raise ValueError(f"config.json has architectures = {name!r}; regard's model classifies whole texts, as "
                             f"'BertForSequenceClassification' does")  # fmt: skip
    classes = sum(hf.weights["classifier.weight"].shape[:1]) if "classifier.weight" in hf.weights else 0
    if classes == 1:
        raise ValueError("classifier.weight has one output (a score, as in a cross-encoder); regard's model needs two or "
                         "more classes: use a checkpoint that has them")  # fmt: skip
    return hf.build(BERTConfig, SIZES, classes=classes, dropout=hf.number("hidden_dropout_prob", 0.1),
                    attention_dropout=hf.number("attention_probs_dropout_prob", 0.1),
                    activation=hf.activation("hidden_act", "gelu"), eps=hf.number("layer_norm_eps", 1e-12),
                    **hf.mlp_width("intermediate_size", "hidden_size"))  # fmt: skip


def _describe_config(c: BERTConfig) -> dict[str, object]:
    return {"model_type": "bert", "architectures": ["BertForSequenceClassification" if c.classes else "BertForMaskedLM"],
            "hidden_act": THEIRS[c.activation], "layer_norm_eps": c.eps,
            "intermediate_size": c.mlp_dim or c.mlp_ratio * c.dim, "hidden_dropout_prob": c.dropout,
            "attention_probs_dropout_prob": c.attention_dropout, "tie_word_embeddings": True}  # fmt: skip


def _map_tensors(c: BERTConfig) -> Iterator[TensorMap]:
    yield TensorMap("tokens.weight", ("bert.embeddings.word_embeddings.weight",))
    yield TensorMap("positions.table", ("bert.embeddings.position_embeddings.weight",))
    yield TensorMap("segments.weight", ("bert.embeddings.token_type_embeddings.weight",))
    yield from map_layer("norm", "bert.embeddings.LayerNorm")
    for i in range(c.depth):
        for ours, names in BLOCK.items():
            yield from map_layer(f"blocks.{i}.{ours}", *(f"bert.encoder.layer.{i}.{name}" for name in names))
    yield from map_layer("pooler", "bert.pooler.dense")
    yield from map_layer("lm_head.transform", "cls.predictions.transform.dense")
    yield from map_layer("lm_head.norm", "cls.predictions.transform.LayerNorm")
    yield TensorMap("lm_head.output.bias", ("cls.predictions.bias",))
    if c.classes:
        yield from map_layer("classifier", "classifier")


FAMILY = HFFamily(
    "bert", "bert", BERT, _parse_config, _describe_config, _map_tensors, SIZES, KEYS, "bert.",
    aliases=lambda hf: {"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
             "cls.predictions.decoder.bias": "cls.predictions.bias"},
    ignored=("embeddings.position_ids",), dropped=("cls.seq_relationship.weight", "cls.seq_relationship.bias"),
    heads=lambda c: ("lm_head",) if c.classes else ("lm_head", "pooler"), headless="BertModel",
    text=TextFormat("wordpiece", {"pad_token_id": "pad"}, roles={"cls": "bos", "sep": "eos"}, adds_bos=True,
                    inputs=("input_ids", "token_type_ids", "attention_mask"), generates=False),
)  # fmt: skip
