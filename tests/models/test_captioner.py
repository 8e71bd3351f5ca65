"""Show, Attend and Tell against a plain reference, and its laws."""

import math

import pytest
import torch
from torch import nn

from regard.data.image.captions import CaptionBatch
from regard.decode.search import beam, greedy
from regard.decode.step import reorder
from regard.layers.recurrent import LSTMCell
from regard.models.captioner import Captioner, CaptionerConfig
from regard.tasks.captioning import caption_loss, doubly_stochastic

PAD, BOS, EOS, VOCAB = 0, 1, 2, 13
ENCODER = {"family": "resnet", "image": 16, "stem": "cifar", "dim": 4, "dims": [4, 6], "depths": [1, 1], "block": "basic"}
KINDS = pytest.mark.parametrize("attention", ["soft", "hard", "uniform"])


def tiny(seed=0, **keys):
    torch.manual_seed(seed)
    keys = {"vocab": VOCAB, "dim": 6, "hidden": 5, "align": 4, "dropout": 0.0, **keys}
    model = Captioner(CaptionerConfig(encoder=ENCODER, **keys)).double().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not name.startswith("encoder"):
                p.normal_(std=0.7)
    return model


def images(count, seed=0):
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(*shape, seed=0):
    return torch.randint(3, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def reference(model, image, caption):
    """Equations 1 to 7 of the paper for one image and one caption, in plain loops: logits and weights of each step."""
    sigmoid, d, scale = torch.sigmoid, model.decoder, model.config.dim**0.5
    places = model.encoder(image[None])[0]
    hidden, cell = torch.tanh(d.initial(sum(places) / len(places))).split(model.config.hidden)
    logits, weights = [], []
    for token in caption.tolist():
        y = model.embed.weight[token]
        score = d.cross.score
        scores = [score.value.weight[0] @ torch.tanh(score.query.weight @ hidden + score.key.weight @ a) for a in places]
        alpha = [math.exp(e) / sum(math.exp(other) for other in scores) for e in scores]
        z = sigmoid(d.gate.weight[0] @ hidden + d.gate.bias) * sum(w * a for w, a in zip(alpha, places, strict=True))
        gates = d.cell.inputs.weight @ (scale * y) + d.cell.inputs.bias + d.context.weight @ z + d.cell.recurrent.weight @ hidden
        i, f, g, o = gates.split(model.config.hidden)
        cell = sigmoid(f) * cell + sigmoid(i) * torch.tanh(g)
        hidden = sigmoid(o) * torch.tanh(cell)
        readout = y + d.state_readout.weight @ hidden + d.state_readout.bias + d.context_readout.weight @ z
        logits.append(model.output.weight @ readout + model.output.bias)
        weights.append(torch.tensor(alpha, dtype=torch.float64))
    return torch.stack(logits), torch.stack(weights)


def test_the_model_equals_the_equations_of_the_paper():
    model, image, target = tiny(), images(2), tokens(4, 5)  # two captions of each image
    with torch.no_grad():
        features = model.features(image, target)
        logits = model.output(features.features)
        for row, caption in enumerate(target):
            wanted_logits, wanted_weights = reference(model, image[row // 2], caption)
            torch.testing.assert_close(logits[row], wanted_logits, rtol=0, atol=1e-9)
            torch.testing.assert_close(features.weights[row], wanted_weights, rtol=0, atol=1e-9)


def test_the_cell_equals_torchs_lstm_cell():
    torch.manual_seed(0)
    ours, theirs = LSTMCell(3, 4).double(), nn.LSTMCell(3, 4).double()
    with torch.no_grad():
        theirs.weight_ih.copy_(ours.inputs.weight)
        theirs.weight_hh.copy_(ours.recurrent.weight)
        theirs.bias_ih.copy_(ours.inputs.bias)
        theirs.bias_hh.zero_()
    x, h, c = torch.randn(5, 3).double(), torch.randn(5, 4).double(), torch.randn(5, 4).double()
    for got, wanted in zip(ours(ours.inputs(x), h, c), theirs(x, (h, c)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


@KINDS
def test_decoding_step_by_step_equals_teacher_forcing(attention):
    model, image, target = tiny(attention=attention), images(3), tokens(6, 7)
    with torch.no_grad():
        wanted = model(image, target)
        state = reorder(model.start(image), torch.arange(3)[:, None].expand(-1, 2))
        for t in range(7):
            logits, state = model.step(target[:, t], state)
            torch.testing.assert_close(logits, wanted[:, t], rtol=0, atol=1e-9)


@KINDS
def test_a_caption_does_not_depend_on_the_other_images_of_its_batch(attention):
    model, image, limits = tiny(attention=attention), images(4), torch.full((4,), 8)
    together = beam(model, image, limits, bos=BOS, eos=EOS, width=3)
    for row in range(4):
        (alone,) = beam(model, image[row : row + 1], limits[:1], bos=BOS, eos=EOS, width=3)
        assert [h.tokens for h in alone] == [h.tokens for h in together[row]]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together[row]], abs=1e-9)
    greedy_tokens = [h.tokens for h in greedy(model, image, limits, bos=BOS, eos=EOS)]
    assert greedy_tokens == [h[0].tokens for h in beam(model, image, limits, bos=BOS, eos=EOS, width=1)]


def test_future_words_do_not_change_the_past():
    model, image, target = tiny(), images(1), tokens(1, 6)
    before = model(image, target)
    changed = torch.cat((target[:, :3], target[:, 3:] % (VOCAB - 3) + 3), 1)
    torch.testing.assert_close(model(image, changed)[:, :3], before[:, :3], rtol=0, atol=0)


def test_uniform_attention_looks_everywhere_alike():
    model = tiny(attention="uniform")
    weights = model.features(images(2), tokens(2, 4)).weights
    torch.testing.assert_close(weights, torch.full_like(weights, 1 / weights.shape[-1]))


def test_soft_attention_is_the_expectation_of_hard_attention():
    """The mean of many sampled contexts lies within four standard errors of the soft context, in every coordinate."""
    model, count = tiny(attention="hard"), 20_000
    places = model.encoder(images(1))
    keys = model.decoder.cross.keys_values(places)
    hidden = torch.randn(1, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64).expand(count, 5)
    with torch.no_grad():
        soft = model.decoder.eval().attend(hidden[:1], keys).context[0]
        torch.manual_seed(3)
        sampled = model.decoder.train().attend(hidden, keys)
    mean, error = sampled.context.mean(0), sampled.context.std(0) / count**0.5
    assert (sampled.context.unique(dim=0).shape[0]) > 1
    assert ((mean - soft).abs() <= 4 * error + 1e-12).all()


def test_reinforce_follows_the_true_gradient_of_the_expected_log_likelihood():
    """One step, all places enumerated: the estimator's mean over many samples is within four standard errors."""
    model = tiny(attention="hard", penalty=0.0, entropy=0.0).train()
    image, target, count, rows = images(1), torch.tensor([[BOS, 5]]), 100, 40
    weight = model.decoder.cross.score.query.weight
    state = model.start(image)
    look = model.decoder.attend(state.hidden, state.places)
    with torch.no_grad():
        places, gate = state.places.values[0, 0], torch.sigmoid(model.decoder.gate(state.hidden))
        x = model.embed(target[:, 0])
        rewards = []
        for place in places:
            hidden, _ = model.decoder.update(
                model.decoder.cell.inputs(x * model.scale), gate * place[None], state.hidden, state.cell
            )
            logits = model.output(model.decoder.predict(hidden, gate * place[None], x))
            rewards.append(logits.log_softmax(-1)[0, 5])
    (wanted,) = torch.autograd.grad((look.weights[0] * torch.stack(rewards)).sum(), weight)

    torch.manual_seed(5)
    captions = target.expand(rows, -1)  # of the one image; each samples places of its own
    samples = torch.stack([_policy_gradient(model, image, captions, weight) / rows for _ in range(count)])
    error = samples.std(0) / count**0.5
    assert wanted.abs().max() > 10 * error.max() / 4  # the check has power
    assert ((samples.mean(0) - wanted).abs() <= 4.5 * error + 1e-12).all()


def _policy_gradient(model, image, target, weight):
    """The gradient that the loss gives to the attention; the score sees the image only through it."""
    model.baseline.zero_()
    loss, _ = caption_loss(model, CaptionBatch(image, target, PAD), 0.0)
    return -torch.autograd.grad(loss, weight)[0]


def test_the_penalty_equals_a_loop():
    weights = torch.rand(3, 4, 5).softmax(-1)
    real = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]).bool()  # the last row is padding
    wanted = sum(
        (1 - sum(float(weights[r, t, i]) for t in range(4) if real[r, t])) ** 2
        for r in range(3) if real[r].any() for i in range(5)
    )  # fmt: skip
    assert float(doubly_stochastic(weights, real)) == pytest.approx(wanted, rel=1e-5)


def test_a_row_of_padding_adds_nothing_to_the_loss():
    model, image, target = tiny(penalty=1.0).train(), images(2), torch.cat((torch.full((2, 1), BOS), tokens(2, 4)), 1)
    empty = torch.tensor([[BOS, PAD, PAD, PAD, PAD]])
    alone = caption_loss(model, CaptionBatch(image, target, PAD), 0.1)
    both = caption_loss(model, CaptionBatch(image, torch.cat((target[:1], empty, target[1:], empty)), PAD), 0.1)
    for got, wanted in zip(both, alone, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_it_overfits_one_small_batch(attention):
    torch.manual_seed(0)
    model = Captioner(CaptionerConfig(encoder=ENCODER, vocab=VOCAB, dim=32, hidden=32, align=16, attention=attention,
                                      dropout=0.0, penalty=0.1))  # fmt: skip
    batch = CaptionBatch(images(4).float(), torch.cat((torch.full((4, 1), BOS), tokens(4, 5), torch.full((4, 1), EOS)), 1), PAD)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(120):
        loss, nll = caption_loss(model, batch, 0.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(nll) / batch.tokens < 0.3  # log 13 = 2.6 before
