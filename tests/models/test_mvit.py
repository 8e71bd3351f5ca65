"""MViT equals plain loops over images, heads, queries and keys; sizes and FLOPs are those of the papers."""

import dataclasses
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import SamVisionConfig
from transformers.models.sam.modeling_sam import SamVisionAttention

from regard.layers.biases import DecomposedPositionBias
from regard.layers.tap import watch
from regard.models.mvit import SIZES, MViT, MViTConfig, PoolingAttention, PoolPlan

V2 = MViTConfig(image=16, patch=2, kernel=3, dim=6, depths=[1, 2, 1], mlp_ratio=2, classes=5)
V1 = dataclasses.replace(V2, positions="added", residual="none", expand="mlp", pool="token")
BLOCKS = {  # width in, of attention, out; heads; side of the grid; strides of queries and of keys
    "attention": [(6, 6, 6, 1, 8, 1, 4), (6, 12, 12, 2, 8, 2, 2), (12, 12, 12, 2, 4, 1, 2), (12, 24, 24, 4, 4, 2, 1)],
    "mlp": [(6, 6, 12, 1, 8, 1, 4), (12, 12, 12, 2, 8, 2, 2), (12, 12, 24, 2, 4, 1, 2), (24, 24, 24, 4, 4, 2, 1)],
}
KINDS = {
    "v2": V2,
    "v1": V1,
    "v2 that expands in the mlp": dataclasses.replace(V2, expand="mlp"),
    "v2 with a class token": dataclasses.replace(V2, pool="token"),
    "v1 with max pooling": dataclasses.replace(V1, pooling="max"),
}


def built(config):
    """A model in float64 with weights so large that each of them matters."""
    torch.manual_seed(3)
    model = MViT(config).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model


def linear(w, x):
    return x @ w["weight"].T + w["bias"]


