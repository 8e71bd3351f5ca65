"""Observers of a search change nothing but the sentences they drop, whose rows leave at the next step."""

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.decode.fast import Prompts, decoder
from regard.decode.search import Hypothesis, argmax, beam, greedy, sample_each, sampler, stream
from regard.models.gpt import GPT, GPTConfig

BOS, EOS, VOCAB = 1, 0, 6

law = settings(max_examples=40)


class TableDecoder:
    """Logits drawn from the sentence, the time step and the last token, so that no output depends on another's row."""

    def __init__(self, seed: int):
        self.table = 2 * torch.randn(8, 16, VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed))
        self.rows: list[int] = []  # given to each step

    def start(self, source: Tensor) -> dict[str, Tensor]:
        return {"source": source[:, 0], "time": torch.zeros_like(source[:, 0])}

    def step(self, token: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        self.rows.append(len(token))
        return self.table[state["source"], state["time"], token], {**state, "time": state["time"] + 1}


@dataclass
class Patience:
    """Wants a sentence for some steps, and keeps what it sees."""

    steps: float = float("inf")
    seen: list[tuple[list[int], bool]] = field(default_factory=list)

    @property
    def wanted(self) -> bool:
        return len(self.seen) < self.steps

    def partial(self, tokens: list[int], done: bool) -> None:
        self.seen.append((list(tokens), done))


def search(model: TableDecoder, limits: list[int], width: int, observers=None, **how) -> list[list[Hypothesis]]:
    source, most = torch.arange(len(limits))[:, None], torch.tensor(limits)
    how = {"bos": BOS, "eos": EOS, "observers": observers, "logprobs": True, **how}
    if width == 0:
        return [[answer] for answer in greedy(model, source, most, **how)]
    return beam(model, source, most, width=width, **how)


limits_of_sentences = st.lists(st.integers(1, 12), min_size=1, max_size=6)


@law
@given(seed=st.integers(0, 9999), limits=limits_of_sentences, width=st.integers(0, 3), data=st.data())
def test_an_observer_that_drops_nothing_changes_nothing_and_sees_every_step(seed, limits, width, data):
    observers = [Patience() if data.draw(st.booleans()) else None for _ in limits]
    model, watched = TableDecoder(seed), TableDecoder(seed)
    plain, seen = search(model, limits, width), search(watched, limits, width, observers)
    assert seen == plain
    assert watched.rows == model.rows
    for answers, observer in zip(seen, observers, strict=True):
        if observer is not None:
            *steps, (last, done) = observer.seen
            assert [len(tokens) for tokens, _ in steps] == list(range(1, len(steps) + 1))
            assert done
            assert not any(done for _, done in steps)
            assert last == max(answers, key=lambda answer: answer.score).tokens


@law
@given(seed=st.integers(0, 9999), limits=limits_of_sentences, width=st.integers(0, 3), data=st.data())
def test_a_dropped_sentence_changes_no_other_and_its_rows_leave_at_the_next_step(seed, limits, width, data):
    patience = [data.draw(st.sampled_from([1, 2, 4, float("inf")])) for _ in limits]
    observers = [Patience(steps) for steps in patience]
    model = TableDecoder(seed)
    plain, found = search(TableDecoder(seed), limits, width), search(model, limits, width, observers)
    for row, (observer, steps) in enumerate(zip(observers, patience, strict=True)):
        if observer.seen[-1][1]:  # finished before it was dropped
            assert found[row] == plain[row]
        else:
            assert len(observer.seen) == steps
            assert observer.seen[-1][0] in [answer.tokens for answer in found[row]]

    # After the last of k sentences was dropped at step t, no step has more than the rows of the others.
    for step in range(1, len(model.rows)):
        dropped = sum(not observer.seen[-1][1] and len(observer.seen) <= step for observer in observers)
        assert model.rows[step] <= (len(limits) - dropped) * max(width, 1)


def test_a_row_leaves_although_too_few_are_finished_to_shrink_the_batch():
    never = torch.full((8, 16, VOCAB, VOCAB), 0.0)
    never[..., EOS] = -100.0
    for width in (0, 2):
        model = TableDecoder(0)
        model.table = never + torch.rand(8, 16, VOCAB, VOCAB, generator=torch.Generator().manual_seed(0))
        search(model, [10] * 8, width, [Patience(3), *[None] * 7])
        assert model.rows == [8 * max(width, 1)] * 3 + [7 * max(width, 1)] * 7


def test_the_best_beam_is_shown():
    """What is shown is the output whose log-probability is highest among those that go on, found by scoring all prefixes."""
    observer, width = Patience(), 3
    model = TableDecoder(5)
    search(model, [6], width, [observer])

    def logprob(tokens: list[int]) -> float:
        last = [BOS, *tokens]
        return sum(
            float(model.table[0, t, before].log_softmax(-1)[after])
            for t, (before, after) in enumerate(zip(last, tokens, strict=False))
        )

    beams = [[]]
    for tokens, done in observer.seen[:-1]:
        grown = sorted(([*ids, token] for ids in beams for token in range(VOCAB)), key=logprob, reverse=True)
        beams = [ids for ids in grown[: 2 * width] if ids[-1] != EOS][:width]
        assert not done
        assert tokens == beams[0]


# Prompts of different lengths


def tiny_gpt() -> GPT:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab=20, dim=16, depth=2, heads=2, max_len=30)).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return model


