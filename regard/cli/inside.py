"""Verbs that look inside: show, cost."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import Beam, Device, Head, Json, Layer, Picture, RunFolder

if TYPE_CHECKING:
    from regard.view.cost import Part

__all__ = ["cost", "show"]


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
