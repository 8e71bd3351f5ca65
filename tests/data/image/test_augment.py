"""Augmentations equal PIL's operations or a plain loop, and change only the images they are meant for."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from regard.data.image.augment import (
    ENHANCE,
    GEOMETRIC,
    GREY,
    PHOTOMETRIC,
    ROTATE,
    SHEAR,
    TRANSLATE,
    apply_operations,
    augment,
    crop,
    erase,
    flip,
    mixup,
)

NAMES = ("nothing", *GEOMETRIC, *PHOTOMETRIC)
AMOUNTS = (-1.0, -0.5, -0.1, 0.0, 0.3, 1.0)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def photos(count=6, channels=3, side=24, seed=0):
    """Smooth images with some noise, and one of one colour: (B, C, Y, X)."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (count, 4, 4, channels), dtype=np.uint8)
    grown = [Image.fromarray(one.squeeze()).resize((side, side), Image.Resampling.BICUBIC) for one in small]
    smooth = np.stack([np.asarray(one).reshape(side, side, channels) for one in grown]).astype(int)
    noisy = np.clip(smooth + rng.integers(-9, 10, smooth.shape), 0, 255).astype(np.uint8)
    noisy[-1] = 77
    return torch.from_numpy(noisy).permute(0, 3, 1, 2).contiguous()


def to_pil(x):
    return Image.fromarray(x.permute(1, 2, 0).numpy().squeeze())


def from_pil(image):
    return torch.from_numpy(np.array(image).reshape(image.height, image.width, -1)).permute(2, 0, 1)


def changed(x, name, amount):
    return apply_operations(x, torch.full((len(x),), NAMES.index(name)), torch.full((len(x),), float(amount)))


def apart(ours, theirs):
    """The largest difference of two images."""
    return (ours.int() - theirs.int()).abs().max().item()


BY_PIL = {
    "brightness": lambda image, m: ImageEnhance.Brightness(image).enhance(1 + ENHANCE * m),
    "contrast": lambda image, m: ImageEnhance.Contrast(image).enhance(1 + ENHANCE * m),
    "colour": lambda image, m: ImageEnhance.Color(image).enhance(1 + ENHANCE * m),
    "sharpness": lambda image, m: ImageEnhance.Sharpness(image).enhance(1 + ENHANCE * m),
    "posterize": lambda image, m: ImageOps.posterize(image, 8 - round(abs(m) * 4)),
    "solarize": lambda image, m: ImageOps.solarize(image, 256 * (1 - abs(m))),
    "autocontrast": lambda image, m: ImageOps.autocontrast(image),
    "equalize": lambda image, m: ImageOps.equalize(image),
}
EXACT = ("posterize", "solarize", "equalize")


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", PHOTOMETRIC)
def test_a_photometric_operation_equals_that_of_pil(name, channels):
    x = photos(channels=channels)
    for amount in AMOUNTS:
        for one, ours in zip(x, changed(x, name, amount), strict=True):
            theirs = from_pil(BY_PIL[name](to_pil(one), amount))
            most = 0 if name in EXACT else 1  # PIL cuts off where we round
            assert apart(ours, theirs) <= most, (name, amount)


def matrix_of(name, m, side):
    """PIL's six numbers: from where the pixel at (x, y) comes, both counted from the corner."""
    a, b, c, d = 1.0, 0.0, 0.0, 1.0
    right = down = 0.0
    angle = np.radians(ROTATE * m)
    if name == "rotate":
        a, b, c, d = np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)
    elif name == "shear x":
        b = SHEAR * m
    elif name == "shear y":
        c = SHEAR * m
    elif name == "translate x":
        right = round(TRANSLATE * m * side)
    else:
        down = round(TRANSLATE * m * side)
    half = side / 2
    return a, b, right + half - a * half - b * half, c, d, down + half - c * half - d * half


@pytest.mark.parametrize("name", GEOMETRIC)
def test_a_geometric_operation_equals_that_of_pil_except_at_the_edge(name):
    x = photos()
    side = x.shape[-1]
    for amount in AMOUNTS:
        numbers = matrix_of(name, amount, side)
        inside = Image.new("L", (side, side), 255).transform(
            (side, side), Image.Transform.AFFINE, numbers, Image.Resampling.BILINEAR
        )
        ring = np.pad(np.asarray(inside) == 255, 1)
        windows = np.lib.stride_tricks.sliding_window_view(ring, (3, 3))
        inner = torch.from_numpy(windows.all((2, 3)))  # pixels that the edge has no part in
        for one, ours in zip(x, changed(x, name, amount), strict=True):
            theirs = from_pil(to_pil(one).transform((side, side), Image.Transform.AFFINE, numbers, Image.Resampling.BILINEAR))
            assert inner.sum() > side * side / 3
            assert apart(ours[:, inner], theirs[:, inner]) <= 1, (name, amount)


