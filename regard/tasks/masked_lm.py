"""Masked language modelling (BERT): some tokens of a text are masked and predicted from all others; the run fills in [MASK].

Shapes: B texts, T tokens, N masked tokens, D width, V vocabulary.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from regard.config import Run
from regard.data.position import BatchStream, DataPosition
from regard.data.text.config import TextData
from regard.data.text.dataset import TextDataset, encode_text_split, prepare_text, require_special
from regard.data.text.store import Ints
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.windows import MaskedBatch, all_masked_windows, masked_windows
from regard.tasks.language_model import perplexity, plain_text, validation_of
from regard.tasks.loss import linear_cross_entropy
from regard.tasks.metrics import Score, evaluate, to_device
from regard.tasks.origin import predictor_repr
from regard.tasks.task import Card, Progress, Report, ScoreOptions, Task, require_context
from regard.tasks.text_embedding import Prediction, TextEmbedder, TextEncoder

__all__ = ["TASK", "FilledText", "MaskedLM"]

MASK = "[MASK]"  # what stands for a masked word in a user's text, whatever the tokenizer calls it
BASELINE_TOKENS = 4_000_000  # training tokens that the baselines count
LM_HEAD = "lm_head"


class PredictionHead(Protocol):
    """Vectors → logits of masked tokens."""

    output: nn.Linear

    def features(self, x: Tensor) -> Tensor:
        """What the output layer reads: (..., D) → (..., D)."""

    def __call__(self, x: Tensor) -> Tensor:
        """(..., D) → (..., V)."""


class MaskedModel(TextEncoder, Protocol):
    """What this task asks of a model."""

    lm_head: PredictionHead


class FilledText(NamedTuple):
    """A text with its masked words filled in, and the most likely words for each, best first."""

    text: str
    predictions: list[list[Prediction]]


@dataclass(frozen=True, repr=False)
class MaskedLM:
    """A trained masked language model with its tokenizer."""

    VERBS: ClassVar = ("fill", "embed")  # of the command line
    INPUT: ClassVar = "text"
    HINTS: ClassVar = TextEmbedder.HINTS

    __repr__ = predictor_repr

    model: nn.Module
    tokenizer: Tokenizer
    run: Run

    max_len, encode, embed = TextEmbedder.max_len, TextEmbedder.encode, TextEmbedder.embed
    embed_word, embed_spans = TextEmbedder.embed_word, TextEmbedder.embed_spans

    def encode_masked(self, text: str) -> list[int]:
        """Token ids of a text, in which [MASK] is the mask token; refuses one that is too long."""
        if self.tokenizer.special.mask is None and MASK in text:
            raise ValueError("this model's tokenizer has no mask token; it was not trained to predict masked words")
        [ids] = self.tokenizer.encode([self.spell_mask(text)], parse_special=True)
        if len(ids) > self.max_len:
            raise ValueError(f"the text has {len(ids):,} tokens; this model takes at most {self.max_len:,}: shorten it")
        if MASK in text and self.tokenizer.special.mask not in ids:
            [name] = self.tokenizer.ids_to_tokens([self.tokenizer.special.mask or 0])
            raise ValueError(f"this model's tokenizer has {name} among its words, not as a special token; flag it as special in "
                             f"tokenizer.json")  # fmt: skip
        return ids

    def spell_mask(self, text: str) -> str:
        """A text with the tokenizer's own name for [MASK]."""
        mask = self.tokenizer.special.mask
        return text if mask is None else text.replace(MASK, self.tokenizer.ids_to_tokens([mask])[0])

    @torch.inference_mode()
    def predict_masked(self, tokens: list[int]) -> tuple[list[int], Tensor]:
        """Where the masked tokens of a text (T,), its start and end included, are, and the log-probabilities of each (N, V)."""
        ids = torch.tensor([tokens], device=next(self.model.parameters()).device)
        masked = [n for n, token in enumerate(tokens) if token == self.tokenizer.special.mask]
        logits = self.model.lm_head(self.model.encode(ids)[0, masked])  # type: ignore[operator]  # (N, V)
        return masked, logits.log_softmax(-1)

    def best_words(self, log_probs: Tensor, top: int) -> tuple[Tensor, Tensor]:
        """The probabilities and ids of the most likely tokens that are not special: (N, V) → (N, top) each."""
        # probabilities are of the whole vocabulary; special tokens are left out of the list
        special = torch.tensor(self.tokenizer.special_ids, device=log_probs.device)
        listed = log_probs.exp().index_fill(-1, special, -1.0)
        values, ids = listed.topk(min(top, log_probs.shape[-1] - len(special)))
        return values, ids

    @torch.inference_mode()
    def fill(self, text: str, top: int = 5) -> FilledText:
        """Predict each word masked by [MASK] from all the others; a probability is that among all tokens, special ones too."""
        if not isinstance(text, str):
            raise ValueError("one text is wanted, not a list; call fill for each")
        special = self.tokenizer.special
        if special.mask is None:
            raise ValueError("this model's tokenizer has no mask token; it was not trained to predict masked words")
        if MASK not in text:
            raise ValueError(f"no {MASK} in {text[:60]!r}; write {MASK} where a word is to be predicted")
        ids = self.encode_masked(text)
        masked, log_probs = self.predict_masked([special.bos, *ids, special.eos])
        best_probabilities, best = self.best_words(log_probs, top)
        for position, word in zip(masked, best[:, 0].tolist(), strict=True):
            ids[position - 1] = word
        predictions = [
            [Prediction(self.tokenizer.decode([word]).strip(), p) for word, p in zip(words, ps, strict=True)]
            for words, ps in zip(best.tolist(), best_probabilities.tolist(), strict=True)
        ]
        return FilledText(self.tokenizer.decode(ids), predictions)


