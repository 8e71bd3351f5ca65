"""Verbs that look inside: show, cost."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import Beam, Device, Head, Json, Layer, Picture, RunFolder

if TYPE_CHECKING:
    from regard.decode.classifier import ImageClassifier
    from regard.view.cost import ImageCost, Part

__all__ = ["cost", "show"]


def show(
    run: RunFolder,
    what: Annotated[str, typer.Argument(
        metavar="SENTENCE|PICTURE", help="A sentence to translate, or to read; or a picture file.", show_default=False)],
    layer: Layer = None,
    head: Head = None,
    beam: Beam = None,
    out: Picture = None,
    device: Device = "auto",
) -> None:  # fmt: skip
    """Show what attention looked at.

    A coloured grid in the terminal, or a picture: a row for each token said, a column for each token read.  Models that do
    not translate are shown as they read: a row for each token that looks.

    What was looked at in a picture is drawn over it, head by head, in PICTURE-attention.png unless --out says otherwise; of
    the last layer, unless --layer does.

    regard show runs/multi30k "A man is riding a bike." --out bike.png

    regard show runs/fashion-vit boot.png
    """
    from rich.console import Console

    from regard.decode.folder import load
    from regard.view.draw import check_file, to_file, to_terminal
    from regard.view.maps import look

    if out:
        check_file(out)
    opened = load(run, device)
    if opened.run.task == "pixels":
        raise ValueError(
            f"{run} draws pictures and looks at none; see what it draws: regard generate {run} --out samples.png"
        )
    if opened.run.task == "image":
        if beam is not None:
            raise ValueError(f"--beam {beam} is for translations; {run} looks at pictures, without one")
        _show_picture(opened, Path(what), out, layer, head)
        return
    seen = look(opened, what, beam=beam, layer=layer, head=head)
    if out:
        for note in to_file(seen, out):
            print(note, file=sys.stderr)
        print(f"saved {out}")
    else:
        console = Console()
        console.print(
            to_terminal(seen, console.width), width=max(console.width, 6 * len(seen.columns) + 20), soft_wrap=True
        )


def _show_picture(
    classifier: "ImageClassifier", picture: Path, out: Path | None, layer: int | None, head: int | None
) -> None:
    from regard.view.image_maps import map_image_attention, to_file

    file = out or Path(f"{picture.stem}-attention.png")
    seen = map_image_attention(classifier, picture, layer, head)
    for note in to_file(seen, file):
        print(note, file=sys.stderr)
    print(f"{seen.found}, saved {file}")


def cost(
    models: Annotated[list[str], typer.Argument(
        metavar="MODEL [KEY=VALUE]", show_default=False,
        help="Models by size (transformer-base, vit-base), or run folders; and keys of theirs to change (depth=48).")],
    source: Annotated[int, typer.Option(help="Tokens of the source sentence, or of the text.")] = 32,
    target: Annotated[int, typer.Option(help="Tokens of the target sentence.")] = 32,
    image: Annotated[int | None, typer.Option(
        help="Side of the picture, in pixels.  [default: each model's own]", show_default=False)] = None,
    json_: Json = False,
) -> None:  # fmt: skip
    """Count parameters, FLOPs and bytes.

    Part by part, for one sentence pair, or one text; models of pictures in one table, for one picture.

    regard cost transformer-base

    regard cost vit-base swin-tiny resnet-50 --image 224
    """
    from regard.config import value_of
    from regard.models import preset, read_config
    from regard.view.cost import changed, image_cost
    from regard.view.cost import cost as count

    if source < 1 or target < 1:
        raise ValueError(f"a source of {source} and a target of {target} tokens; use 1 or more")
    changes = [word for word in models if "=" in word and not Path(word).exists()]
    given = (word.removeprefix("model.").partition("=") for word in changes)
    values = {key: value_of(text) for key, _, text in given}
    texts, pictures = {}, {}
    for name in (word for word in models if word not in changes):
        family, config = read_config(Path(name)) if Path(name).is_dir() else preset(name)
        if hasattr(config, "image"):
            own = values if image is None else values | {"image": image}
            config = changed(name, family, config, own)
            pictures[name] = image_cost(family, config)
            if advice := getattr(config, "advice", ""):
                print(f"regard: {name}: {advice}", file=sys.stderr)
        else:
            texts[name] = count(family, changed(name, family, config, values), source, target)
    if not texts and not pictures:
        raise ValueError(f"{' '.join(changes)} changes no model; name one before it, such as vit-base")
    if image is not None and not pictures:
        raise ValueError(
            f"--image {image} is for models of pictures; {', '.join(texts)} read text, give --source instead"
        )
    if json_:
        told: dict[str, object] = {name: [part._asdict() for part in parts] for name, parts in texts.items()}
        print(json.dumps(told | {name: _told(one) for name, one in pictures.items()}))
        return
    for name, parts in texts.items():
        _print_parts(" ".join((name, *changes)), parts, _amount(parts, source, target))
    if pictures:
        _print_pictures(pictures, changes)


def _told(one: "ImageCost") -> dict[str, object]:
    """What `--json` says of a model of pictures."""
    whole = {key: value for key, value in one.whole._asdict().items() if key != "name"}
    return {"image": one.image, "tokens": one.tokens, **whole, "entries": one.entries, "entry_bytes": one.entry_bytes,
            "parts": [part._asdict() for part in one.parts]}  # fmt: skip


def _print_parts(title: str, parts: "list[Part]", amount: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{title}, {amount}, float32", title_justify="left")
    table.add_column("part")
    for heading in ("parameters", "forward FLOPs", "weights", "attention scores"):
        table.add_column(heading, justify="right")
    for part in parts:
        table.add_section() if part.name == "all" else None
        table.add_row(
            part.name, f"{part.parameters:,}", f"{part.flops:,}", _bytes(part.bytes), _bytes(part.score_bytes)
        )
    Console(width=None if sys.stdout.isatty() else 110).print(table)


def _print_pictures(counted: "dict[str, ImageCost]", changes: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=", ".join(("one picture", *changes, "float32")), title_justify="left", caption_justify="left",
                  caption="FLOPs: twice the multiply-adds (MACs) that papers count.  Tokens: those of the first attention.  "
                          "Scores: one head's, in the layer that has most; then all heads' of all layers.")  # fmt: skip
    table.add_column("model")
    for heading in ("image", "tokens", "parameters", "forward FLOPs", "scores", "their bytes", "all scores"):
        table.add_column(heading, justify="right")
    for name, one in counted.items():
        scores = (f"{one.entries:,}", _bytes(one.entry_bytes, 5), _bytes(one.whole.score_bytes, 5))
        table.add_row(name, f"{one.image}", f"{one.tokens:,}" if one.tokens else "-", f"{one.whole.parameters:,}",
                      f"{one.whole.flops:,}", *(scores if one.entries else "---"))  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 130).print(table)


def _amount(parts: "list[Part]", source: int, target: int) -> str:
    pair = any(part.name == "decoder" for part in parts)
    return f"one pair of {source} and {target} tokens" if pair else f"one text of {source} tokens"


def _bytes(n: float, digits: int = 4) -> str:
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.{digits}g} {unit}"
        n /= 1024
    return f"{n:.{digits}g} GiB"
