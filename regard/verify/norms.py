"""Batch norm against layer norm, with padding; residuals.

Shapes: B samples, T tokens, D features.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from regard.layers.attention import Attention
from regard.layers.block import EncoderBlock
from regard.layers.conv import batch_norm
from regard.layers.embed import Embed
from regard.layers.mlp import MLP
from regard.layers.norm import PostNorm, PreNorm
from regard.layers.positions import LearnedPositions, SinusoidalPositions
from regard.models.conformer import ConvolutionModule
from regard.models.transformer import Transformer, TransformerConfig
from regard.verify.claim import Finding, at_least, at_most, between, claim, close, equals, refutes
from regard.verify.measures import Points
from regard.verify.plots import Curves

__all__: list[str] = []

EXACT = 1e-5  # of float32 numbers of about 1

# The notes' five samples, columns z1, z2 and z3.
SAMPLES = torch.tensor([[7.0, 5, 4], [2, 3, 4], [1, 2, 3], [7, 5, 6], [3, 3, 4]])
# The notes' batch of three items, of which they print four numbers each.
ITEMS = torch.tensor([[50.147, 3314.825, 8463.361, 8.021], [1242.223, 688.123, 434.944, 149.442],
                      [9.370, 4606.674, 944.705, 21189.444]])  # fmt: skip


def layer_norm(dim: int) -> nn.Module:
    """The norm around the Transformer's sub-layers."""
    return PostNorm(dim, 0.0).norm.requires_grad_(False)


def normalize_batch(x: Tensor, norm: nn.BatchNorm2d | None = None) -> Tensor:
    """The batch norm of the package's convolutional networks while they train: (B, D) → (B, D)."""
    norm = norm or batch_norm(x.shape[1])
    return norm.requires_grad_(False)(x[:, :, None, None])[:, :, 0, 0]


def standardized(numbers: Sequence[float], eps: float = 1e-5) -> list[float]:
    """(x - μ) / √(σ² + ε), one number after the other."""
    mean, variance = statistics.fmean(numbers), statistics.pvariance(numbers)
    return [(x - mean) / (variance + eps) ** 0.5 for x in numbers]


@claim(46, "002", "Batch norm goes across the batch, column by column; layer norm goes across the features, row by row.")
def batch_norm_takes_columns_and_layer_norm_rows() -> Iterator[Finding]:
    norm = batch_norm(3)
    norm.momentum = 1.0  # so that the running mean is that of the batch
    columns, rows = normalize_batch(SAMPLES, norm), layer_norm(3)(SAMPLES)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    yield close("batch norm: means of z1, z2, z3, against 4, 3.6, 4.2", norm.running_mean, torch.tensor([4.0, 3.6, 4.2]),
                within=EXACT)  # fmt: skip
    yield close("batch norm: variances (n, not n - 1), against 6.4, 1.44, 0.96", norm.running_var * 4 / 5,
                torch.tensor([6.4, 1.44, 0.96]), within=EXACT)  # fmt: skip
    yield close("batch norm, against a loop over columns", columns.T, tensor_of(standardized, SAMPLES.T), within=1e-4)
    yield close("layer norm, against a loop over rows", rows, tensor_of(standardized, SAMPLES), within=1e-4)
    means = SAMPLES - rows * tensor_of(lambda row: [(statistics.pvariance(row) + 1e-5) ** 0.5] * 3, SAMPLES)  # x - y σ = μ
    yield close("layer norm: means of the rows, against 5.33, 3, 2, 6, 3.33", means,
                torch.tensor([[16 / 3], [3], [2], [6], [10 / 3]]).expand(5, 3), within=1e-4)  # fmt: skip
    changed = SAMPLES.clone()
    changed[4] += torch.tensor([1.0, -2.0, 3.0])
    for name, before, after, expected in (("batch norm", columns, normalize_batch(changed), [1, 2, 3, 4, 5]),
                                          ("layer norm", rows, layer_norm(3)(changed), [5])):  # fmt: skip
        moved = ((after - before).abs().amax(1) > 1e-3).nonzero()[:, 0] + 1
        yield equals(f"{name}: samples that change with sample 5", moved.tolist(), expected)


def tensor_of(function: Callable[[Sequence[float]], Sequence[float]], rows: Tensor) -> Tensor:
    """The function of each row."""
    return torch.tensor([function(row) for row in rows.tolist()])


@claim(47, "002", "Transformers use layer norm, because the zeros of padding, as of a sentence of 3 words and 100 zeros, affect "
       "all that batch norm computes.",
       condition="if the batch norm counts the padding; that of our Conformer leaves it out")  # fmt: skip