def masked_token_loss(model: MaskedModel, batch: MaskedBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Tokens that were chosen, and mostly masked, are predicted from all others."""
    features = model.lm_head.features(model.encode(batch.shown)[batch.chosen])  # (N, D): no work on other tokens
    output = model.lm_head.output
    return linear_cross_entropy(features, output.weight, output.bias, batch.truth[batch.chosen], label_smoothing)


def _prepare(run: Run, tokenizer: Path, report: Report, progress: Progress) -> TextDataset:
    extra = () if run.data.tokenizer == "wordpiece" else (MASK,)
    check = partial(require_special, file=tokenizer, task=TASK.name, mask=True)
    return prepare_text(run.data, tokenizer, report, progress, extra_tokens=extra, task=TASK.name, check=check)


def _batches(run: Run, dataset: TextDataset, position: DataPosition) -> BatchStream[MaskedBatch]:
    text, tokenizer, t = plain_text(dataset.train).tokens, dataset.tokenizer, run.train
    special, ids, vocab = tokenizer.special, tokenizer.special_ids, tokenizer.vocab
    return masked_windows(text, run.data.max_len, t.batch_tokens, t.seed, special, ids, vocab, position)


def _validation(run: Run, dataset: TextDataset) -> Iterator[MaskedBatch]:
    text, tokenizer = plain_text(dataset.valid).tokens, dataset.tokenizer
    special, ids, vocab = tokenizer.special, tokenizer.special_ids, tokenizer.vocab
    return all_masked_windows(text, run.data.max_len, run.train.batch_tokens, special, ids, vocab)


def _samples(predictor: MaskedLM | TextEmbedder, dataset: TextDataset) -> list[str]:
    assert isinstance(predictor, MaskedLM)
    words = dataset.text_sample.split()
    while words and len(predictor.tokenizer.encode([" ".join(words)])[0]) > predictor.max_len - 1:
        words.pop()
    if not words:
        return []
    middle = len(words) // 2
    text = " ".join(MASK if i == middle else word for i, word in enumerate(words))
    best = ", ".join(f"{p.text} {p.probability:.0%}" for p in predictor.fill(text, top=3).predictions[0])
    return [f"{text}  →  {best}   (wanted: {words[middle]})"]


def _score(predictor: MaskedLM | TextEmbedder, split: str, options: ScoreOptions) -> list[Score]:
    """Perplexity and accuracy of masked tokens, compared with the unigram and bigram baselines."""
    run, tokenizer, model = predictor.run, predictor.tokenizer, predictor.model
    if LM_HEAD in run.untrained:
        raise ValueError("this model was not trained to predict masked words; use one that was, or train it: "
                         "regard train wikitext-bert init=THIS_FOLDER")  # fmt: skip
    dataset = validation_of(tokenizer, run, split, options.report)
    loss = evaluate(model, _validation(run, dataset), masked_token_loss)
    predicted = _predict(model, _validation(run, dataset))
    accuracy = 100 * float((predicted.best == predicted.truth).mean())
    scores = [perplexity(loss), Score("masked-token accuracy", accuracy, f"of {len(predicted.truth):,} masked tokens", "%")]
    if not (run.data.source or run.data.train):
        return scores
    try:
        train = encode_text_split(run.data, "train", tokenizer, lambda text: None)
    except (ValueError, OSError) as error:
        options.report(f"not compared with the baselines of the training text: {error}")
        return scores
    return scores + _baselines(predicted, train.tokens[:BASELINE_TOKENS].astype(np.int64), tokenizer.vocab)


class _Predicted(NamedTuple):
    """Masked tokens: the model's best prediction, the truth, and the token before."""

    best: Ints
    truth: Ints
    before: Ints


@torch.inference_mode()
def _predict(model: nn.Module, batches: Iterable[MaskedBatch]) -> _Predicted:
    device, columns = next(model.parameters()).device, list[list[Ints]]()
    for batch in batches:
        moved = to_device(batch, device)
        best = model.lm_head(model.encode(moved.shown)[moved.chosen]).argmax(-1).cpu()  # type: ignore[operator]
        rows, positions = batch.chosen.nonzero().T
        columns.append([best.numpy(), batch.truth[rows, positions].numpy(), batch.truth[rows, positions - 1].numpy()])
    return _Predicted(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def _baselines(predicted: _Predicted, text: Ints, vocab: int) -> list[Score]:
    """What unigram and bigram counts of the training text reach; bigrams smoothed as by Witten and Bell 1991."""
    unigrams = np.bincount(text, minlength=vocab) + 1  # add-one smoothing
    p_unigram = unigrams[predicted.truth] / unigrams.sum()
    bigrams, counts = np.unique(text[:-1] * vocab + text[1:], return_counts=True)
    first = bigrams // vocab
    total, kinds = np.bincount(first, counts, vocab), np.bincount(first, minlength=vocab)
    best = np.full(vocab, unigrams.argmax())
    order = np.lexsort((counts, first))
    best[first[order]] = bigrams[order] % vocab  # the last of each first token is its most frequent
    wanted = predicted.before * vocab + predicted.truth
    at = np.minimum(np.searchsorted(bigrams, wanted), len(bigrams) - 1)
    seen = np.where(bigrams[at] == wanted, counts[at], 0)
    after, many = total[predicted.before], kinds[predicted.before]
    p_bigram = np.where(many > 0, (seen + many * p_unigram) / np.maximum(after + many, 1), p_unigram)
    rows = (
        ("unigram baseline", unigrams.argmax() == predicted.truth, p_unigram),
        ("bigram baseline", best[predicted.before] == predicted.truth, p_bigram),
    )
    return [
        Score(name, 100 * float(right.mean()), f"of the training text; perplexity {math.exp(-float(np.log(p).mean())):.2f}", "%")
        for name, right, p in rows
    ]


TASK: Task[MaskedModel, TextDataset, MaskedBatch, MaskedLM | TextEmbedder] = Task(
    name="masked_lm",
    kinds=("encoder",),
    data=TextData,
    card=Card("predicts masked words", "fill-mask", "fill", 'fill("… [MASK] …")', '"… [MASK] …"'),
    prepare=_prepare,
    batches=_batches,
    validation=_validation,
    loss=masked_token_loss,
    predictor=lambda model, run, tokenizer, _: (TextEmbedder if LM_HEAD in run.untrained else MaskedLM)(model, tokenizer, run),
    score=_score,
    samples=_samples,
    check=lambda run, model: require_context(run, model.max_len, extra=0),
    trains=(LM_HEAD,),
)