def norm(w, x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w["weight"] + w["bias"]


def under(w, name):
    return {key.removeprefix(name + "."): value for key, value in w.items() if key.startswith(name + ".")}


def near(x, side, row, column, reach):
    """Offset and value of each position within reach, on a grid that is flattened row by row."""
    for up in range(-reach, reach + 1):
        for left in range(-reach, reach + 1):
            if 0 <= row + up < side and 0 <= column + left < side:
                yield up, left, x[(row + up) * side + column + left]


def slow_max(x, side, stride, before):
    """Max pooling: tokens (T, D) → (pooled tokens, D)."""
    if stride == 1:
        return x
    grid, positions = x[before:], range(0, side, stride)
    kept = [torch.stack([v for *_, v in near(grid, side, r, c, stride // 2)]).amax(0) for r in positions for c in positions]
    return torch.cat((x[:before], torch.stack(kept)))


def slow_conv(w, x, side, stride, before):
    """Depthwise 3 × 3 convolution and norm: tokens (T, D) → (pooled tokens, D)."""
    grid, positions, kernel = x[before:], range(0, side, stride), w["pool.weight"]
    kept = [
        sum(kernel[:, 0, up + 1, left + 1] * v for up, left, v in near(grid, side, r, c, 1)) for r in positions for c in positions
    ]
    return norm(under(w, "norm"), torch.cat((x[:before], torch.stack(kept))))


def slow_attention(w, c, x, heads, side, stride_q, stride_k):
    """Tokens (T, D) → (Q, inner), one head, one query, one key at a time."""
    before = int(c.pool == "token")
    q, k, v = linear(under(w, "qkv"), x).chunk(3, -1)
    width = q.shape[-1] // heads
    side_q, side_k = side // stride_q, side // stride_k
    step_q, step_k = max(1, side_k // side_q), max(1, side_q // side_k)
    outputs = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)

        def pool(name, y, stride, unpooled=False, part=part):
            if unpooled:
                return y[:, part]
            if c.pooling == "max":
                return slow_max(y[:, part], side, stride, before)
            return slow_conv(under(w, name), y[:, part], side, stride, before)

        qs = pool("pool_q", q, stride_q, c.residual == "none" and stride_q == 1)
        ks, vs = pool("pool_k", k, stride_k), pool("pool_v", v, stride_k)
        rows = []
        for i, query in enumerate(qs):
            scores = []
            for j, key in enumerate(ks):
                score = (query * key).sum() / math.sqrt(width)
                if c.positions == "relative" and i >= before and j >= before:
                    (a, b), (y, z) = divmod(i - before, side_q), divmod(j - before, side_k)
                    score = score + (query * w["bias.rows"][a * step_q + (side_k - 1 - y) * step_k]).sum()
                    score = score + (query * w["bias.columns"][b * step_q + (side_k - 1 - z) * step_k]).sum()
                scores.append(score.exp())
            mixed = sum(score * value for score, value in zip(scores, vs, strict=True)) / sum(scores)
            rows.append(mixed + query if c.residual == "queries" else mixed)
        outputs.append(torch.stack(rows))
    return linear(under(w, "out"), torch.cat(outputs, -1))


def slow_block(w, c, x, plan):
    """Tokens (T, dim) → (Q, out)."""
    dim, inner, out, heads, side, stride_q, stride_k = plan
    h = norm(under(w, "norm1"), x)
    shortcut = linear(under(w, "expand1"), h) if dim != inner else x
    x = slow_max(shortcut, side, stride_q, int(c.pool == "token"))
    x = x + slow_attention(under(w, "attn"), c, h, heads, side, stride_q, stride_k)
    h = norm(under(w, "norm2"), x)
    up = linear(under(w, "mlp.up"), h)
    mlp = linear(under(w, "mlp.down"), up * (1 + torch.erf(up / math.sqrt(2))) / 2)
    return mlp + (linear(under(w, "expand2"), h) if inner != out else x)


def slow_mvit(w, c, image):
    """One image (C, Y · P, X · P) → logits."""
    tokens, padded = [], torch.nn.functional.pad(image, (1, 1, 1, 1))
    for row in range(0, 16, 2):
        for column in range(0, 16, 2):
            patch = padded[:, row : row + 3, column : column + 3]
            tokens.append((w["embed.weight"] * patch).sum((1, 2, 3)) + w["embed.bias"])
    x = torch.stack(tokens)
    if c.pool == "token":
        x = torch.cat((w["token"][0], x))
    if c.positions == "added":
        x = x + w["positions.table"]
    for index, plan in enumerate(BLOCKS[c.expand]):
        x = slow_block(under(w, f"blocks.{index}"), c, x, plan)
    x = norm(under(w, "final_norm"), x)
    return linear(under(w, "classifier"), x[0] if c.pool == "token" else x.mean(0))


@pytest.mark.parametrize("kind", list(KINDS))
@torch.no_grad()
def test_logits_equal_those_of_plain_loops(kind):
    model, x = built(KINDS[kind]), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    slow = torch.stack([slow_mvit(model.state_dict(), model.config, image) for image in x])
    assert slow.std() > 0.1
    torch.testing.assert_close(model(x), slow, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("kind", list(KINDS))
@torch.no_grad()
def test_a_block_equals_plain_loops(kind, index):
    model = built(KINDS[kind])
    plan = BLOCKS[model.config.expand][index]
    x = torch.randn(1, plan[4] ** 2 + (model.token is not None), plan[0], dtype=torch.float64)
    slow = slow_block(under(model.state_dict(), f"blocks.{index}"), model.config, x[0], plan)
    torch.testing.assert_close(model.blocks[index](x, (plan[4], plan[4]))[0], slow, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_without_pooling_it_equals_torch_s_multi_head_attention():
    torch.manual_seed(0)
    config = dataclasses.replace(V1, pool="mean", pooling="max")
    ours = PoolingAttention(PoolPlan(12, 12, 12, 3, 4, queries=1, keys=1), config)
    plain = torch.nn.MultiheadAttention(12, 3, batch_first=True)
    plain.in_proj_weight.copy_(ours.qkv.weight)
    plain.in_proj_bias.copy_(ours.qkv.bias)
    plain.out_proj.load_state_dict(ours.out.state_dict())
    x = torch.randn(2, 16, 12)
    torch.testing.assert_close(ours(x, (4, 4)), plain(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize(("queries", "keys"), [((4, 4), (4, 4)), ((4, 4), (2, 2)), ((2, 2), (4, 4)), ((1, 1), (4, 4))])
@torch.no_grad()
def test_the_bias_of_each_pair_is_the_query_times_the_vectors_of_both_distances(queries, keys):
    torch.manual_seed(0)
    part, q = DecomposedPositionBias(3, 4), torch.randn(2, 2, queries[0] * queries[1], 3)
    bias = part(q, queries, keys)
    for i in range(queries[0] * queries[1]):
        for j in range(keys[0] * keys[1]):
            y, x = (i // queries[1]) * 4 // queries[0], (i % queries[1]) * 4 // queries[1]  # in steps of the finer grid
            v, u = (j // keys[1]) * 4 // keys[0], (j % keys[1]) * 4 // keys[1]
            last = 4 - 4 // keys[0]  # position of the last key: the largest distance of a key after a query
            wanted = q[:, :, i] @ (part.rows[y - v + last] + part.columns[x - u + last])
            torch.testing.assert_close(bias[:, :, i, j], wanted)


@pytest.mark.parametrize(("queries", "keys"), [((4, 4), (2, 2)), ((8, 4), (4, 2)), ((3, 6), (6, 12)), ((5, 2), (5, 2))])
@torch.no_grad()
def test_the_bias_equals_that_of_sam_on_grids_of_any_size(queries, keys):
    torch.manual_seed(0)
    config = SamVisionConfig(hidden_size=6, num_attention_heads=2, image_size=8, patch_size=2)
    sam, part, q = (
        SamVisionAttention(config, window_size=0),
        DecomposedPositionBias(3, 4),
        torch.randn(2, 2, math.prod(queries), 3),
    )
    theirs = sam.get_decomposed_rel_pos(q.flatten(0, 1), part.rows, part.columns, queries, keys)
    torch.testing.assert_close(part(q, queries, keys).flatten(0, 1), theirs.flatten(3).flatten(1, 2))


def interpolated(table, length):
    """Linear interpolation of a table of distances, centres aligned."""
    rows = []
    for i in range(length):
        position = min(max((i + 0.5) * len(table) / length - 0.5, 0), len(table) - 1)
        low = min(int(position), len(table) - 2)
        rows.append(table[low] * (1 - (position - low)) + table[low + 1] * (position - low))
    return torch.stack(rows)


@torch.no_grad()
def test_another_image_size_interpolates_the_distances():
    small, large = built(V2), MViT(dataclasses.replace(V2, image=32)).double().eval()
    weights, wanted = small.state_dict(), large.state_dict()
    for key, value in weights.items():
        weights[key] = interpolated(value, len(wanted[key])) if ".bias." in key else value
    large.load_state_dict(weights)
    x = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(small(x), large(x))


@torch.no_grad()
def test_the_trained_size_uses_the_learned_distances_unchanged():
    part, q = DecomposedPositionBias(16, 4), torch.eye(16)[None, None]  # query i selects dimension i
    part.columns.zero_()
    bias = part(q, (4, 4), (4, 4))
    for i in range(16):
        assert torch.equal(bias[0, 0, i], torch.stack([part.rows[i // 4 - j // 4 + 3, i] for j in range(16)]))


@pytest.mark.parametrize("kind", list(KINDS))
@torch.no_grad()
def test_transposing_the_image_and_the_weights_leaves_the_logits_unchanged(kind):
    model, transposed = built(KINDS[kind]), built(KINDS[kind])
    for part, other in zip(model.modules(), transposed.modules(), strict=True):
        if isinstance(part, torch.nn.Conv2d):
            other.weight.copy_(part.weight.transpose(2, 3))
        if isinstance(part, DecomposedPositionBias):
            other.rows.copy_(part.columns)
            other.columns.copy_(part.rows)
    if model.positions is not None:
        transposed.positions.table[1:].copy_(model.positions.table[1:].unflatten(0, (8, 8)).transpose(0, 1).flatten(0, 1))
    x = torch.randn(1, 3, 16, 32, dtype=torch.float64)
    torch.testing.assert_close(transposed(x.transpose(2, 3)), model(x))
    assert (transposed(x) - model(x)).abs().max() > 1e-3


def count(config):
    with torch.device("meta"):
        return sum(p.numel() for p in MViT(config).parameters())


@pytest.mark.parametrize(
    ("size", "millions"), [("v2-tiny", 24.17), ("v2-small", 34.87), ("v2-base", 51.47), ("v2-large", 217.99)]
)
def test_a_size_has_the_parameters_of_the_released_model(size, millions):
    assert round(count(SIZES[size]) / 1e6, 2) == millions


def test_the_unreleased_sizes_have_the_parameters_of_the_papers():
    assert round(count(SIZES["v1-base"]) / 1e6, 1) == 37.0
    assert round(count(SIZES["v2-huge"]) / 1e6) == 667


@pytest.mark.parametrize(("size", "billions"), [("v2-tiny", 4.7), ("v2-small", 7.0), ("v1-base", 7.8)])
def test_a_size_has_the_flops_of_the_papers(size, billions):
    with torch.device("meta"), FlopCounterMode(display=False) as counted, torch.no_grad():
        MViT(SIZES[size]).eval()(torch.empty(1, 3, 224, 224))
    assert round(counted.get_total_flops() / 2e9, 1) == billions  # they count a multiply-add as one


def grids_of(model: MViT, height: int, width: int) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
    """Grids of queries and of keys of each attention, by module name, for an image of this size in pixels."""
    grid, grids = (height // model.config.patch, width // model.config.patch), {}
    for index, block in enumerate(model.blocks):
        grids[f"blocks.{index}.attn"] = block.attn.pooled_grids(grid)
        grid, _ = block.attn.pooled_grids(grid)
    return grids


@pytest.mark.parametrize("kind", list(KINDS))
@torch.no_grad()
def test_watch_collects_weights_between_both_grids_and_leaves_the_logits_unchanged(kind):
    model, x = built(KINDS[kind]), torch.randn(2, 3, 16, 32, dtype=torch.float64)
    before = model(x)
    with watch(model) as attended:
        torch.testing.assert_close(model(x), before)
    token = model.token is not None
    grids = grids_of(model, 16, 32)
    assert list(attended) == list(grids)
    assert grids["blocks.0.attn"] == ((8, 16), (2, 4))
    assert grids["blocks.3.attn"] == ((2, 4), (4, 8))
    for (name, (queries, keys)), plan in zip(grids.items(), BLOCKS[model.config.expand], strict=True):
        [weights] = attended[name]
        assert weights.shape == (2, plan[3], math.prod(queries) + token, math.prod(keys) + token)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def test_an_image_that_the_strides_do_not_tile_is_refused_with_sizes_that_work():
    with pytest.raises(ValueError, match="image of 200 pixels; use a side of 192 or 224"):
        MViTConfig(image=200)
    with pytest.raises(ValueError, match="image of 20 pixels; use a side of 32"):
        MViTConfig(image=20)
    with pytest.raises(ValueError, match="image of 18 pixels; use a side of 16 or 24"):
        MViT(V2)(torch.zeros(1, 3, 16, 18))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": 4}, "kernel 4 has no centre; use 3 or 5"),
        ({"kernel": 1}, "kernel 1 skips the pixels between patches 4 apart; use 3 or more"),
        ({"stride": 3}, "stride 3 cannot be halved down to 1; use 1, 2, 4"),
        ({"heads": 5}, "width 96 does not split into 5 heads"),
        ({"depths": []}, "stages of depths is 0; use 1 or more"),
        ({"depths": [1, 0, 2]}, r"depths\[1\] is 0; use 1 or more"),
    ],
)
def test_an_invalid_config_is_refused_with_what_to_do(change, message):
    with pytest.raises(ValueError, match=message):
        MViTConfig(**change)


@pytest.mark.parametrize("config", [V2, V1], ids=["v2", "v1"])
def test_it_overfits_a_small_batch(config):
    torch.manual_seed(0)
    model = MViT(dataclasses.replace(config, dim=16, drop_path=0.1))
    x, y = torch.randn(8, 3, 16, 16), torch.arange(8) % 5
    adam = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(40):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        adam.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        adam.step()
    assert torch.equal(model.eval()(x).argmax(1), y)
