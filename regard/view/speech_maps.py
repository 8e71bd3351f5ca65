"""Speech as a model hears it, as data and as a file: spectrogram, CTC posteriors and attention over one time axis.

Shapes: N samples, F frames of the spectrogram, C its channels, S encoded frames, T tokens, V vocabulary, H heads.
"""

import bisect
import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from regard.data.audio.batches import to_model_input
from regard.data.audio.features import front_end, log_mel, slaney_edges
from regard.data.audio.io import SoundFile, audio_seconds, read_audio
from regard.data.audio.pieces import Piece
from regard.layers.tap import attention_modules, watch
from regard.tasks.speech import SILENCE, Recognized, Samples, TimedWord, Transcriber, to_samples
from regard.view.caption_maps import words_of_caption
from regard.view.draw import Drawing, figure_bytes, new_figure, readable, save_map, write_map
from regard.view.maps import is_cross, require_index
from regard.view.scale import LESS_TO_MORE, add_ratio_bar, levels, palette, preference_note

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["DECIBELS", "FrameAttention", "Posteriors", "Spectrogram", "SpeechMap", "draw", "map_speech", "read_sound",
           "spectrogram_of", "to_file"]  # fmt: skip

MAX_SECONDS = 30.0  # attention maps of longer sound are unreadable
MAX_TOKENS = 64  # rows of cross-attention; of a longer transcript they are its words
MAX_ROWS = 120  # of posteriors or cross-attention that are drawn
MELS = 64  # channels of the spectrogram of a run that reads cepstra
DECIBELS = 70  # from the loudest to the darkest level that is drawn
LABEL_GAP = 0.06  # between two frequencies that are named, as a fraction of the height of the spectrogram
BLANK, OTHER = "(blank)", "(others)"
TICKS = (125, 250, 500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000)  # Hz
WIDTH, PER_SECOND, NARROWEST, WIDEST = 1.6, 1.5, 7.0, 20.0  # inches: labels and colour bar, a second, a drawing
HIGH, ROW = 1.9, 0.155  # inches: spectrogram, a row with its label
SQUARE = 0.45  # height of self-attention, as a fraction of its width
LETTER, LINE = 0.085, 0.15  # inches of a letter of a word, and of a line of them
TIMES = 32  # attention is drawn from 1/32 to 32 times uniform: among hundreds of frames it is sharper than over an image


@dataclass(frozen=True)
class Spectrogram:
    """The level of each mel channel in each frame, in decibels below the loudest."""

    times: list[float]  # seconds, of the middle of each frame
    frequencies: list[float]  # Hz, of the peak of each channel
    levels: list[list[float]]  # (C, F)


@dataclass(frozen=True)
class Posteriors:
    """CTC's distribution over tokens in each encoded frame: the tokens of the transcript, all others together, the blank."""

    tokens: list[str]
    probabilities: list[list[float]]  # (tokens, S), each column sums to one


@dataclass(frozen=True)
class FrameAttention:
    """How much each row attends to each encoded frame: a row is a token or word of the transcript, or an encoded frame itself."""

    title: str
    rows: list[str]  # empty for self-attention, whose rows are the frames
    weights: list[list[float]]  # (rows, S), each row sums to one


