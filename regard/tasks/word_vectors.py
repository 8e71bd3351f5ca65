"""Word vectors: one plain text in, a vector for each word of its vocabulary out; the run then finds the nearest words.

Shapes: N blocks, C centres of a block, K words of a block, G groups, M negatives of a group, D width, W words.
"""

import difflib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config import Run
from regard.data.position import BatchStream, DataPosition
from regard.data.sources import SOURCES, locate
from regard.data.text.config import WordData
from regard.data.text.dataset import encode_text_split, prepare_text
from regard.data.text.readers import read_ratings
from regard.data.text.skipgram import SkipGramBatch, WordSampler, all_skipgrams, count_words, skipgrams
from regard.data.text.store import Ints, TextStore
from regard.data.text.tokenizer import Tokenizer
from regard.models.word2vec import Word2VecConfig
from regard.tasks.language_model import plain_text
from regard.tasks.metrics import Score, evaluate, spearman
from regard.tasks.origin import predictor_repr
from regard.tasks.task import Card, Progress, Report, ScoreOptions, Task
from regard.tasks.text_embedding import WordOccurrences, find_word

__all__ = ["TASK", "Neighbor", "WordVectors", "negative_sampling_loss"]

RATINGS = "wordsim"  # the data set of rated word pairs
SAMPLE_RANKS = (300, 1000, 3000)  # words, by frequency, whose neighbors are shown at every evaluation
SUGGESTIONS = 3  # words offered for one that is not in the vocabulary


class SkipGramModel(Protocol):
    """What this task asks of a model."""

    config: Word2VecConfig
    input: nn.Embedding
    output: nn.Embedding


class Neighbor(NamedTuple):
    """A word, and the cosine of its vector with the one asked for."""

    word: str
    cosine: float


class WordDataset(NamedTuple):
    """The text that training reads."""

    tokenizer: Tokenizer
    train: TextStore
    valid: TextStore
    counts: Ints  # of each word in the training text
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class WordVectors:
    """Trained word vectors with their vocabulary."""

    VERBS: ClassVar = ("neighbors", "embed")  # of the command line
    INPUT: ClassVar = "words"
    HINTS: ClassVar = {"show": "holds word vectors, which have no attention to show; use regard neighbors THIS_FOLDER WORD"}

    __repr__ = predictor_repr

    model: nn.Module
    tokenizer: Tokenizer
    run: Run

    @property
    def words(self) -> list[str]:
        """The vocabulary without special tokens, most frequent first."""
        return [word for i, word in enumerate(self._tokens) if i not in self.tokenizer.special_ids]

    @property
    def vectors(self) -> Tensor:
        """The vectors of `words`, as trained: (W, D)."""
        return self._table[[i for i in range(len(self._tokens)) if i not in self.tokenizer.special_ids]]

    def vector(self, word: str) -> Tensor:
        """The vector of a word, as trained: (D,)."""
        return self._table[self._id(word)]

    def embed(self, words: Sequence[str], progress: Callable[[int], None] = lambda done: None) -> Tensor:
        """A unit vector for each word: (W, D)."""
        if isinstance(words, str):
            raise ValueError("a list of words is wanted, not one string; put it in brackets")
        return self._units[[self._id(word) for word in words]]

    def embed_word(self, texts: Sequence[str], word: str, progress: Callable[[int], None] = lambda done: None,
                   first: int = 1) -> WordOccurrences:  # fmt: skip
        """A unit vector for each occurrence of a word: always the same one, whatever its context.

        Upper and lower case are the same word.  Error messages number the texts, from `first` on.
        """
        places = find_word(word, texts, first)
        return WordOccurrences(places, self.embed([word]).repeat(len(places), 1))

    def neighbors(self, word: str, top: int = 10) -> list[Neighbor]:
        """The words whose vectors have the largest cosines with that of a word."""
        index = self._id(word)
        return self._nearest(self._units[index], [index], top)

    def analogy(self, a: str, b: str, c: str, top: int = 10) -> list[Neighbor]:
        """The words nearest to a - b + c, of unit vectors, without the three: king - man + woman is about queen."""
        ids = [self._id(word) for word in (a, b, c)]
        first, second, third = self._units[ids]
        return self._nearest(F.normalize(first - second + third, dim=0), ids, top)

    def _nearest(self, vector: Tensor, without: list[int], top: int) -> list[Neighbor]:
        if top < 1:
            raise ValueError(f"top is {top}; ask for 1 or more words")
        cosines = self._units @ vector  # (W,)
        cosines[[*without, *self.tokenizer.special_ids]] = -math.inf
        found = cosines.topk(min(top, int(cosines.isfinite().sum())))
        return [Neighbor(self._tokens[i], c) for i, c in zip(found.indices.tolist(), found.values.tolist(), strict=True)]

    def find(self, word: str) -> int | None:
        """The id of a word, or None if the vocabulary lacks it; upper and lower case are the same."""
        ids = self.tokenizer.encode([word])[0]
        return ids[0] if len(ids) == 1 and ids[0] not in self.tokenizer.special_ids else None

    def _id(self, word: str) -> int:
        if (index := self.find(word)) is not None:
            return index
        if len(parts := self.tokenizer.encode([word])[0]) != 1:
            raise ValueError(f"{word!r} is {len(parts) or 'no'} word{'s' * (len(parts) > 1)}; wanted one, such as king")
        words = self.words
        near = difflib.get_close_matches(word.lower(), words, n=SUGGESTIONS)
        raise ValueError(f"no word {word!r} in the vocabulary of {len(words):,} words"
                         + (f"; did you mean {', '.join(near)}?" if near else "; use a word of the training text"))  # fmt: skip

    @cached_property
    def _tokens(self) -> list[str]:
        return self.tokenizer.ids_to_tokens(range(self.tokenizer.vocab))

    @property
    def _table(self) -> Tensor:
        return self.model.input.weight.detach()[: self.tokenizer.vocab].cpu()  # type: ignore[union-attr, operator]

    @cached_property
    def _units(self) -> Tensor:
        return F.normalize(self._table)


