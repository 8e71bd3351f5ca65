"""Attention scores: dot product, additive, content or location, hard or soft; self- and cross-attention."""

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.text.bag_of_words import one_hot
from regard.layers.attention import Attention, attend
from regard.layers.recurrent_attention import CrossAttention
from regard.layers.scores import Additive, General, Location, RecurrentScore
from regard.layers.shapes import join_heads
from regard.layers.tap import record_calls
from regard.models.captioner import sampled_place
from regard.models.transformer import Transformer, TransformerConfig
from regard.verify.claim import Finding, at_least, at_most, claim, close, equals, refutes
from regard.verify.measures import Points, least_cpu_seconds, minimize, saved_bytes
from regard.verify.plots import Curves

__all__: list[str] = []

EXACT = 1e-5  # of float32 numbers of about 1

# Each word is in one idiom and in one literal phrase, so only a pair of words tells them apart.
WORDS = ("piece", "cup", "of", "cake", "tea")
IDIOMS, LITERAL = ("piece of cake", "cup of tea"), ("piece of tea", "cup of cake")
STEPS = 100  # of training


def learn_idioms(layer: Callable[[Tensor], Tensor], *weights: nn.Parameter) -> tuple[Points, int]:
    """Train a classifier of the last word's new vector, idiom or literal, and these weights: → the losses, how many are right."""
    e = one_hot(torch.tensor([[WORDS.index(word) for word in phrase.split()] for phrase in IDIOMS + LITERAL]), len(WORDS))
    labels = torch.tensor([1, 1, 0, 0])
    classifier = nn.Linear(len(WORDS), 2)
    losses = minimize([*weights, *classifier.parameters()], lambda: F.cross_entropy(classifier(layer(e)[:, -1]), labels), STEPS,
                      lr=0.02)  # fmt: skip
    return losses, int((classifier(layer(e)[:, -1]).argmax(-1) == labels).sum())


@claim(7, "002", "Self-attention without parameters learns nothing from data, such as what a piece of cake means; queries, keys "
       "and values need learned weights.")  # fmt: skip
def idioms_need_learned_queries_and_keys() -> Iterator[Finding]:
    attention = Attention(len(WORDS), heads=4, width=16, bias=False)
    fixed, fixed_right = learn_idioms(lambda e: attend(e, e, e)[0])
    learned, right = learn_idioms(attention, *attention.parameters())
    yield at_most("phrases of 4 classified correctly without parameters (a classifier is trained in both cases)", fixed_right, 3)
    yield at_least("loss without parameters, nats (a guess: 0.693)", fixed[-1][1], 0.6)
    yield equals("phrases of 4 classified correctly with learned W_q, W_k, W_v", right, 4)
    yield at_most("loss with learned W_q, W_k, W_v, nats", learned[-1][1], 0.1)
    lines = {"softmax(e eᵀ) e": fixed, "learned W_q, W_k, W_v": learned}
    yield Curves("Idiom or literal?", "training step", "loss in nats", lines)


@claim(8, "002", "W_q, W_k and W_v start with random weights and are learned from data.")
def random_projections_are_learned() -> Iterator[Finding]:
    attention = Attention(len(WORDS), heads=4, width=16, bias=False)
    start = attention.qkv.weight.detach().clone()
    bound = math.sqrt(6 / sum(start.shape))  # Xavier's
    yield close(f"standard deviation of the initial weights, drawn uniformly from ±{bound:.3f}", start.std().item(),
                bound / math.sqrt(3), rel=0.25)  # fmt: skip
    losses, _ = learn_idioms(attention, *attention.parameters())
    yield at_most("loss after training, as a fraction of that before", losses[-1][1] / losses[0][1], 0.2)
    for name, before, after in zip(("W_q", "W_k", "W_v"), start.chunk(3), attention.qkv.weight.detach().chunk(3), strict=True):
        yield at_least(f"change of {name}, as a fraction of its length", ((after - before).norm() / before.norm()).item(), 0.1)
    yield Curves("Learning W_q, W_k, W_v", "training step", "loss in nats", {"loss": losses})


@claim(8, "002", "The same matrices W_q, W_k and W_v serve all words of a sentence.")
def one_projection_serves_all_words() -> Iterator[Finding]:
    attention, x = Attention(32, heads=4), torch.randn(1, 7, 32)
    parts = zip(attention.qkv.weight.chunk(3), attention.qkv.bias.chunk(3), attention.project(x), strict=True)
    for name, (weight, bias, found) in zip(("queries", "keys", "values"), parts, strict=True):
        words = torch.stack([weight @ word + bias for word in x[0]])  # one word at a time
        yield close(f"{name} of all words, against a loop with one matrix", join_heads(found)[0], words, within=EXACT)