@dataclass(frozen=True)
class SpeechMap:
    """What a model makes of a sound."""

    title: str
    transcript: str
    seconds: float  # of the sound
    words: list[TimedWord]  # empty if the model was trained without CTC
    spectrogram: Spectrogram
    times: list[float]  # seconds, of the middle of each encoded frame
    posteriors: Posteriors | None  # None if the model was trained without CTC
    attention: FrameAttention

    def __repr__(self) -> str:
        return f"SpeechMap({self.title!r}, {self.transcript!r}, {self.seconds:.1f} seconds)"

    def _repr_png_(self) -> bytes:
        return draw(self, "png").content

    def to_json(self) -> str:
        """The map as JSON."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    def save(self, file: str | Path) -> Path:
        """Draw it as .png, .svg or .pdf, or write .json; returns the path."""
        return save_map(self, file, draw)


def map_speech(transcriber: Transcriber, sound: SoundFile | Samples, *, beam: int | None = None, layer: int | None = None,
               head: int | None = None) -> SpeechMap:  # fmt: skip
    """Transcribe a sound of up to 30 seconds in one piece, and map its spectrum, the posteriors of CTC, and attention.

    A model with a decoder is shown by its cross-attention, another one by the self-attention of its encoder.  `layer` and `head`
    count from 1; without them, the last layer and the mean of its heads.  A row of cross-attention is the step that predicts a
    token; of a transcript of more than 64 tokens it is a word, the mean of its tokens.
    """
    run = transcriber.run
    require_index("layer", layer, run.model.decoder_depth or run.model.depth)
    require_index("head", head, run.model.heads)
    width = run.decode.beam_size if beam is None else beam
    if width < 1:
        raise ValueError(f"beam {width}; use a beam of 1 or more")
    samples = read_sound(sound, run.data.rate)
    frames, lengths = to_model_input([samples], run.data)
    has_ctc = run.model.ctc_weight > 0
    [found] = transcriber.search(frames, lengths, width, run.decode.length_penalty, log_probs=has_ctc)
    attention = _attention(transcriber, frames, found.tokens, layer, head)
    return SpeechMap(
        title=run.name,
        transcript=transcriber.to_text(found.tokens),
        seconds=len(samples) / run.data.rate,
        words=_words(transcriber, samples, found),
        spectrogram=spectrogram_of(transcriber, samples),
        times=transcriber.frame_times(int(transcriber.model.subsampled(lengths))),  # type: ignore[operator]
        posteriors=_posteriors(transcriber, found),
        attention=attention,
    )


def read_sound(sound: SoundFile | Samples, rate: int) -> Tensor:
    """The samples (N,) of a sound that can be shown: a file, its content, or samples."""
    if isinstance(sound, str | Path | bytes):
        name = "the sound" if isinstance(sound, bytes) else str(sound)
        _require_short(name, audio_seconds(sound))  # before a file of hours is read
        samples = read_audio(sound, rate)
    else:
        name, samples = "the sound", to_samples(sound)
    _require_short(name, len(samples) / rate)
    if float(samples.abs().max()) <= SILENCE:
        raise ValueError(f"{name} is silent; give a sound with speech in it")
    return samples


def _require_short(name: str, seconds: float) -> None:
    if seconds > MAX_SECONDS:
        raise ValueError(f"{name} lasts {seconds:,.1f} seconds, and a map of more than {MAX_SECONDS:g} is unreadable; "
                         f"cut a part out of it, or use regard transcribe")  # fmt: skip


def _words(transcriber: Transcriber, samples: Tensor, found: Recognized) -> list[TimedWord]:
    if found.log_probs is None:
        return []
    return transcriber.timed_words(Piece(0, samples, last=True), found.tokens, found.log_probs)


def spectrogram_of(transcriber: Transcriber, samples: Tensor) -> Spectrogram:
    """The run's own log-mel channels; cepstra have no frequencies, so a run that reads those is shown by other channels."""
    front = front_end(transcriber.run.data)
    if front.features == "mfcc":
        front = front._replace(features="log-mel", mels=MELS, window=25.0, low=0.0, high=front.rate / 2)
    power = log_mel(samples, front.rate, front.mels, front.window, front.hop, front.low, front.high)  # (F, C)
    levels = (power - power.max()) * 10 / math.log(10)
    step = front.step
    frequencies = slaney_edges(front.mels, front.low, front.high)[1:-1]
    return Spectrogram([step * frame for frame in range(len(levels))], frequencies.tolist(), levels.T.tolist())


def _posteriors(transcriber: Transcriber, found: Recognized) -> Posteriors | None:
    if found.log_probs is None:
        return None
    blank, probabilities = transcriber.run.model.pad, found.log_probs.double().exp().cpu().T  # (V, S)
    shown = [token for token in dict.fromkeys(found.tokens) if token != blank]  # in the order of the transcript
    others = torch.ones(len(probabilities), dtype=torch.bool)
    others[[*shown, blank]] = False
    rows = torch.cat((probabilities[shown], probabilities[others].sum(0, keepdim=True), probabilities[[blank]]))
    return Posteriors([*_labels(transcriber, shown), OTHER, BLANK], rows.tolist())


def _labels(transcriber: Transcriber, tokens: Sequence[int]) -> list[str]:
    return [readable(token) for token in transcriber.tokenizer.display(tokens)]


@torch.inference_mode()
def _attention(
    transcriber: Transcriber, frames: Tensor, tokens: list[int], layer: int | None, head: int | None
) -> FrameAttention:
    """Run the model once more on one utterance (1, F, C), and record one layer."""
    model: Any = transcriber.model
    has_decoder = transcriber.run.model.decoder_depth > 0
    named = list(attention_modules(model).items())
    parts = [part for name, part in named if (is_cross(name) if has_decoder else name.startswith("encoder."))]
    number = layer or len(parts)
    with watch(parts[number - 1]) as recorded:
        memory, mask = model.encode(frames.to(next(model.parameters()).device))
        if has_decoder:  # the step that reads a token predicts the next one
            target = torch.tensor([[transcriber.tokenizer.special.bos, *tokens[:-1]]], device=memory.device)
            model.features(memory, mask, target)
    [weights] = recorded[""]  # (1, H, rows, S)
    heads = weights.shape[1]
    mean = weights[0, slice(head and head - 1, head)].float().mean(0).cpu()  # (rows, S)
    of_layer = f", layer {number} of {len(parts)}" if len(parts) > 1 else ""
    of_head = f", head {head}" if head else f", mean of {heads} heads" if heads > 1 else ""
    rows = list[str]()
    if has_decoder and len(tokens) > MAX_TOKENS:
        words = words_of_caption(transcriber.tokenizer, tokens)
        rows = [word for word, _ in words]
        mean = torch.stack([mean[positions].mean(0) for _, positions in words])
    elif has_decoder:
        rows, mean = _labels(transcriber, tokens), mean[: len(tokens)]  # the start token alone has no row
    return FrameAttention(f"{'cross' if has_decoder else 'self'}-attention{of_layer}{of_head}", rows, mean.tolist())