@law
@given(lengths=st.lists(st.integers(1, 15), min_size=1, max_size=5), seed=st.integers(0, 999), data=st.data())
def test_padded_prompts_give_the_logits_of_each_alone(lengths, seed, data):
    model = decoder(tiny_gpt())
    prompts = [torch.randint(20, (1, n), generator=torch.Generator().manual_seed(seed + n)) for n in lengths]
    with torch.inference_mode():
        together, alone = model.start(Prompts(prompts)), [model.start(prompt) for prompt in prompts]
        token = torch.cat([prompt[:, -1] for prompt in prompts])
        for _ in range(6):
            logits, together = model.step(token, together)
            single = [model.step(t[None], state) for t, state in zip(token, alone, strict=True)]
            torch.testing.assert_close(logits, torch.cat([of for of, _ in single]), atol=1e-5, rtol=1e-5)
            alone, token = [state for _, state in single], logits.argmax(1)
            if len(alone) > 1 and data.draw(st.booleans()):  # a row leaves
                rows = data.draw(st.permutations(range(len(alone))))[:-1]
                together, token = together.reorder(torch.tensor(rows)), token[rows]
                alone = [alone[row] for row in rows]


@law
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5), seed=st.integers(0, 999))
def test_each_row_has_its_own_random_stream(lengths, seed):
    model, count = decoder(tiny_gpt()), len(lengths)
    prompts = [torch.randint(20, (1, n), generator=torch.Generator().manual_seed(n)) for n in lengths]

    def choice(row: int):
        if row == 1:
            return argmax
        return sampler(torch.Generator().manual_seed(seed + row), 0.5 + row / 3, top_k=5 * (row % 2), top_p=1 - row / 20)

    bos, limits = torch.cat([prompt[:, -1] for prompt in prompts]), torch.arange(4, 4 + count)
    found = sample_each(model, Prompts(prompts), limits, [choice(row) for row in range(count)], bos=bos, eos=-1)
    alone = [list(stream(model, prompt, choice(row), bos=prompt, limit=4 + row)) for row, prompt in enumerate(prompts)]
    assert [answer.tokens for answer in found] == alone


@pytest.mark.parametrize("lengths", [[5, 5, 5], [1, 1], [7]])
def test_prompts_of_one_length_are_not_masked(lengths):
    state = decoder(tiny_gpt()).start(Prompts([torch.ones(1, n, dtype=torch.long) for n in lengths]))
    assert state.cache.mask is None
    assert state.cache.padding is None
