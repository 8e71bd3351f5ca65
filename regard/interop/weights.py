"""A Hugging Face checkpoint ↔ a model: config.json and model.safetensors, by the table of its family.

Each tensor of a checkpoint must be used, and each of ours must be found.  Only safetensors are read: a pickle can run code.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from regard.config import nearest
from regard.data.files import write_atomic
from regard.data.json_files import load_json
from regard.data.text.tokenizer import SpecialTokens
from regard.interop import bert, gpt2, marian, resnet, swin, t5, vision_encoder_decoder, vit
from regard.interop.generation import CONFIG_KEYS, GENERATION, GENERATION_KEYS
from regard.interop.tables import ZEROS, HFCheckpoint, HFConfig, HFFamily, TensorMap, TextFormat, Weights
from regard.models import build_without_memory, require_fitting, state_tensors

__all__ = ["GENERATION", "HF_FAMILIES", "ImportedModel", "describe_config", "export_model", "family_of", "import_model",
           "name_errors", "parse_json", "read_json", "read_model", "special_token_ids", "write_weights"]  # fmt: skip

TABLES = (gpt2.FAMILY, bert.FAMILY, t5.FAMILY, marian.MARIAN, marian.PEGASUS, vit.FAMILY, swin.V1, swin.V2, resnet.FAMILY,
          vision_encoder_decoder.FAMILY)  # fmt: skip
HF_FAMILIES: dict[str, HFFamily[Any]] = {table.model_type: table for table in TABLES}
INDEX = "model.safetensors.index.json"
LFS_POINTER = b"version https://git-lfs"
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}  # of the first BERTs
J = TypeVar("J", dict[str, object], list[object])


@dataclass(frozen=True)
class ImportedModel:
    """A checkpoint as one of our models."""

    table: HFFamily[Any]
    config: Any
    model: nn.Module
    checkpoint: HFCheckpoint  # without its tensors, which the model holds
    untrained: tuple[str, ...]  # heads that the checkpoint lacks, randomly initialized
    dropped: tuple[str, ...] = ()  # tensors of heads that ours lacks


@contextmanager
def name_errors(name: str) -> Iterator[None]:
    """Begin each error with the checkpoint's name as the user gave it, not with its folder in a cache."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def import_model(folder: Path) -> tuple[str, Any, nn.Module]:
    """Read a checkpoint: our family name, config and model."""
    with name_errors(str(folder)):
        imported = read_model(folder)
    return imported.table.family, imported.config, imported.model


def read_model(folder: Path) -> ImportedModel:
    """Read a checkpoint, with its own config and the heads it lacks."""
    hf = read_hf_config(folder)
    model_type = hf.get("model_type")
    if str(model_type).startswith("regard-"):
        raise ValueError("it is already a run folder of regard; use it directly")
    if not isinstance(model_type, str) or model_type not in HF_FAMILIES:
        raise ValueError(f"config.json has model_type = {model_type!r}{nearest(str(model_type), HF_FAMILIES)}; "
                         f"regard reads {', '.join(HF_FAMILIES)}")  # fmt: skip
    table, source = HF_FAMILIES[model_type], HFCheckpoint(hf, {}, *_read_generation(folder, hf))
    replace(source, config=read_json(folder, "config.json")).check(CONFIG_KEYS | table.keys)
    weights = _read_weights(folder)
    prefix = "" if any(name.startswith(table.prefix) for name in weights) else table.prefix  # to remove from the table
    source = replace(source, stored=frozenset(weights))
    weights = table.normalize(replace(source, weights=_merge_aliases(weights, table.aliases(source), table, prefix)))
    config = table.parse_config(replace(source, weights=weights))
    for name in source.architectures:
        if name.endswith(table.unsupported):
            raise ValueError(f"config.json has architectures = {name!r}, whose head regard's {table.family} does not have; use a "
                             f"checkpoint with another head")  # fmt: skip
    require_fitting(config, [tuple(weight.shape) for weight in weights.values()], "config.json")
    dropped = _check_weights(build_without_memory(lambda: table.build(config)), weights, table, config, prefix)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # a head that the checkpoint lacks is initialized the same each time
        model = table.build(config)
    absent = _copy_weights(model, weights, table, config, prefix)
    return ImportedModel(table, config, model.eval(), source, absent, dropped)


def export_model(family: str, config: object, model: nn.Module, folder: Path, special: SpecialTokens | None = None) -> None:
    """Write config.json and model.safetensors for `from_pretrained`; `special` are the tokenizer's special tokens."""
    text = family_of(family, config).text
    if special is None and text and text.seq2seq:
        raise ValueError(f"the config.json of a {family} names the tokens that start and end an output; give its "
                         f"tokenizer's: export_model(..., special=tokenizer.special)")  # fmt: skip
    hf = describe_config(family, config) | (special_token_ids(special, text) if special and text else {})
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(family, config, model, folder)
    write_atomic(folder / "config.json", json.dumps(hf, indent=2).encode())


