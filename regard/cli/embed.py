"""Verbs of vectors: embed, neighbors."""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from regard.cli import options
from regard.cli.default_run import choose_run
from regard.cli.failures import BadInput, Failures
from regard.cli.io import note, open_run, read_items, read_texts, write, write_json
from regard.cli.options import Device, Input, Json, OptionalRun
from regard.data.terminal import printable

if TYPE_CHECKING:
    from torch import Tensor

    from regard.tasks.bidirectional_lm import BidirectionalLM
    from regard.tasks.image_classification import ImageClassifier
    from regard.tasks.masked_lm import MaskedLM
    from regard.tasks.text_classification import TextClassifier
    from regard.tasks.text_embedding import TextEmbedder
    from regard.tasks.word_vectors import Neighbor, WordVectors

    Embedder = TextEmbedder | MaskedLM | BidirectionalLM | TextClassifier | WordVectors

__all__ = ["embed", "encode_noting", "neighbors"]

MAX_COMPARED = 30  # texts in a table of all pairs
COLUMNS = 5  # words whose neighbors are in one table
CONTEXT = 40  # characters shown before a word


def embed(run: OptionalRun = None, texts: options.TextsOrImages = None, input_: Input = None, word: options.Word = None,
          out: options.VectorFile = None, strict: options.Strict = False, device: Device = "auto",
          json_: Json = False) -> int:  # fmt: skip
    """Embed texts as vectors, or one word of each text in its context, and compare them.

    Prints the cosine similarity of each pair; --json prints the vectors, --out writes them.

    regard embed runs/minilm "money bank" "river bank" "the shore of a stream"

    regard embed runs/wikitext-elmo --word bank "money bank grows" "river bank flows"
    """
    if out and json_:
        raise ValueError("--out writes vectors, --json prints them; give one of them")
    if out and out.suffix != ".npy":
        raise ValueError(f"--out {out}; vectors are written as numpy's .npy")
    if out and not out.parent.is_dir():
        raise ValueError(f"no folder {out.parent}; make it, or choose another --out")
    run, texts = choose_run("embed", run, texts)
    embedder: Embedder = open_run(run, "embed", device)
    embed_chunk = partial(_embed_texts, embedder) if word is None else partial(_embed_word, embedder, word)
    done, rows, vectors, failures = 0, list[_Embedded](), list["Tensor | None"](), Failures(strict=strict, json_=json_)
    with read_items(texts, input_, "reading") as (chunks, count):
        for chunk in chunks:
            _require_comparable(len(rows) + len(chunk), bool(out or json_))
            for found in _embed_each(embed_chunk, chunk, done + 1, partial(count, done)):
                if isinstance(found, BadInput):
                    failures.skip(found)
                    vectors += [None] if word is None else []
                    continue
                embedded, table = found
                failures.success(len(embedded))
                if json_:
                    for row, vector in zip(embedded, table.tolist(), strict=True):
                        write_json({**row.fields, "vector": vector})
                    continue
                rows += embedded
                vectors += table
            done += len(chunk)
            _require_comparable(len(rows), bool(out or json_))
    if rows:
        _finish_embedding(rows, vectors, out, 2 if word is None else 3)  # a word resembles itself in every context
    return failures.code()


def _embed_each(embed_chunk: "Callable[..., tuple[list[_Embedded], Tensor]]", items: list[str | BadInput], first: int,
                progress: Callable[[int], None]) -> "Iterator[tuple[list[_Embedded], Tensor] | BadInput]":  # fmt: skip
    """The vectors of all texts at once; if one is refused, of each alone; `first` is the number of the first text."""
    texts = [item for item in items if isinstance(item, str)]
    if len(texts) == len(items):
        with suppress(ValueError):
            yield embed_chunk(texts, first, progress)
            return
    for number, item in enumerate(items, first):
        if isinstance(item, BadInput):
            yield item
            continue
        try:
            yield embed_chunk([item], number, progress, quiet=len(texts) == len(items))  # else there was no note
        except ValueError as error:
            yield BadInput(item, str(error))


def _finish_embedding(rows: "list[_Embedded]", vectors: "list[Tensor | None]", out: Path | None, digits: int) -> None:
    """Write the vectors, a row of NaN for a text that was skipped; or print the table of all pairs."""
    import io

    import numpy as np
    import torch

    from regard.data.files import write_atomic

    known = [vector for vector in vectors if vector is not None]
    if out:
        nothing = torch.full_like(known[0], math.nan)
        table = torch.stack([nothing if vector is None else vector for vector in vectors])
        content = io.BytesIO()
        np.save(content, table.numpy(), allow_pickle=False)
        write_atomic(out, content.getvalue())
        write(f"saved {len(table):,} vectors of {table.shape[1]} numbers in {out}")
        return
    table = torch.stack(known)
    _print_similarity([row.label for row in rows], (table @ table.T).tolist(), digits)


