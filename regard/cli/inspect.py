"""Verbs that inspect models: show, positions, cost."""

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.default_run import choose_run
from regard.cli.failures import BadInput, Failures
from regard.cli.io import expand_folders, note, write
from regard.cli.options import Beam, Device, DrawingFile, Head, Json, Layer, MapFile, OptionalRun, Strict

if TYPE_CHECKING:
    from torch import nn

    from regard.tasks.predictors import Predictor
    from regard.view.cost import ImageCost, Part
    from regard.view.show import AnyMap

__all__ = ["cost", "positions", "show"]


def show(
    run: OptionalRun = None,
    what: Annotated[list[str] | None, typer.Argument(
        metavar="SENTENCE|IMAGE|SOUND...", show_default=False,
        help="Sentences to translate or encode; or image or sound files, and folders of them.")] = None,
    which: Annotated[str | None, typer.Option(
        help="Of a translator: encoder, decoder (self-attention) or cross.  [default: cross]", show_default=False)] = None,
    layer: Layer = None, head: Head = None, beam: Beam = None, out: MapFile = None, strict: Strict = False,
    names: Annotated[bool, typer.Option(
        "--names", help="List the names under which regard.watch records attention, and the heads of each.")] = False,
    device: Device = "auto",
) -> int:  # fmt: skip
    """Show attention weights.

    For text, a coloured grid in the terminal or in a file: of a translation, a row for each output token and a column for each
    source token; of other models, and with --which encoder or decoder, a row for each query token and a column for each key
    token.  Cells that a query may not attend to are hatched.

    For an image, the weights of the last layer or of --layer, head by head over the image, in IMAGE-attention.png or --out; if
    that file exists, in IMAGE-attention-2.png.  Colours are multiples of uniform attention, the same for all images.  A folder
    is all images in it; a file that cannot be read is skipped, and listed at the end.
    A caption model is shown word by word, also in the terminal.

    For speech of up to 30 seconds, the spectrogram, the CTC posteriors and the attention over time, in SOUND-attention.png or
    --out: cross-attention of a model with a decoder, else self-attention.  The words and their times are printed.

    With --out map.html, the page of `regard serve` for this input, all layers and heads, in one file that opens from disk.

    regard show "I love you very much"

    regard show runs/multi30k "A man is riding a bike." --out bike.png

    regard show runs/multi30k "A man is riding a bike." --out map.html

    regard show runs/multi30k "A man is riding a bike." --which decoder --layer 1

    regard show runs/fashion-vit boot.png

    regard show runs/an4-joint clip.wav

    regard show runs/multi30k --names
    """
    from regard.tasks.load import load
    from regard.view import show as view
    from regard.view.draw import MAPS, check_file
    from regard.view.maps import check_which
    from regard.view.source import few_steps

    run, what = choose_run("show", run, what)
    side = check_which(which)
    if out:
        check_file(out, kinds=MAPS)
    if names:
        if what:
            raise ValueError(f"--names lists what the model of {run} records, for any input; leave {what[0]!r} out")
        return _print_names(load(run, device).model)
    if not what:
        raise ValueError(f'nothing to show; give a sentence, an image or a sound, as in: regard show {run} "…"')
    predictor = load(run, device)
    if getattr(predictor, "INPUT", "") not in ("text", "image", "audio"):
        view.show(predictor, "", name=run)  # says which verbs there are
    endings = _endings(predictor.INPUT)
    items = list(expand_folders(what, endings) if endings else what)
    if out and len(items) > 1:
        raise ValueError(f"--out {out} is one file, and there are {len(items)} inputs; give one, or leave --out out")
    failures = Failures(strict=strict)
    for each in items:
        try:
            if isinstance(each, BadInput):
                raise ValueError(each.error)
            if not endings:
                _refuse_file(each, run)
            if out and out.suffix.lower() == ".html":
                _export_page(predictor, each, out, {"--which": which, "--layer": layer, "--head": head}, beam)
                attention = None
            else:
                attention = view.show(predictor, each, which=side, layer=layer, head=head, beam=beam, name=run)
        except ValueError as error:
            source = each.source if isinstance(each, BadInput) else each
            failures.skip(BadInput(source, str(error)), f"{source}: skipped")
            continue
        if not failures.succeeded and (warning := few_steps(predictor)):
            note(f"regard: {warning}")
        failures.success()
        if attention is None:
            write(f"saved {out}, open it in a browser")
            continue
        _print_map(attention, each, out or (view.map_file(each) if endings else None))
    return failures.code()


def _export_page(predictor: "Predictor", what: str, file: Path, chosen: dict[str, object], beam: int | None) -> None:
    """Write the explorer's page, which shows every layer and head."""
    from regard.web.export import export_page

    if given := [option for option, value in chosen.items() if value is not None]:
        raise ValueError(f"{' and '.join(given)} with {file.name}, which shows all; leave it out, or draw a .png, .svg or .pdf")
    export_page(predictor, what, file, beam=beam)


