"""The steps of a search in words: what the decoder read, what it found likely, and for beam search the tree of outputs.

Shapes: B sentences, P tokens of the start or prompt, V vocabulary.
"""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from rich.table import Table
from rich.text import Text
from rich.tree import Tree
from torch import Tensor

from regard.data.audio.batches import to_model_input
from regard.data.image.io import ImageLike
from regard.data.terminal import printable
from regard.data.text.batches import pad
from regard.data.text.tokenizer import Tokenizer
from regard.decode import search
from regard.decode.ctc import JointDecoder
from regard.decode.fast import decoder
from regard.decode.logits_processors import logits_processor
from regard.decode.step import Decoder, Source
from regard.decode.trace import SearchTrace, TraceStep
from regard.models.conformer import Utterances
from regard.tasks.captioning import ImageCaptioner
from regard.tasks.language_model import TextGenerator
from regard.tasks.observer import SentenceObserver, TextObserver, require_wanted
from regard.tasks.speech import Samples, Transcriber
from regard.tasks.translation import Sampling, Translator
from regard.view.record_text import GENERATED
from regard.view.speech_maps import read_sound

__all__ = ["DecodingTrace", "to_table", "to_tree", "trace_decoding"]

STYLE = {"kept": "green", "finished": "bold cyan", "dropped": "dim"}

Read = Literal["source", "prompt", "image", "sound"]


