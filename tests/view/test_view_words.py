"""Words of an axis cover its tokens and the characters of its text, for every kind of tokenizer and script."""

import re

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from regard.data.text.tokenizer import KINDS, Tokenizer, train_tokenizer
from regard.view.record import Axis, Word
from regard.view.words import piece_labels, starts_word, text_axis

TRAINING = ["The quick brown fox doesn't jump, it runs; a café on the rue de l'Université.", "नमस्ते दुनिया, कैसे हो", "我爱自然语言",
            "unbelievable unbeliever believes", "tea ☕ and 👩‍👧 😀"]  # fmt: skip
TEXTS = {
    "latin": "The quick fox doesn't jump; naïve café, 3.14 (l'Université)!",
    "devanagari": "नमस्ते दुनिया, कैसे हो आप?",
    "chinese": "我爱自然语言处理。你好，世界！",
    "emoji": "tea ☕️ and 👩‍👩‍👧‍👦 or 👍🏽 🇮🇹🇩🇪 😀😀 ok",
    "arabic": "مرحبا بالعالم، كيف حالك؟",
    "mixed": "  GPT-2 说 hello…  \tend ",
    "control": "a\u202eb \u0007 c\u200bd <script>alert(1)</script>",
}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request) -> Tokenizer:
    return train_tokenizer(TRAINING, request.param, 400)


@pytest.fixture(scope="module")
def byte_tokenizer() -> Tokenizer:
    return train_tokenizer(TRAINING, "bytes", 262)  # nearly every piece is a byte


def words_cover(axis) -> None:
    ends = [0, *(word.end for word in axis.words)]
    assert [word.start for word in axis.words] == ends[:-1]
    assert ends[-1] == axis.size == len(axis.labels)
    assert all(word.start < word.end for word in axis.words)


def visible(text: str) -> str:
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize("script", TEXTS)
def test_words_cover_the_tokens_and_every_visible_character_of_the_text(tokenizer, script):
    text = TEXTS[script]
    [ids] = tokenizer.encode([text])
    special = tokenizer.special
    axis = text_axis(tokenizer, [special.bos, *ids, special.eos], text, 1 + len(ids))
    words_cover(axis)
    assert visible("".join(word.text for word in axis.words[1:-1])) == visible(text)
    assert not any(re.search(r"[Ġ▁]|^##", label) for label in axis.labels)
    assert {0, len(ids) + 1} <= {*axis.special}


@pytest.mark.parametrize("script", TEXTS)
def test_words_of_an_answer_are_those_of_its_decoded_text(tokenizer, script):
    [ids] = tokenizer.encode([TEXTS[script]])
    axis = text_axis(tokenizer, [*ids, tokenizer.special.eos])
    words_cover(axis)
    ordinary = [word.text for word in axis.words if word.start not in axis.special]
    ordinary = [word for word in ordinary if word != "␣"]  # a space between two unknown words
    assert visible("".join(ordinary)) == visible(tokenizer.decode(ids))


@pytest.mark.parametrize("script", TEXTS)
def test_no_token_begins_inside_a_character_of_a_word_of_bytes(byte_tokenizer, script):
    text = TEXTS[script]
    [ids] = byte_tokenizer.encode([text])
    axis = text_axis(byte_tokenizer, ids)
    assert "\ufffd" not in "".join(word.text for word in axis.words)
    assert visible("".join(word.text for word in axis.words)) == visible(text)
    assert axis.words == text_axis(byte_tokenizer, ids, text, len(ids)).words


def test_byte_pieces_are_characters_and_their_labels_hexadecimal(byte_tokenizer):
    [ids] = byte_tokenizer.encode(["我é"])
    axis = text_axis(byte_tokenizer, ids)
    assert [word.text for word in axis.words] == ["我", "é"]
    assert [label for label in axis.labels if label.startswith("0x")] == [f"0x{byte:02X}" for byte in "我é".encode()]


def test_bytes_of_a_sentencepiece_vocabulary_are_characters_too():
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("▁", -2.0), ("▁tea", -1.0), *((f"<0x{byte:02X}>", -9.0) for byte in range(256))]
    inner = tokenizers.Tokenizer(models.Unigram(pieces, 0, byte_fallback=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.add_special_tokens(["<unk>", "</s>"])
    tokenizer = Tokenizer(inner)
    [ids] = tokenizer.encode(["tea 茶"])
    axis = text_axis(tokenizer, [*ids, tokenizer.special.eos])
    assert [word.text for word in axis.words] == ["tea", "茶", "</s>"]
    assert axis.labels == ["tea", "␣", *(f"0x{byte:02X}" for byte in "茶".encode()), "</s>"]


def test_subwords_are_whole_words():
    tokenizer = train_tokenizer(["aa bb"], "wordpiece", 20)
    [ids] = tokenizer.encode(["abba ab"])
    axis = text_axis(tokenizer, ids, "abba ab", len(ids))
    assert len(ids) > 2
    assert [word.text for word in axis.words] == ["abba", "ab"]


def test_an_unknown_word_of_a_text_is_shown_as_it_was_written():
    tokenizer = train_tokenizer(["the cat"], "words", 20)
    [ids] = tokenizer.encode(["the Zebra"])
    axis = text_axis(tokenizer, [*ids, tokenizer.special.eos], "the Zebra", 2)
    assert [word.text for word in axis.words] == ["the", "Zebra", "</s>"]
    assert (axis.labels[1], axis.special) == ("<unk>", [2])


def test_a_line_end_is_a_word():
    tokenizer = train_tokenizer(["ab \ncd"], "characters", 20)
    [ids] = tokenizer.encode(["ab \ncd"])
    assert [word.text for word in text_axis(tokenizer, ids).words] == ["ab", "⏎", "cd"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("don't stop", ["don't", "stop"]),
        ("bike.", ["bike", "."]),
        ("wait...", ["wait", "..."]),
        ("3.14, 2", ["3.14", ",", "2"]),
        ("well-known -x", ["well-known", "-", "x"]),
        ("नमस्ते", ["नमस्ते"]),
        ("我爱, ok", ["我", "爱", ",", "ok"]),
        ("👩‍👧👍🏽", ["👩‍👧", "👍🏽"]),
        ("🇮🇹🇩🇪", ["🇮🇹", "🇩🇪"]),
    ],
)
def test_where_words_start(text, words):
    starts = [n for n, character in enumerate(text) if not character.isspace() and starts_word(text, n)]
    parts = [text[start:end].strip() for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    assert parts == words


def test_a_token_that_continues_a_word_gets_a_plus_and_no_other_token_does():
    words = [Word("<s>", 0, 1), Word("Non", 1, 2), Word("vogliono", 2, 4), Word("!", 4, 5), Word("</s>", 5, 6)]
    axis = Axis("tokens", 6, ["<s>", "Non", "vogli", "ono", "!", "</s>"], words, special=[0, 5])
    assert piece_labels(axis) == ["<s>", "Non", "vogli", "+ono", "!", "</s>"]


def test_characters_get_no_plus():
    axis = Axis("tokens", 4, ["c", "a", "t", "</s>"], [Word("cat", 0, 3), Word("</s>", 3, 4)], special=[3])
    assert piece_labels(axis) == axis.labels
