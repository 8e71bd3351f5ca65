"""Language modelling: one long text in, a decoder that predicts the next token; the run then generates text.

Shapes: B windows, T tokens, D width, S tokens of the prompt.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from regard.config import Run
from regard.data.position import BatchStream, DataPosition
from regard.data.text.config import TextData
from regard.data.text.dataset import TextDataset, encode_text_split, prepare_text
from regard.data.text.mixture import MixedStore
from regard.data.text.store import PairStore, TextStore
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.windows import WindowBatch, all_windows, windows
from regard.decode import search
from regard.decode.fast import Prompts, decoder
from regard.decode.logits_processors import LogitsProcessor, logits_processor
from regard.decode.search import Choose
from regard.tasks.loss import linear_cross_entropy
from regard.tasks.metrics import Score, evaluate
from regard.tasks.observer import TextObserver
from regard.tasks.origin import predictor_repr
from regard.tasks.task import Card, Progress, Report, ScoreOptions, Task, require_context

__all__ = ["TASK", "CausalModel", "Continuation", "Prompt", "TextGenerator", "next_token_loss", "perplexity", "plain_text",
           "validation_of"]  # fmt: skip

DEFAULT_TOKENS = 200  # to generate
SAMPLE_TOKENS = 60  # generated at every evaluation
NO_END = -1  # no token ends a search: a text is ended by what it says
PARTIAL = "\ufffd"  # what the first bytes of a character decode to
MAX_NATS = 50  # of a loss whose perplexity is still worth a number


class CausalModel(Protocol):
    """What this task asks of a model."""

    output: nn.Linear
    max_len: float  # context length

    def features(self, tokens: Tensor) -> Tensor:
        """What the output layer reads: (B, T) → (B, T, D)."""


@dataclass(frozen=True)
class Prompt:
    """A text to continue, and how; see `TextGenerator.stream`."""

    text: str
    tokens: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: Sequence[str] = ()


@dataclass(frozen=True)
class Continuation:
    """The text that follows a prompt."""

    text: str
    tokens: int  # generated
    prompt_tokens: int
    reason: Literal["stop", "length"]  # why it ended: at the end of a text or before a stop string, or at its limit


@dataclass(frozen=True, repr=False)
class TextGenerator:
    """A trained language model with its tokenizer."""

    VERBS: ClassVar = ("generate",)  # of the command line
    INPUT: ClassVar = "text"
    OUTPUT: ClassVar = "text"

    __repr__ = predictor_repr

    model: nn.Module
    tokenizer: Tokenizer
    run: Run

    @property
    def context(self) -> int:
        """The context length, in tokens."""
        return int(self.model.max_len)  # type: ignore[arg-type]

    def generate(self, prompt: str, **options: Any) -> str:
        """The text that follows a prompt; options as for `stream`."""
        return "".join(self.stream(prompt, **options))

    def stream(
        self, prompt: str, *, tokens: int | None = None, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0,
        seed: int = 0, stop: Sequence[str] = (),
    ) -> Iterator[str]:  # fmt: skip
        """The text that follows a prompt, piece by piece; the pieces joined are what `generate` returns.

        At most `tokens` tokens (by default the run's `decode.max_length`, or 200, or what the context leaves), sampled as
        `search.sampler` describes; a temperature of 0 is greedy.  It ends before the first of the strings in `stop`, or where the
        model ends a text.
        """
        begun = self._begin(Prompt(prompt, tokens, temperature, top_k, top_p, seed, stop))
        processor = logits_processor(self.run.decode, self.tokenizer.special.eos)
        generated = search.stream(decoder(self.model), begun.source, begun.choose, bos=begun.source, limit=begun.limit,
                                  processor=processor)  # fmt: skip
        return begun.written.pieces(generated)

    def generate_batch(self, prompts: Sequence[Prompt],
                       observers: Sequence[TextObserver | None] | None = None) -> list[Continuation]:  # fmt: skip
        """The texts that follow several prompts, decoded together; each is the one that `stream` gives alone.

        A step for 16 prompts takes about twice the time of a step for one.  `observers`, one for each prompt, follow its text
        while it grows; that of a prompt that is no longer wanted is unfinished.
        """
        if observers is not None and len(observers) != len(prompts):
            raise ValueError(f"{len(observers)} observers for {len(prompts)} prompts; give one for each, or None")
        processor = logits_processor(self.run.decode, self.tokenizer.special.eos)
        begun = [self._begin(prompt) for prompt in prompts]
        for text, observer in zip(begun, observers or (), strict=False):
            text.observer = observer
        for rows in self._in_batches(begun, same_length=processor is not None):
            self._continue([begun[row] for row in rows], processor)
        return [text.continuation for text in begun]

    def _begin(self, prompt: Prompt) -> "_Generation":
        """Check a prompt and its options."""
        ids, limit = self.encode_prompt(prompt.text, prompt.tokens)
        if not 0 <= prompt.seed < 2**63:
            raise ValueError(f"seed {prompt.seed}; use 0 or more and less than 2 ** 63")
        if isinstance(prompt.stop, str):
            raise ValueError("stop wants a list of strings, not one; put it in brackets")
        if any(not string for string in prompt.stop):
            raise ValueError("an empty stop string would stop before the first token; leave it out")
        device = next(self.model.parameters()).device
        choose: Choose = search.argmax
        if prompt.temperature != 0:
            generator = torch.Generator(device).manual_seed(prompt.seed)
            choose = search.sampler(generator, prompt.temperature, prompt.top_k, prompt.top_p)
        return _Generation(torch.tensor([ids], device=device), limit, choose, _WrittenText(self.tokenizer, ids, prompt.stop))

    def _in_batches(self, begun: Sequence["_Generation"], same_length: bool) -> Iterator[list[int]]:
        """Rows decoded together, with prompts of similar length, or of the same: processors compare whole histories."""
        size = self.run.decode.batch_size
        batch = list[int]()
        for row in sorted(range(len(begun)), key=lambda row: begun[row].source.shape[1]):
            apart = same_length and batch and begun[batch[0]].source.shape[1] != begun[row].source.shape[1]
            if apart or len(batch) == size:
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch

    def _continue(self, begun: Sequence["_Generation"], processor: LogitsProcessor | None) -> None:
        begun = [text for text in begun if text.wanted]
        if not begun:
            return
        sources = [text.source for text in begun]
        same = len({source.shape[1] for source in sources}) == 1
        source = torch.cat(sources) if same else Prompts(sources)
        bos = source if isinstance(source, Tensor) else torch.cat([ids[:, -1] for ids in sources])
        limits = torch.tensor([text.limit for text in begun], device=source.device)
        search.sample_each(decoder(self.model), source, limits, [text.choose for text in begun], bos=bos, eos=NO_END,
                           processor=processor, observers=begun)  # fmt: skip

    def encode_prompt(self, prompt: str, tokens: int | None = None) -> tuple[list[int], int]:
        """What the model reads of a prompt, its start token included, and how many tokens may follow."""
        if tokens is not None and tokens < 1:
            raise ValueError(f"{tokens} tokens; ask for 1 or more")
        [ids] = self.tokenizer.encode([prompt])
        ids = self.tokenizer.prompt_start + ids or self._start_ids()
        room = self.context - len(ids) + 1  # the last token generated is not read again
        if room < 1:
            raise ValueError(f"the prompt has {len(ids):,} tokens; this model's context length is {self.context:,}: shorten it")
        if tokens is not None and tokens > room:
            raise ValueError(f"a prompt of {len(ids):,} tokens and {tokens:,} more; this model's context length is "
                             f"{self.context:,}: ask for at most {room:,}")  # fmt: skip
        return ids, min(self.run.decode.max_length or DEFAULT_TOKENS, room) if tokens is None else tokens

    def _start_ids(self) -> list[int]:
        """What an empty prompt stands for: the end of a text, or of a line."""
        special = self.tokenizer.special
        if self.tokenizer.keeps_newlines and special.bos != special.eos:  # else one token separates texts, as in GPT-2
            return self.tokenizer.encode(["\n"])[0]
        return [special.eos]

    def decode_answer(self, prompt: list[int], tokens: Sequence[int]) -> str:
        """The text of tokens that follow a prompt."""
        written = _WrittenText(self.tokenizer, prompt, ())
        return "".join(written.pieces(tokens))


class _WrittenText:
    """The text of tokens that follow a prompt, one token after the other, up to the first stop string.

    For a tokenizer that keeps newlines an end token ends the text; for others it ends a line.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: list[int], stop: Sequence[str]):
        self.tokenizer, self.stop = tokenizer, stop
        self.prompt_tokens, self.tokens = len(prompt), 0
        self.ids, self.skip = list(prompt), len(tokenizer.decode(prompt))  # of the line, or the prompt and what follows
        self.lines = ""  # complete ones
        self.text = ""  # all complete characters
        self.sure = 0  # characters that are certainly before a stop string
        self.ended = False

    def pieces(self, tokens: Iterable[int]) -> Iterator[str]:
        """What each of further tokens adds to the text that is sure."""
        for token in tokens:
            before = self.sure
            self.add(token)
            if self.sure > before:
                yield self.text[before : self.sure]
            if self.ended:
                return
        if self.withheld:
            yield self.withheld

    def add(self, token: int) -> None:
        """One more token."""
        self.tokens += 1
        if token != self.tokenizer.special.eos:
            self.ids.append(token)
            text = self.lines + self.tokenizer.decode(self.ids)[self.skip :]
            if not text.endswith(PARTIAL):
                self.extend_to(text)
        elif self.tokenizer.keeps_newlines:
            self.ended, self.sure = True, len(self.text)
        else:
            self.lines += self.tokenizer.decode(self.ids)[self.skip :] + "\n"
            self.ids, self.skip = [], 0
            self.extend_to(self.lines)

    def extend_to(self, text: str) -> None:
        """All characters so far."""
        ends = [(at + len(string), at) for string in self.stop if (at := text.find(string)) >= 0]
        if ends:  # the one completed first, however many characters came at once
            _, first = min(ends)
            self.text, self.ended = text[:first], True
        else:
            self.text = text
        held = 0 if ends else max((_prefix_length(text, string) for string in self.stop), default=0)
        self.sure = max(self.sure, len(self.text) - held)

    @property
    def withheld(self) -> str:
        """Characters at the end that may start a stop string."""
        return self.text[self.sure :]


