"""Attention and the order of tokens: equivariance, masks, and the lecture's table of six words.

Shapes: T tokens, Q queries, K keys, D width.
"""

from collections.abc import Iterator
from itertools import permutations

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.layers.attention import Attention, attend
from regard.layers.masks import causal_mask, neighborhood_mask
from regard.layers.recurrent_attention import CrossAttention
from regard.layers.scores import Additive
from regard.layers.tap import record_calls, watch, without_positions
from regard.models.gpt import GPT, GPTConfig
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.verify.claim import Finding, at_least, at_most, claim, close, equals, refutes
from regard.verify.plots import Heatmap
from regard.verify.transformer import TABLE
from regard.view.attention_steps import LECTURE_WORDS, lecture_steps

__all__: list[str] = []

EXACT = 1e-5  # of float32 numbers of about 1

# Weights of each word of a sentence on all of them, as the notes print them.
MONEY_BANK_GROWS = torch.tensor([[0.7, 0.2, 0.1], [0.25, 0.7, 0.05], [0.1, 0.2, 0.7]])
RIVER_BANK_FLOWS = torch.tensor([[0.8, 0.15, 0.05], [0.2, 0.78, 0.02], [0.4, 0.01, 0.59]])
# The same of the word bank alone, as the text before prints them; bank is the second word.
BANK_IN_TEXT = (torch.tensor([0.2, 0.7, 0.1]), torch.tensor([0.5, 0.4, 0.1]))


