"""Tokenizers of unknown origin: no pattern may take endless time, no file may be endless."""

import json
import time

import pytest

from regard.data.text.patterns import require_safe_patterns
from regard.data.text.tokenizer import Tokenizer, train_tokenizer

PUBLISHED = [  # of our own tokenizers, GPT-2, GPT-4, o200k, Llama, DeepSeek, BLOOM
    r"▁?\p{P}|▁?[^▁\p{P}]+|▁", r"\s+", " {2,}", "``|''", r"\p{N}{1,3}(?=(?:\d{3})*\b)", r"[^(\s|[.,!?…。，、।۔،])]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{M}]*[\p{Ll}\p{Lm}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}",
]  # fmt: skip
BOMBS = [r"(a+)+$", r"(a|aa)+$", r"(a*)*b", r"(?=(a+)+$)x", r"(a{0,900}){0,900}b", r"(x+x+)+y", r"a*a*a*a*b", r"(a)\1+",
         r"((a+))*", r"(?:a|b|ab)*c", r"a{99999}", r"(a?){50}b", "a" * 5000]  # fmt: skip


def with_pattern(pattern, part="pre_tokenizer"):
    inner = {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}]}
    return {part: inner | {"invert": False}}


@pytest.mark.parametrize("pattern", PUBLISHED)
def test_patterns_of_published_tokenizers_are_accepted(pattern):
    require_safe_patterns(with_pattern(pattern))


@pytest.mark.parametrize("part", ["pre_tokenizer", "normalizer", "decoder"])
@pytest.mark.parametrize("pattern", BOMBS)
def test_a_pattern_that_may_take_exponential_time_is_refused_at_once(pattern, part, tmp_path):
    file = tmp_path / "tokenizer.json"
    train_tokenizer(["the cat"], "bytes", 280).save(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | with_pattern(pattern, part)))
    start = time.perf_counter()
    with pytest.raises(ValueError, match=rf"cannot read the tokenizer .*its {part} has the pattern .* endless time") as error:
        Tokenizer.load(file)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500
    assert time.perf_counter() - start < 10  # endless time is hours


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, "{}", "", "\x00", '{"version": "1.0"}'])
def test_a_deep_or_damaged_tokenizer_is_one_line(content, tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text(content)
    with pytest.raises(ValueError, match="cannot read the tokenizer") as error:
        Tokenizer.load(file)
    assert "\n" not in str(error.value)


def test_a_huge_file_is_refused_by_its_size(tmp_path):
    file = tmp_path / "tokenizer.json"
    with open(file, "wb") as handle:
        handle.truncate(1 << 40)  # takes no disk
    with pytest.raises(ValueError, match=r"it has 1,099,511,627,776 bytes, more than"):
        Tokenizer.load(file)
