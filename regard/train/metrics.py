"""How good a model is: BLEU and chrF by sacreBLEU, with the signatures that make them comparable; perplexity, accuracy."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from torch import Tensor, nn

from regard.data.image.dataset import read_split
from regard.data.sources import SOURCES
from regard.data.text.dataset import TextDataset, encode_split, find_split, members
from regard.data.text.store import Ints, Text
from regard.decode.classifier import UNTRAINED as NO_CLASSES
from regard.decode.reader import UNTRAINED
from regard.decode.translator import Translator
from regard.train.tasks import TASKS

__all__ = ["Score", "evaluate", "score", "score_split"]

COUNTED = 4_000_000  # tokens of the training text; more would not change the counts by much


class Score(NamedTuple):
    """One figure, and how it was computed."""

    name: str
    value: float
    signature: str


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Callable[[Any, Any, float], tuple[Tensor, Tensor]],
    device: torch.device,
) -> float:
    """Mean negative log-likelihood of a prediction, in nats; no smoothing, no dropout."""
    before = model.training
    model.eval()
    total, count = 0.0, 0
    for batch in batches:
        _, nll = loss(model, batch.to(device), 0.0)
        total, count = total + float(nll), count + batch.tokens
    model.train(before)
    if not count:
        raise ValueError(
            "the held-out data has nothing to predict; give more of it, in the language of the training data"
        )
    return total / count


def score(answers: Sequence[str], references: Sequence[Sequence[str]], tokenised: bool) -> list[Score]:
    """Compare answers with one or more references each.

    Beside the standard figures stands BLEU on lower-cased tokens: the text's own tokens if it is `tokenised` (as
    published Multi30k scores are computed), else those of sacreBLEU's 13a.
    """
    most = max(map(len, references))
    streams: Any = [[refs[i] if i < len(refs) else None for refs in references] for i in range(most)]
    exact = 100 * sum(answer in refs for answer, refs in zip(answers, references, strict=True)) / len(answers)
    tokens = BLEU(lowercase=True, tokenize="none" if tokenised else "13a", force=True)
    metrics: dict[str, BLEU | CHRF] = {"BLEU": BLEU(force=True), "chrF": CHRF(), "BLEU, tokenised, lower-cased": tokens}
    found = []
    for name, metric in metrics.items():
        value = metric.corpus_score(list(answers), streams).score
        found.append(Score(name, value, str(metric.get_signature())))
    return [*found, Score("exact", exact, "share of answers equal to a reference")]


def score_split(
    make_predictor: Any,
    split: str,
    most: int | None = None,
    say: Callable[[str], None] = lambda text: None,
    **how: Any,
) -> list[Score]:
    """Score a model on a split of the run's data, or a file: at most so many pairs, or labelled texts, or all of a text."""
    make_predictor.model.eval()
    task = make_predictor.run.task
    if task == "translate":
        names = members(make_predictor.run.data)
        if len(names) > 1 and split not in ("train", "valid"):
            have = [name for name in names if name in SOURCES and split in SOURCES[name].splits]
            for name in sorted({*names} - {*have}) if have else ():
                say(f"{name} has no split {split}; not scored")
            names = have or [""]  # a file is no set's own
        return [one for name in names for one in _translations(make_predictor, name, split, most, say, **how)]
    if task == "class":
        return _accuracy(make_predictor, split, most, **how)
    if task == "image":
        return _seen(make_predictor, split, say, **how)
    if task == "pixels":
        return _bits(make_predictor, split, say)
    return _perplexity(make_predictor, split, say)