class _Embedded(NamedTuple):
    """What has a vector: how a table names it, and how JSON describes it."""

    label: str
    fields: dict[str, object]


def _require_comparable(count: int, written: bool) -> None:
    if count > MAX_COMPARED and not written:
        raise ValueError(f"over {MAX_COMPARED} texts are too many for a table of all pairs; give --out FILE.npy or --json")


def _embed_texts(embedder: "Embedder", texts: list[str], first: int, progress: Callable[[int], None],
                 quiet: bool = False) -> "tuple[list[_Embedded], Tensor]":  # fmt: skip
    return [_Embedded(text, {"source": text}) for text in texts], embedder.embed(encode_noting(embedder, texts, quiet), progress)


def _embed_word(embedder: "Embedder", word: str, texts: list[str], first: int, progress: Callable[[int], None],
                quiet: bool = False) -> "tuple[list[_Embedded], Tensor]":  # fmt: skip
    """The word in brackets in each text, once for each occurrence; `first` is the number of the first text."""
    if _max_len(embedder) < math.inf:
        encode_noting(embedder, texts, quiet)  # for its note
    rows = list[_Embedded]()
    found = embedder.embed_word(texts, word, progress, first=first)
    for index, start, end in found.occurrences:
        text = texts[index]
        label = f"{text[max(0, start - CONTEXT) : start]}[{text[start:end]}]{text[end:]}"
        rows.append(_Embedded(label, {"source": text, "start": start, "end": end}))
    return rows, found.vectors


def _print_similarity(texts: list[str], cosines: list[list[float]], digits: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for number in range(1, len(texts) + 1):
        table.add_column(str(number), justify="right", min_width=5)
    for number, (text, row) in enumerate(zip(texts, cosines, strict=True), 1):
        table.add_row(Text(printable(f"{number} {text[:60]}", keep="")), *(f"{cosine:.{digits}f}" for cosine in row))
    Console(width=None if sys.stdout.isatty() else 80 + 7 * len(texts), highlight=False).print(table)


def neighbors(
    run: OptionalRun = None, words: options.Words = None,
    analogy: Annotated[bool, typer.Option("--analogy", help="Of three words, print what A - B + C is nearest to.")] = False,
    top: Annotated[int, typer.Option(help="Nearest words to print.")] = 10, device: Device = "auto", json_: Json = False,
) -> None:  # fmt: skip
    """Find the nearest words, by the cosine of their vectors.

    regard neighbors runs/wikitext-word2vec king river bank

    regard neighbors runs/wikitext-word2vec --analogy king man woman
    """
    if top < 1:
        raise ValueError(f"--top {top}; ask for 1 or more words")
    run, words = choose_run("neighbors", run, words)
    vectors: WordVectors = open_run(run, "neighbors", device)
    with read_texts(words, None, "reading") as (chunks, _):
        asked = [word for chunk in chunks for word in chunk]
    if analogy:
        if len(asked) != 3:
            raise ValueError(f"an analogy of {len(asked)} words; give three: --analogy king man woman is king - man + woman")
        a, b, c = asked
        found = [(f"{a} - {b} + {c}", vectors.analogy(a, b, c, top))]
    else:
        found = [(word, vectors.neighbors(word, top)) for word in asked]
    if json_:
        for word, near in found:
            write_json({"word": word, "neighbors": [other._asdict() for other in near]})
    else:
        for first in range(0, len(found), COLUMNS):
            print(end="\n" * (first > 0))
            _print_neighbors(found[first : first + COLUMNS])


def _print_neighbors(found: "list[tuple[str, list[Neighbor]]]") -> None:
    """A table with two columns for each word: its neighbors and their cosines."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table, rows = Table(box=None, pad_edge=False), max(len(near) for _, near in found)
    for word, _ in found:
        table.add_column(Text(printable(word, keep="")), max_width=30)
        table.add_column("", justify="right", min_width=9)
    for row in range(rows):
        cells = [
            (Text(printable(near[row].word, keep="")), f"{near[row].cosine:.3f}    ") if row < len(near) else ("", "")
            for _, near in found
        ]
        table.add_row(*(cell for pair in cells for cell in pair))
    Console(width=None if sys.stdout.isatty() else 50 * len(found), highlight=False).print(table)


def encode_noting(predictor: "Embedder | ImageClassifier", texts: list[str], quiet: bool = False) -> Any:
    """The inputs of a predictor, token ids or files, with a note if some texts will be truncated, unless it was given before."""
    encoded, limit = getattr(predictor, "encode", list)(texts), _max_len(predictor)
    if not quiet and (cut := sum(len(ids) > limit for ids in encoded)):
        note(f"{cut} of {len(texts)} texts have over {limit} tokens and were truncated")
    return encoded


def _max_len(predictor: "Embedder | ImageClassifier") -> float:
    """The most tokens of a text; infinity if a predictor has no limit, or reads no tokens."""
    return getattr(predictor, "max_len", math.inf)
