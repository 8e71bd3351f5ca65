"""The verb trace: how a translation is found, step by step."""

from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import options
from regard.cli.io import write_json_text
from regard.cli.options import Device, Json, RunPath

if TYPE_CHECKING:
    from regard.tasks.language_model import TextGenerator
    from regard.tasks.translation import Translator

__all__ = ["trace"]


def trace(
    run: RunPath,
    text: Annotated[str, typer.Argument(help="A sentence to translate, or a prompt to continue.", show_default=False)],
    beam: options.Beam = None,
    top: Annotated[int, typer.Option(help="Most likely tokens shown at each step.")] = 5,
    tokens: options.AnswerTokens = None, device: Device = "auto", json_: Json = False,
) -> None:  # fmt: skip
    """Show each step of decoding: time step, decoder input and most likely tokens; with a beam also the tree of outputs.

    In the tree each token has its probability and the sum of log-probabilities up to it; ✗ marks candidates that were dropped,
    ✓ finished outputs with their final score.

    regard trace runs/multi30k "A man is riding a bike." --beam 3 --top 3
    """
    from rich.console import Console

    from regard.data.terminal import printable
    from regard.tasks.load import load
    from regard.view.trace import to_table, to_tree, trace_decoding

    predictor: Translator | TextGenerator = load(run, device)  # type: ignore[assignment]
    found = trace_decoding(predictor, text, beam=beam, top=top, tokens=tokens)
    if json_:
        write_json_text(found.to_json())
        return
    console = Console(highlight=False)
    console.print(printable(f"source  {' '.join(found.source)}", keep=""), markup=False, soft_wrap=True)
    console.print(to_table(found))
    if found.beam_size > 1:
        width = max(console.width, 4 * len(found.steps) + 40)  # four columns for each token: a narrow terminal wraps lines
        Console(highlight=False, width=width).print(to_tree(found), soft_wrap=True)
    answer = printable(f"answer  {' '.join(found.answer)}  (score {found.score:.4f})", keep="")
    console.print(answer, markup=False, soft_wrap=True)
