"""Which utterances there are, in a named set or in an own TSV file: the sound, speaker and transcript of each."""

import hashlib
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from regard.config import nearest
from regard.data.audio.config import AudioData
from regard.data.audio.features import front_end
from regard.data.audio.io import audio_seconds, read_audio, resample
from regard.data.files import read_lines
from regard.data.sources import SOURCES, locate

__all__ = ["SpeechSource", "Utterance", "find_utterances", "require_speech"]

VALID_EVERY = 10  # one own utterance in this many is for validation
ONE_SPEAKER = "one"  # the speaker of a named set that has no others

Sound = npt.NDArray[np.generic]  # (N,) int16 samples, or (F, C) float16 frames


class Utterance(NamedTuple):
    """One recording: its name, its speaker ("" if not known) and its transcript."""

    name: str
    speaker: str
    text: str


class SpeechSource(NamedTuple):
    """Utterances and how to read them: all that a store depends on."""

    name: str
    utterances: list[Utterance]
    seconds: list[float]  # how long each is, as far as its header says
    sounds: Callable[[Sequence[int]], Iterator[Sound]]  # of the given rows
    identity: object
    ready: bool = False  # frames in place of samples


def require_speech(data: AudioData) -> None:
    """Refuse a named set that is not speech, or whose ready features are not those of the config."""
    known = [name for name, source in SOURCES.items() if source.kind == "speech"]
    if data.source and data.source not in known:
        what = "is not a set of speech" if data.source in SOURCES else "is not known"
        raise ValueError(f"data.source={data.source} {what}{nearest(data.source, known)}; known are {', '.join(known)}; for own "
                         "speech set data.train to a TSV file: sound file, a tab, transcript")  # fmt: skip
    ready, given = SOURCES[data.source].ready if data.source else {}, front_end(data)._asdict()
    for key, value in ready.items():
        if given[key] != value:
            raise ValueError(f"data.{key}={given[key]}, but {data.source} holds ready features with {key} {value}; set "
                             f"data.{key}={value}")  # fmt: skip


def find_utterances(data: AudioData, split: str) -> SpeechSource:
    """The utterances of a split by name, or of an own TSV file; `data.speaker` is in the test split alone."""
    require_speech(data)
    if data.speaker and split == "test":
        found = [_split(data, part) for part in (SOURCES[data.source].splits if data.source else ("train", "valid"))]
        parts = [_rows(part, [u.speaker == data.speaker for u in part.utterances]) for part in found]
        _require_speaker(data.speaker, found)
        return _chain(f"{data.source or data.train} speaker {data.speaker}", parts)
    whole = _split(data, split)
    if not data.speaker or split not in ("train", "valid"):
        return whole
    if split == "train":
        _require_speaker(data.speaker, [whole])
    others = _rows(whole, [u.speaker != data.speaker for u in whole.utterances])
    if not others.utterances:
        raise ValueError(f"{whole.name} has no utterance of another speaker than data.speaker={data.speaker}; use data.speaker=")
    return others


def _require_speaker(speaker: str, sources: Sequence[SpeechSource]) -> None:
    known = sorted({u.speaker for source in sources for u in source.utterances} - {""})
    if speaker not in known:
        has = ", ".join(known[:20]) or "none: write the speaker in a third column"
        raise ValueError(f"{sources[0].name} has no speaker {speaker!r}{nearest(speaker, known)}; speakers are {has}")


def _rows(source: SpeechSource, kept: Sequence[bool]) -> SpeechSource:
    rows = [row for row, keep in enumerate(kept) if keep]

    def sounds(chosen: Sequence[int]) -> Iterator[Sound]:
        return source.sounds([rows[row] for row in chosen])

    digest = hashlib.sha256(np.array(rows, dtype=np.int64).tobytes()).hexdigest()
    return source._replace(utterances=[source.utterances[row] for row in rows], seconds=[source.seconds[row] for row in rows],
                           sounds=sounds, identity=[source.identity, digest])  # fmt: skip


def _chain(name: str, parts: Sequence[SpeechSource]) -> SpeechSource:
    """Several sources as one."""
    starts = np.cumsum([0, *(len(part.utterances) for part in parts)])

    def sounds(chosen: Sequence[int]) -> Iterator[Sound]:
        for part, first, last in zip(parts, starts[:-1], starts[1:], strict=True):
            yield from part.sounds([row - int(first) for row in chosen if first <= row < last])

    return SpeechSource(name, [u for part in parts for u in part.utterances], [s for part in parts for s in part.seconds], sounds,
                        [part.identity for part in parts], parts[0].ready)  # fmt: skip


def _split(data: AudioData, split: str) -> SpeechSource:
    if data.source and (split in ("train", "valid") or split in SOURCES[data.source].splits):
        return _read_features(data, split) if SOURCES[data.source].ready else _read_samples(data, split)
    path = {"train": data.train, "valid": data.valid or data.train}.get(split, split)
    if not path:
        raise ValueError(f"no {split} data; give data.{split}=FILE.tsv (sound file, a tab, transcript), or data.source=NAME")
    file = Path(path).expanduser()
    if data.source and not file.exists():
        has = SOURCES[data.source].splits
        raise ValueError(f"{data.source} has no split {split!r}{nearest(split, has)}, and there is no such file; "
                         f"splits are {', '.join(has)}")  # fmt: skip
    found = _read_tsv(file, data.rate)
    if split not in ("train", "valid") or data.valid:
        return found
    valid = _validation_rows(found)
    source = _rows(found, [(row in valid) == (split == "valid") for row in range(len(found.utterances))])
    return source._replace(name=f"{source.name}, validation") if split == "valid" else source


