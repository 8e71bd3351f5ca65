"""Records of models that encode one text: masked language models, text classifiers and embedders.

Shapes: T items of the answer, N masked tokens, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.text.tokenizer import Tokenizer
from regard.layers.tap import watch
from regard.tasks.masked_lm import MASK, MaskedLM
from regard.tasks.observer import TextObserver
from regard.tasks.text_classification import TextClassifier
from regard.tasks.text_embedding import TextEmbedder
from regard.view.maps import require_tokens
from regard.view.record import Answer, AttentionLayer, Axis, InputLike, Record, RecordOptions, Word, record_with
from regard.view.record_layers import (
    Placed,
    class_answer,
    first_notes,
    joined_calls,
    mean_weights,
    require_no_search,
    require_text,
    title_layers,
    title_of,
    title_record,
    token_items,
)
from regard.view.words import label_tokens, text_axis

__all__ = ["EncoderRerun"]

TextReader = MaskedLM | TextClassifier | TextEmbedder


@dataclass(frozen=True, eq=False)
class _Reading:
    """What an encoder answers to the tokens of a text, start and end included: nothing, a class, or the words behind [MASK]."""

    answer: Answer
    log_probs: Tensor  # (T,), of the items
    target: list[int]  # ids of the items
    rows: list[int]  # positions of the tokens whose attention the items are explained by


@torch.inference_mode()
def _read_text(predictor: TextReader, tokens: list[int], target: list[int] | None = None) -> _Reading:
    """One pass; the items are those of `target`, by default the most likely."""
    ids = torch.tensor([tokens], device=next(predictor.model.parameters()).device)
    if isinstance(predictor, MaskedLM) and predictor.tokenizer.special.mask in tokens:
        return _read_masked(predictor, tokens, target)
    if isinstance(predictor, TextClassifier) and _is_trained(predictor):
        log_probs = predictor.model.classify(ids)[0].float().log_softmax(-1).cpu()  # type: ignore[operator]
        answer, classes = class_answer(predictor.labels, log_probs, target)
        return _Reading(answer, log_probs[classes], classes, [0])
    predictor.model.encode(ids)  # type: ignore[operator]
    return _Reading(Answer("none", "", []), torch.zeros(0), [], list(range(len(tokens))))


def _read_masked(predictor: MaskedLM, tokens: list[int], target: list[int] | None) -> _Reading:
    masked, log_probs = predictor.predict_masked(tokens)
    if target is not None and len(target) != len(masked):
        raise ValueError(f"{len(masked)} masked words instead of {len(target)}; keep every {MASK}")
    words = predictor.best_words(log_probs, 1)[1][:, 0].tolist() if target is None else target
    chosen = log_probs.float().cpu()[range(len(words)), words]
    filled = list(tokens)
    for position, word in zip(masked, words, strict=True):
        filled[position] = word
    answer = Answer("fill", predictor.tokenizer.decode(filled), token_items(predictor.tokenizer, words, chosen))
    return _Reading(answer, chosen, words, masked)


def _is_trained(classifier: TextClassifier) -> bool:
    return "classifier" not in classifier.run.untrained


@dataclass(frozen=True, eq=False)
class EncoderRerun:
    """An encoder once more; the source has its start and end token."""

    predictor: TextReader
    source: list[int]
    target: list[int]

    def logprobs(self, source: list[int] | None = None) -> Tensor:
        """The log-probability of each word behind [MASK], or of each class that was named (T,)."""
        return _read_text(self.predictor, self.source if source is None else source, self.target).log_probs

    def answer(self, source: list[int] | None = None, observer: TextObserver | None = None) -> Answer:
        """Read the text again."""
        return _read_text(self.predictor, self.source if source is None else source).answer


@record_with.register(MaskedLM)
@record_with.register(TextClassifier)
@record_with.register(TextEmbedder)
def _(predictor: TextReader, what: InputLike, options: RecordOptions) -> Record:
    """One axis of tokens.  Rows of the alignment: of a class the start token's, of [MASK] its own, else those of all tokens."""
    text = require_text(predictor, what, options.name)
    require_no_search(predictor.run.family, options)
    tokenizer, special = predictor.tokenizer, predictor.tokenizer.special
    if isinstance(predictor, MaskedLM):
        text = predictor.spell_mask(text)
        [ids] = require_tokens([predictor.encode_masked(text)])
    else:
        [ids] = require_tokens(predictor.encode([text]))
        if len(ids) > predictor.max_len:
            raise ValueError(f"the text has {len(ids):,} tokens; this model takes at most {predictor.max_len:,}: shorten it")
    tokens = [special.bos, *ids, special.eos]
    with watch(predictor.model) as recorded:
        reading = _read_text(predictor, tokens)

    axis = text_axis(tokenizer, tokens, text, 1 + len(ids), parse_special=isinstance(predictor, MaskedLM))
    placed = [Placed(name, "self", "", "tokens", "tokens", each) for name, each in joined_calls(recorded).items()]
    layers = title_layers(placed)
    axes, whose = {"tokens": axis}, ""
    if reading.answer.items:
        axes["answer"] = _answer_axis(tokenizer, reading)
        whose = f" of {MASK if reading.answer.kind == 'fill' else axis.labels[0]}"
    notes = first_notes(predictor)
    if isinstance(predictor, TextClassifier) and not _is_trained(predictor):
        notes.append("this model has no trained classes, so it gives no answer; only its attention is shown")
    return Record(
        title_record(predictor, options), reading.answer, axes, layers, mean_weights(layers)[reading.rows],
        ("answer" if reading.answer.items else "tokens", "tokens"), _title_rows(layers, whose),
        EncoderRerun(predictor, tokens, reading.target), notes=notes, alignment_queries=reading.rows,
    )  # fmt: skip


def _title_rows(layers: Sequence[AttentionLayer], whose: str) -> str:
    return title_of(layers).replace("self-attention", f"self-attention{whose}", 1)


def _answer_axis(tokenizer: Tokenizer, reading: _Reading) -> Axis:
    if reading.answer.kind == "fill":
        labels = label_tokens(tokenizer, reading.target)
    else:
        labels = [reading.answer.text]
    return Axis("tokens", len(labels), labels, [Word(label, n, n + 1) for n, label in enumerate(labels)])