def padding_changes_batch_norm_and_not_layer_norm() -> Iterator[Finding]:
    words, module = 2 + 3 * torch.randn(3, 16), ConvolutionModule(16, 1).train().requires_grad_(False)
    lines = dict[str, Points]()
    conformer = module(words[None], torch.ones(1, 3, dtype=torch.bool))
    for zeros in (0, 1, 3, 10, 30, 100):
        padded = torch.cat((words, torch.zeros(zeros, 16)))
        real = torch.arange(3 + zeros)[None] < 3
        found = {
            "batch norm": normalize_batch(padded)[:3] - normalize_batch(words),
            "layer norm": layer_norm(16)(padded)[:3] - layer_norm(16)(words),
            "padding left out": module(padded[None], real)[:, :3] - conformer,
        }
        for name, difference in found.items():
            lines.setdefault(name, []).append((zeros, difference.abs().max().item()))
    counted = module(torch.cat((words, torch.zeros(100, 16)))[None])[:, :3] - conformer
    yield at_least("batch norm: largest change of a feature of the 3 words by 100 zeros", lines["batch norm"][-1][1], 0.5)
    yield at_most("layer norm: the same", lines["layer norm"][-1][1], EXACT)
    yield at_least("convolution module of our Conformer, padding counted: the same", counted.abs().max().item(), 0.1)
    yield at_most("the same, padding left out", lines["padding left out"][-1][1], EXACT)
    yield Curves("Padding and norms", "zeros after 3 words", "largest change of a feature", lines)


@claim(48, "003", "Layer norm is (x_j - μ_j) / √(σ_j² + ε), of each item by itself, times γ plus β, which are learned.")
def layer_norm_has_the_values_of_the_formula() -> Iterator[Finding]:
    norm = layer_norm(4).requires_grad_()
    yield close("3 items of the notes, against a loop", norm(ITEMS).detach(), tensor_of(standardized, ITEMS), within=EXACT)
    changed = ITEMS.clone()
    changed[1:] *= 7
    yield close("item 1 when items 2 and 3 are others, against item 1 before", norm(changed)[0], norm(ITEMS)[0], within=1e-6)
    gamma, beta = norm.parameters()
    norm(ITEMS).square().sum().backward()
    yield at_least("gradient of γ, the least", grad_of(gamma).abs().min().item(), 0.01)
    yield at_least("gradient of β, the largest", grad_of(beta).abs().max().item(), 0.01)
    with torch.no_grad():
        gamma.copy_(torch.tensor([2.0, 3, 4, 5]))
        beta.copy_(torch.tensor([-1.0, 0, 1, 2]))
    yield close("the same times γ plus β", norm(ITEMS).detach(), gamma.detach() * tensor_of(standardized, ITEMS) + beta.detach(),
                within=1e-4)  # fmt: skip


def grad_of(weight: Tensor) -> Tensor:
    """Its gradient, after a backward pass."""
    assert weight.grad is not None
    return weight.grad


@claim(49, "001 002", "A residual connection adds the input to the output of a sub-layer, z' = z + r, and a layer norm follows.")
def a_residual_adds_the_input() -> Iterator[Finding]:
    x = torch.randn(2, 6, 32)
    for name, wrap in (("after the sum", PostNorm), ("before the sub-layer", PreNorm)):
        [block] = stack(1, partial(wrap, 32, 0.0))
        theirs = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=wrap is PreNorm)
        parts = {"self_attn.in_proj_": block.attn.qkv, "self_attn.out_proj.": block.attn.out, "linear1.": block.mlp.up,
                 "linear2.": block.mlp.down, "norm1.": block.attn_residual.norm, "norm2.": block.mlp_residual.norm}  # fmt: skip
        theirs.load_state_dict({start + key: x for start, part in parts.items() for key, x in part.state_dict().items()})
        yield close(f"layer with the norm {name}, against nn.TransformerEncoderLayer", block(x), theirs(x), within=EXACT)
    z, r = torch.randn(2, 3, 32)
    yield close("z' = z + r of 3 words, then the norm, against a loop", PostNorm(32, 0.0)(z, lambda _: r).detach(),
                tensor_of(standardized, z + r), within=EXACT)  # fmt: skip


