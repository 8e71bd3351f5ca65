"""Encoded corpora and image stores, kept in the cache folder under the hash of what they depend on."""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from regard.data.files import cache_folder

__all__ = ["cached"]

FORMAT = 1  # of all stores; raise it to invalidate every cache
DAY = 86_400  # seconds


def cached(identity: Sequence[object], write: Callable[[Path], None]) -> Path:
    """Return the cache folder for `identity`; `write` fills it first if it does not exist.

    `write` must create `about.json` last: a folder that has it is complete.
    """
    key = hashlib.sha256(json.dumps([FORMAT, *identity], default=str).encode()).hexdigest()[:24]
    root = cache_folder() / "tokens"
    root.mkdir(parents=True, exist_ok=True)
    for stale in root.glob(".*"):  # left behind by a killed process
        with suppress(FileNotFoundError):  # another process may have just renamed it
            if time.time() - stale.stat().st_mtime > DAY:
                shutil.rmtree(stale, ignore_errors=True)
    if not (root / key / "about.json").exists():
        part = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=root))
        try:
            write(part)
            try:
                os.replace(part, root / key)
            except OSError:
                if not (root / key / "about.json").exists():  # else another process finished the same store first
                    shutil.rmtree(root / key, ignore_errors=True)
                    os.replace(part, root / key)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return root / key