def test_a_translation_is_by_whole_pixels_and_leaves_grey():
    x = photos(side=20)
    for name, dim in (("translate x", -1), ("translate y", -2)):
        for amount, pixels in ((1.0, 9), (-1.0, -9), (0.5, 4)):  # 0.45 of 20, and half of it, rounded to even
            ours = changed(x, name, amount)
            wanted = torch.full_like(x, GREY)
            kept = 20 - abs(pixels)
            wanted.narrow(dim, max(-pixels, 0), kept).copy_(x.narrow(dim, max(pixels, 0), kept))
            assert torch.equal(ours, wanted)


def test_rotating_left_mirrors_rotating_right():
    x = photos()
    left, right = changed(x, "rotate", -0.7), changed(x.flip(-1), "rotate", 0.7).flip(-1)
    assert apart(left, right) <= 1
    assert not torch.equal(left, changed(x, "rotate", 0.7))


@pytest.mark.parametrize("side", [1, 2, 3, 24, 33])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("autocontrast", "equalize")])
def test_magnitude_0_changes_nothing(name, side):
    x = photos(side=side)
    assert torch.equal(changed(x, name, 0.0), x)
    assert torch.equal(augment(x, 0.0, seeded()), x)


@pytest.mark.parametrize("name", NAMES[1:])
def test_every_operation_changes_the_image(name):
    x = photos()[:-1] // 2 + 40  # so that there is contrast to gain
    assert all((a != b).any() for a, b in zip(changed(x, name, 0.8), x, strict=True))