def to_file(speech: SpeechMap, file: Path) -> list[str]:
    """Draw the panels one below the other as PNG, SVG or PDF, or write JSON, by the file's suffix; returns notes for the user."""
    return write_map(speech, file, draw)


def draw(speech: SpeechMap, kind: str) -> Drawing:
    """Words, spectrogram, posteriors in percent, and attention relative to uniform attention over the frames."""
    width = min(WIDEST, max(NARROWEST, WIDTH + PER_SECOND * speech.seconds))
    inner, cross = width - WIDTH, bool(speech.attention.rows)
    strip, sideways = _word_strip(speech, inner)
    tokens = 0 if speech.posteriors is None else min(MAX_ROWS, len(speech.posteriors.tokens))
    self_attention = not cross and bool(speech.attention.weights)
    rows = min(MAX_ROWS, len(speech.attention.rows))
    attention = max(1.0, ROW * rows) if cross else SQUARE * inner if self_attention else 0.0
    heights = [high for high in (strip, HIGH, ROW * tokens, attention) if high]
    texts = [speech.title, speech.transcript, *speech.attention.rows, *(speech.posteriors.tokens if speech.posteriors else ())]
    with new_figure(width, 0.5 + sum(heights) + 0.33 * len(heights), texts) as figure:
        figure.suptitle(f"{speech.title}: {speech.transcript or '(nothing)'}", fontsize=10, parse_math=False, wrap=True)
        places = iter(figure.add_gridspec(len(heights), 2, height_ratios=heights, width_ratios=[inner, 0.13]))
        panels = list["Axes"]()

        if strip:
            panels.append(figure.add_subplot(next(places)))
            _draw_words(panels[0], speech, sideways)
            next(places)

        panels.append(figure.add_subplot(next(places)))
        _draw_spectrogram(figure, panels[-1], figure.add_subplot(next(places)), speech.spectrogram)

        if speech.posteriors is not None:
            panels.append(figure.add_subplot(next(places)))
            grid, names = speech.posteriors.probabilities, speech.posteriors.tokens
            kept = [*range(tokens - 2), -2, -1]  # others and blank are last
            drawn = _draw_frames(panels[-1], speech, [grid[n] for n in kept], palette(), (0, 1))
            _scale(figure, drawn, figure.add_subplot(next(places)), "", lambda weight, _: f"{round(100 * weight, 2):g}%")
            _name_rows(panels[-1], [names[n] for n in kept])
            panels[-1].set_ylabel("CTC posteriors", fontsize=9)

        if attention:
            panels.append(figure.add_subplot(next(places)))
            weights = speech.attention.weights[:rows] if cross else speech.attention.weights
            ratios, ends = np.asarray(weights) * len(speech.times), math.log2(TIMES)
            drawn = _draw_frames(panels[-1], speech, levels(ratios, TIMES), palette(LESS_TO_MORE), (-ends, ends), not cross)
            add_ratio_bar(figure, drawn, figure.add_subplot(next(places)), TIMES)
            if cross:
                _name_rows(panels[-1], speech.attention.rows[:rows])
            else:
                panels[-1].set_ylabel("query, seconds", fontsize=9)
            title = f"{speech.attention.title}: {_preference(weights)}"
            panels[-1].set_title(title, fontsize=9, color="#666666", pad=4)

        for panel in panels:
            panel.set_xlim(0, max(speech.seconds, *speech.times))
            panel.tick_params(labelsize=8, labelbottom=panel is panels[-1])
            for word in speech.words[1:] if panel is not panels[0] else []:
                panel.axvline(word.start, color="#808080", linewidth=0.5)
        panels[-1].set_xlabel("seconds" if cross or not attention else "key, seconds", fontsize=9)
        content, notes = figure_bytes(figure, kind, texts)
    most = max(len(speech.attention.rows), 0 if speech.posteriors is None else len(speech.posteriors.tokens))
    if most > MAX_ROWS:
        notes.append(f"{MAX_ROWS} of {most} rows are drawn; a .json file holds all")
    return Drawing(content, notes)


