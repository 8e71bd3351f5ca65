"""A Hugging Face checkpoint ↔ a model: config.json and model.safetensors, by the tables of `names`.

Every tensor of theirs must have a place here, and every one of ours be found there.  Only safetensors are read: a pickle can
run code.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from regard.config import nearest
from regard.data.files import write_atomic
from regard.data.text.tokenizer import SpecialTokens
from regard.interop.names import NOWHERE, Names, Theirs
from regard.interop.names import THEIRS as THEIRS_TEXT
from regard.interop.resnet_names import THEIRS_RESNET
from regard.interop.swin_names import THEIRS_SWIN
from regard.interop.vit_names import THEIRS_VIT
from regard.models import state_tensors

__all__ = [
    "GENERATION",
    "Imported",
    "called",
    "describe",
    "export_model",
    "import_model",
    "numbers",
    "read_config",
    "read_json",
    "read_model",
    "write_weights",
]

THEIRS: dict[str, Theirs] = {**THEIRS_TEXT, **THEIRS_VIT, **THEIRS_SWIN, **THEIRS_RESNET}
INDEX = "model.safetensors.index.json"
POINTER = b"version https://git-lfs"
GENERATION = "generation_config.json"  # how it is to answer


@dataclass(frozen=True)
class Imported:
    """A checkpoint as a model of ours."""

    family: str
    config: Any
    model: nn.Module
    said: Mapping[str, Any]  # what its config.json and generation_config.json say
    untrained: tuple[str, ...]  # heads it did without: they have been started anew


@contextmanager
def called(name: str) -> Iterator[None]:
    """Say what is wrong with a checkpoint under the name its user gave: the folder of a cache means nothing to them."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def import_model(folder: Path) -> tuple[str, Any, nn.Module]:
    """A checkpoint's family by our name, its config and its model, weights filled in."""
    with called(str(folder)):
        found = read_model(folder)
    return found.family, found.config, found.model


def read_model(folder: Path) -> Imported:
    """The same, with what else the checkpoint says of itself."""
    said = read_config(folder)
    kind = said.get("model_type")
    if str(kind).startswith("regard-"):
        raise ValueError("it is a run folder of regard already; use it as it is")
    if not isinstance(kind, str) or kind not in THEIRS:
        raise ValueError(
            f"config.json has model_type = {kind!r}{nearest(str(kind), THEIRS)}; regard reads {', '.join(THEIRS)}"
        )
    theirs = THEIRS[kind]
    weights = _read_weights(folder)
    # A checkpoint of the bare model leaves the prefix out of all its names.
    cut = "" if any(name.startswith(theirs.prefix) for name in weights) else theirs.prefix
    weights = theirs.settle(said, _once(weights, theirs, cut))
    config = theirs.config(said, weights)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # a head that the checkpoint lacks begins alike each time
        model = theirs.build(config)
    return Imported(theirs.family, config, model.eval(), said, _fill(model, weights, theirs, config, cut))


def export_model(
    family: str, config: Any, model: nn.Module, folder: Path, special: SpecialTokens | None = None
) -> None:
    """Write a model as a folder that `from_pretrained` opens: config.json and model.safetensors.

    `marks` are its tokenizer's: which token starts an answer and which ends it.
    """
    if special is None and hasattr(config, "pad"):
        raise ValueError(f"the config.json of a {family} names the tokens that start and end an answer; give its tokenizer's "
                         f"marks: export_model(..., marks=tokenizer.marks)")  # fmt: skip
    said = describe(family, config) | (numbers(special, family) if special else {})
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(family, config, model, folder)
    write_atomic(folder / "config.json", json.dumps(said, indent=2).encode())


def describe(family: str, config: Any, untrained: tuple[str, ...] = ()) -> dict[str, Any]:
    """What their config.json says of a model of ours; its `untrained` heads are left out."""
    theirs = _known(family, config)
    bare = {"architectures": [theirs.bare]} if _bare(theirs, config, untrained) else {}
    return {**theirs.describe(config), **bare, "dtype": "float32"}


@torch.no_grad()
def write_weights(family: str, config: Any, model: nn.Module, folder: Path, untrained: tuple[str, ...] = ()) -> None:
    """Write model.safetensors, each tensor under its name there; `untrained` heads are left out."""
    theirs, ours, weights = _known(family, config), state_tensors(model), {}
    cut = theirs.prefix if _bare(theirs, config, untrained) else ""
    lacking = tuple(f"{head}." for head in theirs.heads(config) if head in untrained)
    for one in theirs.names(config):
        if one.ours.startswith(lacking):
            continue
        for name, part in zip(one.theirs, ours[one.ours].chunk(len(one.theirs)), strict=True):
            if name != NOWHERE:
                weights[name.removeprefix(cut)] = one.way.there(part).contiguous()
    for name in [
        name for name in weights if name.endswith(".running_var")
    ]:  # a count that stands beside, and is never read
        weights[f"{name.removesuffix('running_var')}num_batches_tracked"] = torch.tensor(0)
    write_atomic(folder / "model.safetensors", save(weights, metadata={"format": "pt"}))


def numbers(special: SpecialTokens, family: str) -> dict[str, int]:
    """The tokens that are no text, in the words of their config.json."""
    if family == "bert":
        return {"pad_token_id": special.pad}
    ids = {"pad_token_id": special.pad, "eos_token_id": special.eos}
    if family == "gpt":
        return {**ids, "bos_token_id": special.bos}
    ids["decoder_start_token_id"] = special.bos
    return ids if special.bos == special.pad else {**ids, "bos_token_id": special.bos}


def _bare(theirs: Theirs, config: Any, untrained: tuple[str, ...]) -> bool:
    """Whether no head of a model has learnt what it is for."""
    return bool(theirs.bare) and ("classifier" if config.classes else "lm_head") in untrained


