"""The verbs: `regard <verb> <what> [key=value ...]`.

Results go to standard output, progress and errors to standard error.  A user's mistake prints one line and exits 2.
torch is imported inside the verbs, so that help does not wait for it.
"""

import dataclasses
import errno
import json
import os
import shlex
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.version import VERSION

if TYPE_CHECKING:
    from regard.config import Run
    from regard.train.metrics import Score
    from regard.view.cost import Part

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Train, run and see inside Transformers, on your own data, on your own machine.",
)  # fmt: skip

CHUNK = 1024  # sentences read, translated and printed together
MOST_COMPARED = 30  # texts of a table of all pairs

# fmt: off
RunFolder = Annotated[str, typer.Argument(help="A run folder, such as runs/multi30k.", show_default=False)]
Recipe = Annotated[str, typer.Argument(help="A recipe by name (see `regard recipes`), or a TOML file.", show_default=False)]
Changes = Annotated[list[str] | None, typer.Argument(
    metavar="[KEY=VALUE]...", help="Any key on top: model.dim=256 train.steps=2000.", show_default=False)]
Sentences = Annotated[list[str] | None, typer.Argument(
    help="Sentences; none: standard input, a line each.", show_default=False)]
Questions = Annotated[list[str] | None, typer.Argument(
    help="Texts that begin with their task; none: standard input, a line each.", show_default=False)]
Masked = Annotated[list[str] | None, typer.Argument(
    help="Texts with [MASK] where a word is to be guessed; none: standard input, a line each.", show_default=False)]
Texts = Annotated[list[str] | None, typer.Argument(help="Texts; none: standard input, a line each.", show_default=False)]
Checkpoint = Annotated[str, typer.Argument(
    help="A folder with a Hugging Face checkpoint; or a hub name, with the extra `hub`.", show_default=False)]
Input = Annotated[Path | None, typer.Option(
    "--input", help="A file to read, a text a line; plain or .gz.", show_default=False)]
Out = Annotated[Path | None, typer.Option(help="The run's folder.  [default: runs/NAME]", show_default=False)]
Picture = Annotated[Path | None, typer.Option(help="Draw to this .png, .svg, .pdf or .json file instead.", show_default=False)]
Split = Annotated[str, typer.Option(
    help="A split of the run's data (valid, test, test_2016_flickr), or a file of one's own.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Beam = Annotated[int | None, typer.Option(
    help="Beginnings kept at each step; 1 is greedy.  [default: as the run says]", show_default=False)]
Penalty = Annotated[float | None, typer.Option(
    help="Scores are divided by length to this power.  [default: as the run says]", show_default=False)]
NBest = Annotated[int, typer.Option(
    help="Print this many translations of each sentence: number, rank, score and text, with tabs between.")]
Tokens = Annotated[int | None, typer.Option(
    help="The most tokens to write.  [default: 200, or what there is room for]", show_default=False)]
Stops = Annotated[list[str] | None, typer.Option(
    help="End before this string; may be given several times.", show_default=False)]
Vectors = Annotated[Path | None, typer.Option(help="Write the vectors to this .npy file, a row each.", show_default=False)]
Together = Annotated[int | None, typer.Option(help="Sentences at once.  [default: as the run says]", show_default=False)]
Temperature = Annotated[float | None, typer.Option(
    help="Draw samples, the wilder the higher, instead of searching.", show_default=False)]
Device = Annotated[str, typer.Option(help="cuda, mps or cpu; auto takes the first there is.")]
Precision = Annotated[str, typer.Option(help="float32, or int8: weights rounded to 8 bits, faster on a CPU.")]
Layer = Annotated[int | None, typer.Option(help="A layer, from 1.  [default: the mean of all]", show_default=False)]
Head = Annotated[int | None, typer.Option(help="A head, from 1.  [default: the mean of all]", show_default=False)]
# fmt: on


