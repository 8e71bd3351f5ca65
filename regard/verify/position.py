"""How a model knows positions: the sinusoid, its binary analogy, relative offsets, and other ways.

Shapes: T positions, D width.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from regard.layers.attention import Attention, attend
from regard.layers.embed import Embed
from regard.layers.positions import LearnedPositions, SinusoidalPositions, sinusoid
from regard.layers.tap import without_positions
from regard.models.transformer import SIZES, Transformer, TransformerConfig
from regard.verify.claim import Finding, at_least, at_most, claim, close, equals, refutes
from regard.verify.norms import rms
from regard.verify.plots import Curves, Heatmap
from regard.view.positions import map_positions

__all__: list[str] = []

# The columns of the word CAT in the notes' figure: its embedding, its positions 1 and 5, and the sums of both.  Without the last
# row, whose positions the figure lost.
CAT = (171.411, 3276.350, 9192.819, 3633.421)
CAT_POSITIONS = ((1664.068, 8080.133, 2620.399, 9386.405), (1281.458, 7902.890, 912.970, 1659.217))
CAT_INPUTS = ((1835.479, 11356.483, 11813.218, 13019.826), (1452.869, 11179.24, 10105.789, 5292.638))


@claim(38, "001 003", "d_model is 512, the size of the embedding of each word; embeddings are multiplied by √d_model.")
def embeddings_are_multiplied_by_root_d() -> Iterator[Finding]:
    dim = SIZES["base"].dim
    yield equals("width of the base model", dim, 512)
    model = Transformer(TransformerConfig(vocab=100, dim=dim, depth=1)).eval()
    ids = torch.randint(1, 100, (2, 10))
    with torch.no_grad(), without_positions(model):
        embedded = model.embed_source(ids)
    rows = model.embed_source.tokens.weight[ids]
    yield close("embeddings before positions are added, against table · √512", embedded, rows * 512**0.5, within=1e-5)
    yield close("root mean square of the embeddings", rms(embedded), 1.0, within=0.1)
    yield close("root mean square of the positions, of the same size", rms(model.embed_source.positions(0, 10)), 0.5**0.5,
                within=1e-3)  # fmt: skip
    yield equals("shape that the encoder returns for 2 sentences of 10 tokens", tuple(model.encode(ids)[0].shape), (2, 10, 512))


@claim(
    39, "003", "The input of the encoder is embedding + position embedding, which is computed once and reused for every sentence."
)
def the_encoder_input_is_embedding_plus_position() -> Iterator[Finding]:
    embed = Embed(nn.Embedding(1, 4), LearnedPositions(4, 6), dropout=0.0).double().requires_grad_(False)
    embed.tokens.weight.copy_(torch.tensor([CAT]))
    embed.positions.table[[1, 5]] = torch.tensor(CAT_POSITIONS).double()
    x = embed(torch.zeros(1, 6, dtype=torch.long))[0]
    for place, total in zip((1, 5), CAT_INPUTS, strict=True):
        yield close(f"encoder input of CAT at position {place}, against the sums in the notes", x[place], torch.tensor(total),
                    within=2e-3)  # fmt: skip

    model = Transformer(TransformerConfig(vocab=100, dim=64, depth=1, heads=4)).eval().requires_grad_(False)
    table, parts = model.embed_source.positions.table, list[Tensor]()
    for _ in range(2):
        ids = torch.randint(1, 100, (1, 10))
        with without_positions(model):
            tokens = model.embed_source(ids)
        parts.append(model.embed_source(ids) - tokens)
    yield close("what is added to one sentence, against what is added to another", parts[0], parts[1], within=1e-5)
    yield close("what is added, against the sinusoids", parts[0][0], sinusoid(10, 64), within=1e-5)
    yield equals("the table was computed once", model.embed_source.positions.table is table, True)


@claim(40, "002 003", "A count of words is unbounded and jumps; the position vector of sines and cosines is bounded, continuous, "
       "periodic and different for each position.")  # fmt: skip
def sinusoids_are_bounded_continuous_periodic_and_unique() -> Iterator[Finding]:
    table = SinusoidalPositions(128)(0, 10_000)
    yield at_most("largest |value| of 10,000 positions (a count reaches 9,999)", table.abs().max().item(), 1.0)
    steps = table.diff(dim=0).norm(dim=-1)
    yield close("longest step between neighbours / shortest step", (steps.max() / steps.min()).item(), 1.0, within=1e-3)
    yield at_most(
        "longest step / diameter of the sphere that holds all positions", (steps.max() / (2 * table[0].norm())).item(), 0.25
    )
    yield close("dimensions 0 and 1 after 710 positions, 113 turns", table[710:, :2], table[:-710, :2], within=2e-4)
    closest = [(width, closest_pair(SinusoidalPositions(width)(0, 50))) for width in (2, 4, 8, 16, 32, 64, 128)]
    yield at_most("least distance between 2 of 50 positions, D = 2: one sine and cosine nearly repeat", closest[0][1], 0.05)
    yield at_least("least distance between 2 of 50 positions, D = 128", closest[-1][1], 1.0)
    yield Curves("More functions keep positions apart", "width D", "least distance of 2 positions",
                 {"50 positions": closest}, True, True)  # fmt: skip


@claim(41, "001 002 004", "PE(pos, 2i) = sin(pos / 10000^(2i/d)) and PE(pos, 2i+1) = cos(pos / 10000^(2i/d)); the first word, "
       "river, has 0 1 0 1 0 1 if d is 6.")  # fmt: skip
def the_sinusoid_has_the_values_of_the_formula() -> Iterator[Finding]:
    table = SinusoidalPositions(6)(0, 2)
    yield equals("position 0, D = 6", " ".join(f"{value:g}" for value in table[0].tolist()), "0 1 0 1 0 1")
    yield equals("position 1, D = 6", " ".join(f"{value:.4f}" for value in table[1].tolist()),
                 "0.8415 0.5403 0.0464 0.9989 0.0022 1.0000")  # fmt: skip
    for dim in (6, 512):
        yield close(f"positions 0 to 49, D = {dim}, against the formula", SinusoidalPositions(dim)(0, 50), by_formula(50, dim),
                    within=1e-6)  # fmt: skip


@claim(42, "001 002", "In the map of 50 positions and 128 dimensions the higher dimensions are almost the same for all "
       "positions; each pair of dimensions, such as 4-5 and 6-7, has its own wavelength.")  # fmt: skip
def higher_dimensions_are_almost_constant() -> Iterator[Finding]:
    drawn = torch.tensor(map_positions(SinusoidalPositions(128), length=50).panels[0].values)
    yield close("the map that we draw, against the formula", drawn, by_formula(50, 128), within=1e-6)
    spread = drawn.std(0)
    yield at_most("largest standard deviation over 50 positions, dimensions 100 to 127", spread[100:].max().item(), 0.012)
    yield at_least("smallest, dimensions 0 to 19", spread[:20].min().item(), 0.6)
    curves = SinusoidalPositions(20)(0, 10_000)
    for dimension in (4, 5, 6, 7):
        wavelength = 2 * math.pi * 10_000 ** (dimension // 2 * 2 / 20)
        yield close(f"turns of dimension {dimension} of 20 in 10,000 positions", turns(curves[:, dimension]), 10_000 / wavelength,
                    within=1.0)  # fmt: skip
    yield Heatmap("Position vectors", "dimension", "position", drawn, z="PE")
    yield Curves("Dimensions 4 to 7 of 20", "position", "value",
                 {f"dimension {d}": list(enumerate(curves[:100, d].tolist())) for d in (4, 5, 6, 7)})  # fmt: skip


@claim(43, "002", "Positions are like binary numbers, in which the higher a bit is, the less often it changes.")
def each_pair_of_dimensions_changes_less_often_like_higher_bits() -> Iterator[Finding]:
    positions = 8192
    bits = torch.tensor([[position >> bit & 1 for bit in range(8)] for position in range(positions)])  # lowest bit first
    flips = bits.diff(dim=0).abs().sum(0) + 1.0
    yield close("changes of a bit / changes of the next higher one", flips[:-1] / flips[1:], torch.full((7,), 2.0), within=0.05)
    # 10000^(2/D) is about 2 if D is 26 or 27: then each pair of dimensions turns half as often as the pair before.
    sines = SinusoidalPositions(26)(0, positions)[:, ::2][:, :8]
    counts = torch.tensor([turns(sines[:, pair]) for pair in range(8)])
    yield close("turns of a pair of dimensions / turns of the next pair, D = 26", counts[:-1] / counts[1:],
                torch.full((7,), 10_000 ** (2 / 26)), within=0.15)  # fmt: skip
    lines = {"bits": list(enumerate((positions / flips).tolist())),
             "sinusoids, half a turn": list(enumerate((positions / (2 * counts)).tolist()))}  # fmt: skip
    yield Curves(
        "How often bits and dimensions change", "bit, or pair of dimensions", "positions between changes", lines, log_y=True
    )


@claim(44, "001 003", "Relative positions are easy to see in sines and cosines: PE(pos + k) is a linear function of PE(pos), and "
       "close positions have similar vectors.")  # fmt: skip
def an_offset_is_a_rotation() -> Iterator[Finding]:
    table = SinusoidalPositions(128)(0, 600)
    worst = max((table[k:] - table[:-k] @ rotation(table[k]).T).abs().max().item() for k in (1, 2, 7, 50))
    yield at_most("PE(pos + k) - R(k) PE(pos), k = 1, 2, 7, 50 and 550 positions: largest", worst, 2e-6)
    weights = attend(30 * table[1:], table @ rotation(table[1]).T, table, need_weights=True)[1]  # keys moved by one position
    assert weights is not None
    yield equals("queries of 599 that attend most to the word before, keys being R(1) PE(pos)",
                 int((weights.argmax(-1) == torch.arange(599)).sum()), 599)  # fmt: skip
    similar = torch.tensor(map_positions(SinusoidalPositions(128), length=600).panels[1].values)  # cosine of each pair
    by_distance = [similar.diagonal(k) for k in range(50)]
    yield at_most(
        "spread of the similarity of 2 positions at one distance", max(float(s.max() - s.min()) for s in by_distance), 1e-4
    )
    means = [float(s.mean()) for s in by_distance]
    yield equals("similarity falls over the first 4 distances", sorted(means[:5], reverse=True) == means[:5], True)
    yield at_least("similarity at distance 1 - at distance 49", means[1] - means[49], 0.3)
    yield Curves("Similarity of two positions", "distance in words", "cosine", {"D = 128": list(enumerate(means))})


@claim(45, "004", "A position vector pos(j) of the width D is added to the input or concatenated, and may be learned or fixed.",
       condition="for positions that are added: the package does not concatenate them; a layer over [x, pos], put together here "
       "from the weights of ours, gives the same")  # fmt: skip
def positions_are_learned_or_fixed_added_or_concatenated() -> Iterator[Finding]:
    dim, heads, length = 32, 4, 10
    x, ids = torch.randn(1, length, dim), torch.randint(20, (1, length))
    for name, positions, trained in (
        ("sinusoids", SinusoidalPositions(dim), 0),
        ("learned positions", LearnedPositions(dim, 16), length),
    ):
        embed = Embed(nn.Embedding(20, dim), positions, dropout=0.0)
        yield equals(f"pos(j) of {name}: shape for j = 0 to 9", tuple(positions(0, length).shape), (length, dim))
        embed(ids).square().sum().backward()
        rows = sum(int((p.grad.abs().sum(-1) > 0).sum()) for p in positions.parameters() if p.grad is not None)
        yield equals(f"positions of 10 that training changes, {name}", rows, trained)
        yield close(f"input minus tokens, {name}", embed(ids)[0] - embed.tokens(ids)[0], positions(0, length), within=1e-5)
        added = x + positions(0, length)
        joined = torch.cat((x, positions(0, length)[None]), -1)
        attn = Attention(dim, heads)
        yield close(f"attention over x + pos, against [x, pos] with the same weights for both halves, {name}",
                    with_doubled_input(attn)(joined)[..., :dim], attn(added), within=1e-5)  # fmt: skip


@claim("c7", "001", "The positions are added to x in place, from a table of 5,000 positions.",
       right="the sum is a new tensor, in the notes' code too, and a table that grows on demand has no limit")  # fmt: skip
def positions_are_not_added_in_place() -> Iterator[Finding]:
    embed = Embed(nn.Embedding(20, 16), SinusoidalPositions(16, 5000), dropout=0.0).requires_grad_(False)
    found = list[Tensor]()
    embed.tokens.register_forward_hook(lambda module, inputs, output: found.append(output))
    ids = torch.randint(20, (1, 10))
    x = embed(ids)
    [tokens] = found
    changed = int((tokens != embed.tokens.weight[ids]).any(-1).sum())
    yield refutes("token vectors of 10 that the addition changes", changed, 10)
    yield close("the sum, against tokens + positions", x[0], embed.tokens.weight[ids[0]] + by_formula(10, 16), within=1e-5)
    served = len(embed.positions(0, 6000))
    yield refutes("positions that a text of 6,000 tokens gets", served, 5000)
    yield close("positions 5,000 to 5,999 of a table of 5,000 that grew, against the formula", embed.positions(5000, 6000),
                by_formula(6000, 16)[5000:], within=1e-6)  # fmt: skip


@claim("c13", "001", "PE(i, 2_l) and PE(i, 2_{l+1}) are for positions i in 1 … N and for l in 1 … d_model.",
       right="positions count from 0, l goes from 0 to d_model / 2 - 1, and the dimensions are 2l and 2l + 1")  # fmt: skip
def positions_and_dimensions_count_from_0() -> Iterator[Finding]:
    dim = 16
    table = SinusoidalPositions(dim)(0, 10)
    first = torch.tensor([math.sin(1 / 10_000 ** (2 * l / dim)) for l in range(dim // 2)])  # noqa: E741 the notes' letter
    yield refutes("sines of the first word, against those of i = 1", table[0, ::2], first, by=0.1)
    rates = torch.atan2(table[1, ::2], table[1, 1::2])  # the angle of each pair between two positions
    yield refutes("values of l, d_model = 16", len(rates.unique()), dim)
    yield refutes("angle of the first pair between two positions, radians", rates[0].item(), 10_000 ** (-2 / dim), by=0.1)
    expected = torch.tensor([10_000 ** (-2 * l / dim) for l in range(dim // 2)])  # noqa: E741
    yield close("angles of all pairs between two positions, for l = 0 to 7", rates, expected, within=1e-6)
    yield close("the whole table, i from 0", table, by_formula(10, dim), within=1e-6)


@claim("c17", "002", "PE(pos, i) = sin(pos / 10000^(2i/d)): the sines are in the dimensions i.",
       right="that sine is PE(pos, 2i), as in the notes' example; with i, dimensions collide and others stay empty")  # fmt: skip
def sines_are_in_the_even_dimensions() -> Iterator[Finding]:
    dim = 6
    table = SinusoidalPositions(dim)(0, 50)
    sines = torch.tensor([[math.sin(pos / 10_000 ** (2 * i / dim)) for i in range(dim // 2)] for pos in range(50)])
    yield refutes("dimensions i = 0, 1, 2, against the sines of the notes", table[:, : dim // 2], sines, by=0.1)
    yield close("dimensions 2i, against these sines", table[:, ::2], sines, within=1e-6)
    filled = set(range(dim // 2)) | {2 * i + 1 for i in range(dim // 2)}  # by the notes: sines and cosines
    in_use = int((table.std(0) > 0).sum())
    yield refutes("dimensions that depend on the position, d = 6", in_use, len(filled))


def by_formula(length: int, dim: int) -> Tensor:
    """The formula of the paper, one number after the other: (T, D)."""
    function = (math.sin, math.cos)
    return torch.tensor([[function[d % 2](pos / 10_000 ** (d // 2 * 2 / dim)) for d in range(dim)] for pos in range(length)])


def rotation(offset: Tensor) -> Tensor:
    """R(k), made of PE(k): it turns each pair (sin, cos) of PE(pos) to that of PE(pos + k); (D,) → (D, D)."""
    pairs = [torch.tensor([[cos, sin], [-sin, cos]]) for sin, cos in offset.view(-1, 2).tolist()]
    return torch.block_diag(*pairs)


def with_doubled_input(attn: Attention) -> Attention:
    """An attention over [x, y] with the weights of `attn` for x and for y: what it computes of x + y."""
    dim, heads = attn.out.out_features, attn.heads
    wide = Attention(2 * dim, heads, width=dim // heads).requires_grad_(False)
    wide.qkv.weight.copy_(torch.cat((attn.qkv.weight, attn.qkv.weight), 1))
    wide.out.weight[:dim] = attn.out.weight
    return wide


def closest_pair(table: Tensor) -> float:
    """The least distance between two rows."""
    return nn.functional.pdist(table).min().item()


def turns(curve: Tensor) -> float:
    """How often a curve rises through zero."""
    return float(((curve[:-1] < 0) & (curve[1:] >= 0)).sum())
