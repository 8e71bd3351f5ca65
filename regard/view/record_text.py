"""Records of models that write text after text: translators and language models.

A search finds the answer without being watched; one watched pass then reads the input and the answer together.

Shapes: T tokens of the answer, P of a prompt, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.text.batches import pad
from regard.data.text.sentences import split_sentences
from regard.decode import search
from regard.decode.fast import decoder
from regard.decode.logits_processors import logits_processor
from regard.layers.tap import watch
from regard.tasks.language_model import TextGenerator
from regard.tasks.observer import TextObserver
from regard.tasks.translation import Translator
from regard.view.maps import require_tokens
from regard.view.record import Answer, InputLike, Record, RecordOptions, record_with
from regard.view.record_layers import (
    Placed,
    first_notes,
    follow_tokens,
    gather_log_probs,
    joined_calls,
    mean_weights,
    place_decoder,
    require_text,
    title_layers,
    title_of,
    title_record,
    token_items,
)
from regard.view.words import text_axis

__all__ = ["GENERATED", "ContinuationRerun", "TranslationRerun"]

GENERATED = 20  # tokens that follow a prompt, unless told otherwise


# -- translators


@dataclass(frozen=True, eq=False)
class _Translated:
    """The answer to a source: its text, its tokens with the end token if it was reached, and the score of the search."""

    text: str
    target: list[int]
    score: float | None


def _translate(translator: Translator, source: list[int], options: RecordOptions) -> _Translated:
    translator.require_short(source, 1)
    [found] = translator.translate([source], beam=options.beam, tokens=options.tokens, temperature=options.temperature,
                                   seed=options.seed, scored=True, observers=[options.observer])  # fmt: skip
    ended = len(found.ids) < translator.max_answer(len(source), options.tokens)  # else the length limit cut it before its end
    return _Translated(found.text, [*found.ids, translator.answer_tokenizer.special.eos] if ended else found.ids, found.score)


@torch.inference_mode()
def _read_pair(translator: Translator, source: list[int], target: list[int]) -> Tensor:
    """Teacher forcing: the log-probability of each target token (T,)."""
    device = next(translator.model.parameters()).device
    read = torch.tensor([[translator.answer_tokenizer.special.bos, *target[:-1]]], device=device)
    logits = translator.model(pad([source], translator.tokenizer.special).to(device), read)
    return gather_log_probs(logits[0], target)


def _translation_answer(translator: Translator, found: _Translated, log_probs: Tensor) -> Answer:
    items = token_items(translator.answer_tokenizer, found.target, log_probs)
    return Answer("translation", found.text, items, found.score)


@dataclass(frozen=True, eq=False)
class TranslationRerun:
    """A translator once more."""

    translator: Translator
    options: RecordOptions
    source: list[int]
    target: list[int]

    def logprobs(self, source: list[int] | None = None) -> Tensor:
        """The log-probability of each token of the recorded answer (T,)."""
        return _read_pair(self.translator, self.source if source is None else source, self.target)

    def answer(self, source: list[int] | None = None, observer: TextObserver | None = None) -> Answer:
        """Translate again."""
        source = self.source if source is None else source
        found = _translate(self.translator, source, self.options.observed_by(observer))
        return _translation_answer(self.translator, found, _read_pair(self.translator, source, found.target))


@record_with.register
def _(translator: Translator, what: InputLike, options: RecordOptions) -> Record:
    """Axes: the source, what the decoder reads, and what it answers."""
    text = require_text(translator, what, options.name)
    [source] = require_tokens(translator.encode([text]))
    found = _translate(translator, source, options)
    with watch(translator.model) as recorded:
        log_probs = _read_pair(translator, source, found.target)

    special, answers = translator.tokenizer.special, translator.answer_tokenizer
    axes = {
        "source": text_axis(translator.tokenizer, [*source, special.eos], text, len(source)),
        "read": text_axis(answers, [answers.special.bos, *found.target[:-1]]),
        "answer": text_axis(answers, found.target),
    }
    layers = title_layers(place_decoder(joined_calls(recorded), "source"))
    cross = [layer for layer in layers if layer.kind == "cross"]
    notes = first_notes(translator)
    if not cross:
        notes.append(f"a {translator.run.family} has no attention: its decoder knows only the encoder's last state; there is "
                     f"nothing to show but the answer")  # fmt: skip
    if translator.splits and len([line for line in split_sentences(text) if line.strip()]) > 1:
        notes.append("several sentences are read as one here; regard translate splits a text into sentences")
    return Record(
        title_record(translator, options), _translation_answer(translator, found, log_probs), axes, layers,
        mean_weights(cross) if cross else torch.zeros(0, 0), ("answer", "source"), title_of(cross) if cross else "",
        TranslationRerun(translator, options.observed_by(None), source, found.target), notes=notes,
    )  # fmt: skip


# -- language models


@torch.inference_mode()
def _continue(generator: TextGenerator, prompt: list[int], limit: int, options: RecordOptions) -> tuple[list[int], float | None]:
    """The tokens that follow a prompt, the end token if it was reached, and the score."""
    eos, decode, device = generator.tokenizer.special.eos, generator.run.decode, next(generator.model.parameters()).device
    source, limits = torch.tensor([prompt], device=device), torch.tensor([limit], device=device)
    steps, processor = decoder(generator.model), logits_processor(decode, eos)
    beam, temperature = 1 if options.beam is None else options.beam, options.temperature or 0
    following = follow_tokens(options.observer, lambda tokens: generator.decode_answer(prompt, tokens))
    if beam < 1 or (beam > 1 and temperature):
        raise ValueError(f"beam {beam} and temperature {temperature}; search with a beam of 1 or more, or sample with a "
                         f"temperature")  # fmt: skip
    if temperature:
        if not 0 <= options.seed < 2**63:
            raise ValueError(f"seed {options.seed}; use 0 or more and less than 2 ** 63")
        [best] = search.sample(steps, source, limits, bos=source, eos=eos, temperature=temperature, processor=processor,
                               observers=following, generator=torch.Generator(device).manual_seed(options.seed))  # fmt: skip
    elif beam == 1:
        [best] = search.greedy(steps, source, limits, bos=source, eos=eos, processor=processor, observers=following)
    else:
        [[best, *_]] = search.beam(steps, source, limits, width=beam, bos=source, eos=eos, penalty=decode.length_penalty,
                                   processor=processor, observers=following)  # fmt: skip
    return [*best.tokens, eos] if len(best.tokens) < limit else best.tokens, best.score


@torch.inference_mode()
def _read_continuation(generator: TextGenerator, prompt: list[int], answer: list[int]) -> Tensor:
    """The log-probability of each token of an answer after a prompt (T,); the last one is read too, if the context has room."""
    tokens = [*prompt, *answer][: generator.context]
    logits = generator.model(torch.tensor([tokens], device=next(generator.model.parameters()).device))
    return gather_log_probs(logits[0, len(prompt) - 1 : len(prompt) - 1 + len(answer)], answer)


def _continuation_answer(generator: TextGenerator, prompt: list[int], answer: list[int], score: float | None,
                         log_probs: Tensor) -> Answer:  # fmt: skip
    text = generator.decode_answer(prompt, [token for token in answer if token != generator.tokenizer.special.eos])
    return Answer("continuation", text, token_items(generator.tokenizer, answer, log_probs), score)


@dataclass(frozen=True, eq=False)
class ContinuationRerun:
    """A language model once more; the source is the prompt."""

    generator: TextGenerator
    options: RecordOptions
    source: list[int]
    target: list[int]
    limit: int

    def logprobs(self, source: list[int] | None = None) -> Tensor:
        """The log-probability of each token of the recorded answer (T,)."""
        return _read_continuation(self.generator, self._prompt(source), self.target)

    def answer(self, source: list[int] | None = None, observer: TextObserver | None = None) -> Answer:
        """Continue the prompt again."""
        prompt = self._prompt(source)
        found, score = _continue(self.generator, prompt, self.limit, self.options.observed_by(observer))
        return _continuation_answer(self.generator, prompt, found, score, _read_continuation(self.generator, prompt, found))

    def _prompt(self, source: list[int] | None) -> list[int]:
        prompt = self.source if source is None else source
        if not prompt:
            raise ValueError("a prompt without a token has no continuation; leave one token at least")
        if len(prompt) + self.limit - 1 > self.generator.context:
            raise ValueError(f"a prompt of {len(prompt):,} tokens and {self.limit:,} more; the context length is "
                             f"{self.generator.context:,}: shorten it")  # fmt: skip
        return prompt


@record_with.register
def _(generator: TextGenerator, what: InputLike, options: RecordOptions) -> Record:
    """One axis of prompt and answer; the row of a token of the answer is that of the token before it, which predicted it."""
    text = require_text(generator, what, options.name)
    require_tokens(generator.tokenizer.encode([text]))
    prompt, limit = generator.encode_prompt(text, options.tokens)
    limit = limit if options.tokens else min(limit, GENERATED)
    answer, score = _continue(generator, prompt, limit, options)
    with watch(generator.model) as recorded:
        log_probs = _read_continuation(generator, prompt, answer)

    tokens = [*prompt, *answer][: generator.context]
    axes = {"tokens": text_axis(generator.tokenizer, tokens, text, len(prompt)), "answer": text_axis(generator.tokenizer, answer)}
    placed = [Placed(name, "masked", "", "tokens", "tokens", each) for name, each in joined_calls(recorded).items()]
    layers = title_layers(placed)
    queries = list(range(len(prompt) - 1, len(prompt) - 1 + len(answer)))
    rows = mean_weights(layers)[queries]  # (T, P + T)
    return Record(
        title_record(generator, options), _continuation_answer(generator, prompt, answer, score, log_probs), axes, layers,
        rows, ("answer", "tokens"), title_of(layers),
        ContinuationRerun(generator, options.observed_by(None), prompt, answer, limit), notes=first_notes(generator),
        alignment_queries=queries,
    )  # fmt: skip
