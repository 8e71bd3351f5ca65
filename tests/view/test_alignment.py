"""Words are aligned by the weights that a model has at the right step, whole or step by step."""

import pytest
import torch
from torch import Tensor, nn

from regard.config import DecodeConfig, Run
from regard.data.text.batches import pad
from regard.data.text.config import TextData
from regard.data.text.tokenizer import BOS, Tokenizer, train_bpe, train_tokenizer
from regard.data.text.toys import toy_pairs
from regard.layers.tap import AttentionCall, tap_of, watch
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.tasks.translation import Translator
from regard.view.alignment import (
    PREDICTING,
    READING,
    Head,
    align,
    align_diagonally,
    align_words,
    attention_accuracy,
    toy_accuracy,
    weights_of_heads,
    words_of_tokens,
)

LINES = ["the dog runs in the park", "a cat sits on the mat", "der hund rennt im park", "eine katze sitzt da"]
DEPTH, HEADS = 2, 3


def translator_of(model: nn.Module, tokenizer: Tokenizer, config: object, family: str = "transformer") -> Translator:
    return Translator(model.eval(), tokenizer, Run("tiny", family, config, data=TextData(), decode=DecodeConfig(beam_size=1)))


@pytest.fixture(scope="module")
def transformer() -> Translator:
    """An untrained model with sharp cross-attention, so that rows and heads differ."""
    torch.manual_seed(0)
    tokenizer = train_bpe(LINES, 50)  # few: most words are several tokens
    config = TransformerConfig(vocab=tokenizer.vocab, dim=12, depth=DEPTH, heads=HEADS, mlp_ratio=2, tied=False)
    model = Transformer(config)
    with torch.no_grad():
        for block in model.decoder:
            block.cross.qkv.weight.mul_(5)
    return translator_of(model, tokenizer, config)


class PointingAttention(nn.Module):
    """Hands the same rows of weights to its tap that a real attention would compute."""

    watchable = True

    def forward(self, weights: Tensor) -> None:
        if (tap := tap_of(self)) is not None:
            tap(AttentionCall(weights, weights, weights, weights, weights))


class PointingModel(nn.Module):
    """A decoder that attends at step t to one source position, a step at a time, as a recurrent one does: (B, 1, 1, S) each."""

    max_len = 512

    def __init__(self, position, certain: float = 1.0):
        super().__init__()
        self.decoder = nn.Module()
        self.decoder.cross = PointingAttention()
        self.unused = nn.Parameter(torch.zeros(1))
        self.position, self.certain = position, certain

    def forward(self, source: Tensor, target: Tensor) -> None:
        length = source.shape[1]  # with the end token
        for step in range(target.shape[1]):
            weights = torch.full((1, 1, 1, length), (1 - self.certain) / length)
            weights[..., min(max(self.position(step, length - 1), 0), length - 1)] += self.certain
            self.decoder.cross(weights)


def pointing(position, certain: float = 1.0) -> Translator:
    tokenizer = train_bpe([" ".join("abcdefghijklmnopqrstuvwxyz")], 60)
    return translator_of(PointingModel(position, certain), tokenizer, TransformerConfig(vocab=tokenizer.vocab), "pointing")


@pytest.mark.parametrize("kind", ["bpe", "bytes", "wordpiece", "characters", "words"])
def test_every_token_belongs_to_the_word_that_it_spells(kind):
    tokenizer = train_tokenizer(LINES, kind, 60)
    text = "the dog &apos;s katze rennt ."
    ids, words = words_of_tokens(tokenizer.encode, text)
    assert ids == tokenizer.encode([text])[0]
    assert words == sorted(words)
    assert set(words) == set(range(6))
    if kind in ("bpe", "bytes", "characters"):
        spelled = ["".join(tokenizer.decode([i]) for i, w in zip(ids, words, strict=True) if w == word) for word in (1, 4)]
        assert [word.strip() for word in spelled] == ["dog", "rennt"]


def test_spaces_between_words_do_not_change_their_number(transformer):
    assert words_of_tokens(transformer.encode, "the  dog ") == words_of_tokens(transformer.encode, "the dog")


