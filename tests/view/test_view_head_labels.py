"""Labels of heads whose pattern is known, and none of heads without one."""

import pytest
import torch
from test_image_maps import SWIN, VIT, classifier
from test_image_maps import random_image as noise
from test_speech_maps import untrained
from tiny_predictors import generator, masked_lm, translator
from tone_speech import say

from regard.view.head_labels import SHARE, HeadLabel, label_heads
from regard.view.record import Answer, AttentionLayer, Axis, Record, Windows, Word, record_attention

SIZE = 6
SELF = Axis("tokens", SIZE, [*"<abcd>"], [Word(text, n, n + 1) for n, text in enumerate("<abcd>")], special=[0, SIZE - 1])


def looking(at, queries: int = SIZE, keys: int = SIZE, strength: float = 0.7) -> torch.Tensor:
    """Weights (Q, K) whose strongest is at `at(query)`, None for none."""
    weights = torch.full((queries, keys), (1 - strength) / (keys - 1))
    for query in range(queries):
        key = at(query)
        weights[query] = 1 / keys if key is None else weights[query]
        if key is not None:
            weights[query, key] = strength
    return weights


def record_of(layers, axes, alignment=None, names=("answer", "source")) -> Record:
    empty = torch.zeros(0, 0) if alignment is None else alignment
    return Record("t", Answer("none", "", []), axes, layers, empty, names, "", None)


def self_layer(heads: list[torch.Tensor], kind: str = "self") -> AttentionLayer:
    return AttentionLayer("a", "a", kind, "", "tokens", "tokens", torch.stack(heads))


def labels(heads: list[torch.Tensor], kind: str = "self", axis: Axis = SELF) -> list[HeadLabel]:
    layer = self_layer(heads, kind)
    return label_heads(layer, record_of([layer], {"tokens": axis}))


def test_each_pattern_has_its_label_and_share():
    heads = [
        looking(lambda q: max(0, q - 1)),
        looking(lambda q: q),
        looking(lambda q: min(SIZE - 1, q + 1)),
        looking(lambda q: SIZE - 1),
    ]
    assert labels(heads) == [HeadLabel(0, "previous token", 1.0), HeadLabel(1, "same token", 1.0),
                             HeadLabel(2, "next token", 1.0), HeadLabel(3, "separator", 1.0)]  # fmt: skip


def test_the_share_is_the_fraction_of_queries_that_look_there():
    plain = Axis("tokens", SIZE, SELF.labels, SELF.words)
    three = looking(lambda q: q - 1 if q in (1, 2, 3) else (q + 3) % SIZE)
    [found] = labels([three], axis=plain)
    assert (found.label, found.share) == ("previous token", pytest.approx(3 / 5))  # the first token has no previous one
    two = looking(lambda q: q - 1 if q in (1, 2) else (q + 3) % SIZE)
    assert SHARE > 2 / 5
    assert labels([two], axis=plain) == []


@pytest.mark.parametrize("noise_", [0.0, 1e-3])
def test_a_uniform_head_has_no_label(noise_):
    torch.manual_seed(0)
    uniform = torch.full((SIZE, SIZE), 1 / SIZE) + noise_ * torch.rand(SIZE, SIZE)
    causal = torch.tril(torch.ones(SIZE, SIZE)) + noise_ * torch.tril(torch.rand(SIZE, SIZE))
    assert labels([uniform / uniform.sum(-1, keepdim=True)]) == []
    assert labels([causal / causal.sum(-1, keepdim=True)], "masked") == []


def test_the_first_query_of_a_causal_head_has_no_choice_and_does_not_count():
    axis = Axis("tokens", 3, [*"abc"], [Word(text, n, n + 1) for n, text in enumerate("abc")])
    weights = torch.tensor([[1.0, 0, 0], [0.1, 0.9, 0], [0.8, 0.1, 0.1]])
    [found] = labels([weights], "masked", axis)
    assert (found.label, found.share) == ("same token", 0.5)  # of the second and the third
    assert not any("next" in label.label for label in labels([looking(lambda q: min(2, q + 1), 3, 3)], "masked", axis))


def cross_record(heads: list[torch.Tensor], alignment: torch.Tensor) -> tuple[AttentionLayer, Record]:
    """An answer of the words ab, c and an end token, a source of the words x, yz and an end token."""
    answer = Axis("tokens", 4, [*"abc>"], [Word("ab", 0, 2), Word("c", 2, 3), Word(">", 3, 4)], special=[3])
    source = Axis("tokens", 4, [*"xyz>"], [Word("x", 0, 1), Word("yz", 1, 3), Word(">", 3, 4)], special=[3])
    layer = AttentionLayer("c", "c", "cross", "decoder", "answer", "source", torch.stack(heads))
    return layer, record_of([layer], {"answer": answer, "source": source}, alignment)


