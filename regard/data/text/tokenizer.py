"""Text ↔ token ids, trained and run by `tokenizers`.

- `bpe`: subwords, ▁ for a space; one vocabulary for both languages; line ends are dropped;
- `bytes`: byte-level subwords, as GPT-2's; any text round-trips exactly, nothing is unknown;
- `wordpiece`: lower-cased subwords, ## inside a word, as BERT's;
- `characters`: every character is a token, including line ends;
- `words`: lower-cased whole words and punctuation, the most frequent; all others are unknown.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from regard.config import nearest
from regard.data.files import write_atomic
from regard.data.json_files import load_json
from regard.data.text.patterns import require_bounded_growth, require_safe_patterns
from regard.data.text.sentencepiece import ESCAPE, find_pieces, join_pieces

__all__ = ["BOS", "EOS", "KINDS", "PAD", "SENTINELS", "UNK", "SpecialTokens", "Tokenizer", "read_tokenizer_json",
           "to_ids", "train_bpe", "train_tokenizer"]  # fmt: skip

PAD, BOS, EOS, UNK = 0, 1, 2, 3  # ids in tokenizers trained here
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
BERTS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
SENTINELS = tuple(f"<extra_id_{index}>" for index in range(100))  # T5's: each replaces a span
KINDS = ("bpe", "bytes", "wordpiece", "characters", "words")

# A word keeps the space before it (▁bike) and punctuation is separate, so "bike." and "bike" share a token and
# decoding restores the text: no detokenizer needed.
PIECES_PATTERN = r"▁?\p{P}|▁?[^▁\p{P}]+|▁"
PIECES = Regex(PIECES_PATTERN)


E = TypeVar("E")  # what a line is encoded to


class SpecialTokens(NamedTuple):
    """The ids of the tokens that are not text."""

    pad: int
    bos: int  # start of a text
    eos: int  # end of a text
    unk: int  # not in the vocabulary
    mask: int | None
    sentinels: tuple[int, ...]  # each replaces a span


def train_tokenizer(lines: Iterable[str], kind: str, vocab: int, extra: Sequence[str] = ()) -> "Tokenizer":
    """Train a tokenizer of `vocab` tokens, more if there are more characters; `extra` are further special tokens."""
    train = {"bpe": train_bpe, "bytes": _train_bytes, "wordpiece": _train_wordpiece, "characters": _train_characters,
             "words": _train_words}  # fmt: skip
    if kind not in train:
        raise ValueError(f"no tokenizer {kind!r}{nearest(kind, KINDS)}; kinds are {', '.join(KINDS)}")
    return train[kind](lines, vocab, extra)


def train_bpe(lines: Iterable[str], vocab: int, extra: Sequence[str] = ()) -> "Tokenizer":
    """Train a byte-pair encoding: subwords, frequent words whole."""
    special = [*SPECIAL, *extra]
    inner = tokenizers.Tokenizer(models.BPE(unk_token=SPECIAL[UNK]))
    inner.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()])
    pieces = [pre_tokenizers.Metaspace(split=False), pre_tokenizers.Split(PIECES, "isolated")]
    # In training "<unk>" in the text is split after its "<": no merge may build the name of a special token.
    names = "|".join(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in special)
    inner.pre_tokenizer = pre_tokenizers.Sequence([*pieces, pre_tokenizers.Split(Regex(names), "merged_with_previous")])
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, show_progress=False)
    inner.train_from_iterator(lines, trainer)
    inner.pre_tokenizer = pre_tokenizers.Sequence(pieces)
    inner.decoder = decoders.Metaspace()
    return Tokenizer(inner)


def _train_bytes(lines: Iterable[str], vocab: int, extra: Sequence[str]) -> "Tokenizer":
    inner = tokenizers.Tokenizer(models.BPE())
    # It splits "<unk>" into "<", "unk", ">": no merge builds the name of a special token.
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    # A word includes the space before it, and so does the token that masks it.
    special = [*SPECIAL, *(tokenizers.AddedToken(token, lstrip=True, special=True) for token in extra)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(lines, trainer)
    return Tokenizer(inner)


def _train_wordpiece(lines: Iterable[str], vocab: int, extra: Sequence[str]) -> "Tokenizer":
    """Train BERT's word pieces by byte-pair encoding: the library's own trainer is not deterministic."""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.normalizer = normalizers.BertNormalizer(lowercase=True)
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    learner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), metaspace])
    size = 2 * vocab + 1000  # some pieces appear twice, as ▁b and b
    learner.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=size, show_progress=False))
    ids = learner.get_vocab()
    learned = sorted(ids, key=ids.__getitem__)
    letters = [piece for piece in learned if len(piece) == 1 and piece != "▁"]
    pieces = [piece[1:] if piece[0] == "▁" else f"##{piece}" for piece in learned if piece != "▁"]
    special = dict.fromkeys([*BERTS, *extra])
    needed = dict.fromkeys([*special, *letters, *(f"##{c}" for c in letters)])
    chosen = list(dict.fromkeys([*needed, *pieces]))[: max(vocab, len(needed))]
    inner = tokenizers.Tokenizer(models.WordPiece({t: n for n, t in enumerate(chosen)}, unk_token=BERTS[UNK]))
    inner.normalizer, inner.pre_tokenizer = learner.normalizer, pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.post_processor = processors.TemplateProcessing(  # for other libraries; here batches add these tokens
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", BOS), ("[SEP]", EOS)]
    )
    inner.add_special_tokens([*special])
    return Tokenizer(inner)


def _train_characters(lines: Iterable[str], vocab: int, extra: Sequence[str]) -> "Tokenizer":
    special, found = [*SPECIAL, *extra], {"\n"}
    for line in lines:
        found.update(line)
    ids = {token: index for index, token in enumerate([*special, *sorted(found)])}
    inner = tokenizers.Tokenizer(models.BPE(ids, [], unk_token=SPECIAL[UNK]))  # a BPE without merges
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(special)
    return Tokenizer(inner)


def _train_words(lines: Iterable[str], vocab: int, extra: Sequence[str]) -> "Tokenizer":
    inner = tokenizers.Tokenizer(models.WordLevel(unk_token=SPECIAL[UNK]))
    inner.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    inner.pre_tokenizer = pre_tokenizers.Whitespace()  # splits "<unk>": no word is the name of a special token
    special = [*SPECIAL, *extra]
    inner.train_from_iterator(lines, trainers.WordLevelTrainer(vocab_size=vocab, special_tokens=special, show_progress=False))
    return Tokenizer(inner)


class Tokenizer:
    """A trained tokenizer, ours or one of Hugging Face's; text never encodes to special tokens."""

    def __init__(self, inner: tokenizers.Tokenizer):
        inner.no_truncation()  # batches handle lengths
        inner.no_padding()
        inner.encode_special_tokens = True  # "</s>" typed by a user is text, not the end of the sentence
        self._inner, self._pieces = inner, find_pieces(inner)

    @classmethod
    def load(cls, file: Path) -> "Tokenizer":
        """Read a `tokenizer.json`."""
        try:
            found = cls(read_tokenizer_json(file))
        except FileNotFoundError:
            raise ValueError(f"cannot read the tokenizer {file}: no such file") from None
        except ValueError as error:
            raise ValueError(f"cannot read the tokenizer {file}: {error}") from None
        try:
            _ = found.special  # fail now, not during training
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
        return found

    def save(self, file: Path) -> None:
        """Write a `tokenizer.json` that Hugging Face's libraries read too."""
        write_atomic(file, self._inner.to_str(pretty=True).encode())

    @property
    def vocab(self) -> int:
        """Size of the vocabulary."""
        return self._pieces.vocab if self._pieces else self._inner.get_vocab_size()

    @property
    def of_sentencepiece(self) -> bool:
        """Whether it treats a text as SentencePiece does, with the ids of another vocabulary: that of an imported Marian."""
        return self._pieces is not None

    @property
    def largest_id(self) -> int:
        """The largest token id."""
        return self._pieces.vocab - 1 if self._pieces else max(self._inner.get_vocab().values(), default=0)

    @property
    def digest(self) -> str:
        """A hash: equal only for equal tokenizers."""
        return hashlib.sha256(self._inner.to_str().encode()).hexdigest()

    def bpe_merges(self) -> tuple[dict[str, int], list[tuple[str, str]]]:
        """The vocabulary and the merges, best first, of a tokenizer of kind `bpe`; others are refused."""
        state = json.loads(self._inner.to_str())
        steps = (state["pre_tokenizer"] or {}).get("pretokenizers", [])
        if state["model"]["type"] != "BPE" or not any(step.get("pattern") == {"Regex": PIECES_PATTERN} for step in steps):
            raise ValueError("data.bpe_dropout needs a tokenizer of kind bpe that regard has trained, which that of this run "
                             "is not; leave it out")  # fmt: skip
        return state["model"]["vocab"], [(a, b) for a, b in state["model"]["merges"]]

    @cached_property
    def special(self) -> SpecialTokens:
        """The special tokens by name, first among those flagged as special; another token substitutes a missing one."""
        added = self._inner.get_added_tokens_decoder().items()
        flagged = {token.content: index for index, token in added if token.special}

        def find(*names: str) -> int | None:
            ids = (*map(flagged.get, names), *map(self._inner.token_to_id, names))
            return next((index for index in ids if index is not None), None)

        eos = find("</s>", "[SEP]", "<|endoftext|>")
        if eos is None:
            raise ValueError("the tokenizer has no end token; wanted </s>, [SEP] or <|endoftext|> in its vocabulary")
        pad, unk, bos = find("<pad>", "[PAD]"), find("<unk>", "[UNK]"), find("<s>", "[CLS]", "<|endoftext|>")
        pad = eos if pad is None else pad  # GPT-2 never pads
        bos = pad if bos is None else bos  # T5 and Marian start a target with it
        sentinels: list[int] = []
        while (index := find(f"<extra_id_{len(sentinels)}>")) is not None:
            sentinels.append(index)
        return SpecialTokens(pad, bos, eos, eos if unk is None else unk, find("[MASK]", "<mask>"), tuple(sentinels))

    @cached_property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of all special tokens."""
        return tuple(sorted(n for n, token in self._inner.get_added_tokens_decoder().items() if token.special))

    @cached_property
    def _special_set(self) -> frozenset[int]:
        return frozenset(self.special_ids)

    @cached_property
    def keeps_newlines(self) -> bool:
        """Whether a line end round-trips, instead of becoming a space."""
        return "\n" in self.decode(self.encode(["\n"])[0])  # a tokenizer may put a space before each text

    @cached_property
    def prompt_start(self) -> list[int]:
        """The special tokens that its template puts before a text, if it puts none after: a language model reads them first."""
        text, whole = (self._inner.encode("a", add_special_tokens=special).ids for special in (False, True))
        added = len(whole) - len(text)
        return whole[:added] if text and whole[added:] == text else []

    def encode(self, lines: Sequence[str], parse_special: bool = False) -> list[list[int]]:
        """The token ids of each line, without start or end; `parse_special` reads names of special tokens as those tokens."""
        if self._pieces:
            return _encode_lines(self._pieces.encode, lines)
        inner = self._parsing_special if parse_special else self._inner
        encoded = _encode_lines(partial(inner.encode_batch_fast, add_special_tokens=False), lines)
        if self._spelled and not parse_special:
            return [[self.special.unk if index in self._spelled else index for index in line.ids] for line in encoded]
        return [line.ids for line in encoded]

    def split_language(self, text: str) -> tuple[list[int], str]:
        """The code of the language to translate to, as the token of >>fra<<, and the text after it; without a code no token."""
        return self._pieces.split_code(text) if self._pieces else ([], text)

    def offsets(self, lines: Sequence[str], parse_special: bool = False) -> list[list[tuple[int, int]]]:
        """Where the tokens of `encode` are in each line: the first character of each, and the one after its last."""
        if self._pieces:
            return _encode_lines(self._pieces.offsets, lines)
        inner = self._parsing_special if parse_special else self._inner
        return [line.offsets for line in _encode_lines(partial(inner.encode_batch, add_special_tokens=False), lines)]

    def normalize(self, text: str) -> str:
        """The text as it is before it is split into tokens, such as in lower case."""
        return self._inner.normalizer.normalize_str(text) if self._inner.normalizer else text

    @cached_property
    def _parsing_special(self) -> tokenizers.Tokenizer:
        """A second tokenizer: toggling the setting of the first would not be thread-safe."""
        inner = tokenizers.Tokenizer.from_str(self._inner.to_str())
        inner.encode_special_tokens = False
        return inner

    @cached_property
    def _spelled(self) -> frozenset[int]:
        """Special tokens that text can still encode to: T5's vocabulary has "</s>" as a piece of text too."""
        names = self.ids_to_tokens(self.special_ids)
        written = self._inner.encode_batch_fast([*names, *(f"a{name}a" for name in names)], add_special_tokens=False)
        return frozenset(index for line in written for index in line.ids) & {*self.special_ids} - {self.special.unk}

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        if self._pieces:
            known = (self._inner.id_to_token(index) for index in ids if index not in self._special_set)
            return join_pieces([token.removeprefix(ESCAPE) for token in known if token])
        return self._inner.decode(list(ids), skip_special_tokens=True)

    def ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """The tokens as spelled in the vocabulary, ▁ for a space."""
        unknown = self._inner.id_to_token(self.special.unk) or SPECIAL[UNK]
        tokens = [self._inner.id_to_token(index) or unknown for index in ids]
        return [token.removeprefix(ESCAPE) for token in tokens] if self._pieces else tokens

    def display(self, ids: Sequence[int]) -> list[str]:
        """The tokens for figures, the same for every kind: ▁ before the start of a word, ⏎ for a line end."""
        pairs = zip(ids, self.ids_to_tokens(ids), strict=True)
        tokens = [("" if index in self.special_ids else "▁") + token for index, token in pairs]
        if self._spelling == "wordpiece":
            return [token.replace("▁##", "", 1) for token in tokens]
        if self._spelling == "bytes":
            return [token.replace("▁Ġ", "▁▁", 1).replace("Ċ", "⏎").replace("▁", "", 1) for token in tokens]
        if self._spelling == "metaspace":
            return self.ids_to_tokens(ids)
        return [token.replace("\n", "⏎").replace("▁ ", "▁␣") for token in tokens]

    def surface(self, ids: Sequence[int]) -> list[bytes]:
        """The UTF-8 that each token adds to a text, with the space before a word; a token of bytes may be a part of a character.

        Special tokens add nothing.
        """
        spell = {"wordpiece": _spell_wordpiece, "bytes": _spell_bytes, "metaspace": _spell_metaspace,
                 "words": lambda token: f" {token}".encode(), "characters": str.encode}[self._spelling]  # fmt: skip
        pairs = zip(ids, self.ids_to_tokens(ids), strict=True)
        return [b"" if index in self.special_ids else spell(token) for index, token in pairs]

    @cached_property
    def _spelling(self) -> Literal["wordpiece", "bytes", "metaspace", "words", "characters"]:
        """How the vocabulary spells spaces."""
        known = self._inner.get_vocab()
        if self._pieces:
            return "metaspace"
        if any(token.startswith("##") for token in known):
            return "wordpiece"
        if "Ġ" in known:
            return "bytes"
        if any(token.startswith("▁") for token in known):
            return "metaspace"
        return "words" if self._inner.decoder is None else "characters"  # without a decoder words are joined by spaces

    def tokens_to_ids(self, tokens: Sequence[str]) -> list[int]:
        """The ids of tokens as spelled in the vocabulary."""
        find = self._pieces.find_id if self._pieces else self._inner.token_to_id
        return [self.special.unk if (n := find(token)) is None else n for token in tokens]


