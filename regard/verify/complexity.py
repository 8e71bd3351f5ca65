"""What self-attention, recurrence and convolution cost: operations, sequential steps, and path lengths.

The four layers of the notes' table are the package's: `Attention`, a loop over its `GRUCell`, `ConvNorm` on an image of one row,
and Swin's attention within windows, which is the table's restricted self-attention.

Shapes: n positions, d width, k positions of a kernel, r positions of a window (its side M squared).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from regard.layers.attention import Attention
from regard.layers.biases import RelativePositionBias
from regard.layers.block import EncoderBlock
from regard.layers.conv import ConvNorm
from regard.layers.mlp import MLP
from regard.layers.norm import PreNorm
from regard.layers.recurrent import GRUCell, LSTMCell
from regard.layers.tap import watch
from regard.models.swin import Block, keep_window
from regard.models.transformer import Transformer, TransformerConfig
from regard.verify.claim import Finding, at_least, at_most, between, claim, close, equals, refutes
from regard.verify.measures import Points, count_flops, depends_on, exponent, least_cpu_seconds, saved_bytes
from regard.verify.plots import Curves, Heatmap
from regard.verify.recurrence import run_gru

__all__: list[str] = []

LONG = (64, 128, 256)  # positions at all of which training attends by the fused kernel


# The layers: (1, n, d) → (1, n, d)


class Recurrence(nn.Module):
    """A GRU: the product with the inputs for all positions at once, the rest one position after the other."""

    def __init__(self, dim: int):
        super().__init__()
        self.cell = GRUCell(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """One state for each position."""
        return run_gru(self.cell, x)


class Convolution(nn.Module):
    """A square kernel on an image of one row: its middle row is a kernel of k positions of a sequence."""

    def __init__(self, dim: int, k: int = 3, dilation: int = 1):
        super().__init__()
        self.layer = ConvNorm(dim, dim, k).eval()
        self.layer.conv.dilation = (dilation, dilation)
        self.layer.conv.padding = (k // 2 * dilation, k // 2 * dilation)

    def forward(self, x: Tensor) -> Tensor:
        """As many positions as before."""
        return self.layer(x.transpose(1, 2)[:, :, None])[:, :, 0].transpose(1, 2)


class WindowAttention(nn.Module):
    """Swin's attention within windows of M · M positions, on a grid of M rows; `shift` moves the windows."""

    def __init__(self, dim: int, side: int, shift: int = 0):
        super().__init__()
        self.side = side
        attention, bias, mlp = Attention(dim, 1), RelativePositionBias(1, side), MLP(dim, dim)
        self.block = Block(attention, bias, mlp, partial(PreNorm, dim, 0.0), side, shift, keep_window)

    def forward(self, x: Tensor) -> Tensor:
        """Each position attends to its window."""
        return self.block.attend_windows(x.unflatten(1, (self.side, -1))).flatten(1, 2)


self_attention = partial(Attention, heads=1)


# Three measures: operations, the critical path of them, and the dependence of outputs on inputs


def flops(make: Callable[[int], nn.Module], n: int, d: int, operation: str = "") -> int:
    """FLOPs of the matrix products of a layer, or of one kind of them."""
    with torch.device("meta"), torch.no_grad():
        layer, x = make(d), torch.empty(1, n, d)
        return count_flops(lambda: layer(x), operation)


def critical_path(layer: nn.Module, n: int, d: int) -> int:
    """The sequential operations of a forward pass: the longest path through its graph, from input to output."""
    x = torch.randn(1, n, d, requires_grad=True)
    start, leaf = get_gradient_edge(layer(x)).node, get_gradient_edge(x).node
    longest: dict[Node, float] = {leaf: 0.0}
    waiting = [start]
    while waiting:  # a loop: recursion would be as deep as the sequence is long
        before = [parent for parent, _ in waiting[-1].next_functions if parent is not None]
        if todo := [parent for parent in before if parent not in longest]:
            waiting += todo
        else:
            longest.setdefault(waiting.pop(), max((1 + longest[parent] for parent in before), default=-math.inf))
    return int(longest[start])


