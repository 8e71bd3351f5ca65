"""Laws of the Conformer: padding, batch, cache, search, and joint decoding.

The weights are random, large and float64, so that a broken law is far above the tolerance.
"""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.decode.ctc import JointDecoder, PrefixScores
from regard.decode.fast import decoder
from regard.decode.search import beam, greedy
from regard.decode.step import reorder
from regard.layers.tap import watch
from regard.models.conformer import Conformer, ConformerConfig, Utterances

PAD, BOS, EOS, VOCAB, FEATURES = 0, 1, 2, 9, 5

law = settings(max_examples=10)
seeds, times = st.integers(0, 10_000), st.integers(1, 20)


def tiny(subsample: int, **keys) -> Conformer:
    torch.manual_seed(0)
    sizes = {"dim": 8, "depth": 2, "heads": 2, "mlp_ratio": 2, "kernel": 5, "features": FEATURES, "vocab": VOCAB, "dropout": 0.0}
    model = Conformer(ConformerConfig(subsample=subsample, decoder_depth=2, ctc_weight=0.3, **sizes, **keys))
    for p in model.parameters():
        nn.init.normal_(p, std=0.6)
    for buffer in model.buffers():
        if buffer.ndim == 1:  # of a batch norm
            nn.init.uniform_(buffer, 0.5, 1.5)
    return model.double().eval()


MODELS = {factor: tiny(factor) for factor in (1, 2, 4)}
FACTORS = pytest.mark.parametrize("model", list(MODELS.values()), ids=[f"subsample {factor}" for factor in MODELS])


