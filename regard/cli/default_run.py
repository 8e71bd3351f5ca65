"""Which model a verb uses: a run folder, a shipped model by its name, or if neither is given the shipped model of that task."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from regard.cli.io import note
from regard.run_folder import RunFolder
from regard.shipped import shipped_models

__all__ = ["choose_run", "default_run", "has_task"]

# The verbs whose models another verb uses too, by what it is given.
ALSO: dict[str, dict[str, tuple[str, ...]]] = {
    "show": {"text": ("translate",), "image": ("caption", "classify"), "audio": ("transcribe",)},
    "trace": {"text": ("translate",), "image": ("caption",), "audio": ("transcribe",)},
}  # fmt: skip
DOES = {"ask": "answers texts with task prefixes", "caption": "writes captions", "classify": "classifies", "embed": "embeds",
        "fill": "predicts masked words", "generate": "generates", "neighbors": "has word vectors", "show": "reads that",
        "trace": "reads that", "transcribe": "transcribes", "translate": "translates"}  # fmt: skip
PREFERRED = ("en-it",)  # of several shipped models of a task; the others follow by name
FILES = ("caption", "classify", "show", "trace", "transcribe")  # verbs that are given files
PATH = re.compile(r"(~|\.{1,2}|[^\W\d][\w.@+-]*)?([/\\][\w.@+-]+)+[/\\]?|\.{1,2}")


def choose_run(verb: str, run: str | None, inputs: Sequence[str] | None = None) -> tuple[str, list[str] | None]:
    """The run of a verb and its inputs; a first argument that names no run and does not look like a path is an input."""
    given = list(inputs or ())
    if run is not None and _names_run(verb, run, given):
        return run, given or None
    given = given if run is None else [run, *given]
    name = default_run(verb, given[0] if given else None)
    if verb in FILES and given and _kind(given[0]) != "text":  # small models of images and sounds know one kind of them only
        note(f"note: no run was given; {name}, which ships with regard, was trained on {_data_of(shipped_models()[name])} alone")
    return name, given or None


def default_run(verb: str, first: str | None = None) -> str:
    """The shipped model that a verb uses if no run is given; `first` is its first input."""
    kind = _kind(first) if first is not None and verb in FILES else "text" if verb in ALSO else None
    for verb_of_task in ALSO[verb].get(kind or "", ()) if verb in ALSO else (verb,):
        for name, folder in _by_preference():
            if has_task(folder, verb_of_task, kind):
                return name
    have = f"`regard models` lists {', '.join(shipped_models())}" if shipped_models() else "none ships with this installation"
    what = f"{kind}s" if kind in ("text", "image") and verb == "classify" else ""
    does = " ".join(filter(None, (DOES.get(verb, f"has the verb {verb}"), what)))
    raise ValueError(f"no run was given, and no shipped model {does}; give a run folder: regard {verb} RUN … ({have})")


def _by_preference() -> list[tuple[str, Path]]:
    """The shipped models, the preferred ones first."""
    return sorted(shipped_models().items(), key=lambda item: (item[0] not in PREFERRED, item[0]))


def has_task(folder: Path, verb: str, kind: str | None = None) -> bool:
    """Whether the task of a run folder is that of a verb, and reads inputs of a kind."""
    from regard.tasks import TASKS

    try:
        task = str(tomllib.loads(RunFolder(folder).run.read_text(encoding="utf-8")).get("task", ""))
    except (OSError, ValueError):  # `regard models` says so
        return False
    return task in TASKS and TASKS[task].card.verb == verb and kind in (None, TASKS[task].card.reads)


def _data_of(folder: Path) -> str:
    """The data set that a shipped model was trained on."""
    run = tomllib.loads(RunFolder(folder).run.read_text(encoding="utf-8"))
    return str(run.get("data", {}).get("source") or "own data")


def _names_run(verb: str, word: str, others: Sequence[str]) -> bool:
    """Whether a first argument is meant as a run; errors name what was probably meant."""
    path = Path(word)
    if "\0" in word or len(word) > 4096 or not word.strip():
        return False
    try:
        is_dir, is_file = path.is_dir(), path.is_file()
    except OSError:  # too long for a name
        return False
    if is_dir:
        return verb not in FILES or RunFolder(path).config.exists() or next(_files_inside(path), None) is None
    if word in shipped_models():
        return True
    if is_file and verb in FILES:
        return False
    if is_file:
        raise ValueError(f"{word} is a file, not a run folder; to read its lines give --input {word}")
    runs = Path("runs") / word
    if re.fullmatch(r"[\w.@+-]+", word) and RunFolder(runs).config.is_file():
        raise ValueError(f"no run folder {word}; did you mean {runs}?")
    if others and _is_pair(word):
        have = ", ".join(shipped_models()) or "none"
        raise ValueError(f"no model {word} ships with regard; shipped are {have}: train one, or give a run folder")
    parts = path.parts
    return "://" not in word and (bool(PATH.fullmatch(word)) or (len(parts) > 1 and Path(parts[0]).is_dir()))


def _files_inside(folder: Path) -> Iterator[Path]:
    """Images and sounds in a folder."""
    return (file for file in folder.rglob("*") if _kind_of_name(file.name) != "text")


def _is_pair(word: str) -> bool:
    """Whether a word is a pair of languages, such as en-de."""
    if not re.fullmatch(r"[a-z]{2}-[a-z]{2}", word):
        return False
    from regard.data.sources import SOURCES

    languages = {code for source in SOURCES.values() for pair in source.pairs for code in pair.split("-")}
    return set(word.split("-")) <= languages


def _kind(first: str) -> str:
    """What an input is: a text, or by the ending of its name an image or a sound; of a folder, what it holds."""
    try:
        inside = next(_files_inside(Path(first)), None) if Path(first).is_dir() else None
    except OSError:  # too long for a name
        return "text"
    return _kind_of_name(inside.name if inside else first)


def _kind_of_name(name: str) -> str:
    from regard.cli.predict import SOUNDS
    from regard.data.image.folders import ENDINGS

    ending = Path(name).suffix.lower()
    return "image" if ending in ENDINGS else "audio" if ending in SOUNDS else "text"
