"""preprocessor_config.json ↔ how our pictures are prepared.

any picture ── scaled to `side`: both sides (squash), or the shorter (crop) ── the middle `image` ── minus mean, over std
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from regard.interop.weights import read_json

__all__ = ["PROCESSOR", "Seen", "describe_processor", "read_processor"]

PROCESSOR = "preprocessor_config.json"
SCALINGS: dict[int, Literal["bilinear", "bicubic"]] = {2: "bilinear", 3: "bicubic"}  # by PIL's numbers
USUAL: dict[str, dict[str, Any]] = {  # kind of processor → what it does where its file says nothing
    "ViT": {"size": {"height": 224, "width": 224}, "resample": 2},
    "DeiT": {"size": {"height": 256, "width": 256}, "resample": 3, "do_center_crop": True, "crop_size": 224},
    "ConvNext": {"size": {"shortest_edge": 384}, "resample": 3, "crop_pct": 224 / 256},
    "Bit": {"size": {"shortest_edge": 224}, "resample": 3, "do_center_crop": True, "crop_size": 224},
}
WARPED = 384  # pixels from which on a ConvNext's processor squashes a picture, instead of cutting out its middle
OTHER = ("do_flip_channel_order", "do_pad")  # steps that we do not take


@dataclass(frozen=True)
class Seen:
    """What a model sees of a picture."""

    image: int  # pixels a side
    resize: int  # to which it is scaled before the middle is cut out
    fit: Literal["crop", "squash"]  # whether its shorter side is scaled to that, or both
    resample: Literal["bilinear", "bicubic"]
    mean: list[float]  # of each channel, of pixels from 0 to 1
    std: list[float]


def read_processor(folder: Path, family: str, channels: int) -> Seen:
    """How a checkpoint wants its pictures."""
    said = read_json(folder, PROCESSOR)
    if not said:
        raise ValueError(f"there is no {PROCESSOR}, which says how its pictures are scaled; make one with transformers, "
                         f"AutoImageProcessor.from_pretrained(...).save_pretrained(...), and put it there")  # fmt: skip
    kind = _kind(said, family)
    said = {"do_resize": True, "do_rescale": True, "do_normalize": True, "rescale_factor": 1 / 255, **USUAL[kind],
            **{key: value for key, value in said.items() if value is not None}}  # fmt: skip
    for key in (*OTHER, "do_resize"):
        if bool(said.get(key)) != (key == "do_resize"):
            raise ValueError(
                f"{PROCESSOR} has {key} = {said[key]!r}; regard prepares pictures otherwise: use another checkpoint"
            )
    if not isinstance(said["resample"], int) or said["resample"] not in SCALINGS:
        raise ValueError(f"{PROCESSOR} has resample = {said['resample']!r}; regard scales pictures with 2 (bilinear) or "
                         f"3 (bicubic): use another checkpoint")  # fmt: skip
    fit, side = _size(said, kind)
    image = side
    if kind == "ConvNext" and fit == "crop":
        share = said["crop_pct"]
        if not isinstance(share, int | float) or not 0 < share <= 1:
            raise ValueError(
                f"{PROCESSOR} has crop_pct = {share!r}; wanted a share of the picture, above 0 and up to 1"
            )
        fit, side = ("crop", int(side / share)) if side < WARPED else ("squash", side)
    if said.get("do_center_crop"):
        image = _square(said, "crop_size")
    if image > side:
        raise ValueError(f"{PROCESSOR} cuts {image} pixels out of a picture of {side}; correct it")
    mean, std = _normal(said, channels)
    return Seen(image, side, fit, SCALINGS[said["resample"]], mean, std)


def describe_processor(seen: Seen) -> dict[str, Any]:
    """Their preprocessor_config.json."""
    whole = seen.fit == "squash" and seen.image == seen.resize
    kind = "ViT" if whole else "DeiT" if seen.fit == "squash" else "Bit"
    size = {"height": seen.resize, "width": seen.resize} if seen.fit == "squash" else {"shortest_edge": seen.resize}
    middle = {"do_center_crop": True, "crop_size": {"height": seen.image, "width": seen.image}}
    return {"image_processor_type": f"{kind}ImageProcessor", "do_resize": True, "size": size,
            "resample": next(number for number, name in SCALINGS.items() if name == seen.resample),
            **({} if whole else middle), "do_convert_rgb": len(seen.mean) == 3, "do_rescale": True,
            "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": seen.mean,
            "image_std": seen.std}  # fmt: skip


def _kind(said: Mapping[str, Any], family: str) -> str:
    """Which of their processors it is; the oldest files do not say."""
    named = said.get("image_processor_type") or said.get("feature_extractor_type")
    if named is None:
        return "ConvNext" if family == "resnet" else "ViT"
    kind = str(named).removesuffix("Fast").removesuffix("Pil")
    kind = kind.removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    if kind not in USUAL:
        known = ", ".join(f"{one}ImageProcessor" for one in USUAL)
        raise ValueError(f"{PROCESSOR} is of a {named}; regard prepares pictures as {known} do")
    return kind


def _size(said: Mapping[str, Any], kind: str) -> tuple[Literal["crop", "squash"], int]:
    """To how many pixels a picture is scaled, and whether its shorter side only."""
    size = said["size"]
    if isinstance(size, int) and "shortest_edge" in USUAL[kind]["size"]:
        size = {"shortest_edge": size}
    if isinstance(size, dict) and set(size) == {"shortest_edge"} and _is_size(size["shortest_edge"]):
        return "crop", size["shortest_edge"]
    return "squash", _square(said, "size")


def _square(said: Mapping[str, Any], key: str) -> int:
    """The side of a square, in any of the ways it is written: 224, [224, 224], {"height": 224, "width": 224}."""
    size = said.get(key)
    sides = list(size.values()) if isinstance(size, dict) and set(size) == {"height", "width"} else size
    sides = sides if isinstance(sides, list) else [sides, sides]
    if len(sides) != 2 or sides[0] != sides[1] or not _is_size(sides[0]):
        raise ValueError(f"{PROCESSOR} has {key} = {size!r}; wanted the side of a square, in pixels")
    return sides[0]


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and value > 0


def _normal(said: Mapping[str, Any], channels: int) -> tuple[list[float], list[float]]:
    """Mean and std of pixels from 0 to 1, whatever they are scaled to there."""
    factor = said["rescale_factor"] if said["do_rescale"] else 1
    if not isinstance(factor, int | float) or not factor > 0:
        raise ValueError(f"{PROCESSOR} has rescale_factor = {factor!r}; wanted 1 / 255, or another number above 0")
    found = []
    for key, nothing in (("image_mean", 0.0), ("image_std", 1.0)):
        values = said.get(key) if said["do_normalize"] else nothing
        values = [values] * channels if isinstance(values, int | float) else values
        if not isinstance(values, Sequence) or not all(isinstance(value, int | float) for value in values):
            raise ValueError(f"{PROCESSOR} has {key} = {values!r}; wanted a number for each channel")
        if len(values) != channels:
            raise ValueError(f"{PROCESSOR} has {key} = {values!r}; the model sees {channels} channels")
        whole = round(255 * factor, 9)  # a pixel of 255, after scaling; 1 but for a rounding
        found.append([value / whole for value in values])
    return found[0], found[1]