@pytest.mark.parametrize("text", ["", "  "])
def test_a_text_without_words_is_refused(transformer, text):
    with pytest.raises(ValueError, match="does not split into words"):
        words_of_tokens(transformer.encode, text)


def test_a_tokenizer_that_joins_words_is_refused():
    joined = {"a": [1], "a b": [2]}  # "a b" is one token
    with pytest.raises(ValueError, match="'a b' does not split into words and their tokens"):
        words_of_tokens(lambda texts: [joined[text] for text in texts], "a b")


def test_weights_are_summed_over_the_tokens_of_both_words():
    """The second source word has the largest token, but the first word has more weight in its two tokens together."""
    weights = torch.tensor([[0.3, 0.3, 0.4], [0.1, 0.2, 0.7], [0.4, 0.5, 0.1]])
    assert align_words(weights[:1], [0, 0, 1], [0]) == {(0, 0)}
    assert align_words(weights, [0, 0, 1], [0, 1, 1]) == {(0, 0), (0, 1)}  # 0.3 + 0.9 against 0.7 + 0.1
    assert align_words(weights, [0, 1, 2], [0, 1, 2]) == {(2, 0), (2, 1), (1, 2)}


def test_of_equal_weights_the_first_word_is_taken():
    assert align_words(torch.full((2, 4), 0.25), [0, 1, 2, 3], [0, 1]) == {(0, 0), (0, 1)}
    assert align_words(torch.tensor([[0.0, 0.5, 0.5]]), [0, 1, 2], [0]) == {(1, 0)}


def test_recorded_weights_are_those_of_each_head_and_their_mean(transformer):
    source, target = transformer.encode(["the dog runs", "der hund rennt"])
    with watch(transformer.model) as recorded, torch.inference_mode():
        transformer.model(pad([source], transformer.tokenizer.special), torch.tensor([[BOS, *target]]))
    found = weights_of_heads(transformer, source, target)
    assert len(found) == DEPTH * (1 + HEADS)
    for layer in range(DEPTH):
        [weights] = recorded[f"decoder.{layer}.cross"]
        assert weights.shape == (1, HEADS, 1 + len(target), len(source) + 1)
        torch.testing.assert_close(found[Head(f"decoder.{layer}.cross", None)], weights[0].mean(0))
        for head in range(HEADS):
            torch.testing.assert_close(found[Head(f"decoder.{layer}.cross", 1 + head)], weights[0, head])


def test_an_alignment_is_the_largest_sum_found_by_a_plain_loop(transformer):
    source, target = "the cat sits on the mat", "eine katze sitzt im park da"
    [source_ids, target_ids] = transformer.encode([source, target])
    weights = weights_of_heads(transformer, source_ids, target_ids)
    pieces = {text: [len(ids) for ids in transformer.encode(text.split())] for text in (source, target)}  # tokens of each word
    for offset in (PREDICTING, READING):
        found = align(transformer, source, target, offset)
        assert set(found) == set(weights)
        for head, links in found.items():
            rows, wanted, row = weights[head].tolist(), set(), offset
            for word, size in enumerate(pieces[target]):
                sums, column = [], 0
                for length in pieces[source]:
                    sums.append(sum(rows[r][c] for r in range(row, row + size) for c in range(column, column + length)))
                    column += length
                wanted.add((max(range(len(sums)), key=sums.__getitem__), word))
                row += size
            assert links == wanted
    assert align(transformer, source, target, PREDICTING) != align(transformer, source, target, READING)


def test_attention_recorded_step_by_step_is_joined():
    """The decoder points to its own step: the row that predicts token t is row t, the row that reads it comes after."""
    translator = pointing(lambda step, length: step)
    assert align(translator, "a b c d", "w x y z") == {
        Head("decoder.cross", head): {(0, 0), (1, 1), (2, 2), (3, 3)} for head in (None, 1)
    }
    [read] = {frozenset(links) for links in align(translator, "a b c d e", "w x y z", READING).values()}
    assert read == {(1, 0), (2, 1), (3, 2), (4, 3)}


