"""ELMo: its parts against loops of the equations, the laws of both directions, and static and contextual vectors."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.config import build
from regard.data.text.characters import ALPHABET
from regard.models.elmo import SIZES, CharacterCNN, ELMo, ELMoConfig, Highway, LSTMStack, ScalarMix
from regard.view.cost import cost

VOCAB, PAD, CHARACTERS = 11, 0, 6
SHAPE = {"vocab": VOCAB, "dim": 8, "depth": 2, "characters": CHARACTERS, "character_dim": 3, "filters": [2, 3], "highways": 1}
NO_ONEDNN = pytest.mark.filterwarnings("ignore:LSTM with projections")

law = settings(max_examples=15)
seeds = st.integers(0, 10_000)


def large(model: nn.Module) -> nn.Module:
    """Random, large weights in float64: a broken law is far above the tolerance."""
    torch.manual_seed(0)
    for p in model.parameters():
        nn.init.normal_(p, std=0.6)
    return model.double().eval()


models = {inputs: large(ELMo(ELMoConfig(**SHAPE, cells=4, inputs=inputs))) for inputs in ("tokens", "characters")}
EVERY_INPUT = pytest.mark.parametrize("inputs", models)


def random_words(model: ELMo, seed: int, batch: int, length: int) -> Tensor:
    """Random words without padding, token ids or character ids."""
    most = ALPHABET if model.word_shape else VOCAB
    return torch.randint(1, most, (batch, length, *model.word_shape), generator=torch.Generator().manual_seed(seed))


def others(model: ELMo, words: Tensor) -> Tensor:
    """Each word replaced by another."""
    most = ALPHABET if model.word_shape else VOCAB
    return words % (most - 1) + 1


def same(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)


# Parts, against the equations in plain loops


def lstm_loop(lstm: nn.LSTM, x: Tensor) -> Tensor:
    """One row (T, D), step by step; weights of the gates in the order input, forget, cell, output."""
    w_x, w_h, b_x, b_h, *projection = lstm.parameters()
    h, c, states = torch.zeros(w_h.shape[1]).to(x), torch.zeros(lstm.hidden_size).to(x), []
    for word in x:
        i, f, g, o = (w_x @ word + b_x + w_h @ h + b_h).chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        h = projection[0] @ h if projection else h
        states.append(h)
    return torch.stack(states)


@NO_ONEDNN
@pytest.mark.parametrize("cells", [4, 7])
def test_the_layers_of_a_direction_follow_the_equations(cells):
    stack = large(LSTMStack(ELMoConfig(**{**SHAPE, "depth": 3}, cells=cells)))
    x = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    got = stack(x)
    for row in range(2):
        first = lstm_loop(stack.lstms[0], x[row])
        second = first + lstm_loop(stack.lstms[1], first)
        third = second + lstm_loop(stack.lstms[2], second)
        for layer, wanted in zip(got, (first, second, third), strict=True):
            same(layer[row], wanted)


def test_the_mix_is_the_weighted_sum_of_equation_1():
    mix, layers = large(ScalarMix(3)), torch.randn(3, 2, 4, dtype=torch.float64)
    total = sum(math.exp(w) for w in mix.weights.tolist())
    wanted = sum(math.exp(w) / total * layer for w, layer in zip(mix.weights.tolist(), layers, strict=True))
    same(mix(layers), mix.gamma.item() * wanted)


def test_an_untrained_mix_is_the_mean_of_the_layers():
    layers = torch.randn(3, 2, 4)
    torch.testing.assert_close(ScalarMix(3)(layers), layers.mean(0))


def test_the_character_cnn_is_a_maximum_over_windows_of_characters():
    cnn = large(CharacterCNN(ELMoConfig(**SHAPE, cells=4)))
    words = torch.randint(0, ALPHABET, (2, 3, CHARACTERS), generator=torch.Generator().manual_seed(2))
    got = cnn(words)
    for row in range(2):
        for position in range(3):
            letters = [cnn.characters.weight[n] for n in words[row, position].tolist()]
            best = []
            for conv in cnn.filters:
                width = conv.kernel_size[0]
                for weight, bias in zip(conv.weight, conv.bias, strict=True):  # weight (E, width)
                    scores = [
                        sum(weight[:, k] @ letters[start + k] for k in range(width)) + bias
                        for start in range(CHARACTERS - width + 1)
                    ]
                    best.append(max(0.0, *(score.item() for score in scores)))
            x = torch.tensor(best, dtype=torch.float64)
            [highway] = cnn.highways
            gate = 1 / (1 + torch.exp(-(highway.gate.weight @ x + highway.gate.bias)))
            x = gate * (highway.layer.weight @ x + highway.layer.bias).clamp(min=0) + (1 - gate) * x
            same(got[row, position], cnn.project.weight @ x + cnn.project.bias)


def test_a_highway_layer_mostly_passes_its_input_at_first():
    x = torch.randn(5, 16)
    assert torch.sigmoid(Highway(16).gate(x)).mean() < 0.25


@EVERY_INPUT
def test_vectors_are_the_mix_of_the_normalized_layers(inputs):
    model = models[inputs]
    words = random_words(model, 4, 2, 3)
    layers = model.layers(words)
    centred = layers - layers.mean(-1, keepdim=True)
    normalized = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    same(model.encode(words), model.mix(normalized))


# Laws


@EVERY_INPUT
@law
@given(seed=seeds, batch=st.integers(1, 3), t=st.integers(2, 7), data=st.data())
def test_no_direction_sees_the_words_it_predicts(inputs, seed, batch, t, data):
    model, cut = models[inputs], data.draw(st.integers(1, t - 1))
    words = random_words(model, seed, batch, t)
    following, preceding = model(words)
    later = torch.cat((words[:, :cut], others(model, words)[:, cut:]), 1)
    same(model(later)[0][:, :cut], following[:, :cut])
    assert not torch.allclose(model(later)[1][:, :cut], preceding[:, :cut])
    earlier = torch.cat((others(model, words)[:, :cut], words[:, cut:]), 1)
    same(model(earlier)[1][:, cut:], preceding[:, cut:])
    assert not torch.allclose(model(earlier)[0][:, cut:], following[:, cut:])


@EVERY_INPUT
@law
@given(seed=seeds, lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), more=st.integers(0, 3))
def test_a_padded_batch_gives_the_vectors_of_each_text_alone(inputs, seed, lengths, more):
    model, longest = models[inputs], max(lengths) + more
    words = random_words(model, seed, len(lengths), longest)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    got, logits = model.encode(words, mask[:, None, None]), model(words, mask[:, None, None])
    for row, length in enumerate(lengths):
        alone = words[row : row + 1, :length]
        same(got[row, :length], model.encode(alone)[0])
        for together, single in zip(logits, model(alone), strict=True):
            same(together[row, :length], single[0])


# Static and contextual vectors


@EVERY_INPUT
def test_the_layer_of_the_words_is_static_and_those_above_are_contextual(inputs):
    model = models[inputs]
    money, river = random_words(model, 3, 2, 3)
    river[1] = money[1]  # "money bank grows", "river bank flows"
    layers = model.layers(torch.stack((money, river)))[:, :, 1]  # (L, 2, D)
    same(layers[0, 0], layers[0, 1])
    for layer in layers[1:]:
        assert nn.functional.cosine_similarity(*layer, dim=0) < 0.999
    half = layers.shape[-1] // 2
    assert torch.equal(layers[0, 0, :half], layers[0, 0, half:])  # the word itself, once for each direction


def test_a_forward_state_depends_on_the_words_before_and_a_backward_state_on_those_after():
    model = models["tokens"]
    a, b = torch.tensor([[1, 5, 2], [1, 5, 3]]), torch.tensor([[1, 5, 2], [4, 5, 2]])
    for words, equal in ((a, slice(0, 4)), (b, slice(4, 8))):  # the first half of a vector is forward
        layer = model.layers(words)[-1, :, 1]
        assert torch.equal(layer[0, equal], layer[1, equal])
        assert not torch.allclose(layer[0], layer[1])


# Sizes


# https://allennlp.org/elmo lists the released models.
@pytest.mark.parametrize(("size", "millions"), [("base", 93.6), ("medium", 28.0), ("small", 13.6)])
def test_a_size_has_the_parameters_of_the_released_model(size, millions):
    """The released models have one bias for each gate, where torch has two, and no output layer."""
    c = SIZES[size]
    parts = {part.name: part.parameters for part in cost("elmo", c, 1, 1)}
    second_biases = 2 * c.depth * 4 * c.cells
    assert round((parts["all"] - parts["output"] - second_biases) / 1e6, 1) == millions


@pytest.mark.parametrize("size", SIZES)
def test_the_parameters_follow_the_formula(size):
    c = SIZES[size]
    d, n = c.dim // 2, sum(c.filters)
    lstm = 4 * c.cells * (d + d + 2) + (c.cells * d if c.cells > d else 0)
    filters = sum(count * (width * c.character_dim + 1) for width, count in enumerate(c.filters, 1))
    inputs = ALPHABET * c.character_dim + filters + c.highways * 2 * n * (n + 1) + d * (n + 1)
    output = (c.output_vocab or c.vocab) * (d + 1)
    assert cost("elmo", c, 1, 1)[-1].parameters == inputs + 2 * c.depth * lstm + (c.depth + 1) + 1 + output


@pytest.mark.parametrize("cells", [16, 24])
def test_the_flops_of_the_lstms_follow_the_formula(cells):
    c, t = ELMoConfig(vocab=50, dim=32, cells=cells, inputs="tokens"), 9
    parts = {part.name: part for part in cost("elmo", c, t, 1)}
    each = 2 * t * 4 * cells * (16 + 16) + (2 * t * cells * 16 if cells > 16 else 0)
    assert parts["forward_lstms"].flops == parts["backward_lstms"].flops == c.depth * each
    assert parts["output"].flops == 2 * 2 * t * 16 * 50
    assert parts["all"].score_bytes == 0


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"dim": 7}, "dim is 7; use an even number"),
        ({"dim": 64, "cells": 8}, "cells is 8, less than half of dim, 32"),
        ({"filters": []}, r"filters is \[\]; give the number of filters"),
        ({"filters": [4, 0]}, r"filters is \[4, 0\]"),
        ({"characters": 3, "filters": [1, 1, 1, 1]}, "filters of up to 4 characters, words of 3"),
        ({"characters": 2}, "characters is 2; use 3 or more"),
        ({"inputs": "letters"}, r"model\.inputs: .*'characters' or 'tokens'"),
        ({"depth": 0}, "depth is 0"),
    ],
)
def test_a_wrong_size_is_refused_in_one_line(values, wanted):
    with pytest.raises(ValueError, match=wanted) as refused:
        build("model", ELMoConfig, values)
    assert "\n" not in str(refused.value)
