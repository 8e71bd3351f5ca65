"""From gated recurrent units to attention, in the five steps of the lecture notes, each checked against the one before.

    python examples/from_gru_to_attention.py

    0   h_t = Σ_i (Π_{j>i} u_j) (1 − u_i) h̃_i          a GRU, unrolled: a weighted sum of its candidates
    1   h_t = Σ_i α_i h̃_i,   α_i ∝ exp ATT(h̃_i, x_t)    free the weights
    2   h_t = Σ_i α_i f(x_i)                            free the candidates from the recurrence
    3   h_t = Σ_i α_i V f(x_i),   ATT(K f(x_i), Q x_t)  separate keys and values
    4   h_t = [h_t¹; …; h_tᴴ]                           several heads: the attention of a Transformer

Every step is one function.  It is more general than the step before and equal to it in a special case, which `compare` checks.
All sums run over i = 1 … t, the positions so far.

Shapes: T positions, D width, H heads, E = D / H width of one head.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.attention import Attention, attend

Score = Callable[[Tensor, Tensor], Tensor]  # ATT of the notes: queries (…, T, E), keys (…, K, E) → scores (…, T, K)


# ── The starting point: a GRU ─────────────────────────────────────────────────────────────────────────────────────────


def gate_and_candidate(cell: nn.GRUCell, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """The update gate u_t and the candidate h̃_t = f(x_t, h_{t−1}), from the weights of torch's cell: two of shape (…, D)."""
    x_reset, x_update, x_new = F.linear(x, cell.weight_ih, cell.bias_ih).chunk(3, -1)
    h_reset, h_update, h_new = F.linear(h, cell.weight_hh, cell.bias_hh).chunk(3, -1)
    reset = torch.sigmoid(x_reset + h_reset)
    return torch.sigmoid(x_update + h_update), torch.tanh(x_new + reset * h_new)


class Unrolled(NamedTuple):
    """What a GRU computes at each position, all of shape (T, D)."""

    states: Tensor  # h_1 … h_T
    gates: Tensor  # u_1 … u_T
    candidates: Tensor  # h̃_1 … h̃_T


def run_gru(cell: nn.GRUCell, x: Tensor, h0: Tensor) -> Unrolled:
    """The recurrence h_t = u_t h_{t−1} + (1 − u_t) h̃_t, one position after the other: x (T, D), h0 (D,)."""
    h, steps = h0, []
    for x_t in x:
        u, candidate = gate_and_candidate(cell, x_t, h)
        h = u * h + (1 - u) * candidate
        steps.append((h, u, candidate))
    return Unrolled(*(torch.stack(column) for column in zip(*steps, strict=True)))


# ── Step 0: the recurrence is a weighted sum ──────────────────────────────────────────────────────────────────────────


def gate_weights(u: Tensor) -> Tensor:
    """How much candidate i counts in state t, feature by feature: gates (T, D) → (T, T, D), zero for i > t.

    Position i enters with 1 − u_i, and each later gate j keeps the fraction u_j of it: (Π_{j=i+1…t} u_j) (1 − u_i).
    The weights of a state sum to 1 − Π u, and the rest, Π u, is what is left of h_0.
    """
    weights = u.new_zeros(len(u), *u.shape)
    for t in range(len(u)):
        for i in range(t + 1):
            weights[t, i] = u[i + 1 : t + 1].prod(0) * (1 - u[i])
    return weights


def unrolled_sum(u: Tensor, candidates: Tensor, h0: Tensor) -> Tensor:
    """Step 0: h_t = Σ_i (Π_{j=i+1…t} u_j) (1 − u_i) h̃_i + (Π_{j=1…t} u_j) h_0, for all t: (T, D)."""
    return (gate_weights(u) * candidates).sum(1) + u.cumprod(0) * h0


def printed_sum(u: Tensor, candidates: Tensor) -> Tensor:
    """The formula as the notes print it, which is not the recurrence: Σ_i (Π_{j=i…t−i+1} u_j) (Π_{k=1…i−1} (1 − u_k)) h̃_i."""
    states = torch.zeros_like(candidates)
    for t in range(1, len(u) + 1):  # the formula counts from 1, slices from 0
        for i in range(1, t + 1):
            states[t - 1] += u[i - 1 : t - i + 1].prod(0) * (1 - u[: i - 1]).prod(0) * candidates[i - 1]
    return states


# ── Step 1: free the weights ──────────────────────────────────────────────────────────────────────────────────────────


