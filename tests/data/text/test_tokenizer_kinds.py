"""Every kind of tokenizer: special tokens, round trips, masks, and agreement with other libraries."""

import os
import re
import subprocess
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.text.tokenizer import (
    BOS,
    EOS,
    KINDS,
    PAD,
    SENTINELS,
    SPECIAL,
    UNK,
    SpecialTokens,
    Tokenizer,
    train_tokenizer,
)  # fmt: skip

EXTRA = ("[MASK]", *SENTINELS)
STORY = ["A cat sat on the mat.\n", "\n", "  The cat's   hat -- it was RED!\r\n", "Zwölf Boxkämpfer\tjagen <unk> Eva.\n",
         "</s> <s>x<pad>y<unk>z [MASK] [CLS] <extra_id_7>\n",
         "The 1,234,567,890 pages of an unknown PACKAGE\n"]  # fmt: skip
_kinds: dict[str, Tokenizer] = {}


def learned(kind: str) -> Tokenizer:
    if kind not in _kinds:
        _kinds[kind] = train_tokenizer(STORY * 20, kind, 300, EXTRA)
    return _kinds[kind]


@pytest.fixture(params=KINDS)
def tokenizer(request) -> Tokenizer:
    return learned(request.param)


def test_special_tokens_have_the_first_ids_and_extra_tokens_the_next(tokenizer):
    first = ("[PAD]", "[CLS]", "[SEP]", "[UNK]") if tokenizer is learned("wordpiece") else SPECIAL
    assert tokenizer.ids_to_tokens(range(4)) == list(first)
    assert tokenizer.ids_to_tokens(range(4, 105)) == list(EXTRA)
    assert tokenizer.special == SpecialTokens(PAD, BOS, EOS, UNK, 4, tuple(range(5, 105)))
    assert tokenizer.special_ids == tuple(range(105))


def test_without_extra_tokens_only_wordpiece_has_a_mask():
    for kind in KINDS:
        special = train_tokenizer(STORY, kind, 300).special
        assert special == SpecialTokens(PAD, BOS, EOS, UNK, 4 if kind == "wordpiece" else None, ())


def test_text_never_spells_a_special_token_of_any_kind(tokenizer):
    for text in [*STORY, *EXTRA[:9], *SPECIAL, "a<unk>c", "[PAD]", "[CLS]x[SEP]"]:
        unknown = {UNK} if tokenizer is learned("words") else set()  # a word that is not in the vocabulary
        assert not (set(tokenizer.special_ids) - unknown) & set(tokenizer.encode([text])[0]), text


@given(
    st.lists(st.sampled_from([*SPECIAL, *EXTRA[:3], "[CLS]", "a", " ", "<", ">", "s", "unk", "▁", "\n", "/"]), max_size=8).map(
        "".join
    )
)
def test_no_combination_of_names_spells_a_special_token(text):
    for kind in KINDS:
        tokenizer = learned(kind)
        assert not set(tokenizer.special_ids) - {UNK} & set(tokenizer.encode([text])[0])


def test_a_frequent_word_is_not_the_special_token_of_that_name():
    lines = ["<unk>", "a<unk>b", "<s>x", "<pad><pad>"] * 100
    tokenizer = train_tokenizer(lines, "bpe", 500)
    for line in lines[:4]:
        (ids,) = tokenizer.encode([line])
        assert min(ids) > UNK
        assert tokenizer.decode(ids) == line


def test_parse_special_reads_a_name_as_that_token(tokenizer):
    text = "the cat [MASK] on <extra_id_12> mat <extra_id_0>"
    (ids,) = tokenizer.encode([text], parse_special=True)
    assert [index for index in ids if index in tokenizer.special_ids] == [4, 17, 5]
    (without,) = tokenizer.encode([text])
    assert not set(without) & set(tokenizer.special_ids) - {UNK}
    assert tokenizer.encode([text], parse_special=True) == [ids]  # neither way changes the other
    assert tokenizer.encode([text]) == [without]


def test_a_masked_word_includes_its_space():
    """The text "the [MASK] sat" is "the cat sat" with the single token of a word masked."""
    for kind in ("bpe", "bytes", "wordpiece"):
        tokenizer = train_tokenizer(["the cat sat\n"] * 50, kind, 400, ("[MASK]",))
        (plain,), (masked,) = (tokenizer.encode(["the cat sat"]), tokenizer.encode(["the [MASK] sat"], parse_special=True))
        assert len(plain) == 3, kind
        assert masked == [plain[0], tokenizer.special.mask, plain[2]], kind


def test_parsing_of_special_tokens_is_thread_safe():
    tokenizer = learned("bytes")
    text = ["[MASK] a"] * 20
    wanted = {
        False: train_tokenizer(STORY * 20, "bytes", 300, EXTRA).encode(text),
        True: [[4, *tokenizer.encode([" a"])[0]]] * 20,
    }
    with ThreadPoolExecutor(8) as pool:
        asked = [(special, pool.submit(tokenizer.encode, text, special)) for _ in range(100) for special in (False, True)]
        assert all(answer.result() == wanted[special] for special, answer in asked)


@given(st.text(max_size=60))
def test_bytes_round_trip_any_text_without_unknown_tokens(text):
    (ids,) = learned("bytes").encode([text])
    assert learned("bytes").decode(ids) == text
    assert UNK not in ids


