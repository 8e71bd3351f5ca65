"""Self-attention without parameters equals torch's, and the examples of the notes come out as computed by hand."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from self_attention import (
    APPLE_SKETCH,
    APPLE_USES,
    APPLE_VECTOR,
    BANK_SKETCH_S1,
    BANK_SKETCH_S2,
    IDIOM_WORDS,
    IDIOMS,
    LITERAL,
    S1,
    S2,
    TABLE_S1,
    TABLE_S2,
    VECTORS,
    average_meaning,
    cosine,
    embed,
    identity_attention,
    learn_idioms,
    learnable_attention,
    main,
    one_word_at_a_time,
    raw_attention,
    self_attention,
)

from regard.layers.attention import attend

SCRIPT = Path(__file__).parents[2] / "examples" / "self_attention.py"
BANK = [(TABLE_S1[1], TABLE_S2[1]), (BANK_SKETCH_S1, BANK_SKETCH_S2)]  # the notes give both


@st.composite
def sentences(draw) -> torch.Tensor:
    """Random words (T, D), or a batch of them (B, T, D)."""
    shape = [*draw(st.lists(st.integers(1, 3), max_size=1)), draw(st.integers(1, 7)), draw(st.integers(1, 6))]
    return torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 10_000))))


def test_apple_is_nine_parts_fruit_and_one_part_technology():
    assert average_meaning(APPLE_USES).tolist() == pytest.approx(APPLE_VECTOR)
    assert average_meaning({"fruit": 1, "technology": 1}).tolist() == [0.5, 0.5]
    assert sum(APPLE_SKETCH) != pytest.approx(1)  # the other vector of the notes is the average of no counts


@pytest.mark.parametrize("row", [*TABLE_S1, *TABLE_S2, BANK_SKETCH_S1, BANK_SKETCH_S2])
def test_every_row_of_the_notes_sums_to_one(row):
    assert sum(row) == pytest.approx(1)


def test_the_new_vectors_are_the_weighted_sums_computed_by_hand():
    """Computed by hand: for example bank, finance: 0.25 · 2 + 0.7 · 1 + 0.05 · 0.6 = 1.23."""
    wanted_s1 = [[1.66, 0.26, 0.26], [1.23, 0.73, 0.11], [0.82, 0.62, 0.86]]
    wanted_s2 = [[0.15, 1.8, 0.56], [0.78, 1.2, 0.152], [0.01, 1.4, 1.184]]
    for table, words, wanted in ((TABLE_S1, S1, wanted_s1), (TABLE_S2, S2, wanted_s2)):
        torch.testing.assert_close(torch.tensor(table) @ embed(words), torch.tensor(wanted))


@pytest.mark.parametrize(("first", "second"), BANK)
def test_bank_has_one_static_vector_and_two_contextual_ones(first, second):
    assert torch.equal(embed(S1)[1], embed(S2)[1])
    new = torch.tensor(first) @ embed(S1), torch.tensor(second) @ embed(S2)
    assert cosine(*new) < 0.95
    assert new[0][0] > new[0][1]  # finance before nature in the first sentence
    assert new[1][0] < new[1][1]  # and after it in the second


def test_self_attention_moves_bank_towards_its_neighbours_too():
    (first, _), (second, _) = self_attention(embed(S1)), self_attention(embed(S2))
    assert cosine(first[1], second[1]) < 0.95
    assert cosine(first[1], embed(S1)[0]) > cosine(embed(S1)[1], embed(S1)[0])  # nearer to money
    assert cosine(second[1], embed(S2)[0]) > cosine(embed(S2)[1], embed(S2)[0])  # nearer to river


def test_every_word_of_the_sentences_has_a_vector():
    assert set(VECTORS) == {*S1, *S2}


@settings(max_examples=40)
@given(e=sentences())
def test_weights_are_positive_and_each_row_sums_to_one(e):
    new, weights = self_attention(e)
    assert new.shape == e.shape
    assert (weights > 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(e.shape[:-1]))


@settings(max_examples=40)
@given(e=sentences())
def test_self_attention_equals_attend_and_torch_with_scale_1(e):
    new, weights = self_attention(e)
    torch.testing.assert_close(attend(e, e, e, scale=1.0)[0], new, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(attend(e, e, e, scale=1.0, need_weights=True)[1], weights, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(F.scaled_dot_product_attention(e, e, e, scale=1.0), new, atol=1e-5, rtol=1e-5)


@settings(max_examples=25)
@given(e=sentences())
def test_self_attention_is_an_attention_layer_with_identity_matrices(e):
    e = e if e.ndim == 3 else e[None]
    torch.testing.assert_close(identity_attention(e.shape[-1])(e), self_attention(e)[0], atol=1e-5, rtol=1e-5)


@settings(max_examples=25)
@given(e=sentences())
def test_a_batch_equals_a_loop_over_sentences_and_words(e):
    batch = e if e.ndim == 3 else e[None]
    loop = torch.stack([one_word_at_a_time(sentence) for sentence in batch])
    torch.testing.assert_close(self_attention(batch)[0], loop, atol=1e-5, rtol=1e-5)


@settings(max_examples=25)
@given(e=sentences(), seed=st.integers(0, 100))
def test_words_in_another_order_get_the_same_vectors_in_that_order(e, seed):
    order = torch.randperm(e.shape[-2], generator=torch.Generator().manual_seed(seed))
    moved, _ = self_attention(e[..., order, :])
    torch.testing.assert_close(moved, self_attention(e)[0][..., order, :], atol=1e-5, rtol=1e-5)


@settings(max_examples=25)
@given(e=sentences())
def test_new_vectors_stay_between_the_old_ones(e):
    new, _ = self_attention(e)
    assert (new <= e.amax(-2, keepdim=True) + 1e-5).all()
    assert (new >= e.amin(-2, keepdim=True) - 1e-5).all()


def test_raw_dot_products_are_no_weights():
    e = embed(S1)
    assert ((e @ e.T).sum(-1) > 4).all()
    torch.testing.assert_close(raw_attention(3 * e), 27 * raw_attention(e))  # three times the length, 27 times the result


def test_learned_matrices_recognize_idioms_that_identity_matrices_cannot():
    words = {word for phrase in IDIOMS + LITERAL for word in phrase}
    assert words == set(IDIOM_WORDS)
    assert [[p[0] for p in IDIOMS], [p[2] for p in IDIOMS]] == [[p[0] for p in LITERAL], [p[2] for p in LITERAL][::-1]]
    fixed = identity_attention(len(words)).requires_grad_(False)
    for seed in range(3):
        assert learn_idioms(learnable_attention(len(words), seed), seed=seed) == 1.0
        assert learn_idioms(fixed, seed=seed) <= 0.75  # the most that a linear classifier reaches on an exclusive or


def test_the_page_prints_its_sections(capsys):
    main()
    out = capsys.readouterr().out
    assert [line[0] for line in out.splitlines() if line[:1].isdigit()] == ["1", "2", "3", "4", "5"]
    assert "cosine of the two: 0.90" in out
    assert "accuracy 100%" in out
    assert max(map(len, out.splitlines())) <= 120


def test_the_script_runs_by_itself():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1  A static vector is an average")
