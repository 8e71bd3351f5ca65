"""Speech on disk, so that memory does not grow with its length: samples, or ready features, of all utterances.

Every sound file is read once: an unreadable one is reported before training starts.  Frames are computed from samples when a
batch is made, so that training can change the speed of an utterance, or join several.

    sounds.bin        int16 samples of all utterances, (N,); or float16 frames, (F, C)
    offsets.bin       one int64 more than utterances: where each begins, and the end of the last
    utterances.json   name, speaker and transcript of each
    about.json        counts and the digest; written last, so a folder that has it is complete

Shapes: N samples, F frames, C channels.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.data.audio.augment import length_after
from regard.data.audio.config import AudioData
from regard.data.audio.features import FrontEnd, front_end
from regard.data.audio.utterances import SpeechSource, Utterance, find_utterances
from regard.data.cache import cached
from regard.data.progress import Progress, Report
from regard.data.text.tokenizer import Tokenizer, train_tokenizer

__all__ = ["AudioDataset", "SpeechStore", "ctc_frames_needed", "prepare", "read_split", "rows_for_ctc"]

FORMAT = 1  # of the files above
REPORT_EVERY = 50  # utterances
NAMED = 5  # characters never seen in training that are named

Ints = npt.NDArray[np.int64]


class SpeechStore:
    """Utterances on disk, with the front end that turns them into frames and the tokens of their transcripts."""

    def __init__(self, folder: Path, front: FrontEnd, tokenizer: Tokenizer, lowercase: bool):
        self.folder, self.front, self.tokenizer, self._lowercase = folder, front, tokenizer, lowercase
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        self.ready: bool = about["ready"]  # frames in place of samples
        self.too_long: int = about["too_long"]
        rows = json.loads((folder / "utterances.json").read_text(encoding="utf-8"))
        self.utterances = [Utterance(*row) for row in rows]
        self.offsets: Ints = np.fromfile(folder / "offsets.bin", dtype=np.int64)
        dtype, shape = (np.float16, (self.offsets[-1], front.channels)) if self.ready else (np.int16, (self.offsets[-1],))
        self.sounds: npt.NDArray[np.generic] = np.memmap(folder / "sounds.bin", dtype=dtype, mode="r", shape=shape)
        self.tokens = self.encode([u.text for u in self.utterances])
        tokens = json.dumps(self.tokens).encode()
        self.digest = hashlib.sha256(about["digest"].encode() + repr(front).encode() + tokens).hexdigest()
        self.mean: Tensor | None = None  # (speakers, C), for normalisation by speaker; and the standard deviation
        self.std: Tensor | None = None
        self.speakers = sorted({u.speaker for u in self.utterances})
        ids = {speaker: index for index, speaker in enumerate(self.speakers)}
        self.speaker_ids: Ints = np.array([ids[u.speaker] for u in self.utterances], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.utterances)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of transcripts, without start or end."""
        return self.tokenizer.encode([text.lower() if self._lowercase else text for text in texts])

    def read(self, row: int) -> Tensor:
        """The samples of an utterance from -1 to 1, (N,); or its ready frames, (F, C); float32."""
        sound = torch.from_numpy(self.sounds[self.offsets[row] : self.offsets[row + 1]].astype(np.float32))
        return sound if self.ready else sound / 32_768

    def frame_count(self, rows: Sequence[int], speed: float = 1.0) -> int:
        """The frames of utterances that are joined and change speed."""
        length = length_after(int(sum(self.offsets[row + 1] - self.offsets[row] for row in rows)), speed, ready=self.ready)
        return length if self.ready else self.front.count(length)


class AudioDataset(NamedTuple):
    """The speech that training reads."""

    train: SpeechStore
    valid: SpeechStore
    tokenizer: Tokenizer
    labels: tuple[str, ...] = ()


def prepare(data: AudioData, tokenizer_file: Path, report: Report, progress: Progress) -> AudioDataset:
    """Store the training and validation speech; a tokenizer is trained on the transcripts unless its file exists."""
    train, valid = find_utterances(data, "train"), find_utterances(data, "valid")
    if not tokenizer_file.exists():
        texts = [u.text.lower() if data.lowercase else u.text for u in train.utterances]
        texts += [" ".join(texts[:2])] if data.join > 1 else []  # transcripts of one word have no space
        train_tokenizer(texts, data.tokenizer, data.vocab).save(tokenizer_file)
    tokenizer = Tokenizer.load(tokenizer_file)
    if tokenizer.special.pad in (tokenizer.special.eos, tokenizer.special.bos):
        raise ValueError(f"the tokenizer {tokenizer_file} has no <pad>, the blank of CTC; init from another run, or none")
    stores = [_store(data, source, tokenizer, report, progress) for source in (train, valid)]
    return AudioDataset(stores[0], stores[1], tokenizer)


def read_split(data: AudioData, split: str, tokenizer: Tokenizer, report: Report,
               progress: Progress = lambda what, done: None) -> SpeechStore:  # fmt: skip
    """Store one split by name, or an own TSV file."""
    return _store(data, find_utterances(data, split), tokenizer, report, progress)