def negative_sampling_loss(model: SkipGramModel, batch: SkipGramBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Equation 4 of https://arxiv.org/abs/1310.4546, summed over all pairs.

    The M negatives of a group serve all its pairs, weighted so that each pair has `negatives` of them in expectation.
    """
    (groups, shared), window = batch.negatives.shape, (batch.words.shape[1] - batch.left.shape[1]) // 2
    centres = model.input(batch.words[:, window:-window])  # (N, C, D)
    pairs = (batch.left + batch.right).reshape(groups, -1)  # (G, N / G · C)

    positive = centres @ model.output(batch.words).mT  # (N, C, K)
    negative = centres.reshape(groups, pairs.shape[1], -1) @ model.output(batch.negatives).mT  # (G, N / G · C, M)

    loss = (F.softplus(-positive) * _context_mask(batch, window)).sum()
    loss = loss + (F.softplus(negative).sum(-1) * pairs).sum() * (model.config.negatives / shared)
    return loss, loss.detach()


def _context_mask(batch: SkipGramBatch, window: int) -> Tensor:
    """True where a word of a block is in the context of a centre: (N, C, K)."""
    centres, words = batch.left.shape[1], batch.words.shape[1]
    position = torch.arange(words, device=batch.words.device) - window
    offset = position - position[window : window + centres, None]  # (C, K)
    return (offset >= -batch.left[..., None]) & (offset <= batch.right[..., None]) & (offset != 0)


def _prepare(run: Run, tokenizer: Path, report: Report, progress: Progress) -> WordDataset:
    text = prepare_text(run.data.to_text_data(), tokenizer, report, progress, extra_tokens=(), task=TASK.name)
    train, valid = plain_text(text.train), plain_text(text.valid)
    counts = count_words(train.tokens, text.tokenizer.vocab, text.tokenizer.special_ids)
    if not counts.any():
        raise ValueError("the training text has no word of the vocabulary; give a text in the language of the run in init")
    return WordDataset(text.tokenizer, train, valid, counts)


def _sampler(run: Run, tokenizer: Tokenizer, counts: Ints) -> WordSampler:
    return WordSampler.of(counts, run.model.window, run.model.sample, tokenizer.special.eos)


def _batches(run: Run, dataset: WordDataset, position: DataPosition) -> BatchStream[SkipGramBatch]:
    sampler = _sampler(run, dataset.tokenizer, dataset.counts)
    return skipgrams(dataset.train.tokens, sampler, run.train.batch_tokens, run.train.seed, position)


def _validation(run: Run, dataset: WordDataset) -> Iterator[SkipGramBatch]:
    sampler = _sampler(run, dataset.tokenizer, dataset.counts)
    return all_skipgrams(dataset.valid.tokens, sampler, run.train.batch_tokens)


def _samples(vectors: WordVectors, dataset: WordDataset) -> list[str]:
    words = vectors.words
    shown = [words[rank] for rank in SAMPLE_RANKS if rank < len(words)] or words[:1]
    return [f"{word} → {', '.join(near.word for near in vectors.neighbors(word, top=5))}" for word in shown]


def _score(vectors: WordVectors, split: str, options: ScoreOptions) -> list[Score]:
    """Of rated word pairs, by name or in a .tsv: Spearman; of a text: its loss, and Spearman on WordSim-353."""
    ratings = SOURCES[RATINGS]
    if split in ratings.splits or ".tsv" in Path(split).suffixes:
        return [_rank_correlation(vectors, split)]
    scores = [_text_loss(vectors, split, options.report)]
    try:
        scores.insert(0, _rank_correlation(vectors, ratings.valid))
    except ValueError as error:
        options.report(f"not scored on {ratings.valid}: {error}")
    return scores


def _rank_correlation(vectors: WordVectors, split: str) -> Score:
    """Spearman's correlation of the cosines with the ratings of the pairs whose words are in the vocabulary."""
    pairs = read_ratings(locate(RATINGS, split, "")[0] if split in SOURCES[RATINGS].splits else Path(split))
    known = [pair for pair in pairs if None not in (vectors.find(pair.first), vectors.find(pair.second))]
    if len(known) < 2:
        raise ValueError(f"{len(known)} of {len(pairs)} pairs have both words in the vocabulary; a correlation needs 2")
    first, second = vectors.embed([pair.first for pair in known]), vectors.embed([pair.second for pair in known])
    found = spearman((first * second).sum(1).tolist(), [pair.rating for pair in known])
    if math.isnan(found):
        raise ValueError(f"the ratings or the cosines of all {len(known)} pairs are equal; a correlation needs different ones")
    return Score(f"Spearman, {split}", found, f"{len(known)} of {len(pairs)} pairs are in the vocabulary")


def _text_loss(vectors: WordVectors, split: str, report: Report) -> Score:
    """The training loss on a text, with the negatives of the training text."""
    run, tokenizer, data = vectors.run, vectors.tokenizer, vectors.run.data.to_text_data()
    valid, train = (encode_text_split(data, part, tokenizer, report) for part in (split, "train"))
    counts = count_words(train.tokens, tokenizer.vocab, tokenizer.special_ids)
    dataset = WordDataset(tokenizer, train, valid, counts)
    nats = evaluate(vectors.model, _validation(run, dataset), negative_sampling_loss)
    return Score("negative-sampling loss", nats, f"nats of a pair, with {run.model.negatives} negatives each")


def _check(run: Run, model: SkipGramModel) -> None:
    if run.train.label_smoothing:
        raise ValueError(f"train.label_smoothing={run.train.label_smoothing} is for classes and tokens; word vectors have none: "
                         f"set train.label_smoothing=0.0")  # fmt: skip


TASK: Task[SkipGramModel, WordDataset, SkipGramBatch, WordVectors] = Task(
    name="word_vectors",
    kinds=("word-vectors",),
    data=WordData,
    card=Card("gives each word a vector", "feature-extraction", "neighbors", 'neighbors("…")', "…"),
    prepare=_prepare,
    batches=_batches,
    validation=_validation,
    loss=negative_sampling_loss,
    predictor=lambda model, run, tokenizer, labels: WordVectors(model, tokenizer, run),
    score=_score,
    samples=_samples,
    check=_check,
    unit="pair",
    perplexity=False,
    decodes=False,
)