@claim(9, "001 004", "Attention functions f_att differ: an MLP (additive), a dot product.")
def attention_functions_equal_their_formulas() -> Iterator[Finding]:
    states, memory = torch.randn(2, 3, 8), torch.randn(2, 5, 6)
    additive, general = Additive(8, 6, 10), General(8, 6)
    w, u, v, bilinear = (layer.weight for layer in (additive.query, additive.key, additive.value, general.key))
    functions: dict[str, tuple[RecurrentScore, Callable[[Tensor, Tensor], Tensor]]] = {
        "additive, v · tanh(W q + U k)": (additive, lambda q, k: v[0] @ torch.tanh(w @ q + u @ k)),
        "general, q · W k": (general, lambda q, k: q @ (bilinear @ k)),
    }
    for name, (score, formula) in functions.items():
        attention = CrossAttention(score)
        _, weights = attention(states, attention.keys_values(memory))
        yield close(f"weights, {name}, against a loop", weights, weights_of_pairs(states, memory, formula), within=EXACT)
    q, k = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    _, found = attend(q, k, k, need_weights=True)
    assert found is not None
    yield close("weights, dot product, q · k / √d, against a loop", found,
                weights_of_pairs(q, k, lambda q, k: q @ k / math.sqrt(8)), within=EXACT)  # fmt: skip


