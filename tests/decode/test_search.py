"""Search on models small enough to enumerate every output."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.decode.search import beam, greedy, sample, sampler

BOS, EOS = 1, 0

law = settings(max_examples=30)


class Recurrent:
    """h ← tanh(A h + token's row), logits C h: a model in which all outputs have different probabilities."""

    def __init__(self, seed: int, vocab: int):
        random = torch.Generator().manual_seed(seed)
        normal = {"generator": random, "dtype": torch.float64}
        self.a, self.c = torch.randn(4, 4, **normal), 2 * torch.randn(vocab, 4, **normal)
        self.rows, self.begin = torch.randn(max(vocab, BOS + 1), 4, **normal), torch.randn(8, 4, **normal)
        self.vocab = vocab
        self.batches: list[int] = []

    def start(self, source):
        return {"h": self.begin[source[:, 0]]}

    def step(self, token, state):
        self.batches.append(len(token))
        h = torch.tanh(state["h"] @ self.a.T + self.rows[token])
        return h @ self.c.T, {"h": h}

    def log_probability(self, source: int, output: list[int]) -> float:
        """Of an output's tokens, without start or step."""
        h, total = self.begin[source], 0.0
        for before, token in zip([BOS, *output], output, strict=False):
            h = torch.tanh(self.a @ h + self.rows[before])
            total += (self.c @ h).log_softmax(-1)[token].item()
        return total


class Fixed:
    """A model with the same logits at each step."""

    def __init__(self, logits: list[float]):
        self.logits = torch.tensor(logits)

    def start(self, source):
        return source

    def step(self, token, state):
        return self.logits.expand(len(token), -1), state


def every_output(model: Recurrent, source: int, limit: int, penalty: float) -> list[tuple[list[int], float]]:
    """All outputs that end, and all that reach the limit, best first."""
    others = [token for token in range(model.vocab) if token != EOS]
    ended = [[*ids, EOS] for n in range(limit) for ids in itertools.product(others, repeat=n)]
    cut = [list(ids) for ids in itertools.product(others, repeat=limit)]
    scored = [
        ([t for t in output if t != EOS], model.log_probability(source, output) / len(output) ** penalty)
        for output in ended + cut
    ]
    return sorted(scored, key=lambda pair: -pair[1])


def rows(*ids: int) -> torch.Tensor:
    return torch.tensor(ids)[:, None]


# Beam


@law
@given(seed=st.integers(0, 10_000), vocab=st.integers(2, 4), limits=st.lists(st.integers(1, 4), min_size=1, max_size=3),
       penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]))  # fmt: skip
def test_a_beam_as_wide_as_all_outputs_is_exhaustive_search(seed, vocab, limits, penalty):
    model = Recurrent(seed, vocab)
    sources = [(seed + i) % 8 for i in range(len(limits))]
    everything = [every_output(model, s, n, penalty) for s, n in zip(sources, limits, strict=True)]
    width = max(map(len, everything))
    found = beam(model, rows(*sources), torch.tensor(limits), bos=BOS, eos=EOS, width=width, penalty=penalty)
    for got, wanted in zip(found, everything, strict=True):
        assert sorted(h.tokens for h in got) == sorted(tokens for tokens, _ in wanted)
        assert [h.score for h in got] == pytest.approx([score for _, score in wanted])
        assert got[0].tokens == wanted[0][0]


def plain_beam(model: Recurrent, source: int, limit: int, width: int, penalty: float) -> list[tuple[list[int], float]]:
    """Beam search of one sentence over lists of tokens, each scored from scratch."""
    alive: list[list[int]] = [[]]
    done: list[tuple[list[int], float]] = []
    for length in range(1, limit + 1):
        grown = [(model.log_probability(source, [*output, t]), [*output, t]) for output in alive for t in range(model.vocab)]
        best = sorted(grown, reverse=True)[: 2 * width]
        done += [(output, p / length**penalty) for p, output in best[:width] if output[-1] == EOS or length == limit]
        alive = [output for _, output in best if output[-1] != EOS][:width]
        if len(done) >= width:
            break
    return [([t for t in output if t != EOS], score) for output, score in sorted(done, key=lambda d: -d[1])[:width]]


@law
@given(seed=st.integers(0, 10_000), limits=st.lists(st.integers(3, 6), min_size=4, max_size=4), width=st.integers(1, 4),
       penalty=st.sampled_from([0.0, 0.6, 1.0]))  # fmt: skip
