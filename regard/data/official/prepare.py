"""Official files of a named set: found where they were put by hand, else downloaded; read once, and stored as prepared files.

$REGARD_DATA/<name>/cifar-10-binary.tar.gz, or <cache>/data/<name>/…   ─▶  <cache>/stores/<hash>/train.npz, test.npz
"""

import importlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

from regard.data.cache import cached
from regard.data.download import download, file_digest, note
from regard.data.files import cache_folder
from regard.data.official.table import OFFICIAL, OfficialFile
from regard.data.units import format_size

__all__ = ["are_local", "prepare"]

VERSION = 1  # of the readers; raise it to read all official files again


def are_local(name: str) -> bool:
    """Whether all official files of a set are on this machine."""
    return name in OFFICIAL and all(_find(name, file.name) for file in OFFICIAL[name].files)


def prepare(name: str, licence: str) -> Path:
    """The folder with the files of a set, made of its official ones; these are downloaded if necessary."""
    official = OFFICIAL[name]
    missing = [file for file in official.files if not _find(name, file.name)]
    if missing:
        size = format_size(sum(file.size for file in missing))
        note(f"{name}: downloading {', '.join(file.name for file in missing)}, about {size}; licence: {licence}")
    paths = {file.name: _find(name, file.name) or _fetch(name, file) for file in official.files}
    stamps = [(str(path.resolve()), (s := path.stat()).st_size, s.st_mtime_ns) for path in paths.values()]

    def write(folder: Path) -> Mapping[str, object]:
        for file in official.files:
            _check(file, paths[file.name])
        note(f"{name}: reading {', '.join(paths)}")
        counts: Mapping[str, int] = importlib.import_module(f"regard.data.official.{official.reader}").read(name, paths, folder)
        note(f"{name}: {', '.join(f'{count:,} {split}' for split, count in counts.items())}" + _caution(name, paths))
        return {"counts": counts}

    return cached(["official files", VERSION, name, stamps], write)


def _find(name: str, file: str) -> Path | None:
    folders = [Path(os.environ["REGARD_DATA"])] if os.environ.get("REGARD_DATA") else []
    return next((path for folder in (*folders, cache_folder() / "data") if (path := folder / name / file).is_file()), None)


def _fetch(name: str, file: OfficialFile) -> Path:
    target = cache_folder() / "data" / name / file.name
    note(f"{file.name} from {file.urls[0]}")
    advice = f"put {file.name} into {target.parent} yourself, or set REGARD_DATA to a folder that holds {name}/{file.name}"
    download(file.urls, target, limit=file.limit or max(file.size * 3 // 2, 1 << 20), digest=file.digest, advice=advice)
    return target


def _check(file: OfficialFile, path: Path) -> None:
    """Refuse a download that has changed since; of a file that was put there by hand, say that it is another one."""
    recorded = path.with_name(f"{path.name}.sha256")
    if recorded.is_file():
        wanted = f"sha256:{recorded.read_text(encoding='utf-8', errors='replace')[:64]}"
        if (found := file_digest(path, "sha256")) != wanted:
            raise ValueError(f"{path} has {found[:20]}…, wanted {wanted[:20]}…: it has changed since its download; delete it "
                             f"to get it again, or delete {recorded.name} if you changed it")  # fmt: skip
    elif file.digest and (found := file_digest(path, file.digest.partition(":")[0])) != file.digest:
        note(f"{path} has {found[:20]}…, the official file {file.digest[:20]}…; only its structure is checked")


def _caution(name: str, paths: Mapping[str, Path]) -> str:
    """What to know before scores are compared with those of the recipes."""
    official = OFFICIAL[name]
    if official.same:
        return ""
    changing = [paths[file.name] for file in official.files if not file.digest]
    dated = "; ".join(f"{path.name} of {_date(path)}, {format_size(path.stat().st_size)}" for path in changing)
    return f"{f' ({dated})' if dated else ''}.  Scores will differ from those of the recipes.  Splits: {official.splits}"


def _date(path: Path) -> str:
    """The day a file was published, or else downloaded."""
    return time.strftime("%Y-%m-%d", time.gmtime(path.stat().st_mtime))