def activations(layer: nn.Module, n: int, d: int) -> int:
    """The bytes of activations that are saved for the backward pass."""
    x = torch.randn(1, n, d, requires_grad=True)
    return saved_bytes(lambda: layer(x), layer.parameters())


def dependence(layer: nn.Module, n: int, d: int = 4) -> Tensor:
    """Which outputs depend on which inputs, from the Jacobian: (n, n), True where output i changes with input j."""
    x = torch.randn(1, n, d, dtype=torch.float64, requires_grad=True)  # double, so that small derivatives are not zero
    return torch.stack([depends_on(output, x)[0].any(-1) for output in layer.double()(x)[0]])


def dependence_of_states(layer: Recurrence, n: int, d: int = 4) -> Tensor:
    """Which states a state depends on through one step alone, from the Jacobians of the steps: (n, n), True on the diagonal."""
    before, after = list[Tensor](), list[Tensor]()

    def cut(cell: nn.Module, args: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        before.append(args[1].detach().requires_grad_())  # a leaf: gradients end at this step
        return args[0], before[-1]

    layer.cell.register_forward_pre_hook(cut)
    layer.cell.register_forward_hook(lambda cell, args, state: after.append(state))
    layer.double()(torch.randn(1, n, d, dtype=torch.float64))
    depends = torch.eye(n, dtype=torch.bool)
    for row, state in zip(depends, after, strict=True):
        gradients = torch.autograd.grad(state.sum(), before, allow_unused=True, materialize_grads=True)
        row[:-1] |= torch.stack(gradients[1:]).flatten(1).any(-1)  # the state before step j is that of step j - 1
    return depends


def layers_needed(stack: Sequence[Tensor]) -> float:
    """Layers until the last position depends on the first, if these are stacked over and over: `dependence` of each."""
    n = len(stack[0])
    seen = torch.zeros(n, dtype=torch.bool)
    seen[0] = True
    for depth in range(2 * n):
        seen = (stack[depth % len(stack)] & seen).any(1)
        if seen[-1]:
            return depth + 1
    return math.inf


# Three ways to process a sequence


@claim(21, "001", "After one RNN layer the last state sees the whole sequence, after one self-attention layer every output sees "
       "all inputs; convolutions must be stacked.")  # fmt: skip
def self_attention_sees_all_inputs_after_one_layer() -> Iterator[Finding]:
    n, everything = 32, torch.ones(32, 32, dtype=torch.bool)
    layers = {"RNN": Recurrence(4), "convolution, k = 3": Convolution(4), "self-attention": self_attention(4)}
    sees = {name: dependence(layer, n) for name, layer in layers.items()}
    rnn, convolution, attention = sees.values()
    yield equals("RNN: inputs that the last output depends on, of 32", int(rnn[-1].sum()), n)
    yield equals("RNN: the dependence of outputs on inputs is the lower triangle", torch.equal(rnn, everything.tril()), True)
    yield equals("convolution, k = 3: inputs that an output in the middle depends on", int(convolution[16].sum()), 3)
    yield at_least("convolutions, k = 3, until the last output sees the first of 32 inputs", layers_needed([convolution]), 16)
    yield equals("self-attention: pairs of an output and an input it depends on, of 1,024", int(attention.sum()), n * n)
    for name, each in sees.items():
        yield Heatmap(f"What one layer sees: {name}", "input", "output", each.float(), z="1: depends on it")


@claim(21, "001 003 004", "RNNs are not parallelizable: their states are computed one after the other; the outputs of "
       "convolution and self-attention are computed in parallel.")  # fmt: skip
def only_recurrence_waits_for_the_position_before() -> Iterator[Finding]:
    lines = dict[str, Points]()
    for name, layer in {"RNN": Recurrence(8), "convolution": Convolution(8), "self-attention": self_attention(8)}.items():
        lines[name] = [(n, critical_path(layer, n, 8)) for n in LONG]
    yield at_least("RNN: sequential operations, n = 256", lines["RNN"][-1][1], 256)
    yield close("RNN: how many more with twice the positions", lines["RNN"][-1][1] / lines["RNN"][-2][1], 2.0, within=0.1)
    for name in ("convolution", "self-attention"):
        yield equals(f"{name}: sequential operations, n = 256, as for n = 64", lines[name][-1][1], lines[name][0][1])
        yield at_most(f"{name}: as a fraction of those of the RNN, n = 256", lines[name][-1][1] / lines["RNN"][-1][1], 0.25)
    yield Curves("Sequential operations", "positions n", "operations on the critical path", lines, True, True)


@claim(21, "001", "Self-attention is very memory intensive.",
       condition="if its n × n weights are saved for the backward pass; the fused kernel recomputes them")  # fmt: skip
def kept_weights_take_memory_quadratic_in_n() -> Iterator[Finding]:
    d, attention, sizes = 8, self_attention(8), (256, 512, 1024)
    lines: dict[str, Points] = {"fused self-attention": [(n, activations(attention, n, d)) for n in sizes]}
    with watch(attention):
        lines["self-attention that keeps its weights"] = [(n, activations(attention, n, d)) for n in sizes]
    lines["convolution"] = [(n, activations(Convolution(d), n, d)) for n in sizes]
    lines["RNN"] = [(n, activations(Recurrence(d), n, d)) for n in (64, 128, 256)]
    for name, points in lines.items():
        expected = 2.0 if "keeps" in name else 1.0
        yield close(f"{name}: exponent of n in the bytes of activations saved", exponent(points), expected, within=0.2)
    (_, fused), (_, kept) = lines["fused self-attention"][-1], lines["self-attention that keeps its weights"][-1]
    yield at_least("activations saved with kept weights / by the fused kernel, n = 1024, d = 8", kept / fused, 5)
    yield Curves("Memory of training", "positions n", "bytes of activations saved", lines, True, True)


@claim("c9", "001", "(−) good at long sequences: after one self-attention layer, each output sees all inputs.",
       right="(+), as for the RNN: it sees the whole sequence after one layer, over a path that does not grow")  # fmt: skip
def being_good_at_long_sequences_is_a_plus() -> Iterator[Finding]:
    n, attention, recurrence = 32, self_attention(4), Recurrence(4)
    layers = {"RNN": layers_needed([dependence(recurrence, n)]), "convolution": layers_needed([dependence(Convolution(4), n)])}
    found = layers_needed([dependence(attention, n)])
    yield equals("layers until the last output sees the first input: RNN, (+) in the notes", layers["RNN"], 1)
    yield at_least("the same: convolution, (−) in the notes", layers["convolution"], 2)
    yield refutes("sign of self-attention, which needs as many layers as the one of the two with that sign",
                  "+" if found == layers["RNN"] else "−" if found == layers["convolution"] else "?", "−")  # fmt: skip
    yield at_most("operations between the first input and the last output, self-attention / RNN, n = 32",
                  critical_path(attention.float(), n, 4) / critical_path(recurrence.float(), n, 4), 0.5)  # fmt: skip


@claim("c9", "001", "The residual connection elevates vanishing gradient.",
       right="it alleviates it: without residuals the gradient vanishes on its way back, with them it does not")  # fmt: skip
def residuals_alleviate_vanishing_gradients() -> Iterator[Finding]:
    x, direction = torch.randn(2, 1, 16, 32)
    blocks = Transformer(TransformerConfig(vocab=8, dim=32, depth=24, heads=4, dropout=0.0)).encoder
    lines = {"residuals and norms": to_first_layer(blocks, x, direction, lambda block, h: block(h))}
    for part in blocks.modules():  # without norms the residuals are all that differs
        if isinstance(part, PreNorm):
            part.norm = nn.Identity()
    lines["residuals only"] = to_first_layer(blocks, x, direction, lambda block, h: block(h))
    lines["neither"] = to_first_layer(blocks, x, direction, lambda block, h: block.mlp(block.attn(h)))
    found = {name: points[0][1] for name, points in lines.items()}
    yield refutes("what residuals do to a gradient that vanishes without them",
                  "alleviate it" if found["residuals only"] > 10 * found["neither"] else "elevate it", "elevate it")  # fmt: skip
    yield at_most("gradient at the first of 24 layers / at the last, with neither residuals nor norms", found["neither"], 1e-4)
    yield at_least("the same with residuals", found["residuals only"], 0.5)
    yield between("the same with residuals and norms", found["residuals and norms"], 0.5, 50)
    yield Curves("Gradient on its way back", "layer", "gradient norm, as a fraction of that at the last layer", lines, log_y=True)


def to_first_layer(blocks: nn.ModuleList, x: Tensor, direction: Tensor, run: Callable[[EncoderBlock, Tensor], Tensor]) -> Points:
    """The norm of the gradient at the input of each block, as a fraction of that at the last one."""
    h, inputs = x.clone().requires_grad_(), list[Tensor]()
    for block in blocks:
        assert isinstance(block, EncoderBlock)
        inputs.append(h)
        h = run(block, h)
    norms = [gradient.norm().item() for gradient in torch.autograd.grad((h * direction).sum(), inputs)]
    return [(layer, norm / norms[-1]) for layer, norm in enumerate(norms, 1)]


# The table


@claim(22, "001", "Complexity per layer: self-attention O(n² d), recurrent O(n d²), convolutional O(k n d²), restricted "
       "self-attention O(r n d).", condition="if W_q, W_k, W_v and W_o are left out, which take 8 n d² FLOPs")  # fmt: skip
def operations_grow_as_the_table_says() -> Iterator[Finding]:
    layers: dict[str, tuple[Callable[[int], nn.Module], str, float, float]] = {  # maker, products, exponents of n and of d
        "self-attention: scores and weighted sum": (self_attention, "bmm", 2, 1),
        "self-attention: projections": (self_attention, "addmm", 1, 2),
        "recurrent (GRU)": (Recurrence, "", 1, 2),
        "convolutional, k = 3": (Convolution, "", 1, 2),
        "restricted self-attention, r = 4": (lambda d: WindowAttention(d, 2), "bmm", 1, 1),
    }
    lines = dict[str, Points]()
    for name, (make, products, of_n, of_d) in layers.items():
        sizes = (8, 16, 32)
        lines[name] = [(n, flops(make, n, 16, products)) for n in sizes]
        yield close(f"{name}: exponent of n in its FLOPs", exponent(lines[name]), of_n, within=0.05)
        yield close(f"{name}: exponent of d", exponent([(d, flops(make, 8, d, products)) for d in sizes]), of_d, within=0.05)
    yield equals(
        "projections of self-attention: FLOPs / (n d²), n = 8, d = 16", flops(self_attention, 8, 16, "addmm") / (8 * 16**2), 8
    )
    kernels: Points = [(k * k, flops(partial(Convolution, k=k), 8, 16)) for k in (3, 5, 7)]
    yield close("convolutional: exponent of k", exponent(kernels), 1, within=0.05)
    windows: Points = [(m * m, flops(partial(WindowAttention, side=m), 64, 16, "bmm")) for m in (2, 4, 8)]
    yield close("restricted self-attention: exponent of r", exponent(windows), 1, within=0.05)
    yield Curves("FLOPs of a layer of width 16", "positions n", "FLOPs", lines, True, True)


@claim(22, "001", "Sequential operations: O(1) for self-attention, restricted or not, and convolution, O(n) for recurrence.")
def sequential_operations_grow_as_the_table_says() -> Iterator[Finding]:
    layers = {"self-attention": self_attention(8), "recurrent": Recurrence(8), "convolutional": Convolution(8),
              "restricted self-attention, r = 4": WindowAttention(8, 2)}  # fmt: skip
    lines: dict[str, Points] = {name: [(n, critical_path(layer, n, 8)) for n in LONG] for name, layer in layers.items()}
    for name, points in lines.items():
        yield close(f"{name}: exponent of n in the sequential operations", exponent(points),
                    1 if name == "recurrent" else 0, within=0.05)  # fmt: skip
    yield Curves("Sequential operations of a layer", "positions n", "operations on the critical path", lines, True, True)


@claim(22, "001", "Maximum path length: O(1) for self-attention, O(n) for recurrence, O(n/r) for restricted self-attention.")
def path_lengths_grow_as_the_table_says() -> Iterator[Finding]:
    sizes = (16, 32, 64)
    lines: dict[str, Points] = {"self-attention": [(n, layers_needed([dependence(self_attention(4), n)])) for n in sizes]}
    lines["recurrent"] = [(n, layers_needed([dependence_of_states(Recurrence(4), n)])) for n in sizes]
    for side in (2, 4):  # every second layer has shifted windows
        windows = [WindowAttention(4, side), WindowAttention(4, side, shift=side // 2)]
        sees = {n: [dependence(layer, n) for layer in windows] for n in (32, 64, 128)}
        lines[f"restricted, r = {side * side}"] = [(n, layers_needed(stack)) for n, stack in sees.items()]
    yield equals("self-attention: layers between the first and the last of 64 positions", lines["self-attention"][-1][1], 1)
    yield close("self-attention: exponent of n", exponent(lines["self-attention"]), 0, within=0.05)
    yield close("recurrent: exponent of n, of steps", exponent(lines["recurrent"]), 1, within=0.05)
    yield equals("recurrent: steps between the first and the last of 64 states", lines["recurrent"][-1][1], 63)
    for side in (2, 4):
        name = f"restricted, r = {side * side}"
        yield close(f"{name}: exponent of n, of layers", exponent(lines[name]), 1, within=0.25)
    four, sixteen = lines["restricted, r = 4"][-1][1], lines["restricted, r = 16"][-1][1]
    yield between("restricted: layers with r = 4 / with r = 16, n = 128", four / sixteen, 3, 5)
    yield Curves("Maximum path length", "positions n", "layers, or steps of recurrence", lines, True, True)


@claim("c11", "001", "Maximum path length of convolutions: O(log_k(n)).",
       right="O(log_k(n)) if dilated by 1, k, k² …; contiguous kernels need 2 (n − 1) / (k − 1) layers, O(n/k)")  # fmt: skip
def contiguous_convolutions_need_n_over_k_layers() -> Iterator[Finding]:
    contiguous = dict[str, Points]()
    for k in (3, 5, 9):
        contiguous[f"k = {k}"] = [(n, layers_needed([dependence(Convolution(4, k), n)])) for n in (9, 17, 33, 65)]
        yield equals(f"layers until the last of 65 positions sees the first, k = {k}, against 2 (n − 1) / (k − 1)",
                     contiguous[f"k = {k}"][-1][1], 128 / (k - 1))  # fmt: skip
        yield refutes(f"the same, k = {k}, against log_k(n)", contiguous[f"k = {k}"][-1][1], math.log(65, k), by=3)
    distances: Points = [(n - 1, layers) for n, layers in contiguous["k = 3"]]
    yield close("contiguous, k = 3: exponent of n − 1", exponent(distances), 1, within=0.05)
    dilated = Points()
    for n in (5, 14, 41, 122):  # (3^layers + 1) / 2: one layer more reaches three times as far
        sees = [dependence(Convolution(4, 3, dilation=3**layer), n) for layer in range(5)]
        dilated.append((n, layers_needed(sees)))
        yield close(f"dilated by 1, 3, 9 …: layers for n = {n}, against log_3(n)", dilated[-1][1], math.log(n, 3), within=1)
    yield Curves("Convolutions between the first and the last position", "positions n", "layers",
                 {**contiguous, "k = 3, dilated by 1, 3, 9 …": dilated}, True, True)  # fmt: skip


@claim(22, "001", "Complexity, in seconds: self-attention O(n²); recurrence, convolution and restricted self-attention O(n).",
       slow=True)  # fmt: skip
def seconds_grow_as_the_table_says() -> Iterator[Finding]:
    d = 64
    layers: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "self-attention": (self_attention(d), (1024, 2048, 4096)),
        "recurrent (GRU)": (Recurrence(d), (64, 128, 256, 512)),
        "convolutional, k = 3": (Convolution(d), (8192, 16_384, 32_768, 65_536)),
        "restricted self-attention, r = 16": (WindowAttention(d, 4), (4096, 8192, 16_384, 32_768)),
    }
    runs = dict[str, Callable[[], object]]()
    for name, (layer, sizes) in layers.items():
        for n in sizes:
            runs[f"{name} {n}"] = partial(layer, torch.randn(1, n, d))
    with torch.no_grad():
        taken = least_cpu_seconds(runs, rounds=12)
    lines: dict[str, Points] = {name: [(n, taken[f"{name} {n}"]) for n in sizes] for name, (_, sizes) in layers.items()}
    for name, points in lines.items():
        low, high = (1.7, 2.3) if name == "self-attention" else (0.7, 1.35)
        yield between(f"{name}: exponent of n in the CPU seconds of a forward pass", exponent(points), low, high)
    yield Curves("CPU seconds of a layer of width 64", "positions n", "seconds", lines, True, True)


# When is self-attention cheaper?


@claim(23, "001", "Self-attention is cheaper than recurrence if n < d.")
def self_attention_takes_fewer_operations_if_n_is_below_d() -> Iterator[Finding]:
    for d in (16, 32, 64):
        per_step = flops(Recurrence, 4, d) / 4  # of a GRU
        low, high = 1, 8 * d
        while high - low > 1:  # the n from which on self-attention takes more
            middle = (low + high) // 2
            low, high = (low, middle) if flops(self_attention, middle, d) >= middle * per_step else (middle, high)
        yield close(f"n at which self-attention takes as many FLOPs as a GRU, d = {d}", high, d, rel=0.1)
    sizes = (8, 16, 32, 64, 128, 256)
    lines: dict[str, Points] = {"self-attention": [(n, flops(self_attention, n, d)) for n in sizes],
                                "recurrent (GRU)": [(n, n * per_step) for n in sizes]}  # fmt: skip
    ratios = [attention / gru for (_, attention), (_, gru) in zip(*lines.values(), strict=True)]
    yield at_most("FLOPs of self-attention / of a GRU, n = 8, d = 64", ratios[0], 0.8)
    yield at_least("the same, n = 256, d = 64", ratios[-1], 1.5)
    yield Curves("FLOPs of a layer of width 64", "positions n", "FLOPs", lines, True, True)


@claim(23, "001", "Self-attention is cheaper: it has fewer parameters.")
def self_attention_has_fewer_parameters_than_recurrence() -> Iterator[Finding]:
    d = 64
    layers = Attention(d, heads=4), GRUCell(d, d), LSTMCell(d, d)
    attention, gru, lstm = (sum(weight.numel() for weight in layer.parameters()) for layer in layers)
    yield equals("matrices of d × d: self-attention, GRU, LSTM", [count // d**2 for count in (attention, gru, lstm)], [4, 6, 8])
    yield at_most("parameters of self-attention / of a GRU, d = 64", attention / gru, 0.7)
    yield at_most("parameters of self-attention / of an LSTM, d = 64", attention / lstm, 0.55)


@claim(23, "001", "Self-attention is faster to train.", slow=True)
def self_attention_trains_faster_than_recurrence() -> Iterator[Finding]:
    lines: dict[str, Points] = {"self-attention": [], "recurrent (GRU)": []}
    for n in (32, 64, 128, 256):
        x = torch.randn(4, n, 128)
        layers: dict[str, nn.Module] = {"self-attention": self_attention(128), "recurrent (GRU)": Recurrence(128)}
        for name, taken in least_cpu_seconds({name: partial(train, layer, x) for name, layer in layers.items()}).items():
            lines[name].append((n, taken))
        yield at_least(f"CPU seconds of a forward and backward pass, GRU / self-attention, n = {n}, d = 128",
                       lines["recurrent (GRU)"][-1][1] / lines["self-attention"][-1][1], 1.3)  # fmt: skip
    yield Curves("Training step of a layer of width 128, 4 sequences", "positions n", "CPU seconds", lines, True, True)


def train(layer: nn.Module, x: Tensor) -> None:
    """A forward and a backward pass."""
    layer(x).sum().backward()
