"""Multi-head attention: several small attentions side by side, what they cost, and what they are for.

Shapes: T tokens, D width, H heads, E = D / H width of one head.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import permutations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.text.tokenizer import Tokenizer
from regard.layers.attention import Attention, attend
from regard.layers.embed import Embed
from regard.layers.positions import SinusoidalPositions
from regard.layers.tap import AttentionCall, record_calls, watch
from regard.models.transformer import SIZES, Transformer, TransformerConfig
from regard.tasks.load import load
from regard.tasks.translation import Translator
from regard.verify.claim import Finding, at_least, at_most, between, claim, close, equals, refutes
from regard.verify.measures import Points, count_flops, least_cpu_seconds, minimize
from regard.verify.plots import Curves, Heatmap
from regard.view.cost import cost

__all__: list[str] = []

EXACT = 1e-5  # of float32 numbers of about 1
SENTENCE = "The man saw the astronomer with a telescope."

# Two readings: the first person has the telescope, or the second.
PEOPLE = ("man", "astronomer", "woman", "child", "pilot", "sailor")
WORDS = (*PEOPLE, "the", "saw", "with", "a", "telescope")
PAIRS = tuple(permutations(PEOPLE, 2))
STEPS = 50  # of training


def learn_both_readings(heads: int, dim: int = 32) -> tuple[Points, float, Tensor]:
    """One layer learns to name both owners of the telescope at that word: → losses, fraction of sentences right, weights (H, T).

    The weights are those of "telescope" in the notes' sentence.
    """
    sentences = [f"the {first} saw the {second} with a telescope".split() for first, second in PAIRS]
    ids = torch.tensor([[WORDS.index(word) for word in sentence] for sentence in sentences])
    owners = torch.tensor([[PEOPLE.index(person) for person in pair] for pair in PAIRS])  # by the first and the second reading
    embed = Embed(nn.Embedding(len(WORDS), dim), SinusoidalPositions(dim), dropout=0.0)
    attention, readings = Attention(dim, heads), nn.Linear(dim, 2 * len(PEOPLE))

    def read() -> Tensor:
        return readings(attention(embed(ids))[:, -1]).unflatten(-1, (2, -1))  # (sentences, 2, people)

    weights = nn.ModuleList([embed, attention, readings]).parameters()
    losses = minimize(weights, lambda: F.cross_entropy(read().flatten(0, 1), owners.flatten()), STEPS, lr=0.01)
    with torch.no_grad(), record_calls(attention, "") as calls:
        right = (read().argmax(-1) == owners).all(-1).float().mean().item()
    return losses, right, calls[0].weights[PAIRS.index(("man", "astronomer")), :, -1]


@claim(29, "002", "One self-attention has one perspective of a text; a sentence with two meanings, such as The man saw the "
       "astronomer with a telescope, needs several heads.",
       condition="in that one head learns both meanings much more slowly; with enough steps it may learn a code for "
       "both")  # fmt: skip
def two_readings_need_two_heads() -> Iterator[Finding]:
    one, _, _ = learn_both_readings(heads=1)
    several, right, weights = learn_both_readings(heads=8)
    yield at_least("loss of one head of width 32 / loss of 8 heads of width 4, at the end", one[-1][1] / several[-1][1], 20)
    yield at_least("sentences of which 8 heads find both readings, as a fraction", right, 1.0)
    man, astronomer = weights[:, 1], weights[:, 4]
    yield at_least("weight of the man minus that of the astronomer, in one head", (man - astronomer).max().item(), 0.5)
    yield at_least("weight of the astronomer minus that of the man, in another head", (astronomer - man).max().item(), 0.5)
    yield Curves("Who has the telescope, by both readings", "training step", "loss in nats", {"1 head": one, "8 heads": several},
                 log_y=True)  # fmt: skip
    chosen = [int((man - astronomer).argmax()), int((astronomer - man).argmax())]
    yield Heatmap("The word telescope attends to", "word", "head", weights[chosen], [f"head {head + 1}" for head in chosen],
                  SENTENCE.rstrip(".").split(), "weight")  # fmt: skip


@claim(29, "001 002 003", "Several heads attend to different things.")
def heads_of_a_trained_model_attend_to_different_words() -> Iterator[Finding]:
    calls, pieces = encoder_calls()
    for layer, call in enumerate(calls):
        weights = call.weights[0]  # (H, T, T)
        moved = (weights[:, None] - weights).abs().sum(-1).mean(-1) / 2  # (H, H)
        apart = moved[~torch.eye(len(moved), dtype=torch.bool)].min().item()
        yield at_least(f"layer {layer + 1}: weight that the most similar two heads give to different words, of 1", apart, 0.2)
    yield Heatmap("Last layer of a translator: the word with attends to", "piece", "head", weights[:, pieces.index("with")],
                  [f"head {head + 1}" for head in range(len(weights))], pieces, "weight")  # fmt: skip


def encoder_calls() -> tuple[list[AttentionCall], list[str]]:
    """What each encoder layer of the shipped translator computes of the notes' sentence, and the pieces of that sentence."""
    translator = load("en-it", "cpu")
    assert isinstance(translator, Translator)
    model, tokenizer = translator.model, translator.tokenizer
    assert isinstance(model, Transformer)
    assert isinstance(tokenizer, Tokenizer)
    [ids] = tokenizer.encode([SENTENCE])
    calls = list[AttentionCall]()
    for layer in range(len(model.encoder)):
        with torch.no_grad(), record_calls(model, f"encoder.{layer}.attn") as recorded:
            model.encode(torch.tensor([ids]))
        calls += recorded
    return calls, [piece.strip("▁· ") for piece in tokenizer.display(ids)]