def test_an_aligned_word_is_the_one_that_all_heads_together_look_at():
    # by words, the answer's first word is aligned with yz, its second with x: single tokens would say otherwise
    alignment = torch.tensor([[0.4, 0.3, 0.3, 0.0], [0.1, 0.4, 0.4, 0.1], [0.5, 0.1, 0.1, 0.3], [0, 0, 0, 1.0]])
    follows = torch.tensor([[0.3, 0.35, 0.35, 0.0], [0.1, 0.45, 0.45, 0.0], [0.8, 0.1, 0.1, 0.0], [0, 0, 0, 1.0]])
    half = torch.tensor([[0.1, 0.45, 0.45, 0.0], [0.1, 0.45, 0.45, 0.0], [0.1, 0.4, 0.4, 0.1], [0, 0, 0, 1.0]])
    ends = torch.tensor([[0.1, 0.1, 0.1, 0.7]] * 4)
    layer, record = cross_record([follows, half, ends], alignment)
    assert label_heads(layer, record) == [HeadLabel(0, "aligned word", 1.0), HeadLabel(1, "aligned word", 0.5),
                                          HeadLabel(2, "separator", 1.0)]  # fmt: skip


def test_a_single_head_is_not_compared_with_itself():
    alignment = torch.tensor([[0.9, 0.1, 0, 0], [0.9, 0.1, 0, 0], [0.1, 0.8, 0.1, 0], [0, 0, 0, 1.0]])
    layer, record = cross_record([alignment], alignment)
    assert label_heads(layer, record) == []


def test_windows_are_labelled_by_their_places():
    places = torch.tensor([[2, 0], [1, -1]])
    weights = torch.tensor([[[0.9, 0.1], [0.1, 0.9]], [[1.0, 0.0], [0.5, 0.5]]])[:, None]  # (N, 1, Q, K)
    axis = Axis("grid", 3, grid=(1, 3))
    layer = AttentionLayer("w", "w", "self", "", "image", "image", weights, Windows(places, places, (3, 3)))
    [found] = label_heads(layer, record_of([layer], {"image": axis}))
    assert found == HeadLabel(0, "same patch", 1.0)  # position 1 has no choice


def test_a_class_token_and_frames_have_their_own_words():
    axis = Axis("grid", 5, ["class token"], grid=(2, 2), special=[0])
    layer = AttentionLayer("a", "a", "self", "", "tokens", "tokens", looking(lambda q: 0, 5, 5)[None])
    assert label_heads(layer, record_of([layer], {"tokens": axis})) == [HeadLabel(0, "class token", 1.0)]
    frames = Axis("frames", SIZE, times=[float(n) for n in range(SIZE)])
    assert labels([looking(lambda q: max(0, q - 1))], axis=frames) == [HeadLabel(0, "previous frame", 1.0)]


@pytest.mark.parametrize(
    "record",
    [
        lambda: record_attention(translator("transformer"), "the cat runs", tokens=5),
        lambda: record_attention(translator("bahdanau"), "the cat runs", tokens=5),
        lambda: record_attention(generator(), "the cat", tokens=5),
        lambda: record_attention(masked_lm(), "the [MASK] runs"),
        lambda: record_attention(classifier("vit", **VIT), noise(12)),
        lambda: record_attention(classifier("swin", **{**SWIN, "image": 22}), noise(22)),
        lambda: record_attention(untrained("joint"), say("a b")),
    ],
    ids=["transformer", "bahdanau", "gpt", "bert", "vit", "swin", "conformer"],
)
def test_every_real_layer_can_be_labelled(record):
    found = record()
    for layer in found.layers:
        for label in label_heads(layer, found):
            assert 0 <= label.head < layer.heads
            assert SHARE <= label.share <= 1


def test_bert_starts_with_heads_that_look_at_neighbours():
    """Its first layer is initialized so (layers/locality_init.py): the labels find what was put there."""
    from tiny_predictors import encoder_tokenizer, make_run

    from regard.models.bert import BERT, BERTConfig
    from regard.tasks.masked_lm import MaskedLM

    torch.manual_seed(0)
    tokenizer = encoder_tokenizer()
    model = BERT(BERTConfig(vocab=tokenizer.vocab, dim=64, depth=2, heads=4, max_len=32)).eval()
    record = record_attention(MaskedLM(model, tokenizer, make_run(model, "bert", "masked_lm")), "the dog runs in the park")
    found = {label.label for label in label_heads(record.layers[0], record)}
    assert {"previous token", "next token"} <= found