@given(st.lists(st.sampled_from(sorted({c for line in STORY for c in line})), max_size=60).map("".join))
def test_characters_round_trip_one_token_each(text):
    (ids,) = learned("characters").encode([text])
    assert learned("characters").decode(ids) == text
    assert len(ids) == len(text)
    assert learned("characters").ids_to_tokens(ids) == list(text)


def test_a_character_never_seen_is_unknown():
    tokenizer = learned("characters")
    assert tokenizer.encode(["c漢a"]) == [[*tokenizer.tokens_to_ids(["c"]), UNK, *tokenizer.tokens_to_ids(["a"])]]
    assert tokenizer.vocab == 105 + len({c for line in STORY for c in line})


def test_characters_always_include_the_line_end():
    assert train_tokenizer(["abc"], "characters", 1).keeps_newlines


def test_only_bytes_and_characters_keep_line_ends():
    assert [kind for kind in KINDS if learned(kind).keeps_newlines] == ["bytes", "characters"]


def test_wordpiece_is_read_as_hugging_face_reads_it(tmp_path):
    """An independent reference: BERT's own greedy longest match, written out."""
    tokenizer = learned("wordpiece")
    vocab = {tokenizer.ids_to_tokens([index])[0]: index for index in range(tokenizer.vocab)}

    def pieces(word: str) -> list[int]:
        found, at = [], 0
        while at < len(word):
            end = next((e for e in range(len(word), at, -1) if "##" * (at > 0) + word[at:e] in vocab), None)
            if end is None:
                return [UNK]
            found.append(vocab["##" * (at > 0) + word[at:end]])
            at = end
        return found

    text = "The cats' RED hats, mattresses and zwölf 漢 boxes!"
    words = re.findall(r"\w+|[^\w\s]", unicodedata.normalize("NFD", text.lower()).replace("\u0308", ""))
    assert tokenizer.encode([text]) == [[index for word in words for index in pieces(word)]]
    assert UNK in tokenizer.encode([text])[0]
    assert tokenizer.decode(tokenizer.encode(["The cat sat, on the MAT"])[0]) == "the cat sat, on the mat"


def test_hugging_face_opens_every_kind(tokenizer, tmp_path):
    from transformers import PreTrainedTokenizerFast

    tokenizer.save(tmp_path / "tokenizer.json")
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for line in ("The cat sat on the mat.", "Zwölf Boxkämpfer jagen"):
        assert theirs.encode(line, add_special_tokens=False) == tokenizer.encode([line])[0]
    if tokenizer is learned("wordpiece"):
        assert theirs.encode("the cat") == [BOS, *tokenizer.encode(["the cat"])[0], EOS]


def test_training_is_deterministic_across_processes(tokenizer, tmp_path):
    kind = next(kind for kind in KINDS if learned(kind) is tokenizer)
    code = "from test_tokenizer_kinds import learned; import sys; print(learned(sys.argv[1]).digest)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code, kind], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == tokenizer.digest


@pytest.mark.parametrize(("kind", "vocab", "size"), [
    ("bpe", 200, 200), ("bytes", 400, 400), ("bytes", 10, 361), ("wordpiece", 220, 220), ("bpe", 1, None),
    ("wordpiece", 1, None),
])  # fmt: skip
def test_the_vocabulary_has_the_size_asked_for_or_all_characters(kind, vocab, size):
    tokenizer = train_tokenizer(STORY * 20, kind, vocab, EXTRA)
    assert tokenizer.vocab == (size or tokenizer.vocab)
    assert all(UNK not in ids for ids in tokenizer.encode(STORY))


def test_an_unknown_kind_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"no tokenizer 'byte' \(did you mean 'bytes'\?\); kinds are bpe, bytes, wordpiece"):
        train_tokenizer([], "byte", 10)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("wordpiece", ["[CLS]", "▁a", "▁man", "[SEP]"]),
        ("bytes", ["<s>", "a", "▁man", "⏎", "</s>"]),
        ("characters", ["<s>", "▁a", "▁␣", "▁m", "▁a", "▁n", "▁⏎", "</s>"]),
        ("bpe", ["<s>", "▁a", "▁man", "</s>"]),
        ("words", ["<s>", "▁a", "▁man", "</s>"]),
    ],
)
def test_labels_mark_the_start_of_a_word_for_every_kind(kind, wanted):
    tokenizer = train_tokenizer(["a man\n"] * 9, kind, 300)
    special = tokenizer.special
    assert tokenizer.display([special.bos, *tokenizer.encode(["a man\n"])[0], special.eos]) == wanted


def test_a_piece_inside_a_word_is_labelled_without_a_space():
    tokenizer = train_tokenizer(["ab abc"] * 9, "wordpiece", 9)
    labels = tokenizer.display(tokenizer.encode(["abc"])[0])
    assert "".join(labels) == "▁abc"
    assert len(labels) > 1


def test_words_are_whole_lower_cased_and_the_most_frequent():
    tokenizer = train_tokenizer(["The king, the King. Queen", "the king"], "words", 7)
    assert tokenizer.ids_to_tokens(range(4, tokenizer.vocab)) == ["king", "the", ","]
    assert tokenizer.encode(["THE king's queen, the"]) == [[5, 4, UNK, UNK, UNK, 6, 5]]
    assert tokenizer.decode([5, 4]) == "the king"
