"""Batches of speech by frame count, from buckets of similar length; their order and augmentation are a function of (seed, epoch).

    stored  →  joined  →  speed  →  log-mel or MFCC  →  normalised  →  SpecAugment

An epoch joins utterances of one speaker at random, draws the speed of each, sorts them by length, cuts them into batches of about
equal frame counts, and shuffles those.  Training resumes from any `DataPosition` with identical batches.

Shapes: B batch, F frames, C channels, T tokens, N samples.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.data.audio.augment import change_speed, spec_augment
from regard.data.audio.config import AudioData
from regard.data.audio.features import front_end, normalize_frames
from regard.data.audio.store import Ints, SpeechStore, ctc_frames_needed
from regard.data.position import BatchStream, DataPosition
from regard.data.text.tokenizer import PAD

__all__ = ["SpeechBatch", "all_speech_batches", "join_utterances", "make_batch", "read_frames", "speech_batches",
           "to_model_input"]  # fmt: skip

Group = Sequence[int]  # utterances that are joined to one


class SpeechBatch(NamedTuple):
    """Utterances and their transcripts, padded."""

    frames: Tensor  # (B, F, C)
    lengths: Tensor  # (B,): frames of each utterance
    target: Tensor  # (B, T + 2): start, tokens, end
    pad: int = PAD  # the token after the end, and the blank of CTC

    @property
    def tokens(self) -> int:
        """Tokens to predict, including ends, without padding."""
        return int((self.target[:, 1:] != self.pad).sum())


def speech_batches(store: SpeechStore, frames: int, seed: int, data: AudioData, position: DataPosition = DataPosition(),
                   rows: Ints | None = None, subsample: int = 1) -> BatchStream[SpeechBatch]:  # fmt: skip
    """Endless batches of at most `frames` frames, padding included, from a position on; of all utterances, or of `rows`.

    Utterances are joined only if they last `data.max_seconds` at most, and leave CTC enough frames after `subsample`.
    """
    rows = np.arange(len(store)) if rows is None else rows
    most, fastest = round(data.max_seconds * 1000 / data.hop), max(data.speed)

    def may_join(group: Group) -> bool:
        need = sum(ctc_frames_needed(store.tokens[row]) for row in group) + 2 * (len(group) - 1)  # spaces, with a blank each
        return store.frame_count(group) <= most and -(-store.frame_count(group, fastest) // subsample) >= need

    epoch, _, skip = position
    while True:
        rng = np.random.default_rng([seed, epoch])
        groups = join_utterances(store, data.join, rng, rows, may_join)
        speeds = [data.speed[index] for index in rng.integers(len(data.speed), size=len(groups)).tolist()]
        lengths = [store.frame_count(group, speed) for group, speed in zip(groups, speeds, strict=True)]
        batches = _split_by_frames(lengths, frames)
        batches = [batches[index] for index in rng.permutation(len(batches))]
        for index in range(skip, len(batches)):
            after = DataPosition(epoch + 1) if index + 1 == len(batches) else DataPosition(epoch, 0, index + 1)
            chosen = [(groups[i], speeds[i]) for i in batches[index]]
            yield partial(_augmented, store, chosen, data, [seed, epoch, index]), after
        epoch, skip = epoch + 1, 0


def all_speech_batches(store: SpeechStore, frames: int, data: AudioData, rows: Ints | None = None) -> Iterator[SpeechBatch]:
    """Every utterance once, in batches of similar length, without augmentation: for evaluation."""
    chosen = np.arange(len(store)).tolist() if rows is None else rows.tolist()
    for batch in _split_by_frames([store.frame_count([row]) for row in chosen], frames):
        yield make_batch(store, [[chosen[i]] for i in batch], data)


def join_utterances(store: SpeechStore, join: int, rng: np.random.Generator, rows: Ints | None = None,
                    may_join: Callable[[Group], bool] = lambda group: True) -> list[list[int]]:  # fmt: skip
    """Every utterance once, in random order, 1 to `join` of one speaker joined where they may be."""
    order = rng.permutation(np.arange(len(store)) if rows is None else rows)
    if join == 1:
        return [[row] for row in order.tolist()]
    order = order[np.argsort(store.speaker_ids[order], kind="stable")]
    sizes = rng.integers(1, join + 1, size=len(order)).tolist()
    groups, size = list[list[int]](), 0
    for row in order.tolist():
        last = groups[-1] if groups else []
        same = last and store.speaker_ids[last[0]] == store.speaker_ids[row]
        if same and len(last) < size and may_join([*last, row]):
            last.append(row)
        else:
            size = sizes[len(groups)]
            groups.append([row])
    return [groups[index] for index in rng.permutation(len(groups))]


def make_batch(store: SpeechStore, groups: Sequence[Group], data: AudioData) -> SpeechBatch:
    """A batch of utterances, or of several joined to one, without augmentation."""
    frames, lengths = read_frames(store, groups, data)
    return SpeechBatch(frames, lengths, _targets(store, groups), store.tokenizer.special.pad)


def read_frames(store: SpeechStore, groups: Sequence[Group], data: AudioData,
                speeds: Sequence[float] = ()) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The normalised frames of utterances, (B, F, C), and how many each has, (B,)."""
    sounds = [torch.cat([store.read(row) for row in group]) for group in groups]
    sounds = [change_speed(x, speed) for x, speed in zip(sounds, speeds, strict=True)] if speeds else sounds
    if store.mean is None or store.std is None:
        return to_model_input(sounds, data)
    speakers = torch.from_numpy(store.speaker_ids[[group[0] for group in groups]])
    return to_model_input(sounds, data, store.mean[speakers], store.std[speakers])


