"""Speech recognition: sound with transcripts in, a model that writes what is said, read out by CTC, by attention, or by both.

Shapes: B utterances, F frames, C features of a frame, S frames after subsampling, T tokens, V vocabulary, D width, N samples.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config import DecodeConfig, Run
from regard.data.audio.batches import SpeechBatch, all_speech_batches, read_frames, speech_batches, to_model_input
from regard.data.audio.config import AudioData
from regard.data.audio.features import front_end
from regard.data.audio.io import stream_audio
from regard.data.audio.pieces import Piece, cut_pieces
from regard.data.audio.store import Ints, SpeechStore, prepare, read_split, rows_for_ctc
from regard.data.position import BatchStream, DataPosition
from regard.data.text.tokenizer import Tokenizer
from regard.decode import search
from regard.decode.ctc import JointDecoder, align, best_path, prefix_beam
from regard.decode.fast import decoder
from regard.decode.logits_processors import logits_processor
from regard.decode.search import Hypothesis, Observers
from regard.decode.step import Decoder
from regard.models.conformer import ConformerConfig, Utterances
from regard.tasks.answer_html import answer_html, shorten
from regard.tasks.loss import linear_cross_entropy
from regard.tasks.metrics import Score, transcript_scores
from regard.tasks.origin import predictor_repr
from regard.tasks.task import Card, Progress, Report, ScoreOptions, Task

__all__ = ["TASK", "Recognized", "SpeechDataset", "SpeechModel", "TimedWord", "Transcriber", "Transcript", "speech_loss",
           "to_samples"]  # fmt: skip

KINDS = ("speech",)
PIECE = 20.0  # seconds; longer sound is cut
LONGEST = 60.0  # seconds of a piece: attention's memory grows with the square
BATCH_SECONDS = 60.0  # of sound decoded at once, padding included
SILENCE = 1e-4  # largest sample of a piece that is not searched: normalising would amplify its rounding errors
PAUSE = 0.4  # seconds between two words from which neither reaches the middle
RESTRICTIONS = ("min_length", "max_length", "no_repeat_ngram_size", "repetition_penalty", "suppress_tokens", "bad_words",
                "forced_bos", "forced_eos", "renormalize_logits")  # of [decode]: only a search of tokens obeys them  # fmt: skip
SAMPLED = 3  # validation utterances transcribed at every evaluation

Samples = npt.NDArray[Any] | Tensor  # (N,), or (N, channels)


class SpeechModel(Protocol):
    """What this task asks of a model."""

    config: ConformerConfig
    output: nn.Linear

    def encode(self, frames: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Frames (B, F, C), of which the first `lengths` (B,) are real → memory (B, S, D), and its mask (B, 1, 1, S)."""

    def subsampled(self, lengths: Tensor) -> Tensor:
        """Encoded frames of recordings of `lengths` frames: (B,) → (B,)."""

    def ctc_logits(self, memory: Tensor) -> Tensor:
        """Logits of the token of each encoded frame: (B, S, D) → (B, S, V)."""

    def features(self, memory: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        """Input of the output layer: memory (B, S, D), its mask and target tokens (B, T) → (B, T, D)."""


@dataclass(frozen=True)
class TimedWord:
    """A word, and when it is spoken: seconds from the start of the sound."""

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class Transcript:
    """What is said in a sound, and how likely the model finds it."""

    text: str
    words: list[TimedWord] = field(default_factory=list)  # if times were asked for
    score: float = 0.0  # of the search, summed over the pieces of a long sound; of CTC alone a log-probability

    def __repr__(self) -> str:
        return f"Transcript({shorten(self.text)}, {len(self.words)} timed words, score {self.score:.3f})"

    def _repr_html_(self) -> str:
        words = [(f"{word.start:.2f}", f"{word.end:.2f}", word.text) for word in self.words]
        return answer_html(self.text, ("start", "end", "word"), words)


class Recognized(NamedTuple):
    """The tokens of one utterance, and the log-probabilities (S, V) of CTC, if times are wanted."""

    tokens: list[int]
    score: float
    log_probs: Tensor | None


@dataclass(frozen=True, repr=False)
class Transcriber:
    """A trained speech model, its tokenizer and how it reads sound."""

    VERBS: ClassVar = ("transcribe",)  # of the command line
    INPUT: ClassVar = "audio"

    __repr__ = predictor_repr

    model: nn.Module
    tokenizer: Tokenizer
    run: Run

    def transcribe(self, sounds: Sequence[str | Path | Samples], beam: int | None = None, timestamps: bool = False,
                   piece: float | None = None, progress: Callable[[int], None] = lambda seconds: None,
                   ) -> list[Transcript]:  # fmt: skip
        """The transcript of each sound: a file (wav, flac, ogg, mp3), or an array (N,) of samples at the rate of the run's data.

        A beam of 1 takes the most likely token of each frame (CTC alone) or step.  Sound of more than `piece` seconds is cut
        where it is quietest; by default into pieces of 20 seconds, or less if the model was trained on shorter utterances.
        `progress` gets the seconds of sound that are done.
        """
        return list(self.stream(sounds, beam, timestamps, piece, progress))

    def stream(self, sounds: Iterable[str | Path | Samples], beam: int | None = None, timestamps: bool = False,
               piece: float | None = None, progress: Callable[[int], None] = lambda seconds: None,
               ) -> Iterator[Transcript]:  # fmt: skip
        """The same, each as soon as it is ready; a sound that cannot be read raises its error after those before it."""
        if isinstance(sounds, str | Path):
            raise ValueError("a list of sounds is wanted, not one; put it in brackets")
        data, decode = self.run.data, self.run.decode
        width = decode.beam_size if beam is None else beam
        seconds = min(PIECE, data.max_seconds) if piece is None else piece
        if width < 1:
            raise ValueError(f"beam {width}; use a beam of 1 or more")
        if not 1 <= seconds <= LONGEST and piece is not None:
            raise ValueError(f"pieces of {seconds:g} seconds; use 1 to {LONGEST:g}")
        if timestamps and not self.run.model.ctc_weight:
            raise ValueError("times come from CTC, and this model was trained without it (ctc_weight 0); leave timestamps out")
        pieces = (part for sound in sounds for part in cut_pieces(self._blocks(sound, seconds), data.rate, seconds))
        done, parts = 0.0, list[Transcript]()
        for batch in _in_batches(pieces, decode.batch_size, round(BATCH_SECONDS * data.rate)):
            loud = [float(part.samples.abs().max()) > SILENCE for part in batch]
            spoken = [part.samples for part, heard in zip(batch, loud, strict=True) if heard]
            found = iter(self._search_samples(spoken, width, timestamps))
            for part, heard in zip(batch, loud, strict=True):
                parts.append(self._transcript(part, next(found)) if heard else Transcript(""))
                done += len(part.samples) / data.rate
                if part.last:
                    yield _join(parts)
                    parts = []
            progress(round(done))

    def _search_samples(self, sounds: Sequence[Tensor], beam: int, log_probs: bool) -> list[Recognized]:
        """Samples (N,) of several utterances → the best tokens of each."""
        if not sounds:
            return []
        return self.search(*to_model_input(sounds, self.run.data), beam, self.run.decode.length_penalty, log_probs)

    @torch.inference_mode()
    def search(self, frames: Tensor, lengths: Tensor, beam: int, penalty: float = 1.0, log_probs: bool = False,
               observers: Observers | None = None) -> list[Recognized]:  # fmt: skip
        """Normalised frames (B, F, C) of `lengths` (B,) → the best tokens of each utterance; if asked, with CTC's `log_probs`.

        CTC alone is searched by its best path or by prefix beam, attention alone and both together by greedy or beam search,
        which `observers`, one for each utterance, follow.
        """
        model, device = self._speech_model, next(self.model.parameters()).device
        source, weight = Utterances(frames.to(device), lengths.to(device)), model.config.ctc_weight
        ctc = None
        if weight == 1 or log_probs:
            memory, _ = model.encode(source.frames, source.lengths)
            ctc = model.ctc_logits(memory).log_softmax(-1)  # (B, S, V)
        sizes = model.subsampled(source.lengths)
        if weight == 1:
            _check_decode(self.run, model)
            assert ctc is not None
            blank = model.config.pad
            found = (
                best_path(ctc, sizes, blank=blank) if beam == 1 else
                [hypotheses[0] for hypotheses in prefix_beam(ctc, sizes, width=beam, blank=blank)]
            )  # fmt: skip
        else:
            found = self._search_tokens(source, sizes + 1, beam, penalty, observers)  # a token takes a frame at least
        kept = [None] * len(frames) if ctc is None or not log_probs else [
            row[:size] for row, size in zip(ctc, sizes.tolist(), strict=True)]  # fmt: skip
        return [Recognized(ids, score or 0.0, row) for (ids, score, _), row in zip(found, kept, strict=True)]

    def to_text(self, tokens: Sequence[int]) -> str:
        """The text of token ids, with single spaces."""
        return " ".join(self.tokenizer.decode(tokens).split())

    @property
    def _speech_model(self) -> SpeechModel:
        return self.model  # type: ignore[return-value]

    def _search_tokens(self, source: Utterances, limits: Tensor, beam: int, penalty: float,
                       observers: Observers | None = None) -> list[Hypothesis]:  # fmt: skip
        """One token after the other, by attention, or by attention and CTC together."""
        model: Any = self.model
        special, weight = self.tokenizer.special, self.run.model.ctc_weight
        steps: Decoder = JointDecoder(model, weight, special.eos) if weight else decoder(model)
        limits = limits.clamp(max=self.run.decode.max_length) if self.run.decode.max_length else limits
        ends: dict[str, Any] = {"bos": special.bos, "eos": special.eos, "penalty": penalty,
                                "processor": logits_processor(self.run.decode, special.eos), "observers": observers}  # fmt: skip
        if beam == 1:
            return search.greedy(steps, source, limits, **ends)
        found = search.beam(steps, source, limits, width=beam, **ends)
        return [hypotheses[0] for hypotheses in found]

    def _blocks(self, sound: str | Path | Samples, seconds: float) -> Iterable[Tensor]:
        """The samples of a sound in blocks, at the rate of the model."""
        if isinstance(sound, str | Path):
            return stream_audio(sound, self.run.data.rate, seconds)
        return to_samples(sound).split(max(1, round(seconds * self.run.data.rate)))  # cutting copies the rest of a block

    def _transcript(self, piece: Piece, found: Recognized) -> Transcript:
        words = [] if found.log_probs is None else self.timed_words(piece, found.tokens, found.log_probs)
        return Transcript(self.to_text(found.tokens), words, found.score)

    def frame_times(self, count: int) -> list[float]:
        """The centres of the first `count` encoded frames, in seconds.

        Frame s of the encoder is centred on frame s · subsample of the front end.
        """
        front = front_end(self.run.data)
        step = front.step * self.run.model.subsample
        first = front.window / 2000 if front.features == "mfcc" else 0.0  # a window of log-mel is centred on its first sample
        return [first + step * frame for frame in range(count)]

    def timed_words(self, piece: Piece, tokens: list[int], log_probs: Tensor) -> list[TimedWord]:
        """When each word is spoken, by the most likely path of CTC: it ends midway between its last frame and the next word's."""
        data, centres = self.run.data, self.frame_times(len(log_probs))
        spans, frames = align(log_probs, tokens, blank=self.run.model.pad), dict[int, tuple[int, int]]()
        words, before = self.to_text(tokens).split(), ""
        for count, span in enumerate(spans, 1):
            text = self.to_text(tokens[:count])
            if text != before:  # else a space
                word = min(len(text.split()), len(words)) - 1
                frames[word] = frames.get(word, (span.start, 0))[0], span.stop - 1
                before = text
        offset, length = piece.start / data.rate, len(piece.samples) / data.rate
        times = [(centres[first], centres[last]) for first, last in frames.values()]
        edge = centres[1] - centres[0] if len(centres) > 1 else 0.0  # the first and the last word reach one frame further
        starts, ends = [max(0.0, times[0][0] - edge)] if times else [], list[float]()
        for (_, last), (first, _) in itertools.pairwise(times):
            reach = min(PAUSE, first - last) / 2  # in a long pause both words stay near their tokens
            ends.append(last + reach)
            starts.append(first - reach)
        ends += [times[-1][1] + edge] if times else []
        timed = zip(frames, starts, ends, strict=True)
        return [TimedWord(words[word], offset + min(start, length), offset + min(end, length)) for word, start, end in timed]


def _check_decode(run: Run, model: SpeechModel) -> None:
    """Refuse settings that restrict the tokens of an answer if the model has CTC alone, which chooses a path of frames."""
    plain = DecodeConfig()
    for name in RESTRICTIONS if model.config.ctc_weight == 1 else ():
        if (value := getattr(run.decode, name)) != getattr(plain, name):
            raise ValueError(f"decode.{name} = {value} has no effect on CTC alone (ctc_weight 1); leave it out of run.toml, or "
                             f"use a model with a decoder (ctc_weight below 1)")  # fmt: skip


def to_samples(sound: Samples) -> Tensor:
    """An array of samples, or of several channels, as read by soundfile → (N,), from -1 to 1."""
    x = torch.as_tensor(sound)
    if x.dtype == torch.int16:
        x = x / 32_768
    if not x.is_floating_point() or x.dim() not in (1, 2):
        raise ValueError(f"samples of shape {tuple(x.shape)} and type {x.dtype}; give (N,) or (N, channels), floats or int16")
    x = x.float().mean(1) if x.dim() == 2 else x.float()
    if not len(x):
        raise ValueError("the sound has no samples; give one with sound in it")
    if not bool(x.isfinite().all()):
        at = int((~x.isfinite()).nonzero()[0])
        raise ValueError(f"the sound has a sample that is not a number, sample {at:,}; write it again, or leave it out")
    return x


def _in_batches(pieces: Iterable[Piece], count: int, samples: int) -> Iterator[list[Piece]]:
    """Batches of at most `count` pieces and `samples` samples, padded; before an error, the pieces read so far."""
    batch, longest = list[Piece](), 0
    try:
        for piece in pieces:
            most = max(longest, len(piece.samples))
            if batch and (len(batch) == count or (len(batch) + 1) * most > samples):
                yield batch
                batch, most = [], len(piece.samples)
            batch.append(piece)
            longest = most
    except ValueError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _join(parts: Sequence[Transcript]) -> Transcript:
    """The transcripts of the pieces of one sound as one."""
    text = " ".join(part.text for part in parts if part.text)
    return Transcript(text, [word for part in parts for word in part.words], sum(part.score for part in parts))


def speech_loss(model: SpeechModel, batch: SpeechBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """ctc_weight · CTC + (1 - ctc_weight) · cross-entropy of the decoder with teacher forcing, equation 14 of the paper.

    Watanabe et al. 2017, https://arxiv.org/abs/1609.06773.  Both are sums over utterances; labels are smoothed in the second.
    """
    weight = model.config.ctc_weight
    memory, mask = model.encode(batch.frames, batch.lengths)
    loss, nll = memory.new_zeros(()), memory.new_zeros(())
    if weight:
        ctc = ctc_loss(model.ctc_logits(memory), model.subsampled(batch.lengths), batch.target, batch.pad)
        loss, nll = loss + weight * ctc, nll + weight * ctc.detach()
    if weight < 1:
        inputs, targets = batch.target[:, :-1], batch.target[:, 1:]
        real = targets != batch.pad  # (B, T)
        features = model.features(memory, mask, inputs)[real]
        smoothed, plain = linear_cross_entropy(features, model.output.weight, model.output.bias, targets[real], label_smoothing)
        loss, nll = loss + (1 - weight) * smoothed, nll + (1 - weight) * plain
    return loss, nll


def ctc_loss(logits: Tensor, lengths: Tensor, target: Tensor, blank: int) -> Tensor:
    """-log p of the transcripts, summed: logits (B, S, V) of `lengths` (B,) frames, targets (B, T + 2) with start and end."""
    labels = target[:, 1:]
    counts = (labels != blank).sum(1) - 1  # without the end
    return F.ctc_loss(logits.log_softmax(-1).transpose(0, 1), labels, lengths, counts, blank, reduction="sum")


class SpeechDataset(NamedTuple):
    """The speech that training reads, and which of its utterances CTC can learn."""

    train: SpeechStore
    valid: SpeechStore
    tokenizer: Tokenizer
    train_rows: Ints
    valid_rows: Ints
    labels: tuple[str, ...] = ()


def _prepare(run: Run, tokenizer: Path, report: Report, progress: Progress) -> SpeechDataset:
    require_features(run)
    dataset = prepare(run.data, tokenizer, report, progress)
    if not run.model.ctc_weight:
        train, valid = (np.arange(len(store)) for store in dataset[:2])
    else:
        kept = partial(rows_for_ctc, subsample=run.model.subsample, report=report)
        train, valid = kept(dataset.train, "training", fastest=max(run.data.speed)), kept(dataset.valid, "validation")
    return SpeechDataset(dataset.train, dataset.valid, dataset.tokenizer, train, valid)


def require_features(run: Run) -> None:
    """Refuse a model that reads another number of features than a frame has, and label smoothing where there are no labels."""
    channels, reads = front_end(run.data).channels, run.model.features
    if channels != reads:
        raise ValueError(f"a frame of the data has {channels} features, the model reads {reads}; set model.features={channels}")
    if run.train.label_smoothing and run.model.ctc_weight == 1:
        raise ValueError(f"train.label_smoothing={run.train.label_smoothing} is for an attention decoder, and this model has CTC "
                         f"alone: set train.label_smoothing=0.0")  # fmt: skip


def _batches(run: Run, dataset: SpeechDataset, position: DataPosition) -> BatchStream[SpeechBatch]:
    subsample = run.model.subsample if run.model.ctc_weight else 1
    return speech_batches(
        dataset.train, run.train.batch_tokens, run.train.seed, run.data, position, dataset.train_rows, subsample
    )


def _validation(run: Run, dataset: SpeechDataset) -> Iterator[SpeechBatch]:
    return all_speech_batches(dataset.valid, run.train.batch_tokens, run.data, dataset.valid_rows)


def _samples(transcriber: Transcriber, dataset: SpeechDataset) -> list[str]:
    store = dataset.valid
    rows = np.linspace(0, len(store) - 1, min(SAMPLED, len(store))).astype(int).tolist()  # named sets are sorted by transcript
    texts = _transcribe_rows(transcriber, store, rows, 1)
    return [f"{text or '(nothing)'}   (wanted: {store.utterances[row].text})" for text, row in zip(texts, rows, strict=True)]


def _transcribe_rows(transcriber: Transcriber, store: SpeechStore, rows: Sequence[int], beam: int, penalty: float = 1.0,
                     ) -> list[str]:  # fmt: skip
    frames, lengths = read_frames(store, [[row] for row in rows], transcriber.run.data)
    return [transcriber.to_text(found.tokens) for found in transcriber.search(frames, lengths, beam, penalty)]


def _score(transcriber: Transcriber, split: str, options: ScoreOptions) -> list[Score]:
    """Transcribe every utterance of a split; those with too few frames for CTC count too."""
    run, decode = transcriber.run, transcriber.run.decode
    store = read_split(run.data, split, transcriber.tokenizer, options.report)
    beam = decode.beam_size if options.beam_size is None else options.beam_size
    penalty = decode.length_penalty if options.length_penalty is None else options.length_penalty
    rows = sorted(range(min(len(store), options.limit or len(store))), key=lambda row: store.frame_count([row]))
    answers = dict[int, str]()
    for first in range(0, len(rows), decode.batch_size):
        some = rows[first : first + decode.batch_size]
        answers.update(zip(some, _transcribe_rows(transcriber, store, some, beam, penalty), strict=True))
        options.progress(len(answers))
    texts = [" ".join((u.text.lower() if run.data.lowercase else u.text).split()) for u in store.utterances[: len(rows)]]
    return transcript_scores([answers[row] for row in range(len(rows))], texts)


TASK: Task[SpeechModel, SpeechDataset, SpeechBatch, Transcriber] = Task(
    name="speech",
    kinds=KINDS,
    data=AudioData,
    card=Card(
        "transcribes speech", "automatic-speech-recognition", "transcribe", 'transcribe(["clip.wav"])', "clip.wav", "audio"
    ),
    prepare=_prepare,
    batches=_batches,
    validation=_validation,
    loss=speech_loss,
    predictor=lambda model, run, tokenizer, labels: Transcriber(model, tokenizer, run),
    score=_score,
    samples=_samples,
    check=_check_decode,
    batch_text=lambda run, batches: f"{run.train.batch_tokens * batches:,} frames",
    perplexity=False,
    scored_by_search=True,
    score_text=lambda run: f", beam {run.decode.beam_size}",
)