@dataclass(frozen=True)
class DecodingTrace:
    """How the answer to one input was found.  A score is log-probability / length ** length_penalty, as the model has it."""

    read: Read  # what the answer is of; a prompt is read by the decoder itself, the others once by an encoder
    source: list[str]  # tokens of a source or prompt
    vocab: int  # columns of the softmax
    beam_size: int
    length_penalty: float
    sampling: Sampling | None
    steps: list[TraceStep[str]]
    answer: list[str]
    text: str
    score: float

    def to_json(self) -> str:
        """The trace as JSON."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


@torch.inference_mode()
def trace_decoding(predictor: object, what: str | Path | ImageLike | Samples, *, beam: int | None = None, top: int = 5,
                   tokens: int | None = None, max_tokens: int | None = None, sampling: Sampling | None = None,
                   observer: TextObserver | None = None) -> DecodingTrace:  # fmt: skip
    """Search for the answer to one input, and keep each step with its `top` most likely tokens.

    `what` is a sentence to translate, a prompt to continue, an image to caption, or a sound to transcribe with an attention
    decoder.  `beam` is the run's unless given; a prompt is continued by greedy search unless it is, for at most `tokens` tokens
    (by default the run's `decode.max_length`, or 20), and any answer for at most `max_tokens`.  With `sampling` the tokens are
    drawn instead.  If the observer wants no answer any more, the search ends at the next step and `Unwanted` is raised.
    """
    if top < 1 or (beam is not None and beam < 1) or (tokens is not None and tokens < 1):
        raise ValueError(f"top {top}, beam {beam}, tokens {tokens}; use 1 or more")
    if sampling is not None and beam is not None and beam > 1:
        raise ValueError(f"beam {beam} and temperature {sampling.temperature}; search with a beam or sample with a temperature")
    job = _prepare(predictor, what, tokens)
    decode, device = predictor.run.decode, job.source.device  # type: ignore[attr-defined]
    limits = torch.tensor([min(job.limit, max_tokens or job.limit)], device=device)
    recorder, eos = SearchTrace(top), job.tokenizer.special.eos
    width = 1 if sampling is not None else beam or (1 if job.read == "prompt" else decode.beam_size)
    how: dict[str, Any] = {"bos": job.start, "eos": eos, "penalty": decode.length_penalty,
                           "processor": logits_processor(decode, eos), "recorder": recorder,
                           "observers": None if observer is None else [SentenceObserver(observer)]}  # fmt: skip
    if sampling is not None:
        generator = torch.Generator(device).manual_seed(sampling.seed)
        [best] = search.sample(job.decoder, job.source, limits, **how, generator=generator, temperature=sampling.temperature,
                               top_k=sampling.top_k, top_p=sampling.top_p)  # fmt: skip
    elif width == 1:
        [best] = search.greedy(job.decoder, job.source, limits, **how)
    else:
        [[best, *_]] = search.beam(job.decoder, job.source, limits, **how, width=width)
    require_wanted(observer)

    def words(ids: list[int]) -> list[str]:
        return [_readable(token) for token in job.tokenizer.display(ids)]

    assert best.score is not None
    return DecodingTrace(
        read=job.read,
        source=[_readable(token) for token in job.labels],
        vocab=job.tokenizer.vocab,
        beam_size=width,
        length_penalty=decode.length_penalty,
        sampling=sampling,
        steps=recorder.in_words(0, words, decode.length_penalty),
        answer=words(best.tokens),
        text=job.text(best.tokens),
        score=best.score,
    )


class _Job(NamedTuple):
    """One input of a search."""

    read: Read
    labels: list[str]
    decoder: Decoder
    source: Source
    start: Tensor  # (1, P)
    limit: int  # of the answer, in tokens, end included
    tokenizer: Tokenizer  # of the answer
    text: Callable[[list[int]], str]


@singledispatch
def _prepare(predictor: object, what: Any, tokens: int | None) -> _Job:
    raise ValueError("this model answers at once, without decoding steps; use a run that translates, generates text, captions "
                     "images, or transcribes with an attention decoder")  # fmt: skip


@_prepare.register
def _(predictor: Translator, what: str, tokens: int | None) -> _Job:
    [ids] = predictor.encode([what])
    if not ids:
        raise ValueError("there is no text; give a sentence with a word in it")
    predictor.require_short(ids, 1)
    device, answers, special = _device(predictor), predictor.answer_tokenizer, predictor.tokenizer.special
    return _Job("source", predictor.tokenizer.display([*ids, special.eos]), decoder(predictor.model),
                pad([ids], special).to(device), torch.tensor([[answers.special.bos]], device=device),
                predictor.max_answer(len(ids), tokens), answers, lambda best: predictor.decode_ids(answers, best))  # fmt: skip


@_prepare.register
def _(predictor: TextGenerator, what: str, tokens: int | None) -> _Job:
    ids, limit = predictor.encode_prompt(what, tokens)
    if tokens is None and not predictor.run.decode.max_length:
        limit = min(limit, GENERATED)
    prompt = torch.tensor([ids], device=_device(predictor))
    return _Job("prompt", predictor.tokenizer.display(ids), decoder(predictor.model), prompt, prompt, limit,
                predictor.tokenizer, lambda best: predictor.decode_answer(ids, best))  # fmt: skip


@_prepare.register
def _(predictor: ImageCaptioner, what: str | Path | ImageLike, tokens: int | None) -> _Job:
    image, tokenizer = predictor.to_input(what), predictor.tokenizer
    return _Job("image", [], decoder(predictor.model), image, torch.tensor([[tokenizer.special.bos]], device=image.device),
                predictor.max_answer(tokens), tokenizer, tokenizer.decode)  # fmt: skip


@_prepare.register
def _(predictor: Transcriber, what: str | Path | Samples, tokens: int | None) -> _Job:
    model: Any = predictor.model
    weight, special, device = predictor.run.model.ctc_weight, predictor.tokenizer.special, _device(predictor)
    if weight == 1:
        raise ValueError("this model reads the answer out by CTC, frame by frame, and has no decoder whose steps could be traced")
    frames, lengths = (x.to(device) for x in to_model_input([read_sound(what, predictor.run.data.rate)], predictor.run.data))
    limit = int(model.subsampled(lengths)) + 1  # a token takes a frame at least
    return _Job("sound", [], JointDecoder(model, weight, special.eos) if weight else decoder(model), Utterances(frames, lengths),
                torch.tensor([[special.bos]], device=device), min(limit, tokens or predictor.run.decode.max_length or limit),
                predictor.tokenizer, predictor.to_text)  # fmt: skip


def _device(predictor: Any) -> torch.device:
    return next(predictor.model.parameters()).device


def to_table(trace: DecodingTrace) -> Table:
    """A row for each time step, and for each beam of it: its input and the most likely tokens with their probabilities."""
    table = Table("time step", "decoder input", "most likely next", box=None, pad_edge=False)
    for step in trace.steps:
        for n, beam in enumerate(step.beams):
            likely = "  ".join(f"{word.token} {word.probability:.1%}" for word in beam.top)
            table.add_row(str(step.number) if n == 0 else "", Text(" ".join(beam.inputs)), Text(likely))
    return table


def to_tree(trace: DecodingTrace) -> Tree:
    """The outputs of a beam search: each token with its probability and the score of the output that it ends.

    Kept branches go on, finished ones are complete outputs, dropped ones (✗) were worse than the kept.
    """
    root = Tree(Text(" ".join(trace.steps[0].beams[0].inputs)))
    nodes = {0: root}
    for step in trace.steps:
        following = {}
        for branch in step.branches:
            sign = {"kept": "", "finished": " ✓ finished", "dropped": " ✗"}[branch.fate]
            label = Text(f"{branch.token}  {branch.probability:.1%}  {branch.score:.2f}{sign}", style=STYLE[branch.fate])
            node = nodes[branch.parent].add(label)
            if branch.beam is not None:
                following[branch.beam] = node
        nodes = following
    return root


def _readable(token: str) -> str:
    """A token with escapes for control characters, which a terminal would obey."""
    return printable(token, keep="")