def test_a_narrow_beam_equals_plain_beam_search_of_one_sentence(seed, limits, width, penalty):
    model = Recurrent(seed, 4)
    source = rows(*range(len(limits)))
    found = beam(model, source, torch.tensor(limits), bos=BOS, eos=EOS, width=width, penalty=penalty)
    for i, (limit, got) in enumerate(zip(limits, found, strict=True)):
        wanted = plain_beam(model, i, limit, width, penalty)
        assert [h.tokens for h in got] == [tokens for tokens, _ in wanted]
        assert [h.score for h in got] == pytest.approx([score for _, score in wanted])


@law
@given(seed=st.integers(0, 10_000), width=st.integers(1, 4), penalty=st.sampled_from([0.0, 1.0]))
def test_outputs_are_distinct_sorted_by_score_and_scored_correctly(seed, width, penalty):
    model = Recurrent(seed, 5)
    found = beam(model, rows(0, 1, 2), torch.tensor([5, 3, 6]), bos=BOS, eos=EOS, width=width, penalty=penalty)
    for source, limit, n_best in zip((0, 1, 2), (5, 3, 6), found, strict=True):
        assert len({tuple(h.tokens) for h in n_best}) == len(n_best) == width
        assert [h.score for h in n_best] == sorted((h.score for h in n_best), reverse=True)
        for tokens, score, _ in n_best:
            output = tokens if len(tokens) == limit else [*tokens, EOS]
            assert score == pytest.approx(model.log_probability(source, output) / len(output) ** penalty)


@law
@given(seed=st.integers(0, 10_000), vocab=st.integers(2, 6), limits=st.lists(st.integers(1, 8), min_size=1, max_size=4),
       penalty=st.sampled_from([0.0, 0.6, 1.0]))  # fmt: skip
def test_a_beam_of_one_equals_greedy(seed, vocab, limits, penalty):
    model, source = Recurrent(seed, vocab), rows(*range(len(limits)))
    options = {"bos": BOS, "eos": EOS, "penalty": penalty}
    wide = beam(model, source, torch.tensor(limits), width=1, **options)
    for [hypothesis], wanted in zip(wide, greedy(model, source, torch.tensor(limits), **options), strict=True):
        assert hypothesis.tokens == wanted.tokens
        assert hypothesis.score == pytest.approx(wanted.score)


def test_a_beam_of_two_finds_what_greedy_misses():
    class GardenPath:
        """Token 2 is more likely at first, but only after 3 is the end certain."""

        def start(self, source):
            return source

        def step(self, token, state):
            after = {BOS: [0.0, 0.0, 0.6, 0.4], 2: [0.26, 0.25, 0.25, 0.24], 3: [1.0, 0.0, 0.0, 0.0]}
            return torch.tensor([after.get(t, [0.25] * 4) for t in token.tolist()]).log(), state

    options = {"bos": BOS, "eos": EOS, "penalty": 0.0}
    [narrow] = greedy(GardenPath(), rows(0), torch.tensor([5]), **options)
    [[best, *_]] = beam(GardenPath(), rows(0), torch.tensor([5]), width=2, **options)
    assert narrow.tokens == [2]
    assert best.tokens == [3]
    assert best.score == pytest.approx(math.log(0.4))


def test_a_length_penalty_favours_longer_outputs():
    model = Fixed([math.log(0.3), -math.inf, math.log(0.7)])
    short, long = (beam(model, rows(0), torch.tensor([4]), bos=BOS, eos=EOS, width=5, penalty=p)[0][0] for p in (0.0, 2.0))
    assert short.tokens == []  # 0.3, more than 0.7 × 0.7 × 0.7 × …
    assert long.tokens == [2, 2, 2, 2]


def test_a_token_of_probability_zero_is_never_output():
    model = Fixed([0.0, -math.inf, 1.0, -math.inf])
    [found] = beam(model, rows(0), torch.tensor([3]), bos=BOS, eos=EOS, width=4)
    assert sorted(h.tokens for h in found) == [[], [2], [2, 2], [2, 2, 2]]


# Greedy


