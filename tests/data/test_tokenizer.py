"""Text → tokens → the very text, and no text spells a special token."""

import json
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, train_bpe

TEXT = {
    "English": [
        "A man isn't riding a bike.",
        "Two dogs (one brown) run--well-known... fast!",
        'She said: "No, thanks."',
    ],
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
    """What a text keeps: characters composed, spaces single, none at the ends."""
    return re.sub(r"\s+", " ", unicodedata.normalize("NFC", text)).strip()


@pytest.mark.parametrize("language", TEXT)
def test_text_comes_back_as_it_went_in(tokenizer, language):
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
def test_any_text_of_known_characters_comes_back(text):
    tokenizer = trained()
    (ids,) = tokenizer.encode([text])
    assert tokenizer.decode(ids) == plain(text)
    assert all(UNK < number < tokenizer.vocab for number in ids)


_trained: list[Tokenizer] = []


def trained() -> Tokenizer:
    if not _trained:
        _trained.append(train_bpe(LINES, 300))
    return _trained[0]


def test_a_word_has_the_same_tokens_before_a_full_stop(tokenizer):
    with_stop, without = tokenizer.encode(["a bike.", "a bike"])
    assert with_stop[:-1] == without
    assert tokenizer.tokens(with_stop)[-1] == "."


@pytest.mark.parametrize("text", [*SPECIAL, "</s>", "a </s> b", "a</s>", "<s><s>", "<pad>.", "< / s >", " <unk>"])
def test_text_that_spells_a_special_token_is_text(tokenizer, text):
    (ids,) = tokenizer.encode([text])
    assert not {PAD, BOS, EOS, UNK} & set(ids)
    assert tokenizer.decode(ids) == text.strip()


def test_text_that_spells_a_special_token_is_text_after_loading_too(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    (ids,) = Tokenizer.load(tmp_path / "tokenizer.json").encode(["a </s> b <pad>"])
    assert not {PAD, BOS, EOS, UNK} & set(ids)


def test_the_special_tokens_come_first_and_leave_no_trace(tokenizer):
    assert tokenizer.tokens([PAD, BOS, EOS, UNK]) == list(SPECIAL)
    assert tokenizer.ids(list(SPECIAL)) == [0, 1, 2, 3]
    (ids,) = tokenizer.encode(["a man"])
    assert tokenizer.decode([BOS, *ids, EOS, PAD, PAD]) == "a man"


def test_an_unknown_character_is_the_unknown_token_and_no_error(tokenizer):
    (ids,) = tokenizer.encode(["a 漢 man"])
    assert ids.count(UNK) == 1
    assert tokenizer.decode(ids).replace("  ", " ") == "a man"


def test_an_empty_text_has_no_tokens(tokenizer):
    assert tokenizer.encode(["", "  ", "\t"]) == [[], [], []]
    assert tokenizer.decode([]) == ""
    assert tokenizer.encode([]) == []


def test_lines_are_encoded_in_their_order_as_if_alone(tokenizer):
    assert tokenizer.encode(LINES) == [tokenizer.encode([line])[0] for line in LINES]


def test_a_token_is_at_most_the_vocabulary_and_the_vocabulary_as_asked(tokenizer):
    assert tokenizer.vocab == 200
    assert max(map(max, tokenizer.encode(LINES))) < 200
    assert tokenizer.ids(tokenizer.tokens(range(200))) == list(range(200))


def test_a_saved_tokenizer_is_the_same(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert again.encode(LINES) == tokenizer.encode(LINES)
    assert (again.vocab, again.digest) == (tokenizer.vocab, tokenizer.digest)


def test_training_is_repeatable_and_its_digest_tells_tokenizers_apart(tokenizer):
    assert train_bpe(LINES * 3 + [" ".join(SPECIAL)], 200).digest == tokenizer.digest
    assert train_bpe(LINES * 3 + [" ".join(SPECIAL)], 199).digest != tokenizer.digest


def test_a_lone_surrogate_is_a_mistake_of_the_user(tokenizer):
    with pytest.raises(ValueError, match="surrogate"):
        tokenizer.encode(["a \ud800 b"])


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b"\xff\xfe", b'{"model": {"type": "BPE"}}'])
def test_a_damaged_tokenizer_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"cannot read the tokenizer .*tokenizer\.json: "):
        Tokenizer.load(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("file", ["nowhere.json", "."])
def test_a_missing_tokenizer_is_named(tmp_path: Path, file):
    with pytest.raises(ValueError, match="cannot read the tokenizer "):
        Tokenizer.load(tmp_path / file)


def test_a_tokenizer_cut_short_is_named(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    content = (tmp_path / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="cannot read the tokenizer"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_a_tokenizer_of_another_library_is_refused(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    inner = json.loads((tmp_path / "tokenizer.json").read_text())
    vocab = inner["model"]["vocab"]
    vocab["<pad>"], vocab["</s>"] = vocab["</s>"], vocab["<pad>"]
    for token in inner["added_tokens"]:
        token["id"] = vocab[token["content"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(inner))
    with pytest.raises(ValueError, match=r"is not a tokenizer of regard: <pad>, </s> must be the first of its tokens"):
        Tokenizer.load(tmp_path / "tokenizer.json")
