"""3. One paper per file; this is the only registry, and where a model meets its folder on disk."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from regard.config import Family, Run, build, nearest
from regard.config import load as load_run
from regard.models import bert, gpt, image_gpt, lrnet, mvit, resnet, swin, t5, transformer, vit

__all__ = [
    "FAMILIES",
    "FORMAT",
    "describe",
    "inherit_from_init",
    "load_model",
    "load_weights",
    "preset",
    "read_config",
    "saved_tensors",
    "state_tensors",
]

FAMILIES: dict[str, Family] = {
    "transformer": Family(transformer.TransformerConfig, transformer.SIZES, transformer.Transformer, ("translate",)),
    "gpt": Family(gpt.GPTConfig, gpt.SIZES, gpt.GPT, ("next",)),
    "bert": Family(bert.BERTConfig, bert.SIZES, bert.BERT, ("masked", "class")),
    "t5": Family(t5.T5Config, t5.SIZES, t5.T5, ("translate", "spans")),
    "resnet": Family(resnet.ResNetConfig, resnet.SIZES, resnet.ResNet, ("image",)),
    "lrnet": Family(lrnet.LRNetConfig, lrnet.SIZES, lrnet.LRNet, ("image",)),
    "image-gpt": Family(image_gpt.ImageGPTConfig, image_gpt.SIZES, image_gpt.ImageGPT, ("pixels",)),
    "vit": Family(vit.ViTConfig, vit.SIZES, vit.ViT, ("image",)),
    "swin": Family(swin.SwinConfig, swin.SIZES, swin.Swin, ("image",)),
    "mvit": Family(mvit.MViTConfig, mvit.SIZES, mvit.MViT, ("image",)),
}

FORMAT = 3  # of a run folder; raised when an older regard could not read what a newer one writes
READS = (FORMAT,)


def preset(name: str) -> tuple[str, Any]:
    """The family's name and the config of a model such as "transformer-base"."""
    known = {f"{family}-{size}": (family, config) for family, f in FAMILIES.items() for size, config in f.sizes.items()}
    if name not in known:
        near = nearest(name, known)
        raise ValueError(f"no model {name!r}{near}" + ("" if near else f"; models are {', '.join(known)}"))
    return known[name]


def describe(family: str, config: Any, version: str) -> dict[str, Any]:
    """What `config.json` says of a model."""
    return {"model_type": f"regard-{family}", "regard_version": version, "format": FORMAT, **dataclasses.asdict(config)}


def saved_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The weights by name, a tied matrix once, as `model.safetensors` holds them."""
    return {name: one.detach().contiguous() for name, one in state_tensors(model).items()}


def state_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All that a model keeps, by name: its parameters, a tied one once, and what batch norms have counted."""
    kept = model.state_dict(keep_vars=True)
    return dict(model.named_parameters()) | {name: one for name, one in model.named_buffers() if name in kept}


def load_model(folder: Path) -> Any:
    """Build the model a run folder describes and fill in its weights, or say which file is wrong and how."""
    family, config = read_config(folder)
    model = FAMILIES[family].build(config)
    load_weights(model, folder / "model.safetensors")
    return model.eval()


def inherit_from_init(run: Run) -> Run:
    """A run that begins from another: its model is that of `run.init`, but for dropout and classes."""
    family, held = read_config(Path(run.init))
    if family != run.family:
        raise ValueError(f"init={run.init} is a {family}, the recipe trains a {run.family}; begin from a {run.family}")
    own = {key: getattr(run.model, key) for key in ("dropout", "attention_dropout", "drop_path", "classes")
           if hasattr(held, key)}  # fmt: skip
    before = load_run(str(Path(run.init) / "run.toml"), (), FAMILIES)
    seen = ("fit", "resize", "resample", "mean", "std")  # how the weights have learnt to see pictures
    taken: dict[str, Any] = {key: getattr(before.data, key) for key in seen}
    if hasattr(held, "vocab"):
        taken = {"tokenizer": before.data.tokenizer, "vocab": held.vocab}
    return dataclasses.replace(
        run,
        model=dataclasses.replace(held, **own),
        data=dataclasses.replace(run.data, **taken),
        untrained=before.untrained if run.task == "class" else "",
    )


def load_weights(model: nn.Module, file: Path, fresh: str | None = None) -> None:
    """Copy the weights of a safetensors file into a model of the same shape; those that begin with `fresh` are left alone."""
    try:
        weights = load_file(file)
    except FileNotFoundError:
        raise ValueError(f"no weights {file}; the run has not been trained to its end, go on with --resume") from None
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is damaged ({error}); train again, or restore the file") from None
    wanted = state_tensors(model)
    if fresh:
        weights, wanted = ({k: v for k, v in one.items() if not k.startswith(fresh)} for one in (weights, wanted))
    for name in (*wanted, *weights):
        if name not in weights or name not in wanted or weights[name].shape != wanted[name].shape:
            have, want = (tuple(t[name].shape) if name in t else "nothing" for t in (weights, wanted))
            raise ValueError(f"{file} does not fit config.json: {name} is {have} in the file, the model wants {want}")
    for name, p in wanted.items():
        if not weights[name].isfinite().all():
            raise ValueError(f"{file} is damaged ({name} holds what is not a number); train again, or restore the file")
        p.data.copy_(weights[name])


def read_config(folder: Path) -> tuple[str, Any]:
    """The family's name and the config that a run folder's `config.json` holds."""
    file = folder / "config.json"
    try:
        described: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        beside = [one.parent.name for one in folder.parent.glob("*/run.toml")]
        raise ValueError(
            f"{folder} is not a run folder: it has no config.json{nearest(folder.name, beside)}; `regard train` makes one"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is damaged ({error}); train again, or restore the file") from None
    if not isinstance(described, dict):
        raise ValueError(f"{file} is damaged (no table of keys); train again, or restore the file")
    kind = str(described.get("model_type", ""))
    if "format" not in described and kind and not kind.startswith("regard-"):
        raise ValueError(
            f"{file.parent} is a {kind} of another library; import it first: regard import {file.parent} --to runs/NAME"
        )
    if described.get("format") not in READS:
        raise ValueError(
            f"{file.parent} was written by regard {described.get('regard_version', 'of unknown version')} in format "
            f"{described.get('format')}; this regard reads formats {', '.join(map(str, READS))}: use that version, or train again"
        )
    family = str(described.get("model_type", "")).removeprefix("regard-")
    if family not in FAMILIES:
        raise ValueError(
            f"{file} names model_type {described.get('model_type')!r}; known are regard-{', regard-'.join(FAMILIES)}"
        )
    values = {k: v for k, v in described.items() if k not in ("model_type", "regard_version", "format")}
    return family, build(file.name, FAMILIES[family].config, values)