def test_attention_to_the_end_token_is_left_out():
    translator = pointing(lambda step, length: length, certain=0.9)  # nearly all weight on the end token, the rest is even
    assert align(translator, "a b c", "x y")[Head("decoder.cross", None)] == {(0, 0), (0, 1)}


@pytest.mark.parametrize("offset", [-1, 2])
def test_another_offset_is_refused(transformer, offset):
    with pytest.raises(ValueError, match=f"offset {offset}; use 0 for the row that predicts a token, 1 for"):
        align(transformer, "the dog", "der hund", offset)


def test_a_model_without_cross_attention_is_refused():
    tokenizer = pointing(lambda step, length: 0).tokenizer
    model = Seq2Seq(Seq2SeqConfig(vocab=tokenizer.vocab, dim=4, hidden=4, depth=1))
    with pytest.raises(ValueError, match="a seq2seq has no cross-attention: its decoder knows only the encoder's last state;"):
        align(translator_of(model, tokenizer, model.config, "seq2seq"), "a b", "c d")


def test_a_sentence_that_is_too_long_is_refused(transformer):
    with pytest.raises(ValueError, match="this model takes at most"):
        align(transformer, "dog " * 1000, "hund")


def test_recording_leaves_the_model_unwatched(transformer):
    align(transformer, "the dog", "der hund")
    assert all(tap_of(part) is None for part in transformer.model.modules())


@pytest.mark.parametrize(
    ("source", "target", "wanted"),
    [(4, 4, [0, 1, 2, 3]), (4, 2, [1, 3]), (2, 4, [0, 0, 1, 1]), (1, 3, [0, 0, 0]), (3, 1, [1]), (5, 3, [0, 2, 4])],
)
def test_the_diagonal_links_words_at_the_same_relative_position(source, target, wanted):
    assert align_diagonally(source, target) == {(word, j) for j, word in enumerate(wanted)}


def test_attention_accuracy_counts_the_rows_whose_largest_weight_is_in_place():
    weights = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5], [0.0, 0.4, 0.6], [0.3, 0.4, 0.3]])
    assert attention_accuracy(weights, [0, 1, 2, 1]) == 0.75
    assert attention_accuracy(weights, [0, 2, 2, 1]) == 1.0


def test_a_model_that_points_to_the_letter_to_be_written_has_a_toy_accuracy_of_one():
    head = Head("decoder.cross", None)
    forward, backward = (lambda step, length: step), (lambda step, length: length - 1 - step)
    pairs = {toy: list(toy_pairs(toy, "test", 20)) for toy in ("copy", "reverse")}
    assert toy_accuracy(pointing(forward, 0.4), "copy", pairs["copy"])[head] == 1.0
    assert toy_accuracy(pointing(backward, 0.4), "reverse", pairs["reverse"])[head] == 1.0
    letters = sum(len(source.split()) for source, _ in pairs["copy"])
    middles = sum(len(source.split()) % 2 for source, _ in pairs["copy"])  # the same position from both sides
    assert toy_accuracy(pointing(backward), "copy", pairs["copy"])[head] == pytest.approx(middles / letters)
    assert toy_accuracy(pointing(lambda step, length: step - 1), "copy", pairs["copy"], READING)[head] == 1.0
    assert toy_accuracy(pointing(lambda step, length: length), "copy", pairs["copy"])[head] == 0.0  # the end token is wrong


def test_a_toy_accuracy_is_that_of_all_letters_not_of_all_pairs():
    first = pointing(lambda step, length: 0)  # always the first letter: one of each pair is right
    assert toy_accuracy(first, "copy", [("a b c d", "a b c d"), ("a", "a")])[Head("decoder.cross", 1)] == pytest.approx(2 / 5)


def test_toys_without_a_known_alignment_are_refused():
    translator = pointing(lambda step, length: step)
    with pytest.raises(ValueError, match="no known alignment of 'phrasebook'; use copy or reverse"):
        toy_accuracy(translator, "phrasebook", [])
    with pytest.raises(ValueError, match="no pairs of copy"):
        toy_accuracy(translator, "copy", [])
    with pytest.raises(ValueError, match="'ab c' has 2 letters and 3 tokens"):
        toy_accuracy(translator, "copy", [("ab c", "ab c")])
