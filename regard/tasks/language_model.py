"""Language modelling: one long text in, a decoder that predicts the next token; the run then generates text.

Shapes: B windows, T tokens, D width, S tokens of the prompt.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

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
from regard.decode.fast import decoder
from regard.decode.logits_processors import logits_processor
from regard.tasks.loss import linear_cross_entropy
from regard.tasks.metrics import Score, evaluate
from regard.tasks.origin import predictor_repr
from regard.tasks.task import Card, Progress, Report, ScoreOptions, Task, require_context

__all__ = ["TASK", "CausalModel", "TextGenerator", "next_token_loss", "perplexity", "plain_text", "validation_of"]

DEFAULT_TOKENS = 200  # to generate
SAMPLE_TOKENS = 60  # generated at every evaluation
PARTIAL = "\ufffd"  # what the first bytes of a character decode to
MAX_NATS = 50  # of a loss whose perplexity is still worth a number


class CausalModel(Protocol):
    """What this task asks of a model."""

    output: nn.Linear
    max_len: float  # context length

    def features(self, tokens: Tensor) -> Tensor:
        """What the output layer reads: (B, T) → (B, T, D)."""


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
        ids, tokens = self.encode_prompt(prompt, tokens)
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed {seed}; use 0 or more and less than 2 ** 63")
        if isinstance(stop, str):
            raise ValueError("stop wants a list of strings, not one; put it in brackets")
        if any(not string for string in stop):
            raise ValueError("an empty stop string would stop before the first token; leave it out")
        device = next(self.model.parameters()).device
        choose: Callable[[Tensor], Tensor] = search.argmax
        if temperature != 0:
            choose = search.sampler(torch.Generator(device).manual_seed(seed), temperature, top_k, top_p)
        source = torch.tensor([ids], device=device)  # (1, S)
        processor = logits_processor(self.run.decode, self.tokenizer.special.eos)
        generated = search.stream(decoder(self.model), source, choose, bos=source, limit=tokens, processor=processor)
        return _cut_at_stop(stop, self._decode(ids, generated))

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
        return ["", *self._decode(prompt, iter(tokens))][-1]

    def _decode(self, prompt: list[int], generated: Iterator[int]) -> Iterator[str]:
        """All of the text so far, after each token that completes a character.

        For a tokenizer that keeps newlines an end token ends the text; for others it ends a line.
        """
        eos, lines = self.tokenizer.special.eos, not self.tokenizer.keeps_newlines
        skip, ids, text = len(self.tokenizer.decode(prompt)), list(prompt), ""
        for token in generated:
            if token != eos:
                ids.append(token)
                whole = text + self.tokenizer.decode(ids)[skip:]
                if not whole.endswith(PARTIAL):
                    yield whole
            elif lines:
                text += self.tokenizer.decode(ids)[skip:] + "\n"
                skip, ids = 0, []
                yield text
            else:
                return


def _cut_at_stop(stop: Sequence[str], texts: Iterator[str]) -> Iterator[str]:
    """What each text adds to the one before, up to the first stop string; a possible prefix of one is withheld."""
    given, text = 0, ""
    for text in texts:
        ends = [(at + len(string), at) for string in stop if (at := text.find(string)) >= 0]
        if ends:  # the one completed first, however many characters came at once
            _, first = min(ends)
            if first > given:
                yield text[given:first]
            return
        sure = len(text) - max((_prefix_length(text, string) for string in stop), default=0)
        if sure > given:
            yield text[given:sure]
            given = sure
    if len(text) > given:
        yield text[given:]


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