def weights_of_pairs(queries: Tensor, keys: Tensor, score: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The softmax over the keys of a score of one query and one key at a time: (B, Q, ·), (B, K, ·) → (B, Q, K)."""
    return torch.stack([
        torch.stack([torch.stack([score(q, k) for k in row]).softmax(-1) for q in states])
        for states, row in zip(queries, keys, strict=True)
    ])  # fmt: skip


@claim(9, "001", "Scaled dot-product attention is faster and more space-efficient than additive attention.")
def dot_products_are_cheaper_than_additive_scores() -> Iterator[Finding]:
    tokens, width = 128, 64
    q, k = torch.randn(2, 1, 1, tokens, width).requires_grad_()
    additive = Additive(width, width, width)
    runs: dict[str, Callable[[], object]] = {
        "additive": lambda: attend(q, additive.keys(k), k, score=additive, need_weights=True),
        "dot": lambda: attend(q, k, k, need_weights=True),
    }
    saved, seconds = {name: saved_bytes(run) for name, run in runs.items()}, least_cpu_seconds(runs)
    yield at_least("activations saved, additive / dot product, 128 queries and keys of width 64",
                   saved["additive"] / saved["dot"], 10)  # fmt: skip
    yield at_least("CPU seconds, additive / dot product, the same sizes", seconds["additive"] / seconds["dot"], 2)


@claim(10, "001", "Attention can be based on content or on location.")
def content_scores_depend_on_the_words_and_location_scores_on_the_place() -> Iterator[Finding]:
    state, words, others = torch.randn(1, 1, 16), torch.randn(1, 5, 16), torch.randn(1, 5, 16)
    order = torch.tensor([3, 0, 4, 1, 2])
    kinds: dict[str, RecurrentScore] = {"additive": Additive(16, 16, 64), "general": General(16, 16), "location": Location(16, 8)}
    for name, score in kinds.items():
        attention = CrossAttention(score)
        before, moved, after = (attention(state, attention.keys_values(x))[1] for x in (words, words[:, order], others))
        if name == "location":
            yield close("location: change of the weights with other words", (after - before).abs().max().item(), 0.0)
            yield at_least("location: difference of the weights of two positions", (before.max() - before.min()).item(), 0.01)
        else:
            yield at_least(f"{name}: largest change of a weight with other words", (after - before).abs().max().item(), 0.002)
            yield close(f"{name}: weights of words in another order, put in that order", moved, before[..., order], within=EXACT)


@claim(10, "001", "Attention can be soft, a weighted mean of all locations, or hard, one location.")
def hard_attention_samples_by_the_weights_of_soft_attention() -> Iterator[Finding]:
    places, samples = torch.randn(1, 1, 6, 4), 50_000
    soft, weights = attend(torch.randn(1, 1, 1, 4), places, places, need_weights=True)
    assert weights is not None
    many = weights[:, 0].expand(1, samples, -1)
    hard, log_prob = sampled_place(soft[:, 0].expand(1, samples, -1), many, places)
    chosen = (hard[0][:, None] == places[0, 0]).all(-1).float()  # (samples, places)
    yield equals("locations that a hard context is made of", sorted(set(chosen.sum(-1).tolist())), [1.0])
    yield close("how often each place is sampled, against its soft weight", chosen.mean(0), weights[0, 0, 0], within=0.015)
    yield close("mean of hard contexts, against the soft context", hard.mean(1), soft[0, 0], within=0.06)
    probability = many.gather(-1, chosen.argmax(-1)[None, :, None])[..., 0]
    yield close("log-probability of a sample", log_prob, probability.log(), within=EXACT)


@claim(10, "001", "Attention can be soft or hard; a soft one becomes hard as its scores grow.")
def soft_attention_hardens_as_the_temperature_falls() -> Iterator[Finding]:
    q, k, v = torch.randn(8, 4), torch.randn(6, 4), torch.randn(6, 3)
    scores = q @ k.T
    gap = (scores.topk(2).values @ torch.tensor([1.0, -1.0])).min().item()  # between the best keys and the next
    distances = Points()
    for temperature in (10.0, 1.0, 0.1, gap / 30):
        soft, _ = attend(q, k, v, scale=1 / temperature)
        distances.append((temperature, (soft - v[scores.argmax(-1)]).abs().max().item()))
    yield at_least("distance of the soft context from the best value, temperature 10", distances[0][1], 0.5)
    yield at_most("the same when the best score leads by 30 temperatures", distances[-1][1], EXACT)
    yield Curves("Soft attention becomes hard", "temperature", "largest distance from the value of the best key",
                 {"attend": distances}, log_x=True)  # fmt: skip


@claim(10, "001", "Attention can be hard; a sampled place has no gradient, and REINFORCE finds one.")
def reinforce_finds_the_gradient_of_hard_attention() -> Iterator[Finding]:
    scores, reward = torch.randn(1, 1, 1, 5).requires_grad_(), torch.randn(5)
    places = reward[None, None, :, None]  # the context is the reward
    weights = scores.softmax(-1)[:, 0].expand(1, 50_000, -1)
    context, log_prob = sampled_place(torch.zeros(1, 50_000, 1), weights, places)
    yield equals("a sampled context has a gradient", context.requires_grad, False)
    assert log_prob is not None
    [found] = torch.autograd.grad((log_prob * context[..., 0]).mean(), scores)
    [expected] = torch.autograd.grad((scores.softmax(-1) * reward).sum(), scores)
    yield close("gradient by REINFORCE, 50,000 samples, against that of the expected reward", found, expected, within=0.05)


@claim(11, "001 002 003 004", "Attention has as many outputs as queries, however many keys there are.")
def attention_has_as_many_outputs_as_queries() -> Iterator[Finding]:
    attention, sizes = Attention(16, heads=2), (2, 3, 8)
    for queries in sizes:
        x = torch.randn(1, queries, 16)
        crossed = [attention(x, attention.keys_values(torch.randn(1, keys, 16))).shape[1] for keys in sizes]
        yield equals(f"outputs of self-attention, {queries} queries", attention(x).shape[1], queries)
        yield equals(f"outputs of cross-attention to 2, 3 and 8 keys, {queries} queries", crossed, [queries] * 3)


@claim(11, "001 002 003 004", "Self-attention takes queries, keys and values from one sequence; cross-attention takes queries "
       "from the target and keys and values from the source.")  # fmt: skip
def cross_attention_queries_the_source_from_the_target() -> Iterator[Finding]:
    model = Transformer(TransformerConfig(vocab=20, dim=16, depth=1, heads=2)).eval()
    source, target = torch.randint(4, 19, (2, 1, 6))
    other = {"source": (source.flip(1) + 1, target), "target": (source, target.flip(1) + 1)}
    origins = {"encoder.0.attn": ("source", "source"), "decoder.0.attn": ("target", "target"),
               "decoder.0.cross": ("target", "source")}  # fmt: skip
    for name, (queries, keys) in origins.items():
        changed = dict[str, list[str]]()
        for side, inputs in other.items():
            with torch.no_grad(), record_calls(model, name) as calls:
                model(source, target)
                model(*inputs)
            for part in ("q", "k", "v"):
                before, after = (getattr(call, part) for call in calls)
                if not torch.equal(before, after):
                    changed.setdefault(part, []).append(side)
        found = [" and ".join(changed.get(part, ["nothing"])) for part in ("q", "k", "v")]
        yield equals(f"{name}: queries, keys, values come from the", ", ".join(found), ", ".join((queries, keys, keys)))


@claim(32, "003", "Queries, keys and values are named after databases and Python dictionaries: a query finds the value of a key.",
       condition="in the limit of sharp weights; otherwise a query gets a weighted mean of all values")  # fmt: skip
def attention_is_a_soft_dictionary() -> Iterator[Finding]:
    prices = {"apple": 3.0, "bread": 2.0, "cake": 7.0, "tea": 5.0}
    keys = one_hot(torch.arange(len(prices)), len(prices))
    values = torch.tensor(list(prices.values()))[:, None]
    lines = dict[str, Points]({word: [] for word in prices})
    for sharpness in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0):
        found, _ = attend(keys, keys, values, scale=sharpness)
        for word, answer in zip(prices, found[:, 0].tolist(), strict=True):
            lines[word].append((sharpness, answer))
    for word, price in prices.items():
        yield close(f"sharp lookup of {word!r}, against a dict", lines[word][-1][1], price, within=1e-4)
    yield close("mean of all values, which a query that favours no key finds", attend(keys * 0, keys, values)[0][0, 0],
                sum(prices.values()) / len(prices), within=EXACT)  # fmt: skip
    yield close("a query between apple and bread, sharp: the mean of their values",
                attend((keys[:1] + keys[1:2]) / 2, keys, values, scale=60.0)[0][0, 0], 2.5, within=1e-4)  # fmt: skip
    yield Curves("A dictionary whose lookup is soft", "factor of q · k before softmax", "value found", lines, log_x=True)


@claim("c19", "002", "d_k, by whose root scores are divided, is the dimension of the context embeddings.",
       right="d_k is the width of queries and keys: 64 in a layer of width 512 with 8 heads")  # fmt: skip
def scores_are_scaled_by_the_width_of_keys() -> Iterator[Finding]:
    attention = Attention(512, heads=8).eval()
    x = 4 * torch.randn(1, 6, 512)
    with torch.no_grad(), record_calls(attention, "") as calls:
        attention(x)
    [call] = calls
    dots = call.q @ call.k.transpose(-2, -1)  # (1, H, 6, 6)
    yield refutes("width of a key", call.k.shape[-1], 512)
    yield equals("width of a key, d_model / heads", call.k.shape[-1], 64)
    by_root_512, by_root_64 = ((dots / math.sqrt(width)).softmax(-1) for width in (512, 64))
    yield refutes("weights of our layer, against softmax(q · k / √512)", call.weights, by_root_512, by=0.05)
    yield close("weights of our layer, against softmax(q · k / √64)", call.weights, by_root_64, within=EXACT)


@claim("c26", "004", "v = x W_k and q = x W_k, scores are divided by √N, and y_i = Σ_i a_ij v_i.",
       right="v = x W_v and q = x W_q, scores are divided by √D_q, and y_j = Σ_i a_ij v_i with Σ_i a_ij = 1: one output of "
       "width D_v per query")  # fmt: skip
def queries_keys_and_values_have_their_own_matrices() -> Iterator[Finding]:
    attention = Attention(16, heads=1, width=9, bias=False)
    x, y = 2 * torch.randn(40, 16), 2 * torch.randn(3, 16)  # N = 40 inputs, M = 3 queries
    w_q, w_k, w_v = (weight.T for weight in attention.qkv.weight.detach().chunk(3))
    with torch.no_grad(), record_calls(attention, "") as calls:
        attention(y[None], attention.keys_values(x[None]))
    found = calls[0].mixed[0, 0]
    q, k, v = y @ w_q, x @ w_k, x @ w_v

    def mixed(q: Tensor, k: Tensor, v: Tensor, scale: float, over: int = -1) -> Tensor:
        return (q @ k.T / math.sqrt(scale)).softmax(over) @ v

    yield equals("shape of the outputs, M × D_v", list(found.shape), [3, 9])
    yield close("outputs against softmax(q · k / √D_q) v over the keys", found, mixed(q, k, v, 9), within=1e-4)
    notes = {"v = x W_k": mixed(q, k, k, 9), "q = x W_k": mixed(y @ w_k, k, v, 9), "a division by √N": mixed(q, k, v, len(x)),
             "a softmax over the queries": mixed(q, k, v, 9, over=0)}  # fmt: skip
    for name, wrong in notes.items():
        yield refutes(f"outputs against those with {name}", found, wrong, by=0.02)