@dataclass(eq=False)
class _Generation:
    """A prompt that is continued in a batch; the `search.Observer` of its row."""

    source: Tensor  # (1, S)
    limit: int  # tokens
    choose: Choose
    written: _WrittenText
    observer: TextObserver | None = field(default=None)

    @property
    def wanted(self) -> bool:
        return not self.written.ended and (self.observer is None or self.observer.wanted)

    def partial(self, tokens: list[int], done: bool) -> None:
        before = self.written.sure
        self.written.add(tokens[-1])
        if self.written.sure > before and self.observer is not None and self.observer.partial is not None:
            self.observer.partial(self.written.text[: self.written.sure])

    @property
    def continuation(self) -> Continuation:
        written = self.written
        return Continuation(written.text, written.tokens, written.prompt_tokens, "stop" if written.ended else "length")


def _prefix_length(text: str, stop: str) -> int:
    """How many characters at the end of a text are a prefix of a stop string."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


def next_token_loss(model: CausalModel, batch: WindowBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Each token of a window is predicted from those before it."""
    features = model.features(batch.text[:, :-1]).flatten(0, 1)  # (B · T, D)
    return linear_cross_entropy(features, model.output.weight, model.output.bias, batch.text[:, 1:].flatten(), label_smoothing)


def plain_text(store: PairStore | TextStore | MixedStore) -> TextStore:
    """The store of a task that learns from plain text."""
    assert isinstance(store, TextStore)
    return store