@law
@given(seed=st.integers(0, 10_000), limits=st.lists(st.integers(1, 8), min_size=1, max_size=5))
def test_greedy_takes_the_most_likely_token_each_time(seed, limits):
    model = Recurrent(seed, 5)
    found = greedy(model, rows(*range(len(limits))), torch.tensor(limits), bos=BOS, eos=EOS)
    for source, (limit, (tokens, score, _)) in enumerate(zip(limits, found, strict=True)):
        output: list[int] = []
        while len(output) < limit and EOS not in output:
            output.append(max(range(5), key=lambda t: model.log_probability(source, [*output, t])))
        assert tokens == [t for t in output if t != EOS]
        assert score == pytest.approx(model.log_probability(source, output) / len(output), abs=1e-6)


def test_a_model_that_never_ends_stops_at_each_limit():
    model = Fixed([-9.0, 0.0, 1.0])
    limits = torch.tensor([3, 1, 5])
    assert [h.tokens for h in greedy(model, rows(0, 0, 0), limits, bos=BOS, eos=EOS)] == [[2] * 3, [2], [2] * 5]
    best = [n_best[0].tokens for n_best in beam(model, rows(0, 0, 0), limits, bos=BOS, eos=EOS, width=2)]
    assert best == [[2] * 3, [2], [2] * 5]


def test_the_end_token_counts_in_the_length_and_is_not_output():
    model = Fixed([2.0, 0.0])
    [found] = greedy(model, rows(0), torch.tensor([9]), bos=BOS, eos=EOS)
    assert found.tokens == []
    assert found.score == pytest.approx(-math.log(1 + math.exp(-2)))


@pytest.mark.parametrize("width", [0, 1, 3], ids=["greedy", "beam of 1", "beam of 3"])
def test_a_finished_sentence_leaves_the_batch(width):
    model, limits = Recurrent(0, 5), torch.tensor([1, 2, 4])
    options = {"bos": BOS, "eos": 5}  # an end token that is never output, so that the limits decide
    if width:
        beam(model, rows(0, 1, 2), limits, width=width, **options)
    else:
        greedy(model, rows(0, 1, 2), limits, **options)
    assert model.batches == [n * max(1, width) for n in (3, 2, 1, 1)]


def test_an_empty_batch_has_no_outputs():
    none, limits = torch.empty(0, 1, dtype=torch.long), torch.empty(0, dtype=torch.long)
    assert greedy(Recurrent(0, 5), none, limits, bos=BOS, eos=EOS) == []
    assert beam(Recurrent(0, 5), none, limits, bos=BOS, eos=EOS, width=3) == []


# Sampling


def counts(logits: list[float], n: int = 1, seed: int = 0, **options) -> torch.Tensor:
    """How often each token is sampled, of n; no token is the end."""
    random = torch.Generator().manual_seed(seed)
    source, limits = torch.zeros(n, 1, dtype=torch.long), torch.ones(n, dtype=torch.long)
    found = sample(Fixed(logits), source, limits, bos=BOS, eos=99, generator=random, **options)
    return torch.bincount(torch.tensor([h.tokens[0] for h in found]), minlength=len(logits))


LOGITS = [1.0, -0.5, 2.0, 0.3, -1.0]


def check_frequencies(found: torch.Tensor, p: torch.Tensor) -> None:
    n = found.sum().item()
    noise = (p * (1 - p) / n).sqrt()
    assert ((found / n - p).abs() <= 5 * noise).all()
    assert (found[p == 0] == 0).all()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_are_sampled_by_their_probability(temperature):
    check_frequencies(counts(LOGITS, 20_000, temperature=temperature), (torch.tensor(LOGITS) / temperature).softmax(0))


@pytest.mark.parametrize("top_k", [1, 2, 3, 5, 9])
def test_top_k_samples_only_the_k_most_likely(top_k):
    keep = sorted(range(5), key=lambda i: -LOGITS[i])[:top_k]
    p = torch.tensor([math.exp(x) if i in keep else 0.0 for i, x in enumerate(LOGITS)])
    check_frequencies(counts(LOGITS, 5000, top_k=top_k), p / p.sum())


@pytest.mark.parametrize(("top_p", "kept"), [(0.05, 1), (0.55, 1), (0.65, 2), (0.85, 3), (0.95, 4), (1.0, 5)])
def test_top_p_samples_only_the_fewest_tokens_with_probability_p(top_p, kept):
    p = torch.tensor(LOGITS).softmax(0)
    order = p.argsort(descending=True)
    assert p[order[:kept]].sum() >= top_p - 1e-6  # the case is right: enough, and one fewer is not
    assert p[order[: kept - 1]].sum() < top_p
    p[order[kept:]] = 0
    check_frequencies(counts(LOGITS, 5000, top_p=top_p), p / p.sum())