@claim(30, "001 002 003", "A head has its own matrices from 512 to 512/8 = 64; MultiHead is Concat(head_1 … head_8) W^O.")
def multi_head_attention_equals_a_loop_over_heads() -> Iterator[Finding]:
    attention, x = Attention(512, heads=8, bias=False).requires_grad_(False), torch.randn(1, 6, 512)
    with record_calls(attention, "") as calls:
        found = attention(x)[0]
    parts = [weight.T.split(64, 1) for weight in attention.qkv.weight.chunk(3)]  # 3 × 8 × (512, 64)
    outputs = list[Tensor]()
    for w_q, w_k, w_v in zip(*parts, strict=True):
        scores = (x[0] @ w_q) @ (x[0] @ w_k).T / 64**0.5
        outputs.append(scores.softmax(-1) @ (x[0] @ w_v))
    yield equals("outputs of the heads", tuple(calls[0].mixed.shape[1:]), (8, 6, 64))
    yield close("each head, against a loop", calls[0].mixed[0], torch.stack(outputs), within=EXACT)
    yield equals("shape of W^O", tuple(attention.out.weight.shape), (8 * 64, 512))
    yield close("Concat(head_1 … head_8) W^O", found, torch.cat(outputs, -1) @ attention.out.weight.T, within=EXACT)


@claim(30, "001 003", "MultiHead(Q, K, V) = Concat(head_1 … head_h) W^O, for self-attention and for cross-attention.")
def multi_head_attention_equals_torchs() -> Iterator[Finding]:
    ours, theirs = Attention(64, heads=4), nn.MultiheadAttention(64, 4, batch_first=True)
    nn.ModuleList([ours, theirs]).requires_grad_(False)
    for bias in (ours.qkv.bias, ours.out.bias):
        nn.init.normal_(bias)
    theirs.in_proj_weight.copy_(ours.qkv.weight)
    theirs.in_proj_bias.copy_(ours.qkv.bias)
    theirs.out_proj.load_state_dict(ours.out.state_dict())
    x, y, mask = torch.randn(2, 7, 64), torch.randn(2, 5, 64), torch.rand(5, 7) < 0.7
    mask[:, 0] = True
    memory = ours.keys_values(x)
    yield close("self-attention, against nn.MultiheadAttention", ours(x), theirs(x, x, x)[0], within=EXACT)
    yield close("cross-attention", ours(y, memory), theirs(y, x, x)[0], within=EXACT)
    yield close("cross-attention with a mask", ours(y, memory, mask=mask), theirs(y, x, x, attn_mask=~mask)[0], within=EXACT)


