"""Untrained predictors of text with large weights, so that all heads differ, made without a run folder."""

import torch
from torch import nn

from regard.config import DecodeConfig, Run
from regard.data.text.config import TextData
from regard.data.text.tokenizer import Tokenizer, train_tokenizer
from regard.models import FAMILIES
from regard.tasks.language_model import TextGenerator
from regard.tasks.masked_lm import MaskedLM
from regard.tasks.text_classification import TextClassifier
from regard.tasks.text_embedding import TextEmbedder
from regard.tasks.translation import Translator

LINES = ["the dog runs in the park", "a cat sits on the mat", "der hund rennt im park", "eine katze sitzt da"]
SHAPES = {
    "transformer": {"dim": 12, "depth": 2, "heads": 3, "mlp_ratio": 2},
    "t5": {"dim": 12, "depth": 2, "heads": 3, "head_dim": 4, "mlp_dim": 16},
    "bahdanau": {"dim": 8, "hidden": 8, "align": 6, "readout": 8},
    "seq2seq": {"dim": 8, "hidden": 8, "depth": 1},
    "gpt": {"dim": 12, "depth": 2, "heads": 3, "max_len": 40},
    "bert": {"dim": 12, "depth": 2, "heads": 3, "max_len": 40},
}


def tiny_model(family: str, vocab: int, std: float = 0.4, **changes: object) -> nn.Module:
    """A model with random weights."""
    torch.manual_seed(0)
    model = FAMILIES[family].build(FAMILIES[family].config(**{**SHAPES[family], "vocab": vocab, **changes})).eval()
    for p in model.parameters():
        nn.init.normal_(p, std=std)
    return model


def make_run(model: nn.Module, family: str, task: str, beam: int = 1, **decode: object) -> Run:
    """What a predictor of this model was trained with."""
    return Run("tiny", family, model.config, task=task, data=TextData(), decode=DecodeConfig(beam_size=beam, **decode))


def translator(family: str, kind: str = "bpe", beam: int = 1, two_vocabularies: bool = False) -> Translator:
    """An encoder-decoder; with two vocabularies the answers have a smaller one of their own."""
    tokenizer, target = train_tokenizer(LINES, kind, 80), train_tokenizer(LINES[2:], kind, 40) if two_vocabularies else None
    model = tiny_model(family, tokenizer.vocab, **({"target_vocab": target.vocab} if target else {}))
    return Translator(model, tokenizer, make_run(model, family, "translation", beam), target_tokenizer=target)


def generator(kind: str = "bytes") -> TextGenerator:
    """A language model."""
    tokenizer = train_tokenizer(LINES, kind, 300)
    model = tiny_model("gpt", tokenizer.vocab)
    return TextGenerator(model, tokenizer, make_run(model, "gpt", "language_model"))


def encoder_tokenizer() -> Tokenizer:
    """Word pieces, with [CLS], [SEP] and [MASK]."""
    return train_tokenizer(LINES, "wordpiece", 80)


def masked_lm() -> MaskedLM:
    """A masked language model."""
    model = tiny_model("bert", (words := encoder_tokenizer()).vocab)
    return MaskedLM(model, words, make_run(model, "bert", "masked_lm"))


def text_classifier(labels: tuple[str, ...] = ("bad", "fair", "good")) -> TextClassifier:
    """A text classifier."""
    model = tiny_model("bert", (words := encoder_tokenizer()).vocab, classes=len(labels))
    return TextClassifier(model, words, make_run(model, "bert", "text_classification"), labels)


def text_embedder() -> TextEmbedder:
    """A text encoder."""
    model = tiny_model("bert", (words := encoder_tokenizer()).vocab)
    return TextEmbedder(model, words, make_run(model, "bert", "masked_lm"))
