"""Word vectors as a text file in the format of the authors' word2vec, which gensim, spaCy and others read.

The first line has the number of words and the width; each other line a word and its vector, most frequent first.
"""

from pathlib import Path

from regard.data.files import write_atomic
from regard.models import read_config
from regard.tasks.load import load
from regard.tasks.word_vectors import WordVectors

__all__ = ["export_vectors"]


def export_vectors(folder: Path, to: Path) -> None:
    """Write the word vectors of a run; nine digits are exact for float32."""
    family, _ = read_config(folder)
    if to.exists():
        raise ValueError(f"{to} already exists; give another file, or remove it")
    if not to.parent.is_dir():
        raise ValueError(f"no folder {to.parent}; make it, or choose another file")
    vectors = load(folder, "cpu") if family == "word2vec" else None
    if not isinstance(vectors, WordVectors):
        raise ValueError(f"{folder} is of family {family}, which has no word vectors; --to word2vec is for word2vec")
    rows = vectors.vectors.tolist()
    lines = (" ".join((word, *(f"{x:.9g}" for x in row))) for word, row in zip(vectors.words, rows, strict=True))
    header = f"{len(rows)} {vectors.vectors.shape[1]}"
    write_atomic(to, "".join(f"{line}\n" for line in (header, *lines)).encode())
