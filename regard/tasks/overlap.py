"""Which examples of a split are training examples: a score on those flatters.

Texts are compared without regard to white space, images by the pixels that are stored of them.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence

from regard.config import Run
from regard.data.image.config import ImageData
from regard.data.image.store import ImageStore, read_split
from regard.data.progress import Report
from regard.data.text.splits import find_split
from regard.tasks.mixing import earlier_runs, training_data

__all__ = ["describe_overlap", "trained_images", "trained_texts"]

FLATTERS = 0.01  # share of training examples from which a score is called too good


def trained_texts(run: Run, texts: Sequence[str], what: str, report: Report) -> list[bool] | None:
    """Which of the texts (sources of pairs) are in the training data; None if that is not available."""
    wanted, found = {_normal(text) for text in texts}, set[str]()
    try:
        for data in training_data(run):
            for source, *_ in find_split(data, "train").pairs():
                if (text := _normal(source)) in wanted:
                    found.add(text)
    except (ValueError, OSError) as error:
        report(f"not checked whether {what} are in the training data, which is not available: {error}")
        return None
    trained = [_normal(text) in found for text in texts]
    report(describe_overlap(trained, what, "in the training data"))
    return trained


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
    """Say how many are: "37 of 120 images are training images: the scores flatter"."""
    count = sum(trained)
    if not count:
        return f"none of the {len(trained):,} {what} are {where}"
    return f"{count:,} of {len(trained):,} {what} are {where}" + (
        ": the scores flatter" if count >= FLATTERS * len(trained) else ""
    )


def _normal(text: str) -> str:
    return " ".join(text.split())


def _digest(image: object) -> bytes:
    return hashlib.blake2b(image.tobytes(), digest_size=16).digest()  # type: ignore[attr-defined]
