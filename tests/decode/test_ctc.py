"""CTC against brute force over all paths: its loss, best path, prefix beam, prefix scores and alignment."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.decode.ctc import PrefixScores, Span, align, best_path, prefix_beam
from regard.decode.search import beam, greedy
from regard.decode.step import reorder
from regard.tasks.speech import ctc_loss

BLANK, BOS, EOS = 0, 1, 2

law = settings(max_examples=25)
seeds = st.integers(0, 10_000)
frames, tokens = st.integers(1, 5), st.integers(2, 4)  # of a brute-force case: at most 4 ** 5 paths


def random_log_probs(seed: int, *shape: int) -> Tensor:
    """Log-probabilities far from uniform."""
    return (2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).log_softmax(-1)


def collapse(path: tuple[int, ...]) -> tuple[int, ...]:
    """The output of a path: without repetitions, then without blanks."""
    return tuple(token for token, _ in itertools.groupby(path) if token != BLANK)


def paths(log_probs: Tensor) -> list[tuple[tuple[int, ...], float]]:
    """All paths over (S, V), and their log-probabilities."""
    rows = log_probs.tolist()
    every = itertools.product(range(log_probs.shape[1]), repeat=len(rows))
    return [(path, sum(row[token] for row, token in zip(rows, path, strict=True))) for path in every]


def outputs(log_probs: Tensor) -> dict[tuple[int, ...], float]:
    """All outputs of (S, V), and their log-probabilities: the sums over their paths."""
    totals: dict[tuple[int, ...], float] = {}
    for path, log_prob in paths(log_probs):
        totals[collapse(path)] = totals.get(collapse(path), 0.0) + math.exp(log_prob)
    return {output: math.log(total) for output, total in totals.items()}


def whole(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """One utterance without padding as a batch: (1, S, V), (1,)."""
    return log_probs[None], torch.tensor([len(log_probs)])


@law
@given(seed=seeds, s=frames, v=tokens)
def test_the_loss_is_the_sum_over_all_paths(seed, s, v):
    log_probs = random_log_probs(seed, s, v)
    for output, wanted in outputs(log_probs).items():
        target = torch.tensor([[BOS, *output, EOS, BLANK, BLANK]])  # start, labels, end, padding
        loss = ctc_loss(log_probs[None] + 3, torch.tensor([s]), target, BLANK)  # of logits, which may have any offset
        assert -loss.item() == pytest.approx(wanted, abs=1e-9)


@law
@given(seed=seeds, s=frames, v=tokens)
def test_the_best_path_is_the_most_likely_of_all(seed, s, v):
    log_probs = random_log_probs(seed, s, v)
    path, log_prob = max(paths(log_probs), key=lambda pair: pair[1])
    [found] = best_path(*whole(log_probs))
    assert found.tokens == list(collapse(path))
    assert found.score == pytest.approx(log_prob, abs=1e-9)


@law
@given(seed=seeds, s=frames, v=tokens)
def test_a_wide_prefix_beam_finds_all_outputs_with_their_probabilities(seed, s, v):
    log_probs = random_log_probs(seed, s, v)
    wanted = outputs(log_probs)
    [found] = prefix_beam(*whole(log_probs), width=4**5, min_prob=0.0)
    assert {tuple(h.tokens): pytest.approx(h.score, abs=1e-9) for h in found} == wanted
    assert all(a.score >= b.score for a, b in itertools.pairwise(found))


def test_the_prefix_beam_finds_an_output_that_no_single_path_shows():
    log_probs = torch.tensor([[0.6, 0.4], [0.6, 0.4]]).log()  # "a": 0.4 · 0.6 + 0.6 · 0.4 + 0.4 · 0.4 = 0.64
    [path], [[best, *_]] = best_path(*whole(log_probs)), prefix_beam(*whole(log_probs), width=2)
    assert path.tokens == []
    assert best.tokens == [1]
    assert best.score == pytest.approx(math.log(0.64))


def test_unlikely_tokens_extend_no_output():
    log_probs = torch.tensor([[0.5, 0.499, 0.001]]).log()
    found = {tuple(h.tokens) for h in prefix_beam(*whole(log_probs), width=9, min_prob=0.01)[0]}
    assert found == {(), (1,)}


@law
@given(seed=seeds, s=st.integers(4, 9), width=st.integers(1, 4))
def test_outputs_do_not_depend_on_padding_frames_or_on_the_batch(seed, s, width):
    log_probs, lengths = random_log_probs(seed, 3, s, 4), torch.tensor([s, 1, s - 2])
    together = best_path(log_probs, lengths), prefix_beam(log_probs, lengths, width=width)
    for i, length in enumerate(lengths.tolist()):
        alone = whole(log_probs[i, :length])
        for got, wanted in zip(best_path(*alone), together[0][i : i + 1], strict=True):
            assert got.tokens == wanted.tokens
            assert got.score == pytest.approx(wanted.score)
        assert prefix_beam(*alone, width=width)[0] == together[1][i]


def test_a_beam_of_no_width_is_refused():
    with pytest.raises(ValueError, match="width 0; use a beam of 1 or more"):
        prefix_beam(*whole(random_log_probs(0, 3, 3)), width=0)


# Alignment


def spans_of(path: tuple[int, ...]) -> list[Span]:
    """The runs of a path that are no blanks."""
    starts = itertools.accumulate((len(list(run)) for _, run in itertools.groupby(path)), initial=0)
    runs = [(token, len(list(run))) for token, run in itertools.groupby(path)]
    return [Span(token, start, start + size) for (token, size), start in zip(runs, starts, strict=False) if token != BLANK]


@law
@given(seed=seeds, s=frames, v=tokens)
def test_an_alignment_is_the_best_path_with_that_output(seed, s, v):
    log_probs = random_log_probs(seed, s, v)
    every = paths(log_probs)
    for output in outputs(log_probs):
        path, _ = max((pair for pair in every if collapse(pair[0]) == output), key=lambda pair: pair[1])
        assert align(log_probs, list(output)) == spans_of(path)


@law
@given(seed=seeds, output=st.lists(st.integers(1, 3), max_size=8), more=st.integers(0, 30))
def test_the_spans_of_an_alignment_follow_each_other_within_the_frames(seed, output, more):
    repeats = sum(a == b for a, b in itertools.pairwise(output))
    s = len(output) + repeats + more
    spans = align(random_log_probs(seed, max(s, 1), 4), output)
    assert [span.token for span in spans] == output
    assert all(0 <= span.start < span.stop <= max(s, 1) for span in spans)
    for before, after in itertools.pairwise(spans):
        assert before.stop + (before.token == after.token) <= after.start  # a blank between equal tokens


def test_more_tokens_than_frames_are_refused():
    with pytest.raises(ValueError, match="3 tokens, 1 of them repeated, need 4 frames, got 3"):
        align(random_log_probs(0, 3, 4), [1, 2, 2])


# Prefix scores


class Given:
    """The log-probabilities of utterances as the source of a search."""

    def __init__(self, log_probs: Tensor, lengths: Tensor):
        self.parts, self.device = (log_probs, lengths), log_probs.device

    def __len__(self):
        return len(self.parts[0])

    def __iter__(self):
        return iter(self.parts)


def without_marks(seed: int, s: int) -> Tensor:
    """Log-probabilities (S, 5) in which start and end are tokens of no path."""
    log_probs = random_log_probs(seed, s, 5)
    log_probs[:, [BOS, EOS]] = -math.inf
    return log_probs.log_softmax(-1)


def prefix_probability(every: dict[tuple[int, ...], float], prefix: tuple[int, ...]) -> float:
    """The probability of all outputs that start with a prefix."""
    return sum(math.exp(log_prob) for output, log_prob in every.items() if output[: len(prefix)] == prefix)


def reached(log_probs: Tensor, lengths: Tensor, prefix: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Scores of the tokens after a prefix (B, V), and the sum of the scores of its own tokens (B,)."""
    ctc = PrefixScores(EOS, BLANK)
    state, total = ctc.start((log_probs, lengths)), torch.zeros(len(log_probs), dtype=torch.float64)
    scores, state = ctc.step(torch.full_like(lengths, BOS), state)
    for token in prefix:
        total = total + scores[:, token]
        scores, state = ctc.step(torch.full_like(lengths, token), state)
    return scores, total


