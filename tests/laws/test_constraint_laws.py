"""Laws of constrained search: every phrase appears, whatever the model; outputs that need no change have none."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.config import DecodeConfig
from regard.decode import search
from regard.decode.constraints import PhraseAllocation, Required, constrained, contains, required_phrases
from regard.decode.fast import decoder
from regard.decode.logits_processors import logits_processor
from regard.decode.search import Hypothesis
from regard.models.transformer import Transformer, TransformerConfig

EOS, BOS, VOCAB, DEFAULT = 0, 1, 9, DecodeConfig()

law = settings(max_examples=60)
seeds, widths = st.integers(0, 10_000), st.integers(1, 4)
tokens = st.integers(1, VOCAB - 1)
phrases = st.lists(tokens, min_size=1, max_size=3)
constraints = st.one_of(phrases, st.lists(phrases, min_size=1, max_size=3))
of_sentences = st.lists(st.lists(constraints, max_size=3), min_size=1, max_size=4)


class RandomModel:
    """Any next token after any tokens: logits drawn from the sentence, the time step and the last token."""

    def __init__(self, seed: int, spread: float = 3.0, end: float = 0.0):
        self.table = spread * torch.randn(8, 64, VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed))
        self.table[..., EOS] += end

    def start(self, source: Tensor) -> dict[str, Tensor]:
        return {"source": source[:, 0], "time": torch.zeros_like(source[:, 0])}

    def step(self, token: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return self.table[state["source"], state["time"], token], {**state, "time": state["time"] + 1}


def run(model, required: list[Required], limits: list[int], width: int, decode: DecodeConfig = DEFAULT) -> list[list[Hypothesis]]:
    """Sentences 0, 1, 2, ... of a model, as a translator searches for them."""
    ends = {"bos": BOS, "eos": EOS, "processor": logits_processor(decode, EOS)}

    def plain(source: Tensor, limits: Tensor) -> list[list[Hypothesis]]:
        if width == 1:
            return [[hypothesis] for hypothesis in search.greedy(model, source, limits, **ends)]
        return search.beam(model, source, limits, width=width, **ends)

    def beam(rows: list[int], source: Tensor, limits: Tensor, width: int, allocation: PhraseAllocation) -> list[list[Hypothesis]]:
        return search.beam(model, source, limits, width=width, allocation=allocation, **ends)

    source, most = torch.arange(len(required))[:, None], torch.tensor(limits)
    return constrained(source, most, most, required, width=width, eos=EOS, decode=decode, plain=plain, beam=beam)


def occurs(phrase: tuple[int, ...], output: list[int]) -> bool:
    return any(tuple(output[i : i + len(phrase)]) == phrase for i in range(len(output)))


@law
@given(seed=seeds, wanted=of_sentences, width=widths, spare=st.integers(0, 4), end=st.sampled_from([-5.0, 0.0, 5.0]))
def test_every_phrase_appears_within_the_limit_whatever_the_model(seed, wanted, width, spare, end):
    required = [required_phrases(phrases, EOS) for phrases in wanted]
    limits = [max(1, sum(of.shortest) + spare) for of in required]
    for of, limit, outputs in zip(required, limits, run(RandomModel(seed, end=end), required, limits, width), strict=True):
        assert 1 <= len(outputs) <= width
        for output in outputs:
            assert len(output.tokens) <= limit
            assert math.isfinite(output.score)
            for phrase in of.phrases:
                assert any(occurs(alternative, output.tokens) for alternative in phrase)


@law
@given(seed=seeds, count=st.integers(2, 3), phrase=phrases, width=widths)
def test_a_phrase_that_is_wanted_several_times_appears_so_often(seed, count, phrase, width):
    required = required_phrases([phrase] * count, EOS)
    [outputs] = run(RandomModel(seed), [required], [count * len(phrase) + 3], width)
    for output in outputs:
        rest, times = list(output.tokens), 0
        while (at := next((i for i in range(len(rest)) if rest[i : i + len(phrase)] == phrase), None)) is not None:
            rest, times = rest[at + len(phrase) :], times + 1
        assert times >= count


@law
@given(seed=seeds, sentences=st.integers(1, 4), width=widths, limit=st.integers(1, 8))
def test_without_phrases_the_search_is_the_plain_one(seed, sentences, width, limit):
    model, limits = RandomModel(seed), torch.full((sentences,), limit)
    found = run(model, [Required(())] * sentences, limits.tolist(), width)
    source = torch.arange(sentences)[:, None]
    wanted = search.beam(model, source, limits, bos=BOS, eos=EOS, width=width)
    assert [[h.tokens for h in outputs] for outputs in found] == [[h.tokens for h in outputs] for outputs in wanted]


@law
@given(seed=seeds, width=widths, limit=st.integers(3, 8), data=st.data())
def test_an_output_that_has_the_phrases_already_stays_as_it_is(seed, width, limit, data):
    model, source, limits = RandomModel(seed, end=-2.0), torch.tensor([[0]]), torch.tensor([limit])
    [[best, *_]] = search.beam(model, source, limits, bos=BOS, eos=EOS, width=width)
    if not best.tokens:
        return
    first = data.draw(st.integers(0, len(best.tokens) - 1))
    phrase = best.tokens[first : data.draw(st.integers(first + 1, len(best.tokens)))]
    [[found, *_]] = run(model, [required_phrases([[phrase, [1, 2, 3, 4, 5]]], EOS)], [limit], width)
    assert found.tokens == best.tokens
    assert found.score == pytest.approx(best.score)


@law
@given(seed=seeds, wanted=st.lists(phrases, min_size=1, max_size=2), width=widths)
def test_sentences_searched_together_get_what_each_gets_alone(seed, wanted, width):
    """Of a real decoder, whose beams share a cache."""
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(vocab=VOCAB, dim=8, depth=1, heads=2, mlp_ratio=2, pad=VOCAB - 1)).double().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p)
    steps, required = decoder(model), [required_phrases(part, EOS) for part in ([], wanted, wanted[:1])]

    class Shifted:
        """Sentence n is [n + 2], so that one alone can be asked for."""

        def __init__(self, first: int):
            self.first, self.step = first, steps.step

        def start(self, source: Tensor):
            return steps.start(source + 2 + self.first)

    together = run(Shifted(0), required, [9, 9, 9], width)
    for n, of in enumerate(required):
        [alone] = run(Shifted(n), [of], [9], width)
        assert [h.tokens for h in together[n]] == [h.tokens for h in alone]


@law
@given(seed=seeds, wanted=of_sentences, width=widths,
       options=st.fixed_dictionaries({}, optional={
           "no_repeat_ngram_size": st.integers(1, 3), "repetition_penalty": st.just(1.5), "min_length": st.integers(1, 9),
           "suppress_tokens": st.lists(tokens, max_size=3), "bad_words": st.lists(phrases, max_size=3),
           "forced_bos": tokens, "forced_eos": st.just(EOS)}))  # fmt: skip
def test_phrases_appear_although_other_options_rule_out_their_tokens(seed, wanted, width, options):
    required = [required_phrases(phrases, EOS) for phrases in wanted]
    limits = [sum(of.shortest) + 3 for of in required]
    for of, outputs in zip(required, run(RandomModel(seed), required, limits, width, DecodeConfig(**options)), strict=True):
        assert contains_all(of, outputs[0].tokens)


def contains_all(of: Required, output: list[int]) -> bool:
    return all(any(occurs(alternative, output) for alternative in phrase) for phrase in of.phrases)


@law
@given(output=st.lists(tokens, max_size=8), wanted=st.lists(constraints, max_size=3))
def test_an_output_contains_its_phrases_only_if_each_occurs(output, wanted):
    required = required_phrases(wanted, EOS)
    if contains(output, required):
        assert contains_all(required, output)
    if len(required.phrases) == 1:
        assert contains(output, required) == contains_all(required, output)


@law
@given(wanted=st.lists(constraints, min_size=1, max_size=3), output=st.lists(tokens, max_size=8))
def test_some_token_always_brings_the_phrases_nearer(wanted, output):
    required = required_phrases(wanted, EOS)
    state = required.start
    for token in output:
        state = required.advance(state, token)
        assert bool(required.missing(state)) == bool(state.unmet)
    left = required.missing(state)
    for step in range(left):
        state = min((required.advance(state, token) for token in required.next_tokens(state)), key=required.missing)
        assert required.missing(state) == left - step - 1


@pytest.mark.parametrize("constraint", [[], [[]], [[1], 2], [EOS], [3, -1]], ids=str)
def test_a_constraint_that_is_no_list_of_token_ids_is_refused(constraint):
    with pytest.raises(ValueError, match="constraint"):
        required_phrases([constraint], EOS)


def test_phrases_longer_than_the_limit_and_unknown_tokens_are_refused():
    with pytest.raises(ValueError, match="need 3 tokens, and it may have 2"):
        run(RandomModel(0), [required_phrases([[2, 3, 4]], EOS)], [2], 2)
    with pytest.raises(ValueError, match="token 9; this model's tokens are 0 to 8"):
        run(RandomModel(0), [required_phrases([[9]], EOS)], [4], 2)
