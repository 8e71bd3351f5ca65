"""3. One paper per file; this is their only registry, which also loads weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from regard.config import Family, build, nearest
from regard.models.fitting import build_without_memory, require_fitting, without_random_values
from regard.registry import Registry
from regard.run_folder import RunFolder

__all__ = ["FAMILIES", "build_without_memory", "load_model", "load_weights", "new_model", "preset", "read_config",
           "require_fitting", "saved_tensors", "state_tensors"]  # fmt: skip

FAMILIES = Registry[Family]("FAMILY", {
    "word2vec": "regard.models.word2vec",
    "seq2seq": "regard.models.seq2seq",
    "bahdanau": "regard.models.bahdanau",
    "transformer": "regard.models.transformer",
    "gpt": "regard.models.gpt",
    "bert": "regard.models.bert",
    "t5": "regard.models.t5",
    "elmo": "regard.models.elmo",
    "resnet": "regard.models.resnet",
    "captioner": "regard.models.captioner",
    "lrnet": "regard.models.lrnet",
    "image-gpt": "regard.models.image_gpt",
    "vit": "regard.models.vit",
    "swin": "regard.models.swin",
    "mvit": "regard.models.mvit",
    "caption-transformer": "regard.models.caption_transformer",
    "conformer": "regard.models.conformer",
})  # fmt: skip


def preset(name: str) -> tuple[str, Any]:
    """The family and the config of a model such as "transformer-base"."""
    known = {f"{family}-{size}": (family, config) for family, f in FAMILIES.items() for size, config in f.sizes.items()}
    if name not in known:
        near = nearest(name, known)
        raise ValueError(f"no model {name!r}{near}" + ("" if near else f"; models are {', '.join(known)}"))
    return known[name]


def state_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All tensors that make a model, by name: parameters, a tied one once, and the statistics of batch norms."""
    persistent = model.state_dict(keep_vars=True)
    return dict(model.named_parameters()) | {name: t for name, t in model.named_buffers() if name in persistent}


def saved_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The same, detached and contiguous, as safetensors wants them."""
    return {name: tensor.detach().contiguous() for name, tensor in state_tensors(model).items()}


def read_config(folder: Path) -> tuple[str, Any]:
    """The family and the config of the model in a run folder."""
    run = RunFolder(folder)
    family, values = run.read_description()
    if family not in FAMILIES:
        raise ValueError(f"{run.config} names model_type 'regard-{family}'; known are regard-{', regard-'.join(FAMILIES)}")
    return family, build(run.config.name, FAMILIES[family].config, values)


def new_model(family: str, config: Any, seed: int) -> nn.Module:
    """An untrained model; its weights are a function of the seed."""
    torch.manual_seed(seed)
    model: nn.Module = FAMILIES[family].build(config)
    return model


def load_model(folder: Path, weights: Path | None = None) -> nn.Module:
    """Build the model of a run folder and load its weights, or those of a checkpoint; or say which file is wrong and how."""
    (family, config), file = read_config(folder), weights or RunFolder(folder).weights
    shapes = _read_shapes(file)
    require_fitting(config, list(shapes.values()), str(RunFolder(folder).config))
    _require_shapes(build_without_memory(lambda: FAMILIES[family].build(config)), shapes, file)
    with without_random_values():
        model: nn.Module = FAMILIES[family].build(config)
    load_weights(model, file)
    return model.eval()


def _read_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of a safetensors file, from its header."""
    with _named_errors(file), safe_open(file, "pt") as weights:
        return {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118


def _require_shapes(model: nn.Module, shapes: Mapping[str, tuple[int, ...]], file: Path) -> None:
    """Refuse a file whose tensors are not those of a model."""
    wanted = {name: tuple(tensor.shape) for name, tensor in state_tensors(model).items()}
    for name in (*wanted, *shapes):
        if wanted.get(name) != shapes.get(name):
            have, want = shapes.get(name, "nothing"), wanted.get(name, "nothing")
            raise ValueError(f"{file} does not fit config.json: {name} is {have} in the file, the model wants {want}")


@contextmanager
def _named_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"no weights {file}; the run has not been trained to its end, continue with --resume") from None
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is damaged ({error}); train again, or restore the file") from None


def load_weights(model: nn.Module, file: Path, new: str | None = None) -> None:
    """Copy the weights of a safetensors file into a model of the same shape, except those whose names start with `new`."""
    with _named_errors(file):
        weights = load_file(file)
    wanted = state_tensors(model)
    if new:
        weights, wanted = ({k: v for k, v in table.items() if not k.startswith(new)} for table in (weights, wanted))
    for name in (*wanted, *weights):
        if name not in weights or name not in wanted or weights[name].shape != wanted[name].shape:
            have, want = (tuple(table[name].shape) if name in table else "nothing" for table in (weights, wanted))
            raise ValueError(f"{file} does not fit config.json: {name} is {have} in the file, the model wants {want}")
    for name, tensor in wanted.items():
        if not weights[name].isfinite().all():
            raise ValueError(f"{file} is damaged ({name} holds NaN or infinity); train again, or restore the file")
        tensor.data.copy_(weights[name])
