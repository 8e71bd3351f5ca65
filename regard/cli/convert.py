"""Verbs that convert checkpoints of other libraries: import, export."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.io import note, write
from regard.cli.options import HFCheckpointPath, RunPath

__all__ = ["export", "import_"]


def import_(what: HFCheckpointPath, to: Annotated[Path, typer.Option(help="The new run folder.", show_default=False)]) -> None:
    """Convert a Hugging Face checkpoint: GPT-2, BERT, T5, Marian (OPUS-MT, with its .spm files), Pegasus, ViT, Swin, ResNet.

    ViT with GPT-2 is read too, as a model of captions.  Weights are read from model.safetensors only.

    regard import all-MiniLM-L6-v2/ --to runs/minilm

    regard import vit-base-patch16-224/ --to runs/vit
    """
    from regard.interop.hf import fetch, import_run

    folder = Path(what)
    if folder.is_file():
        raise ValueError(f"{what} is a file; give its folder, with config.json and the other files")
    is_path = folder.is_absolute() or what.startswith(".") or what.endswith("/") or what.count("/") > 1
    if is_path and not folder.is_dir():
        raise ValueError(f"no folder {what}; check the path")
    for remark in import_run(folder if folder.is_dir() else fetch(what), to, name=what):
        note(f"note: {remark}")
    write(f"saved in {to}")


def export(
    run: RunPath,
    out: Annotated[Path, typer.Argument(help="The folder to create, or the file of word vectors.", show_default=False)],
    to: Annotated[str, typer.Option(
        help="The format: hf, for Hugging Face's from_pretrained; word2vec, a text file; pretrained, a small run.")] = "hf",
    score: Annotated[str | None, typer.Option(
        help="With --to pretrained: score it on this split, such as test; its card and `regard models` have the scores.",
        show_default=False)] = None,
) -> None:  # fmt: skip
    """Convert a run for other libraries; or make a small run folder of it, to be shared.

    --to pretrained writes float16 weights and leaves out checkpoints and the paths of this machine.  A folder in
    regard/pretrained/ ships with the package.

    regard export runs/shakespeare-gpt --to hf out/

    regard export runs/wikitext-word2vec --to word2vec vectors.txt

    regard export runs/en-it --to pretrained regard/pretrained/en-it --score test
    """
    from regard.interop import hf, pretrained, word2vec
    from regard.shipped import find_run

    small = partial(pretrained.export_pretrained, split=score or "")
    formats: dict[str, Callable[[Path, Path], Sequence[str] | None]]
    formats = {"hf": hf.export_run, "word2vec": word2vec.export_vectors, "pretrained": small}
    if to not in formats:
        raise ValueError(f"no format {to!r}; there is {', '.join(formats)}")
    if score and to != "pretrained":
        raise ValueError(f"--score {score} is for --to pretrained; to score a run use regard score {run} --on {score}")
    for line in formats[to](find_run(run), out) or ():
        note(f"note: {line}")
    write(f"saved in {out}")
