"""What differs between kinds of training: which batches, the loss of one, what is shown and scored of what was learnt.

translate   pairs of sentences, teacher forcing          transformer, t5
next        windows of a text, the next token            gpt
masked      windows of a text, some tokens hidden        bert
spans       windows of a text, some spans cut out        t5
class       texts with a label                           bert
image       pictures with a label                        vit, swin, mvit, lrnet, resnet
pixels      pictures, the next pixel                     pixel
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from regard.config import Run
from regard.data.image import batches as image_batches
from regard.data.image import store as image_store
from regard.data.image.config import ImageData, require_unchanged
from regard.data.image.store import ImageDataset
from regard.data.position import DataPosition
from regard.data.text import batches, windows
from regard.data.text import dataset as text_dataset
from regard.data.text.config import TextData
from regard.data.text.dataset import TextDataset, require_special
from regard.data.text.store import PairStore, TextStore
from regard.data.text.tokenizer import SENTINELS, Tokenizer
from regard.train import objectives

__all__ = ["TASKS", "Task"]

Say = Callable[[str], None]

WORDS = 60  # tokens written of a sample
COUNTED = 1000  # held-out pictures that are counted at every evaluation


def _corpus(run: Run, tokenizer: Path, say: Say, count: Callable[[str, int], None]) -> TextDataset:
    data, task = cast(TextData, run.data), run.task

    def check(found: Tokenizer) -> None:
        sentinels, pad = 2 * (task == "spans"), task in ("translate", "spans")
        require_special(found, tokenizer, task, mask=task == "masked", sentinels=sentinels, pad=pad)

    if task == "class":
        return text_dataset.prepare_labeled(data, tokenizer, say, count, task=task, check=check)
    if task == "translate":
        return text_dataset.prepare_pairs(data, tokenizer, say, count, task=task, check=check)
    extra = {"masked": ("[MASK]",), "spans": SENTINELS}.get(task, ())
    return text_dataset.prepare_text(data, tokenizer, say, count, extra_tokens=extra, task=task, check=check)


def _gallery(run: Run, tokenizer: Path, say: Say, count: Callable[[str, int], None]) -> ImageDataset:
    if run.task == "pixels":
        require_unchanged(cast(ImageData, run.data))
    return image_store.prepare(cast(ImageData, run.data), run.model, say, count, labeled=run.task == "image")


class Task(NamedTuple):
    """One kind of training."""

    loss: Callable[[Any, Any, float], tuple[Tensor, Tensor]]  # (model, batch, smoothing) → two sums, see `objectives`
    batches: Callable[
        [Run, Any, DataPosition], Iterator[tuple[Callable[[], Any], DataPosition]]
    ]  # of a corpus or gallery; endless, from a place on
    held_out: Callable[[Run, Any, Any], Iterator[Any]]  # each example of a store once
    samples: Callable[[Any, Any], list[str]]  # lines that show what a model can do by now
    ends: int = 0  # places that a text needs beside its `data.max_len` tokens
    unit: str = "tokens"  # what is predicted
    one: str = "token"  # one of them
    reads: Callable[[Run, Path, Say, Callable[[str, int], None]], Any] = _corpus  # finds what training reads


def _pairs(run: Run, corpus: TextDataset, position: DataPosition) -> Iterator[tuple[Callable[[], Any], DataPosition]]:
    return batches.pair_batches(
        _store(corpus.train), corpus.tokenizer.special, run.train.batch_tokens, run.train.seed, position
    )


def _all_pairs(run: Run, corpus: TextDataset, store: Any) -> Iterator[Any]:
    return batches.all_pair_batches(_store(store), corpus.tokenizer.special, run.train.batch_tokens)


def _translations(translator: Any, corpus: TextDataset) -> list[str]:
    answers = translator.translate([source for source, _ in corpus.samples], beam=1)
    return [
        f"{source}  →  {answer.text}   (wanted: {wanted})"
        for (source, wanted), answer in zip(corpus.samples, answers, strict=True)
    ]


def _windows(run: Run, corpus: TextDataset, position: DataPosition) -> Iterator[tuple[Callable[[], Any], DataPosition]]:
    return windows.windows(
        _text(corpus.train).tokens, run.data.max_len, run.train.batch_tokens, run.train.seed, position
    )


def _all_windows(run: Run, corpus: TextDataset, text: Any) -> Iterator[Any]:
    return windows.all_windows(_text(text).tokens, run.data.max_len, run.train.batch_tokens)


def _written(writer: Any, corpus: TextDataset) -> list[str]:
    prompt = corpus.text_sample
    tokens = min(WORDS, int(writer.model.max_len) - len(writer.tokenizer.encode([prompt])[0]))
    return (
        [f"{prompt} → {writer.write(prompt, tokens=tokens, temperature=0.8)}".replace("\n", " ⏎ ")]
        if tokens > 0
        else []
    )


def _hidden(run: Run, corpus: TextDataset) -> dict[str, Any]:
    special, special_ids, vocab = corpus.tokenizer.special, corpus.tokenizer.special_ids, corpus.tokenizer.vocab
    return {
        "length": run.data.max_len,
        "tokens": run.train.batch_tokens,
        "special": special,
        "special_ids": special_ids,
        "vocab": vocab,
    }


def _masked(run: Run, corpus: TextDataset, position: DataPosition) -> Iterator[tuple[Callable[[], Any], DataPosition]]:
    return windows.masked_windows(
        _text(corpus.train).tokens, seed=run.train.seed, position=position, **_hidden(run, corpus)
    )


def _all_masked(run: Run, corpus: TextDataset, text: Any) -> Iterator[Any]:
    return windows.all_masked_windows(_text(text).tokens, **_hidden(run, corpus))


def _filled(reader: Any, corpus: TextDataset) -> list[str]:
    words = corpus.text_sample.split()
    while words and len(reader.tokenizer.encode([" ".join(words)])[0]) > reader.max_len - 1:
        words.pop()
    if not words:
        return []
    asked = " ".join("[MASK]" if i == len(words) // 2 else word for i, word in enumerate(words))
    found = reader.fill(asked, top=3)
    guesses = ", ".join(f"{guess.text} {guess.probability:.0%}" for guess in found.guesses[0])
    return [f"{asked}  →  {guesses}   (wanted: {words[len(words) // 2]})"]


def _spans(run: Run, corpus: TextDataset, position: DataPosition) -> Iterator[tuple[Callable[[], Any], DataPosition]]:
    text, special = _text(corpus.train).tokens, corpus.tokenizer.special
    return windows.span_windows(text, run.data.max_len, run.train.batch_tokens, run.train.seed, special, position)


def _all_spans(run: Run, corpus: TextDataset, text: Any) -> Iterator[Any]:
    return windows.all_span_windows(
        _text(text).tokens, run.data.max_len, run.train.batch_tokens, corpus.tokenizer.special
    )


def _labelled(
    run: Run, corpus: TextDataset, position: DataPosition
) -> Iterator[tuple[Callable[[], Any], DataPosition]]:
    return batches.labeled_batches(
        _store(corpus.train), corpus.tokenizer.special, run.train.batch_tokens, run.train.seed, position
    )


def _all_labelled(run: Run, corpus: TextDataset, store: Any) -> Iterator[Any]:
    return batches.all_labeled_batches(_store(store), corpus.tokenizer.special, run.train.batch_tokens)


def _nothing(make_predictor: Any, held: Any) -> list[str]:
    return []


def _classified(reader: Any, corpus: TextDataset) -> list[str]:
    guesses = reader.classify([text for text, _ in corpus.samples])
    return [
        f"{text}  →  {guess.text} {guess.probability:.0%}   (wanted: {wanted})"
        for (text, wanted), [guess] in zip(corpus.samples, guesses, strict=True)
    ]


def _pictures(
    run: Run, shown: ImageDataset, position: DataPosition
) -> Iterator[tuple[Callable[[], Any], DataPosition]]:
    t, data = run.train, cast(ImageData, run.data)
    return image_batches.image_batches(shown.train, run.model.image, t.batch_size, t.seed, data, position)


def _all_pictures(run: Run, shown: ImageDataset, images: Any) -> Iterator[Any]:
    return image_batches.all_image_batches(images, run.model.image, run.train.batch_size, cast(ImageData, run.data))


@torch.inference_mode()
def _right(classifier: Any, shown: ImageDataset) -> list[str]:
    images, c, device = shown.valid, classifier.run.model, next(classifier.model.parameters()).device
    rows = np.linspace(0, len(images) - 1, min(COUNTED, len(images))).astype(int)  # own pictures lie class by class
    right = 0
    for some in np.array_split(rows, -(-len(rows) // classifier.run.train.batch_size)):
        seen = image_batches.to_model_input(images.images[some], c.image, classifier.run.data).to(device)
        right += int((classifier.model(seen).argmax(-1).cpu().numpy() == images.labels[some]).sum())
    return [f"{right / len(rows):.1%} of {len(rows):,} held-out pictures right"]


def _pixels(run: Run, shown: ImageDataset, position: DataPosition) -> Iterator[tuple[Callable[[], Any], DataPosition]]:
    t = run.train
    return image_batches.pixel_batches(shown.train, run.model.levels, t.batch_size, t.seed, run.data.fraction, position)


def _all_pixels(run: Run, shown: ImageDataset, images: Any) -> Iterator[Any]:
    return image_batches.all_pixel_batches(images, run.model.levels, run.train.batch_size)


def _store(held: PairStore | TextStore) -> PairStore:
    assert isinstance(held, PairStore)
    return held


def _text(held: PairStore | TextStore) -> TextStore:
    assert isinstance(held, TextStore)
    return held


TASKS: dict[str, Task] = {
    "translate": Task(objectives.translate, _pairs, _all_pairs, _translations, ends=1),
    "next": Task(objectives.next_token, _windows, _all_windows, _written, ends=0),
    "masked": Task(objectives.guess, _masked, _all_masked, _filled, ends=0),
    "spans": Task(objectives.translate, _spans, _all_spans, _nothing, ends=1),
    "class": Task(objectives.classify, _labelled, _all_labelled, _classified, ends=2, unit="texts", one="text"),
    "image": Task(objectives.look, _pictures, _all_pictures, _right, unit="pictures", one="picture", reads=_gallery),
    "pixels": Task(objectives.next_token, _pixels, _all_pixels, _nothing, unit="pixels", one="pixel", reads=_gallery),
}
