"""Arguments and options that several verbs share."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["AnswerTokens", "BatchSize", "Beam", "Changes", "Device", "DocumentFile", "DrawingFile", "EnsembleRuns",
           "GlossaryFile", "GridFile",
           "HFCheckpointPath", "Head", "Images", "Input", "Json", "Layer", "LengthPenalty", "MapFile", "MaskedTexts",
           "NBest", "OptionalRun", "Out", "Precision", "PrefixedTexts", "Recipe", "RunPath", "Seed", "Sentences", "SoundFiles",
           "Split", "SplitTexts", "StopStrings", "Strict", "Temperature", "TextInput", "TextsOrImages",
           "Tokens", "TopK", "TopP", "VectorFile", "Word", "Words"]  # fmt: skip

# fmt: off
RunPath = Annotated[str, typer.Argument(
    help="A run folder, such as runs/multi30k, or a model that ships with regard (see `regard models`).", show_default=False)]
OptionalRun = Annotated[str | None, typer.Argument(metavar="[RUN]", show_default=False,
    help="A run folder, such as runs/multi30k, or a model that ships with regard (see `regard models`); without one, the shipped "
         "model for this.")]
Recipe = Annotated[str, typer.Argument(
    help="A recipe by name (see `regard recipes`), a TOML file, or with --resume a run folder.", show_default=False)]
Changes = Annotated[list[str] | None, typer.Argument(
    metavar="[KEY=VALUE]...", help="Config keys to override: model.dim=256 train.steps=2000.", show_default=False)]
Sentences = Annotated[list[str] | None, typer.Argument(
    help="Texts of one or more sentences; by default, the lines of standard input.", show_default=False)]
PrefixedTexts = Annotated[list[str] | None, typer.Argument(
    help="Texts with their task prefix; by default, the lines of standard input.", show_default=False)]
MaskedTexts = Annotated[list[str] | None, typer.Argument(
    help="Texts with [MASK] for each word to predict; by default, the lines of standard input.", show_default=False)]
TextsOrImages = Annotated[list[str] | None, typer.Argument(
    help="Texts, or image files and folders; by default, the lines of standard input.", show_default=False)]
SoundFiles = Annotated[list[str] | None, typer.Argument(
    help="Sound files (wav, flac, ogg, mp3) and folders; by default, the lines of standard input.", show_default=False)]
Images = Annotated[list[str] | None, typer.Argument(
    help="Image files and folders; by default, the lines of standard input.", show_default=False)]
Words = Annotated[list[str] | None, typer.Argument(
    help="Words; by default, the lines of standard input.", show_default=False)]
HFCheckpointPath = Annotated[str, typer.Argument(
    help="A folder with a Hugging Face checkpoint; or a hub name, with the extra `hub`.", show_default=False)]
Input = Annotated[Path | None, typer.Option(
    "--input", help="Read the lines of this file, plain or .gz.", show_default=False)]
TextInput = Annotated[Path | None, typer.Option("--input", show_default=False,
    help="Read the lines of this file, plain or .gz; or translate this document: .srt, .html, .docx, with --out also .txt.")]
Out = Annotated[Path | None, typer.Option(help="The run folder.  [default: runs/NAME]", show_default=False)]
DrawingFile = Annotated[Path | None, typer.Option(
    help="Write a .png, .svg, .pdf or .json file instead.", show_default=False)]
MapFile = Annotated[Path | None, typer.Option("--out",
    help="Write an .html, .png, .svg, .pdf or .json file instead; .html is a page with all layers and heads.",
    show_default=False)]
Split = Annotated[str, typer.Option(
    help="A split of the run's data (valid, test, test_2016_flickr), or your own file; for images, a folder.")]
SplitTexts = Annotated[bool | None, typer.Option(
    "--split/--no-split", show_default=False,
    help="Split texts into sentences.  [default: split, unless the model was trained with task prefixes]")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with code 2 if any input had to be skipped.")]
DocumentFile = Annotated[Path | None, typer.Option(
    "--out", help="Write the translated document of --input to this file.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Beam = Annotated[int | None, typer.Option(help="Beam width; 1 is greedy.  [default: the run's]", show_default=False)]
LengthPenalty = Annotated[float | None, typer.Option(
    help="Divide scores by length to this power.  [default: the run's]", show_default=False)]
NBest = Annotated[int, typer.Option(
    help="Translations per sentence, printed as sentence number, rank, score and text, separated by tabs.")]
Tokens = Annotated[int | None, typer.Option(
    show_default=False, help="Maximum number of tokens to generate.  "
                             "[default: the run's decode.max_length, else 200, or the rest of the context]")]
AnswerTokens = Annotated[int | None, typer.Option("--tokens",
    show_default=False, help="Maximum number of tokens of an answer.  "
                             "[default: the run's decode.max_length, else 20 + twice those of the text]")]
EnsembleRuns = Annotated[list[str] | None, typer.Option("--ensemble", show_default=False,
    help="Decode with this run too, which has the same tokenizer; may be given several times.")]
GlossaryFile = Annotated[Path | None, typer.Option("--glossary",
    help="Terms and the translations to use for them, on each line a term, a tab and its translation.", show_default=False)]
StopStrings = Annotated[list[str] | None, typer.Option(
    help="Stop before this string; can be repeated.", show_default=False)]
VectorFile = Annotated[Path | None, typer.Option(help="Write the vectors to this .npy file, one per row.", show_default=False)]
Word = Annotated[str | None, typer.Option(
    help="Embed this word in its context, each time it occurs in a text, in upper or lower case.", show_default=False)]
GridFile = Annotated[Path | None, typer.Option(help="Write generated images as a grid to this .png file.", show_default=False)]
BatchSize = Annotated[int | None, typer.Option(help="Sentences per batch.  [default: the run's]", show_default=False)]
TopK = Annotated[int, typer.Option(help="Sample from this many most likely tokens; 0 is all.")]
TopP = Annotated[float, typer.Option(help="Sample from the fewest tokens with this total probability.")]
Temperature = Annotated[float | None, typer.Option(
    help="Sample at this temperature instead of searching.", show_default=False)]
Seed = Annotated[int, typer.Option(help="Random seed of the samples.")]
Device = Annotated[str, typer.Option(help="cuda, mps or cpu; auto is the first available.")]
Precision = Annotated[str, typer.Option(help="float32, or int8: weights rounded to 8 bits, faster on a CPU.")]
Layer = Annotated[int | None, typer.Option(
    help="A layer, from 1.  [default: mean of all; the last for an image, a caption or speech]", show_default=False)]
Head = Annotated[int | None, typer.Option(
    help="A head, from 1.  [default: mean of all; each for an image]", show_default=False)]
# fmt: on
