"""Charsmaps and marked tokenizers of unknown origin; the parity with SentencePiece is in tests/interop."""

import struct

import pytest
import tokenizers
from tokenizers import models

from regard.data.text.sentencepiece import Charsmap, Normalization, join_pieces, require_charsmap
from regard.data.text.tokenizer import Tokenizer

PLAIN = Normalization(b"", True, True, True)


def marked(model: tokenizers.models.Model, normalization: Normalization = PLAIN) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(model)
    inner.normalizer = normalization.to_library()
    return inner


def small(normalization: Normalization = PLAIN) -> Tokenizer:
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("▁", -1.0), ("a", -2.0), ("▁a", -1.5), ("b", -3.0)]
    inner = marked(models.Unigram(pieces, 0, False), normalization)
    inner.add_special_tokens(["</s>", "<unk>"])
    return Tokenizer(inner)


@pytest.mark.parametrize("dummy", [True, False])
@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("escape", [True, False])
def test_a_normalization_is_restored_from_the_parts_of_the_library(dummy, extra, escape):
    how = Normalization(b"", dummy, extra, escape)
    assert Normalization.from_library(how.to_library()) == how


def test_spaces_are_treated_as_the_normalization_says():
    text = "  a  b "
    assert small().ids_to_tokens(small().encode([text])[0]) == ["▁a", "▁", "b"]
    kept = small(Normalization(b"", False, False, True))
    assert kept.ids_to_tokens(kept.encode([text])[0]) == ["▁", "▁a", "▁", "▁", "b", "▁"]


@pytest.mark.parametrize("model", [models.WordLevel({"a": 0}, unk_token="a"), models.BPE({"a": 0}, []),
                                   models.Unigram([("a", 0.0)], None, False)], ids=["words", "bpe", "unigram"])  # fmt: skip
def test_a_marked_tokenizer_with_another_model_is_refused(model, tmp_path):
    marked(model).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(
        ValueError, match=r"marked as SentencePiece's, but its model is a .*; import the checkpoint again"
    ) as error:
        Tokenizer.load(tmp_path / "tokenizer.json")
    assert "\n" not in str(error.value)


BLOBS = {"empty": b"", "short": b"\1", "odd": struct.pack("<I", 3) + b"abc\0", "cut": struct.pack("<I", 400) + b"\0" * 8,
         "large": b"\0" * (9 << 20), "no end": struct.pack("<I", 4) + b"\0" * 4 + b"abc"}  # fmt: skip


@pytest.mark.parametrize("blob", BLOBS.values(), ids=BLOBS)
def test_a_damaged_charsmap_is_refused(blob):
    with pytest.raises(ValueError, match=r"its precompiled charsmap of [\d,]+ bytes is damaged or too large; download it again"):
        require_charsmap(blob)


def test_a_charsmap_of_random_bytes_changes_texts_but_never_fails():
    for seed in range(50):
        units = [(seed * 2654435761 + n * 40503 * (seed + 7)) % 2**32 for n in range(200)]
        rules = Charsmap(struct.pack("<I200I", 800, *units) + b"abc\0def\0")
        text = "aé東😀\ud800"
        for at in range(len(text)):
            found, end = rules.find(text, at)
            assert isinstance(found, str)
            assert at < end <= len(text)


def test_bytes_become_characters():
    assert join_pieces(["▁a", "<0xE6>", "<0x9D>", "<0xB1>", "<0xE6>", "b▁", "<0xFF>", "<0x41>"]) == "a東\ufffdb \ufffdA"


def test_a_text_that_is_no_text_is_named():
    with pytest.raises(ValueError, match=r"text 2 is 7, of type int; wanted a string"):
        small().encode(["a", 7])
    with pytest.raises(ValueError, match=r"is not UTF-8 text \(a lone surrogate\); convert it"):
        small().encode(["a\ud800"])
