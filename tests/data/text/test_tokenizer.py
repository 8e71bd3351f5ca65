"""Text → tokens → the very text, and no text spells a special token."""

import json
import os
import re
import subprocess
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from regard.data.text.tokenizer import (
    BOS,
    EOS,
    KINDS,
    PAD,
    SENTINELS,
    UNK,
    SpecialTokens,
    Tokenizer,
    train_bpe,
    train_tokenizer,
)

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


# --- what is no text, by name ---


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
    (("<pad>", "</s>", "<unk>", "a", "<extra_id_1>", "<extra_id_0>", "<extra_id_3>"), SpecialTokens(0, 0, 1, 2, None, (5, 4))),  # T5's
    (("</s>", "<unk>", "a", "<pad>"), SpecialTokens(3, 3, 0, 1, None, ())),  # Marian's
])  # fmt: skip
def test_marks_are_found_by_their_names(words, wanted):
    assert of_words(*words).special == wanted


@pytest.mark.parametrize(("words", "special", "wanted"), [
    (("a", "</s>", "<|endoftext|>"), ("<|endoftext|>",), SpecialTokens(2, 2, 2, 2, None, ())),  # "</s>" is text to this one
    (("[MASK]", "</s>", "<pad>", "<unk>", "[CLS]", "[SEP]", "<mask>", "[PAD]"), ("[SEP]", "<mask>", "[PAD]"),
     SpecialTokens(7, 4, 5, 3, 6, ())),
])  # fmt: skip
def test_a_token_that_is_flagged_goes_before_one_that_is_only_called_so(words, special, wanted):
    assert of_words(*words, special=special).special == wanted


def test_a_tokenizer_without_an_end_is_refused_in_one_line(tmp_path):
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


def test_unknown_numbers_and_tokens_are_the_unknown_token_of_that_tokenizer():
    other = of_words("[UNK]", "[SEP]", "a")
    assert other.tokens([2, 99]) == ["a", "[UNK]"]
    assert other.ids(["a", "zebra"]) == [2, 0]


def test_special_are_the_added_tokens_that_are_no_text():
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


# --- every kind that can be learnt ---

EXTRA = ("[MASK]", *SENTINELS)
STORY = ["A cat sat on the mat.\n", "\n", "  The cat's   hat -- it was RED!\r\n", "Zwölf Boxkämpfer\tjagen <unk> Eva.\n",
         "</s> <s>x<pad>y<unk>z [MASK] [CLS] <extra_id_7>\n",
         "The 1,234,567,890 pages of an unknown PACKAGE\n"]  # fmt: skip
_kinds: dict[str, Tokenizer] = {}


def learnt(kind: str) -> Tokenizer:
    if kind not in _kinds:
        _kinds[kind] = train_tokenizer(STORY * 20, kind, 300, EXTRA)
    return _kinds[kind]


@pytest.fixture(params=KINDS)
def one(request) -> Tokenizer:
    return learnt(request.param)


def test_special_tokens_come_first_and_the_further_ones_after_them(one):
    first = ("[PAD]", "[CLS]", "[SEP]", "[UNK]") if one is learnt("wordpiece") else SPECIAL
    assert one.tokens(range(4)) == list(first)
    assert one.tokens(range(4, 105)) == list(EXTRA)
    assert one.special == SpecialTokens(PAD, BOS, EOS, UNK, 4, tuple(range(5, 105)))
    assert one.special_ids == tuple(range(105))


def test_without_further_tokens_only_wordpiece_has_a_mask():
    for kind in KINDS:
        special = train_tokenizer(STORY, kind, 300).special
        assert special == SpecialTokens(PAD, BOS, EOS, UNK, 4 if kind == "wordpiece" else None, ())


def test_text_never_spells_a_special_token_of_any_kind(one):
    for text in [*STORY, *EXTRA[:9], *SPECIAL, "a<unk>c", "[PAD]", "[CLS]x[SEP]"]:
        assert not set(one.special_ids) & set(one.encode([text])[0]), text


@given(
    st.lists(
        st.sampled_from([*SPECIAL, *EXTRA[:3], "[CLS]", "a", " ", "<", ">", "s", "unk", "▁", "\n", "/"]), max_size=8
    ).map("".join)
)
def test_no_mixture_of_names_spells_a_special_token(text):
    for kind in KINDS:
        one = learnt(kind)
        assert not set(one.special_ids) - {UNK} & set(one.encode([text])[0])


def test_a_word_that_stands_often_in_the_text_is_not_the_special_token_of_that_name():
    lines = ["<unk>", "a<unk>b", "<s>x", "<pad><pad>"] * 100
    one = train_tokenizer(lines, "bpe", 500)
    for line in lines[:4]:
        (ids,) = one.encode([line])
        assert min(ids) > UNK
        assert one.decode(ids) == line


def test_with_marks_a_name_is_that_token(one):
    text = "the cat [MASK] on <extra_id_12> mat <extra_id_0>"
    (ids,) = one.encode([text], parse_special=True)
    assert [number for number in ids if number in one.special_ids] == [4, 17, 5]
    (without,) = one.encode([text])
    assert not set(without) & set(one.special_ids)
    assert one.encode([text], parse_special=True) == [ids]  # neither way changes the other
    assert one.encode([text]) == [without]