def _known(family: str, config: Any) -> Theirs:
    """The table of a family, or of its version, if each has a name of its own there."""
    known = {theirs.family: theirs for theirs in THEIRS.values()}
    if family not in known:
        raise ValueError(f"no Hugging Face form of a {family!r}; there is one of {', '.join(known)}")
    return THEIRS[known[family].describe(config)["model_type"]]


def read_json(folder: Path, name: str, kind: type = dict) -> Any:
    """What a file of a checkpoint says, a table of keys or a list; an empty one if there is no such file."""
    try:
        found = json.loads((folder / name).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return kind()
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{name} is damaged ({error}); download it again") from None
    if not isinstance(found, kind):
        raise ValueError(f"{name} is damaged (no {'table of keys' if kind is dict else 'list'}); download it again")
    return found


def read_config(folder: Path) -> dict[str, Any]:
    """What a checkpoint says of itself, and of how it is to answer."""
    if not (folder / "config.json").exists():
        raise ValueError("there is no config.json; give the folder of a Hugging Face checkpoint")
    said = read_json(folder, "config.json")
    kinds = said.get("architectures")
    if not (kinds is None or (isinstance(kinds, list) and all(isinstance(one, str) for one in kinds))):
        raise ValueError(f"config.json has architectures = {kinds!r}; wanted a list of names: download it again")
    return {**said, **read_json(folder, GENERATION), **{key: one for key, one in said.items() if one is not None}}


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, from one file or several."""
    weights: dict[str, Tensor] = {}
    for file in _files(folder):
        try:
            weights |= load_file(file)
        except FileNotFoundError:
            raise ValueError(f"there is no {file.name}, which {INDEX} names; download it") from None
        except (SafetensorError, OSError) as error:
            with open(file, "rb") as content:
                if content.read(len(POINTER)) == POINTER:
                    raise ValueError(
                        f"{file.name} is a pointer of Git LFS, not the weights; run `git lfs pull` there"
                    ) from None
            raise ValueError(f"{file.name} is damaged ({error}); download it again") from None
    old = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}  # BERT's first names for them
    for name in list(weights):
        for before, after in old.items():
            if name.endswith(before):
                weights[name.removesuffix(before) + after] = weights.pop(name)
    return weights


def _files(folder: Path) -> list[Path]:
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"]
    if (folder / INDEX).exists():
        names = read_json(folder, INDEX).get("weight_map")
        if not isinstance(names, dict) or not all(
            isinstance(name, str) and Path(name).name == name for name in names.values()
        ):
            raise ValueError(f"{INDEX} is damaged (no names of files beside it); download it again")
        return [folder / name for name in sorted(set(names.values()))]
    pickled = sorted(file for end in ("*.bin", "*.pt", "*.pth") for file in folder.glob(end))
    why = (
        f"{pickled[0].name} is a pickle, which can run any code when opened"
        if pickled
        else "nor any other safetensors; pickles, which can run code, are neither fetched nor opened"
    )
    # AutoModel would drop the heads: an output, or classes.
    kind = (read_config(folder).get("architectures") or ["AutoModel"])[0]
    raise ValueError(
        f"there is no model.safetensors ({why}); convert it where you trust it: "
        f"transformers.{kind}.from_pretrained(...).save_pretrained(..., safe_serialization=True)"
    )


def _once(weights: dict[str, Tensor], theirs: Theirs, cut: str) -> dict[str, Tensor]:
    """A tensor that stands there under two names is kept under its first."""
    for pair in theirs.again.items():
        second, first = (name.removeprefix(cut) for name in pair)
        if second not in weights:
            continue
        one = weights.pop(second)
        other = weights.setdefault(first, one)
        # What is not a number is no difference: `_fill` says what it is.
        if one.shape != other.shape or not torch.equal(one.float().nan_to_num(), other.float().nan_to_num()):
            raise ValueError(f"{second} is not the same as {first}; in regard's {theirs.family} they are one")
    return weights


@torch.no_grad()
def _fill(model: nn.Module, weights: dict[str, Tensor], theirs: Theirs, config: Any, cut: str) -> tuple[str, ...]:
    """Put each of their tensors in its place, as float32; → the heads that the checkpoint does without."""
    table = [Names(ours, tuple(name.removeprefix(cut) for name in names), way)
             for ours, names, way in theirs.names(config)]  # fmt: skip
    absent = tuple(head for head in theirs.heads(config) if not any(
        name in weights for one in table if one.ours.startswith(f"{head}.") for name in one.theirs))  # fmt: skip
    left, ours = set(weights), state_tensors(model)
    for one in table:
        if one.ours.startswith(tuple(f"{head}." for head in absent)):
            continue
        for name, part in zip(one.theirs, ours[one.ours].chunk(len(one.theirs)), strict=True):
            if name == NOWHERE:
                part.zero_()
                continue
            if name not in weights:
                raise ValueError(f"there is no tensor {name}; it is not the {theirs.family} its config.json describes")
            wanted, found = one.way.there(part).shape, weights[name]
            if found.shape != wanted:
                raise ValueError(f"{name} is {tuple(found.shape)}; its config.json makes it {tuple(wanted)}")
            if not found.is_floating_point():
                raise ValueError(f"{name} holds {found.dtype}; regard reads float32, float16 and bfloat16")
            part.copy_(one.way.here(found))
            if not part.isfinite().all():
                raise ValueError(
                    f"{name} holds what is not a finite number; download it again, or use another checkpoint"
                )
            left.discard(name)
    unknown = sorted(name for name in left if not name.endswith(theirs.ignored))
    if unknown:
        raise ValueError(f"there is a tensor {unknown[0]} that regard's {theirs.family} has no place for")
    return absent
