"""Encoded corpora and image stores, kept in the cache folder under the hash of what they depend on."""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from regard.data.files import cache_folder, flush, write_atomic

__all__ = ["cached"]

FORMAT = 1  # of all stores; raise it to invalidate every cache
DAY = 86_400  # seconds


def cached(identity: Sequence[object], write: Callable[[Path], Mapping[str, object]]) -> Path:
    """The cache folder for `identity`; `write` fills a new one and returns its `about.json`, which marks it complete."""
    key = hashlib.sha256(json.dumps([FORMAT, *identity], default=str).encode()).hexdigest()[:24]
    root = cache_folder() / "stores"
    root.mkdir(parents=True, exist_ok=True)
    for stale in root.glob(".*"):  # left behind by a killed process
        with suppress(FileNotFoundError):  # another process may have just renamed it
            if time.time() - stale.stat().st_mtime > DAY:
                shutil.rmtree(stale, ignore_errors=True)
    if not (root / key / "about.json").exists():
        part = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=root))
        try:
            about = write(part)
            for file in part.iterdir():
                flush(file)
            write_atomic(part / "about.json", json.dumps(about).encode())
            try:
                os.replace(part, root / key)
            except OSError:
                if not (root / key / "about.json").exists():  # else another process finished the same store first
                    shutil.rmtree(root / key, ignore_errors=True)
                    os.replace(part, root / key)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return root / key
