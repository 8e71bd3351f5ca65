"""Words as characters: bytes between a start and an end; also those of words outside the vocabulary."""

import pytest

from regard.data.text.characters import ALPHABET, BOS, END, EOS, PAD, START, UNK, CharacterTokenizer, to_character_ids
from regard.data.text.tokenizer import train_tokenizer

TEXT = ["the cat sat on the mat", "The café is on the river bank ."]


@pytest.fixture(scope="module")
def characters() -> CharacterTokenizer:
    return CharacterTokenizer(train_tokenizer(TEXT, "words", 60), 8)


def test_a_word_is_its_bytes_between_start_and_end():
    assert to_character_ids("né".encode(), 7) == (START, ord("n"), 0xC3, 0xA9, END, PAD, PAD)


def test_a_long_word_is_cut_but_ends():
    assert to_character_ids(b"wonderful", 6) == (START, *b"wond", END)


def test_special_tokens_have_character_ids_that_no_text_has(characters):
    assert characters.special.bos == (START, BOS, END, *[PAD] * 5)
    assert characters.special.eos == (START, EOS, END, *[PAD] * 5)
    assert characters.special.pad == (PAD,) * 8
    [[*written]] = characters.encode(["<s> </s> <pad> <unk>"])
    assert not set(written) & set(characters.special)
    assert max(n for word in written for n in word[1:-1] if n not in (END, PAD)) < 256


def test_the_table_has_the_character_ids_of_each_token_of_the_vocabulary(characters):
    words = characters.words
    [cat] = words.tokens_to_ids(["cat"])
    assert characters.table[cat] == (START, *b"cat", END, *[PAD] * 3)
    assert characters.table[words.special.unk] == (START, UNK, END, *[PAD] * 5)
    assert len(characters.table) == words.vocab
    assert len(set(characters.table)) == words.vocab
    assert all(len(word) == 8 and max(word) < ALPHABET for word in characters.table)


def test_a_text_has_the_character_ids_of_its_tokens_in_the_table(characters):
    [ids] = characters.words.encode(["The cat sat"])
    assert characters.encode(["The cat sat"]) == [[characters.table[n] for n in ids]]


def test_a_word_outside_the_vocabulary_has_its_own_characters_in_lower_case(characters):
    assert characters.words.encode(["Dog"]) == [[characters.words.special.unk]]
    assert characters.encode(["the Dog"])[0][1] == (START, *b"dog", END, *[PAD] * 3)
    assert characters.encode(["", "Dog"]) == [[], [to_character_ids(b"dog", 8)]]


def test_known_words_are_not_normalized_again(characters, monkeypatch):
    seen = []
    normalize = type(characters.words).normalize
    monkeypatch.setattr(type(characters.words), "normalize", lambda self, text: seen.append(text) or normalize(self, text))
    characters.encode(["the cat", "the Dog sat"])
    assert seen == ["Dog"]


@pytest.mark.parametrize("kind", ["bpe", "bytes", "wordpiece", "characters", "words"])
def test_offsets_are_where_each_token_is_in_the_text(kind):
    tokenizer, text = train_tokenizer(TEXT * 3, kind, 320), "The cat, on  the café."
    [ids], [spans] = tokenizer.encode([text]), tokenizer.offsets([text])
    assert len(ids) == len(spans)
    for index, (start, end) in zip(ids, spans, strict=True):
        token = tokenizer.ids_to_tokens([index])[0].lower()
        if token.isascii() and "<" not in token and "[" not in token:
            assert tokenizer.normalize(text[start:end]).strip("▁ ").lower() == token.strip("▁Ġ#").strip()


def test_a_lone_surrogate_is_refused_in_one_line(characters):
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        characters.encode(["a \ud800"])
