"""Laws of GPT (causal) and BERT (bidirectional).

The weights are random, large and float64, so that a broken law is far above the tolerance.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.decode.fast import decoder
from regard.decode.search import argmax, beam, greedy, stream
from regard.decode.step import reorder
from regard.layers.masks import padding_mask
from regard.layers.tap import watch
from regard.models.bert import BERT, BERTConfig
from regard.models.gpt import GPT, GPTConfig

VOCAB, PAD, EOS = 11, 0, 2

law = settings(max_examples=15)
seeds, sizes = st.integers(0, 10_000), st.integers(1, 6)


def large(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for p in model.parameters():
        nn.init.normal_(p, std=0.6)
    return model.double().eval()


SHAPE = {"vocab": VOCAB, "dim": 8, "depth": 2, "heads": 2, "max_len": 24}
gpt = large(GPT(GPTConfig(**SHAPE)))
fast = decoder(gpt)
bert = large(BERT(BERTConfig(**SHAPE, classes=3)))


def random_tokens(seed: int, *shape: int) -> Tensor:
    """Random token ids without padding."""
    return torch.randint(1, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def others(tokens: Tensor) -> Tensor:
    """Each token replaced by another."""
    return tokens % (VOCAB - 1) + 1


def same(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)


# GPT


@law
@given(seed=seeds, batch=st.integers(1, 3), t=st.integers(2, 7), data=st.data())
def test_future_tokens_do_not_change_the_past(seed, batch, t, data):
    cut = data.draw(st.integers(1, t - 1))
    text = random_tokens(seed, batch, t)
    before = gpt(text)
    text[:, cut:] = others(text[:, cut:])
    after = gpt(text)
    same(after[:, :cut], before[:, :cut])
    assert (after[:, cut] - before[:, cut]).abs().max() > 1e-6  # the current token matters


@law
@given(seed=seeds, batch=st.integers(1, 3), prompt=sizes, more=sizes)
def test_cached_steps_equal_a_full_forward_pass(seed, batch, prompt, more):
    text = random_tokens(seed, batch, prompt + more)
    state, steps = fast.start(text[:, :prompt]), []
    for token in text[:, prompt - 1 :].T:  # the first step reads the last token of the prompt
        logits, state = fast.step(token, state)
        steps.append(logits)
    same(torch.stack(steps, 1), gpt(text)[:, prompt - 1 :])


@law
@given(seed=seeds, batch=st.integers(1, 4), prompt=sizes, more=sizes, data=st.data())
def test_reordered_rows_continue_as_if_alone(seed, batch, prompt, more, data):
    rows = torch.tensor(data.draw(st.lists(st.integers(0, batch - 1), min_size=1, max_size=5)))
    text = random_tokens(seed, batch, prompt + more)
    state, later = reorder(fast.start(text[:, :prompt]), rows), []
    for token in text[rows, prompt - 1 :].T:
        logits, state = fast.step(token, state)
        later.append(logits)
    same(torch.stack(later, 1), gpt(text[rows])[:, prompt - 1 :])


@law
@given(seed=seeds, batch=st.integers(1, 3), prompt=sizes, limit=st.integers(1, 9))
def test_a_beam_of_one_and_a_stream_equal_greedy(seed, batch, prompt, limit):
    text, limits = random_tokens(seed, batch, prompt), torch.full((batch,), limit)
    options = {"bos": text[:, -1], "eos": EOS}
    found = greedy(fast, text, limits, **options)
    for i, ([hypothesis], wanted) in enumerate(zip(beam(fast, text, limits, width=1, **options), found, strict=True)):
        assert hypothesis.tokens == wanted.tokens
        streamed = list(stream(fast, text[i : i + 1], argmax, bos=text[i : i + 1, -1], limit=limit))
        assert (streamed[: streamed.index(EOS)] if EOS in streamed else streamed) == wanted.tokens


@law
@given(seed=seeds, prompt=sizes, limit=st.integers(1, 8))
def test_greedy_chooses_the_most_likely_token_of_a_full_forward_pass(seed, prompt, limit):
    text = random_tokens(seed, 1, prompt)
    for token in stream(fast, text, argmax, bos=text[:, -1], limit=limit):
        assert token == int(gpt(text)[0, -1].argmax())
        text = torch.cat((text, torch.tensor([[token]])), 1)


@law
@given(seed=seeds, prompt=sizes, width=st.integers(1, 4))
def test_a_beam_output_has_the_score_of_a_full_forward_pass(seed, prompt, width):
    text, limit = random_tokens(seed, 1, prompt), 5
    [n_best] = beam(fast, text, torch.tensor([limit]), width=width, bos=text[:, -1], eos=EOS, penalty=0.0)
    for h in n_best:
        output = h.tokens if len(h.tokens) == limit else [*h.tokens, EOS]
        whole = torch.cat((text, torch.tensor([output])), 1)
        logs = gpt(whole).log_softmax(-1)[0, prompt - 1 : -1]
        assert h.score == pytest.approx(logs.gather(1, torch.tensor(output)[:, None]).sum().item(), abs=1e-5)


# BERT


@law
@given(seed=seeds, batch=st.integers(1, 3), t=st.integers(1, 6), more=st.integers(1, 4))
def test_padding_has_no_effect(seed, batch, t, more):
    text = random_tokens(seed, batch, t)
    wide = torch.cat((text, torch.full((batch, more), PAD)), 1)
    mask = padding_mask(wide, PAD)
    same(bert(wide, mask)[:, :t], bert(text))
    same(bert.classify(wide, mask), bert.classify(text))


def test_every_position_depends_on_every_token():
    text = random_tokens(0, 1, 5)
    before = bert(text)
    for i in range(5):
        changed = text.clone()
        changed[:, i] = others(changed[:, i])
        assert (bert(changed) - before).abs().amax(-1).min() > 1e-6


def test_logits_depend_on_positions_and_segments():
    text = random_tokens(0, 1, 4)
    assert (bert(text.flip(1)).flip(1) - bert(text)).abs().max() > 1e-3
    second = torch.tensor([[0, 0, 1, 1]])
    assert (bert(text, None, second) - bert(text)).abs().max() > 1e-3
    same(bert(text, None, torch.zeros_like(text)), bert(text))


def test_a_text_of_only_padding_gives_finite_logits_and_affects_no_other():
    text = random_tokens(0, 2, 4)
    text[0] = PAD
    logits = bert(text, padding_mask(text, PAD))
    assert logits.isfinite().all()
    same(logits[1:], bert(text[1:]))


def test_classifying_without_classes_is_refused():
    with pytest.raises(ValueError, match="no classes"):
        BERT(BERTConfig(**SHAPE)).classify(random_tokens(0, 1, 3))


def test_heads_of_the_first_block_initially_attend_to_neighbours():
    torch.manual_seed(0)
    model = BERT(BERTConfig(vocab=50, dim=128, depth=2, heads=4, max_len=40)).eval()
    with watch(model) as recorded, torch.no_grad():
        model(torch.randint(0, 50, (8, 30)))
    [weights] = recorded["blocks.0.attn"]  # (8, 4, 30, 30)
    for head, distance in enumerate((-1, 1, -2, 2)):
        neighbour = weights[:, head].diagonal(distance, -2, -1)
        assert float(neighbour.mean()) > 0.3  # of 30 positions
        middle = weights[:, head, 5:25].argmax(-1) - torch.arange(5, 25)
        assert float((middle == distance).float().mean()) > 0.95


def test_heads_of_width_one_are_supported():
    assert BERT(BERTConfig(vocab=9, dim=4, depth=1, heads=4, max_len=5))(torch.ones(1, 5, dtype=torch.long)).isfinite().all()