def free_weights(x: Tensor, candidates: Tensor, score: Score | None = None) -> Tensor:
    """Step 1: h_t = Σ_i α_i h̃_i with α_i ∝ exp ATT(h̃_i, x_t): any score will do, the gates no longer decide.

    x (…, T, E) and candidates (…, K, E) → (…, T, E).  Without a `score`, ATT is the scaled dot product.
    """
    mixed, _ = attend(x, candidates, candidates, score=score, causal=True)
    return mixed


def gates_as_attention(u: Tensor, candidates: Tensor, h0: Tensor) -> Tensor:
    """Step 0 as a case of step 1: the score is the logarithm of the gates' weights, and exp undoes it: (T, D).

    h_0 joins as one more candidate, so the weights of a state sum to one, as those of a softmax do.  A gate weighs each
    feature by itself, so each feature is a head of width one.
    """
    weights = torch.cat([u.cumprod(0)[:, None], gate_weights(u)], 1)  # (T, 1 + T, D)
    values = torch.cat([h0[None], candidates])  # (1 + T, D)
    log_weights = weights.permute(2, 0, 1).log()  # (D, T, 1 + T)
    queries, keys = torch.zeros_like(candidates).T[..., None], values.T[..., None]  # (D, T, 1), (D, 1 + T, 1)
    return free_weights(queries, keys, lambda q, k: log_weights).squeeze(-1).T


# ── Step 2: free the candidates ───────────────────────────────────────────────────────────────────────────────────────


def features(cell: nn.GRUCell, x: Tensor) -> Tensor:
    """The candidates f(x_i) of a cell whose previous state is always zero: all positions at once, (T, D)."""
    _, candidates = gate_and_candidate(cell, x, torch.zeros_like(x))
    return candidates


def free_candidates(x: Tensor, f_x: Tensor) -> Tensor:
    """Step 2: h_t = Σ_i α_i f(x_i) with α_i ∝ exp ATT(f(x_i), x_t): no state is passed on, so nothing waits: (T, D)."""
    return free_weights(x, f_x)


# ── Step 3: separate keys and values ──────────────────────────────────────────────────────────────────────────────────


class Projections(NamedTuple):
    """The matrices Q, K, V (D, D) that make queries, keys and values."""

    query: Tensor
    key: Tensor
    value: Tensor


def separate_keys_and_values(x: Tensor, f_x: Tensor, p: Projections) -> Tensor:
    """Step 3: h_t = Σ_i α_i V f(x_i) with α_i ∝ exp ATT(K f(x_i), Q x_t).

    What a position is found by (its key) need not be what it tells (its value): (T, D).
    """
    mixed, _ = attend(x @ p.query.T, f_x @ p.key.T, f_x @ p.value.T, causal=True)
    return mixed


# ── Step 4: several heads ─────────────────────────────────────────────────────────────────────────────────────────────


def several_heads(x: Tensor, f_x: Tensor, p: Projections, heads: int) -> Tensor:
    """Step 4: h_t = [h_t¹; …; h_tᴴ]: each head attends with its own E rows of Q, K and V: (T, D)."""
    q, k, v = (
        (inputs @ matrix.T).unflatten(-1, (heads, -1)).transpose(0, 1)  # (T, D) → (H, T, E)
        for inputs, matrix in zip((x, f_x, f_x), p, strict=True)
    )
    mixed, _ = attend(q, k, v, causal=True)  # (H, T, E)
    return mixed.transpose(0, 1).flatten(1)  # (T, D)


def transformer_attention(x: Tensor, p: Projections, heads: int) -> Tensor:
    """The causal self-attention of a Transformer (Vaswani et al. 2017), without its output projection: (T, D)."""
    layer = Attention(x.shape[-1], heads, bias=False).to(x.dtype)
    with torch.no_grad():
        layer.qkv.weight.copy_(torch.cat(p))
        layer.out.weight.copy_(torch.eye(x.shape[-1]))
        return layer(x[None], causal=True)[0]


# ── The comparison ────────────────────────────────────────────────────────────────────────────────────────────────────


class Comparison(NamedTuple):
    """One line of the table: a step equals another formula in a special case; their largest difference, and the idea."""

    step: str
    equals: str
    difference: float
    idea: str


