"""The keys of a foreign JSON file in three columns: read, without effect on the result, refused unless they have no effect.

A key that stands in none is refused, so that a checkpoint never gives other results than in its own library without a word.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from regard.config import nearest

__all__ = ["ACTIVATIONS", "CONFIG", "THEIRS", "KeyTable", "check_keys", "read_activation"]

# Their names of activations → ours.
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
               "gelu_pytorch_tanh": "gelu_tanh", "silu": "silu", "swish": "silu"}  # fmt: skip
THEIRS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}  # our names → theirs


@dataclass(frozen=True)
class KeyTable:
    """The columns of one file; None as a value means that the key is absent, in every column."""

    read: frozenset[str] = frozenset()
    without_effect: frozenset[str] = frozenset()
    refused: Mapping[str, tuple[object, ...]] = field(default_factory=dict)  # key → the values that have no effect

    @classmethod
    def of(cls, read: str, without_effect: str = "", refused: Mapping[str, tuple[object, ...]] | None = None) -> "KeyTable":
        """A table, with the keys of the first two columns separated by spaces."""
        return cls(frozenset(read.split()), frozenset(without_effect.split()), refused or {})

    def __or__(self, other: "KeyTable") -> "KeyTable":
        """Both tables; where a key stands in both, the column of `other` counts."""
        theirs = other.keys
        refused = {key: values for key, values in self.refused.items() if key not in theirs}
        return KeyTable((self.read - theirs) | other.read, (self.without_effect - theirs) | other.without_effect,
                        {**refused, **other.refused})  # fmt: skip

    @property
    def keys(self) -> frozenset[str]:
        """All keys of the table."""
        return self.read | self.without_effect | frozenset(self.refused)


# Of every config.json; most are of transformers 4, which wrote all of them.
CONFIG = KeyTable.of(
    read="model_type architectures id2label num_labels pad_token_id bos_token_id eos_token_id decoder_start_token_id",
    without_effect="dtype torch_dtype transformers_version return_dict output_attentions output_hidden_states output_scores "
    "chunk_size_feed_forward label2id use_cache torchscript use_bfloat16 use_return_dict tf_legacy_loss finetuning_task "
    "tokenizer_class task_specific_params gradient_checkpointing initializer_range license name_or_path sep_token_id "
    "tie_encoder_decoder attn_implementation output_past",
    refused={"pruned_heads": ({},), "quantization_config": (), "auto_map": (), "adapters": (), "prefix": ("",),
             "cross_attention_hidden_size": (), "add_cross_attention": (False,), "is_decoder": (False,),
             "sentence_transformers": (),
             "is_encoder_decoder": (False,), "problem_type": ("single_label_classification",)},
)  # fmt: skip


def check_keys(file: str, values: Mapping[str, object], table: KeyTable, inside: str = "") -> None:
    """Refuse a key of a file that is unknown, or has a value that regard's model does not support.

    A key that begins with "_" is private to the library that wrote it, and None means that a key is not used.
    """
    for key, value in values.items():
        if value is None or key.startswith("_") or key in table.read or key in table.without_effect:
            continue
        name, shown = f"{inside}{key}", _shorten(value)
        if key not in table.refused:
            near = nearest(key, sorted(table.read | frozenset(table.refused)))
            raise ValueError(f"{file} has {name} = {shown}, which regard does not know{near}; it may change the results: if it "
                             f"does not, remove it from {file}")  # fmt: skip
        wanted = table.refused[key]
        if not _is_one_of(value, wanted):
            supported = f"regard's model has {' or '.join(map(repr, wanted))}" if wanted else "regard does not support it"
            raise ValueError(f"{file} has {name} = {shown}; {supported}: use another checkpoint")


def read_activation(file: str, key: str, value: object, inside: str = "") -> str:
    """Our name of an activation."""
    if not isinstance(value, str) or value not in ACTIVATIONS:
        known = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(f"{file} has {inside}{key} = {_shorten(value)}; regard's model has {known}: use another checkpoint")
    return ACTIVATIONS[value]


def _is_one_of(value: object, wanted: Collection[object]) -> bool:
    """Whether a value is among those wanted; True is not 1."""
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in wanted)


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
