"""The Vision Transformer: patches, sizes, cost, and five drawbacks.

Shapes: B batch, C channels, P side of a patch, Y X rows and columns, N = Y · X patches, D width.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.image.batches import stratified_fraction, to_model_input
from regard.data.image.config import ImageData
from regard.data.image.folders import named_source
from regard.layers.attention import Attention
from regard.layers.conv import ConvNorm
from regard.layers.shapes import to_grid, to_patches
from regard.layers.tap import watch, without_positions
from regard.models import FAMILIES, preset
from regard.models.image_gpt import ImageGPTConfig
from regard.models.resnet import ResNet, ResNetConfig
from regard.models.vit import ViT, ViTConfig
from regard.verify.claim import Finding, at_least, at_most, between, claim, close, equals, not_checkable, refutes
from regard.verify.measures import Points, count_flops, depends_on, exponent, least_cpu_seconds
from regard.verify.plots import Curves
from regard.view.cost import ImageCost, changed, image_cost

__all__: list[str] = []

EXACT = 1e-4  # of float32 numbers after a few layers


# From an image to tokens


@claim(69, "000 001", "48 × 48 pixels are 9 patches of 16 × 16, 224 × 224 are 14 · 14 = 196; each is flattened to 16 · 16 · 3 "
       "= 768 numbers, and the overall size does not change.")  # fmt: skip
def an_image_is_cut_into_patches() -> Iterator[Finding]:
    for side, count in ((48, 9), (224, 196)):
        shape = tuple(to_patches(torch.randn(1, 3, side, side), 16).shape[1:])
        yield equals(f"patches of {side} × {side} pixels, and numbers in each", shape, (count, 768))
    image = torch.randn(2, 3, 48, 32)
    patches = to_patches(image, 16)
    yield equals("numbers in the patches of one image / numbers in the image", patches.numel() / image.numel(), 1)
    yield close("patches, against torch's unfold", patches, F.unfold(image, 16, stride=16).transpose(1, 2))
    yield close("the image that the patches are put together to", F.fold(patches.transpose(1, 2), (48, 32), 16, stride=16), image)


@claim(69, "000", "Patches are flattened, multiplied by E of shape (P² · C × d), a class token is prepended, and position "
       "embeddings are added, which are learned.")  # fmt: skip
def vit_makes_tokens_in_five_steps() -> Iterator[Finding]:
    config = ViTConfig(image=48, dim=32, depth=1, heads=4, classes=10)
    model, image, inputs = ViT(config), torch.randn(2, 3, 48, 48), list[Tensor]()
    assert model.token is not None
    nn.init.normal_(model.token)  # it starts at 0
    model.blocks[0].register_forward_pre_hook(lambda module, args: inputs.append(args[0].detach()))
    model.encode(image).square().sum().backward()
    yield equals("shape of E", tuple(model.embed.weight.T.shape), (16 * 16 * 3, 32))
    patches = [image[:, :, y : y + 16, x : x + 16].flatten(1) for y in range(0, 48, 16) for x in range(0, 48, 16)]
    embedded = [model.token[:, 0].expand(2, -1)] + [patch @ model.embed.weight.T + model.embed.bias for patch in patches]
    expected = torch.stack(embedded, 1) + model.positions.table
    yield close("input of the first block, against the five steps", inputs[0], expected.detach(), within=EXACT)
    for name, grad, count in (("positions", model.positions.table.grad, 10), ("class tokens", model.token.grad, 1)):
        assert grad is not None
        yield equals(f"{name} that training changes", int((grad.flatten(0, -2).abs().sum(-1) > 0).sum()), count)


@claim(69, "000 001", "ViT is a Transformer on patches, exactly the same as that of NLP.")
def vit_is_a_transformer_encoder() -> Iterator[Finding]:
    [block] = ViT(ViTConfig(image=32, dim=32, depth=1, heads=4, classes=10, eps=1e-5)).double().blocks
    layer = nn.TransformerEncoderLayer(32, 4, 128, 0.0, F.gelu, batch_first=True, norm_first=True).double()
    names = {"self_attn.in_proj_": "attn.qkv.", "self_attn.out_proj.": "attn.out.", "linear1.": "mlp.up.",
             "linear2.": "mlp.down.", "norm1.": "attn_residual.norm.", "norm2.": "mlp_residual.norm."}  # fmt: skip
    weights, x = block.state_dict(), torch.randn(2, 5, 32).double()
    layer.load_state_dict({to + kind: weights[ours + kind] for to, ours in names.items() for kind in ("weight", "bias")})
    yield close("a block, against torch's TransformerEncoderLayer with its weights", block(x), layer(x), within=1e-9)
    d, mlp, found = 768, 4 * 768, count_weights(meta_model("vit-base"))
    each = 4 * d * d + 4 * d + 2 * d * mlp + mlp + d + 4 * d  # attention, mlp, two norms
    outside = (768 + 1) * d + d + 197 * d + 2 * d + (d + 1) * 1000  # E, class token, positions, norm, classifier
    yield equals("weights of ViT-B/16 for 1,000 classes, against the formula", found, 12 * each + outside)
    yield equals("the same, as published", found, 86_567_656)


@claim(69, "000", "Each patch attends to every other patch, so long-range dependencies are seen.")
def each_patch_sees_all_patches_after_one_layer() -> Iterator[Finding]:
    vit, conv = ViT(ViTConfig(image=56, patch=8, dim=16, depth=1, heads=2, pool="mean", classes=10)), ConvNorm(3, 4, 3).eval()
    yield equals("patches that the first patch depends on after one layer of ViT, of 49",
                 locations_seen(lambda x: vit.encode(x)[0, 0], torch.randn(1, 3, 56, 56)), 49)  # fmt: skip
    yield equals("positions that a position depends on after a convolution of 3 × 3, of 49",
                 locations_seen(lambda x: conv(x)[0, :, 3, 3], torch.randn(1, 3, 7, 7)), 9)  # fmt: skip


@claim(70, "000", "Self-attention of N tokens of width d has the complexity O(N² d).",
       condition="for the scores and weighted sums; the four projections cost O(N d²), more as long as N < 2 d")  # fmt: skip
def attention_costs_n_squared_d() -> Iterator[Finding]:
    lengths, widths = (196, 784, 3136), (192, 384, 768)
    by_length = {n: attention_flops(n, 768) for n in lengths}
    by_width = {d: attention_flops(196, d) for d in widths}
    yield close("exponent of N, scores and sums", exponent([(n, pairs) for n, (pairs, _) in by_length.items()]), 2, within=0.05)
    yield close("exponent of d, scores and sums", exponent([(d, pairs) for d, (pairs, _) in by_width.items()]), 1, within=0.05)
    yield close("exponent of N, projections", exponent([(n, rest) for n, (_, rest) in by_length.items()]), 1, within=0.05)
    yield close("exponent of d, projections", exponent([(d, rest) for d, (_, rest) in by_width.items()]), 2, within=0.05)
    pairs, rest = by_length[196]
    yield at_most("scores and sums / projections, N = 196, d = 768", pairs / rest, 0.2)
    pairs, rest = attention_flops(2 * 768, 768)
    yield close("the same, N = 2 d", pairs / rest, 1, within=0.01)
    yield Curves("FLOPs of one layer of attention, d = 768", "patches N", "FLOPs",
                 {"scores and sums": [(n, pairs) for n, (pairs, _) in by_length.items()],
                  "projections": [(n, rest) for n, (_, rest) in by_length.items()]}, True, True)  # fmt: skip


# The five drawbacks


@claim(71, "000", "Drawback 1: the cost is quadratic in the number of patches, so high resolutions are expensive.")
def cost_is_quadratic_in_the_number_of_patches() -> Iterator[Finding]:
    vit, cnn, sides = dict[int, ImageCost](), dict[int, ImageCost](), (224, 448, 896, 1792)
    for side in sides:
        vit[side] = changed_cost("vit-base", image=side, pool="mean", depth=1)
        cnn[side] = changed_cost("resnet-50", image=side, depths=[1, 1, 1, 1])
    entries = [(cost.tokens, cost.entries) for cost in vit.values()]
    yield close("exponent of the scores, over the number of patches", exponent(entries), 2, within=0.01)
    for name, costs, low, high in (("a block of ViT-B/16", vit, 200, 400), ("a CNN of ResNet-50's layers", cnn, 62, 66)):
        growth = costs[1792].whole.flops / costs[224].whole.flops
        yield at_least(f"FLOPs at 1,792 pixels / at 224, {name} (pixels: 64)", growth, low)
        yield at_most(f"the same, {name}, at most", growth, high)
    yield Curves("FLOPs for each pixel", "side of the image in pixels", "FLOPs / pixel, over those at 224 pixels", {
        name: [(side, costs[side].whole.flops / side**2 / (costs[224].whole.flops / 224**2)) for side in sides]
        for name, costs in (("ViT", vit), ("ResNet", cnn))
    }, log_x=True)  # fmt: skip


@claim(71, "000", "Drawback 2: ViT lacks the inductive biases of CNNs: locality and translation equivariance.")
def vit_has_neither_locality_nor_translation_equivariance() -> Iterator[Finding]:
    vit = ViT(ViTConfig(image=64, patch=8, dim=32, depth=2, heads=4, pool="mean", classes=10)).eval()
    cnn = ResNet(ResNetConfig(image=64, stem="cifar", dim=8, dims=[8, 16], depths=[1, 1], block="basic", classes=10)).eval()
    first, image = nn.Sequential(cnn.stem, cnn.stages[0]), torch.randn(1, 3, 64, 64)
    yield equals("locality: of 8 × 8 locations, those that the middle of a CNN's first stage depends on",
                 locations_seen(lambda x: first(x)[0, :, 36, 36], image, 8), 1)  # fmt: skip
    yield equals("the same for the first layer of a ViT",
                 locations_seen(lambda x: vit.blocks[0](vit.embed(vit.patches(x)))[0, 36], image, 8), 64)  # fmt: skip
    image, tokens = F.pad(torch.randn(1, 3, 16, 16), (24, 24, 24, 24)), partial(grid_features, vit)  # on an empty ground
    yield at_most("translation: features of a CNN of an image moved by 8 pixels, against the moved features: difference",
                  moved_difference(cnn.encode, image, 8, stride=2), EXACT)  # fmt: skip
    yield at_least("the same for ViT", moved_difference(tokens, image, 8, stride=8), 0.1)
    with without_positions(vit):
        yield at_most("the same for ViT without position embeddings", moved_difference(tokens, image, 8, stride=8), EXACT)


@claim(71, "000", "Drawback 3: training ViT is slow, because it has many parameters and no pooling.",
       condition="for ViT-B/16 beside ResNet-50, by its parameters and FLOPs; ViT-S/16 has fewer parameters, and about as many "
       "FLOPs")  # fmt: skip
def vit_base_has_more_parameters_and_flops_than_resnet_50() -> Iterator[Finding]:
    costs = {name: image_cost(*preset(name)) for name in ("vit-base", "vit-small", "resnet-50")}
    ratio = {field: {name: getattr(costs[name].whole, field) / getattr(costs["resnet-50"].whole, field) for name in costs}
             for field in ("parameters", "flops")}  # fmt: skip
    yield at_least("parameters of ViT-B/16 / ResNet-50", ratio["parameters"]["vit-base"], 3)
    yield at_least("FLOPs for one image, ViT-B/16 / ResNet-50", ratio["flops"]["vit-base"], 4)
    yield at_most("parameters of ViT-S/16 / ResNet-50", ratio["parameters"]["vit-small"], 1)
    yield at_most("FLOPs for one image, ViT-S/16 / ResNet-50", ratio["flops"]["vit-small"], 1.2)


@claim(71, "000", "Drawback 4: ViT is sensitive to the size of its patches.")
def patch_size_decides_the_cost() -> Iterator[Finding]:
    costs = {patch: changed_cost("vit-base", patch=patch, pool="mean", depth=1) for patch in (32, 16, 8)}
    yield equals("tokens for patches of 32, 16 and 8 pixels", [costs[patch].tokens for patch in costs], [49, 196, 784])
    for patch in (16, 8):
        more = costs[patch].entries / costs[2 * patch].entries
        yield equals(f"scores for patches of {patch} pixels / of {2 * patch}", more, 16)
    yield at_least("FLOPs of a block, for patches of 8 pixels / of 32", costs[8].whole.flops / costs[32].whole.flops, 10)


@claim(71, "000", "Drawback 5: unlike a CNN, ViT has no spatial inductive bias.")
def vit_does_not_know_which_patches_are_neighbours() -> Iterator[Finding]:
    vit = ViT(ViTConfig(image=64, patch=8, dim=32, depth=2, heads=4, pool="mean", classes=10)).eval().requires_grad_(False)
    cnn = ResNet(ResNetConfig(image=64, stem="cifar", dim=8, dims=[8, 16], depths=[1, 1], block="basic", classes=10)).eval()
    nn.init.normal_(vit.classifier.weight)  # which starts at 0
    image, order = torch.randn(1, 3, 64, 64), torch.randperm(64)
    shuffled = F.fold(to_patches(image, 8)[:, order].transpose(1, 2), (64, 64), 8, stride=8)
    before, after = vit(image), vit(shuffled)
    yield at_least("change of ViT's logits when the patches are shuffled", (after - before).abs().max().item(), 0.01)
    vit.positions.table.copy_(vit.positions.table[order])
    yield close("logits with shuffled patches and position embeddings, against those before", vit(shuffled), before, within=EXACT)
    vit.positions.table.zero_()
    yield close("logits without position embeddings, shuffled against unshuffled", vit(shuffled), vit(image), within=EXACT)
    features, expected = (to_patches(cnn.encode(x), 4)[0] for x in (shuffled, image))  # stride 2, so patches of 4
    change = ((features - expected[order]).abs().max() / expected.std()).item()
    yield at_least("features of a CNN, which has no position embeddings, of shuffled patches, against shuffled features: largest "
                   "difference, over their deviation", change, 0.5)  # fmt: skip


# The drawbacks in training: a ViT and a CNN of about as many weights, on digits of 14 × 14 pixels

VIT = ViTConfig(image=14, patch=2, channels=1, dim=48, depth=2, heads=4, mlp_ratio=2, pool="mean", classes=10)
CNN = ResNetConfig(image=14, channels=1, stem="cifar", dim=12, dims=[12, 24, 48], depths=[1, 1, 1], block="basic", classes=10)


@claim(71, "000", "Drawback 2: ViT needs large amounts of training data; a CNN generalizes better from little.", slow=True,
       data=("mnist",))  # fmt: skip
def vit_is_data_hungry() -> Iterator[Finding]:
    test = digits("test")
    sizes = {"ViT": (300, 11_000), "CNN": (300, 1000)}
    lines: dict[str, Points] = {"ViT": [], "CNN": []}
    for name, counts in sizes.items():
        for count in counts:
            model = ViT(VIT) if name == "ViT" else ResNet(CNN)
            lines[name].append((count, learn(model, digits("train", count), test, 400)[-1][1]))
    (_, vit_few), (_, vit_many) = lines["ViT"]
    (_, cnn_few), (_, cnn_more) = lines["CNN"]
    yield at_least("accuracy of the CNN - of ViT, 300 training images, 400 steps", cnn_few - vit_few, 0.03)
    yield at_least("gain of ViT with 11,000 images", vit_many - vit_few, 0.05)
    yield at_least("accuracy of the CNN with 1,000 images - of ViT with 11,000", cnn_more - vit_many, 0.0)
    yield Curves("Digits after 400 steps", "training images", "accuracy on test", lines, log_x=True)


@claim(71, "000", "Drawback 3: training ViT takes longer than training a CNN.", slow=True, data=("mnist",))
def vit_learns_slower_than_a_cnn() -> Iterator[Finding]:
    train, test = digits("train"), digits("test")
    models: dict[str, nn.Module] = {"ViT": ViT(VIT), "CNN": ResNet(CNN)}
    yield close("weights of the ViT / of the CNN", count_weights(models["ViT"]) / count_weights(models["CNN"]), 1, within=0.2)
    x = train.images[:32]
    seconds = least_cpu_seconds({name: partial(run_and_learn, model, x) for name, model in models.items()}, rounds=10)
    lines = {name: learn(model, train, test, 400, every=20) for name, model in models.items()}
    steps = {name: next((step for step, accuracy in line if accuracy >= 0.85), 10_000) for name, line in lines.items()}
    yield at_least("CPU seconds of a forward and backward pass, ViT / CNN", seconds["ViT"] / seconds["CNN"], 1.2)
    yield at_least("steps to an accuracy of 85 %, ViT / CNN", steps["ViT"] / steps["CNN"], 1.4)
    yield between("CPU seconds to that accuracy, steps times seconds, ViT / CNN",
                  steps["ViT"] * seconds["ViT"] / (steps["CNN"] * seconds["CNN"]), 2, 20)  # fmt: skip
    yield Curves("Learning digits", "CPU seconds of training", "accuracy on test",
                 {name: [(step * seconds[name], right) for step, right in line] for name, line in lines.items()})  # fmt: skip


@claim(71, "000", "Drawback 4: an inappropriate patch size hurts the performance of ViT.", slow=True,
       condition="where fine detail matters: two neighbouring pixels, side by side or one above the other, are classified "
       "correctly with patches of 2 pixels, and not with patches of 7")  # fmt: skip
def vit_is_sensitive_to_the_patch_size() -> Iterator[Finding]:
    train, test = dominoes(5000), dominoes(1000)
    lines = {f"patches of {patch} × {patch} pixels": learn(ViT(replace(VIT, patch=patch, classes=2)), train, test, 400, every=50)
             for patch in (2, 7)}  # fmt: skip
    fine, coarse = (line[-1][1] for line in lines.values())
    yield at_least("accuracy with patches of 2 pixels: are two neighbouring pixels side by side? (chance: 0.5)", fine, 0.9)
    yield at_least("accuracy with patches of 2 pixels - of 7 pixels", fine - coarse, 0.1)
    yield Curves("Side by side, or one above the other?", "training step", "accuracy on test", lines)


@claim(71, "000", "Drawback 5: ViT does not capture local features by itself, so it is less effective where fine spatial detail "
       "matters.", slow=True)  # fmt: skip
def vit_learns_local_features_slowly() -> Iterator[Finding]:
    train, test = dominoes(5000), dominoes(1000)
    models = {"ViT": ViT(replace(VIT, classes=2)), "CNN": ResNet(replace(CNN, classes=2))}
    lines = {name: learn(model, train, test, 150, every=25) for name, model in models.items()}
    yield at_least("accuracy of the CNN after 150 steps: are two neighbouring pixels side by side?", lines["CNN"][-1][1], 0.95)
    yield at_most("accuracy of ViT (chance: 0.5)", lines["ViT"][-1][1], 0.8)
    yield Curves("Side by side, or one above the other?", "training step", "accuracy on test", lines)


# ViT against ResNet


not_checkable(77, "001", "Inductive bias is not a well-defined concept that we can measure.",
              name="inductive_bias_is_not_well_defined", chapter=__name__,
              why="a remark on a concept; two parts of it, locality and translation equivariance, are measured for claim "
              "71")  # fmt: skip


@claim(77, "001", "Trained on ImageNet, ViT is worse than ResNet; pre-trained on more data, it gets as good.", slow=True,
       data=("mnist",),
       condition="in small, and not to the end: pre-training on 10,700 other digits narrows the gap; that ViT overtakes ResNet "
       "needs more data and larger models than fit here")  # fmt: skip
def pre_training_narrows_the_gap_between_vit_and_resnet() -> Iterator[Finding]:
    few, many, test = digits("train", 300), digits("train", -300), digits("test")
    yield equals(
        "images for pre-training, and of these: images for fine-tuning",
        (len(many.labels), int((torch.cdist(few.images.flatten(1), many.images.flatten(1)) == 0).sum())),
        (10_700, 0),
    )
    gaps = dict[str, float]()
    for start in ("from scratch", "pre-trained"):
        accuracy = dict[str, float]()
        for name, model in (("ViT", ViT(VIT)), ("CNN", ResNet(CNN))):
            if start == "pre-trained":
                learn(model, many, test, 700, lr=3e-3)
            accuracy[name] = learn(model, few, test, 150, lr=1e-3 if start == "from scratch" else 2e-4)[-1][1]
        gaps[start] = accuracy["CNN"] - accuracy["ViT"]
    yield at_least("accuracy of the CNN - of ViT, trained on 300 digits", gaps["from scratch"], 0.08)
    yield at_most("the same after pre-training on 10,700 others", gaps["pre-trained"], 0.08)
    yield at_most("gap after pre-training / gap from scratch", gaps["pre-trained"] / gaps["from scratch"], 0.65)


not_checkable(77, "001", "Pre-trained on JFT-300M and fine-tuned on ImageNet, large ViTs outperform large ResNets.",
              name="large_vits_outperform_large_resnets_after_jft", chapter=__name__,
              why="JFT-300M, 300 million labelled images, is not public; the training took thousands of TPU days")  # fmt: skip


# Sizes of attention matrices


@claim(76, "001", "With patches of 16 (or 14) pixels an attention matrix has 14⁴ = 38,416 (or 65,536) entries, 150 KB (or 256 "
       "KB); 48 layers of 16 heads have 112 MB (or 192 MB).",
       condition="if a score is a float32, KB and MB are KiB and MiB, and the class token is not counted")  # fmt: skip
def attention_matrices_of_patches_are_small() -> Iterator[Finding]:
    for patch, entries, kib, mib, with_token in ((16, 38_416, 150, 112.5, 113.7), (14, 65_536, 256, 192, 193.5)):
        found, token = vit_layer(patch, "mean"), vit_layer(patch, "token")
        yield equals(f"entries of an attention matrix, patches of {patch} pixels", found.entries, entries)
        yield close("its size in KiB", found.entry_bytes / 2**10, kib, within=0.1)
        yield close("all of 48 layers and 16 heads, MiB", 48 * found.whole.score_bytes / 2**20, mib, within=0.1)
        yield close("the same with a class token, MiB", 48 * token.whole.score_bytes / 2**20, with_token, within=0.1)


@claim("c14", "001", "Attention matrices take 768 GB on pixels, and 150 KB each and 112 MB or 192 MB together on patches.",
       right="these are GiB, KiB and MiB; in decimal units they are 824.6 GB, 153.7 KB, 118.0 MB and 201.3 MB")  # fmt: skip
def attention_sizes_are_in_powers_of_1024() -> Iterator[Finding]:
    pixels = 48 * image_cost("image-gpt", ImageGPTConfig(image=128, dim=64, depth=1, heads=16)).whole.score_bytes
    sixteen, fourteen = vit_layer(16, "mean"), vit_layer(14, "mean")
    for what, size, unit, says, decimal, power in (
        ("pixels, 48 layers, 16 heads", pixels, "G", 768, 824.6, 3),
        ("one matrix, patches of 16", sixteen.entry_bytes, "K", 150, 153.7, 1),
        ("48 layers of 16 heads, patches of 16", 48 * sixteen.whole.score_bytes, "M", 112, 118.0, 2),
        ("48 layers of 16 heads, patches of 14", 48 * fourteen.whole.score_bytes, "M", 192, 201.3, 2),
    ):
        yield refutes(f"{what}: {unit}B", size / 1000**power, says, by=1)
        yield close(f"{what}: {unit}B, 10^{3 * power} bytes", size / 1000**power, decimal, within=0.1)
        yield close(f"{what}: {unit}iB, 2^{10 * power} bytes", size / 1024**power, says, within=0.6)


# Helpers


class Labelled(NamedTuple):
    """Images and their classes."""

    images: Tensor  # (B, C, Y, X)
    labels: Tensor  # (B,)


def labelled(name: str, split: str, count: int = 0) -> Labelled:
    """Grey images of a data set at half their size, all, or `count` with as many of each class; if negative, all but these."""
    source = named_source(name, split, channels=1)
    rows = stratified_fraction(source.labels, abs(count) / len(source.labels) if count else 1)
    if count < 0:
        rows = np.delete(np.arange(len(source.labels)), rows)
    images = to_model_input(np.stack(list(source.images()))[rows], 28, ImageData())
    return Labelled(F.avg_pool2d(images, 2), torch.from_numpy(source.labels[rows]))


digits = partial(labelled, "mnist")


def dominoes(count: int) -> Labelled:
    """Images with two neighbouring pixels anywhere, side by side (0) or one above the other (1)."""
    images, each, upright = torch.zeros(count, 1, 14, 14), torch.arange(count), torch.randint(2, (count,))
    y, x = torch.randint(13, (2, count))
    images[each, 0, y, x] = images[each, 0, y + upright, x + 1 - upright] = 1.0
    return Labelled(images, upright)


def learn(model: nn.Module, train: Labelled, test: Labelled, steps: int, every: int = 0, lr: float = 2e-3) -> Points:
    """Train on random batches of 32 images: → (step, accuracy on test), at the end or also every few steps."""
    optimizer, found = torch.optim.AdamW(model.parameters(), lr, weight_decay=0.05), Points()
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.15)
    for step in range(1, steps + 1):
        rows = torch.randint(len(train.labels), (32,))
        loss = F.cross_entropy(model(train.images[rows]), train.labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step == steps or (every and step % every == 0):
            found.append((step, accuracy_of(model, test)))
    return found


def run_and_learn(model: nn.Module, x: Tensor) -> None:
    """A forward and a backward pass."""
    model(x).square().sum().backward()


@torch.no_grad()
def accuracy_of(model: nn.Module, data: Labelled) -> float:
    """The fraction of images whose class the model names."""
    training = model.training
    model.eval()
    right = [(model(x).argmax(-1) == y).float() for x, y in zip(data.images.split(500), data.labels.split(500), strict=True)]
    model.train(training)
    return torch.cat(right).mean().item()


def count_weights(model: nn.Module) -> int:
    """The number of weights."""
    return sum(p.numel() for p in model.parameters())


@torch.no_grad()
def moved_difference(encode: Callable[[Tensor], Tensor], image: Tensor, pixels: int, stride: int) -> float:
    """How much the features of a moved image differ from the moved features, over their standard deviation."""
    features, steps = encode(image), (pixels // stride, pixels // stride)
    found = encode(image.roll((pixels, pixels), (2, 3)))
    return float((found - features.roll(steps, (2, 3))).abs().max() / features.std())


def locations_seen(feature: Callable[[Tensor], Tensor], image: Tensor, side: int = 7) -> int:
    """How many locations of an image, on a grid of so many rows and columns, a feature depends on."""
    image.requires_grad_()
    seen = depends_on(feature(image), image).any(1).float()
    return int((F.avg_pool2d(seen, image.shape[-1] // side) > 0).sum())


def grid_features(model: ViT, image: Tensor) -> Tensor:
    """What ViT computes for each patch: (B, D, Y, X)."""
    return to_grid(model.encode(image), image.shape[2] // model.config.patch)


def attention_flops(n: int, d: int) -> tuple[int, int]:
    """FLOPs of the scores and weighted sums of a layer of attention, and of its projections."""
    with torch.device("meta"), torch.no_grad():
        layer, x = Attention(d, heads=12), torch.empty(1, n, d)
        with watch(layer):  # so that scores are a product of their own
            return count_flops(lambda: layer(x), "bmm"), count_flops(lambda: layer(x), "addmm")


def meta_model(name: str, **values: object) -> nn.Module:
    """A preset with some keys changed, without memory for its weights."""
    family, config = preset(name)
    with torch.device("meta"):
        return FAMILIES[family].build(changed(name, family, config, values))


def changed_cost(name: str, **values: object) -> ImageCost:
    """The cost of a preset with some keys changed."""
    family, config = preset(name)
    return image_cost(family, changed(name, family, config, values))


def vit_layer(patch: int, pool: str) -> ImageCost:
    """The cost of one layer of the notes' ViT with 16 heads, whose width has no effect on the attention matrices."""
    return changed_cost("vit-base", patch=patch, dim=64, depth=1, heads=16, pool=pool)
