"""The steps of a search in words: what the decoder read, what it found likely, and for beam search the tree of outputs."""

import dataclasses
import json
from dataclasses import dataclass

import torch
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from regard.data.terminal import printable
from regard.data.text.batches import pad
from regard.data.text.tokenizer import Tokenizer
from regard.decode import search
from regard.decode.fast import decoder
from regard.decode.logits_processors import logits_processor
from regard.decode.search import Hypothesis
from regard.decode.trace import SearchTrace
from regard.tasks.language_model import TextGenerator
from regard.tasks.translation import Translator

__all__ = ["DecodingTrace", "TracedBeam", "TracedBranch", "TracedStep", "TracedWord", "to_table", "to_tree", "trace_decoding"]

GENERATED = 20  # tokens of a language model, unless asked for others
STYLE = {"kept": "green", "finished": "bold cyan", "dropped": "dim"}


@dataclass(frozen=True)
class TracedWord:
    """A token that may come next, and its probability."""

    token: str
    probability: float


@dataclass(frozen=True)
class TracedBeam:
    """What the decoder read for a beam: the start token or the prompt, and the output so far; and what may come next."""

    inputs: list[str]
    top: list[TracedWord]


@dataclass(frozen=True)
class TracedBranch:
    """A beam extended by a token: `fate` is kept, finished or dropped, `beam` its place in the next step if it is kept."""

    parent: int
    token: str
    probability: float
    score: float  # sum of log-probabilities; of a finished one divided by length ** length_penalty
    fate: str
    beam: int | None


@dataclass(frozen=True)
class TracedStep:
    """One time step, counted from 1."""

    number: int
    beams: list[TracedBeam]
    branches: list[TracedBranch]


@dataclass(frozen=True)
class DecodingTrace:
    """How the answer to one text was found."""

    source: list[str]
    beam_size: int
    length_penalty: float
    steps: list[TracedStep]
    answer: list[str]
    text: str
    score: float

    def to_json(self) -> str:
        """The trace as JSON."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


@torch.inference_mode()
def trace_decoding(predictor: Translator | TextGenerator, text: str, *, beam: int | None = None, top: int = 5,
                   tokens: int | None = None) -> DecodingTrace:  # fmt: skip
    """Translate a sentence, or continue a prompt, and keep each step with its `top` most likely tokens.

    `beam` is the run's unless given; a prompt is continued by greedy search unless it is, for at most `tokens` tokens (by default
    the run's `decode.max_length`, or 20).
    """
    if not isinstance(predictor, Translator | TextGenerator):
        raise ValueError(f"a {type(predictor).__name__} is not traced; use a run that translates or generates text")
    if top < 1 or (beam is not None and beam < 1) or (tokens is not None and tokens < 1):
        raise ValueError(f"top {top}, beam {beam}, tokens {tokens}; use 1 or more")
    decode, tokenizer, device = predictor.run.decode, predictor.tokenizer, next(predictor.model.parameters()).device
    width = beam or (decode.beam_size if isinstance(predictor, Translator) else 1)
    if isinstance(predictor, Translator):
        answers = predictor.answer_tokenizer
        [ids] = predictor.encode([text])
        if not ids:
            raise ValueError("there is no text; give a sentence with a word in it")
        predictor.require_short(ids, 1)
        source = pad([ids], tokenizer.special).to(device)
        start, limit = torch.tensor([[answers.special.bos]], device=device), predictor.max_answer(len(ids), tokens)
        ids = [*ids, tokenizer.special.eos]
    else:
        answers = tokenizer
        ids, limit = predictor.encode_prompt(text, tokens)
        if tokens is None and not decode.max_length:
            limit = min(limit, GENERATED)
        source = start = torch.tensor([ids], device=device)
    recorder, limits, eos = SearchTrace(top), torch.tensor([limit], device=device), answers.special.eos
    processor = logits_processor(decode, eos)
    if width == 1:
        [best] = search.greedy(decoder(predictor.model), source, limits, bos=start, eos=eos,
                               penalty=decode.length_penalty, processor=processor, recorder=recorder)  # fmt: skip
    else:
        [[best, *_]] = search.beam(decoder(predictor.model), source, limits, bos=start, eos=eos, width=width,
                                   penalty=decode.length_penalty, processor=processor, recorder=recorder)  # fmt: skip
    if isinstance(predictor, Translator):
        answer = predictor.decode_ids(answers, best.tokens)
    else:
        answer = predictor.decode_answer(ids, best.tokens)
    return _in_words(recorder, tokenizer.display(ids), answers, best, answer, width, decode.length_penalty)


def _in_words(recorder: SearchTrace, source: list[str], tokenizer: Tokenizer, best: Hypothesis, text: str, width: int,
              penalty: float) -> DecodingTrace:  # fmt: skip
    def words(ids: list[int]) -> list[str]:
        return [_readable(token) for token in tokenizer.display(ids)]

    steps = []
    for step in recorder.sentences[0]:
        beams = [
            TracedBeam(words(beam.inputs), [
                TracedWord(token, likely.probability)
                for token, likely in zip(words([likely.token for likely in beam.top]), beam.top, strict=True)
            ])
            for beam in step.beams
        ]  # fmt: skip
        tokens = words([branch.token for branch in step.branches])
        branches = [
            TracedBranch(branch.parent, token, branch.probability,
                         branch.score / step.number**penalty if branch.fate == "finished" else branch.score,
                         branch.fate, branch.beam)
            for token, branch in zip(tokens, step.branches, strict=True)
        ]  # fmt: skip
        steps.append(TracedStep(step.number, beams, branches))
    assert best.score is not None
    return DecodingTrace([*map(_readable, source)], width, penalty, steps, words(best.tokens), text, best.score)


def to_table(trace: DecodingTrace) -> Table:
    """A row for each time step, and for each beam of it: its input and the most likely tokens with their probabilities."""
    table = Table("time step", "decoder input", "most likely next", box=None, pad_edge=False)
    for step in trace.steps:
        for n, beam in enumerate(step.beams):
            likely = "  ".join(f"{word.token} {word.probability:.1%}" for word in beam.top)
            table.add_row(str(step.number) if n == 0 else "", Text(" ".join(beam.inputs)), Text(likely))
    return table


def to_tree(trace: DecodingTrace) -> Tree:
    """The outputs of a beam search: each token with its probability and the score of the output that it ends.

    Kept branches go on, finished ones are complete outputs, dropped ones (✗) were worse than the kept.
    """
    root = Tree(Text(" ".join(trace.steps[0].beams[0].inputs)))
    nodes = {0: root}
    for step in trace.steps:
        following = {}
        for branch in step.branches:
            sign = {"kept": "", "finished": " ✓ finished", "dropped": " ✗"}[branch.fate]
            label = Text(f"{branch.token}  {branch.probability:.1%}  {branch.score:.2f}{sign}", style=STYLE[branch.fate])
            node = nodes[branch.parent].add(label)
            if branch.beam is not None:
                following[branch.beam] = node
        nodes = following
    return root


def _readable(token: str) -> str:
    """A token with escapes for control characters, which a terminal would obey."""
    return printable(token, keep="")
