"""Verbs that answer: translate, ask, generate, fill, classify, embed."""

import dataclasses
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.io import CHUNK, counting, open_run, read_texts
from regard.cli.options import (
    AnswerTokens,
    Beam,
    Device,
    Input,
    Json,
    MaskedBatch,
    NBest,
    Penalty,
    Precision,
    Questions,
    RunFolder,
    Sentences,
    Sheet,
    Stops,
    Temperature,
    Texts,
    Together,
    Tokens,
    TopK,
    TopP,
    Vectors,
)

__all__ = ["ask", "classify", "embed", "fill", "generate", "translate"]

MOST_COMPARED = 30  # texts of a table of all pairs


def translate(
    run: RunFolder,
    sentences: Sentences = None,
    input_: Input = None,
    beam: Beam = None,
    n_best: NBest = 1,
    length_penalty: Penalty = None,
    tokens: AnswerTokens = None,
    batch: Together = None,
    temperature: Temperature = None,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Annotated[int, typer.Option(help="Of the samples.")] = 0,
    device: Device = "auto",
    precision: Precision = "float32",
    json_: Json = False,
) -> None:  # fmt: skip
    """Translate sentences with a trained run.

    regard translate runs/multi30k "A man is riding a bike." --beam 5 --n-best 3
    """
    _answer(open_run(run, "translate", device, precision), sentences, input_, n_best, json_, seed, beam=beam,
            length_penalty=length_penalty, tokens=tokens, batch=batch, temperature=temperature, top_k=top_k,
            top_p=top_p)  # fmt: skip


def _answer(translator: Any, sentences: list[str] | None, input_: Path | None, n_best: int, json_: bool, seed: int,
            **how: Any) -> None:  # fmt: skip
    number = 0
    with read_texts(sentences, input_, "translating") as (chunks, count):
        for read in chunks:
            _say_unprefixed(translator, read)
            long = [read[row] for row in translator.too_long(read)[:1]]
            chunk = read[: read.index(long[0])] if long else read  # what stands before it is not lost
            answers = translator.translate(
                chunk,
                n_best=n_best,
                seed=seed + number,
                scored=json_,
                first=number + 1,
                progress=partial(count, number),
                **how,
            )
            for source, answer in zip(chunk, answers, strict=True):
                number += 1
                if json_:
                    print(json.dumps({"source": source, **dataclasses.asdict(answer)}, ensure_ascii=False))
                elif n_best > 1:
                    for rank, one in enumerate(answer.n_best, 1):
                        print(number, rank, f"{one.score:.4f}", one.text, sep="\t")
                else:
                    print(answer.text)
            sys.stdout.flush()
            translator.translate(long, first=number + 1)  # refuses it, by its number


def ask(
    run: RunFolder,
    questions: Questions = None,
    input_: Input = None,
    beam: Beam = None,
    tokens: AnswerTokens = None,
    batch: Together = None,
    device: Device = "auto",
    precision: Precision = "float32",
    json_: Json = False,
) -> None:  # fmt: skip
    """Ask a model that was trained with prefixes.

    regard ask runs/t5-multitask "translate English to German: This is good."
    """
    _answer(
        open_run(run, "ask", device, precision), questions, input_, 1, json_, 0, beam=beam, tokens=tokens, batch=batch
    )


