"""Records of speech recognizers: the frames of a sound, and the tokens that a decoder or CTC reads out of them.

Shapes: F frames of the spectrogram, C its channels, S encoded frames, T tokens of the transcript, V vocabulary, H heads.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.audio.batches import to_model_input
from regard.decode.ctc import Span, align
from regard.layers.tap import watch
from regard.tasks.observer import TextObserver
from regard.tasks.speech import Samples, Transcriber
from regard.view import speech_maps
from regard.view.record import Answer, AttentionLayer, Axis, InputLike, MelLevels, Record, RecordOptions, record_with
from regard.view.record_layers import (
    first_notes,
    follow_tokens,
    gather_log_probs,
    joined_calls,
    mean_weights,
    place_decoder,
    refuse_source,
    title_layers,
    title_of,
    title_record,
    token_items,
)
from regard.view.words import text_axis

__all__ = ["TranscriptRerun"]


@dataclass(frozen=True, eq=False)
class _Transcribed:
    """A transcript: its text, its tokens, of a decoder with the end token if it was reached, and the score of the search."""

    text: str
    target: list[int]
    score: float


@dataclass(frozen=True, eq=False)
class _Read:
    """One pass over a sound and its transcript."""

    log_probs: Tensor  # (T,), of the tokens
    spans: list[Span]  # the frames of each token, of CTC alone


def _transcribe(transcriber: Transcriber, frames: Tensor, options: RecordOptions) -> _Transcribed:
    """Search frames (1, F, C)."""
    run = transcriber.run
    width = run.decode.beam_size if options.beam is None else options.beam
    if width < 1:
        raise ValueError(f"beam {width}; use a beam of 1 or more")
    lengths = torch.tensor([frames.shape[1]])
    following = follow_tokens(options.observer, transcriber.to_text)
    [found] = transcriber.search(frames, lengths, width, run.decode.length_penalty, observers=following)
    target = found.tokens
    if run.model.decoder_depth:
        longest = int(transcriber.model.subsampled(lengths)) + 1  # type: ignore[operator]  # as the search limits it
        longest = min(longest, run.decode.max_length or longest)
        target = [*target, transcriber.tokenizer.special.eos] if len(target) < longest else target
    return _Transcribed(transcriber.to_text(found.tokens), target, found.score)


@torch.inference_mode()
def _read(transcriber: Transcriber, frames: Tensor, target: list[int]) -> _Read:
    """The log-probability of each token: by the decoder's step, or the highest of CTC in the frames of the token."""
    model: Any = transcriber.model
    memory, mask = model.encode(frames.to(next(model.parameters()).device))
    if transcriber.run.model.decoder_depth:
        read = torch.tensor([[transcriber.tokenizer.special.bos, *target[:-1]]], device=memory.device)
        return _Read(gather_log_probs(model.output(model.features(memory, mask, read))[0], target), [])
    ctc = model.ctc_logits(memory)[0].float().log_softmax(-1).cpu()  # (S, V)
    spans = align(ctc, target, blank=transcriber.run.model.pad)
    return _Read(torch.tensor([float(ctc[span.start : span.stop, span.token].max()) for span in spans]), spans)


def _transcript_answer(transcriber: Transcriber, found: _Transcribed, log_probs: Tensor) -> Answer:
    return Answer("transcript", found.text, token_items(transcriber.tokenizer, found.target, log_probs), found.score)


@dataclass(frozen=True, eq=False)
class TranscriptRerun:
    """A speech recognizer once more."""

    transcriber: Transcriber
    options: RecordOptions
    frames: Tensor  # (1, F, C)
    target: list[int]
    source: list[int]

    def logprobs(self, source: list[int] | None = None) -> Tensor:
        """The log-probability of each token of the recorded transcript (T,)."""
        refuse_source(source)
        return _read(self.transcriber, self.frames, self.target).log_probs

    def answer(self, source: list[int] | None = None, observer: TextObserver | None = None) -> Answer:
        """Transcribe again."""
        refuse_source(source)
        found = _transcribe(self.transcriber, self.frames, self.options.observed_by(observer))
        return _transcript_answer(self.transcriber, found, _read(self.transcriber, self.frames, found.target).log_probs)


@record_with.register
def _(transcriber: Transcriber, what: InputLike, options: RecordOptions) -> Record:
    """Axes: the encoded frames; with a decoder what it reads and answers, else the tokens that CTC emits."""
    for key, value in (("tokens", options.tokens), ("temperature", options.temperature)):
        if value is not None:
            raise ValueError(f"{key} {value}; a transcript is searched for with a beam, as long as the sound: leave it out")
    samples = speech_maps.read_sound(_require_sound(what, options.name or transcriber.run.name), transcriber.run.data.rate)
    frames, lengths = to_model_input([samples], transcriber.run.data)
    found = _transcribe(transcriber, frames, options)
    with watch(transcriber.model) as recorded:
        read = _read(transcriber, frames, found.target)

    times = transcriber.frame_times(int(transcriber.model.subsampled(lengths)))  # type: ignore[operator]
    tokenizer = transcriber.tokenizer
    axes = {"frames": Axis("frames", len(times), times=times), "answer": text_axis(tokenizer, found.target)}
    layers = title_layers(place_decoder(joined_calls(recorded), "frames"))
    if transcriber.run.model.decoder_depth:
        axes["read"] = text_axis(tokenizer, [tokenizer.special.bos, *found.target[:-1]])
        cross = [layer for layer in layers if layer.kind == "cross"]
        alignment, title = mean_weights(cross), title_of(cross)
    else:
        alignment = _ctc_alignment(layers[-1], read.spans)
        title = f"self-attention of the frames in which CTC emits a token, layer {len(layers)} of {len(layers)}"
    return Record(
        title_record(transcriber, options), _transcript_answer(transcriber, found, read.log_probs), axes, layers, alignment,
        ("answer", "frames"), title, TranscriptRerun(transcriber, options.observed_by(None), frames, found.target, []),
        spectrogram=_spectrogram(transcriber, samples), notes=first_notes(transcriber),
    )  # fmt: skip


def _require_sound(what: InputLike, name: str) -> str | Path | bytes | Samples:
    if not isinstance(what, str | Path | bytes | np.ndarray | Tensor):
        raise ValueError(f"{name} reads sound, and got {type(what).__name__}; give a file, its content, or an array of samples")
    return what


def _ctc_alignment(layer: AttentionLayer, spans: list[Span]) -> Tensor:
    """Where the frames of each token look, the mean over them and over the heads: (T, S)."""
    weights = layer.of_head(None)
    return torch.stack([weights[span.start : span.stop].mean(0) for span in spans]) if spans else weights[:0]


def _spectrogram(transcriber: Transcriber, samples: Tensor) -> MelLevels:
    found = speech_maps.spectrogram_of(transcriber, samples)
    levels = 1 + torch.tensor(found.levels) / speech_maps.DECIBELS  # (C, F)
    return MelLevels(len(samples) / transcriber.run.data.rate, found.frequencies, levels.clamp(0, 1))