def mix(weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Attention whose scores are the logarithms of `weights` (Q, K): → new vectors (Q, D), and the weights that it gave."""
    q, k = torch.zeros(len(weights), 1), torch.zeros(len(values), 1)
    mixed, given = attend(q, k, values, bias=weights.log(), need_weights=True)
    assert given is not None
    return mixed, given


@claim(5, "002", "The new vector of a word is the weighted average of all words of its sentence, so bank depends on its context: "
       "money bank grows, river bank flows.")  # fmt: skip
def bank_depends_on_its_sentence() -> Iterator[Finding]:
    words = dict(zip(("money", "river", "bank", "grows", "flows"), torch.randn(5, 512), strict=True))
    banks = list[Tensor]()
    for sentence, table in (("money bank grows", MONEY_BANK_GROWS), ("river bank flows", RIVER_BANK_FLOWS)):
        vectors = torch.stack([words[word] for word in sentence.split()])
        new, given = mix(table, vectors)
        averages = torch.stack([sum((w * e for w, e in zip(row, vectors, strict=True)), torch.zeros(512)) for row in table])
        yield close(f"weights of {sentence}, against the notes'", given, table, within=1e-6)
        yield close(f"new vectors of {sentence}, against weighted averages", new, averages, within=EXACT)
        banks.append(new[1])
        yield Heatmap(sentence, "attends to", "word", given, sentence.split(), sentence.split(), "weight")
    yield at_most("cosine of the two banks (before: 1)", F.cosine_similarity(banks[0], banks[1], dim=0).item(), 0.97)
    to_money, to_river = (F.cosine_similarity(banks[0] - banks[1], words[word], dim=0).item() for word in ("money", "river"))
    yield at_least("cosine of their difference with money minus that with river", to_money - to_river, 0.3)


@claim(6, "002 003", "Self-attention without parameters weighs words by the dot products e · eᵀ; the vectors of all words are "
       "computed in parallel.")  # fmt: skip
def self_attention_without_parameters_is_parallel() -> Iterator[Finding]:
    e, layer = torch.randn(6, 16), Attention(16, heads=1, bias=False).requires_grad_(False)
    layer.qkv.weight.copy_(torch.eye(16).repeat(3, 1))
    layer.out.weight.copy_(torch.eye(16))
    together, _ = attend(e, e, e)
    looped = list[Tensor]()
    for query in e:
        weights = torch.tensor([float(query @ key) / 16**0.5 for key in e]).softmax(-1)
        looped.append(sum((w * value for w, value in zip(weights, e, strict=True)), torch.zeros(16)))
    yield close("new vectors, against a loop over words", together, torch.stack(looped), within=EXACT)
    yield close("a layer whose W_q, W_k, W_v and W_o are the identity", layer(e[None])[0], together, within=EXACT)
    order = torch.randperm(6)
    alone = torch.cat([attend(e[word : word + 1], e, e)[0] for word in order])
    yield close("one word at a time, in any order, against all at once", alone, together[order], within=EXACT)


@claim(27, "004", "Self-attention is permutation equivariant: the order of the words is not part of the result.")
def self_attention_is_permutation_equivariant() -> Iterator[Finding]:
    layer, x, order = Attention(32, heads=4), torch.randn(1, 7, 32), derangement(7)
    yield close("one layer: outputs of words in another order, against the outputs in that order", layer(x[:, order]),
                layer(x)[:, order], within=EXACT)  # fmt: skip
    model, ids = encoder(), torch.randint(4, 20, (1, 7))
    with without_positions(model):
        yield close("an encoder of 2 layers without positions", encoded(model, ids[:, order]), encoded(model, ids)[order],
                    within=1e-4)  # fmt: skip
    moved = (encoded(model, ids[:, order]) - encoded(model, ids)[order]).abs().max().item()
    yield at_least("the same with positions: largest difference", moved, 0.1)


@claim(27, "004", "The attention of one query to a set of features is permutation invariant: it does not depend on their order.")
def attention_of_one_query_is_permutation_invariant() -> Iterator[Finding]:
    features, order = torch.randn(1, 3 * 4, 16), derangement(12)  # H · W = N features
    for name, layer in (("dot product", Attention(16, heads=1)), ("additive", CrossAttention(Additive(16, 16, 8)))):
        h = torch.randn(1, 1, 16)
        context, moved = (layer(h, layer.keys_values(x)) for x in (features, features[:, order]))
        context, moved = (found[0] if isinstance(found, tuple) else found for found in (context, moved))
        yield close(f"{name}: context of features in another order", moved, context, within=EXACT)


@claim(28, "002", "Self-attention has no mechanism to understand the order of words: Nithish killed lion and lion killed Nithish "
       "are hard to differentiate; an RNN, which reads one word at a time, does not have this problem.")  # fmt: skip
def without_positions_the_lion_and_nithish_are_alike() -> Iterator[Finding]:
    model, rnn, nithish_killed_lion = encoder(), Seq2Seq(Seq2SeqConfig(20, 16, 16)).eval(), torch.tensor([[4, 5, 6]])
    lion_killed_nithish = nithish_killed_lion.flip(1)
    with without_positions(model):
        first, second = (encoded(model, ids) for ids in (nithish_killed_lion, lion_killed_nithish))
    yield close("vectors of Nithish, killed and lion in both sentences, without positions", second.flip(0), first, within=1e-4)
    yield close("mean of the sentence", second.mean(0), first.mean(0), within=1e-4)
    first, second = (encoded(model, ids) for ids in (nithish_killed_lion, lion_killed_nithish))
    yield at_least("largest difference with positions", (second.flip(0) - first).abs().max().item(), 0.1)
    with torch.no_grad():
        states = [rnn.encode(ids).hidden for ids in (nithish_killed_lion, lion_killed_nithish)]
    yield at_least("largest difference of an LSTM's last state", (states[1] - states[0]).abs().max().item(), 0.01)


@claim(36, "000 003", "The weights of YOUR CAT IS A LOVELY CAT are 6 × 6, each row sums to 1, and times V (6 × 512) they are the "
       "attention (6 × 512), in which each word has interacted with the others.")  # fmt: skip
def the_table_of_six_words_mixes_their_values() -> Iterator[Finding]:
    v = torch.randn(6, 512)
    out, weights = mix(TABLE, v)
    yield close("sums of the rows of the notes' table, rounded to 3 digits", TABLE.sum(-1), torch.ones(6), within=0.0015)
    yield close("weights of our attention with these scores, against the table", weights, TABLE, within=0.001)
    yield equals("shapes of the weights and of the attention", [tuple(weights.shape), tuple(out.shape)], [(6, 6), (6, 512)])
    rows = [sum((w * word for w, word in zip(row, v, strict=True)), torch.zeros(512)) / row.sum() for row in TABLE]
    yield close("attention, against sums of V", out, torch.stack(rows), within=EXACT)
    v[LECTURE_WORDS.index("LOVELY")] += 1
    changed = (mix(TABLE, v)[0] - out).abs().amax(-1)
    yield equals("words whose vector changes with LOVELY", int((changed > 0.01).sum()), 6)
    yield Heatmap("YOUR CAT IS A LOVELY CAT", "attends to", "word", TABLE, LECTURE_WORDS, LECTURE_WORDS, "weight")


@claim(37, "003", "The values along the diagonal are expected to be the highest.",
       condition="if queries and keys are the same vectors, all of one length; a longer vector attracts others, and learned W_q "
       "and W_k need not favour a word itself")  # fmt: skip
def the_diagonal_is_highest_for_vectors_of_one_length() -> Iterator[Finding]:
    x = torch.randn(500, 6, 8)
    one_length = F.normalize(x, dim=-1)
    yield equals("rows of the notes' table whose diagonal is highest, of 6", int((TABLE.argmax(-1) == torch.arange(6)).sum()), 6)
    yield equals("rows whose diagonal is highest, vectors of one length, as a fraction", on_diagonal(one_length, one_length), 1)
    yield at_most("the same of random vectors of width 8, as a fraction", on_diagonal(x, x), 0.98)
    q, k, _ = Attention(8, heads=1).requires_grad_(False).project(one_length)
    yield at_most("the same of vectors of one length after random W_q and W_k", on_diagonal(q[:, 0], k[:, 0]), 0.6)
    longer = torch.stack((one_length[:, 0], 3 * F.normalize(one_length[:, 0] + one_length[:, 1], dim=-1)), 1)
    _, weights = attend(longer, longer, longer, need_weights=True)
    assert weights is not None
    yield at_least("how often a word attends most to one of 3 times its length, halfway to another word",
                   (weights[:, 0].argmax(-1) == 1).float().mean().item(), 0.8)  # fmt: skip


@claim(37, "003", "Positions set to −∞ before the softmax do not interact, and the model does not learn their interactions.")
def masked_positions_do_not_interact() -> Iterator[Finding]:
    q, k, v = (torch.randn(6, 16).requires_grad_() for _ in range(3))
    mask = torch.rand(6, 6) < 0.6
    mask[:, :2], mask[3, 4] = True, False
    out, weights = attend(q, k, v, mask=mask, need_weights=True)
    assert weights is not None
    yield close("weights, against the softmax of −∞ where masked", weights,
                (q @ k.T / 4).masked_fill(~mask, -torch.inf).softmax(-1), within=EXACT)  # fmt: skip
    yield equals("largest masked weight", weights[~mask].max().item(), 0.0)
    grads = torch.autograd.grad(out[3].sum(), (k, v))
    yield equals("gradient of the output of word 4 to the key and the value of word 5, masked",
                 max(grad[4].abs().max().item() for grad in grads), 0.0)  # fmt: skip
    yield at_least("the same to word 1, not masked", min(grad[0].abs().max().item() for grad in grads), 1e-4)


@claim("c8", "001", "Masked training is implemented as a rolling window.",
       right="the mask of a decoder is lower triangular: each word attends to itself and all words before; a rolling window is "
       "local attention")  # fmt: skip
def the_causal_mask_is_no_rolling_window() -> Iterator[Finding]:
    model = GPT(GPTConfig(20, 16, 2, 2, max_len=16)).eval()
    with watch(model) as recorded:
        model(torch.randint(0, 20, (1, 16)))
    allowed = torch.stack([(weights[0] > 0).all(0) for calls in recorded.values() for weights in calls]).all(0)  # (T, T)
    counts = allowed.sum(-1).tolist()
    yield refutes("words that word 16 attends to / words that word 8 attends to, in a GPT", counts[15] / counts[7], 1, by=0.5)
    yield equals("words that words 1 to 16 attend to", counts, list(range(1, 17)))
    yield equals("the mask is that of subsequent_mask(16) in the notes",
                 torch.equal(allowed, torch.triu(torch.ones(16, 16), diagonal=1) == 0), True)  # fmt: skip
    yield equals("of one query after 15 cached words: words it attends to", int(causal_mask(1, 16).sum()), 16)
    window = neighborhood_mask(1, 16, 5).sum(-1)
    yield equals("local attention, kernel 5: pixels that pixels 8 and 14 of a row attend to", window[[7, 13]].tolist(), [5, 5])
    names = [str(word) for word in range(1, 17)]
    yield Heatmap("The mask of a GPT", "attends to", "word", allowed.float(), names, names, "1: allowed")


@claim("c10", "001", "In self-attention each representation encodes the positional information of the sequence.",
       right="it does so only if positions are added; without them a word has the same vector at every place")  # fmt: skip
def self_attention_alone_knows_no_positions() -> Iterator[Finding]:
    model, ids = encoder(), torch.tensor([[4, 9, 4, 9, 9, 4, 4, 4]])
    places = ids[0] == 4
    with without_positions(model):
        yield refutes(
            "different vectors of one word at 5 positions, without positional encoding", distinct(encoded(model, ids)[places]), 5
        )
        yield equals(
            "different vectors of one word at 5 positions, without positional encoding", distinct(encoded(model, ids)[places]), 1
        )
    yield equals("different vectors with positional encoding", distinct(encoded(model, ids)[places]), 5)


@claim("c18", "002", "In money bank grows, bank is 0.2 money + 0.7 bank + 0.1 grows, in river bank flows 0.5 river + 0.4 bank + "
       "0.1 flows; apple is [0.8, 0.1] of fruit and technology.",
       right="the notes' tables have 0.25, 0.7, 0.05 and 0.2, 0.78, 0.02: both are examples, whose weights sum to 1; 9,000 "
       "sentences of 10,000 about fruit make apple [0.9, 0.1]")  # fmt: skip
def the_weights_of_bank_are_given_twice() -> Iterator[Finding]:
    names = ("money bank grows", "river bank flows")
    for name, text, table in zip(names, BANK_IN_TEXT, (MONEY_BANK_GROWS, RIVER_BANK_FLOWS), strict=True):
        vectors = torch.eye(3)
        _, [given] = mix(text[None], vectors)
        yield refutes(f"vector of bank in {name}, by the table against by the text", mix(table, vectors)[0][1], given, by=0.04)
        yield close(f"weights of the text, {name}: a softmax can give them", given, text, within=1e-6)
        yield close(f"weights of the table, {name}: the same", mix(table, vectors)[1], table, within=1e-6)
    sentences = torch.tensor([[9000.0, 1000.0]])
    [apple], _ = mix(sentences, torch.eye(2))
    yield refutes("apple, the average meaning of 9,000 and 1,000 sentences", apple, torch.tensor([0.8, 0.1]), by=0.05)
    yield close("apple, against [0.9, 0.1]", apple, torch.tensor([0.9, 0.1]), within=1e-6)


@claim("c20", "002", "The dot products of a word with all words are its weights, such as 0.7, 0.2 and 0.1.",
       right="the softmax of the dot products is: then weights are positive and sum to 1")  # fmt: skip
def dot_products_become_weights_by_softmax() -> Iterator[Finding]:
    e = torch.randn(8, 16)
    dots = e @ e.T
    yield refutes("sums of the dot products of 8 words", dots.sum(-1), torch.ones(8), by=1.0)
    yield at_most("least dot product", dots.min().item(), -1.0)
    new, weights = attend(e, e, e, scale=1.0, need_weights=True)
    assert weights is not None
    yield close("weights of our attention, against exp(e · eᵀ) / Σ exp(e · eᵀ)", weights, dots.double().exp()
                / dots.double().exp().sum(-1, keepdim=True), within=EXACT)  # fmt: skip
    yield close("their sums", weights.sum(-1), torch.ones(8), within=EXACT)
    yield at_least("least weight", weights.min().item(), 0.0)
    longest = e.norm(dim=-1).max()
    yield at_most("longest new vector / longest word", (new.norm(dim=-1).max() / longest).item(), 1.0 + EXACT)
    yield at_least("the same with the dot products as weights", ((dots @ e).norm(dim=-1).max() / longest).item(), 3.0)


@claim("c22", "003 004", "Self-attention is permutation invariant: it produces the same output regardless of the order of its "
       "inputs.",
       right="self-attention is equivariant: its outputs change places with the inputs; the attention of a single query is "
       "invariant")  # fmt: skip
def outputs_move_with_the_inputs() -> Iterator[Finding]:
    layer, x, order = Attention(32, heads=4).requires_grad_(False), torch.randn(1, 7, 32), derangement(7)
    yield refutes("outputs of words in another order, against those in the first order", layer(x[:, order]), layer(x), by=0.1)
    yield close("outputs of words in another order, against the outputs in that order", layer(x[:, order]), layer(x)[:, order],
                within=EXACT)  # fmt: skip
    query = torch.randn(1, 1, 32)
    yield close("output of one query, the words in another order", layer(query, layer.keys_values(x[:, order])),
                layer(query, layer.keys_values(x)), within=EXACT)  # fmt: skip


@claim("c24", "003", "In the table of YOUR CAT IS A LOVELY CAT, Q, K and V are just the input sentence.",
       right="then q · k = k · q, and log-weights around any three words sum to the same in both directions; the table's values "
       "are random, as the notes say below it")  # fmt: skip
def the_table_of_six_words_is_not_that_of_one_input() -> Iterator[Finding]:
    steps = lecture_steps()
    yield refutes("largest difference of the two directions around three words, in nats, of the table (by rounding: 0.03)",
                  around_three(TABLE), 0, by=0.1)  # fmt: skip
    yield at_most("the same of attention whose Q, K and V are the input", around_three(steps.weights), 1e-3)
    layer = Attention(512, heads=1).requires_grad_(False)
    with record_calls(layer, "") as calls:
        layer(10 * steps.q[None])
    yield at_least("the same with W_q and W_k", around_three(calls[0].weights[0, 0]), 0.1)


def encoder() -> Transformer:
    """An encoder with random weights."""
    return Transformer(TransformerConfig(vocab=20, dim=32, depth=2, heads=4)).eval().requires_grad_(False)


def encoded(model: Transformer, ids: Tensor) -> Tensor:
    """The vectors of one sentence: (1, T) → (T, D)."""
    return model.encode(ids)[0][0]


def derangement(count: int) -> Tensor:
    """A random order in which nothing keeps its place."""
    places, cycle = torch.arange(count), torch.randperm(count)
    places[cycle] = cycle.roll(1)
    return places


def on_diagonal(q: Tensor, k: Tensor) -> float:
    """How often the highest weight of a row is on the diagonal: queries and keys (B, T, D)."""
    _, weights = attend(q, k, k, need_weights=True)
    assert weights is not None
    return (weights.argmax(-1) == torch.arange(weights.shape[-1])).double().mean().item()


def distinct(vectors: Tensor) -> int:
    """How many different vectors there are, up to rounding: (T, D)."""
    same = torch.cdist(vectors, vectors) < 1e-3
    return len({int(row.nonzero()[0]) for row in same})


def around_three(weights: Tensor) -> float:
    """The largest |log w_ij w_jk w_ki - log w_ik w_kj w_ji| of three words: 0 if scores are symmetric."""
    log = weights.log()
    difference = log - log.T
    return max(abs(float(difference[i, j] + difference[j, k] + difference[k, i])) for i, j, k in permutations(range(6), 3))
