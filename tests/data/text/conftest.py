"""Named sets of every kind of text, a few lines of each."""

import gzip
from pathlib import Path

import pytest


@pytest.fixture
def sets(tmp_path, monkeypatch) -> Path:
    """Small files instead of the public ones."""
    folder = tmp_path / "sets"
    monkeypatch.setenv("REGARD_DATA", str(folder))
    three, two = ("train", "valid", "test"), ("train", "val")
    files = {
        "tinyshakespeare/input.txt": "".join(f"{n % 10}bcdefgh\n" for n in range(100)),
        **{f"wikitext-2/{split}.txt": f" \n = {split} = \n \n Some words , <unk> .\n" * 9 for split in three},
        **{f"sst2/{split}.tsv": f"0\tbad {split}\n1\tgood {split}\n" for split in three},
        **{f"agnews-small/{split}.tsv": f"3\tTitle\tof {split}\n0\tA\tb\n" for split in three},
        **{f"multi30k/{split}.{lang}": f"{lang} {split}\n" * 3 for split in two for lang in ("en", "de", "fr")},
        **{f"multi30k/tok/{split}.lc.norm.tok.{lang}": f"tok {lang} {split}\n" for split in two for lang in ("en", "de")},
    }  # fmt: skip
    for name, text in files.items():
        file = folder / f"{name}.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(text.encode()))
    return folder
