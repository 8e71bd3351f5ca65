"""Seq2seq and Bahdanau against references that read the papers' equations one sentence and one step at a time."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from regard.layers.tap import watch
from regard.models import preset
from regard.models.bahdanau import SIZES as BAHDANAU
from regard.models.bahdanau import Bahdanau, BahdanauConfig
from regard.models.seq2seq import SIZES as SEQ2SEQ
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.tasks.loss import linear_cross_entropy
from regard.view.cost import cost

PAD, VOCAB = 0, 13
SOURCE = torch.tensor([[5, 7, 3, 9, 2], [8, 4, 2, PAD, PAD], [6, 2, PAD, PAD, PAD]])
TARGET = torch.tensor([[1, 4, 5, 6], [1, 7, 8, 9], [1, 10, 11, 12]])


def build(kind: type[nn.Module], config: Seq2SeqConfig | BahdanauConfig) -> nn.Module:
    torch.manual_seed(0)
    model = kind(config)
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    return model.double().eval()


def sentences():
    for source, target in zip(SOURCE.tolist(), TARGET.tolist(), strict=True):
        yield [token for token in source if token != PAD], target


# The reference: vectors of one sentence, plain products, gates by their equations.


def gru_step(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
    n = len(h)
    from_x, from_h = w @ x + b, u @ h + d
    r = 1 / (1 + torch.exp(-(from_x[:n] + from_h[:n])))
    z = 1 / (1 + torch.exp(-(from_x[n : 2 * n] + from_h[n : 2 * n])))
    candidate = torch.tanh(from_x[2 * n :] + r * from_h[2 * n :])
    return z * h + (1 - z) * candidate


def lstm_step(x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = (w @ x + b + u @ h + d).view(4, -1)
    c = c / (1 + torch.exp(-f)) + torch.tanh(g) / (1 + torch.exp(-i))
    return torch.tanh(c) / (1 + torch.exp(-o)), c


def weights_of(rnn: nn.RNNBase, layer: int, back: str = "") -> list[Tensor]:
    return [getattr(rnn, f"{kind}_l{layer}{back}") for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]


def reference_seq2seq(model: Seq2Seq, source: list[int], target: list[int]) -> Tensor:
    c = model.config
    h, cell = ([torch.zeros(c.hidden).double() for _ in range(c.depth)] for _ in range(2))

    def read(rnn: nn.LSTM, x: Tensor) -> Tensor:
        for layer in range(c.depth):
            h[layer], cell[layer] = lstm_step(x, h[layer], cell[layer], *weights_of(rnn, layer))
            x = h[layer]
        return x

    for token in reversed(source) if c.reverse else source:
        read(model.encoder, model.embed_source.weight[token] * math.sqrt(c.dim))
    logits = []
    for token in target:
        x = read(model.decoder, model.embed_target.weight[token] * math.sqrt(c.dim))
        if c.tied:
            x = model.decoder_projection.weight @ x + model.decoder_projection.bias
        logits.append(model.output.weight @ x + model.output.bias)
    return torch.stack(logits)


def reference_score(model: Bahdanau, s: Tensor, h: Tensor, position: int) -> Tensor:
    score = model.decoder.cross.score
    if model.config.score == "additive":
        return score.value.weight[0] @ torch.tanh(score.query.weight @ s + score.key.weight @ h)
    if model.config.score == "general":
        return s @ (score.key.weight @ h)
    return score.query.weight[position] @ s


def reference_bahdanau(model: Bahdanau, source: list[int], target: list[int]) -> tuple[Tensor, Tensor]:
    """Logits (T, V) and attention weights (T, S)."""
    c, decoder = model.config, model.decoder
    xs = [model.embed_source.weight[token] * math.sqrt(c.dim) for token in source]
    forward, backward = [torch.zeros(c.hidden).double()], [torch.zeros(c.hidden).double()]
    for x in xs:
        forward.append(gru_step(x, forward[-1], *weights_of(model.encoder, 0)))
    for x in reversed(xs):
        backward.append(gru_step(x, backward[-1], *weights_of(model.encoder, 0, "_reverse")))
    h = [torch.cat((a, b)) for a, b in zip(forward[1:], reversed(backward[1:]), strict=True)]  # [→h; ←h]
    s = torch.tanh(decoder.initial.weight @ backward[-1] + decoder.initial.bias)
    logits, alphas = [], []
    for token in target:
        e = torch.stack([reference_score(model, s, h_j, j) for j, h_j in enumerate(h)])
        alpha = torch.exp(e - e.max()) / torch.exp(e - e.max()).sum()
        context = sum(a * h_j for a, h_j in zip(alpha, h, strict=True))
        y = model.embed_target.weight[token] * math.sqrt(c.dim)
        w = torch.cat((decoder.cell.inputs.weight, decoder.context.weight), 1)
        s = gru_step(torch.cat((y, context)), s, w, decoder.cell.recurrent.weight, decoder.cell.inputs.bias,
                     decoder.cell.recurrent.bias)  # fmt: skip
        t = decoder.readout.weight @ torch.cat((s, context, y)) + decoder.readout.bias
        t = torch.stack([torch.maximum(t[i], t[i + c.readout]) for i in range(c.readout)])
        logits.append(model.output.weight @ t + model.output.bias)
        alphas.append(alpha)
    return torch.stack(logits), torch.stack(alphas)


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@torch.no_grad()
def test_seq2seq_equals_a_reference_of_single_steps(tied, reverse):
    model = build(Seq2Seq, Seq2SeqConfig(vocab=VOCAB, dim=6, hidden=5, depth=2, tied=tied, reverse=reverse))
    for row, (source, target) in enumerate(sentences()):
        close(model(SOURCE, TARGET)[row], reference_seq2seq(model, source, target))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("score", ["additive", "general", "location"])
@torch.no_grad()
def test_bahdanau_equals_a_reference_of_single_steps(score, tied):
    config = BahdanauConfig(vocab=VOCAB, dim=6, hidden=5, align=4, readout=6, score=score, max_len=9, tied=tied)
    model = build(Bahdanau, config)
    with watch(model) as weights:
        logits = model(SOURCE, TARGET)
    alphas = torch.cat(weights["decoder.cross"], -2)[:, 0]  # (B, T, S)
    for row, (source, target) in enumerate(sentences()):
        wanted, alpha = reference_bahdanau(model, source, target)
        close(logits[row], wanted)
        close(alphas[row, :, : len(source)], alpha)
        assert not alphas[row, :, len(source) :].any()


@torch.no_grad()
def test_reading_a_source_backwards_equals_reading_the_reversed_source():
    model = build(Seq2Seq, Seq2SeqConfig(vocab=VOCAB, dim=6, hidden=5, depth=1, reverse=True))
    ahead = build(Seq2Seq, Seq2SeqConfig(vocab=VOCAB, dim=6, hidden=5, depth=1, reverse=False))
    close(model(SOURCE[:1], TARGET[:1]), ahead(SOURCE[:1].flip(1), TARGET[:1]))


# Sizes


def test_seq2seq_has_the_recurrent_connections_of_the_paper():
    encoder = Seq2Seq(Seq2SeqConfig(vocab=8)).encoder  # the default sizes: section 3.4 counts 32 million of each side
    assert sum(w.numel() for name, w in encoder.named_parameters() if name.startswith("weight")) == 32_000_000


def test_bahdanau_has_the_matrices_of_the_paper():
    decoder = Bahdanau(BahdanauConfig(vocab=8)).decoder  # appendix A.2.2: n = 1000, m = 620, l = 500, n' = 1000
    shapes = {name: tuple(p.shape) for name, p in decoder.named_parameters() if p.ndim == 2}
    assert shapes == {
        "initial.weight": (1000, 1000),  # W_s
        "cross.score.query.weight": (1000, 1000),  # W_a
        "cross.score.key.weight": (1000, 2000),  # U_a
        "cross.score.value.weight": (1, 1000),  # v_a
        "cell.inputs.weight": (3000, 620),  # W, W_z, W_r
        "cell.recurrent.weight": (3000, 1000),  # U, U_z, U_r
        "context.weight": (3000, 2000),  # C, C_z, C_r
        "readout.weight": (1000, 1000 + 2000 + 620),  # U_o, C_o, V_o: two for each of the l maxout units
    }


@pytest.mark.parametrize("name", ["seq2seq-tiny", "bahdanau-tiny"])
def test_the_small_translators_have_the_parameters_of_the_small_transformer(name):
    def parameters(name: str) -> int:
        family, config = preset(name)
        return cost(family, dataclasses.replace(config, vocab=10_000), 4, 4)[-1].parameters

    assert parameters(name) == pytest.approx(parameters("transformer-tiny"), rel=0.1)


def test_scores_are_counted_once_for_each_step_and_source_token():
    decoder = next(part for part in cost("bahdanau", BAHDANAU["tiny"], 7, 5) if part.name == "decoder")
    assert decoder.score_bytes == 4 * 5 * 7
    assert cost("seq2seq", SEQ2SEQ["tiny"], 7, 5)[-1].score_bytes == 0


# Bad configs


def test_a_tied_readout_of_another_width_is_refused():
    with pytest.raises(ValueError, match=r"a readout of width 5 cannot be tied to embeddings of width 6; make them equal, or"):
        BahdanauConfig(dim=6, readout=5, tied=True)


def test_a_location_score_limits_the_length():
    assert Bahdanau(BahdanauConfig(vocab=8, dim=4, hidden=4, score="location", max_len=7)).max_len == 7
    assert Bahdanau(BahdanauConfig(vocab=8, dim=4, hidden=4, max_len=7)).max_len == math.inf


# Learning


@pytest.mark.parametrize("score", ["additive", "general", "location", None])
def test_a_small_batch_is_learned_by_heart(score):
    torch.manual_seed(0)
    if score:
        sizes = {"vocab": VOCAB, "dim": 16, "hidden": 24, "align": 16, "readout": 16, "tied": True}
        model = Bahdanau(BahdanauConfig(**sizes, score=score, max_len=8))
    else:
        model = Seq2Seq(Seq2SeqConfig(vocab=VOCAB, dim=16, hidden=24, depth=2, tied=True))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        features = model.features(SOURCE, TARGET[:, :-1]).flatten(0, 1)
        loss, _ = linear_cross_entropy(features, model.output.weight, model.output.bias, TARGET[:, 1:].flatten())
        optimizer.zero_grad()
        (loss / len(features)).backward()
        optimizer.step()
    assert model(SOURCE, TARGET[:, :-1]).argmax(-1).equal(TARGET[:, 1:])