@app.command()
def train(
    what: Recipe,
    changes: Changes = None,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint, to the same bits.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw away an earlier run of the same name.")] = False,
) -> None:  # fmt: skip
    """Learn a model from your data: pairs of sentences, text, or texts with classes.

    regard train multi30k train.steps=2000

    regard train sst2 init=runs/wikitext-bert

    regard train translate data.train=my.tsv data.valid=held.tsv
    """
    from regard.config import load
    from regard.models import FAMILIES

    run = load(what, changes or (), FAMILIES)
    folder = out or Path("runs") / run.name
    from regard.train.parallel import first_process

    if not first_process():  # what there is to say, the first one says
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  until the end
    else:
        _check_folder(folder, resume, fresh)
    if resume and (folder / "run.toml").exists():
        run = _resumed(run, folder, changes or ())
    from regard.train.loop import Interrupted, fit

    try:
        done = fit(run, folder, fresh=fresh, command=shlex.join(["regard", "train", what, *(changes or ())]))
    except Interrupted as stop:
        print(f"regard: {stop}", file=sys.stderr)
        raise typer.Exit(130) from None
    if not first_process():
        return
    print(f"{run.name}: held-out loss {done.loss:.4f} after {done.steps:,} steps and {done.minutes:.1f} minutes")
    _print_scores(done.scores)
    print(f"saved in {folder}")


def _check_folder(folder: Path, resume: bool, fresh: bool) -> None:
    """Refuse to mix a run with another one, or with other things."""
    if resume and fresh:
        raise ValueError("--resume goes on, --fresh starts over; give one of them")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; choose another --out")
    if (folder / "run.toml").exists() and not resume and not fresh:
        raise ValueError(
            f"{folder} holds a run already; go on with --resume, start over with --fresh, or choose another --out"
        )
    if (folder / "run.toml").exists():
        return
    if fresh and folder.exists() and any(not file.name.startswith(".") for file in folder.iterdir()):
        raise ValueError(f"{folder} holds other things than a run, which --fresh will not delete; choose another --out")
    if resume:
        print(f"nothing to resume in {folder}; starting from the beginning", file=sys.stderr)


def _resumed(asked: "Run", folder: Path, changes: Iterable[str]) -> "Run":
    """The run a folder holds, with changes on top that leave its model and data alone."""
    from regard.config import load
    from regard.models import FAMILIES

    held = load(str(folder / "run.toml"), (), FAMILIES)
    run = load(str(folder / "run.toml"), changes, FAMILIES)
    kept = ("name", "family", "model", "task", "init", "data")
    if any(getattr(run, key) != getattr(held, key) for key in kept) or asked.name != held.name:
        raise ValueError(
            f"{folder} was trained as {held.name} with another model or other data; "
            f"--resume may change train and decode keys only"
        )
    return run