@claim(31, "001", "All heads together take roughly the time of one head of full width.")
def all_heads_cost_as_much_as_one_of_full_width() -> Iterator[Finding]:
    yield equals("FLOPs of 8 heads / FLOPs of one head of width 512, 128 tokens", flops(8) / flops(1), 1.0)
    yield close("FLOPs of 8 heads of full width / FLOPs of one", flops(8, width=512) / flops(1), 8.0, rel=0.05)
    models = [cost("transformer", replace(SIZES["base"], heads=heads, depth=1), 30, 30)[-1] for heads in (1, 8)]
    yield equals("parameters and FLOPs of a Transformer of one layer with 8 heads and with 1", models[1][1:3], models[0][1:3])
    x, layers = torch.randn(1, 128, 512), {heads: Attention(512, heads).eval() for heads in (1, 8)}
    with torch.no_grad():
        one, eight = least_cpu_seconds({f"{heads}": partial(layer, x) for heads, layer in layers.items()}, rounds=15).values()
    yield at_most("CPU seconds of 8 heads / of one head, 128 tokens", eight / one, 1.3)


def flops(heads: int, width: int = 0) -> int:
    """FLOPs of the matrix products of attention between 128 tokens of width 512."""
    with torch.device("meta"), torch.no_grad():
        layer, x = Attention(512, heads, width=width), torch.empty(1, 128, 512)
        return count_flops(lambda: layer(x))


@claim(33, "001", "It is a misconception that attention performs a vector similarity search.")
def attention_is_no_similarity_search() -> Iterator[Finding]:
    calls, pieces = encoder_calls()
    scores = [call.q @ call.k.transpose(-2, -1) for call in calls]
    asymmetry = [((e - e.transpose(-2, -1)).std() / e.std()).item() for e in scores]
    found = torch.cat([call.weights[0].argmax(-1) for call in calls])  # (layers · H, T): the key with the most weight
    itself = (found == torch.arange(len(pieces))).float().mean().item()
    yield at_most("how often a word attends most to itself, the vector most similar to its own (a search: 1)", itself, 0.4)
    yield at_least("spread of e_ij - e_ji / spread of e_ij, the least of 3 trained layers (a similarity: 0)", min(asymmetry), 0.5)

    # Without projections, and for vectors of one length, it would be one: soft, and of the vectors themselves.
    x = F.normalize(torch.randn(20, 64), dim=-1)
    _, weights = attend(x, x, x, scale=8.0, need_weights=True)
    assert weights is not None
    yield equals("the same of softmax(x xᵀ), a similarity search but for its other weights",
                 (weights.argmax(-1) == torch.arange(20)).float().mean().item(), 1.0)  # fmt: skip
    others = 1 - weights.diagonal().max().item()
    yield between("the least weight of the other vectors there, which a search would not return", others, 1e-4, 0.5)


class MultiHeadedAttention(nn.Module):
    """What matters here of the notes' class: its arguments."""

    def __init__(self, h: int, d_model: int, dropout: float = 0.1):
        super().__init__()
        self.h, self.d_model, self.dropout = h, d_model, nn.Dropout(p=dropout)


@claim("c4", "001", "make_model(…, dropout) builds MultiHeadedAttention(h, d_model), so that its dropout is the model's.",
       right="it keeps its own default of 0.1; the rate must be passed on to reach the attention weights")  # fmt: skip
