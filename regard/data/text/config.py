"""Which text a run reads, and how it becomes tokens."""

from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from regard.config import STRICT, require_max, require_min
from regard.data.sources import require_one_source

__all__ = ["TextData"]


@dataclass(frozen=True, config=STRICT)
class TextData:
    """Keys of [data] for the tasks that read text."""

    INHERITED: ClassVar = ("tokenizer", "vocab")  # keys that a fine-tuned run takes from the run it starts from

    source: str = ""  # named data sets or a toy (multi30k, sst2, reverse), separated by commas; empty: own files
    pair: str = ""  # languages of a named data set, source first; empty: its first pair
    text: Literal["raw", "tok"] = "raw"  # tok: multi30k lower-cased and tokenised, as published scores use it
    train: str = ""  # own file (TSV, JSONL, text; plain or .gz), or two line-aligned files: "train.en,train.de"
    valid: str = ""  # the same, for validation
    columns: str = "source,target"  # keys of a JSONL line; a TSV line has source and target (text and class) first
    prefixed: bool = False  # put a T5 task prefix before each sentence: "translate English to German: "
    tokenizer: Literal["bpe", "bytes", "wordpiece", "characters", "words"] = "bpe"
    vocab: int = 8000  # tokens to learn; more if there are more different characters
    max_len: int = 256  # tokens; longer pairs are left out, plain text is cut into windows of this length
    pairs: int = 20_000  # training pairs that a toy generates

    def __post_init__(self) -> None:
        require_min(1, vocab=self.vocab, pairs=self.pairs)
        require_min(2, max_len=self.max_len)
        require_max(65_535, max_len=self.max_len)
        require_one_source(self.source, self.train, self.valid)
