"""Attention for images other than ViT: convolutions with attention, local attention, pixels, Swin and MViT.

Shapes: B batch, C channels, Y X rows and columns of a grid, M side of a window, R side of a neighbourhood, H heads, D width.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from regard.layers.attention import Attention, CosineAttention, QKVWithoutKeyBias
from regard.layers.biases import ContinuousPositionBias, RelativePositionBias
from regard.layers.conv import ConvNorm
from regard.layers.linear import Linear
from regard.layers.masks import window_mask
from regard.layers.mlp import MLP
from regard.layers.norm import PreNorm
from regard.layers.positions import LearnedGridPositions
from regard.layers.scores import squared_distance
from regard.layers.shapes import to_neighborhoods
from regard.layers.tap import record_calls, watch
from regard.models import FAMILIES, preset
from regard.models.image_gpt import ImageGPT, ImageGPTConfig
from regard.models.lrnet import LocalRelation, LRNet, LRNetConfig
from regard.models.mvit import GridPool, MViT, MViTConfig, conv_pool
from regard.models.resnet import GatedAttention, ResNet, ResNetConfig
from regard.models.swin import Block, Swin, SwinConfig, keep_window
from regard.models.vit import ViT, ViTConfig
from regard.verify.claim import Finding, at_least, at_most, between, claim, close, equals, refutes
from regard.verify.measures import Points, depends_on, exponent, least_cpu_seconds, minimize
from regard.verify.plots import Curves, Heatmap
from regard.verify.vit import (
    Labelled,
    accuracy_of,
    changed_cost,
    count_weights,
    labelled,
    learn,
    locations_seen,
    meta_model,
    run_and_learn,
)  # fmt: skip
from regard.view.cost import ImageCost, image_cost

__all__: list[str] = []

EXACT = 1e-5  # of float32 numbers of about 1


# Idea 1: attention between the blocks of a CNN


@claim(72, "001", "Self-attention blocks are added between the blocks of a ResNet; the model is still a CNN.")
def attention_is_added_between_the_blocks_of_a_cnn() -> Iterator[Finding]:
    config = ResNetConfig(image=16, stem="cifar", dim=16, dims=[16, 32], depths=[1, 1], block="basic", classes=10, heads=2)
    plain, mixed = ResNet(config), ResNet(replace(config, attention=[1]))
    missing = mixed.load_state_dict(plain.state_dict(), strict=False).missing_keys
    others = [name for name in missing if not name.startswith("attention")]
    yield equals("weights that the plain ResNet lacks, outside of the attention", others, [])
    x = torch.randn(4, 3, 16, 16)
    yield close("logits with attention before training, against the plain ResNet", mixed.eval()(x), plain.eval()(x), within=EXACT)
    F.cross_entropy(mixed(x), torch.arange(4)).backward()
    [gate] = [part.gate for part in mixed.modules() if isinstance(part, GatedAttention)]
    assert gate.grad is not None
    yield at_least("gradient of the gate, which starts at 0", gate.grad.abs().item(), 1e-6)
    yield at_least("change of the logits with a gate of 0.5", changed_by_gate(mixed, gate, x), 1e-3)
    parts = {part.name: part.flops for part in image_cost(*preset("resnet-attention-50")).parts}
    yield at_most("FLOPs in the attention, of ResNet-50 with attention after two stages", parts["attention"] / parts["all"], 0.25)


@claim(72, "001 004", "Convolutions capture local patterns; a self-attention module in a CNN captures the global context.")
def attention_in_a_cnn_sees_the_whole_map() -> Iterator[Finding]:
    layer, conv, x = GatedAttention(16, heads=2), ConvNorm(16, 16, 3).eval(), torch.randn(1, 16, 7, 7)
    nn.init.constant_(layer.gate, 0.5)
    yield equals(
        "locations of 7 × 7 that the middle depends on, 3 × 3 convolution", locations_seen(lambda x: conv(x)[0, :, 3, 3], x), 9
    )
    yield equals(
        "locations of 7 × 7 that the middle depends on, attention", locations_seen(lambda x: layer(x)[0, :, 3, 3], x), 49
    )
    q, k, v = (x.flatten(2)[0].T @ layer.attn.qkv.weight.T + layer.attn.qkv.bias).view(49, 3, 2, 4).permute(1, 2, 0, 3)
    mixed = (q @ k.transpose(1, 2) / 2).softmax(-1) @ v  # (2, 49, 4)
    out = mixed.transpose(0, 1).flatten(1) @ layer.attn.out.weight.T + layer.attn.out.bias
    yield close("x + gate · attention(x), against the formula", layer(x), x + 0.5 * out.T.view(1, 16, 7, 7), within=EXACT)


@claim(72, "004", "CNNs are effective for local patterns and struggle with the global context, which attention sees.", slow=True)
def attention_compares_distant_places() -> Iterator[Finding]:
    lines = dict[str, Points]()
    for name, stages in (("CNN", []), ("CNN with attention", [1])):
        model = ResNet(ResNetConfig(image=12, channels=1, stem="cifar", dim=8, dims=[16], depths=[1], block="basic", classes=2,
                                    attention=stages, heads=2))  # fmt: skip
        optimizer, lines[name] = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.0), []
        for step in range(1, 201):
            images, same = two_points(32)
            loss = F.cross_entropy(model(images), same)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 25 == 0:
                lines[name].append((step, accuracy_of(model, Labelled(*two_points(500)))))
    yield at_most("accuracy of the CNN, in which the points are too far from each other (chance: 0.5)", lines["CNN"][-1][1], 0.8)
    yield at_least("accuracy of the CNN with attention", lines["CNN with attention"][-1][1], 0.95)
    yield Curves("Are two distant points of the same colour?", "training step", "accuracy", lines)


# Idea 2: local attention instead of convolutions


@claim(73, "001", "Local attention maps the centre of a neighbourhood to a query, each of its R × R elements to a key and a "
       "value.")  # fmt: skip
def local_attention_equals_a_loop() -> Iterator[Finding]:
    for stride in (1, 2):
        layer, x = LocalRelation(5, 6, 3, 4, squared_distance, stride).requires_grad_(False), torch.randn(1, 5, 6, 4)
        yield close(f"output, stride {stride}, against a loop", layer(x), local_relation_by_hand(layer, x), within=EXACT)
        with watch(layer) as found:
            watched = layer(x)
        yield close(f"the same through gathered neighbourhoods, stride {stride}", watched, layer(x), within=EXACT)
        [weights] = found[""]
        yield equals(f"queries and keys of an image of 6 × 4, stride {stride}", tuple(weights.shape[2:]), (24 // stride**2, 9))


@claim(73, "001", "LR-Net-50 has 23.3 · 10⁶ parameters, ResNet-50 25.5 · 10⁶; both have 4.3 · 10⁹ FLOPs, and grids of 112, 56, "
       "28, 14 and 7 locations.", condition="if a multiply-add is one FLOP; ResNet-50 has 4.1 · 10⁹ of them")  # fmt: skip
def lr_net_50_has_the_size_of_the_table() -> Iterator[Finding]:
    local, plain = image_cost(*preset("lrnet-50")), image_cost(*preset("resnet-50"))
    yield close("parameters of LR-Net-50", local.whole.parameters, 23.3e6, rel=0.02)
    yield equals("parameters of ResNet-50", plain.whole.parameters, 25_557_032)
    yield close("multiply-adds of LR-Net-50, in its convolutions", local.whole.flops / 2, 4.3e9, rel=0.02)
    yield close("multiply-adds of ResNet-50", plain.whole.flops / 2, 4.09e9, rel=0.01)
    yield close("multiply-adds of ResNet-50, against the table", plain.whole.flops / 2, 4.3e9, rel=0.06)
    rows = [rows for rows, _, _ in stage_shapes("lrnet-50")]
    yield equals("rows of the grid after each stage of LR-Net-50", rows, [56, 28, 14, 7])
    yield equals("queries of the first local relation", local.tokens, 112**2)


@claim("c15", "001", "All convolutions of a ResNet are replaced with local attention; the stages res3 to res5 of LR-Net-50 have "
       "one block each, and 8 channels share their weights in each width, such as 100.",
       right="the 1 × 1 convolutions stay, also that after each aggregation; the blocks repeat 3, 4, 6 and 3 times, as in "
       "ResNet-50; a width of 100 has 13 groups, the last with 4 channels")  # fmt: skip
def lr_net_50_repeats_its_blocks() -> Iterator[Finding]:
    written = changed_cost("lrnet-50", depths=[3, 1, 1, 1]).whole
    found = image_cost(*preset("lrnet-50")).whole
    yield refutes("parameters of one block in res3, res4 and res5, in millions", written.parameters / 1e6, 23.3, by=5)
    yield refutes("multiply-adds of it, in billions", written.flops / 2e9, 4.3, by=1)
    yield close("parameters with 3, 4, 6 and 3 blocks, in millions", found.parameters / 1e6, 23.3, rel=0.02)
    *_, last = body = list(meta_model("lrnet-50").get_submodule("stages.0.0.body").children())
    [width] = [part.value.out_channels for part in body if isinstance(part, LocalRelation)]
    assert isinstance(last, ConvNorm)
    after = last.conv
    yield refutes("channels after the aggregation in res2, against those of the residual that it would be added to", width, 256)
    yield equals("convolution after it: kernel, channels in and out", (*after.kernel_size, after.in_channels, after.out_channels),
                 (1, 1, 100, 256))  # fmt: skip
    layer, x = LocalRelation(100, 100, 7, 8, squared_distance).requires_grad_(False), torch.randn(1, 100, 3, 3)
    with watch(layer) as weights:
        layer(x)
    groups = weights[""][0].shape[1]
    yield refutes("groups of 8 in 100 channels", groups, 100 / 8)
    yield equals("groups with their own weights", groups, 13)
    yield close("output of a width of 100, against a loop", layer(x), local_relation_by_hand(layer, x), within=1e-4)


@claim(74, "001", "Local attention has lots of tricky details and is hard to implement.",
       condition="in two numbers: gathered neighbourhoods of 7 × 7 are 49 times as large as the feature map, and without "
       "gathering them the layer takes over 20 times as many of torch's operations as a convolution")  # fmt: skip
def gathered_neighbourhoods_are_large() -> Iterator[Finding]:
    x = torch.randn(1, 8, 28, 28)
    gathered = to_neighborhoods(x, 1, 7)
    yield equals("numbers in the gathered neighbourhoods of 7 × 7 / in the feature map", gathered.numel() / x.numel(), 49)
    layer, conv = LocalRelation(32, 32, 7, 8, squared_distance), ConvNorm(32, 32, 7)
    x = torch.randn(1, 32, 28, 28)
    ratio = operations(lambda: layer(x).sum().backward()) / operations(lambda: conv(x).sum().backward())
    yield at_least("torch's operations without gathering, forward and backward, over those of a 7 × 7 convolution", ratio, 20)


@claim(74, "001", "Local attention is only marginally better than a ResNet.", slow=True, data=("fashion-mnist",),
       condition="in that it is not much better: after 150 steps a small LR-Net is about as accurate as a ResNet of the same "
       "widths, and slower; which of the two is better is not decided")  # fmt: skip
def lr_net_is_about_as_accurate_as_a_resnet() -> Iterator[Finding]:
    train, test = labelled("fashion-mnist", "train"), labelled("fashion-mnist", "test", 2000)
    local = LRNetConfig(image=14, channels=1, stem="cifar", dim=12, dims=[24, 48], widths=[12, 24], depths=[1, 1], kernel=5,
                        channels_per_head=4, classes=10)  # fmt: skip
    plain = ResNetConfig(image=14, channels=1, stem="cifar", dim=12, dims=[24, 48], depths=[1, 1], classes=10)
    makers: dict[str, Callable[[], nn.Module]] = {"LR-Net": partial(LRNet, local), "ResNet": partial(ResNet, plain)}
    x = train.images[:32]
    seconds = least_cpu_seconds({name: partial(run_and_learn, make(), x) for name, make in makers.items()})
    runs = {name: [learn(make(), train, test, 150, every=50) for _ in range(3)] for name, make in makers.items()}
    lines = {name: [(step, sum(each[i][1] for each in found) / 3) for i, (step, _) in enumerate(found[0])]
             for name, found in runs.items()}  # fmt: skip
    accuracy = {name: line[-1][1] for name, line in lines.items()}
    yield between("accuracy of LR-Net - of ResNet, clothes of 14 × 14 pixels, mean of 3 runs",
                  accuracy["LR-Net"] - accuracy["ResNet"], -0.08, 0.05)  # fmt: skip
    yield at_least("accuracy of LR-Net (chance: 0.1)", accuracy["LR-Net"], 0.4)
    yield at_least("CPU seconds of a forward and backward pass, LR-Net / ResNet", seconds["LR-Net"] / seconds["ResNet"], 2)
    yield Curves("Local attention against convolutions, mean of 3 runs", "training step", "accuracy on test", lines)


# Idea 3: a Transformer on pixels


@claim(75, "001", "On pixels, an R × R image needs R⁴ elements for each attention matrix; with R = 128, 48 layers and 16 heads "
       "that is 768 GB for one example.", condition="if a score is a float32 and a GB has 2³⁰ bytes")  # fmt: skip
def attention_on_pixels_needs_r_to_the_4() -> Iterator[Finding]:
    entries = {side: pixel_cost(side).entries for side in (16, 32, 64, 128)}
    yield equals(
        "entries for R = 16, 32, 64 and 128, the fourth roots", [round(n**0.25, 6) for n in entries.values()], [*entries]
    )
    cost = pixel_cost(128)
    yield equals("bytes of 48 layers and 16 heads, R = 128, in units of 2³⁰", 48 * 16 * cost.entry_bytes / 2**30, 768)
    yield Curves("Attention matrices of 48 layers and 16 heads", "side R of the image in pixels", "GiB",
                 {"pixels": [(side, 48 * 16 * 4 * n / 2**30) for side, n in entries.items()]}, True, True)  # fmt: skip


@claim(75, "001", "224 × 224 pixels are a sequence of 50,000, too much; patches of 16 × 16 pixels make it short.")
def patches_shorten_the_sequence() -> Iterator[Finding]:
    patches, pixels = changed_cost("vit-base", pool="mean", depth=1), changed_cost("vit-base", pool="mean", depth=1, patch=1)
    yield close("pixels of an image, as tokens", pixels.tokens, 50_000, rel=0.01)
    yield equals("patches of 16 × 16, as tokens", patches.tokens, 196)
    yield equals("scores of one head on pixels / on patches", pixels.entries / patches.entries, 16**4)
    yield at_least("GiB of the scores of one head on pixels", pixels.entry_bytes / 2**30, 9)


@claim(75, "001", "A standard Transformer works on an image as pixel values.")
def a_transformer_learns_pixels() -> Iterator[Finding]:
    model = ImageGPT(ImageGPTConfig(image=8, channels=1, levels=2, dim=32, depth=1, heads=2))
    line = minimize(model.parameters(), lambda: pixel_loss(model, stripes(16)), steps=60, lr=1e-2)
    with torch.no_grad():
        last = pixel_loss(model, stripes(64)).item()
    yield close("loss before training, nats for each pixel (ln 3 of 3 tokens)", line[0][1], math.log(3), within=0.3)
    yield at_most("loss after 60 steps, striped images of 8 × 8 pixels (their entropy: 0.087)", last, 0.3)
    yield Curves("Striped images, pixel by pixel", "training step", "loss in nats for each pixel", {"image-gpt": line})


# Hierarchies


@claim(78, "001", "CNNs decrease the resolution and increase the channels with depth (hierarchical); all blocks of a ViT have "
       "the same resolution and channels (isotropic).")  # fmt: skip
def cnns_are_hierarchical_and_vit_is_isotropic() -> Iterator[Finding]:
    pyramid = [(56, 56), (28, 28), (14, 14), (7, 7)]
    for name, first in (("resnet-50", 256), ("swin-tiny", 96), ("mvit-v2-tiny", 96)):
        expected = [(rows, columns, first * 2**i) for i, (rows, columns) in enumerate(pyramid)]
        yield equals(f"rows, columns and channels of the stages of {name}", stage_shapes(name), expected)
    yield equals("tokens and channels of the blocks of vit-base", set(block_shapes("vit-base")), {(197, 768)})


@claim(79, "001", "On a 56 × 56 grid attention has 56⁴ = 9.8M entries; in windows of M × M it has M⁴ (H/M) (W/M) = M² H W.")
def windows_need_m_squared_h_w_entries() -> Iterator[Finding]:
    everywhere = changed_cost("vit-base", patch=4, depth=1, pool="mean").entries
    yield equals("entries of global attention on 56 × 56 patches", everywhere, 9_834_496)
    for window in (4, 7, 14):
        found = changed_cost("swin-tiny", depths=[1], heads=[3], window=window).entries
        yield equals(f"entries of all windows, M = {window}", found, window**2 * 56 * 56)
    found = image_cost(*preset("swin-tiny")).entries
    yield equals("entries of Swin-T, M = 7", found, 153_664)
    yield equals("how many times fewer", everywhere / found, 64)


@claim(79, "001", "For a fixed M, window attention is linear in the size of the image; global attention is "
       "quadratic.")  # fmt: skip
def window_attention_is_linear_in_the_image() -> Iterator[Finding]:
    costs = {
        "windows": [(side**2, changed_cost("swin-tiny", depths=[2], heads=[3], image=side)) for side in (224, 448, 896)],
        "global": [(side**2, changed_cost("vit-base", patch=4, depth=1, dim=96, heads=3, pool="mean", image=side))
                   for side in (224, 448, 896)],
    }  # fmt: skip
    for name, power in (("windows", 1), ("global", 2)):
        found = exponent([(n, c.entries) for n, c in costs[name]])
        yield close(f"exponent of the entries over the pixels, {name}", found, power, within=0.01)
    yield close("exponent of the FLOPs, windows", exponent([(n, c.whole.flops) for n, c in costs["windows"]]), 1, within=0.02)
    yield at_least("exponent of the FLOPs, global", exponent([(n, c.whole.flops) for n, c in costs["global"]]), 1.7)
    yield Curves("Entries of attention matrices", "pixels", "entries of one head",
                 {name: [(n, c.entries) for n, c in line] for name, line in costs.items()}, True, True)  # fmt: skip


@claim(79, "001", "Swin uses M = 7 throughout the network.")
def swin_has_windows_of_7_throughout() -> Iterator[Finding]:
    model = meta_model("swin-tiny")
    with torch.device("meta"), torch.no_grad(), watch(model) as found:
        model(torch.empty(1, 3, 224, 224))
    yield equals("queries and keys of a window, in all blocks", {tuple(w.shape[2:]) for [w] in found.values()}, {(49, 49)})
    yield equals("windows in each block", [len(w) for [w] in found.values()], [64] * 2 + [16] * 2 + [4] * 6 + [1] * 2)


@claim(80, "001", "Tokens of different windows do not interact; alternating with shifted windows solves that.")
def shifted_windows_connect_windows() -> Iterator[Finding]:
    plain, again, shifted = (swin_block(4, shift).double() for shift in (0, 0, 2))
    for name, blocks, expected in (
        ("one block", [plain], 16),
        ("two blocks, not shifted", [plain, again], 16),
        ("two blocks, the second shifted", [plain, shifted], 64),
    ):
        x = torch.randn(1, 8, 8, 8, dtype=torch.float64, requires_grad=True)
        y = nn.Sequential(*blocks)(x)[0, 3, 3]
        seen = depends_on(y, x)[0].any(-1)
        yield equals(f"positions of 8 × 8 that one depends on, windows of 4 × 4, {name}", int(seen.sum()), expected)
    yield Heatmap("What one position depends on after two blocks, the second shifted", "column", "row", seen.float(),
                  z="1: depends on it")  # fmt: skip


@claim(80, "001", "Shifted windows are not square at edges and corners.")
def shifted_windows_are_ragged_at_the_edges() -> Iterator[Finding]:
    block, x = swin_block(4, shift=2).requires_grad_(False), torch.randn(2, 8, 8, 8)
    edges = [0, 2, 6, 8]
    cuts = [slice(low, high) for low, high in itertools.pairwise(edges)]
    windows = list(itertools.product(cuts, cuts))
    out = torch.empty_like(x)
    for rows, columns in windows:  # each attended to on its own, without roll or mask
        part = x[:, rows, columns]
        out[:, rows, columns] = block.attn(part.flatten(1, 2), bias=offset_bias(block, *part.shape[1:3])).view(part.shape)
    yield close("shifted by the roll and its mask, against 9 ragged windows", block.attend_windows(x), out, within=EXACT)
    mask = window_mask(8, 8, 4, 2)
    yield equals("regions in each of the 4 rolled windows", (1 / mask.sum(-1)).sum(1).round().int().tolist(), [1, 2, 2, 4])
    sizes = [(rows.stop - rows.start) * (columns.stop - columns.start) for rows, columns in windows]
    allowed = mask.sum(-1).flatten().tolist()  # for each position
    yield equals("sizes of the windows, of the mask against the grid", sorted({*allowed}), sorted({*sizes}))


@claim(81, "001", "Swin adds learned biases B of M² × M² to the scores: A = Softmax(Q Kᵀ / √D + B) V.")
def relative_positions_are_a_bias_on_the_scores() -> Iterator[Finding]:
    bias = RelativePositionBias(2, 7)
    yield equals("shape of B for 2 heads", tuple(bias(7).shape), (1, 2, 49, 49))
    yield equals("learned numbers for each head, (2M - 1)²", bias.table.numel() / 2, 169)
    small = RelativePositionBias(1, 2)
    small.table.data = torch.arange(9.0)[:, None]
    index = [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]]
    yield equals("index of the bias, M = 2", small(2)[0, 0].int().tolist(), index)
    nn.init.normal_(bias.table)
    attn, x, b = Attention(8, 2), torch.randn(3, 49, 8), bias(7)[0]
    q, k, v = attn.project(x)
    scores = torch.einsum("bhqe,bhke->bhqk", q, k) / math.sqrt(4) + b
    mixed = torch.einsum("bhqk,bhke->bqhe", scores.softmax(-1), v).flatten(2)
    yield close("attention with B, against the formula", attn(x, bias=bias(7)), attn.out(mixed), within=EXACT)
    yield Heatmap("B of one head, M = 7, of random numbers", "key of the window", "query of the window", bias(7)[0, 0].detach(),
                  z="bias")  # fmt: skip


@claim(81, "001", "ViT adds position embeddings to its tokens, which encode absolute positions; Swin has none, and encodes "
       "relative ones.")  # fmt: skip
def swin_knows_relative_positions_only() -> Iterator[Finding]:
    vit = ViT(ViTConfig(image=32, patch=4, dim=16, depth=2, heads=2, pool="mean", classes=10)).requires_grad_(False)
    swin = Swin(SwinConfig(image=32, patch=4, dim=16, depths=[2], heads=[2], window=4, classes=10)).requires_grad_(False)
    for name, model, expected in (("ViT", vit, 1), ("Swin", swin, 0)):
        tables = [part for part in model.modules() if isinstance(part, LearnedGridPositions)]
        yield equals(f"tables of position embeddings, {name}", len(tables), expected)
    image = torch.ones(1, 3, 32, 32)
    yield at_most(
        "spread of the tokens of a one-coloured image, Swin", swin.encode(image).flatten(1, 2).std(1).max().item(), EXACT
    )
    yield at_least("the same, ViT", vit.encode(image).std(1).max().item(), 0.1)
    content = torch.randn(1, 4, 4, 8)
    left, right = swin_block(4, shift=0)(torch.cat((content, content), 2)).chunk(2, 2)
    yield close("output of a window, against that of another one with the same content", left, right, within=EXACT)


@claim(82, "001", "Other hierarchical Vision Transformers are Swin V2, MViT and improved MViT.",
       condition="in that ours have their published numbers of parameters")  # fmt: skip
def hierarchical_vits_have_their_published_sizes() -> Iterator[Finding]:
    yield equals("parameters of Swin V2-T", count_weights(meta_model("swin-v2-tiny")), 28_351_570)
    for name, millions in (("v2-tiny", 24.17), ("v2-small", 34.87), ("v2-base", 51.47), ("v1-base", 36.98)):
        yield close(
            f"parameters of mvit-{name}, in millions", count_weights(meta_model(f"mvit-{name}")) / 1e6, millions, within=0.006
        )


@claim(82, "001", "Swin V2 scales up the capacity and resolution of Swin.",
       condition="in that its weights do not grow with the length of queries, and its biases fit larger windows; no large model "
       "is trained here")  # fmt: skip
def swin_v2_has_cosine_attention_and_continuous_biases() -> Iterator[Finding]:
    x = torch.randn(1, 16, 8)
    cosine = Attention(8, 2, scale=1.0, project=QKVWithoutKeyBias, prepare=CosineAttention(2)).requires_grad_(False)
    dot = Attention(8, 2).requires_grad_(False)
    for name, layer, low, high in (("Swin V2", cosine, 0.0, EXACT), ("dot product", dot, 0.05, 1.0)):
        nn.init.normal_(layer.qkv.weight[:8])
        before = weights_of(layer, x)
        layer.qkv.weight[:8] *= 10
        yield between(f"largest change of a weight with queries 10 times as long, {name}",
                      (weights_of(layer, x) - before).abs().max().item(), low, high)  # fmt: skip
    bias, window = ContinuousPositionBias(2, window=8, hidden=16).requires_grad_(False), 12
    whole = bias(8)[0].view(2, 8, 8, 8, 8)
    larger = bias(window)[0].view(2, window, window, window, window)[:, :8, :8, :8, :8]
    yield close("biases of a window of 12 × 12, against those of 8 × 8 at the same offsets", larger, whole, within=EXACT)
    logs = torch.tensor([sign * math.log2(1 + 8 * d / 7) / 3 for sign, d in ((1, 5), (-1, 3))])
    hidden = (bias.up.weight @ logs + bias.up.bias).relu()
    yield close("bias of a key 5 rows above and 3 columns to the right, against the formula", whole[:, 7, 2, 2, 5],
                16 * (bias.down.weight @ hidden).sigmoid(), within=EXACT)  # fmt: skip


@claim(82, "001", "MViT is a multiscale Vision Transformer.")
def mvit_pools_queries_and_keys() -> Iterator[Finding]:
    model = meta_model("mvit-v2-tiny")
    with torch.device("meta"), torch.no_grad(), watch(model) as found:
        model(torch.empty(1, 3, 224, 224))
    shapes = [tuple(w.shape[1:]) for [w] in found.values()]  # heads, queries, keys
    # Each stage halves the grid of the queries in its first block, whose keys come from the finer grid.
    expected = [(1, 3136, 196), (2, 784, 784), (2, 784, 196), (4, 196, 784), *[(4, 196, 196)] * 4, (8, 49, 196), (8, 49, 49)]
    yield equals("heads, queries and keys of the blocks of MViTv2-T", shapes, expected)
    small = MViT(MViTConfig(image=32, dim=8, depths=[1], stride=2, classes=10)).requires_grad_(False)
    with record_calls(small, "blocks.0.attn") as calls:
        small.encode(torch.randn(1, 3, 32, 32))
    attn, [call] = small.blocks[0].attn, calls
    assert call.x is not None
    q, k, v = (attn.qkv(call.x).view(1, 8, 8, 3, 8)[:, :, :, i].permute(0, 3, 1, 2) for i in range(3))  # (B, D, Y, X)
    for name, part, pool, used in (
        ("queries", q, attn.pool_q, call.q),
        ("keys", k, attn.pool_k, call.k),
        ("values", v, attn.pool_v, call.v),
    ):
        assert isinstance(pool, GridPool)
        [kernel], stride = pool.pool.parameters(), 1 if name == "queries" else 2
        pooled = F.conv2d(part, kernel, None, stride, 1, groups=8).flatten(2).transpose(1, 2)  # (B, T, D)
        yield close(f"{name}, against pooling by torch", used[:, 0], pool.norm(pooled), within=EXACT)


@claim(83, "001", "A matrix product is more hardware-friendly than a convolution.",
       condition="than a depthwise convolution; on a CPU, wide ones of 3 × 3 compute about as many FLOPs a second")  # fmt: skip
def matrix_products_run_faster_than_some_convolutions() -> Iterator[Finding]:
    tokens, grid, many = torch.randn(784, 256), channels_last(64), channels_last(256)
    linear, wide, depthwise = Linear(256, 256), ConvNorm(64, 64, 3).eval(), conv_pool(1, 0, 256)
    assert isinstance(depthwise, GridPool)
    flops = {"linear": 2 * 784 * 256**2, "wide": 2 * 784 * 9 * 64**2, "depthwise": 2 * 784 * 9 * 256}
    with torch.inference_mode():
        seconds = least_cpu_seconds({
            "linear": lambda: linear(tokens), "wide": lambda: wide.conv(grid), "depthwise": lambda: depthwise.pool(many),
        }, rounds=15)  # fmt: skip
    speed = {name: flops[name] / seconds[name] for name in flops}
    yield at_least("FLOPs in a CPU second, linear layer / depthwise 3 × 3 convolution", speed["linear"] / speed["depthwise"], 1.5)
    yield between("FLOPs in a CPU second, linear layer / wide 3 × 3 convolution", speed["linear"] / speed["wide"], 0.4, 2.5)


@claim(83, "001", "ViTs with the same FLOPs as CNNs can train and run much faster.", slow=True,
       condition="on other hardware, if at all: on one thread of a CPU, ViT-S/16 runs 0.7 to 2.2 times as fast as ResNet-50, "
       "depending on the vector instructions, and trains 0.6 to 1.3 times as fast")  # fmt: skip
def vit_is_about_as_fast_on_a_cpu_as_a_resnet_of_as_many_flops() -> Iterator[Finding]:
    names, x = ("vit-small", "resnet-50"), torch.randn(2, 3, 224, 224)
    models = {name: FAMILIES[family].build(config).eval() for name in names for family, config in [preset(name)]}
    flops = [image_cost(*preset(name)).whole.flops for name in names]
    with torch.inference_mode():
        vit, cnn = least_cpu_seconds({name: partial(model, x) for name, model in models.items()}, rounds=6).values()
    yield close("FLOPs for one image, ViT-S/16 / ResNet-50", flops[0] / flops[1], 1, within=0.2)
    yield between("images in a CPU second, ViT-S/16 / ResNet-50, 224 × 224 pixels, one thread", cnn / vit, 0.7, 2.2)
    vit, cnn = least_cpu_seconds(
        {name: partial(run_and_learn, model.train(), x) for name, model in models.items()}, rounds=3
    ).values()
    yield between("images in a CPU second in training, forward and backward", cnn / vit, 0.6, 1.3)


# Helpers


def changed_by_gate(model: nn.Module, gate: nn.Parameter, x: Tensor) -> float:
    """How much the logits change if the gate is opened."""
    with torch.no_grad():
        before = model(x)
        gate.fill_(0.5)
        return float((model(x) - before).abs().max())


def two_points(count: int) -> tuple[Tensor, Tensor]:
    """Images with a point at the left and one at the right, bright or dark; and whether they are alike: (B, 1, 12, 12), (B,)."""
    images, each, signs = torch.zeros(count, 1, 12, 12), torch.arange(count), 2.0 * torch.randint(2, (count, 2)) - 1
    for side in range(2):
        images[each, 0, torch.randint(12, (count,)), 8 * side + torch.randint(4, (count,))] = signs[:, side]
    return images, (signs[:, 0] == signs[:, 1]).long()


def local_relation_by_hand(layer: LocalRelation, x: Tensor) -> Tensor:
    """Local relation, one position and one channel at a time: section 3 of the paper."""
    v = torch.einsum("oc,bcyx->boyx", layer.value.weight[:, :, 0, 0], x)[0]  # (C, Y, X)
    weight, bias = layer.query_key.parameters()
    q, k = (torch.einsum("oc,cyx->oyx", weight[:, :, 0, 0], v) + bias[:, None, None]).chunk(2)
    (channels, rows, columns), reach, prior = v.shape, layer.kernel // 2, layer.prior()
    out, each = torch.zeros_like(v), (channels + layer.padding) // layer.heads
    offsets = list(itertools.product(range(-reach, reach + 1), repeat=2))
    for y, z, c in itertools.product(range(0, rows, layer.stride), range(0, columns, layer.stride), range(channels)):
        head = c // each
        inside = [(i, y + down, z + right) for i, (down, right) in enumerate(offsets)
                  if 0 <= y + down < rows and 0 <= z + right < columns]  # fmt: skip
        scores = torch.stack([prior[head, i] - (q[head, y, z] - k[head, s, t]) ** 2 for i, s, t in inside])
        out[c, y, z] = scores.softmax(0) @ torch.stack([v[c, s, t] for _, s, t in inside])
    return out[None, :, :: layer.stride, :: layer.stride]


def channels_last(channels: int) -> Tensor:
    """A random grid of 28 × 28 in the layout that convolutions are fastest in: (1, C, 28, 28)."""
    return torch.randn(1, channels, 28, 28).contiguous(memory_format=torch.channels_last)


def operations(run: Callable[[], object]) -> int:
    """How many of torch's operations something takes."""

    class Counter(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.count += 1
            return func(*args, **(kwargs or {}))

    with Counter() as counter:
        run()
    return counter.count


def stage_shapes(name: str) -> list[tuple[int, int, int]]:
    """Rows, columns and channels after each stage of a preset with one block in each, on images of 224 × 224."""
    model, found = meta_model(name, depths=[1, 1, 1, 1]), dict[tuple[int, int, int], None]()
    parts = model.get_submodule("blocks" if isinstance(model, MViT) else "stages").children()

    def note(module: nn.Module, args: object, x: Tensor) -> None:
        if x.ndim == 3:  # tokens of a square grid
            x = x.unflatten(1, (math.isqrt(x.shape[1]), -1))
        rows, columns, channels = x.shape[1:] if isinstance(model, MViT | Swin) else (*x.shape[2:], x.shape[1])
        found[rows, columns, channels] = None

    for part in parts:
        part.register_forward_hook(note)
    with torch.device("meta"), torch.no_grad():
        model(torch.empty(1, 3, 224, 224))
    return list(found)


def block_shapes(name: str) -> list[tuple[int, int]]:
    """Tokens and channels after each block of a preset."""
    model, found = meta_model(name), list[tuple[int, int]]()
    for block in model.get_submodule("blocks").children():
        block.register_forward_hook(lambda module, args, x: found.append((x.shape[1], x.shape[2])))
    with torch.device("meta"), torch.no_grad():
        model(torch.empty(1, 3, 224, 224))
    return found


def pixel_cost(side: int) -> ImageCost:
    """The cost of one layer of 16 heads on pixels; its width has no effect on the attention matrices."""
    return image_cost("image-gpt", ImageGPTConfig(image=side, dim=64, depth=1, heads=16))


def stripes(count: int) -> Tensor:
    """Pixels of images of 8 × 8 whose rows are black or white: (B, 64)."""
    return torch.randint(2, (count, 8, 1)).expand(-1, -1, 8).flatten(1)


def pixel_loss(model: ImageGPT, pixels: Tensor) -> Tensor:
    """Cross-entropy of each pixel, given those before it."""
    tokens = F.pad(pixels, (1, -1), value=model.config.colours)  # a start token, then all pixels but the last
    return F.cross_entropy(model(tokens).flatten(0, 1), pixels.flatten())


def swin_block(window: int, shift: int) -> Block:
    """A block of Swin with 8 channels and 2 heads, and biases that are large enough to see."""
    block = Block(Attention(8, 2), RelativePositionBias(2, window), MLP(8, 16), partial(PreNorm, 8, 0.0), window, shift,
                  keep_window)  # fmt: skip
    for table in block.bias.parameters():
        nn.init.normal_(table)
    return block


def offset_bias(block: Block, rows: int, columns: int) -> Tensor:
    """The bias between all positions of a window that is smaller than the block's, from its table: (1, H, Q, K)."""
    side, places = 2 * block.window - 1, list(itertools.product(range(rows), range(columns)))
    assert isinstance(block.bias, RelativePositionBias)
    table = block.bias.table.unflatten(0, (side, side))
    middle = block.window - 1
    by_query = [torch.stack([table[y - s + middle, z - t + middle] for s, t in places]) for y, z in places]
    return torch.stack(by_query).permute(2, 0, 1)[None]


def weights_of(layer: Attention, x: Tensor) -> Tensor:
    """The attention weights: (B, H, Q, K)."""
    with watch(layer) as found:
        layer(x)
    [weights] = found[""]
    return weights
