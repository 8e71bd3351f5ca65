"""The verb trace: how an answer is found, step by step."""

from typing import Annotated

import typer

from regard.cli import options
from regard.cli.default_run import choose_run
from regard.cli.io import write_json_text
from regard.cli.options import Device, Json, OptionalRun

__all__ = ["trace"]


def trace(
    run: OptionalRun = None,
    what: Annotated[str | None, typer.Argument(
        help="A sentence to translate, a prompt to continue, an image or a sound file.", show_default=False)] = None,
    beam: options.Beam = None,
    top: Annotated[int, typer.Option(help="Most likely tokens shown at each step.")] = 5,
    tokens: options.AnswerTokens = None, temperature: options.Temperature = None, top_k: options.TopK = 0,
    top_p: options.TopP = 1.0, seed: options.Seed = 0, device: Device = "auto", json_: Json = False,
) -> None:  # fmt: skip
    """Show each step of decoding: time step, decoder input and most likely tokens; with a beam also the tree of outputs.

    In the tree each token has its probability and the sum of log-probabilities up to it; ✗ marks candidates that were dropped,
    ✓ finished outputs with their final score.

    regard trace runs/multi30k "A man is riding a bike." --beam 3 --top 3
    """
    from rich.console import Console

    from regard.data.terminal import printable
    from regard.tasks.load import load
    from regard.tasks.translation import Sampling
    from regard.view.trace import to_table, to_tree, trace_decoding

    run, inputs = choose_run("trace", run, None if what is None else [what])
    if not inputs or len(inputs) > 1:
        count = len(inputs or ())
        raise ValueError(f'trace shows one input, and there are {count}; give one, in quotes: regard trace {run} "…"')
    [what] = inputs
    if temperature is None and (top_k or top_p != 1):
        raise ValueError("--top-k and --top-p restrict sampling; give a --temperature too, such as 1.0")
    sampling = None if temperature is None else Sampling(temperature, top_k, top_p, seed)
    found = trace_decoding(load(run, device), what, beam=beam, top=top, tokens=tokens, sampling=sampling)
    if json_:
        write_json_text(found.to_json())
        return
    console = Console(highlight=False)
    source = " ".join(found.source) or what
    console.print(printable(f"source  {source}", keep=""), markup=False, soft_wrap=True)
    console.print(to_table(found))
    if found.beam_size > 1:
        width = max(console.width, 4 * len(found.steps) + 40)  # four columns for each token: a narrow terminal wraps lines
        Console(highlight=False, width=width).print(to_tree(found), soft_wrap=True)
    answer = printable(f"answer  {' '.join(found.answer)}  (score {found.score:.4f})", keep="")
    console.print(answer, markup=False, soft_wrap=True)