def test_a_hidden_word_takes_its_space_along():
    """The text "the [MASK] sat" is "the cat sat" with the one token of a word hidden."""
    for kind in ("bpe", "bytes", "wordpiece"):
        one = train_tokenizer(["the cat sat\n"] * 50, kind, 400, ("[MASK]",))
        (plain,), (hidden,) = one.encode(["the cat sat"]), one.encode(["the [MASK] sat"], parse_special=True)
        assert len(plain) == 3, kind
        assert hidden == [plain[0], one.special.mask, plain[2]], kind


def test_marks_and_text_are_told_apart_by_many_threads_at_once():
    one = learnt("bytes")
    text = ["[MASK] a"] * 20
    wanted = {
        False: train_tokenizer(STORY * 20, "bytes", 300, EXTRA).encode(text),
        True: [[4, *one.encode([" a"])[0]]] * 20,
    }
    with ThreadPoolExecutor(8) as pool:
        asked = [(special, pool.submit(one.encode, text, special)) for _ in range(100) for special in (False, True)]
        assert all(answer.result() == wanted[special] for special, answer in asked)


@given(st.text(max_size=60))
def test_bytes_give_any_text_back_and_know_everything(text):
    (ids,) = learnt("bytes").encode([text])
    assert learnt("bytes").decode(ids) == text
    assert UNK not in ids


@given(st.lists(st.sampled_from(sorted({c for line in STORY for c in line})), max_size=60).map("".join))
def test_characters_give_their_text_back_one_token_each(text):
    (ids,) = learnt("characters").encode([text])
    assert learnt("characters").decode(ids) == text
    assert len(ids) == len(text)
    assert learnt("characters").tokens(ids) == list(text)


def test_a_character_never_seen_is_unknown():
    one = learnt("characters")
    assert one.encode(["c漢a"]) == [[*one.ids(["c"]), UNK, *one.ids(["a"])]]
    assert one.vocab == 105 + len({c for line in STORY for c in line})


def test_characters_know_a_line_end_though_none_was_seen():
    assert train_tokenizer(["abc"], "characters", 1).keeps_newlines


def test_only_bytes_and_characters_know_line_ends():
    assert [kind for kind in KINDS if learnt(kind).keeps_newlines] == ["bytes", "characters"]


def test_wordpiece_is_read_as_hugging_face_reads_it(tmp_path):
    """A second opinion: BERT's own greedy longest match, written out."""
    one = learnt("wordpiece")
    vocab = {one.tokens([number])[0]: number for number in range(one.vocab)}

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
    assert one.encode([text]) == [[number for word in words for number in pieces(word)]]
    assert UNK in one.encode([text])[0]
    assert one.decode(one.encode(["The cat sat, on the MAT"])[0]) == "the cat sat, on the mat"


def test_hugging_face_opens_every_kind(one, tmp_path):
    from transformers import PreTrainedTokenizerFast

    one.save(tmp_path / "tokenizer.json")
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for line in ("The cat sat on the mat.", "Zwölf Boxkämpfer jagen"):
        assert theirs.encode(line, add_special_tokens=False) == one.encode([line])[0]
    if one is learnt("wordpiece"):
        assert theirs.encode("the cat") == [BOS, *one.encode(["the cat"])[0], EOS]


def test_learning_is_repeatable_in_another_process_too(one, tmp_path):
    kind = next(kind for kind in KINDS if learnt(kind) is one)
    code = "from test_tokenizer import learnt; import sys; print(learnt(sys.argv[1]).digest)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code, kind], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == one.digest


@pytest.mark.parametrize(("kind", "vocab", "size"), [
    ("bpe", 200, 200), ("bytes", 400, 400), ("bytes", 10, 361), ("wordpiece", 220, 220), ("bpe", 1, None),
    ("wordpiece", 1, None),
])  # fmt: skip
def test_the_vocabulary_is_as_asked_or_as_large_as_the_characters_need(kind, vocab, size):
    one = train_tokenizer(STORY * 20, kind, vocab, EXTRA)
    assert one.vocab == (size or one.vocab)
    assert all(UNK not in ids for ids in one.encode(STORY))


def test_an_unknown_kind_is_named():
    with pytest.raises(
        ValueError, match=r"no tokenizer 'byte' \(did you mean 'bytes'\?\); kinds are bpe, bytes, wordpiece"
    ):
        train_tokenizer([], "byte", 10)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("wordpiece", ["[CLS]", "▁a", "▁man", "[SEP]"]),
        ("bytes", ["<s>", "a", "▁man", "⏎", "</s>"]),
        ("characters", ["<s>", "▁a", "▁␣", "▁m", "▁a", "▁n", "▁⏎", "</s>"]),
        ("bpe", ["<s>", "▁a", "▁man", "</s>"]),
    ],
)
def test_labels_mark_what_begins_a_word_whatever_the_kind(kind, wanted):
    tokenizer = train_tokenizer(["a man\n"] * 9, kind, 300)
    special = tokenizer.special
    assert tokenizer.labels([special.bos, *tokenizer.encode(["a man\n"])[0], special.eos]) == wanted


def test_a_piece_inside_a_word_is_labelled_without_a_space():
    tokenizer = train_tokenizer(["ab abc"] * 9, "wordpiece", 9)
    labels = tokenizer.labels(tokenizer.encode(["abc"])[0])
    assert "".join(labels) == "▁abc"
    assert len(labels) > 1