@app.command()
def recipes(json_: Json = False) -> None:
    """List the recipes that ship with regard.

    Each with its command, and the minutes and score to expect.

    regard recipes
    """
    from regard.config import recipes as all_recipes

    headers = {
        name: [line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
        for name, path in all_recipes().items()
    }
    if json_:
        print(json.dumps(headers))
    else:
        for name, lines in headers.items():
            print(name, *(f"    {line}" for line in lines), sep="\n")


@app.command()
def translate(
    run: RunFolder,
    sentences: Sentences = None,
    input_: Input = None,
    beam: Beam = None,
    n_best: NBest = 1,
    length_penalty: Penalty = None,
    batch: Together = None,
    temperature: Temperature = None,
    top_k: Annotated[int, typer.Option(help="Draw from this many likeliest tokens; 0 is all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the fewest tokens of this total probability.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the samples.")] = 0,
    device: Device = "auto",
    precision: Precision = "float32",
    json_: Json = False,
) -> None:  # fmt: skip
    """Translate sentences with a trained run.

    regard translate runs/multi30k "A man is riding a bike." --beam 5 --n-best 3
    """
    translator = _open(run, "translate", device, precision)
    number = 0
    with _lines(sentences, input_, "translating") as (chunks, count):
        for read in chunks:
            long = [read[row] for row in translator.too_long(read)[:1]]
            chunk = read[: read.index(long[0])] if long else read  # what stands before it is not lost
            answers = translator.translate(
                chunk, beam=beam, n_best=n_best, length_penalty=length_penalty, batch=batch, temperature=temperature,
                top_k=top_k, top_p=top_p, seed=seed + number, scored=json_, first=number + 1, progress=partial(count, number),
            )  # fmt: skip
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


@app.command()
def ask(
    run: RunFolder,
    questions: Questions = None,
    input_: Input = None,
    beam: Beam = None,
    batch: Together = None,
    device: Device = "auto",
    precision: Precision = "float32",
    json_: Json = False,
) -> None:  # fmt: skip
    """Ask a model that was trained with prefixes.

    regard ask runs/t5-multitask "translate English to German: This is good."
    """
    translate(run, questions, input_, beam, 1, None, batch, None, 0, 1.0, 0, device, precision, json_)


@app.command()
def generate(
    run: RunFolder,
    prompt: Annotated[str, typer.Argument(help="How the text begins.", show_default=False)] = "",
    tokens: Tokens = None,
    temperature: Annotated[float, typer.Option(help="Wilder the higher; 0 takes the likeliest token each time.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw from this many likeliest tokens; 0 is all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the fewest tokens of this total probability.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the draws; another gives another text.")] = 0,
    stop: Stops = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print each piece as it is written.")] = False,
    device: Device = "auto",
    precision: Precision = "float32",
    json_: Json = False,
) -> None:  # fmt: skip
    """Write on from a beginning.

    regard generate runs/shakespeare-gpt "ROMEO:" --tokens 300 --top-p 0.9 --stream
    """
    if stream and json_:
        raise ValueError("--stream prints pieces, --json one object; give one of them")
    writer = _open(run, "generate", device, precision)
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


@app.command()
def fill(
    run: RunFolder,
    texts: Masked = None,
    top: Annotated[int, typer.Option(help="Guesses for each hidden word.")] = 5,
    device: Device = "auto",
    json_: Json = False,
) -> None:  # fmt: skip
    """Guess words hidden behind [MASK].

    regard fill runs/wikitext-bert "The cat sat on the [MASK]."
    """
    if top < 1:
        raise ValueError(f"--top {top}; ask for 1 or more guesses")
    reader = _open(run, "fill", device)
    with _lines(texts, None, "reading") as (chunks, _):
        for text in (text for chunk in chunks for text in chunk):
            found = reader.fill(text, top)
            if json_:
                guesses = [[guess._asdict() for guess in word] for word in found.guesses]
                print(json.dumps({"source": text, "text": found.text, "guesses": guesses}, ensure_ascii=False))
                continue
            print(found.text)
            for word in found.guesses:
                print("   ", ", ".join(f"{guess.text} {guess.probability:.1%}" for guess in word))


@app.command()
def classify(
    run: RunFolder,
    texts: Texts = None,
    input_: Input = None,
    top: Annotated[int, typer.Option(help="Print this many likeliest classes.")] = 1,
    device: Device = "auto",
    precision: Precision = "float32",
    json_: Json = False,
) -> None:  # fmt: skip
    """Say what class each text is of.

    regard classify runs/sst2 "a gripping, funny film"
    """
    if top < 1:
        raise ValueError(f"--top {top}; ask for 1 or more classes")
    reader = _open(run, "classify", device, precision)
    done = 0
    with _lines(texts, input_, "classifying") as (chunks, count):
        for chunk in chunks:
            _say_cut(reader, chunk)
            for text, guesses in zip(chunk, reader.classify(chunk, top, partial(count, done)), strict=True):
                if json_:
                    print(json.dumps({"source": text, "classes": [g._asdict() for g in guesses]}, ensure_ascii=False))
                else:
                    print("\t".join(f"{guess.text} {guess.probability:.1%}" for guess in guesses))
            done += len(chunk)
            sys.stdout.flush()


@app.command()
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
    if texts and len(texts) > MOST_COMPARED and not (out or json_):
        raise ValueError(f"{len(texts):,} texts are too many for a table of all pairs; give --out FILE.npy or --json")
    if out and out.suffix != ".npy":
        raise ValueError(f"--out {out}; vectors are written as numpy's .npy")
    reader = _open(run, "embed", device)
    read: list[str] = []
    vectors: list[Any] = []
    with _lines(texts, input_, "reading") as (chunks, count):
        for chunk in chunks:
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
    if len(read) > MOST_COMPARED:
        raise ValueError(f"{len(read):,} texts are too many for a table of all pairs; give --out FILE.npy or --json")
    _print_alike(read, (table @ table.T).tolist())


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


def _say_cut(reader: Any, texts: list[str]) -> None:
    if cut := reader.too_long(texts):
        print(f"{len(cut)} of {len(texts)} texts have over {reader.longest} tokens and were cut", file=sys.stderr)


@app.command("import")
def import_(
    what: Checkpoint,
    to: Annotated[Path, typer.Option(help="The run folder to make.", show_default=False)],
) -> None:  # fmt: skip
    """Open a Hugging Face checkpoint: GPT-2, BERT, T5, or Marian with a tokenizer.json.

    regard import all-MiniLM-L6-v2/ --to runs/minilm
    """
    from regard.interop.hf import fetch, import_run

    folder = Path(what)
    import_run(folder if folder.is_dir() else fetch(what), to, name=what)
    print(f"saved in {to}")


@app.command()
def export(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(help="The folder to make.", show_default=False)],
    to: Annotated[str, typer.Option(help="The form: hf, for Hugging Face's from_pretrained.")] = "hf",
) -> None:  # fmt: skip
    """Write a run so that other libraries open it.

    regard export runs/shakespeare-gpt --to hf out/
    """
    from regard.interop.hf import export_run

    if to != "hf":
        raise ValueError(f"no form {to!r}; there is hf")
    export_run(Path(run), out)
    print(f"saved in {out}")


