"""The record of a search tells what the search did, and changes nothing."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_search import BOS, EOS, Recurrent, rows

from regard.decode.search import beam, greedy
from regard.decode.trace import SearchTrace

law = settings(max_examples=30)
limits = st.lists(st.integers(1, 6), min_size=1, max_size=4)


def outputs(trace: SearchTrace, sentence: int) -> dict[tuple[int, ...], float]:
    """The finished outputs of a sentence and their scores, by following the branches."""
    found, beams = {}, {0: ()}
    for step in trace.sentences[sentence]:
        following = {}
        for branch in step.branches:
            output = (*beams[branch.parent], branch.token)
            assert step.beams[branch.parent].inputs == [BOS, *beams[branch.parent]]
            if branch.fate == "finished":
                found[output] = branch.score
            if branch.fate == "kept":
                following[branch.beam] = output
        assert sorted(following) == list(range(len(following)))
        beams = following
    return found


@law
@given(seed=st.integers(0, 10_000), limits=limits, width=st.integers(1, 4))
def test_the_finished_branches_of_a_beam_search_are_its_outputs(seed, limits, width):
    model, source, how = Recurrent(seed, 6), rows(*range(len(limits))), {"bos": BOS, "eos": EOS, "width": width, "penalty": 0.0}
    trace = SearchTrace(top=3)
    traced = beam(model, source, torch.tensor(limits), **how, recorder=trace)
    assert traced == beam(model, source, torch.tensor(limits), **how)
    for i, hypotheses in enumerate(traced):
        found = outputs(trace, i)
        best = sorted(found, key=lambda output: -found[output])[:width]
        assert [[t for t in output if t != EOS] for output in best] == [h.tokens for h in hypotheses]
        assert [found[output] for output in best] == pytest.approx([h.score for h in hypotheses])


@law
@given(seed=st.integers(0, 10_000), limits=limits)
def test_greedy_search_is_a_trace_of_one_beam(seed, limits):
    model, source, trace = Recurrent(seed, 6), rows(*range(len(limits))), SearchTrace(top=2)
    traced = greedy(model, source, torch.tensor(limits), bos=BOS, eos=EOS, penalty=0.0, recorder=trace)
    assert traced == greedy(model, source, torch.tensor(limits), bos=BOS, eos=EOS, penalty=0.0)
    for i, hypothesis in enumerate(traced):
        [(output, score)] = outputs(trace, i).items()
        assert [t for t in output if t != EOS] == hypothesis.tokens
        assert score == pytest.approx(hypothesis.score)


@law
@given(seed=st.integers(0, 10_000), width=st.integers(1, 3))
def test_the_likely_tokens_are_those_of_the_model(seed, width):
    model, trace = Recurrent(seed, 6), SearchTrace(top=3)
    beam(model, rows(2), torch.tensor([4]), bos=BOS, eos=EOS, width=width, recorder=trace)
    for number, step in enumerate(trace.sentences[0], 1):
        assert step.number == number
        for traced in step.beams:
            before, after = traced.inputs[1:], range(6)
            wanted = {t: math.exp(model.log_probability(2, [*before, t]) - model.log_probability(2, before)) for t in after}
            best = sorted(wanted, key=lambda t: -wanted[t])[:3]
            assert [likely.token for likely in traced.top] == best
            assert [likely.probability for likely in traced.top] == pytest.approx([wanted[t] for t in best])
        for branch in step.branches:
            before = step.beams[branch.parent].inputs[1:]
            assert branch.score == pytest.approx(model.log_probability(2, [*before, branch.token]))
