"""Arguments and options that verbs share."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["AnswerTokens", "Beam", "Changes", "Checkpoint", "Device", "Head", "Input", "Json", "Layer", "MaskedBatch",
           "NBest", "Out", "Penalty", "Picture", "Precision", "Questions", "Recipe", "RunFolder", "Sentences", "Sheet",
           "Split", "Stops", "Temperature", "Texts", "Together", "Tokens", "TopK", "TopP", "Vectors"]  # fmt: skip

# fmt: off
RunFolder = Annotated[str, typer.Argument(help="A run folder, such as runs/multi30k.", show_default=False)]
Recipe = Annotated[str, typer.Argument(help="A recipe by name (see `regard recipes`), or a TOML file.", show_default=False)]
Changes = Annotated[list[str] | None, typer.Argument(
    metavar="[KEY=VALUE]...", help="Any key on top: model.dim=256 train.steps=2000.", show_default=False)]
Sentences = Annotated[list[str] | None, typer.Argument(
    help="Sentences; none: standard input, a line each.", show_default=False)]
Questions = Annotated[list[str] | None, typer.Argument(
    help="Texts that begin with their task; none: standard input, a line each.", show_default=False)]
MaskedBatch = Annotated[list[str] | None, typer.Argument(
    help="Texts with [MASK] where a word is to be guessed; none: standard input, a line each.", show_default=False)]
Texts = Annotated[list[str] | None, typer.Argument(
    help="Texts, or picture files; none: standard input, a line each.", show_default=False)]
Checkpoint = Annotated[str, typer.Argument(
    help="A folder with a Hugging Face checkpoint; or a hub name, with the extra `hub`.", show_default=False)]
Input = Annotated[Path | None, typer.Option(
    "--input", help="A file to read, a text a line; plain or .gz.", show_default=False)]
Out = Annotated[Path | None, typer.Option(help="The run's folder.  [default: runs/NAME]", show_default=False)]
Picture = Annotated[Path | None, typer.Option(help="Draw to this .png, .svg, .pdf or .json file instead.", show_default=False)]
Split = Annotated[str, typer.Option(
    help="A split of the run's data (valid, test, test_2016_flickr), or a file of one's own, of pictures a folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Beam = Annotated[int | None, typer.Option(
    help="Beginnings kept at each step; 1 is greedy.  [default: as the run says]", show_default=False)]
Penalty = Annotated[float | None, typer.Option(
    help="Scores are divided by length to this power.  [default: as the run says]", show_default=False)]
NBest = Annotated[int, typer.Option(
    help="Print this many translations of each sentence: number, rank, score and text, with tabs between.")]
Tokens = Annotated[int | None, typer.Option(
    help="The most tokens to write.  [default: 200, or what there is room for]", show_default=False)]
AnswerTokens = Annotated[int | None, typer.Option("--tokens",
    help="The most tokens of an answer.  [default: twice those of the text, and 20]", show_default=False)]
Stops = Annotated[list[str] | None, typer.Option(
    help="End before this string; may be given several times.", show_default=False)]
Vectors = Annotated[Path | None, typer.Option(help="Write the vectors to this .npy file, a row each.", show_default=False)]
Sheet = Annotated[Path | None, typer.Option(help="Draw pictures on this sheet, a .png file.", show_default=False)]
Together = Annotated[int | None, typer.Option(help="Sentences at once.  [default: as the run says]", show_default=False)]
TopK = Annotated[int, typer.Option(help="Draw from this many likeliest tokens; 0 is all.")]
TopP = Annotated[float, typer.Option(help="Draw from the fewest tokens of this total probability.")]
Temperature = Annotated[float | None, typer.Option(
    help="Draw samples, the wilder the higher, instead of searching.", show_default=False)]
Device = Annotated[str, typer.Option(help="cuda, mps or cpu; auto takes the first there is.")]
Precision = Annotated[str, typer.Option(help="float32, or int8: weights rounded to 8 bits, faster on a CPU.")]
Layer = Annotated[int | None, typer.Option(
    help="A layer, from 1.  [default: the mean of all, or the last over a picture]", show_default=False)]
Head = Annotated[int | None, typer.Option(
    help="A head, from 1.  [default: the mean of all, or each over a picture]", show_default=False)]
# fmt: on