def test_autocontrast_goes_from_black_to_white():
    ours = changed(photos()[:-1] // 2 + 40, "autocontrast", 0.1).flatten(2)
    assert (ours.amin(2) == 0).all()
    assert (ours.amax(2) == 255).all()


def test_colour_leaves_grey_images_alone():
    grey = photos(channels=1)
    assert torch.equal(changed(grey, "colour", 0.9), grey)


@given(seed=st.integers(0, 1000))
def test_an_image_is_augmented_the_same_alone_and_in_a_batch(seed):
    generator, x = seeded(seed), photos(9)
    which = torch.randint(len(NAMES), (9,), generator=generator)
    amount = torch.rand(9, generator=generator) * 2 - 1
    together = apply_operations(x, which, amount)
    for i in range(9):
        assert torch.equal(apply_operations(x[i : i + 1], which[i : i + 1], amount[i : i + 1])[0], together[i])


def test_the_same_seed_gives_the_same_images_and_another_seed_others():
    x = photos(20)
    for make in (
        lambda g: augment(x, 0.5, g),
        lambda g: crop(x, 20, 3, g),
        lambda g: flip(x, g),
        lambda g: erase(x, 0.5, g),
        lambda g: mixup(x.float(), torch.arange(20), 0.4, g)[0],
    ):
        assert torch.equal(make(seeded(1)), make(seeded(1)))
        assert not torch.equal(make(seeded(1)), make(seeded(2)))


def test_the_input_is_not_modified():
    x = photos(20)
    before = x.clone()
    augment(x, 0.7, seeded()), crop(x, 20, 3, seeded()), flip(x, seeded()), erase(x, 1.0, seeded())
    assert torch.equal(x, before)


def test_operations_and_signs_are_sampled_uniformly(monkeypatch):
    sampled = []
    monkeypatch.setattr(
        "regard.data.image.augment.apply_operations", lambda x, which, amount: sampled.append((which, amount)) or x
    )
    augment(photos(1).expand(20_000, -1, -1, -1), 0.6, seeded())
    assert len(sampled) == 2
    for which, amount in sampled:
        fraction = torch.bincount(which, minlength=len(NAMES)) / len(which)
        torch.testing.assert_close(fraction, torch.full((len(NAMES),), 1 / len(NAMES)), atol=0.01, rtol=0)
        assert set(amount.tolist()) == {torch.tensor(0.6).item(), torch.tensor(-0.6).item()}
        assert abs((amount > 0).float().mean().item() - 0.5) < 0.02


@given(side=st.integers(1, 12), cut=st.integers(1, 12), pad=st.integers(0, 11), seed=st.integers(0, 100))
def test_a_crop_is_a_window_of_the_mirror_padded_image(side, cut, pad, seed):
    pad = min(pad, side - 1)
    cut = min(cut, side + 2 * pad)
    x = torch.arange(3 * 2 * side * side, dtype=torch.int64).view(3, 2, side, side)
    ours = crop(x, cut, pad, seeded(seed))
    assert ours.shape == (3, 2, cut, cut)
    for one, image in zip(ours.numpy(), x.numpy(), strict=True):
        around = np.pad(image, ((0, 0), (pad, pad), (pad, pad)), mode="reflect")
        last = side + 2 * pad - cut + 1
        pieces = [around[:, i : i + cut, j : j + cut] for i in range(last) for j in range(last)]
        assert any((one == piece).all() for piece in pieces)


def test_crops_are_uniform():
    x = torch.arange(16).view(1, 1, 4, 4).expand(18_000, 1, 4, 4)
    corner = crop(x, 2, 0, seeded())[:, 0, 0, 0]
    fraction = torch.bincount(corner, minlength=16).view(4, 4) / len(x)
    torch.testing.assert_close(fraction[:3, :3], torch.full((3, 3), 1 / 9), atol=0.01, rtol=0)
    assert fraction[3].sum() == fraction[:, 3].sum() == 0


def test_a_crop_of_the_whole_image_is_the_image():
    x = photos()
    assert torch.equal(crop(x, 24, 0, seeded()), x)


def test_half_of_the_images_are_mirrored():
    x = photos(2)[:1].expand(2000, -1, -1, -1)
    mirrored = (flip(x, seeded()) == x.flip(-1)).all((1, 2, 3))
    same = (flip(x, seeded()) == x).all((1, 2, 3))
    assert (mirrored ^ same).all()
    assert 900 < mirrored.sum() < 1100


def test_a_rectangle_is_erased_in_a_fraction_of_the_images():
    x = torch.zeros(3000, 2, 20, 30, dtype=torch.uint8)
    erased = erase(x, 0.25, seeded()) == GREY
    assert torch.equal(erased[:, 0], erased[:, 1])
    chosen = erased[:, 0].any((1, 2))
    assert 0.22 < chosen.float().mean() < 0.28
    for mask in erased[chosen, 0]:
        rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
        assert mask.sum() == len(rows) * len(columns)  # all of a rectangle
        assert rows[-1] - rows[0] + 1 == len(rows)
        assert columns[-1] - columns[0] + 1 == len(columns)
    area = erased[chosen, 0].float().mean((1, 2))
    assert area.min() > 0.01
    assert area.max() < 0.36
    assert 0.15 < area.mean() < 0.2
    assert erased[:, 0].any(0).all()  # anywhere, the corners too


def test_no_image_is_erased_at_rate_0_and_every_image_at_rate_1():
    x = torch.zeros(50, 1, 5, 5, dtype=torch.uint8)
    assert torch.equal(erase(x, 0.0, seeded()), x)
    assert (erase(x, 1.0, seeded()) == GREY).flatten(1).any(1).all()


def test_mixup_is_a_weighted_mean_of_two_images():
    x = torch.randn(50, 3, 4, 4, generator=seeded(3))
    label = torch.arange(50)  # which image it is
    mixed, other, part = mixup(x, label, 0.8, seeded())
    assert sorted(other.tolist()) == list(range(50))
    assert part.dtype == x.dtype
    assert len(part.unique()) > 40
    for i in range(50):
        torch.testing.assert_close(mixed[i], part[i] * x[i] + (1 - part[i]) * x[other[i]])


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_mixup_weights_are_sampled_from_a_beta_distribution(alpha):
    x = torch.zeros(20_000, 1, 1, 1)
    _, _, part = mixup(x, torch.zeros(20_000), alpha, seeded())
    wanted = torch.distributions.Beta(alpha, alpha)
    assert ((part >= 0) & (part <= 1)).all()
    assert abs(part.mean() - wanted.mean) < 0.01
    assert abs(part.var() - wanted.variance) < 0.005
