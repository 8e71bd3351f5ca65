"""Laws of every encoder-decoder: causality, padding, cache, batch and search.

The weights are random, large and float64, so that a broken law is far above the tolerance.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.decode.fast import decoder
from regard.decode.search import beam, greedy
from regard.decode.step import reorder
from regard.models.bahdanau import Bahdanau, BahdanauConfig
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.models.t5 import T5, T5Config
from regard.models.transformer import Transformer, TransformerConfig

PAD, BOS, EOS, VOCAB = 0, 1, 2, 11

law = settings(max_examples=8)
seeds, sizes = st.integers(0, 10_000), st.integers(1, 6)


def tiny(norm: str, positions: str, tied: bool) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(
        TransformerConfig(
            vocab=VOCAB, dim=8, depth=2, heads=2, mlp_ratio=2, norm=norm, positions=positions, max_len=24, tied=tied
        )
    )
    for p in model.parameters():
        nn.init.normal_(p, std=0.6)
    return model.double().eval()


def tiny_t5(gated: bool, tied: bool) -> T5:
    torch.manual_seed(0)
    sizes = {"dim": 8, "depth": 2, "heads": 2, "head_dim": 3, "mlp_dim": 12, "buckets": 4, "max_distance": 6}
    model = T5(T5Config(vocab=VOCAB, gated=gated, tied=tied, **sizes))
    for p in model.parameters():
        nn.init.normal_(p, std=0.6)
    return model.double().eval()


def tiny_recurrent(kind: type[nn.Module], config: Seq2SeqConfig | BahdanauConfig) -> nn.Module:
    torch.manual_seed(0)
    model = kind(config)
    for p in model.parameters():
        nn.init.normal_(p, std=0.6)
    return model.double().eval()


def tiny_seq2seq(**keys) -> nn.Module:
    return tiny_recurrent(Seq2Seq, Seq2SeqConfig(vocab=VOCAB, dim=6, hidden=5, depth=2, **keys))


def tiny_bahdanau(**keys) -> nn.Module:
    return tiny_recurrent(Bahdanau, BahdanauConfig(vocab=VOCAB, dim=6, hidden=5, align=4, readout=6, max_len=24, **keys))


MODELS = {
    "pre-sinusoid": tiny("pre", "sinusoid", True),
    "post-sinusoid": tiny("post", "sinusoid", False),
    "pre-learned": tiny("pre", "learned", False),
    "post-learned": tiny("post", "learned", True),
    "t5": tiny_t5(gated=False, tied=True),
    "t5-v1.1": tiny_t5(gated=True, tied=False),
    "seq2seq": tiny_seq2seq(tied=False),
    "seq2seq-forward": tiny_seq2seq(reverse=False, tied=True),
    "bahdanau": tiny_bahdanau(tied=False),
    "bahdanau-general": tiny_bahdanau(score="general", tied=True),
    "bahdanau-location": tiny_bahdanau(score="location"),
}
KINDS = pytest.mark.parametrize("model", list(MODELS.values()), ids=list(MODELS))


def random_tokens(seed: int, *shape: int) -> Tensor:
    """Random token ids without padding."""
    return torch.randint(1, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def ragged(seed: int, batch: int, max_len: int) -> tuple[Tensor, list[int]]:
    """Sentences of several lengths, padded (B, S), and their lengths."""
    lengths = torch.randint(1, max_len + 1, (batch,), generator=torch.Generator().manual_seed(seed)).tolist()
    source = random_tokens(seed + 1, batch, max(lengths))
    for row, length in zip(source, lengths, strict=True):
        row[length:] = PAD
    return source, lengths


def padded(ids: Tensor, more: int) -> Tensor:
    return torch.cat((ids, ids.new_full((len(ids), more), PAD)), 1)


def same(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)


# Causality


@KINDS
@law
@given(seed=seeds, batch=st.integers(1, 3), s=sizes, t=st.integers(2, 7), data=st.data())
def test_future_tokens_do_not_change_the_past(model, seed, batch, s, t, data):
    cut = data.draw(st.integers(1, t - 1))
    source, target = random_tokens(seed, batch, s), random_tokens(seed + 1, batch, t)
    before = model(source, target)
    target[:, cut:] = target[:, cut:] % (VOCAB - 1) + 1  # each token changes
    after = model(source, target)
    same(after[:, :cut], before[:, :cut])
    assert (after[:, cut] - before[:, cut]).abs().max() > 1e-6  # the current token matters


@KINDS
@law
@given(seed=seeds, s=sizes, t=st.integers(2, 6), data=st.data())
def test_no_gradient_flows_from_a_position_to_later_tokens(model, seed, s, t, data):
    at = data.draw(st.integers(0, t - 1))
    outputs = []
    table = model.tokens if isinstance(model, T5) else model.embed_target
    hook = table.register_forward_hook(lambda module, args, out: outputs.append(out))
    try:
        logits = model(random_tokens(seed, 1, s), random_tokens(seed + 1, 1, t))
    finally:
        hook.remove()
    (grad,) = torch.autograd.grad(logits[:, at].square().sum(), outputs[-1])  # T5 embeds its source with the same table first
    reached = grad[0].abs().amax(-1) > 0
    assert reached.tolist() == [position <= at for position in range(t)]


@KINDS
def test_every_position_depends_on_every_source_token(model):
    source, target = random_tokens(0, 1, 5), random_tokens(1, 1, 4)
    before = model(source, target)
    for i in range(5):
        changed = source.clone()
        changed[:, i] = changed[:, i] % (VOCAB - 1) + 1
        assert (model(changed, target) - before).abs().amax(-1).min() > 1e-6


# Padding


@KINDS
@law
@given(seed=seeds, batch=st.integers(1, 4), s=sizes, t=sizes, more=st.integers(1, 4))
def test_padding_the_source_has_no_effect(model, seed, batch, s, t, more):
    source, _ = ragged(seed, batch, s)
    target = random_tokens(seed + 2, batch, t)
    same(model(padded(source, more), target), model(source, target))


@KINDS
@law
@given(seed=seeds, batch=st.integers(1, 4), s=sizes, t=sizes, more=st.integers(1, 4))
def test_padding_the_target_has_no_effect_on_real_tokens(model, seed, batch, s, t, more):
    source, target = random_tokens(seed, batch, s), random_tokens(seed + 1, batch, t)
    same(model(source, padded(target, more))[:, :t], model(source, target))


@KINDS
@law
@given(seed=seeds, batch=st.integers(1, 3), s=sizes, t=sizes, more=st.integers(1, 4))
def test_padding_the_source_has_no_effect_on_cached_steps(model, seed, batch, s, t, more):
    source, _ = ragged(seed, batch, s)
    fast = decoder(model)
    plain, wide = fast.start(source), fast.start(padded(source, more))
    for token in random_tokens(seed + 2, batch, t).T:
        wanted, plain = fast.step(token, plain)
        got, wide = fast.step(token, wide)
        same(got, wanted)


@KINDS
def test_a_source_of_only_padding_gives_finite_logits_and_gradients_and_affects_no_other(model):
    source, target = random_tokens(0, 2, 4), random_tokens(1, 2, 5)
    source[0] = PAD
    leaves = list(model.parameters())
    logits = model(source, target)
    grads = torch.autograd.grad(logits.square().sum(), leaves)
    assert logits.isfinite().all()
    assert all(grad.isfinite().all() for grad in grads)
    same(logits[1:], model(source[1:], target[1:]))


# The cache


@KINDS
@law
@given(seed=seeds, batch=st.integers(1, 3), s=sizes, t=st.integers(1, 8))
def test_cached_steps_equal_a_full_forward_pass(model, seed, batch, s, t):
    source, _ = ragged(seed, batch, s)
    target = random_tokens(seed + 2, batch, t)
    fast = decoder(model)
    state, steps = fast.start(source), []
    for token in target.T:
        logits, state = fast.step(token, state)
        steps.append(logits)
    same(torch.stack(steps, 1), model(source, target))


@KINDS
@law
@given(seed=seeds, batch=st.integers(1, 4), s=sizes, t=st.integers(2, 6), data=st.data())
def test_rows_reordered_midway_continue_as_if_alone(model, seed, batch, s, t, data):
    rows = torch.tensor(data.draw(st.lists(st.integers(0, batch - 1), min_size=1, max_size=5)))
    cut = data.draw(st.integers(0, t - 1))
    source, _ = ragged(seed, batch, s)
    target = random_tokens(seed + 2, batch, t)
    fast = decoder(model)
    state = fast.start(source)
    for token in target[:, :cut].T:
        _, state = fast.step(token, state)
    state, later = reorder(state, rows), []
    for token in target[rows, cut:].T:
        logits, state = fast.step(token, state)
        later.append(logits)
    same(torch.stack(later, 1), model(source[rows], target[rows])[:, cut:])


@KINDS
def test_a_step_does_not_change_the_state_before_it(model):
    source, token = random_tokens(0, 2, 3), random_tokens(1, 2)
    fast = decoder(model)
    state = fast.start(source)
    first, _ = fast.step(token, state)
    again, _ = fast.step(token, state)
    assert torch.equal(first, again)


# The batch


@KINDS
@law
@given(seed=seeds, batch=st.integers(2, 5), s=sizes, t=sizes)
def test_logits_do_not_depend_on_the_batch(model, seed, batch, s, t):
    source, lengths = ragged(seed, batch, s)
    target = random_tokens(seed + 2, batch, t)
    together = model(source, target)
    for i, length in enumerate(lengths):
        same(model(source[i : i + 1, :length], target[i : i + 1]), together[i : i + 1])


def same_output(got, wanted):
    assert got.tokens == wanted.tokens
    assert got.score == pytest.approx(wanted.score, abs=1e-5)  # the total is float32


@KINDS
@law
@given(seed=seeds, batch=st.integers(2, 4), s=sizes, width=st.integers(1, 4), penalty=st.sampled_from([0.0, 0.6, 1.0]))
def test_outputs_do_not_depend_on_the_batch(model, seed, batch, s, width, penalty):
    source, lengths = ragged(seed, batch, s)
    limits = torch.tensor([length + 3 for length in lengths])
    options = {"bos": BOS, "eos": EOS, "penalty": penalty}
    together, beams = (
        greedy(decoder(model), source, limits, **options),
        beam(decoder(model), source, limits, width=width, **options),
    )
    assert len(together) == len(beams) == batch
    for i, length in enumerate(lengths):
        alone = source[i : i + 1, :length], limits[i : i + 1]
        same_output(greedy(decoder(model), *alone, **options)[0], together[i])
        [n_best] = beam(decoder(model), *alone, width=width, **options)
        for got, wanted in zip(n_best, beams[i], strict=True):
            same_output(got, wanted)


@KINDS
@law
@given(seed=seeds, batch=st.integers(1, 4), s=sizes, limit=st.integers(1, 9), penalty=st.sampled_from([0.0, 0.6, 1.0]))
def test_a_beam_of_one_is_greedy(model, seed, batch, s, limit, penalty):
    source, lengths = ragged(seed, batch, s)
    limits = torch.tensor([min(limit, length + 2) for length in lengths])
    options = {"bos": BOS, "eos": EOS, "penalty": penalty}
    beams = beam(decoder(model), source, limits, width=1, **options)
    for [got], wanted in zip(beams, greedy(decoder(model), source, limits, **options), strict=True):
        same_output(got, wanted)


@KINDS
@law
@given(seed=seeds, s=sizes, width=st.integers(1, 5), penalty=st.sampled_from([0.0, 1.0, 2.0]))
def test_an_output_has_the_score_of_a_full_forward_pass(model, seed, s, width, penalty):
    source, limit = random_tokens(seed, 1, s), 6
    options = {"bos": BOS, "eos": EOS, "penalty": penalty}
    [n_best] = beam(decoder(model), source, torch.tensor([limit]), width=width, **options)
    assert [h.score for h in n_best] == sorted((h.score for h in n_best), reverse=True)
    assert len({tuple(h.tokens) for h in n_best}) == len(n_best) == width
    for h in [*n_best, *greedy(decoder(model), source, torch.tensor([limit]), **options)]:
        assert EOS not in h.tokens
        output = h.tokens if len(h.tokens) == limit else [*h.tokens, EOS]
        logs = model(source, torch.tensor([[BOS, *output[:-1]]])).log_softmax(-1)[0]
        total = logs.gather(1, torch.tensor(output)[:, None]).sum().item()
        assert h.score == pytest.approx(total / len(output) ** penalty, abs=1e-5)