@pytest.mark.parametrize("how", [{"temperature": 1e-320}, {"top_p": 1e-320}, {"temperature": 1e-320, "top_p": 1e-320}])
def test_values_that_float32_rounds_to_0_choose_the_most_likely_token(how):
    logits = torch.tensor([[0.0, 3.0, -1.0], [1e4, 0.0, -1e4]])
    draw = sampler(torch.Generator().manual_seed(0), **how)
    assert draw.probabilities(logits).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert draw(logits).tolist() == [1, 0]


def test_top_p_applies_after_temperature_and_top_k():
    p = (torch.tensor(LOGITS) / 0.5).softmax(0)
    p[[1, 3, 4]] = 0
    p = p / p.sum()
    assert p.max() > 0.85  # after both one token suffices; before, it had 0.59
    assert counts(LOGITS, 500, temperature=0.5, top_k=2, top_p=0.85).tolist() == [0, 0, 500, 0, 0]


@law
@given(seed=st.integers(0, 10_000), options=st.sampled_from([{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}]))
def test_sampling_only_the_most_likely_token_is_greedy(seed, options):
    model, source, limits = Recurrent(seed, 6), rows(0, 1, 2), torch.tensor([7, 4, 9])
    random = torch.Generator().manual_seed(seed)
    got = sample(model, source, limits, bos=BOS, eos=EOS, generator=random, **options)
    for sampled, wanted in zip(got, greedy(model, source, limits, bos=BOS, eos=EOS), strict=True):
        assert sampled.tokens == wanted.tokens
        assert sampled.score == pytest.approx(wanted.score)  # of the model, not of the truncated distribution


def test_the_same_seed_samples_the_same():
    def run(seed):
        random = torch.Generator().manual_seed(seed)
        source, limits = torch.zeros(8, 1, dtype=torch.long), torch.full((8,), 9)
        return sample(Recurrent(0, 6), source, limits, bos=BOS, eos=EOS, generator=random, temperature=2.0)

    assert run(5) == run(5)
    assert run(5) != run(6)


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}], ids=str
)
def test_sampling_refuses_invalid_options(options):
    with pytest.raises(ValueError, match="use a temperature above 0, a top_k of 0 or more, a top_p above 0 up to 1"):
        counts(LOGITS, **options)


@pytest.mark.parametrize("width", [0, -1])
def test_a_beam_without_width_is_refused(width):
    with pytest.raises(ValueError, match="width"):
        beam(Recurrent(0, 4), rows(0), torch.tensor([3]), bos=BOS, eos=EOS, width=width)


# Log-probabilities of tokens


@law
@given(seed=st.integers(0, 10_000), limits=st.lists(st.integers(1, 7), min_size=1, max_size=5), width=st.integers(1, 4))
def test_the_log_probability_of_each_token_is_that_of_the_model(seed, limits, width):
    model, source, ends = Recurrent(seed, 5), rows(*range(len(limits))), {"bos": BOS, "eos": EOS, "logprobs": True}
    random = torch.Generator().manual_seed(seed)
    found = [
        beam(model, source, torch.tensor(limits), width=width, **ends),
        [[h] for h in greedy(model, source, torch.tensor(limits), **ends, scored=False)],
        [[h] for h in sample(model, source, torch.tensor(limits), **ends, generator=random)],
    ]
    for outputs in found:
        for i, (limit, n_best) in enumerate(zip(limits, outputs, strict=True)):
            for tokens, _, logprobs in n_best:
                output = tokens if len(tokens) == limit else [*tokens, EOS]
                so_far = [model.log_probability(i, output[:n]) for n in range(len(output) + 1)]
                assert logprobs == pytest.approx([b - a for a, b in itertools.pairwise(so_far)])


def test_log_probabilities_are_computed_only_if_asked_for():
    model, limits = Recurrent(0, 5), torch.tensor([4])
    assert greedy(model, rows(0), limits, bos=BOS, eos=EOS)[0].logprobs is None
    assert beam(model, rows(0), limits, bos=BOS, eos=EOS, width=2)[0][0].logprobs is None
