"""How Hugging Face stores a model family: the types that each family's file fills in."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, NamedTuple, TypeVar

from torch import Tensor, nn

from regard.config import build
from regard.interop.keys import KeyTable, check_keys, read_activation

__all__ = ["FIRST_ROW", "SAME", "SEQ2SEQ", "ZEROS", "HFCheckpoint", "HFConfig", "HFFamily", "TensorMap", "TextFormat",
           "Transform", "Weights", "map_layer"]  # fmt: skip

HFConfig = Mapping[str, object]  # a parsed JSON file
Weights = dict[str, Tensor]
C = TypeVar("C")  # our config of a family

# our key → theirs, which depends on the family, besides the sizes
THEIR_KEYS = {
    "eps": ("layer_norm_eps", "layer_norm_epsilon"), "buckets": ("relative_attention_num_buckets",),
    "max_distance": ("relative_attention_max_distance",), "decoder_depth": ("num_decoder_layers", "decoder_layers"),
    "attention_dropout": ("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "dropout_rate"),
    "dropout": ("dropout", "dropout_rate", "hidden_dropout_prob", "resid_pdrop"), "drop_path": ("drop_path_rate",),
    "mlp_dim": ("n_inner", "d_ff", "intermediate_size", "encoder_ffn_dim"), "dims": ("hidden_sizes",),
}  # fmt: skip

ZEROS = ""  # instead of a tensor's name: Hugging Face has no such tensor, and ours is zero


class Transform(NamedTuple):
    """How a Hugging Face tensor becomes ours, and the inverse."""

    to_ours: Callable[[Tensor], Tensor]
    to_hf: Callable[[Tensor], Tensor]


SAME = Transform(lambda x: x, lambda x: x)
FIRST_ROW = Transform(lambda x: x[0], lambda x: x[None])  # (1, ...) → (...)


class TensorMap(NamedTuple):
    """One of our tensors, and the Hugging Face tensors that give it when stacked along the first dimension."""

    ours: str
    hf: tuple[str, ...]
    transform: Transform = SAME
    heights: tuple[int, ...] = ()  # of theirs, relative to each other; none: all equal

    def split(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Split our tensor into those that are stacked."""
        heights = self.heights or (1,) * len(self.hf)
        return tensor.split([height * (len(tensor) // sum(heights)) for height in heights])


def map_layer(ours: str, *hf: str, weight: Transform = SAME, bias: Transform = SAME) -> Iterator[TensorMap]:
    """Map the weight and the bias of a layer."""
    for kind, transform in (("weight", weight), ("bias", bias)):
        yield TensorMap(f"{ours}.{kind}", tuple(f"{name}.{kind}" for name in hf), transform)


@dataclass(frozen=True)
class TextFormat:
    """What the tokenizer and generation files of a text model contain."""

    tokenizer: str  # our most similar kind of tokenizer
    special_ids: Mapping[str, str]  # key in config.json → field of SpecialTokens
    unchecked: tuple[str, ...] = ()  # keys of special_ids that the model does not use
    roles: Mapping[str, str] = field(default_factory=dict)  # more roles in tokenizer_config.json → field
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    adds_bos: bool = False  # the tokenizer adds a start token to each text
    adds_eos: bool = True  # and an end token
    padding_side: Literal["left", "right"] = "right"
    generates: bool = True  # has a generation_config.json
    tokenizer_hint: str = ""  # how to get a tokenizer.json, if transformers cannot make one

    @property
    def reads_prompts(self) -> bool:
        """Whether it continues a text, before which its tokenizer may put a start token."""
        return self.generates and not self.seq2seq

    @property
    def seq2seq(self) -> bool:
        """Whether a decoder writes the output, beginning with a start token."""
        return "decoder_start_token_id" in self.special_ids


SEQ2SEQ = TextFormat("bpe", {"pad_token_id": "pad", "eos_token_id": "eos", "decoder_start_token_id": "bos",
                             "bos_token_id": "bos"}, unchecked=("bos_token_id",))  # fmt: skip


@dataclass(frozen=True)
class HFCheckpoint:
    """The config and the tensors of a checkpoint; generation_config.json gives keys that config.json lacks."""

    config: HFConfig
    weights: Weights
    generation: HFConfig = field(default_factory=dict)  # how it generates, from either file
    generation_file: str = "config.json"
    stored: frozenset[str] = frozenset()  # the names of all tensors, also of those that are tied
    inside: str = ""  # "decoder." for the table `decoder` of config.json

    def get(self, key: str, default: object = None) -> object:
        """A value of config.json."""
        return self.config.get(key, default)

    @property
    def architectures(self) -> list[str]:
        """The classes of transformers it was saved from; none if config.json names none."""
        names = self.get("architectures")
        return names if isinstance(names, list) else []

    def with_defaults(self, **values: object) -> "HFCheckpoint":
        """The same with values for the keys that config.json omits."""
        return replace(self, config={**values, **self.config})

    def check(self, keys: KeyTable) -> None:
        """Refuse a key that is unknown, or a value that our model does not support."""
        check_keys("config.json", self.config, keys, self.inside)

    def require(self, **wanted: object) -> None:
        """Refuse a value that our model does not support; a tuple lists alternatives."""
        for key, value in wanted.items():
            values = value if isinstance(value, tuple) else (value,)
            if self.get(key) is not None and self.get(key) not in values:
                supported = " or ".join(map(repr, values))
                raise ValueError(f"config.json has {self.inside}{key} = {self.get(key)!r}; regard's model has {supported}")

    def activation(self, key: str, default: str) -> str:
        """Our name of an activation."""
        return read_activation("config.json", key, default if self.get(key) is None else self.get(key), self.inside)

    def number(self, key: str, default: float) -> float:
        """A number, such as the epsilon of a norm."""
        value = default if self.get(key) is None else self.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"config.json has {self.inside}{key} = {value!r}; wanted a number")
        return float(value)

    def square(self, *keys: str) -> "HFCheckpoint":
        """The same with [64, 64] written as 64 for these keys; two different sides are refused."""
        config = dict(self.config)
        for key in keys:
            sides = config.get(key)
            if isinstance(sides, list):
                if len(sides) != 2 or sides[0] != sides[1]:
                    raise ValueError(f"config.json has {self.inside}{key} = {sides!r}; regard's model reads squares: use a "
                                     f"checkpoint with two equal sides")  # fmt: skip
                config[key] = sides[0]
        return replace(self, config=config)

    def build(self, cls: type[C], sizes: Mapping[str, str], **values: object) -> C:
        """Build our config; `sizes` maps our keys to theirs."""
        for key in sizes.values():
            if not isinstance(self.get(key), int):
                raise ValueError(f"config.json has {self.inside}{key} = {self.get(key)!r}; wanted a number")
        try:
            return build("config.json", cls, {**{ours: self.get(key) for ours, key in sizes.items()}, **values})
        except ValueError as error:
            raise ValueError(self._in_their_words(str(error), sizes)) from None

    def _in_their_words(self, message: str, sizes: Mapping[str, str]) -> str:
        """An error of our config with the keys of config.json: `eps is -1` → `layer_norm_eps is -1`."""
        for ours, keys in {**THEIR_KEYS, **{ours: (key,) for ours, key in sizes.items()}}.items():
            if key := next((key for key in keys if key in self.config), ""):
                message, found = re.subn(rf"\b{ours}(?=: | is )", f"{self.inside}{key}", message, count=1)
                if found:
                    return message
        return message

    def mlp_width(self, hidden_key: str, dim_key: str) -> dict[str, object]:
        """The width of the MLP for our config, as a multiple of the model's width if it is one."""
        hidden, dim = self.get(hidden_key), self.get(dim_key)
        if isinstance(hidden, int) and isinstance(dim, int) and dim > 0 and hidden > 0 and hidden % dim == 0:
            return {"mlp_ratio": hidden // dim}
        if not isinstance(hidden, int):
            raise ValueError(f"config.json has {self.inside}{hidden_key} = {hidden!r}; wanted a number")
        return {"mlp_dim": hidden}

    def count_classes(self, head: str) -> object:
        """The number of image classes; transformers' default is 2.  It may be 0 if the tensor `head` is absent."""
        names, trained = self.get("id2label"), head in self.weights
        count = len(names) if isinstance(names, dict) else self.get("num_labels", 2)
        if trained and count == 1:
            raise ValueError(f"{head} has one output (regression); regard's model needs two or more classes: "
                             f"use a checkpoint that has them")  # fmt: skip
        return count if trained else count or 2


@dataclass(frozen=True)
class HFFamily(Generic[C]):
    """One `model_type` of Hugging Face."""

    model_type: str
    family: str  # our name
    build: Callable[[C], nn.Module]
    parse_config: Callable[[HFCheckpoint], C]  # config.json → ours, or an error that names the difference
    describe_config: Callable[[C], dict[str, object]]  # ours → config.json without sizes, or such an error
    map_tensors: Callable[[C], Iterator[TensorMap]]
    sizes: Mapping[str, str]  # key of our config → key of config.json
    keys: KeyTable  # of its config.json, besides those that all families have
    prefix: str = ""  # of tensor names; a checkpoint without heads omits it
    aliases: Callable[[HFCheckpoint], Mapping[str, str]] = lambda hf: {}  # second name of a tied tensor → first name
    ignored: tuple[str, ...] = ()  # endings of tensors that we do not need
    dropped: tuple[str, ...] = ()  # endings of tensors of heads that ours lacks: an import names them
    unsupported: tuple[str, ...] = ()  # endings of classes whose head we lack and whose results depend on it
    heads: Callable[[C], tuple[str, ...]] = lambda config: ()  # of ours, optional in a checkpoint
    headless: str = ""  # the class without heads
    normalize: Callable[[HFCheckpoint], Weights] = lambda hf: hf.weights  # equivalent forms → one
    text: TextFormat | None = None  # None: it neither reads nor writes text
    image_processor: str = ""  # the kind, if preprocessor_config.json names none; empty: it reads no images

    def describe(self, config: C) -> dict[str, object]:
        """The config.json of a model."""
        sizes = {key: getattr(config, ours) for ours, key in self.sizes.items()}
        labels = {str(i): f"LABEL_{i}" for i in range(getattr(config, "classes", 0))}
        return {**self.describe_config(config), **sizes, **({"id2label": labels} if labels else {})}