@claim(49, "001", "Dropout is part of each sub-layer connection: it drops outputs of the sub-layer, not its input.")
def dropout_is_of_the_branch() -> Iterator[Finding]:
    x = torch.randn(50, 20, 32)
    wrap = PreNorm(32, 0.25).train()
    branch = wrap(x, torch.ones_like) - x
    dropped = branch == 0
    yield close("dropped outputs of the sub-layer, as a fraction, rate 0.25", dropped.float().mean().item(), 0.25, within=0.03)
    yield close("mean of the others, which are scaled by 1 / (1 - 0.25)", branch[~dropped].mean().item(), 4 / 3, within=1e-3)
    yield close("without training nothing is dropped", wrap.eval()(x, torch.ones_like), x + 1, within=1e-6)


@claim(49, "001", "Residual connections preserve the input and keep gradients from vanishing; layer norm keeps them from "
       "vanishing and exploding.",
       condition="for both together; with residuals alone gradients explode")  # fmt: skip
def residuals_and_norms_keep_gradients() -> Iterator[Finding]:
    kept, lines, signal = partial(PreNorm, 32, 0.0, no_norm), dict[str, Points](), dict[str, float]()
    for name, wrap in (("neither", kept), ("residuals", kept), ("residuals, norm before", partial(PreNorm, 32, 0.0)),
                       ("residuals, norm after", partial(PostNorm, 32, 0.0))):  # fmt: skip
        outputs = [torch.randn(4, 8, 32).requires_grad_()]
        for block in stack(24, wrap):
            outputs.append(block.mlp(block.attn(outputs[-1])) if name == "neither" else block(outputs[-1]))
        norms = [grad.norm().item() for grad in torch.autograd.grad((outputs[-1] * torch.randn(4, 8, 32)).sum(), outputs)]
        lines[name] = [(layer, norm / norms[-1]) for layer, norm in enumerate(norms)]
        signal[name] = torch.cosine_similarity(outputs[0].flatten(), outputs[-1].flatten(), 0).item()
    yield at_most("gradient before 24 layers / after them, without residuals and norms", lines["neither"][0][1], 1e-5)
    yield at_least("the same with residuals: none vanish, but they explode", lines["residuals"][0][1], 1e3)
    yield between("the same with residuals and norms before the sub-layers", lines["residuals, norm before"][0][1], 0.3, 30)
    yield between("the same with norms after the sums", lines["residuals, norm after"][0][1], 0.03, 30)
    yield at_most("cosine of input and output, without residuals and norms", signal["neither"], 0.1)
    yield at_least("the same with residuals and norms before the sub-layers", signal["residuals, norm before"], 0.15)
    yield Curves("Gradients of a stack of 24 layers", "layer", "norm of the gradient / of that of the output", lines, log_y=True)


def stack(depth: int, wrap: Callable[[], PreNorm | PostNorm]) -> list[EncoderBlock]:
    """Encoder layers of width 32 with random weights."""
    return [EncoderBlock(Attention(32, 4), MLP(32, 64), wrap) for _ in range(depth)]


def no_norm(dim: int) -> nn.Module:
    """In place of a norm."""
    return nn.Identity()


@claim("c2", "001", "The class LayerNorm computes (x - mean) / (std + ε), with torch's std, as a layer norm.",
       right="a layer norm divides by √(σ² + ε), where σ² is the mean squared deviation: torch's std divides by d - 1, and the "
       "class's outputs are smaller by √((d - 1) / d), 0.866 at d = 4 and 0.999 at 512")  # fmt: skip
def the_class_of_the_notes_divides_by_d_minus_1() -> Iterator[Finding]:
    ratios = Points()
    for dim in (4, 16, 64, 512):
        x = 5 * torch.randn(20, dim) + 3
        theirs = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)  # the notes' line
        ours = layer_norm(dim)(x)
        ratios.append((dim, (theirs.norm() / ours.norm()).item()))
        yield close(f"outputs of the class / of our layer norm, d = {dim}, against √((d - 1) / d)", ratios[-1][1],
                    ((dim - 1) / dim) ** 0.5, within=2e-4)  # fmt: skip
        yield close(f"mean square of our outputs, d = {dim}", ours.square().mean().item(), 1.0, within=2e-3)
    yield refutes("outputs of the class / of our layer norm, d = 4", ratios[0][1], 1, by=0.1)
    yield Curves("The LayerNorm of the notes", "width d", "its outputs / those of a layer norm", {"ratio": ratios}, log_x=True)


@claim("c3", "001", "A sub-layer connection is LayerNorm(x + Dropout(Sublayer(x))); for code simplicity the norm is first as "
       "opposed to last.",
       right="these are two models: the paper's has the norm after the sum and none at the end, the code's, with the norm first, "
       "needs one more after the last layer")  # fmt: skip
