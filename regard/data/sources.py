"""Named public data sets: address, licence, checksum.

Files are read from `$REGARD_DATA/<name>/<file>`, else from the user's cache folder, else downloaded to the cache, from a public
address or the server `$REGARD_MIRROR`.  A download is kept only if the sha256 of its text (for others: of the file) is right.
A set without an address of these files is made of its official ones (`regard/data/official`).
"""

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from regard.config import nearest
from regard.data.download import FAILURES, MAX_TEXT, note, read_url, require_secure
from regard.data.files import cache_folder, write_atomic
from regard.data.official.prepare import are_local, prepare
from regard.data.official.table import OFFICIAL
from regard.data.units import format_size

__all__ = ["LANGUAGES", "SHA256", "SOURCES", "Source", "describe_download", "download_size", "is_local", "is_present", "locate",
           "prefix_of", "require_one_source"]  # fmt: skip


class Source(NamedTuple):
    """A public data set: pairs of sentences, a plain text, labelled texts, labelled or captioned images, rated words, speech."""

    pairs: tuple[str, ...]  # language pairs, source first; only for kind "pairs"
    splits: tuple[str, ...]
    valid: str  # the validation split
    licence: str
    files: Mapping[str, str]  # version of the text → file name, with {split} and {lang} to fill in
    url: Mapping[str, str]  # version of the text → public address of the same bytes, if any
    several: bool = False  # a sentence may have several reference translations, on lines of their own
    kind: Literal["pairs", "text", "labels", "images", "captions", "ratings", "speech"] = "pairs"
    prefix: str = "translate {} to {}: "  # T5's task prefix
    labels: tuple[str, ...] = ()  # class names by id
    unknown: str = ""  # replaces removed words in the text
    parts: Mapping[str, tuple[int, int]] = {}  # split → percent of the characters of its file, from and to
    valid_images: int = 0  # images of train that are the valid split, if it has no file of its own
    side: int = 0  # of its square images, in pixels
    rate: int = 0  # of its sound, samples a second
    size: Mapping[str, int] = {}  # version of the text → bytes of all its files at that address, about
    ready: Mapping[str, str | int | float] = {}  # features in place of sound: the keys of [data] that describe them


_MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1"
_SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
_WIKITEXT = "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/{split}.txt"
_THREE = ("train", "valid", "test")