@law
@given(seed=seeds, s=frames, prefix=st.lists(st.sampled_from([3, 4]), max_size=3))
def test_prefix_scores_are_sums_over_all_outputs_that_start_so(seed, s, prefix):
    log_probs, prefix = without_marks(seed, s), tuple(prefix)
    every = {tuple(token + 2 for token in output): value for output, value in outputs(log_probs[:, [0, 3, 4]]).items()}
    before = prefix_probability(every, prefix)
    if not before:
        return
    scores, total = reached(*whole(log_probs), prefix)
    assert total.exp().item() == pytest.approx(before, rel=1e-9)
    for token in (3, 4):
        wanted = prefix_probability(every, (*prefix, token)) / before
        assert scores[0, token].exp().item() == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    assert scores[0, EOS].exp().item() == pytest.approx(math.exp(every.get(prefix, -math.inf)) / before, rel=1e-9, abs=1e-12)
    assert scores[0, BLANK] == -math.inf


@law
@given(seed=seeds, s=st.integers(4, 9), prefix=st.lists(st.sampled_from([3, 4]), max_size=3))
def test_prefix_scores_do_not_depend_on_padding_frames_or_on_the_batch(seed, s, prefix):
    log_probs, lengths = random_log_probs(seed, 3, s, 5), torch.tensor([s, 1, s - 2])
    together, totals = reached(log_probs, lengths, tuple(prefix))
    for i, length in enumerate(lengths.tolist()):
        scores, total = reached(*whole(log_probs[i, :length]), tuple(prefix))
        if total.isfinite():
            torch.testing.assert_close(total[0], totals[i])
            torch.testing.assert_close(scores[0], together[i])