def family_of(family: str, config: object) -> HFFamily[Any]:
    """The table of one of our families; each version of Swin has its own."""
    known = {table.family: table for table in HF_FAMILIES.values()}
    if family not in known:
        raise ValueError(f"{family!r} cannot be exported to Hugging Face; supported are {', '.join(known)}")
    return HF_FAMILIES[str(known[family].describe(config)["model_type"])]


def describe_config(family: str, config: object, untrained: tuple[str, ...] = ()) -> dict[str, object]:
    """The config.json of a model; its `untrained` heads are omitted."""
    table = family_of(family, config)
    headless = {"architectures": [table.headless]} if _is_headless(table, config, untrained) else {}
    return {**table.describe(config), **headless, "dtype": "float32"}


@torch.no_grad()
def write_weights(family: str, config: object, model: nn.Module, folder: Path, untrained: tuple[str, ...] = ()) -> None:
    """Write model.safetensors with Hugging Face's tensor names; `untrained` heads are omitted."""
    table, ours, weights = family_of(family, config), state_tensors(model), {}
    prefix = table.prefix if _is_headless(table, config, untrained) else ""
    omitted = tuple(f"{head}." for head in table.heads(config) if head in untrained)
    for entry in table.map_tensors(config):
        if entry.ours.startswith(omitted):
            continue
        for name, part in zip(entry.hf, entry.split(ours[entry.ours]), strict=True):
            if name != ZEROS:
                weights[name.removeprefix(prefix)] = entry.transform.to_hf(part).contiguous()
    for name in [name for name in weights if name.endswith(".running_var")]:  # a counter that transformers expects
        weights[f"{name.removesuffix('running_var')}num_batches_tracked"] = torch.tensor(0)
    write_atomic(folder / "model.safetensors", save(weights, metadata={"format": "pt"}))


def special_token_ids(special: SpecialTokens, text: TextFormat) -> dict[str, int]:
    """The special tokens under their keys in config.json."""
    ids = {key: getattr(special, name) for key, name in text.special_ids.items()}
    if text.seq2seq and special.bos == special.pad:  # T5 and Marian start with padding and have no other start token
        del ids["bos_token_id"]
    return ids


def _is_headless(table: HFFamily[Any], config: object, untrained: tuple[str, ...]) -> bool:
    """Whether the main head of a model is untrained."""
    return bool(table.headless) and ("classifier" if getattr(config, "classes", 0) else "lm_head") in untrained


def read_json(folder: Path, name: str) -> dict[str, object]:
    """Read a JSON object from a file; empty if there is no such file."""
    return parse_json(folder, name, dict[str, object]())


def parse_json(folder: Path, name: str, empty: J) -> J:
    """Read a JSON file of the type of `empty`, which is returned if there is no such file."""
    try:
        content = load_json(folder / name)
    except (FileNotFoundError, NotADirectoryError):
        return empty
    except ValueError as error:
        raise ValueError(f"{name} is damaged ({error}); download it again") from None
    if not isinstance(content, type(empty)):
        raise ValueError(f"{name} is damaged (no {'list' if empty == [] else 'table of keys'}); download it again")
    return content


def read_hf_config(folder: Path) -> HFConfig:
    """Read config.json, and generation_config.json for keys that it lacks."""
    if not (folder / "config.json").exists():
        raise ValueError("there is no config.json; give the folder of a Hugging Face checkpoint")
    hf = read_json(folder, "config.json")
    names = hf.get("architectures")
    if not (names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names))):
        raise ValueError(f"config.json has architectures = {names!r}; wanted a list of names: download it again")
    return {**hf, **read_json(folder, GENERATION), **{key: value for key, value in hf.items() if value is not None}}


def _read_generation(folder: Path, hf: HFConfig) -> tuple[HFConfig, str]:
    """How a checkpoint generates, and the file that says it: generation_config.json, or else config.json, as in transformers."""
    if (folder / GENERATION).exists():
        return read_json(folder, GENERATION), GENERATION
    return {key: value for key, value in hf.items() if key in GENERATION_KEYS.keys}, "config.json"


def _read_weights(folder: Path) -> Weights:
    """Read all tensors of a checkpoint, from one file or several."""
    weights: Weights = {}
    for file in _find_weights(folder):
        _require_regular(file)
        try:
            weights |= load_file(file)
        except FileNotFoundError:
            raise ValueError(f"there is no {file.name}, which {INDEX} names; download it") from None
        except (SafetensorError, OSError) as error:
            with open(file, "rb") as content:
                if content.read(len(LFS_POINTER)) == LFS_POINTER:
                    raise ValueError(f"{file.name} is a Git LFS pointer; run `git lfs pull` there") from None
            raise ValueError(f"{file.name} is damaged ({error}); download it again") from None
    for name in list(weights):
        for old, new in OLD_NAMES.items():
            if name.endswith(old):
                weights[name.removesuffix(old) + new] = weights.pop(name)
    return weights