# Checksum of each file: of a text, as it is after decompression; of images and speech, of the file itself.
_SUMS = (Path(__file__).parent / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
SHA256 = {file: digest for digest, file in map(str.split, _SUMS)}

LANGUAGES = {"en": "English", "de": "German", "fr": "French", "it": "Italian", "hi": "Hindi"}


def _images(licence: str, side: int, valid: int, *labels: str) -> Source:
    return Source((), _THREE, "valid", licence, {"raw": "{split}.npz"}, {}, kind="images", prefix="", labels=labels,
                  valid_images=valid, side=side)  # fmt: skip


SOURCES: dict[str, Source] = {
    "multi30k": Source(("en-de", "en-fr", "de-en", "de-fr", "fr-en", "fr-de"),
                       ("train", "val", "test_2016_flickr", "test_2017_flickr", "test_2017_mscoco"), "val",
                       "none stated; captions of Flickr30k, for research, non-commercial",
                       {"raw": "{split}.{lang}.gz", "tok": "tok/{split}.lc.norm.tok.{lang}.gz"},
                       {"raw": _MULTI30K + "/raw/{split}.{lang}.gz", "tok": _MULTI30K + "/tok/{split}.lc.norm.tok.{lang}"},
                       size={"raw": 2_040_000, "tok": 6_930_000}),
    **{f"tatoeba-en-{language}": Source((f"en-{language}",), _THREE, "valid", "CC BY 2.0 FR (tatoeba.org, manythings.org/anki)",
                                        {"raw": "{split}.tsv.gz"}, {}, several=True) for language in ("it", "de", "fr", "hi")},
    "tinyshakespeare": Source((), _THREE, "valid", "public domain", {"raw": "input.txt.gz"}, {"raw": _SHAKESPEARE}, kind="text",
                              prefix="", size={"raw": 1_115_394}, parts={"train": (0, 90), "valid": (90, 95), "test": (95, 100)}),
    "wikitext-2": Source((), _THREE, "valid", "CC BY-SA (Wikipedia; Merity et al. 2016)", {"raw": "{split}.txt.gz"},
                         {"raw": _WIKITEXT}, kind="text", prefix="", unknown="<unk>", size={"raw": 13_175_278}),
    "sst2": Source((), _THREE, "valid", "none stated; Socher et al. 2013, for research", {"raw": "{split}.tsv.gz"}, {},
                   kind="labels", prefix="sst2 sentence: ", labels=("negative", "positive")),
    "agnews-small": Source((), _THREE, "valid", "for research, non-commercial (AG's corpus of news)", {"raw": "{split}.tsv.gz"},
                           {}, kind="labels", prefix="topic: ", labels=("World", "Sports", "Business", "Sci/Tech")),
    "cifar10": _images("none stated; Krizhevsky 2009, for research", 32, 5000, "airplane", "automobile", "bird", "cat", "deer",
                       "dog", "frog", "horse", "ship", "truck"),
    "fashion-mnist": _images("MIT (Zalando SE)", 28, 1000, "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal",
                             "shirt", "sneaker", "bag", "ankle boot"),
    "mnist": _images("CC BY-SA 3.0 (LeCun, Cortes, Burges)", 28, 1000, *"0123456789"),
    "flowers5": _images("CC BY 2.0 (photographers of Flickr, chosen by TensorFlow)", 96, 0, "daisy", "dandelion", "roses",
                        "sunflowers", "tulips"),
    "ants-bees": _images("none stated; images of ImageNet, for research", 96, 43, "ants", "bees"),
    "flickr8k": Source((), _THREE, "valid", "free for non-commercial research and education; the photos belong to their authors",
                       {"raw": "{split}_images.zip", "captions": "{split}_captions.tsv.gz"}, {}, kind="captions", prefix="",
                       side=128),
    "wordsim": Source((), ("wordsim353", "wordsim353-similarity", "wordsim353-relatedness", "simlex999", "men3000", "rg65"),
                      "wordsim353", "free for research (WordSim-353: CC BY 4.0; MEN: CC BY 2.0)", {"raw": "{split}.tsv"}, {},
                      kind="ratings", prefix=""),
    "fsdd": Source((), _THREE, "valid", "CC BY-SA 4.0 (Free Spoken Digit Dataset)",
                   {"audio": "{split}_audio.npy.xz", "index": "{split}_index.tsv.gz"}, {}, kind="speech", prefix="", rate=8000),
    "an4-mfcc": Source((), _THREE, "valid", "free for any use (Carnegie Mellon University, BSD-like)",
                       {"features": "{split}.npz", "index": "{split}.tsv.gz", "wav": "raw_samples.zip"}, {}, kind="speech",
                       prefix="", rate=16_000, ready={"features": "mfcc", "rate": 16_000, "mels": 40, "ceps": 13,
                       "window": 25.625, "hop": 10.0, "low": 130.0, "high": 6800.0}),
    "yesno": Source((), _THREE, "valid", "free for testing (OpenSLR 1; Apache 2.0)", {"audio": "audio.npy.xz",
                    "index": "index.tsv.gz"}, {}, kind="speech", prefix="", rate=8000),
}  # fmt: skip


def require_one_source(source: str, train: str, valid: str) -> None:
    """Refuse a named set together with own files."""
    if source and (train or valid):
        own = f"train={train}" if train else f"valid={valid}"
        raise ValueError(f"source={source} and {own} were both given; for own files add data.source=")


def prefix_of(name: str, pair: str) -> str:
    """T5's task prefix of a set: "translate English to German: "."""
    languages = _pair(name, pair).split("-")
    return SOURCES[name].prefix.format(*(LANGUAGES.get(language, language) for language in languages))


def locate(name: str, split: str, pair: str, text: str = "raw") -> list[Path]:
    """The local files of one split, downloaded if necessary."""
    source = SOURCES[name]
    _one_of(name, "split", split, source.splits)
    pair = _pair(name, pair)
    _one_of(name, "text", text, tuple(source.files))
    split = "train" if split == "valid" and source.valid_images else split
    pattern, url = source.files[text], source.url.get(text, "")
    languages = pair.split("-") if "{lang}" in pattern else [""]
    size = source.size.get(text, 0)
    return [_find(name, pattern.format(split=split, lang=language), url.format(split=split, lang=language), size)
            for language in languages]  # fmt: skip


def is_local(name: str, split: str, pair: str, text: str = "raw") -> bool:
    """Whether the files of one split are on this machine, so that reading them downloads nothing."""
    pattern, pair = SOURCES[name].files[text], _pair(name, pair)
    languages = pair.split("-") if "{lang}" in pattern else [""]
    files = [pattern.format(split=split, lang=language) for language in languages]
    return all(_find_local(name, file) or (_is_official(name, file) and are_local(name)) for file in files)


def is_present(name: str) -> bool:
    """Whether the training split of a set is on this machine, of language pairs that of the first.  Others may not be."""
    source = SOURCES[name]
    split = "train" if "train" in source.splits else source.splits[0]
    return all(is_local(name, split, "", text) for text in _needed(source))


def describe_download(name: str) -> str:
    """What reading a named set would download, with its licence; "" if nothing."""
    source = SOURCES.get(name)
    if not source:
        return ""
    if is_present(name):
        return ""
    if os.environ.get("REGARD_MIRROR"):
        where = f"from {os.environ['REGARD_MIRROR']}"
    elif source.url:
        where = f"about {format_size(source.size['raw'])} from {next(iter(source.url.values())).split('/')[2]}"
    elif name in OFFICIAL:
        where = OFFICIAL[name].summary
    else:
        return f"{name}: not on this machine and without a public address"
    return f"{name}: downloaded when first used, {where}; licence: {source.licence}"


def download_size(name: str) -> int | None:
    """The bytes that a set has to download, about; None if that is not known."""
    return SOURCES[name].size.get("raw") or (OFFICIAL[name].size if name in OFFICIAL else None)


def _needed(source: Source) -> tuple[str, ...]:
    """The versions of a set that reading it takes: one text, or all parts of speech and of images with captions."""
    return tuple(text for text in source.files if text not in ("tok", "wav"))


def _pair(name: str, pair: str) -> str:
    """The language pair, by default the first of the set; "" for other kinds."""
    known = SOURCES[name].pairs or ("",)
    return _one_of(name, "pair", pair or known[0], known)


def _one_of(name: str, what: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        has = ", ".join(filter(None, known)) or "none"
        raise ValueError(f"{name} has no {what} {value!r}{nearest(value, known)}; it has {has}")
    return value


def _find(name: str, file: str, url: str, size: int) -> Path:
    if local := _find_local(name, file):
        return local
    mirror = os.environ.get("REGARD_MIRROR", "")
    url = f"{mirror.rstrip('/')}/{name}/{file}" if mirror else url
    target = cache_folder() / "data" / name / file
    if not url and _is_official(name, file):
        return prepare(name, SOURCES[name].licence) / file
    if not url:
        raise ValueError(f"{name}/{file} is not on this machine and has no public address; put it in {target.parent}, or set "
                         f"REGARD_DATA to a folder that holds {name}/, or REGARD_MIRROR to a server that does")  # fmt: skip
    about = f"; all its files have about {format_size(size)}" if size else ""
    note(f"{name}: downloading {url}{about}; licence: {SOURCES[name].licence}")
    _download(url, target, SHA256[f"{name}/{file}"])
    return target


def _is_official(name: str, file: str) -> bool:
    return name in OFFICIAL and file in OFFICIAL[name].gives


def _find_local(name: str, file: str) -> Path | None:
    folders = [Path(os.environ["REGARD_DATA"])] if os.environ.get("REGARD_DATA") else []
    return next((path for folder in (*folders, cache_folder() / "data") if (path := folder / name / file).is_file()), None)


def _download(url: str, target: Path, sha256: str) -> None:
    """Download a file into the cache, if it has the right checksum."""
    require_secure(url, "set REGARD_MIRROR to one")
    try:
        content = read_url(url)
        text = _decompress(content) if url.endswith(".gz") else content
    except (*FAILURES, zlib.error) as error:
        raise ValueError(f"cannot download {url} ({error}); put the file in {target.parent} yourself, "
                         "or set REGARD_DATA") from None  # fmt: skip
    found = hashlib.sha256(text).hexdigest()
    if found != sha256:
        raise ValueError(f"{url} has sha256 {found[:16]}…, wanted {sha256[:16]}…: it was changed; get the file elsewhere and set "
                         "REGARD_DATA")  # fmt: skip
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, gzip.compress(text, mtime=0) if target.suffix == ".gz" else text)


def _decompress(content: bytes) -> bytes:
    """The text of a .gz file, of bounded size: a small file can unpack to more than the memory holds."""
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
        text = stream.read(MAX_TEXT + 1)
    if len(text) > MAX_TEXT:
        raise OSError(f"it has over {MAX_TEXT:,} bytes unpacked")
    return text