def _print_names(model: "nn.Module") -> int:
    """The names of what `watch` records, one a line, and the heads of each."""
    from regard.layers.tap import attention_modules

    found = attention_modules(model)
    if not found:
        note("regard: this model has no attention; regard.watch records nothing of it")
    for name, part in found.items():
        heads = int(getattr(part, "heads", 1))  # a recurrent decoder attends with one
        write(name, f"{heads} head{'' if heads == 1 else 's'}")
    return 0


def _endings(input_: str) -> Collection[str]:
    """How the names of image or sound files end."""
    from regard.cli.predict import SOUNDS
    from regard.data.image.folders import ENDINGS

    return {"image": ENDINGS, "audio": SOUNDS}.get(input_, ())


def _refuse_file(text: str, run: str) -> None:
    """A run that reads text would take the name of a picture or a recording for a sentence."""
    for kind, name in (("image", "an image"), ("audio", "a sound")):
        if Path(text).suffix.lower() in _endings(kind) and Path(text).is_file():
            raise ValueError(
                f"{run} reads text, and {text} is {name} file; give a sentence in quotes, or a run that reads {kind}"
            )


def _print_map(attention: "AnyMap", source: str, file: Path | None) -> None:
    """Draw to the file, if one is given, and print what belongs in the terminal."""
    from rich.console import Console

    from regard.view import caption_maps, draw, image_maps, speech_maps
    from regard.view.caption_maps import CaptionMap
    from regard.view.image_maps import ImageMap
    from regard.view.maps import AttentionMap
    from regard.view.scale import preference_note

    console = Console()
    if isinstance(attention, AttentionMap):
        if file:
            _print_notes(draw.to_file(attention, file))
            write(f"saved {file}")
        else:
            width = max(console.width, 6 * len(attention.columns) + 20)
            console.print(draw.to_terminal(attention, console.width), width=width, soft_wrap=True)
        return
    assert file is not None
    if isinstance(attention, ImageMap):
        _print_notes(image_maps.to_file(attention, file))
        write(f"{source}: {attention.caption}, saved {file}")
    elif isinstance(attention, CaptionMap):
        _print_notes(caption_maps.to_file(attention, file))
        if attention.words and console.is_terminal:
            console.print(caption_maps.to_terminal(attention, console.width), soft_wrap=True)
        else:  # colours do not go through a pipe
            for word in attention.words:
                write(word.title, preference_note(word.weights))
        write(f"{source}: {attention.caption or 'an empty caption'}, saved {file}")
    else:
        _print_notes(speech_maps.to_file(attention, file))
        for timed in attention.words:
            write(f"{timed.start:.2f}", f"{timed.end:.2f}", timed.text)
        write(f"{source}: {attention.transcript or 'an empty transcript'}, saved {file}")


def _print_notes(notes: list[str]) -> None:
    for text in notes:
        note(text)


def positions(
    model: Annotated[str, typer.Argument(
        metavar="RUN|MODEL", show_default=False, help="A run folder, or a model by name (transformer-base, vit-base).")],
    length: Annotated[int, typer.Option(help="Positions of a text, or the largest distance.")] = 64,
    layer: Layer = None, out: DrawingFile = None,
) -> None:  # fmt: skip
    """Draw how a model knows positions, in NAME-positions.png or --out.

    A table that is added to the embeddings is drawn position by dimension, with the similarity of all pairs of positions; a
    relative position bias by the distance from query to key, head by head.  A model by name is untrained.

    regard positions runs/multi30k

    regard positions transformer-base --length 128 --out sinusoids.svg
    """
    from regard.view.draw import check_file
    from regard.view.positions import load_for_positions, map_positions, to_file
    from regard.view.show import free_file, plain_name

    if out:
        check_file(out)
    name, network = load_for_positions(model)
    found = map_positions(network, name, length=length, layer=layer)
    file = out or free_file(Path(f"{plain_name(name)}-positions.png"))
    _print_notes(to_file(found, file))
    write(f"{found.title}, saved {file}")