def _require_regular(file: Path) -> None:
    """Refuse a FIFO, which would never end, and whatever else is not a file."""
    if not file.exists() or file.is_file():
        return  # a missing file is named later
    kind = "a FIFO" if file.is_fifo() else "a folder" if file.is_dir() else "a socket" if file.is_socket() else "a device"
    raise ValueError(f"{file.name} is {kind}, not a regular file; download it again")


def _find_weights(folder: Path) -> list[Path]:
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"]
    if (folder / INDEX).exists():
        names = read_json(folder, INDEX).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(n, str) and Path(n).name == n for n in names.values()):
            raise ValueError(f"{INDEX} is damaged (no names of files beside it); download it again")
        return [folder / name for name in sorted(set(names.values()))]
    pickles = sorted(file for end in ("*.bin", "*.pt", "*.pth") for file in folder.glob(end))
    why = (f"{pickles[0].name} is a pickle, which can run any code when opened" if pickles
           else "nor other safetensors; pickles, which can run code, are neither fetched nor opened")  # fmt: skip
    name = (HFCheckpoint(read_hf_config(folder), {}).architectures or ["AutoModel"])[0]  # AutoModel would drop the heads
    raise ValueError(f"there is no model.safetensors ({why}); convert it where you trust it: "
                     f"transformers.{name}.from_pretrained(...).save_pretrained(..., safe_serialization=True)")  # fmt: skip


def _merge_aliases(weights: Weights, aliases: Mapping[str, str], table: HFFamily[Any], prefix: str) -> Weights:
    """Keep a tensor that is stored under two names once."""
    for names in aliases.items():
        second, first = (name.removeprefix(prefix) for name in names)
        if second not in weights:
            continue
        copy = weights.pop(second)
        kept = weights.setdefault(first, copy)
        # NaN counts as equal here: `_copy_weights` refuses it.
        if copy.shape != kept.shape or not torch.equal(copy.float().nan_to_num(), kept.float().nan_to_num()):
            raise ValueError(f"{second} differs from {first}; regard's {table.family} ties them")
    return weights


def _entries(table: HFFamily[Any], config: object, weights: Weights, prefix: str) -> tuple[list[TensorMap], tuple[str, ...]]:
    """The table's entries, without those of heads that the checkpoint lacks; and these heads."""
    entries = [entry._replace(hf=tuple(name.removeprefix(prefix) for name in entry.hf)) for entry in table.map_tensors(config)]
    absent = tuple(head for head in table.heads(config) if not any(
        name in weights for entry in entries if entry.ours.startswith(f"{head}.") for name in entry.hf))  # fmt: skip
    return [entry for entry in entries if not entry.ours.startswith(tuple(f"{head}." for head in absent))], absent


def _check_weights(model: nn.Module, weights: Weights, table: HFFamily[Any], config: object,
                   prefix: str) -> tuple[str, ...]:  # fmt: skip
    """Refuse tensors that do not fit a model, which has shapes only; return those of heads that ours lacks."""
    unused, ours = set(weights), state_tensors(model)
    for entry in _entries(table, config, weights, prefix)[0]:
        for name, part in zip(entry.hf, entry.split(ours[entry.ours]), strict=True):
            if name == ZEROS:
                continue
            if name not in weights:
                raise ValueError(f"there is no tensor {name}; it is not the {table.family} its config.json describes")
            tensor, shape = weights[name], entry.transform.to_hf(part).shape
            if tensor.shape != shape:
                raise ValueError(f"{name} is {tuple(tensor.shape)}; its config.json makes it {tuple(shape)}")
            if not tensor.is_floating_point():
                raise ValueError(f"{name} holds {tensor.dtype}; regard reads float32, float16 and bfloat16")
            unused.discard(name)
    unknown = sorted(name for name in unused if not name.endswith((*table.ignored, *table.dropped)))
    if unknown:
        raise ValueError(f"there is a tensor {unknown[0]} that regard's {table.family} does not have")
    return tuple(sorted(name for name in unused if name.endswith(table.dropped)))


@torch.no_grad()
def _copy_weights(model: nn.Module, weights: Weights, table: HFFamily[Any], config: object, prefix: str) -> tuple[str, ...]:
    """Copy a checkpoint's tensors into our model, as float32; return the heads that the checkpoint lacks."""
    (entries, absent), ours = _entries(table, config, weights, prefix), state_tensors(model)
    for entry in entries:
        for name, part in zip(entry.hf, entry.split(ours[entry.ours]), strict=True):
            if name == ZEROS:
                part.zero_()
                continue
            part.copy_(entry.transform.to_ours(weights[name]))
            if not part.isfinite().all():
                raise ValueError(f"{name} has NaN or infinite values; download it again, or use another checkpoint")
    return absent