def norm_first_is_another_model() -> Iterator[Finding]:
    x, outputs, growth = torch.randn(1, 6, 32), list[Tensor](), dict[str, Points]()
    layers = stack(12, partial(PreNorm, 32, 0.0))
    for name, wrap in (("norm after the sum", PostNorm), ("norm first", PreNorm)):
        h, line = x, growth.setdefault(name, [])
        for number, layer in enumerate(layers, 1):
            h = EncoderBlock(layer.attn, layer.mlp, partial(wrap, 32, 0.0))(h)  # the same weights
            line.append((number, rms(h)))
            outputs += [h.detach()] if number == 1 else []
    yield refutes("output of a layer with the norm first, against the norm last, same weights", outputs[1], outputs[0], by=0.1)
    yield close("root mean square after 12 layers, norm after the sum", growth["norm after the sum"][-1][1], 1.0, within=0.01)
    yield at_least("the same, norm first", growth["norm first"][-1][1], 1.5)
    norms: tuple[tuple[Literal["pre", "post"], int], ...] = (("post", 24), ("pre", 25))
    for norm, count in norms:
        model = Transformer(TransformerConfig(20, 32, 12, 4, norm=norm, decoder_depth=1)).eval()
        with torch.no_grad():
            memory, _ = model.encode(torch.randint(4, 20, (1, 6)))
        yield close(f"root mean square of our encoder's output, norm = {norm!r}", rms(memory), 1.0, within=0.01)
        found = [name for name, part in model.named_modules() if isinstance(part, nn.LayerNorm) and name.startswith("encoder")]
        yield equals(f"norms in it, norm = {norm!r}", len(found), count)
    yield Curves("Stacks of 12 layers without a norm at the end", "layer", "root mean square of the output", growth)


def rms(x: Tensor) -> float:
    """The root of the mean square."""
    return x.square().mean().sqrt().item()


@claim("c25", "003", "x_j = (x_j - μ_j) / √(σ² + ε) has all values between 0 and 1; CAT's position embedding starts "
       "with 1664.068.",
       right="each item has its own σ_j; its values have mean 0, mean square 1 and are at most √(d - 1); a sine is at "
       "most 1; the last row of the position embedding is lost: 3120.159 and 7018.620")  # fmt: skip
def normalized_values_are_not_between_0_and_1() -> Iterator[Finding]:
    found = layer_norm(4)(ITEMS)
    yield refutes("least normalized value of the notes' 3 items", found.min().item(), 0, by=0.5)
    yield refutes("largest", found.max().item(), 1, by=0.3)
    yield close("means of the items", found.mean(-1), torch.zeros(3), within=EXACT)
    yield close("mean squares of the items", found.square().mean(-1), torch.ones(3), within=EXACT)
    shared = (ITEMS - ITEMS.mean(-1, keepdim=True)) / (ITEMS.var(unbiased=False) + 1e-5).sqrt()
    yield refutes("normalized items, against those with one σ² for all", found, shared, by=0.5)
    yield close("normalized items, against those with a σ_j² each", found, tensor_of(standardized, ITEMS), within=EXACT)
    yield close("largest value if one of 512 features is 1 and the others are 0, against √511",
                layer_norm(512)(torch.eye(512)[:1]).max().item(), 511**0.5, rel=0.01)  # fmt: skip
    embed, cat = Embed(nn.Embedding(1, 1), LearnedPositions(1, 6), 0.0).requires_grad_(False), torch.zeros(1, 6, dtype=torch.long)
    embed.tokens.weight.fill_(8390.473)  # the last printed number of CAT's embedding
    embed.positions.table.zero_()
    without = embed(cat)[0, [1, 5], 0]
    sums = torch.tensor([11510.632, 15409.093])  # printed below it, of CAT at positions 1 and 5
    yield refutes("last number of CAT's encoder input at positions 1 and 5, without the lost row", without, sums, by=1000)
    embed.positions.table[[1, 5], 0] = torch.tensor([3120.159, 7018.620])
    yield close("the same with 3120.159 and 7018.620 in the lost row", embed(cat)[0, [1, 5], 0], sums, within=0.002)
    table = SinusoidalPositions(512)(0, 6)
    yield refutes("first number of the position embedding of word 2", table[1, 0].item(), 1664.068, by=1)
    yield at_most("largest absolute number of all of them", table.abs().max().item(), 1.0)