def _store(data: AudioData, source: SpeechSource, tokenizer: Tokenizer, report: Report, progress: Progress) -> SpeechStore:
    front = front_end(data)
    kept = [row for row, seconds in enumerate(source.seconds) if seconds <= data.max_seconds]
    if not kept:
        raise ValueError(f"{source.name} holds no utterance of {data.max_seconds:g} seconds or less; raise data.max_seconds")
    write = partial(_write, source, kept, partial(progress, f"reading {source.name}"))
    folder = cached(["speech", FORMAT, source.identity, data.rate, data.max_seconds], write)
    store = SpeechStore(folder, front, tokenizer, data.lowercase)
    if data.normalize == "speaker":
        _add_speaker_statistics(store, source.name, progress)
    length = sum(source.seconds[row] for row in kept)
    shown = f"{length / 60:,.1f} minutes" if length >= 60 else f"{length:,.1f} seconds"
    speakers = "1 speaker" if len(store.speakers) == 1 else f"{len(store.speakers):,} speakers"
    left_out = f"; left out: {store.too_long:,} of over {data.max_seconds:g} seconds" if store.too_long else ""
    report(f"{source.name}: {len(store):,} utterances, {shown}, {speakers}{left_out}")
    _report_unknown(store, source.name, report)
    return store


def _write(source: SpeechSource, kept: Sequence[int], progress: "partial[None]", folder: Path) -> dict[str, object]:
    digest, offsets = hashlib.sha256(), [0]
    with open(folder / "sounds.bin", "wb") as file:
        for done, sound in enumerate(source.sounds(kept), 1):
            if not len(sound):
                name = source.utterances[kept[done - 1]].name
                raise ValueError(f"{source.name} has no sound of {name}; give one, or leave it out")
            content = np.ascontiguousarray(sound).tobytes()
            file.write(content)
            digest.update(content)
            offsets.append(offsets[-1] + len(sound))
            if done % REPORT_EVERY == 0:
                progress(done)
    assert len(offsets) == len(kept) + 1, f"{len(offsets) - 1} sounds, {len(kept)} utterances"
    progress(len(kept))
    positions = np.array(offsets, dtype=np.int64)
    positions.tofile(folder / "offsets.bin")
    listed = json.dumps([source.utterances[row] for row in kept]).encode()
    (folder / "utterances.json").write_bytes(listed)
    digest.update(positions.tobytes() + listed)
    return {"ready": source.ready, "too_long": len(source.utterances) - len(kept), "digest": digest.hexdigest()}


def _add_speaker_statistics(store: SpeechStore, name: str, progress: Progress) -> None:
    """Mean and standard deviation of each channel over all frames of each speaker."""
    if store.speakers == [""]:
        raise ValueError(f"data.normalize=speaker, but {name} names no speakers; write them in a third column, or use "
                         "data.normalize=utterance")  # fmt: skip

    def write(folder: Path) -> dict[str, object]:
        total = np.zeros((len(store.speakers), 2, store.front.channels))
        count = np.zeros(len(store.speakers))
        for row, speaker in enumerate(store.speaker_ids.tolist()):
            sound = store.read(row)
            frames = (sound if store.ready else store.front.compute(sound)).double().numpy()  # (F, C)
            total[speaker] += np.stack((frames.sum(0), (frames**2).sum(0)))
            count[speaker] += len(frames)
            if row % REPORT_EVERY == 0:
                progress(f"statistics of {name}", row)
        mean, square = (total / count[:, None, None]).transpose(1, 0, 2)  # (speakers, C) each
        np.stack((mean, np.sqrt(np.maximum(square - mean**2, 0)))).astype(np.float32).tofile(folder / "statistics.bin")
        return {"speakers": len(store.speakers)}

    folder = cached(["speakers", FORMAT, store.digest], write)
    values = np.fromfile(folder / "statistics.bin", dtype=np.float32).reshape(2, len(store.speakers), -1)
    store.mean, store.std = torch.from_numpy(values).unbind()


def _report_unknown(store: SpeechStore, name: str, report: Report) -> None:
    """Count the characters of transcripts that the tokenizer does not know."""
    unk, unknown = store.tokenizer.special.unk, Counter[str]()
    rows = [row for row, ids in enumerate(store.tokens) if unk in ids]
    for row in rows:
        text = store.utterances[row].text.lower() if store._lowercase else store.utterances[row].text
        spans = store.tokenizer.offsets([text])[0]
        unknown.update(text[first:last] for (first, last), index in zip(spans, store.tokens[row], strict=True) if index == unk)
    if rows:
        shown = ", ".join(repr(part) for part, _ in unknown.most_common(NAMED))
        report(f"{name}: {unknown.total():,} tokens in {len(rows):,} transcripts were never seen in training, such as {shown}; "
               "they are read as the unknown token")  # fmt: skip


def ctc_frames_needed(ids: Sequence[int]) -> int:
    """The fewest frames from which CTC can read these tokens: one for each, and a blank between two equal neighbours."""
    return len(ids) + sum(a == b for a, b in pairwise(ids))


def rows_for_ctc(store: SpeechStore, name: str, subsample: int, report: Report, fastest: float = 1.0) -> Ints:
    """The utterances with enough frames for CTC after the model's `subsample`; others are counted and the first is named."""
    kept, dropped = list[int](), list[int]()
    for row, ids in enumerate(store.tokens):
        enough = -(-store.frame_count([row], fastest) // subsample) >= ctc_frames_needed(ids)
        (kept if enough else dropped).append(row)
    if dropped:
        row = dropped[0]
        need, has = ctc_frames_needed(store.tokens[row]), -(-store.frame_count([row], fastest) // subsample)
        report(f"{name}: {len(dropped):,} utterances have fewer frames than CTC needs and are left out; the first is "
               f"{store.utterances[row].name}: {has} frames, {need} needed")  # fmt: skip
    if not kept:
        raise ValueError(f"{name} holds no utterance with enough frames for CTC; use a smaller model.subsample, or check the "
                         "transcripts")  # fmt: skip
    return np.array(kept, dtype=np.int64)
