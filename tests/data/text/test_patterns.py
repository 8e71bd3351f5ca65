"""Tokenizers of unknown origin: no pattern may take endless time, no file may be endless."""

import json
import time

import pytest

from regard.data.text.patterns import require_bounded_growth, require_safe_patterns
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


def replace_with(content: str, pattern: str = "a", kind: str = "String") -> dict[str, object]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


GROWING = {
    "replacements in a row": [replace_with("a" * 50)] * 3,
    "empty matches": [replace_with("a" * 50, "x*", "Regex")] * 2,
    "one long replacement": [replace_with("a" * 101)],
    "one long prefix": [{"type": "Prepend", "prepend": "a" * 101}],
    "many prefixes": [{"type": "Prepend", "prepend": "a" * 50}] * 21,
}


@pytest.mark.parametrize("parts", GROWING.values(), ids=GROWING)
@pytest.mark.parametrize("part", ["normalizer", "decoder"])
def test_a_tokenizer_that_makes_a_text_huge_is_refused(part, parts, tmp_path):
    file = tmp_path / "tokenizer.json"
    train_tokenizer(["the cat"], "bytes", 280).save(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | {part: {"type": "Sequence", f"{part}s": parts}}))
    with pytest.raises(ValueError, match=rf"its {part} (has a (Replace|Prepend) with|may make a text over 1,000 times)"):
        Tokenizer.load(file)


def test_replacements_of_published_tokenizers_are_accepted():
    spaces = [{"type": "Prepend", "prepend": "▁"}, replace_with("▁", " "), replace_with(" ", " {2,}", "Regex"),
              replace_with('"', "``"), replace_with("...", "…")]  # fmt: skip
    require_bounded_growth({"normalizer": {"type": "Sequence", "normalizers": spaces}})


def test_a_tokenizer_that_splits_at_random_or_writes_long_affixes_is_refused(tmp_path):
    file = tmp_path / "tokenizer.json"
    train_tokenizer(["the cat"], "bytes", 280).save(file)
    stored = json.loads(file.read_text())
    changes = [({"dropout": 0.1}, r"its model has dropout = 0\.1, which splits a text at random; set it to null$"),
               ({"continuing_subword_prefix": "#" * 101}, "its model has a continuing_subword_prefix of 101 char")]  # fmt: skip
    for keys, message in changes:
        file.write_text(json.dumps({**stored, "model": {**stored["model"], **keys}}))
        with pytest.raises(ValueError, match=message):
            Tokenizer.load(file)
    file.write_text(json.dumps({**stored, "model": {**stored["model"], "dropout": 0.0}}))
    assert Tokenizer.load(file).encode(["the cat"])
