"""Hugging Face checkpoints in and out: GPT-2, BERT, T5, Marian; ViT, Swin, ResNet.

    their folder ── fetch ── import_run ──▶ run folder ── export_run ──▶ their folder
    config.json, model.safetensors,         config.json, model.safetensors, run.toml, labels.txt, README.md,
    tokenizer.json                          tokenizer.json
    or preprocessor_config.json             if it reads text

`names` has the tables (those of pictures each have a file), `weights` moves tensors by them, `vocabulary` reads and writes
tokenizers, `processor` how pictures are prepared.
"""

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save

from regard.config import DataConfig, DecodeConfig, Run, build, to_toml
from regard.config import load as load_run
from regard.data.files import sync_folder, write_atomic
from regard.data.image.store import resize_side
from regard.data.text.tokenizer import Tokenizer
from regard.decode.folder import read_labels
from regard.interop.processor import PROCESSOR, Seen, describe_processor, read_processor
from regard.interop.vocabulary import describe_tokenizer, read_tokenizer, with_ends
from regard.interop.weights import (
    GENERATION,
    Imported,
    called,
    describe,
    export_model,
    import_model,
    numbers,
    read_json,
    read_model,
    write_weights,
)
from regard.models import FAMILIES, load_model, read_config, saved_tensors
from regard.models import describe as describe_ours
from regard.version import VERSION

__all__ = ["export_model", "export_run", "fetch", "import_model", "import_run"]

TOKENIZERS = {"gpt": "bytes", "bert": "wordpiece", "t5": "bpe", "transformer": "bpe"}  # what is nearest of our own
LONGEST = 512  # tokens, of a model that knows no limit
HEADS = {"lm_head": "masked tokens", "pooler": "the pooled vector", "classifier": "classes"}
POOLING = "1_Pooling/config.json"  # how sentence-transformers makes one vector of a text's
FETCHED = ["config.json", GENERATION, "model.safetensors", "model.safetensors.index.json", "model-*.safetensors",
           "tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "merges.txt", "modules.json",
           "sentence_bert_config.json", POOLING, PROCESSOR, "README.md"]  # fmt: skip


def fetch(name: str) -> Path:
    """The folder of a checkpoint of the Hugging Face hub, downloaded if need be: `fetch("bert-base-uncased")`.

    No more than the files that are read here: nothing that could run.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ValueError(
            f"no folder {name}, and huggingface_hub is not installed to look for it on the hub: pip install 'regard[hub]'"
        ) from None
    try:
        found = snapshot_download(name, allow_patterns=FETCHED)
    except (OSError, ValueError) as error:  # no network, no such name, a name that cannot be
        first = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(
            f"no folder {name}, and the hub did not give it ({first}); check the name and the network, or give a folder"
        ) from None
    return Path(found)


def import_run(folder: Path, to: Path, version: str = VERSION, name: str = "") -> None:
    """Make a run folder of a checkpoint; `name` is what errors and the card call it, else the folder's."""
    with _whole(to) as part, called(name or str(folder)):
        found = read_model(folder)
        if _reads_text(found.config):
            tokenizer = _tokenizer(found, folder)
            tokenizer.save(part / "tokenizer.json")
            run = _run(found, to.name, _licence(folder), _text(found, tokenizer.vocab, _longest(folder)))
        else:
            seen = read_processor(folder, found.family, found.config.channels)
            found = _sized(found, seen.image)
            run = _run(found, to.name, _licence(folder), _pictures(seen))
        said = describe_ours(found.family, found.config, version)
        write_atomic(part / "model.safetensors", save(saved_tensors(found.model)))
        write_atomic(part / "config.json", json.dumps(said, indent=1).encode())
        write_atomic(part / "run.toml", to_toml(run).encode())
        if getattr(found.config, "classes", 0):
            write_atomic(part / "labels.txt", "".join(f"{label}\n" for label in _labels(found)).encode())
        write_atomic(part / "README.md", _card(found, run, version, name or folder.name).encode())