def generate(
    run: RunFolder,
    prompt: Annotated[str | None, typer.Argument(help="How the text begins; none: standard input.", show_default=False)] = None,
    tokens: Tokens = None,
    temperature: Annotated[float, typer.Option(help="Wilder the higher; 0 takes the likeliest token each time.")] = 1.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Annotated[int, typer.Option(help="Of the draws; another gives another text.")] = 0,
    stop: Stops = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print each piece as it is written.")] = False,
    out: Sheet = None,
    count: Annotated[int | None, typer.Option(help="Pictures to draw.  [default: 64]", show_default=False)] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    json_: Json = False,
) -> None:  # fmt: skip
    """Write on from a beginning; or draw pictures, on one sheet.

    regard generate runs/shakespeare-gpt "ROMEO:" --tokens 300 --top-p 0.9 --stream

    regard generate runs/mnist-image-gpt --out samples.png
    """
    from regard.data.files import read_lines

    if stream and json_:
        raise ValueError("--stream prints pieces, --json one object; give one of them")
    writer = open_run(run, "generate", device, precision)
    if writer.run.task == "pixels":
        if prompt is not None or tokens is not None or stop or stream or json_:
            raise ValueError(
                f"{run} draws pictures; it takes --out, --count, --temperature, --top-k, --top-p, --seed only"
            )
        _draw(writer, out, 64 if count is None else count, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        return
    if out is not None or count is not None:
        raise ValueError(f"--out and --count are for pictures; {run} writes text")
    if prompt is None:
        prompt = "" if sys.stdin is None or sys.stdin.isatty() else "\n".join(read_lines(Path("-")))
    pieces = writer.stream(
        prompt, tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=stop or ()
    )
    if json_:
        print(json.dumps({"prompt": prompt, "text": "".join(pieces)}, ensure_ascii=False))
    elif stream:
        print(prompt, end="", flush=True)
        for piece in pieces:
            print(piece, end="", flush=True)
        print()
    else:
        print(prompt + "".join(pieces))


def _draw(painter: Any, out: Path | None, count: int, **how: Any) -> None:
    from regard.view.image_grid import check_out, save_image_grid

    if out is None:
        raise ValueError("pictures need a file; give --out samples.png")
    check_out(out)
    with counting("pixels") as shown:
        pictures = painter.draw(count, progress=partial(shown, 0), **how)
    save_image_grid(pictures, out)
    print(f"saved {count:,} pictures in {out}")


def fill(
    run: RunFolder,
    texts: MaskedBatch = None,
    top: Annotated[int, typer.Option(help="Guesses for each hidden word.")] = 5,
    device: Device = "auto",
    json_: Json = False,
) -> None:  # fmt: skip
    """Guess words hidden behind [MASK].

    regard fill runs/wikitext-bert "The cat sat on the [MASK]."
    """
    if top < 1:
        raise ValueError(f"--top {top}; ask for 1 or more guesses")
    reader = open_run(run, "fill", device)
    with read_texts(texts, None, "reading") as (chunks, _):
        for text in (text for chunk in chunks for text in chunk):
            found = reader.fill(text, top)
            if json_:
                guesses = [[guess._asdict() for guess in word] for word in found.guesses]
                print(json.dumps({"source": text, "text": found.text, "guesses": guesses}, ensure_ascii=False))
                continue
            print(found.text)
            for word in found.guesses:
                print("   ", ", ".join(f"{guess.text} {guess.probability:.1%}" for guess in word))


def classify(
    run: RunFolder,
    texts: Texts = None,
    input_: Input = None,
    top: Annotated[int, typer.Option(help="Print this many likeliest classes.")] = 1,
    device: Device = "auto",
    precision: Precision = "float32",
    json_: Json = False,
) -> None:  # fmt: skip
    """Say what class each text, or each picture, is of.

    regard classify runs/sst2 "a gripping, funny film"

    regard classify runs/cifar10-swin cat.jpg dog.png --top 3
    """
    if top < 1:
        raise ValueError(f"--top {top}; ask for 1 or more classes")
    reader = open_run(run, "classify", device, precision)
    done, pictures = 0, reader.run.task == "image"
    few = reader.run.decode.batch_size if pictures else CHUNK
    with read_texts(texts, input_, "classifying", few) as (chunks, count):
        for chunk in chunks:
            if not pictures:
                _say_cut(reader, chunk)
            for text, guesses in _classified(reader, chunk, top, partial(count, done)):
                if json_:
                    print(json.dumps({"source": text, "classes": [g._asdict() for g in guesses]}, ensure_ascii=False))
                else:
                    told = "\t".join(f"{guess.text} {guess.probability:.1%}" for guess in guesses)
                    print(f"{text}\t{told}" if pictures else told)
            done += len(chunk)
            sys.stdout.flush()


def embed(
    run: RunFolder,
    texts: Texts = None,
    input_: Input = None,
    out: Vectors = None,
    device: Device = "auto",
    json_: Json = False,
) -> None:  # fmt: skip
    """Turn texts into vectors, and compare them.

    Prints how alike the texts are, the cosine of each pair; --json prints the vectors, --out writes them.

    regard embed runs/minilm "money bank" "river bank" "the shore of a stream"
    """
    from regard.data.files import write_atomic

    if out and json_:
        raise ValueError("--out writes vectors, --json prints them; give one of them")
    if out and out.suffix != ".npy":
        raise ValueError(f"--out {out}; vectors are written as numpy's .npy")
    if out and not out.parent.is_dir():
        raise ValueError(f"no folder {out.parent}; make it, or choose another --out")
    reader = open_run(run, "embed", device)
    read: list[str] = []
    vectors: list[Any] = []
    with read_texts(texts, input_, "reading") as (chunks, count):
        for chunk in chunks:
            if len(read) + len(chunk) > MOST_COMPARED and not (out or json_):
                raise ValueError(
                    f"over {MOST_COMPARED} texts are too many for a table of all pairs; give --out FILE.npy or --json"
                )
            _say_cut(reader, chunk)
            vectors.append(reader.embed(chunk, partial(count, len(read))))
            read += chunk
            if json_:
                for text, vector in zip(chunk, vectors.pop().tolist(), strict=True):
                    print(json.dumps({"source": text, "vector": vector}, ensure_ascii=False))
    if json_ or not read:
        return
    import io

    import numpy as np
    import torch

    table = torch.cat(vectors)
    if out:
        held = io.BytesIO()
        np.save(held, table.numpy(), allow_pickle=False)
        write_atomic(out, held.getvalue())
        print(f"saved {len(table):,} vectors of {table.shape[1]} numbers in {out}")
        return
    _print_alike(read, (table @ table.T).tolist())


def _classified(reader: Any, chunk: list[str], top: int, progress: Any) -> Iterator[tuple[str, Any]]:
    """Each text or picture and its classes; one that cannot be read does not take the answers for those before it along."""
    try:
        yield from zip(chunk, reader.classify(chunk, top, progress), strict=True)
    except ValueError:
        for one in chunk:
            yield one, reader.classify([one], top)[0]


def _print_alike(texts: list[str], alike: list[list[float]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for number in range(1, len(texts) + 1):
        table.add_column(str(number), justify="right", min_width=5)
    for number, (text, row) in enumerate(zip(texts, alike, strict=True), 1):
        table.add_row(Text(f"{number} {text[:60]}"), *(f"{one:.2f}" for one in row))
    Console(width=None if sys.stdout.isatty() else 80 + 7 * len(texts), highlight=False).print(table)


def _say_unprefixed(translator: Any, texts: list[str]) -> None:
    known = translator.prefixes
    bare = next((text for text in texts if known and text.strip() and not text.startswith(known)), None)
    if bare is not None:
        print(f"regard: {bare[:40]!r} begins with none of the tasks this model has learnt, {', '.join(map(repr, known))}; "
              f"its answer may mean nothing", file=sys.stderr)  # fmt: skip


def _say_cut(reader: Any, texts: list[str]) -> None:
    if cut := reader.too_long(texts):
        print(f"{len(cut)} of {len(texts)} texts have over {reader.max_len} tokens and were cut", file=sys.stderr)
