"""Byte-pair encoding round-trips text, no text spells a special token, and other libraries' tokenizers are read."""

import json
import re
import unicodedata
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from regard.data.text.tokenizer import BOS, EOS, PAD, UNK, SpecialTokens, Tokenizer, train_bpe

TEXT = {
    "English": ["A man isn't riding a bike.", "Two dogs (one brown) run--well-known... fast!", 'She said: "No, thanks."'],
    "German": ["Ein Mann fährt Fahrrad.", "Größe, Straße & Übermut – schön?", "Die Frau läuft über die Brücke."],
    "Italian": ["L'uomo va in bici.", "Perché no? È così: l'amo.", "Un po' d'acqua, per favore."],
    "Hindi": ["एक आदमी साइकिल चला रहा है।", "क्या हाल है?", "मैं हिन्दी नहीं जानता हूँ।"],
}
LINES = [line for lines in TEXT.values() for line in lines]
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_bpe(LINES * 3 + [" ".join(SPECIAL)], 200)


def plain(text: str) -> str:
    """The text that decoding restores: characters composed, spaces single, none at the ends."""
    return re.sub(r"\s+", " ", unicodedata.normalize("NFC", text)).strip()


@pytest.mark.parametrize("language", TEXT)
def test_text_round_trips(tokenizer, language):
    encoded = tokenizer.encode(TEXT[language])
    assert [tokenizer.decode(ids) for ids in encoded] == [plain(line) for line in TEXT[language]]
    assert all(UNK not in ids for ids in encoded)


@pytest.mark.parametrize("text", [
    "  a   man \t is\u00a0riding ", "Gro\u0308ße", "a man .", "a man.", " . ", "(a) man", "a--man", "''", "एक\u3000एक", "a\nman",
])  # fmt: skip
def test_spaces_are_collapsed_and_characters_composed(tokenizer, text):
    (ids,) = tokenizer.encode([text])
    assert tokenizer.decode(ids) == plain(text)


@given(st.lists(st.sampled_from(sorted({c for line in LINES for c in plain(line)} | {" "})), max_size=40).map("".join))
def test_any_text_of_known_characters_round_trips(text):
    tokenizer = trained()
    (ids,) = tokenizer.encode([text])
    assert tokenizer.decode(ids) == plain(text)
    assert all(UNK < index < tokenizer.vocab for index in ids)


_trained: list[Tokenizer] = []


def trained() -> Tokenizer:
    if not _trained:
        _trained.append(train_bpe(LINES, 300))
    return _trained[0]


def test_a_word_has_the_same_tokens_before_a_full_stop(tokenizer):
    with_stop, without = tokenizer.encode(["a bike.", "a bike"])
    assert with_stop[:-1] == without
    assert tokenizer.ids_to_tokens(with_stop)[-1] == "."


@pytest.mark.parametrize("text", [*SPECIAL, "</s>", "a </s> b", "a</s>", "<s><s>", "<pad>.", "< / s >", " <unk>"])
def test_text_that_spells_a_special_token_is_text(tokenizer, text):
    (ids,) = tokenizer.encode([text])
    assert not {PAD, BOS, EOS, UNK} & set(ids)
    assert tokenizer.decode(ids) == text.strip()


def test_text_that_spells_a_special_token_is_text_after_loading_too(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    (ids,) = Tokenizer.load(tmp_path / "tokenizer.json").encode(["a </s> b <pad>"])
    assert not {PAD, BOS, EOS, UNK} & set(ids)


def test_special_tokens_have_the_first_ids_and_are_not_decoded(tokenizer):
    assert tokenizer.ids_to_tokens([PAD, BOS, EOS, UNK]) == list(SPECIAL)
    assert tokenizer.tokens_to_ids(list(SPECIAL)) == [0, 1, 2, 3]
    (ids,) = tokenizer.encode(["a man"])
    assert tokenizer.decode([BOS, *ids, EOS, PAD, PAD]) == "a man"


def test_an_unknown_character_is_the_unknown_token(tokenizer):
    (ids,) = tokenizer.encode(["a 漢 man"])
    assert ids.count(UNK) == 1
    assert tokenizer.decode(ids).replace("  ", " ") == "a man"


def test_an_empty_text_has_no_tokens(tokenizer):
    assert tokenizer.encode(["", "  ", "\t"]) == [[], [], []]
    assert tokenizer.decode([]) == ""
    assert tokenizer.encode([]) == []


def test_lines_are_encoded_in_their_order_as_if_alone(tokenizer):
    assert tokenizer.encode(LINES) == [tokenizer.encode([line])[0] for line in LINES]


def test_ids_are_below_the_vocabulary_size_asked_for(tokenizer):
    assert tokenizer.vocab == 200
    assert max(map(max, tokenizer.encode(LINES))) < 200
    assert tokenizer.tokens_to_ids(tokenizer.ids_to_tokens(range(200))) == list(range(200))


def test_a_saved_tokenizer_is_the_same(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert again.encode(LINES) == tokenizer.encode(LINES)
    assert (again.vocab, again.digest) == (tokenizer.vocab, tokenizer.digest)


def test_training_is_deterministic_and_different_tokenizers_have_different_digests(tokenizer):
    assert train_bpe(LINES * 3 + [" ".join(SPECIAL)], 200).digest == tokenizer.digest
    assert train_bpe(LINES * 3 + [" ".join(SPECIAL)], 199).digest != tokenizer.digest


def test_a_lone_surrogate_is_refused(tokenizer):
    with pytest.raises(ValueError, match="surrogate"):
        tokenizer.encode(["a \ud800 b"])


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b"\xff\xfe", b'{"model": {"type": "BPE"}}'])
def test_a_damaged_tokenizer_is_refused_by_name(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"cannot read the tokenizer .*tokenizer\.json: "):
        Tokenizer.load(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("file", ["nowhere.json", "."])
def test_a_missing_tokenizer_is_refused_by_name(tmp_path: Path, file):
    with pytest.raises(ValueError, match="cannot read the tokenizer "):
        Tokenizer.load(tmp_path / file)


def test_a_truncated_tokenizer_is_refused_by_name(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    content = (tmp_path / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="cannot read the tokenizer"):
        Tokenizer.load(tmp_path / "tokenizer.json")


# --- special tokens by name ---


def of_words(*words: str, special: tuple[str, ...] = ()) -> Tokenizer:
    """A tokenizer of another library, whose vocabulary is these words."""
    inner = tokenizers.Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token=words[0]))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(list(special))
    return Tokenizer(inner)


