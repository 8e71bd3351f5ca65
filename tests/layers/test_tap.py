"""Watching a model records its attention weights and changes nothing."""

import pytest
import torch

from regard.decode.fast import decoder
from regard.decode.search import beam
from regard.layers.attention import Attention
from regard.layers.tap import tap_of, watch
from regard.models.transformer import Transformer, TransformerConfig


def tiny(**changes) -> tuple[Transformer, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocab=11, dim=8, depth=2, heads=2, mlp_ratio=2, **changes))
    source, target = torch.randint(1, 11, (3, 5)), torch.randint(1, 11, (3, 4))
    source[1, 3:] = 0
    return model.eval(), source, target


def test_a_watched_model_gives_the_same_logits():
    model, source, target = tiny()
    plain = model(source, target)
    with watch(model):
        watched = model(source, target)
    torch.testing.assert_close(watched, plain)


def test_every_attention_is_recorded_by_name_and_its_rows_sum_to_one():
    model, source, target = tiny()
    with watch(model) as recorded:
        model(source, target)
    shapes = {name: [tuple(weights.shape) for weights in calls] for name, calls in recorded.items()}
    assert shapes == {
        **{f"encoder.{i}.attn": [(3, 2, 5, 5)] for i in range(2)},
        **{f"decoder.{i}.attn": [(3, 2, 4, 4)] for i in range(2)},
        **{f"decoder.{i}.cross": [(3, 2, 4, 5)] for i in range(2)},
    }
    for [weights] in recorded.values():
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        assert not weights.requires_grad


def test_masked_keys_have_weight_zero():
    model, source, target = tiny()
    with watch(model) as recorded:
        model(source, target)
    assert (recorded["encoder.0.attn"][0][1, :, :, 3:] == 0).all()
    assert (recorded["decoder.1.cross"][0][1, :, :, 3:] == 0).all()
    assert (recorded["decoder.0.attn"][0].triu(1) == 0).all()


def test_cached_decoding_records_one_call_a_token():
    model, source, target = tiny()
    with watch(model) as whole:
        model(source, target)
    with watch(model) as steps:
        state = (fast := decoder(model)).start(source)
        for token in target.T:
            _, state = fast.step(token, state)
    calls = steps["decoder.1.cross"]
    assert len(calls) == 4
    torch.testing.assert_close(torch.cat(calls, 2), whole["decoder.1.cross"][0])
    for i, weights in enumerate(steps["decoder.1.attn"]):  # keys in order
        torch.testing.assert_close(weights, whole["decoder.1.attn"][0][:, :, i : i + 1, : i + 1])


def test_watched_beams_give_the_same_output_and_attend_only_to_their_own_tokens():
    model, source, _ = tiny()
    limits, how = torch.tensor([6, 4, 5]), {"bos": 1, "eos": 2, "width": 3}
    plain = beam(decoder(model), source, limits, **how)
    with watch(model) as recorded:
        watched = beam(decoder(model), source, limits, **how)
    assert [[h.tokens for h in n_best] for n_best in watched] == [[h.tokens for h in n_best] for n_best in plain]
    calls = recorded["decoder.1.attn"]
    assert calls[0].shape == (3, 2, 3, 3)
    for step, weights in enumerate(calls, 1):
        assert weights.shape[1:] == (2, 3, 3 * step)  # heads, beams, the tokens of all beams
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        attended = (weights > 0).sum(-1)
        assert (attended == step).all()  # one token of each step is a beam's own
    assert all(weights.shape[1:] == (2, 3, 5) for weights in recorded["decoder.1.cross"])


def test_recorded_weights_are_those_before_dropout():
    torch.manual_seed(0)
    attn, x = Attention(8, 2, dropout=0.8), torch.randn(2, 5, 8)
    with watch(attn.eval()) as evaluation:
        attn(x, attn.keys_values(x))
    with watch(attn.train()) as training:
        attn(x, attn.keys_values(x))
    torch.testing.assert_close(training[""][0].sum(-1), torch.ones(2, 2, 5))
    assert torch.equal(training[""][0], evaluation[""][0])


def test_nothing_is_watched_afterwards():
    model, source, target = tiny()
    with watch(model) as recorded:
        model(source, target)
    model(source, target)
    assert all(len(calls) == 1 for calls in recorded.values())
    assert all(tap_of(part) is None for part in model.modules() if isinstance(part, Attention))


def test_nothing_is_watched_after_an_error():
    model, _, _ = tiny()
    with pytest.raises(RuntimeError, match="stop"), watch(model):
        raise RuntimeError("stop")
    assert all(tap_of(part) is None for part in model.modules() if isinstance(part, Attention))


def test_a_watched_model_can_be_trained():
    model, source, target = tiny()
    grads = []
    for _ in range(2):
        model.zero_grad()
        if grads:
            with watch(model):
                model(source, target).square().sum().backward()
        else:
            model(source, target).square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for plain, watched in zip(*grads, strict=True):
        torch.testing.assert_close(plain, watched, rtol=1e-4, atol=1e-4)