def _translations(
    translator: Translator, name: str, split: str, most: int | None, say: Callable[[str], None], **how: Any
) -> list[Score]:
    """Translate one set and compare with its references.  A sentence too long for the model counts as translated by nothing."""
    data = translator.run.data
    several = len(members(data)) > 1 and name
    pairs = list(islice(find_split(data, split, name).pairs(), most))
    if not pairs:
        raise ValueError(f"{split} is empty; give a file with source and target on each line")
    sources, references = [source for source, _ in pairs], [[target] for _, target in pairs]
    if name in SOURCES and SOURCES[name].several:
        grouped: dict[str, list[str]] = {}
        for source, target in pairs:
            grouped.setdefault(source, []).append(target)
        sources, references = list(grouped), list(grouped.values())
    encoded = translator.encode(sources)
    long = {row for row, ids in enumerate(encoded) if len(ids) > translator.max_len}
    if long:
        say(f"{len(long)} of {len(sources)} sentences are too long for this model and count as not translated")
    answers = translator.translate([[] if row in long else ids for row, ids in enumerate(encoded)], **how)
    found = score([answer.text for answer in answers], references, tokenised=data.text == "tok")
    if name in SOURCES and SOURCES[name].kind == "labels":
        found = [
            Score("accuracy", one.value, "share of answers that are the class") for one in found if one.name == "exact"
        ]
    return [one._replace(name=f"{name}: {one.name}") for one in found] if several else found


def _accuracy(reader: Any, split: str, most: int | None, **how: Any) -> list[Score]:
    """How often the likeliest class is right, and the mean over classes of F1."""
    pairs = list(islice(find_split(reader.run.data, split).pairs(), most))
    if not pairs:
        raise ValueError(f"{split} is empty; give a file with a text and its class on each line")
    unknown = next((label for _, label in pairs if label not in reader.labels), None)
    if unknown is not None:
        raise ValueError(
            f"{split} has the class {unknown!r}, never seen in training; known are {', '.join(reader.labels)}"
        )
    guessed = [guess.text for [guess] in reader.classify([text for text, _ in pairs], **how)]
    return _shares(guessed, [label for _, label in pairs], reader.labels, "texts")


@torch.inference_mode()
def _seen(
    classifier: Any, split: str, say: Callable[[str], None], progress: Callable[[int], None] = lambda done: None
) -> list[Score]:
    """The same for pictures."""
    run, model, labels = classifier.run, classifier.model, classifier.labels
    if "classifier" in run.untrained:
        raise ValueError(NO_CLASSES)
    images, device = read_split(run.data, run.model, run.task, split, say, labels), next(model.parameters()).device
    numbers: list[int] = []
    for batch in TASKS[run.task].held_out(run, None, images):
        numbers += model(batch.image.to(device)).argmax(-1).tolist()
        progress(len(numbers))
    return _shares([labels[n] for n in numbers], [labels[n] for n in images.labels], labels, "pictures")


def _bits(painter: Any, split: str, say: Callable[[str], None]) -> list[Score]:
    """How many bits a pixel takes, if each is told by the odds the model gives it."""
    run, device = painter.run, next(painter.model.parameters()).device
    images, task = read_split(run.data, run.model, run.task, split, say), TASKS[run.task]
    loss = evaluate(painter.model, task.held_out(run, None, images), task.loss, device)
    how = f"of {run.model.colours} colours, {len(images):,} pictures of {run.model.image} × {run.model.image}"
    return [Score("bits per pixel", loss / math.log(2), how)]


def _shares(guessed: Sequence[str], wanted: Sequence[str], labels: Sequence[str], what: str) -> list[Score]:
    right, said, there = (
        Counter(g for g, w in zip(guessed, wanted, strict=True) if g == w),
        Counter(guessed),
        Counter(wanted),
    )
    f1 = [2 * right[label] / (said[label] + there[label]) for label in labels if said[label] + there[label]]
    return [
        Score("accuracy", 100 * right.total() / len(wanted), f"share of {len(wanted):,} {what}"),
        Score("F1", 100 * sum(f1) / len(f1), "mean over classes"),
    ]