def the_dropout_of_attention_must_be_passed_on() -> Iterator[Finding]:
    rate = 0.3
    theirs = MultiHeadedAttention(8, 512)  # as in make_model(…, dropout=0.3)
    dropped = (theirs.dropout(torch.ones(40_000)) == 0).float().mean().item()
    yield refutes("the notes' class, copied: fraction of weights it drops in a model with dropout 0.3", dropped, rate, by=0.1)
    model = Transformer(TransformerConfig(20, 32, 1, 8, attention_dropout=rate))
    tokens = torch.randint(4, 20, (500, 1))  # one token: its only weight is 1, and so is the mean with dropout
    for name in ("encoder.0.attn", "decoder.0.attn", "decoder.0.cross"):
        with torch.no_grad(), record_calls(model.train(), name) as calls:
            model(tokens, tokens)
        kept = calls[0].mixed[:, :, 0] / calls[0].v[:, :, 0]  # (B, H, E)
        yield close(f"weights that ours drops, {name}", (kept[..., 0] == 0).float().mean().item(), rate, within=0.05)
        yield close(f"mean factor of a value, {name}", kept[..., 0].mean().item(), 1.0, within=0.07)


@claim("c23", "003", "head_i = Attention(Q W^Q, K W_i^K, V W^V): queries and values have one matrix for all heads; "
       "self-attention has no parameters.",
       right="head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), with matrices for each head; only the example with Q = K = V = "
       "input has no parameters")  # fmt: skip
def each_head_has_its_own_matrices() -> Iterator[Finding]:
    attention, x = Attention(64, heads=4, bias=False).requires_grad_(False), 4 * torch.randn(6, 64)
    with record_calls(attention, "") as calls:
        attention(x[None])
    found = calls[0].mixed[0]  # (H, T, E)
    w_q, w_k, w_v = (weight.T.unflatten(1, (4, 16)).transpose(0, 1) for weight in attention.qkv.weight.chunk(3))  # (H, D, E) each

    def heads(w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
        q, k, v = x @ w_q, x @ w_k, x @ w_v
        return (q @ k.transpose(-2, -1) / 4).softmax(-1) @ v

    yield refutes("heads, against heads that share W^Q and W^V", found, heads(w_q[:1], w_k, w_v[:1]), by=0.1)
    yield close("heads, against heads with W_i^Q, W_i^K and W_i^V", found, heads(w_q, w_k, w_v), within=1e-4)
    parameters = sum(weight.numel() for weight in attention.parameters())
    yield refutes("parameters of self-attention of width 64", parameters, 0)
    yield equals("those of all W_i^Q, W_i^K, W_i^V and W^O: 4 · 64²", parameters, 4 * 64**2)
    example, _ = attend(x, x, x)  # no parameters are given
    yield close("example Q = K = V = x, against softmax(x xᵀ / √64) x", example, (x @ x.T / 8).softmax(-1) @ x, within=1e-4)


@claim("c27", "004", "The original Transformer has 12 blocks and 6 attention heads, of hidden size 512.",
       right="it has 6 blocks in the encoder, 6 in the decoder, and 8 heads; 512 does not split into 6 heads")  # fmt: skip
def the_original_transformer_has_8_heads() -> Iterator[Finding]:
    with torch.device("meta"):
        model, tokens = Transformer(SIZES["base"]).eval(), torch.ones(1, 4, dtype=torch.long)
        with watch(model) as recorded:
            model(tokens, tokens)
    heads = {calls[0].shape[1] for calls in recorded.values()}
    yield refutes("heads of a layer", max(heads), 6)
    yield equals("heads of every layer", heads, {8})
    blocks = {side: sum(name.startswith(side) and name.endswith(".attn") for name in recorded) for side in ("encoder", "decoder")}
    for side, count in blocks.items():
        yield refutes(f"blocks of the {side}", count, 12)
        yield equals(f"blocks of the {side}", count, 6)
    try:
        Attention(512, heads=6)
        refused = "built"
    except ValueError as error:
        refused = str(error).partition(";")[0]
    yield refutes("a layer of width 512 with 6 heads", refused, "built")