def cost(
    models: Annotated[list[str], typer.Argument(
        metavar="MODEL [KEY=VALUE]", show_default=False,
        help="Models by name (transformer-base, vit-base), or run folders; and config keys to override (depth=48).")],
    source: Annotated[int, typer.Option(help="Length of the source sentence or the text, in tokens; of speech, in frames.")] = 32,
    target: Annotated[int, typer.Option(help="Length of the target sentence, in tokens.")] = 32,
    image: Annotated[int | None, typer.Option(
        help="Side of the image, in pixels.  [default: each model's own]", show_default=False)] = None,
    json_: Json = False,
) -> None:  # fmt: skip
    """Count parameters, FLOPs and bytes.

    Text models part by part, for one sentence pair or one text; image models in one table, for one image.

    regard cost transformer-base

    regard cost vit-base swin-tiny resnet-50 --image 224
    """
    from regard.config import parse_value
    from regard.models import FAMILIES, preset, read_config
    from regard.shipped import find_run
    from regard.view.cost import changed, image_cost
    from regard.view.cost import cost as count

    if source < 1 or target < 1:
        raise ValueError(f"a source of {source} and a target of {target} tokens; use 1 or more")
    changes = [word for word in models if "=" in word and not Path(word).exists()]
    pairs = (word.removeprefix("model.").partition("=") for word in changes)
    values = {key: parse_value(text) for key, _, text in pairs}
    text_costs, image_costs, captions = {}, {}, {}
    for name in (word for word in models if word not in changes):
        folder = find_run(name)
        family, config = read_config(folder) if folder.is_dir() else preset(name)
        if hasattr(config, "image") and FAMILIES[family].kind != "captioner":
            config = changed(name, family, config, values if image is None else values | {"image": image})
            image_costs[name] = image_cost(family, config)
            if advice := getattr(config, "advice", ""):
                note(f"regard: {name}: {advice}")
        else:
            text_costs[name] = count(family, changed(name, family, config, values), source, target)
            captions[name] = f"one image and a caption of {target} tokens" if FAMILIES[family].kind == "captioner" else ""
    if not text_costs and not image_costs:
        raise ValueError(f"{' '.join(changes)} changes no model; name one before it, such as vit-base")
    if image is not None and not image_costs:
        raise ValueError(f"--image {image} is for image models; {', '.join(text_costs)} take text, give --source instead")
    if json_:
        text_parts: dict[str, object] = {name: [part._asdict() for part in parts] for name, parts in text_costs.items()}
        print(json.dumps(text_parts | {name: _to_dict(counted) for name, counted in image_costs.items()}))
        return
    for name, parts in text_costs.items():
        _print_parts(" ".join((name, *changes)), parts, captions[name] or _lengths(parts, source, target))
    if image_costs:
        _print_image_costs(image_costs, changes)


def _to_dict(counted: "ImageCost") -> dict[str, object]:
    """The `--json` output of an image model."""
    whole = {key: value for key, value in counted.whole._asdict().items() if key != "name"}
    return {"image": counted.image, "tokens": counted.tokens, **whole, "entries": counted.entries,
            "entry_bytes": counted.entry_bytes, "parts": [part._asdict() for part in counted.parts]}  # fmt: skip


def _print_parts(title: str, parts: "list[Part]", lengths: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{title}, {lengths}, float32", title_justify="left")
    table.add_column("part")
    for heading in ("parameters", "forward FLOPs", "weights", "attention scores"):
        table.add_column(heading, justify="right")
    for part in parts:
        table.add_section() if part.name == "all" else None
        sizes = _format_bytes(part.bytes), _format_bytes(part.score_bytes)
        table.add_row(part.name, f"{part.parameters:,}", f"{part.flops:,}", *sizes)
    Console(width=None if sys.stdout.isatty() else 110).print(table)


def _print_image_costs(counted: "dict[str, ImageCost]", changes: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=", ".join(("one image", *changes, "float32")), title_justify="left", caption_justify="left",
                  caption="FLOPs: twice the multiply-adds (MACs) that papers count.  Tokens: of the first attention.  "
                          "Scores: of one head, in the layer with the most; all scores: of all heads and layers.")  # fmt: skip
    table.add_column("model")
    for heading in ("image", "tokens", "parameters", "forward FLOPs", "scores", "their bytes", "all scores"):
        table.add_column(heading, justify="right")
    for name, c in counted.items():
        scores = (f"{c.entries:,}", _format_bytes(c.entry_bytes, 5), _format_bytes(c.whole.score_bytes, 5))
        table.add_row(name, f"{c.image}", f"{c.tokens:,}" if c.tokens else "-", f"{c.whole.parameters:,}",
                      f"{c.whole.flops:,}", *(scores if c.entries else "---"))  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 130).print(table)


def _lengths(parts: "list[Part]", source: int, target: int) -> str:
    pair = any(part.name == "decoder" for part in parts)
    if any(part.name == "subsampling" for part in parts):
        return f"one recording of {source} frames" + (f" and {target} tokens" if pair else "")
    return f"one pair of {source} and {target} tokens" if pair else f"one text of {source} tokens"


def _format_bytes(n: float, digits: int = 4) -> str:
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.{digits}g} {unit}"
        n /= 1024
    return f"{n:.{digits}g} GiB"