def ragged(seed: int, batch: int, most: int) -> Utterances:
    """Utterances of several lengths; the padding is not zero."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, most + 1, (batch,), generator=random)
    return Utterances(torch.randn(batch, int(lengths.max()), FEATURES, generator=random, dtype=torch.float64), lengths)


def longer(speech: Utterances, more: int) -> Utterances:
    noise = torch.full((len(speech), more, FEATURES), 3.0, dtype=torch.float64)
    return Utterances(torch.cat((speech.frames, noise), 1), speech.lengths)


def alone(speech: Utterances, i: int) -> Utterances:
    return Utterances(speech.frames[i : i + 1, : int(speech.lengths[i])], speech.lengths[i : i + 1])


def random_tokens(seed: int, *shape: int) -> Tensor:
    return torch.randint(3, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def same(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)


def real_memory(model: Conformer, speech: Utterances) -> list[Tensor]:
    """The encoded frames of each utterance, without padding."""
    memory, mask = model.encode(speech.frames, speech.lengths)
    counts = model.subsampled(speech.lengths)
    assert mask[:, 0, 0].sum(1).tolist() == counts.tolist()
    return [row[:count] for row, count in zip(memory, counts.tolist(), strict=True)]


# Padding and batch


@FACTORS
@law
@given(seed=seeds, batch=st.integers(1, 4), most=times, more=st.integers(1, 9))
def test_padding_frames_change_nothing(model, seed, batch, most, more):
    speech, target = ragged(seed, batch, most), random_tokens(seed, batch, 4)
    for got, wanted in zip(real_memory(model, longer(speech, more)), real_memory(model, speech), strict=True):
        same(got, wanted)
    wide = longer(speech, more)
    same(model(wide.frames, wide.lengths, target), model(speech.frames, speech.lengths, target))


@FACTORS
@law
@given(seed=seeds, batch=st.integers(2, 4), most=times)
def test_an_utterance_does_not_depend_on_its_batch(model, seed, batch, most):
    speech, target = ragged(seed, batch, most), random_tokens(seed, batch, 4)
    memory, logits = real_memory(model, speech), model(speech.frames, speech.lengths, target)
    for i in range(batch):
        one = alone(speech, i)
        same(real_memory(model, one)[0], memory[i])
        same(model(one.frames, target=target[i : i + 1])[0], logits[i])


@FACTORS
@law
@given(seed=seeds, batch=st.integers(2, 4), most=st.integers(9, 20), more=st.integers(1, 9))
def test_padding_frames_change_nothing_in_training_either(model, seed, batch, most, more):
    speech, target = ragged(seed, batch, most), random_tokens(seed, batch, 4)
    results = []
    for batch_of in (speech, longer(speech, more)):
        trained = copy.deepcopy(model).train()
        memory = torch.cat(real_memory(trained, batch_of))
        total = memory.square().sum() + trained(batch_of.frames, batch_of.lengths, target).square().sum()
        leaves = [p for name, p in trained.named_parameters() if not name.startswith("ctc.")]
        gradients = torch.autograd.grad(total, leaves)
        statistics = [buffer for name, buffer in trained.named_buffers() if "running" in name]
        results.append([memory, *gradients, *statistics])
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-7)


def test_the_batch_norm_learns_the_statistics_of_real_frames():
    model, speech = copy.deepcopy(MODELS[1]).train(), ragged(3, 3, 12)
    conv, seen = model.encoder[0].conv, []
    hook = conv.norm.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    before = conv.norm.running_mean.clone()
    model.encode(speech.frames, speech.lengths)
    hook.remove()
    assert seen[0].shape == (int(speech.lengths.sum()), 8)
    same(conv.norm.running_mean, 0.9 * before + 0.1 * seen[0].mean(0))


@FACTORS
def test_lengths_are_rounded_up(model):
    for length in range(1, 12):
        memory, _ = model.encode(torch.zeros(1, length, FEATURES, dtype=torch.float64))
        count = math.ceil(length / model.config.subsample)
        assert model.subsampled(torch.tensor([length])).tolist() == [count]
        assert memory.shape == (1, count, 8)
        assert memory.isfinite().all()


def test_a_frame_depends_on_all_others():
    frames = ragged(0, 1, 1).frames.repeat(1, 30, 1).requires_grad_()
    memory, _ = MODELS[1].encode(frames)
    (gradient,) = torch.autograd.grad(memory[0, 2].square().sum(), frames)
    assert (gradient[0].abs().amax(-1) > 1e-9).all()


# The cache and the searches


@FACTORS
@law
@given(seed=seeds, batch=st.integers(1, 3), most=times, t=st.integers(1, 6))
def test_cached_steps_equal_a_full_forward_pass(model, seed, batch, most, t):
    speech, target, fast = ragged(seed, batch, most), random_tokens(seed, batch, t), decoder(model)
    state, steps = fast.start(speech), []
    for token in target.T:
        logits, state = fast.step(token, state)
        steps.append(logits)
    same(torch.stack(steps, 1), model(speech.frames, speech.lengths, target))


def searched(decoder, speech, width, penalty=1.0):
    limits = MODELS[2].subsampled(speech.lengths) + 2
    options = {"bos": BOS, "eos": EOS, "penalty": penalty}
    narrow = [[hypothesis] for hypothesis in greedy(decoder, speech, limits, **options)]
    return narrow if width == 0 else beam(decoder, speech, limits, width=width, **options)


def same_outputs(got, wanted):
    for these, those in zip(got, wanted, strict=True):
        assert [h.tokens for h in these] == [h.tokens for h in those]
        assert [h.score for h in these] == pytest.approx([h.score for h in those], abs=1e-4)  # the total is float32


@law
@given(seed=seeds, batch=st.integers(1, 3), most=times, weight=st.sampled_from([0.0, 0.3, 1.0]))
def test_a_beam_of_one_is_greedy(seed, batch, most, weight):
    joint, speech = JointDecoder(MODELS[2], weight, EOS), ragged(seed, batch, most)
    same_outputs(searched(joint, speech, 1), searched(joint, speech, 0))


@law
@given(seed=seeds, batch=st.integers(2, 3), most=times, weight=st.sampled_from([0.0, 0.3, 1.0]), width=st.integers(1, 4))
def test_joint_outputs_do_not_depend_on_the_batch_or_on_padding(seed, batch, most, weight, width):
    joint, speech = JointDecoder(MODELS[2], weight, EOS), ragged(seed, batch, most)
    together = searched(joint, longer(speech, 5), width)
    for i in range(batch):
        same_outputs(searched(joint, alone(speech, i), width), together[i : i + 1])


@law
@given(seed=seeds, batch=st.integers(1, 3), most=times, width=st.integers(1, 4))
def test_with_weight_0_the_joint_decoder_is_the_attention_decoder(seed, batch, most, width):
    speech = ragged(seed, batch, most)
    same_outputs(
        searched(JointDecoder(MODELS[2], 0.0, EOS), speech, width), searched(decoder(MODELS[2]), speech, width)
    )  # fmt: skip


@torch.no_grad()
@law
@given(seed=seeds, most=times, width=st.integers(1, 4))
def test_with_weight_1_the_joint_decoder_ranks_by_the_prefix_probability_of_ctc(seed, most, width):
    model, speech = MODELS[2], ragged(seed, 1, most)
    found = searched(JointDecoder(model, 1.0, EOS), speech, width, penalty=0.0)
    log_probs = model(speech.frames, speech.lengths).log_softmax(-1)
    ctc = PrefixScores(EOS, PAD)
    assert [h.score for h in found[0]] == sorted((h.score for h in found[0]), reverse=True)
    for hypothesis in found[0]:
        state, total = ctc.start((log_probs, model.subsampled(speech.lengths))), 0.0
        output = hypothesis.tokens if len(hypothesis.tokens) == log_probs.shape[1] + 2 else [*hypothesis.tokens, EOS]
        for token, after in zip([BOS, *output], output, strict=False):
            scores, state = ctc.step(torch.tensor([token]), state)
            total += float(scores[0, after])
        assert hypothesis.score == pytest.approx(total, abs=1e-4)


@law
@given(seed=seeds, most=times, weight=st.sampled_from([0.2, 0.5]), width=st.integers(1, 4))
def test_a_joint_score_is_the_weighted_sum_of_both(seed, most, weight, width):
    model, speech = MODELS[2], ragged(seed, 1, most)
    parts = {w: JointDecoder(model, w, EOS) for w in (0.0, weight, 1.0)}
    states, token = {w: joint.start(speech) for w, joint in parts.items()}, torch.tensor([BOS])
    for following in random_tokens(seed, 2):
        scores = {}
        for w, joint in parts.items():
            scores[w], states[w] = joint.step(token, states[w])
        possible = scores[1.0].isfinite()
        wanted = (1 - weight) * scores[0.0] + weight * scores[1.0]
        same(scores[weight][possible], wanted[possible])
        assert scores[weight][~possible].isinf().all()
        token = following[None]


def test_a_joint_state_reorders_both_parts():
    model, speech = MODELS[4], ragged(1, 2, 20)
    joint = JointDecoder(model, 0.4, EOS)
    _, state = joint.step(torch.tensor([BOS, BOS]), joint.start(speech))
    scores, _ = joint.step(torch.tensor([3, 4, 5, 6]), reorder(state, torch.tensor([[1, 1], [0, 0]])))
    for row, token in enumerate((3, 4, 5, 6)):
        one = alone(speech, 1 - row // 2)
        _, before = joint.step(torch.tensor([BOS]), joint.start(one))
        torch.testing.assert_close(scores[row], joint.step(torch.tensor([token]), before)[0][0])


# Inside


def test_watch_sees_the_encoder_and_the_cross_attention():
    model, speech, target = MODELS[2], ragged(5, 2, 20), random_tokens(0, 2, 4)
    plain = model(speech.frames, speech.lengths, target)
    with watch(model) as weights:
        watched = model(speech.frames, speech.lengths, target)
    same(watched, plain)
    s = int(model.subsampled(speech.lengths).max())
    shapes = {name: tuple(calls[0].shape) for name, calls in weights.items()}
    assert shapes == {
        **{f"encoder.{i}.attn": (2, 2, s, s) for i in range(2)},
        **{f"decoder.{i}.attn": (2, 2, 4, 4) for i in range(2)},
        **{f"decoder.{i}.cross": (2, 2, 4, s) for i in range(2)},
    }
    real = model.subsampled(speech.lengths).tolist()
    for name, [rows] in weights.items():
        torch.testing.assert_close(rows.sum(-1), torch.ones_like(rows.sum(-1)))
        if name.endswith("cross") or name.startswith("encoder"):
            assert all(not rows[i, :, :, count:].any() for i, count in enumerate(real))