def read_tokenizer_json(file: Path, vocab: int | None = None) -> tokenizers.Tokenizer:
    """Read a tokenizer.json of unknown origin; what is wrong with it is a `ValueError` that does not name it.

    One with more than `vocab` tokens, those of its model, is refused before it is built, which takes long.
    """
    content = load_json(file)
    require_safe_patterns(content)
    require_bounded_growth(content)
    if isinstance(content, dict) and isinstance(model := content.get("model"), dict):
        if model.get("dropout"):
            raise ValueError(f"its model has dropout = {model['dropout']!r}, which splits a text at random; set it to null")
        lists = (model.get("vocab"), content.get("added_tokens"))  # a special token is in both
        size = max(len(tokens) if isinstance(tokens, dict | list) else 0 for tokens in lists)
        if vocab is not None and size > vocab:
            raise ValueError(f"it has {size:,} tokens, its model has {vocab:,}; they are not from the same checkpoint: download "
                             f"both again")  # fmt: skip
    try:
        return tokenizers.Tokenizer.from_file(os.fspath(file))
    except BaseException as error:  # the library raises a bare Exception, or panics, which is no Exception
        if not _is_failure(error):
            raise
        raise ValueError(str(error).split("\n", 1)[0]) from None


def _is_failure(error: BaseException) -> bool:
    """Whether an error comes from the library: not from the user, who may interrupt."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _encode_lines(encode: Callable[[Sequence[str]], list[E]], lines: Sequence[str]) -> list[E]:
    try:
        return encode(list(lines))
    except TypeError:
        for number, line in enumerate(lines, 1):
            if not isinstance(line, str):
                raise ValueError(f"text {number} is {line!r:.40}, of type {type(line).__name__}; wanted a string") from None
        bad = next((line for line in lines if isinstance(line, str) and re.search("[\ud800-\udfff]", line)), None)
        if bad is None:
            raise
        raise ValueError(f"{bad!r} is not UTF-8 text (a lone surrogate); convert it") from None
    except BaseException as error:
        if not _is_failure(error):
            raise
        reason = str(error).split("\n", 1)[0]
        raise ValueError(f"the tokenizer fails on a text ({reason}); use another tokenizer") from None


def _spell_wordpiece(token: str) -> bytes:
    return (token[2:] if token.startswith("##") else f" {token}").encode()


def _spell_metaspace(token: str) -> bytes:
    if re.fullmatch(r"<0x[0-9A-F]{2}>", token):  # a byte of a character that is not in the vocabulary
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()


def _spell_bytes(token: str) -> bytes:
    return b"".join(bytes([_byte_letters()[c]]) if c in _byte_letters() else c.encode() for c in token)


@cache
def _byte_letters() -> dict[str, int]:
    """The letter that byte-level vocabularies write for each byte, by letter: printable bytes as themselves, others from Ā on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def to_ids(texts: Sequence[str] | Sequence[list[int]], encode: Callable[[Sequence[str]], list[list[int]]]) -> list[list[int]]:
    """Encode texts, unless they are lists of token ids already."""
    ids = [text for text in texts if isinstance(text, list)]
    if ids and len(ids) < len(texts):
        raise ValueError(f"{len(ids)} of {len(texts)} texts are lists of token ids, the others strings; give one kind")
    return ids or encode(texts)  # type: ignore[arg-type]
