"""An ensemble: the mean of the probabilities of its models, in every search and for models of different families."""

from itertools import product

import pytest
import torch
from cli_checks import assert_refused
from hypothesis import given, settings
from hypothesis import strategies as st
from small import SMALL
from torch import Tensor, nn

from regard.data.text.toys import toy_pairs
from regard.decode.ensemble import Ensemble
from regard.decode.fast import decoder
from regard.decode.search import beam, greedy
from regard.decode.step import reorder
from regard.models.bahdanau import Bahdanau, BahdanauConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.tasks import read_run
from regard.tasks.load import load
from regard.tasks.translation import Translator
from regard.train.loop import fit

BOS, EOS, VOCAB = 1, 2, 7
TEXTS = [source for source, _ in toy_pairs("reverse", "test", 12)]
law = settings(max_examples=8)


def random_weights(model: nn.Module, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.6)
    return model.double().eval().requires_grad_(False)


MODELS = [
    random_weights(Transformer(TransformerConfig(vocab=VOCAB, dim=8, depth=2, heads=2, mlp_ratio=2, max_len=24)), 1),
    random_weights(Transformer(TransformerConfig(vocab=VOCAB, dim=8, depth=1, heads=4, mlp_ratio=2, norm="post", max_len=24)), 2),
    random_weights(Bahdanau(BahdanauConfig(vocab=VOCAB, dim=6, hidden=5, align=4, readout=6, max_len=24)), 3),
]


def ensemble(models: list[nn.Module]) -> Ensemble:
    return Ensemble([decoder(model) for model in models])


def mean_probabilities(source: Tensor, output: list[int]) -> Tensor:
    """What follows an output, from full passes of every model: (V,)."""
    target = torch.tensor([[BOS, *output]])
    return torch.stack([model(source, target)[0, -1].softmax(-1) for model in MODELS]).mean(0)


def sources(seed: int, batch: int = 3) -> Tensor:
    return torch.randint(3, VOCAB, (batch, 5), generator=torch.Generator().manual_seed(seed))


@law
@given(st.integers(0, 10_000))
def test_each_step_is_the_mean_of_the_probabilities_of_full_passes(seed):
    source, both = sources(seed, 1), ensemble(MODELS)
    state, output = both.start(source), list[int]()
    for token in [BOS, *sources(seed + 1, 1)[0].tolist()]:
        output += [token] if token != BOS else []
        logprobs, state = both.step(torch.tensor([token]), state)
        torch.testing.assert_close(logprobs[0].exp(), mean_probabilities(source, output), rtol=0, atol=1e-9)


@law
@given(st.integers(0, 10_000))
def test_a_wide_beam_finds_the_most_probable_output_of_the_mean(seed):
    source = sources(seed, 1)
    limit = 3
    outputs = [list(ids) for n in range(limit) for ids in product([t for t in range(VOCAB) if t != EOS], repeat=n)]

    def log_probability(ids: list[int]) -> float:
        steps = [mean_probabilities(source, ids[:n])[token] for n, token in enumerate([*ids, EOS])]
        return float(torch.stack(steps).log().sum())

    best = max(outputs, key=log_probability)
    found = beam(ensemble(MODELS), source, torch.tensor([limit]), bos=BOS, eos=EOS, width=VOCAB**2, penalty=0.0)[0]
    ended = next(hypothesis for hypothesis in found if len(hypothesis.tokens) < limit)
    assert ended.tokens == best
    assert ended.score == pytest.approx(log_probability(best), abs=1e-9)


@pytest.mark.parametrize("model", MODELS, ids=["pre-norm", "post-norm", "bahdanau"])
def test_one_model_several_times_searches_as_it_does_alone(model):
    source, limits = sources(7), torch.full((3,), 9)
    for search, options in ((greedy, {}), (beam, {"width": 4})):
        alone = search(decoder(model), source, limits, bos=BOS, eos=EOS, **options)
        same = search(ensemble([model] * 3), source, limits, bos=BOS, eos=EOS, **options)
        for one, other in zip(alone, same, strict=True):
            one, other = (found if isinstance(found, list) else [found] for found in (one, other))
            assert [hypothesis.tokens for hypothesis in one] == [hypothesis.tokens for hypothesis in other]
            assert [hypothesis.score for hypothesis in one] == pytest.approx([hypothesis.score for hypothesis in other], abs=1e-9)


def test_rows_of_all_states_are_selected_together():
    source, both = sources(3), ensemble(MODELS)
    rows = torch.tensor([2, 0, 0])
    _, state = both.step(torch.full((3,), BOS), both.start(source))
    moved, _ = both.step(torch.full((3,), 4), reorder(state, rows))
    plain, _ = both.step(torch.full((3,), 4), state)
    torch.testing.assert_close(moved, plain[rows], rtol=0, atol=1e-9)


# Runs


@pytest.fixture(scope="module")
def other_seed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "seed2"
    fit(read_run("reverse", (*SMALL, "train.steps=10", "train.seed=2")), folder)
    return folder


def test_translators_join_and_keep_what_else_they_do(small_run, other_seed):
    first, second = load(small_run, "cpu"), load(other_seed, "cpu")
    assert isinstance(first, Translator)
    texts = [answer.text for answer in first.translate(TEXTS, beam=2, tokens=12)]
    twice = first.ensemble(first)
    assert [answer.text for answer in twice.translate(TEXTS, beam=2, tokens=12)] == texts
    joined = first.ensemble(second)
    answers = joined.translate(TEXTS, beam=2, tokens=12, details=True)
    assert [answer.text for answer in answers] != texts
    assert all(answer.coverage is not None for answer in answers)  # from the attention of the first
    there = [answer.text for answer in second.ensemble(first).translate(TEXTS, beam=2, tokens=12)]
    assert [answer.text for answer in answers] == there  # a mean does not depend on the order


def test_the_verbs_take_further_runs(regard, small_run, other_seed, tmp_path):
    wanted = load(small_run, "cpu").ensemble(load(other_seed, "cpu")).translate(TEXTS[:2], beam=2)
    found = regard("translate", small_run, "--ensemble", other_seed, "--beam", 2, *TEXTS[:2])
    assert found.out.splitlines() == [answer.text for answer in wanted], found.err
    scored = regard("score", small_run, "--ensemble", other_seed, "--beam", 2, "--json")
    alone = regard("score", small_run, "--beam", 2, "--json")
    assert scored.code == alone.code == 0
    assert scored.out != alone.out


def test_models_of_other_tokens_are_refused(regard, small_run, other_seed, text_runs, tmp_path):
    refused = regard("translate", small_run, "--ensemble", text_runs / "t5", "a b")
    assert_refused(refused, "has another tokenizer than", "trained on the same data")
    assert_refused(regard("translate", small_run, "--ensemble", text_runs / "gpt", "a b"), "regard translate does not take")
    assert_refused(regard("score", text_runs / "gpt", "--ensemble", small_run), "--ensemble", "is for translations")
    assert_refused(regard("translate", small_run, "--ensemble", tmp_path / "none", "a b"), "none is not a run folder")