@torch.no_grad()
def compare(length: int = 12, dim: int = 8, heads: int = 4, seed: int = 0) -> list[Comparison]:
    """Run every step on the same random sequence, in the special case that makes it equal to the step before."""
    torch.manual_seed(seed)
    x, h0 = torch.randn(length, dim), torch.randn(dim)
    table = []

    def add(step: str, equals: str, got: Tensor, wanted: Tensor, idea: str) -> None:
        table.append(Comparison(step, equals, float((got - wanted).abs().max()), idea))

    # The recurrence, written out, is that of torch.
    cell, reference = nn.GRUCell(dim, dim), nn.GRU(dim, dim)
    reference.load_state_dict({f"{name}_l0": weight for name, weight in cell.state_dict().items()})
    states, u, candidates = run_gru(cell, x, h0)
    add("GRU", "torch's nn.GRU", states, reference(x, h0[None])[0],
        "h_t keeps the fraction u_t of the state before and takes 1 − u_t of a new candidate h̃_t")  # fmt: skip

    # Step 0.  The printed formula has no h_0, so it is compared with a GRU that starts from zero.
    add("0  unrolled sum", "the GRU", unrolled_sum(u, candidates, h0), states,
        "candidate i enters with weight 1 − u_i, and each later gate j keeps the fraction u_j of it")  # fmt: skip
    from_zero = run_gru(cell, x, torch.zeros(dim))
    add("0  as printed", "NOT the GRU", printed_sum(from_zero.gates, from_zero.candidates), from_zero.states,
        "the indices in the notes are wrong: at t = 1 they weigh h̃_1 by u_1 instead of 1 − u_1")  # fmt: skip

    # Step 1
    add("1  free weights", "step 0, if ATT is the log of the gates' weights", gates_as_attention(u, candidates, h0), states,
        "any score of candidate and input may set the weights; a softmax makes them sum to one")  # fmt: skip

    # Step 2, with a cell whose candidates ignore the previous state
    memoryless = nn.GRUCell(dim, dim)
    memoryless.weight_hh.zero_()
    f_x = features(memoryless, x)
    recurrent = free_weights(x, run_gru(memoryless, x, h0).candidates)
    add("2  free candidates", "step 1, if f ignores the previous state", free_candidates(x, f_x), recurrent,
        "nothing waits for the position before it: all positions are computed at once")  # fmt: skip

    # Step 3
    identity = Projections(*[torch.eye(dim)] * 3)
    add("3  keys and values", "step 2, if Q, K and V are identities", separate_keys_and_values(x, f_x, identity),
        free_candidates(x, f_x), "what a position is found by (key) need not be what it contributes (value)")  # fmt: skip

    # Step 4
    learned = Projections(*(torch.randn(3, dim, dim) * dim**-0.5))
    add("4  several heads", "step 3, if there is one head", several_heads(x, f_x, learned, 1),
        separate_keys_and_values(x, f_x, learned), "each head weighs the positions in its own way")  # fmt: skip
    rows_of_heads = zip(*(matrix.split(dim // heads) for matrix in learned), strict=True)
    one_by_one = [separate_keys_and_values(x, f_x, Projections(*rows)) for rows in rows_of_heads]
    add("4  several heads", f"step 3, {heads} times, concatenated", several_heads(x, f_x, learned, heads),
        torch.cat(one_by_one, -1), "a head is step 3 with its own rows of Q, K and V")  # fmt: skip
    add("→  Transformer", "step 4, if f is the identity", transformer_attention(x, learned, heads),
        several_heads(x, x, learned, heads), "the causal self-attention of `regard.layers.attention.Attention`")  # fmt: skip
    return table


def main() -> None:
    """Print the table, and the weights of a small example."""
    length, dim, heads = 12, 8, 4
    print(f"From a GRU to attention: {length} positions, width {dim}, {heads} heads, random weights\n")
    print(f"{'step':<21}{'equals':<52}{'largest difference':>18}")
    for step, equals, difference, idea in compare(length, dim, heads):
        print(f"{step:<21}{equals:<52}{difference:>18.1e}\n   {idea}")

    u = torch.tensor([0.5, 0.8, 0.9])
    *_, last = gate_weights(u[:, None]).squeeze(-1)  # (T,)
    terms = " + ".join(f"{weight:.2f} h̃_{i}" for i, weight in enumerate(last.tolist(), 1))
    print("\nA GRU is attention whose weights are products of its gates.  With u = 0.5, 0.8, 0.9:")
    print(f"   h_3 = {terms} + {u.prod():.2f} h_0, and the weights of the candidates sum to {last.sum():.2f} = 1 − Π u")


if __name__ == "__main__":
    main()
