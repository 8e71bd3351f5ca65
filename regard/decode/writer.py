"""A beginning in, the rest of the text out: a trained run that writes.

Shapes: S tokens of the prompt.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.config import Run
from regard.data.text.tokenizer import Tokenizer
from regard.decode import search
from regard.decode.fast import decoder

__all__ = ["TextGenerator"]

USUAL = 200  # tokens to write
HALF = "\ufffd"  # what the first bytes of a character decode to


@dataclass(frozen=True)
class TextGenerator:
    """A language model with its tokenizer and the run it comes from."""

    VERBS: ClassVar = ("generate",)  # of the command line, that take it

    model: Any
    tokenizer: Tokenizer
    run: Run

    def write(self, prompt: str, **how: Any) -> str:
        """The text that follows a prompt; options as for `stream`."""
        return "".join(self.stream(prompt, **how))

    def stream(
        self,
        prompt: str,
        *,
        tokens: int | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: Sequence[str] = (),
    ) -> Iterator[str]:
        """The text that follows a prompt, piece by piece, as it is written; the pieces together are what `write` returns.

        At most `tokens` tokens (if not given, 200 or what there is room for), drawn as `search.drawing` says; a temperature of
        0 takes the likeliest each time.  It ends before the first of the strings in `stop`, or where the model ends a text.
        """
        ids, tokens = self._read(prompt, tokens)
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed {seed}; use 0 or more and less than 2 ** 63")
        if isinstance(stop, str):
            raise ValueError("stop wants a list of strings, not one; put it in brackets")
        if any(not one for one in stop):
            raise ValueError("an empty string to stop at would stop before the first word; leave it out")
        device = next(self.model.parameters()).device
        choose: Callable[[Tensor], Tensor] = search.argmax
        if temperature != 0:
            choose = search.sampler(torch.Generator(device).manual_seed(seed), temperature, top_k, top_p)
        source = torch.tensor([ids], device=device)  # (1, S)
        said = search.stream(decoder(self.model), source, choose, bos=source[:, -1], limit=tokens)
        return _until(stop, self._spell(ids, said))

    def _read(self, prompt: str, tokens: int | None) -> tuple[list[int], int]:
        """The tokens of a prompt, and how many may follow, if there is room for both."""
        if tokens is not None and tokens < 1:
            raise ValueError(f"{tokens} tokens; ask for 1 or more")
        [ids] = self.tokenizer.encode([prompt])
        ids = ids or self._start_ids()
        room = self.model.max_len - len(ids) + 1  # the last token said is not read again
        if room < 1:
            raise ValueError(
                f"the prompt has {len(ids):,} tokens; this model has learnt places for {self.model.max_len:,}: shorten it"
            )
        if tokens is not None and tokens > room:
            raise ValueError(
                f"a prompt of {len(ids):,} tokens and {tokens:,} more; this model has learnt places for {self.model.max_len:,}: "
                f"ask for at most {room:,}"
            )
        return ids, min(USUAL, room) if tokens is None else tokens

    def _start_ids(self) -> list[int]:
        """What a text comes after: the end of another, or of a line."""
        special = self.tokenizer.special
        if (
            self.tokenizer.keeps_newlines and special.bos != special.eos
        ):  # else one mark stands between texts, as in GPT-2
            return self.tokenizer.encode(["\n"])[0]
        return [special.eos]

    def _spell(self, prompt: list[int], said: Iterator[int]) -> Iterator[str]:
        """All of the text so far, after each token that ends a character.

        A tokenizer that knows line ends is told when a text is over; for others an end is the end of a line.
        """
        eos, lines = self.tokenizer.special.eos, not self.tokenizer.keeps_newlines
        before, ids, text = len(self.tokenizer.decode(prompt)), list(prompt), ""
        for token in said:
            if token != eos:
                ids.append(token)
                whole = text + self.tokenizer.decode(ids)[before:]
                if not whole.endswith(HALF):
                    yield whole
            elif lines:
                text += self.tokenizer.decode(ids)[before:] + "\n"
                before, ids = 0, []
                yield text
            else:
                return


def _until(stop: Sequence[str], texts: Iterator[str]) -> Iterator[str]:
    """What each text adds to the one before, up to the first of the stop strings; what may begin one is held back."""
    given, text = 0, ""
    for text in texts:
        ends = [(at + len(one), at) for one in stop if (at := text.find(one)) >= 0]
        if ends:  # the one that was complete first, however many characters came at once
            _, first = min(ends)
            if first > given:
                yield text[given:first]
            return
        sure = len(text) - max((_begun(text, one) for one in stop), default=0)
        if sure > given:
            yield text[given:sure]
            given = sure
    if len(text) > given:
        yield text[given:]


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of a text are the beginning of a stop string."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