def _prepare(run: Run, tokenizer: Path, report: Report, progress: Progress) -> TextDataset:
    return prepare_text(run.data, tokenizer, report, progress, extra_tokens=(), task=TASK.name)


def _batches(run: Run, dataset: TextDataset, position: DataPosition) -> BatchStream[WindowBatch]:
    return windows(plain_text(dataset.train).tokens, run.data.max_len, run.train.batch_tokens, run.train.seed, position)


def _validation(run: Run, dataset: TextDataset) -> Iterator[WindowBatch]:
    return all_windows(plain_text(dataset.valid).tokens, run.data.max_len, run.train.batch_tokens)


def _samples(generator: TextGenerator, dataset: TextDataset) -> list[str]:
    prompt = dataset.text_sample
    tokens = min(SAMPLE_TOKENS, generator.context - len(generator.tokenizer.encode([prompt])[0]))
    if tokens < 1:
        return []
    return [f"{prompt} → {generator.generate(prompt, tokens=tokens, temperature=0.8)}".replace("\n", " ⏎ ")]


def validation_of(tokenizer: Tokenizer, run: Run, split: str, report: Report) -> TextDataset:
    """A data set whose validation text is one split, or a file."""
    text = encode_text_split(run.data, split, tokenizer, report)
    return TextDataset(tokenizer, text, text, [])


def perplexity(nats: float) -> Score:
    """The exponential of a mean loss."""
    return Score("perplexity", math.exp(min(nats, MAX_NATS)), f"of a token; {nats:.4f} nats")


def _score(generator: TextGenerator, split: str, options: ScoreOptions) -> list[Score]:
    run, tokenizer = generator.run, generator.tokenizer
    dataset = validation_of(tokenizer, run, split, options.report)
    loss = evaluate(generator.model, _validation(run, dataset), next_token_loss)
    scores = [perplexity(loss)]
    ordinary = (
        token for n, token in enumerate(tokenizer.ids_to_tokens(range(tokenizer.vocab))) if n not in tokenizer.special_ids
    )
    if all(len(token) == 1 for token in ordinary):
        scores.append(Score("bits per character", loss / math.log(2), "of all but the first"))
    return scores


def _check(run: Run, model: CausalModel) -> None:
    require_context(run, model.max_len, extra=0)
    length, context = run.data.max_len, model.max_len
    if not run.init and length < context:
        raise ValueError(f"data.max_len={length} would leave positions {length + 1} to {context} of the model untrained; "
                         f"set model.max_len={length} too, or data.max_len={context}")  # fmt: skip


TASK: Task[CausalModel, TextDataset, WindowBatch, TextGenerator] = Task(
    name="language_model",
    kinds=("decoder",),
    data=TextData,
    card=Card("continues a text", "text-generation", "generate", 'generate("…")'),
    prepare=_prepare,
    batches=_batches,
    validation=_validation,
    loss=next_token_loss,
    predictor=lambda model, run, tokenizer, labels: TextGenerator(model, tokenizer, run),
    score=_score,
    samples=_samples,
    check=_check,
)
