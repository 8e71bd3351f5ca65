"""A small text encoder with random weights."""

import pytest
import torch

from regard.config import DecodeConfig, Run
from regard.data.text.config import TextData
from regard.data.text.tokenizer import train_tokenizer
from regard.models.bert import BERT, BERTConfig
from regard.tasks.masked_lm import MaskedLM
from regard.tasks.text_classification import TextClassifier

TEXTS = ["the cat sat on the mat", "a dog", "the mat", "", "the cat and the dog sat on a mat " * 3]
LABELS = ("bad", "good", "neither")


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """One of them is empty, one longer than the model's context."""
    return TEXTS


@pytest.fixture(scope="session")
def classifier() -> TextClassifier:
    torch.manual_seed(0)
    tokenizer = train_tokenizer(TEXTS * 3, "wordpiece", 60)
    config = BERTConfig(vocab=tokenizer.vocab, dim=16, depth=2, heads=2, max_len=20, classes=3)
    model = BERT(config).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    run = Run("tiny", "bert", config, task="text_classification", data=TextData(), decode=DecodeConfig(batch_size=2))
    return TextClassifier(model, tokenizer, run, LABELS)


@pytest.fixture(scope="session")
def masked_lm(classifier: TextClassifier) -> MaskedLM:
    """The same model with its other head."""
    return MaskedLM(classifier.model, classifier.tokenizer, classifier.run)
