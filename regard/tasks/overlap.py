"""Which examples of a split are training examples: a score on those is too high.

Texts are compared without regard to white space, images by the pixels that are stored of them.
"""

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from regard.config import Run
from regard.data.cache import cached
from regard.data.image.config import ImageData
from regard.data.image.store import ImageStore, read_split
from regard.data.progress import Report
from regard.data.text.splits import Split, find_split
from regard.tasks.mixing import earlier_runs, training_data

__all__ = ["describe_overlap", "trained_images", "trained_texts"]

TOO_HIGH = 0.01  # share of training examples from which a score is called too high
CHECKED, PAUSE = 10_000, 5.0  # pairs, and seconds, between two reports of progress
VERSION = 1  # of the search for texts


def trained_texts(run: Run, texts: Sequence[str], what: str, report: Report) -> list[bool] | None:
    """Which of the texts (sources of pairs) are in the training data; None if that is not available."""
    wanted, found = {_normal(text) for text in texts}, set[str]()
    try:
        for data in training_data(run):
            found |= _find_texts(find_split(data, "train"), wanted, what, report)
    except (ValueError, OSError) as error:
        report(f"not checked whether {what} are in the training data, which is not available: {error}")
        return None
    trained = [_normal(text) in found for text in texts]
    report(describe_overlap(trained, what, "in the training data"))
    return trained


def _find_texts(split: Split, wanted: set[str], what: str, report: Report) -> set[str]:
    """Those of the wanted texts that are sources in a split; cached, for a large corpus takes minutes to read."""
    texts = sorted(wanted)

    def write(_: Path) -> dict[str, object]:
        found, last = set[str](), time.monotonic()
        for number, (source, _target) in enumerate(split.pairs(), 1):
            if (text := _normal(source)) in wanted:
                found.add(text)
            if number % CHECKED == 0 and time.monotonic() - last > PAUSE:
                report(f"looking for the {what} in the training data: {number:,} read of {split.name}")
                last = time.monotonic()
        return {"found": [index for index, text in enumerate(texts) if text in found]}

    digest = hashlib.blake2b("\n".join(texts).encode("utf-8", "replace"), digest_size=16).hexdigest()
    folder = cached(["overlap", VERSION, split.identity, digest], write)
    return {texts[index] for index in json.loads((folder / "about.json").read_text(encoding="utf-8"))["found"]}


def trained_images(run: Run, images: ImageStore, labels: Sequence[str], report: Report) -> list[bool] | None:
    """Which of the stored images are training images of a run; None if those are not available."""
    try:
        train = read_split(run.data, run.model, "train", lambda text: None, labels=labels)
        known = {_digest(image) for image in train.images}
        for data in _earlier_images(run):
            known |= {_digest(image) for image in read_split(data, run.model, "train", lambda text: None).images}
    except (ValueError, OSError) as error:
        report(f"not checked whether training images are among them, which are not available: {error}")
        return None
    trained = [_digest(image) in known for image in images.images]
    report(describe_overlap(trained, "images", "training images"))
    return trained


def _earlier_images(run: Run) -> Iterator[ImageData]:
    """The images of the runs that a run was initialized from, read as this run reads them; imported ones have none."""
    for tables in earlier_runs(run.init):
        source, train, valid = (str(tables.get("data", {}).get(key, "")) for key in ("source", "train", "valid"))
        if tables.get("task") == run.task and (source or train):
            yield dataclasses.replace(run.data, source=source, train=train, valid=valid)


def describe_overlap(trained: Sequence[bool], what: str, where: str) -> str:
    """Say how many are: "37 of 120 images are training images: the scores are too high"."""
    count = sum(trained)
    if not count:
        return f"none of the {len(trained):,} {what} are {where}"
    return f"{count:,} of {len(trained):,} {what} are {where}" + (
        ": the scores are too high" if count >= TOO_HIGH * len(trained) else ""
    )


def _normal(text: str) -> str:
    return " ".join(text.split())


def _digest(image: object) -> bytes:
    return hashlib.blake2b(image.tobytes(), digest_size=16).digest()  # type: ignore[attr-defined]