def _perplexity(make_predictor: Any, split: str, say: Callable[[str], None]) -> list[Score]:
    """How many tokens a model hesitates between, and for hidden ones how often the likeliest is right."""
    run, tokenizer, model = make_predictor.run, make_predictor.tokenizer, make_predictor.model
    task, device = TASKS[run.task], next(make_predictor.model.parameters()).device
    if "lm_head" in run.untrained:
        raise ValueError(UNTRAINED)
    held = encode_split(run.data, run.task, split, tokenizer, say)
    corpus = TextDataset(tokenizer, held, held, [], (), "")
    loss = evaluate(model, task.held_out(run, corpus, held), task.loss, device)
    found = [Score("perplexity", math.exp(min(loss, 50)), f"of a token; {loss:.4f} nats")]
    ordinary = [
        token for n, token in enumerate(tokenizer.tokens(range(tokenizer.vocab))) if n not in tokenizer.special_ids
    ]
    if run.task == "next" and all(len(token) == 1 for token in ordinary):
        found.append(Score("bits per character", loss / math.log(2), "of all but the first"))
    if run.task == "masked":
        guesses = _guessed(model, task.held_out(run, corpus, held), device)
        how = f"share of {len(guesses.truth):,} hidden tokens"
        found.append(Score("masked-token accuracy", 100 * float((guesses.said == guesses.truth).mean()), how))
        found += _baselines(make_predictor, guesses, say)
    return found


def _baselines(make_predictor: Any, guesses: "_Guesses", say: Callable[[str], None]) -> list[Score]:
    """What counting the training text would reach; nothing if there is none, or no more."""
    data, tokenizer = make_predictor.run.data, make_predictor.tokenizer
    if not (data.source or data.train):
        return []
    try:
        train = encode_split(data, make_predictor.run.task, "train", tokenizer, lambda text: None)
    except (ValueError, OSError) as error:
        say(f"not compared with counting the training text: {error}")
        return []
    assert isinstance(train, Text)
    return _counters(guesses, train.tokens[:COUNTED].astype(np.int64), tokenizer.vocab)


class _Guesses(NamedTuple):
    """Hidden tokens: what the model said, what is true, and what stands before."""

    said: Ints
    truth: Ints
    before: Ints


@torch.inference_mode()
def _guessed(model: Any, batches: Iterable[Any], device: torch.device) -> _Guesses:
    found: list[list[Ints]] = []
    for batch in batches:
        here = batch.to(device)
        said = model.lm_head(model.encode(here.shown)[here.chosen]).argmax(-1).cpu()
        rows, places = batch.chosen.nonzero().T
        found.append([said.numpy(), batch.truth[rows, places].numpy(), batch.truth[rows, places - 1].numpy()])
    return _Guesses(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _counters(guesses: _Guesses, text: Ints, vocab: int) -> list[Score]:
    """The guesses of one who counts the tokens of the training text, and of one who also sees the token before."""
    single = np.bincount(text, minlength=vocab) + 1  # one more, so that none is impossible
    odds = single[guesses.truth] / single.sum()
    pairs, counts = np.unique(text[:-1] * vocab + text[1:], return_counts=True)
    first = pairs // vocab
    total, kinds = np.bincount(first, counts, vocab), np.bincount(first, minlength=vocab)
    best = np.full(vocab, single.argmax())
    order = np.lexsort((counts, first))
    best[first[order]] = pairs[order] % vocab  # the last of each first token is its commonest
    wanted = guesses.before * vocab + guesses.truth
    place = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    seen = np.where(pairs[place] == wanted, counts[place], 0)
    # What was seen after this token, and for the rest the odds of all tokens: Witten and Bell 1991.
    after, many = total[guesses.before], kinds[guesses.before]
    both = np.where(many > 0, (seen + many * odds) / np.maximum(after + many, 1), odds)
    one, two = single.argmax() == guesses.truth, best[guesses.before] == guesses.truth
    rows = (("… by counting tokens", one, odds), ("… by the token before", two, both))
    return [
        Score(
            name,
            100 * float(right.mean()),
            f"of the training text; perplexity {math.exp(-float(np.log(p).mean())):.2f}",
        )
        for name, right, p in rows
    ]
