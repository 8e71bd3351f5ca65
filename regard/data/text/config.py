"""Which text a run reads, and how it becomes tokens."""

from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from regard.config import STRICT, require_fraction, require_max, require_min
from regard.data.sources import require_one_source

__all__ = ["TextData", "WordData", "parse_mix"]


@dataclass(frozen=True, config=STRICT)
class TextData:
    """Keys of [data] for the tasks that read text."""

    INHERITED: ClassVar = ("tokenizer", "vocab")  # keys that a fine-tuned run takes from the run it starts from

    source: str = ""  # named data sets or a toy (multi30k, sst2, reverse), separated by commas; empty: own files
    pair: str = ""  # languages, source first: en-de; of a named data set, or of own files that name theirs; empty: the first
    text: Literal["raw", "tok"] = "raw"  # tok: multi30k lower-cased and tokenised, as published scores use it
    train: str = ""  # own files (TSV, CSV, JSONL, TMX, .xlsx, .parquet, text), folders, patterns; or aligned: "a.en,a.de"
    valid: str = ""  # the same, for validation; empty: some of own training data is held out
    columns: str = "source,target"  # names in the header row, numbers from 1, or keys of JSON (translation.en)
    strict: bool = False  # refuse a file for one bad line, instead of leaving the line out
    prefixed: bool = False  # put a T5 task prefix before each sentence: "translate English to German: "
    tokenizer: Literal["bpe", "bytes", "wordpiece", "characters", "words"] = "bpe"
    vocab: int = 8000  # tokens to learn; more if there are more different characters
    bpe_dropout: float = 0.0  # of pairs in training: probability to drop a merge, so that words are split in many ways
    max_len: int = 256  # tokens; longer pairs are left out, plain text is cut into windows of this length
    pairs: int = 20_000  # training pairs that a toy generates
    mix: str = ""  # runs, files or named sets mixed in, each with its share of the training examples: "runs/enfr:0.5"

    def __post_init__(self) -> None:
        require_min(1, vocab=self.vocab, pairs=self.pairs)
        require_min(2, max_len=self.max_len)
        require_max(65_535, max_len=self.max_len)
        require_fraction(bpe_dropout=self.bpe_dropout)
        if self.bpe_dropout and self.tokenizer != "bpe":
            raise ValueError(f"bpe_dropout={self.bpe_dropout:g} passes over merges, which tokenizer={self.tokenizer} does not "
                             f"make; use tokenizer=bpe, or leave bpe_dropout out")  # fmt: skip
        require_one_source(self.source, self.train, self.valid)
        parse_mix(self.mix)


def parse_mix(mix: str) -> list[tuple[str, float]]:
    """What to mix in, and its share of the training examples: "runs/enfr:0.5,general.tsv:0.2"."""
    parts = []
    for part in filter(None, map(str.strip, mix.split(","))):
        name, _, text = part.rpartition(":")
        try:
            share = float(text)
        except ValueError:
            share = -1.0
        if not name or not 0 <= share < 1:
            raise ValueError(f"mix has {part!r}; wanted a run, a file or a named set, a colon and its share of the training "
                             f"examples, 0 or more and less than 1, such as runs/enfr:0.5")  # fmt: skip
        parts.append((name, share))
    if (total := sum(share for _, share in parts)) >= 1:
        raise ValueError(f"mix has shares of {total:g} in all; leave some for the new data: less than 1")
    if len({name for name, _ in parts}) < len(parts):
        raise ValueError(f"mix={mix} names something twice; give it once, with the sum of its shares")
    return parts


@dataclass(frozen=True, config=STRICT)
class WordData:
    """Keys of [data] for word vectors, which read one plain text as lower-cased words."""

    INHERITED: ClassVar = ("vocab",)

    source: str = ""  # a named data set of plain text, such as wikitext-2; empty: own files
    train: str = ""  # own text, plain or .gz
    valid: str = ""  # the same, for validation
    vocab: int = 30_000  # most frequent words, and 4 special tokens; other words are left out of the text

    def __post_init__(self) -> None:
        require_min(6, vocab=self.vocab)  # two words at least
        require_one_source(self.source, self.train, self.valid)

    def to_text_data(self) -> TextData:
        """The same text as the other tasks describe it."""
        return TextData(source=self.source, train=self.train, valid=self.valid, tokenizer="words", vocab=self.vocab)