def _preference(weights: Sequence[Sequence[float]]) -> str:
    """How much the rows prefer some frames: that of the row in the middle, if rows are sorted by it."""
    return preference_note(sorted(weights, key=max)[len(weights) // 2])


def _word_strip(speech: SpeechMap, inner: float) -> tuple[float, bool]:
    """The height of the words above the panels, in inches, and whether they must be written from bottom to top."""
    if not speech.words:
        return 0.0, False
    per_second = inner / max(speech.seconds, 0.1)
    middles = [(word.start + word.end) / 2 * per_second for word in speech.words]
    wide = [LETTER * (len(word.text) + 1) for word in speech.words]
    ends = [(middle - w / 2, middle + w / 2) for middle, w in zip(middles, wide, strict=True)]
    sideways = any(after[0] < before[1] for before, after in itertools.pairwise(ends))
    return LINE + (max(wide) if sideways else LINE), sideways


def _draw_words(axes: "Axes", speech: SpeechMap, sideways: bool) -> None:
    """A bar for the time of each word, and the word above it."""
    axes.set_axis_off()
    axes.set_ylim(0, 1)
    for number, word in enumerate(speech.words):
        shade = "#6e1e6e" if number % 2 == 0 else "#dc503c"  # neighbours differ
        axes.plot((word.start, word.end), (0, 0), color=shade, linewidth=4, solid_capstyle="butt", clip_on=False)
        middle = (word.start + word.end) / 2
        axes.annotate(word.text, (middle, 0), (0, 4), textcoords="offset points", ha="center", va="bottom", fontsize=9,
                      rotation=90 if sideways else 0, color=shade, parse_math=False, annotation_clip=False)  # fmt: skip


def _draw_spectrogram(figure: "Figure", axes: "Axes", bar: "Axes", spectrogram: Spectrogram) -> None:
    """Channels are rows of equal height, as on the mel scale; the ticks are at round frequencies."""
    channels, step = len(spectrogram.frequencies), _step(spectrogram.times)
    left, right = spectrogram.times[0] - step / 2, spectrogram.times[-1] + step / 2
    drawn = axes.imshow(spectrogram.levels, cmap="gray_r", vmin=-DECIBELS, vmax=0, origin="lower", aspect="auto",
                        interpolation="nearest", extent=(left, right, -0.5, channels - 0.5))  # fmt: skip
    low, high = spectrogram.frequencies[0], spectrogram.frequencies[-1]
    places = {hz: _channel(hz, spectrogram.frequencies) for hz in TICKS if low <= hz <= 1.05 * high}
    ticks = [hz for hz in places if places.get(2 * hz, math.inf) - places[hz] >= LABEL_GAP * channels]
    axes.set_yticks([places[hz] for hz in ticks], [f"{hz:,}" for hz in ticks])
    axes.set_ylabel("hertz", fontsize=9)
    _scale(figure, drawn, bar, "dB", lambda level, _: f"{level:.0f}")


def _channel(hz: float, frequencies: Sequence[float]) -> float:
    """Where a frequency is among the channels, between two of them or a little outside."""
    if len(frequencies) == 1:
        return 0.0
    below = min(max(bisect.bisect_right(frequencies, hz) - 1, 0), len(frequencies) - 2)
    return below + (hz - frequencies[below]) / (frequencies[below + 1] - frequencies[below])


def _draw_frames(axes: "Axes", speech: SpeechMap, grid: Any, colours: Any, ends: tuple[float, float],
                 over_frames: bool = False) -> Any:  # fmt: skip
    """Rows over the encoded frames; if the rows are frames too, both axes are in seconds."""
    step = _step(speech.times)
    left, right = speech.times[0] - step / 2, speech.times[-1] + step / 2
    rows = (right, left) if over_frames else (len(grid) - 0.5, -0.5)
    return axes.imshow(grid, cmap=colours, vmin=ends[0], vmax=ends[1], aspect="auto", interpolation="nearest",
                       extent=(left, right, *rows))  # fmt: skip


def _step(times: Sequence[float]) -> float:
    """Seconds from one frame to the next."""
    return times[1] - times[0] if len(times) > 1 else 0.01


def _name_rows(axes: "Axes", names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.tick_params(axis="y", length=0)


def _scale(figure: "Figure", drawn: Any, bar: "Axes", title: str, form: Any) -> None:
    colours = figure.colorbar(drawn, cax=bar, format=form)
    colours.outline.set_visible(False)
    bar.set_title(title, fontsize=8, color="#666666")
    bar.tick_params(labelsize=7)