@pytest.mark.parametrize(("words", "wanted"), [
    (("<pad>", "<s>", "</s>", "<unk>", "a"), SpecialTokens(0, 1, 2, 3, None, ())),
    (("<s>", "<pad>", "</s>", "<unk>", "a", "<mask>"), SpecialTokens(1, 0, 2, 3, 5, ())),  # RoBERTa's order
    (("[PAD]", "a", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), SpecialTokens(0, 3, 4, 2, 5, ())),  # BERT's
    (("a", "b", "<|endoftext|>"), SpecialTokens(2, 2, 2, 2, None, ())),  # GPT-2's
    (("<pad>", "</s>", "<unk>", "a", "<extra_id_1>", "<extra_id_0>", "<extra_id_3>"),
     SpecialTokens(0, 0, 1, 2, None, (5, 4))),  # T5's
    (("</s>", "<unk>", "a", "<pad>"), SpecialTokens(3, 3, 0, 1, None, ())),  # Marian's
])  # fmt: skip
def test_special_tokens_are_found_by_name(words, wanted):
    assert of_words(*words).special == wanted


@pytest.mark.parametrize(("words", "special", "wanted"), [
    (("a", "</s>", "<|endoftext|>"), ("<|endoftext|>",), SpecialTokens(2, 2, 2, 2, None, ())),  # "</s>" is text to this one
    (("[MASK]", "</s>", "<pad>", "<unk>", "[CLS]", "[SEP]", "<mask>", "[PAD]"), ("[SEP]", "<mask>", "[PAD]"),
     SpecialTokens(7, 4, 5, 3, 6, ())),
])  # fmt: skip
def test_a_token_flagged_as_special_takes_precedence_over_text_of_that_name(words, special, wanted):
    assert of_words(*words, special=special).special == wanted


def test_a_tokenizer_without_an_end_token_is_refused_in_one_line(tmp_path):
    other = of_words("<pad>", "<s>", "a")
    with pytest.raises(ValueError, match=r"has no end token; wanted </s>, \[SEP\] or <\|endoftext\|>") as error:
        _ = other.special
    assert "\n" not in str(error.value)
    other.save(tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match=r"tokenizer\.json: the tokenizer has no end token"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_a_tokenizer_of_another_library_is_read(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    inner = json.loads((tmp_path / "tokenizer.json").read_text())
    vocab = inner["model"]["vocab"]
    vocab["<pad>"], vocab["</s>"] = vocab["</s>"], vocab["<pad>"]
    for token in inner["added_tokens"]:
        token["id"] = vocab[token["content"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(inner))
    other = Tokenizer.load(tmp_path / "tokenizer.json")
    assert other.special == SpecialTokens(2, 1, 0, 3, None, ())
    assert other.encode(LINES) == tokenizer.encode(LINES)


def test_unknown_ids_and_tokens_are_the_unknown_token():
    other = of_words("[UNK]", "[SEP]", "a")
    assert other.ids_to_tokens([2, 99]) == ["a", "[UNK]"]
    assert other.tokens_to_ids(["a", "zebra"]) == [2, 0]


def test_special_ids_are_the_added_tokens_flagged_as_special():
    other = of_words("<unk>", "</s>", "a", "<pad>", special=("</s>", "<pad>"))
    assert other.special_ids == (1, 3)
    other._inner.add_tokens(["plain"])
    assert Tokenizer(other._inner).special_ids == (1, 3)


def test_truncation_and_padding_of_an_imported_tokenizer_are_switched_off(tokenizer, tmp_path):
    inner = tokenizers.Tokenizer.from_str(tokenizer._inner.to_str())
    inner.enable_truncation(3)
    inner.enable_padding(length=128)
    inner.save(str(tmp_path / "tokenizer.json"))
    other = Tokenizer.load(tmp_path / "tokenizer.json")
    assert other.encode(LINES) == tokenizer.encode(LINES)
    assert other.encode(LINES, parse_special=True) == tokenizer.encode(LINES)
    other.save(tmp_path / "again.json")
    again = json.loads((tmp_path / "again.json").read_text())
    assert (again["truncation"], again["padding"]) == (None, None)


def test_pieces_of_text_that_are_special_tokens_become_unknown():
    """In T5's vocabulary "</s>" is also a piece that its model would read off the text."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁a", -2.0), ("a", -3.0), ("▁", -2.0)]
    inner = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=2))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.add_special_tokens(["<pad>", "</s>", "<unk>"])
    inner.encode_special_tokens = True
    assert 1 in inner.encode("a</s> a").ids  # so it would be
    other = Tokenizer(inner)
    assert other.encode(["a</s> a", "a a"]) == [[3, 2, 3], [3, 3]]
    assert 1 in other.encode(["a</s> a"], parse_special=True)[0]