VERBS = {"Translator": ("translate", "ask"), "Writer": ("generate",), "Reader": ("fill", "classify", "embed")}


def _open(run: str, verb: str, device: str, precision: str = "float32") -> Any:
    """A run folder, if it was trained for this verb."""
    from regard.decode.folder import load

    opened = load(run, device, precision)
    verbs = VERBS[type(opened).__name__]
    if verb not in verbs:
        raise ValueError(f"{run} holds a {opened.run.family}, which does not {verb}; use regard {' or '.join(verbs)}")
    return opened


@contextmanager
def _lines(given: list[str] | None, file: Path | None, what: str) -> Iterator[tuple[Iterator[list[str]], Any]]:
    """Texts from the command line, a file or standard input, in chunks, and a counter of those that are done."""
    from regard.data.files import read_lines

    if given and file:
        raise ValueError("texts and --input were both given; give one of them")
    asking = not given and file is None and sys.stdin is not None and sys.stdin.isatty()
    if asking:
        print("regard: type a text a line, Ctrl-D ends", file=sys.stderr)
    lines = iter(given) if given else read_lines(file or Path("-"))
    size = 1 if asking else CHUNK
    with _counting(what, watched=not asking) as count:
        yield iter(lambda: list(islice(lines, size)), []), count


@app.command()
def score(
    run: RunFolder,
    on: Split = "valid",
    beam: Beam = None,
    length_penalty: Penalty = None,
    device: Device = "auto",
    precision: Precision = "float32",
    json_: Json = False,
) -> None:  # fmt: skip
    """Score a run on held-out data.

    Translations with BLEU and chrF and their signatures, classes with accuracy and F1, language models with perplexity.

    regard score runs/multi30k --on test_2016_flickr
    """
    from regard.decode.folder import load
    from regard.train.metrics import score_split

    opened = load(run, device, precision)
    if precision != "float32" and opened.run.task not in ("translate", "class"):
        raise ValueError(f"--precision {precision} is for translations and classes; {run} is scored in float32")
    how: dict[str, Any] = {"beam": beam, "length_penalty": length_penalty} if opened.run.task == "translate" else {}
    for name, value in {"beam": beam, "length_penalty": length_penalty}.items():
        if value is not None and not how:
            raise ValueError(f"--{name.replace('_', '-')} {value} is for translations; {run} is scored without")
    with _counting(f"scoring {on}") as count:
        say = partial(print, file=sys.stderr)
        if opened.run.task in ("translate", "class"):
            how["progress"] = partial(count, 0)
        scores = score_split(opened, on, say=say, **how)
    if json_:
        print(json.dumps([s._asdict() for s in scores]))
    else:
        _print_scores(scores)


def _print_scores(scores: "Iterable[Score]") -> None:
    for s in scores:
        print(f"{s.value:6.2f}  {s.name}  ({s.signature})")


@app.command()
def show(
    run: RunFolder,
    sentence: Annotated[str, typer.Argument(help="A sentence to translate, or to read.", show_default=False)],
    layer: Layer = None,
    head: Head = None,
    beam: Beam = None,
    out: Picture = None,
    device: Device = "auto",
) -> None:  # fmt: skip
    """Show what attention looked at.

    A coloured grid in the terminal, or a picture: a row for each token said, a column for each token read.  Models that do
    not translate are shown as they read: a row for each token that looks.

    regard show runs/multi30k "A man is riding a bike." --out bike.png
    """
    from rich.console import Console

    from regard.decode.folder import load
    from regard.view.draw import to_file, to_terminal
    from regard.view.maps import look

    seen = look(load(run, device), sentence, beam=beam, layer=layer, head=head)
    if out:
        for note in to_file(seen, out):
            print(note, file=sys.stderr)
        print(f"saved {out}")
    else:
        console = Console()
        console.print(
            to_terminal(seen, console.width), width=max(console.width, 6 * len(seen.columns) + 20), soft_wrap=True
        )


