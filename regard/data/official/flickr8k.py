"""Flickr8k: a zip of photos, and a zip with their captions ("NAME.jpg#0", a tab, caption) and a list of photos for each split."""

import zipfile
from collections.abc import Container, Mapping
from pathlib import Path, PurePosixPath

from regard.data.archives import GB, zip_files
from regard.data.official.photos import shrink
from regard.data.official.write import write_rows

__all__ = ["read"]

SIDE, QUALITY = 128, 74
CAPTIONS = "Flickr8k.token.txt"
LISTS = {"train": "Flickr_8k.trainImages.txt", "valid": "Flickr_8k.devImages.txt", "test": "Flickr_8k.testImages.txt"}
TEXT_LIMIT = 1 << 26  # bytes of the unpacked texts
PHOTO_LIMIT = 2 * GB  # bytes of the unpacked photos


def read(name: str, files: Mapping[str, Path], folder: Path) -> dict[str, int]:
    """Write the captions of each split, and its photos, scaled to 128 × 128."""
    texts = _texts(files["Flickr8k_text.zip"])
    lists = {split: sorted(filter(None, map(str.strip, texts[file]))) for split, file in LISTS.items()}
    captions = _captions(texts[CAPTIONS], files["Flickr8k_text.zip"])
    of_split = {photo: split for split, photos in lists.items() for photo in photos}
    if len(of_split) != sum(map(len, lists.values())) or not all(lists.values()):
        raise ValueError(f"{files['Flickr8k_text.zip']} has a photo in two splits, or none in one; get the official file")
    if bare := [photo for photo in of_split if photo not in captions]:
        raise ValueError(f"{files['Flickr8k_text.zip']} has no caption of {bare[0]}; get the official file")

    archives = {split: zipfile.ZipFile(folder / f"{split}_images.zip", "w") for split in lists}
    found = set[str]()
    try:
        for at, content in zip_files(files["Flickr8k_Dataset.zip"], lambda at: _is_one_of(of_split, at), PHOTO_LIMIT):
            photo = PurePosixPath(at).name
            if photo not in found:
                found.add(photo)
                small = shrink(content, SIDE, QUALITY, f"{at} of {files['Flickr8k_Dataset.zip']}", fit="squash")
                archives[of_split[photo]].writestr(zipfile.ZipInfo(photo), small)
    finally:
        for archive in archives.values():
            archive.close()
    if missing := [photo for photo in of_split if photo not in found]:
        raise ValueError(f"{files['Flickr8k_Dataset.zip']} lacks {len(missing):,} photos, among them {missing[0]}; get it again")
    for split, photos in lists.items():
        rows = [(photo, number, text) for photo in photos for number, text in enumerate(captions[photo])]
        write_rows(folder / f"{split}_captions.tsv.gz", rows)
    return {split: len(photos) for split, photos in lists.items()}


def _is_one_of(names: Container[str], at: str) -> bool:
    """Whether a path in an archive ends in one of the names, and is not one that macOS has added."""
    return PurePosixPath(at).name in names and not at.startswith("__MACOSX/")


def _texts(file: Path) -> dict[str, list[str]]:
    """The lines of the texts that are needed, by file name."""
    wanted = {CAPTIONS, *LISTS.values()}
    found = {PurePosixPath(at).name: content for at, content in zip_files(file, lambda at: _is_one_of(wanted, at), TEXT_LIMIT)}
    if missing := sorted(wanted - set(found)):
        raise ValueError(f"{file} has no {', '.join(missing)}; get the official file")
    try:
        return {at: content.decode("utf-8").splitlines() for at, content in found.items()}
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} holds a text that is not UTF-8 ({error}); get it again") from None


def _captions(lines: list[str], file: Path) -> dict[str, list[str]]:
    """The captions of each photo, in their order."""
    captions: dict[str, list[tuple[str, str]]] = {}
    for number, line in enumerate(lines, 1):
        key, tab, text = line.partition("\t")
        photo, mark, count = key.rpartition("#")
        if not (tab and mark and count.isdecimal() and text.strip()):
            raise ValueError(f"{CAPTIONS} line {number} in {file} is not a photo, #, a number, a tab and a caption; get it again")
        captions.setdefault(photo, []).append((count, " ".join(text.split())))
    return {photo: [text for _, text in sorted(found)] for photo, found in captions.items()}