def to_model_input(sounds: Sequence[Tensor], data: AudioData, mean: Tensor | None = None,
                   std: Tensor | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Samples (N,) at the rate of `data`, or ready frames (F, C), of several utterances → frames (B, F, C) and lengths (B,).

    They are normalised by `mean` and `std`, (B, C) each, or by their own: also where training knows the speaker's.
    """
    front = front_end(data)
    x = pad_sequence(list(sounds), batch_first=True)
    if sounds[0].dim() == 2:
        frames, lengths = x, torch.tensor([len(sound) for sound in sounds])
    else:
        frames, lengths = front.compute(x), torch.tensor([front.count(len(sound)) for sound in sounds])
    if data.normalize == "none":
        return frames * (torch.arange(frames.shape[1]) < lengths[:, None])[:, :, None], lengths
    return normalize_frames(frames, lengths, mean, std), lengths


def _augmented(store: SpeechStore, chosen: Sequence[tuple[Group, float]], data: AudioData, seeds: list[int]) -> SpeechBatch:
    groups, speeds = [group for group, _ in chosen], [speed for _, speed in chosen]
    frames, lengths = read_frames(store, groups, data, speeds)
    if data.time_masks or data.freq_masks:
        (state,) = np.random.SeedSequence(seeds).generate_state(1, np.uint64)
        generator = Generator().manual_seed(int(state) >> 1)
        frames = spec_augment(frames, lengths, generator, time_masks=data.time_masks, time_mask=data.time_mask,
                              freq_masks=data.freq_masks, freq_mask=data.freq_mask)  # fmt: skip
    return SpeechBatch(frames, lengths, _targets(store, groups), store.tokenizer.special.pad)


def _split_by_frames(lengths: Sequence[int], frames: int) -> list[list[int]]:
    """Utterances by length → batches that have at most `frames` frames, padded; a longer utterance is a batch alone."""
    batches = list[list[int]]()
    for index in np.argsort(lengths, kind="stable").tolist():  # ties stay in the order given
        if batches and lengths[index] * (len(batches[-1]) + 1) <= frames:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def _targets(store: SpeechStore, groups: Sequence[Group]) -> Tensor:
    """The transcripts as tokens, with start and end, padded: (B, T + 2); those of joined utterances with a space between."""
    special = store.tokenizer.special
    ids = [store.tokens[group[0]] for group in groups]
    joined = [index for index, group in enumerate(groups) if len(group) > 1]
    texts = [" ".join(store.utterances[row].text for row in groups[index]) for index in joined]
    for index, tokens in zip(joined, store.encode(texts), strict=True):
        ids[index] = tokens
    rows = [torch.tensor([special.bos, *tokens, special.eos]) for tokens in ids]
    return pad_sequence(rows, batch_first=True, padding_value=special.pad)