@app.command()
def cost(
    models: Annotated[list[str], typer.Argument(help="Models by size (transformer-base), or run folders.", show_default=False)],
    source: Annotated[int, typer.Option(help="Tokens of the source sentence, or of the text.")] = 32,
    target: Annotated[int, typer.Option(help="Tokens of the target sentence.")] = 32,
    json_: Json = False,
) -> None:  # fmt: skip
    """Count parameters, FLOPs and bytes.

    Part by part, for one sentence pair, or one text.

    regard cost transformer-base
    """
    from rich.console import Console
    from rich.table import Table

    from regard.models import read_config, sized
    from regard.view.cost import cost as count

    if source < 1 or target < 1:
        raise ValueError(f"a source of {source} and a target of {target} tokens; use 1 or more")
    counted = {}
    for name in models:
        family, config = read_config(Path(name)) if Path(name).is_dir() else sized(name)
        counted[name] = count(family, config, source, target)
    if json_:
        print(json.dumps({name: [part._asdict() for part in parts] for name, parts in counted.items()}))
        return
    for name, parts in counted.items():
        table = Table(title=f"{name}, {_amount(parts, source, target)}, float32", title_justify="left")
        table.add_column("part")
        for heading in ("parameters", "forward FLOPs", "weights", "attention scores"):
            table.add_column(heading, justify="right")
        for part in parts:
            table.add_section() if part.name == "all" else None
            table.add_row(
                part.name, f"{part.parameters:,}", f"{part.flops:,}", _bytes(part.bytes), _bytes(part.score_bytes)
            )
        Console(width=None if sys.stdout.isatty() else 110).print(table)


def _amount(parts: "list[Part]", source: int, target: int) -> str:
    pair = any(part.name == "decoder" for part in parts)
    return f"one pair of {source} and {target} tokens" if pair else f"one text of {source} tokens"


def _bytes(n: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.4g} {unit}"
        n /= 1024
    return f"{n:.4g} GiB"


@contextmanager
def _counting(what: str, watched: bool = True) -> Iterator[Any]:
    """A line on standard error that counts sentences and their speed, if a person is watching."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal or not watched:
        yield lambda before, done: None  # at a prompt, or into a log, a counter is in the way
        return
    columns = (SpinnerColumn(), TextColumn(f"{what}: {{task.completed:,}}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda before, done: progress.update(task, completed=before + done)


def _version(wanted: bool) -> None:
    if wanted:
        print(VERSION)
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> int:
    """Run a verb; a user's mistake is one line on standard error and exit code 2."""
    # TensorBoard writes from a thread of its own; on a full disk our next write says so in one line
    threading.excepthook = lambda failed: (
        None if isinstance(failed.exc_value, OSError) else threading.__excepthook__(failed)
    )
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # whatever the locale says, translations are not Latin-1
    try:
        code = int(app(sys.argv[1:] or ["--help"], standalone_mode=False) or 0)
        sys.stdout.flush()  # here, where a reader that went away is known
        return code
    except (KeyboardInterrupt, typer.Abort):
        print("regard: interrupted", file=sys.stderr)
        return 130
    except (BrokenPipeError, SystemExit) as stop:
        if not isinstance(stop, BrokenPipeError) and not isinstance(stop.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader, such as `head`, has seen enough
        return 0
    except Exception as mistake:
        line = _one_line(mistake)
        if line is None or os.environ.get("REGARD_DEBUG"):
            raise
        print(f"regard: {line}", file=sys.stderr)
        return 2


def _one_line(mistake: Exception) -> str | None:
    """What to tell a user who can do something about it; nothing for a defect of ours."""
    if hasattr(mistake, "format_message"):  # typer's own, for an option it does not know
        return f"{mistake.format_message().rstrip('.')}; see regard --help"
    if isinstance(mistake, ValueError):
        return str(mistake)
    if isinstance(mistake, RuntimeError) and "allocate memory" in str(mistake):
        return "there is not enough memory for it; use a smaller --beam or --batch, or train.tokens"
    if isinstance(mistake, OSError):
        full = mistake.errno in (errno.ENOSPC, errno.EDQUOT)
        what = (
            "make room, then go on with --resume: the checkpoint before is whole"
            if full
            else "check the path and its permissions"
        )
        return f"{mistake.strerror}{f': {mistake.filename}' if mistake.filename else ''}; {what}"
    return None
