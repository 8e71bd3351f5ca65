"""Sentences: where a text is split, where it is not, and that nothing is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.text.sentences import cut_text, split_sentences


def sentences(text: str) -> list[str]:
    return split_sentences(text)[1::2]


@pytest.mark.parametrize(
    "wanted",
    [
        # plain
        ["A man rides.", "A dog runs!", "Does it?", "Yes."],
        ["one line without an end"],
        ["It costs 3.14 euros.", "That is cheap."],
        ["See example.com for more.", "It is free."],
        ["He came at 5 p.m. yesterday.", "She left."],
        ["Wait...", "What?"],
        ["Well ... it depends.", "Really."],
        ["Why?!", "Because."],
        ["He waited… then left.", "Nobody saw him."],
        ["I know…", "You do not."],
        # abbreviations and initials
        ["Dr. Smith met Mrs. Jones.", "They talked."],
        ["J. S. Bach wrote it.", "It is old."],
        ["J.R.R. Tolkien wrote it.", "It is long."],
        ["We saw cats, dogs, etc. and left.", "It was fun."],
        ["We saw cats, dogs, etc.", "Then we left."],
        ["See e.g. Fig. 3 and No. 5.", "They agree."],
        ["Acme Inc. was founded in 1990.", "It grew."],
        ["The U.S. economy grew.", "Europe did too."],
        ["So did I.", "It was late."],
        ["In Jan. 2020 it began.", "It ended soon."],
        # words that are also abbreviations
        ["Give it to me.", "Then go."],
        ["He said no.", "Then he left."],
        ["Turn it on.", "Then wait."],
        ["This is my art.", "I love it."],
        ["I met Max.", "He smiled."],
        ["Never mind.", "“We know.”"],
        ["It is 5 m.", "Then it ends."],
        ["give it to me.", "then go."],
        ["COME WITH ME.", "THEN GO."],
        ["See no. 5 and fig. 3, vol. II and Fig. B here.", "They agree."],
        ["Gen. Lee met Rep. Jones and Me. Dupont.", "They talked."],
        ["On Mt. Everest it snows.", "On St. Lucia never."],
        ["No.", "A man left."],
        # quotes and brackets
        ['"Stop!" he cried.', "She stopped."],
        ['He said "Go."', "She went."],
        ["“Really?” she asked.", "“Yes.”", "He nodded."],
        ["It rained (a lot.)", "We stayed in."],
        ["¿Qué tal?", "¡Muy bien!", "Gracias."],
        ["Il a dit « oui ».", "Elle rit."],
        # Italian, German, French
        ["Il sig. Rossi e la dott.ssa Bianchi arrivano.", "Sono in ritardo."],
        ["Vedi pag. 3 e cfr. art. 5.", "È chiaro."],
        ["Pane, latte, ecc. sono finiti.", "Compriamoli."],
        ["Das ist z.B. Dr. Müller.", "Er ist nett."],
        ["Am 3. Mai kam er.", "Am 4. ging er."],
        ["Es kostet ca. 5 Euro bzw. 6 Franken.", "Das geht."],
        ["M. Dupont et Mme. Durand sont là.", "Ils attendent."],
        ["Voir p.ex. le chap. 2.", "Il est court."],
        # numbers at the end and lists
        ["It was 1990.", "He was born."],
        ["1. First item"],
        ["Version 2.0. is out"],
        # other scripts
        ["राम घर गया।", "सीता आई।", "क्या वह आया?"],
        ["هل أنت بخير؟", "نعم."],
        ["Он пришёл.", "Она ушла."],
        # caseless
        ["hello there.", "how are you?", "fine."],
        ["a man is riding a bike .", "it is red ."],
        # no sentence of punctuation alone
        ["Hello. !"],
        ["a b c d"],
        ["Yahoo! is a company.", "So is Google."],
    ],
    ids=lambda wanted: wanted[0],
)  # fmt: skip
def test_a_text_is_split_into_its_sentences(wanted):
    assert sentences(" ".join(wanted)) == wanted


def test_chinese_and_japanese_sentences_need_no_space():
    assert split_sentences("你好。你好吗？我很好！") == ["", "你好。", "", "你好吗？", "", "我很好！", ""]
    assert sentences("「行こう。」と彼は言った。雨だ。") == ["「行こう。」", "と彼は言った。", "雨だ。"]


def test_line_breaks_and_indents_end_sentences_and_are_kept():
    text = "  First line\n\n\tSecond line. And more.\r\n- third\n"
    assert split_sentences(text) == ["  ", "First line", "\n\n\t", "Second line.", " ", "And more.", "\r\n- ", "third", "\n"]


def test_a_closing_tag_ends_with_its_sentence_and_a_bullet_is_no_part_of_one():
    assert split_sentences("<i>Tom went home.</i> - I am happy.") == ["", "<i>Tom went home.</i>", " ", "- I am happy.", ""]
    assert split_sentences("- Yes.\n• No.") == ["- ", "Yes.", "\n• ", "No.", ""]
    assert split_sentences("<b>Dr.</b> Smith came.") == ["", "<b>Dr.</b> Smith came.", ""]


@pytest.mark.parametrize("text", ["", " ", "\n", " \n\t "])
def test_a_text_of_spaces_has_no_sentence(text):
    assert split_sentences(text) == [text]


TEXTS = st.text(st.sampled_from("aAbIÉ5。.!?…।؟\"'”»()[] \t\n\r,;:-") | st.characters(), max_size=60)
WORDS = st.lists(
    st.sampled_from(["Dr.", "etc.", "He", "said", "3.", "U.S.", '"Go!"', "...", "ok.", "\n", "。", "(a.)"]), max_size=20
)


@given(TEXTS | WORDS.map(" ".join))
def test_pieces_joined_are_the_text_and_sentences_are_not_blank(text):
    pieces = split_sentences(text)
    assert "".join(pieces) == text
    assert len(pieces) % 2 == 1
    assert all(piece and piece == piece.strip() for piece in pieces[1::2])
    assert all(not space or space.isspace() for space in pieces[::2])


@given(TEXTS.map(str.strip).filter(bool), st.integers(1, 20))
def test_cut_pieces_fit_and_joined_are_the_text(text, limit):
    pieces = cut_text(text, lambda piece: len(piece) <= limit)
    assert "".join(pieces) == text
    assert len(pieces) % 2 == 1
    assert all(0 < len(piece) <= limit for piece in pieces[1::2])
    assert all(not space or space.isspace() for space in pieces[::2])


def test_a_long_sentence_is_cut_at_a_clause_then_at_a_word_then_anywhere():
    words = "one two three four, five six seven eight"
    assert cut_text(words, lambda piece: len(piece) <= 25)[1::2] == ["one two three four,", "five six seven eight"]
    assert cut_text("alpha beta gamma delta", lambda piece: len(piece) <= 12)[1::2] == ["alpha beta", "gamma delta"]
    assert cut_text("abcdefgh", lambda piece: len(piece) <= 4)[1::2] == ["abcd", "efgh"]