def _validation_rows(source: SpeechSource) -> set[int]:
    """A tenth of own utterances, at least one, chosen by the hash of their names."""
    names = [u.name for u in source.utterances]
    if len(names) < 2:
        raise ValueError(f"{source.name} has one utterance; add one for validation, or give data.valid")
    hashed = sorted((hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest(), row) for row, name in enumerate(names))
    return {row for _, row in hashed[: max(1, round(len(names) / VALID_EVERY))]}


def _read_tsv(file: Path, rate: int) -> SpeechSource:
    """An own list: sound file, transcript and perhaps speaker on each line; paths are relative to the list."""
    utterances, lines, paths = list[Utterance](), list[int](), list[Path]()
    for number, line in enumerate(read_lines(file), 1):
        if not line.strip():
            continue
        name, tab, rest = line.partition("\t")
        name = name.strip()
        text, _, speaker = rest.partition("\t")
        if not tab:
            raise ValueError(f"{file} line {number} has no tab; wanted sound file, a tab, transcript")
        if not text.strip():
            raise ValueError(f"{file} line {number} has no transcript of {name}; write one, or leave the line out")
        path = file.parent / Path(name).expanduser()
        if not path.is_file():
            raise ValueError(
                f"{file} line {number}: no file {path}; correct the path, relative to the TSV file, or remove the line"
            )
        utterances.append(Utterance(name, speaker.partition("\t")[0].strip(), text.strip()))
        lines.append(number)
        paths.append(path)
    if not utterances:
        raise ValueError(f"{file} is empty; wanted sound file, a tab, transcript on each line")

    def read(row: int, what: Callable[[Path], Any]) -> Any:
        try:
            return what(paths[row])
        except ValueError as error:
            raise ValueError(f"{file} line {lines[row]}: {error}") from None

    seconds = [read(row, audio_seconds) for row in range(len(paths))]
    stamps = [(str(path.resolve()), (s := path.stat()).st_size, s.st_mtime_ns) for path in (file, *paths)]

    def sounds(rows: Sequence[int]) -> Iterator[Sound]:
        return (_to_int16(read(row, partial(read_audio, rate=rate))) for row in rows)

    return SpeechSource(str(file), utterances, seconds, sounds, stamps)


def _read_samples(data: AudioData, split: str) -> SpeechSource:
    """A named set of samples: one array of all, and a list of where each utterance is."""
    source = SOURCES[data.source]
    (audio,), (index,) = (locate(data.source, split, "", text) for text in ("audio", "index"))
    header, *lines = read_lines(index)
    rows = [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]
    rows = [row for row in rows if row.get("split", split) == split]
    cuts = [(int(row["start"]), int(row["start"]) + int(row["length"])) for row in rows]

    def sounds(chosen: Sequence[int]) -> Iterator[Sound]:
        samples = _array(audio)
        for start, stop in (cuts[row] for row in chosen):
            clip = samples[start:stop]
            if data.rate == source.rate:
                yield clip
            else:
                yield _to_int16(resample(torch.from_numpy(clip.astype(np.float32) / 32_768), source.rate, data.rate))

    utterances = [Utterance(row["id"], row.get("speaker", ONE_SPEAKER), row["text"]) for row in rows]
    seconds = [(stop - start) / source.rate for start, stop in cuts]
    return SpeechSource(f"{data.source} {split}", utterances, seconds, sounds, [*map(_stamp, (audio, index)), split])


def _read_features(data: AudioData, split: str) -> SpeechSource:
    """A named set of ready features."""
    (file,), (index,) = (locate(data.source, split, "", text) for text in ("features", "index"))
    utterances = [Utterance(*line.split("\t")) for line in read_lines(index)]
    offsets = _npz(file, "offsets").astype(np.int64)
    if len(offsets) != len(utterances) + 1:
        raise ValueError(f"{file} has {len(offsets) - 1:,} utterances, {index} {len(utterances):,}; get both again")

    def sounds(chosen: Sequence[int]) -> Iterator[Sound]:
        frames = _npz(file, "feats")
        return (frames[offsets[row] : offsets[row + 1]] for row in chosen)

    seconds = (np.diff(offsets) * data.hop / 1000).tolist()
    return SpeechSource(f"{data.source} {split}", utterances, seconds, sounds, [*map(_stamp, (file, index))], ready=True)


def _stamp(file: Path) -> tuple[str, int, int]:
    stamp = file.stat()
    return str(file.resolve()), stamp.st_size, stamp.st_mtime_ns


def _to_int16(x: torch.Tensor) -> Sound:
    return (32_768 * x).round().clamp(-32_768, 32_767).to(torch.int16).numpy()


def _array(file: Path) -> npt.NDArray[np.int16]:
    try:
        with lzma.open(file) as stream:
            return np.load(stream, allow_pickle=False)
    except (OSError, ValueError, EOFError, lzma.LZMAError) as error:
        raise ValueError(f"{file} is not a whole .npy.xz file ({error}); get it again") from None


def _npz(file: Path, key: str) -> npt.NDArray[Any]:
    try:
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as archive:
            return archive[key]
    except (OSError, ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file} is not a whole .npz file ({error}); get it again") from None