def test_prefix_scores_of_reordered_rows_continue_as_if_alone():
    log_probs, lengths = random_log_probs(0, 2, 8, 5), torch.tensor([8, 6])
    ctc = PrefixScores(EOS, BLANK)
    _, state = ctc.step(torch.full((2,), BOS), ctc.start((log_probs, lengths)))
    state = reorder(state, torch.tensor([[1, 1, 1], [0, 0, 0]]))  # three beams each, the utterances swapped
    scores, state = ctc.step(torch.tensor([3, 4, 3, 3, 4, 4]), state)
    state = reorder(state, torch.tensor([[5, 4], [0, 1]]))
    scores, _ = ctc.step(torch.tensor([3, 4, 4, 4]), state)
    for row, (i, prefix) in enumerate(((0, (4, 3)), (0, (4, 4)), (1, (3, 4)), (1, (4, 4)))):
        torch.testing.assert_close(scores[row], reached(log_probs[i : i + 1], lengths[i : i + 1], prefix)[0][0])


@law
@given(seed=seeds, s=frames)
def test_a_wide_beam_over_prefix_scores_finds_the_most_likely_output(seed, s):
    log_probs = without_marks(seed, s)
    best, score = max(outputs(log_probs[:, [0, 3, 4]]).items(), key=lambda pair: pair[1])
    [found] = beam(PrefixScores(EOS), Given(*whole(log_probs)), torch.tensor([s + 1]), bos=BOS, eos=EOS, width=40, penalty=0.0)
    assert found[0].tokens == [token + 2 for token in best]
    assert found[0].score == pytest.approx(score, abs=1e-5)  # the total is float32


@law
@given(seed=seeds, s=st.integers(1, 9))
def test_a_beam_of_one_over_prefix_scores_is_greedy(seed, s):
    log_probs, lengths = random_log_probs(seed, 3, s, 5), torch.tensor([s, 1, max(1, s - 2)])
    source, limits = Given(log_probs, lengths), lengths + 1
    narrow = beam(PrefixScores(EOS), source, limits, bos=BOS, eos=EOS, width=1)
    for [got], wanted in zip(narrow, greedy(PrefixScores(EOS), source, limits, bos=BOS, eos=EOS), strict=True):
        assert got.tokens == wanted.tokens
        assert got.score == pytest.approx(wanted.score, abs=1e-5)