def export_run(folder: Path, to: Path) -> None:
    """Write a run as a folder that `AutoModel`, `AutoTokenizer` or `AutoImageProcessor`, and pipelines open."""
    family, config = read_config(folder)
    file = folder / "run.toml"
    run = load_run(str(file), (), FAMILIES) if file.exists() else Run(folder.name, family, config)
    untrained = tuple(filter(None, run.untrained.split(",")))
    said = describe(family, config, untrained)  # what has no form there is refused before anything is read
    with _whole(to) as part:
        model = load_model(folder)
        if labels := read_labels(folder):
            names = dict(enumerate(labels))
            said |= {"id2label": names, "label2id": {label: n for n, label in names.items()}}
        if _reads_text(config):
            files = _text_files(folder, run, model, said)
            write_atomic(part / "tokenizer.json", with_ends(folder / "tokenizer.json", family).encode())
        else:
            files = {"config.json": said, PROCESSOR: describe_processor(_seen(config, run.data))}
        for name, content in files.items():
            write_atomic(part / name, json.dumps(content, indent=2, ensure_ascii=False).encode())
        write_weights(family, config, model, part, untrained)


def _text_files(folder: Path, run: Run, model: Any, said: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What their folder of a model of text says, beside its tokenizer and weights."""
    tokenizer, family = Tokenizer.load(folder / "tokenizer.json"), run.family
    ends = numbers(tokenizer.special, family)
    max_len = min(model.max_len, LONGEST) if family == "t5" else model.config.max_len
    files = {"config.json": said | ends, "tokenizer_config.json": describe_tokenizer(tokenizer, family, max_len)}
    if family != "bert":
        files[GENERATION] = ends | (_answers(run.decode, max_len) if family != "gpt" else {})
    return files


def _reads_text(config: Any) -> bool:
    return hasattr(config, "vocab")


@contextmanager
def _whole(to: Path) -> Iterator[Path]:
    """A hidden neighbour of a folder that is not there yet; it takes its name once all is written."""
    if to.exists():
        raise ValueError(f"{to} is there already; give another folder, or remove it")
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f".{to.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
        sync_folder(part)
        os.rename(part, to)
        sync_folder(to.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _run(found: Imported, name: str, licence: str, data: dict[str, Any]) -> Run:
    """What run.toml says: enough to go on training, or to answer as the checkpoint would."""
    c, task = found.config, FAMILIES[found.family].tasks[0]
    searched = {"beam_size": found.said.get("num_beams") or 1, "length_penalty": found.said.get("length_penalty")}
    return Run(
        name=re.sub(r"[^\w.+-]", "-", name).lstrip(".") or found.family,
        family=found.family,
        model=c,
        task="class" if _reads_text(c) and getattr(c, "classes", 0) > 0 else task,
        untrained=",".join(found.untrained),
        data=build("data", DataConfig, data),
        decode=build("decode", DecodeConfig, {key: one for key, one in searched.items() if one is not None}),
        licence=licence,
    )


def _text(found: Imported, vocab: int, most: int) -> dict[str, Any]:
    """How a text becomes tokens."""
    max_len = getattr(found.config, "max_len", LONGEST)
    if most:
        max_len = max(2, min(most, max_len) - 2)  # start and end take two places
    return {"tokenizer": TOKENIZERS[found.family], "vocab": vocab, "max_len": max_len}


def _tokenizer(found: Imported, folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint, if it fits its model."""
    inner = read_tokenizer(folder)
    if (most := max(inner.get_vocab().values(), default=0)) >= found.config.vocab:
        raise ValueError(
            f"its tokenizer numbers tokens up to {most:,}, its model has {found.config.vocab:,}; "
            f"they are not of the same checkpoint: download both again"
        )
    tokenizer = Tokenizer(inner)
    _check_special_tokens(found, tokenizer, folder)
    return tokenizer


def _sized(found: Imported, image: int) -> Imported:
    """A checkpoint that sees so many pixels a side; the config.json of a ResNet leaves that to what prepares its pictures."""
    if "image_size" not in found.said:
        return dataclasses.replace(found, config=dataclasses.replace(found.config, image=image))
    if image != found.config.image:
        raise ValueError(f"{PROCESSOR} makes pictures of {image} pixels, its model sees {found.config.image}; "
                         f"they are not of the same checkpoint: download both again")  # fmt: skip
    return found


def _pictures(seen: Seen) -> dict[str, Any]:
    """How a picture becomes what the model sees."""
    return {key: value for key, value in dataclasses.asdict(seen).items() if key != "image"}


def _seen(c: Any, how: Any) -> Seen:
    """What a model of ours sees of a picture."""
    usual = [0.5] * c.channels
    return Seen(c.image, resize_side(how, c.image), how.fit, how.resample, how.mean or usual, how.std or usual)


def _longest(folder: Path) -> int:
    """The most tokens that sentence-transformers gives this model, start and end counted; 0 if it does not say.

    It must make its vector of a text as we do, the mean of its tokens'.
    """
    for module in read_json(folder, "modules.json", list):
        kind = str(module.get("type")).rpartition(".")[2] if isinstance(module, dict) else module
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise ValueError(f"modules.json has a {kind} after the model; regard embeds a text by the mean of its tokens: "
                             f"use a checkpoint without it")  # fmt: skip
        if kind == "Pooling" and not (folder / POOLING).exists():
            raise ValueError(f"there is no {POOLING}, though modules.json has a Pooling; download it")
    if (folder / POOLING).exists():
        said = read_json(folder, POOLING)
        mode = said.get("pooling_mode", [key.removeprefix("pooling_mode_") for key, on in said.items()
                                         if key.startswith("pooling_mode_") and on])  # fmt: skip
        if mode not in ("mean", ["mean"], ["mean_tokens"]):
            raise ValueError(f"{POOLING} has pooling_mode = {mode!r}; regard embeds a text by the mean of its tokens: "
                             f"use a checkpoint that does")  # fmt: skip
    most = read_json(folder, "sentence_bert_config.json").get("max_seq_length")
    return most if isinstance(most, int) and most > 0 else 0


def _check_special_tokens(found: Imported, tokenizer: Tokenizer, folder: Path) -> None:
    """Model and tokenizer must mean the same by padding, by the start of an answer and by its end."""
    special = tokenizer.special
    wanted = numbers(special, found.family)
    if found.family == "gpt":
        del wanted["pad_token_id"]  # it never pads
    else:
        wanted.pop("bos_token_id", None)  # an answer begins with decoder_start_token_id
    said = {"config.json": read_json(folder, "config.json"), GENERATION: read_json(folder, GENERATION)}
    if hasattr(found.config, "pad"):
        said["config.json"]["pad_token_id"] = found.config.pad  # also what is meant where nothing is said
    for file, keys in said.items():
        for key, number in wanted.items():
            if keys.get(key) not in (None, number, [number]):
                [token] = tokenizer.tokens([number])
                raise ValueError(f"{file} has {key} = {keys[key]!r}, its tokenizer has {token} = {number} for that; take the "
                                 f"tokenizer the model was trained with, or correct {file}")  # fmt: skip


def _labels(found: Imported) -> list[str]:
    """The names of the classes, in their order; a number for each that has none."""
    said = found.said.get("id2label")
    named = {str(n): str(label) for n, label in said.items()} if isinstance(said, dict) else {}
    names = [named.get(str(n), f"LABEL_{n}") for n in range(found.config.classes)]
    for n, name in enumerate(names):
        if name.splitlines() != [name] or not name.strip():
            raise ValueError(f"config.json has id2label {n} = {name!r}; wanted a name on one line, as labels.txt has them: "
                             f"correct config.json")  # fmt: skip
    return names


def _licence(folder: Path) -> str:
    """What the front matter of a checkpoint's card says."""
    card = folder / "README.md"
    text = card.read_text(encoding="utf-8", errors="replace") if card.exists() else ""
    said = re.search(r"\A---\n.*?^license: *(\S+) *$.*?^---$", text, flags=re.M | re.S)
    return said[1].strip("'\"") if said else ""


def _card(found: Imported, run: Run, version: str, source: str) -> str:
    kind = (found.said.get("architectures") or [found.said["model_type"]])[0]
    count = sum(p.numel() for p in found.model.parameters())
    parts = " and ".join(HEADS[head] for head in found.untrained)
    lines = [
        "---", "library_name: regard", *([f"license: {run.licence}"] if run.licence else []), "---", f"# {run.name}", "",
        f"The Hugging Face checkpoint `{source}`, a {kind} of {count:,} parameters, imported by regard {version}.",
        *([f"The checkpoint has no weights for {parts}: these start at random and wait for training."] if parts else []), "",
        "Use it in Python:", "", '    regard.load("this/folder")', "",
    ]  # fmt: skip
    return "\n".join(lines)


def _answers(how: DecodeConfig, max_len: int) -> dict[str, Any]:
    """How a run searches, in their words."""
    return {"num_beams": how.beam_size, "length_penalty": how.length_penalty, "early_stopping": how.beam_size > 1,
            "max_length": max_len}  # fmt: skip
