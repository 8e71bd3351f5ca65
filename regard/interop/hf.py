"""Hugging Face checkpoints ↔ run folders: GPT-2, BERT, T5, Marian; ViT, Swin, ResNet; ViT with GPT-2 for captions.

    checkpoint ── fetch ── import_run ──▶ run folder ── export_run ──▶ checkpoint
    config.json, model.safetensors,       config.json, model.safetensors, run.toml, labels.txt, README.md,
    tokenizer.json if there is text,      tokenizer.json if there is text
    preprocessor_config.json if images

Each family has a file with its table; `weights` copies tensors by it, `tokenizer` and `image_processor` convert the rest.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from safetensors.torch import save

from regard.config import Run, build, tasks_of, to_toml
from regard.data.files import create_folder, write_atomic
from regard.data.image.store import resize_side
from regard.data.text.columns import language_of
from regard.data.text.tokenizer import Tokenizer
from regard.interop import weights
from regard.interop.generation import GENERATION, NO_LIMIT, Generation, describe_generation, read_generation
from regard.interop.image_processor import PROCESSOR, ImagePreprocessing, describe_processor, read_processor
from regard.interop.sentence_transformers import (
    FILES,
    SentenceTransformer,
    describe_sentence_transformer,
    read_sentence_transformer,
)
from regard.interop.sentencepiece_tokenizer import MARIAN_FILES, T5_FILE, TARGET_VOCAB
from regard.interop.tables import SEQ2SEQ, TextFormat
from regard.interop.tokenizer import add_special_tokens, describe_tokenizer, read_tokenizers_for
from regard.interop.weights import ImportedModel, export_model, import_model
from regard.models import FAMILIES, load_model, read_config, saved_tensors
from regard.run_folder import RunFolder
from regard.tasks import TASKS, read_run
from regard.version import VERSION

__all__ = ["export_model", "export_run", "fetch", "import_model", "import_run"]

MAX_LEN = 512  # tokens, for a model without a maximum
CAPTION_LEN = 64  # tokens of a caption, for a checkpoint without a maximum
HEADS = {"lm_head": "masked tokens", "pooler": "the pooled vector", "classifier": "classes"}
FETCHED = ["config.json", GENERATION, "model.safetensors", "model.safetensors.index.json", "model-*.safetensors",
           "tokenizer.json", "tokenizer_config.json", "target_tokenizer.json", "vocab.txt",
           "merges.txt", *MARIAN_FILES, TARGET_VOCAB, T5_FILE, *FILES, PROCESSOR, "README.md"]  # fmt: skip


def fetch(name: str) -> Path:
    """Download a checkpoint from the Hugging Face hub, unless cached: only files that are read here, none that run code."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ValueError(f"no folder {name}, and huggingface_hub is not installed: pip install huggingface_hub") from None
    try:
        return Path(snapshot_download(name, allow_patterns=FETCHED))
    except (OSError, ValueError) as error:  # no network, unknown name, invalid name
        first = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(f"no folder {name}, and the download from the hub failed ({first}); check the name and the network, "
                         f"or give a folder") from None  # fmt: skip


def import_run(folder: Path, to: Path, version: str = VERSION, name: str = "") -> tuple[str, ...]:
    """Convert a checkpoint to a run folder; errors and the model card call it `name`, or by its folder.

    Returns what its user should know, such as options of sampling that have no place in a run.
    """
    with create_folder(to) as part, weights.name_errors(name or str(folder)):
        imported, tokenizer, target = weights.read_model(folder), None, None
        generation, sentences = Generation(), SentenceTransformer()
        data: dict[str, object] = {}
        if text := imported.table.text:
            sentences = read_sentence_transformer(folder, imported.config.dim)
            tokenizer, target = read_tokenizers_for(imported, text, folder, lowercase=sentences.lowercase)
            max_len = getattr(imported.config, "max_len", MAX_LEN)
            if sentences.max_len:
                max_len = max(2, min(sentences.max_len, max_len) - 2)  # without start and end
            if text.generates:
                source, vocab = imported.checkpoint, getattr(imported.config, "target_vocab", 0) or imported.config.vocab
                generation = read_generation(source.generation_file, source.generation, text, vocab)
            data |= {"tokenizer": text.tokenizer, "vocab": tokenizer.vocab, "max_len": max_len}
        if default := imported.table.image_processor:
            how = read_processor(folder, default, imported.config.channels)
            imported = _with_image_size(imported, how.image)
            data |= {key: value for key, value in dataclasses.asdict(how).items() if key != "image"}
        if text and default:  # captions, as the checkpoint writes them and as long as it does
            data |= {"normalize": False, "max_len": _caption_limit(imported)}
        languages = _read_languages(folder) if imported.table.model_type == "marian" else ""
        run, files = _make_run(imported, to.name, _read_licence(folder), data, generation, languages), RunFolder(part)
        if tokenizer:
            tokenizer.save(files.tokenizer)
        if target:
            target.save(files.target_tokenizer)
        write_atomic(files.weights, save(saved_tensors(imported.model)))
        files.write_description(run.family, dataclasses.asdict(imported.config), version)
        if labels := _labels(imported):
            files.write_labels(labels)
        notes = (*generation.notes, *_notes_of_heads(imported, sentences))
        write_atomic(files.card, _model_card(imported, run, version, name or folder.name, notes).encode())
        write_atomic(files.run, to_toml(run).encode())
    return notes


def _notes_of_heads(imported: ImportedModel, sentences: SentenceTransformer) -> Iterator[str]:
    """What a user should know of heads that the checkpoint lacks, or that ours does."""
    if imported.dropped:
        yield f"regard's {imported.table.family} has no place for {', '.join(imported.dropped)}: left out"
    if "classifier" in imported.untrained:
        yield "the checkpoint has no weights for classes: these are randomly initialized and need training"
    for name in imported.checkpoint.architectures:
        if _is_embedder(imported.untrained, imported.config) and name.endswith(("ForMaskedLM", "ForSequenceClassification")):
            yield f"config.json has architectures = {name!r}, but there are no weights of its head: the run only embeds texts"
    if _is_embedder(imported.untrained, imported.config) and not sentences.normalizes:
        yield "`regard embed` gives the mean of a text's tokens scaled to length 1; the checkpoint does not scale it"


def _is_embedder(untrained: Sequence[str], config: object) -> bool:
    """Whether a model only embeds texts, as one from sentence-transformers."""
    return "lm_head" in untrained and not getattr(config, "classes", 0)


def export_run(folder: Path, to: Path) -> tuple[str, ...]:
    """Convert a run to a folder for `AutoModel`, `AutoTokenizer` or `AutoImageProcessor`, and pipelines.

    Returns what its user should know.
    """
    run = _read_run(folder)
    family, config, untrained, files_of_run = run.family, run.model, run.untrained, RunFolder(folder)
    if files_of_run.tokenizer.exists() and Tokenizer.load(files_of_run.tokenizer).of_sentencepiece:
        raise ValueError(f"{folder} has a tokenizer made of source.spm, target.spm and vocab.json, which regard does not write; "
                         f"use the checkpoint that it was imported from")  # fmt: skip
    hf = weights.describe_config(family, config, untrained)  # refuses an unsupported model before anything else is read
    with create_folder(to) as part:
        model = load_model(folder)
        if labels := files_of_run.read_labels():
            names = dict(enumerate(labels))
            hf |= {"id2label": names, "label2id": {label: i for i, label in names.items()}}
        table, files, notes = weights.family_of(family, config), dict[str, dict[str, object]](), list[str]()
        if text := table.text:
            files |= _text_files(files_of_run.tokenizer, run, text, hf)
            write_atomic(part / "tokenizer.json", add_special_tokens(files_of_run.tokenizer, text).encode())
            if text.seq2seq and not run.decode.max_length and not table.image_processor:
                notes.append(f"the run has no decode.max_length and stops after 20 + twice the length of the source; "
                             f"transformers will stop at max_length = {files[GENERATION]['max_length']}")  # fmt: skip
            if _is_embedder(untrained, config):
                (part / "1_Pooling").mkdir()
                for name, content in describe_sentence_transformer(config.dim, min(run.data.max_len + 2, config.max_len)).items():
                    write_atomic(part / name, json.dumps(content, indent=2).encode())
        if table.image_processor:
            size, data, half = config.image, run.data, [0.5] * config.channels
            how = ImagePreprocessing(size, resize_side(data, size), data.fit, data.resample, data.mean or half, data.std or half)
            files = {"config.json": hf, **files, PROCESSOR: describe_processor(how)}
        if text and table.image_processor and files[GENERATION].pop(NO_LIMIT, None):
            files[GENERATION]["max_length"] = min(run.data.max_len + 2, config.max_len)  # start and end included
        if getattr(config, "target_vocab", 0):
            write_atomic(
                part / "target_tokenizer.json", add_special_tokens(files_of_run.target_tokenizer, text or SEQ2SEQ).encode()
            )
        for name, content in files.items():
            write_atomic(part / name, json.dumps(content, indent=2, ensure_ascii=False).encode())
        weights.write_weights(family, config, model, part, untrained)
    return tuple(notes)


def _read_run(folder: Path) -> Run:
    (family, config), files = read_config(folder), RunFolder(folder)
    if files.started:
        return dataclasses.replace(read_run(files.run), family=family, model=config)
    return Run(folder.name, family, config, data=TASKS[tasks_of(FAMILIES[family], TASKS)[0]].data())


def _make_run(imported: ImportedModel, name: str, licence: str, data: Mapping[str, object], generation: Generation,
              languages: str) -> Run:  # fmt: skip
    """The run.toml of a checkpoint: enough to continue training, and to predict as the checkpoint does."""
    family = imported.table.family
    classes = getattr(imported.config, "classes", 0) > 0
    task = next(name for name in tasks_of(FAMILIES[family], TASKS) if ("classifier" in TASKS[name].trains) == classes)
    return Run(re.sub(r"[^\w.+-]", "-", name).lstrip(".") or family, family, imported.config, task=task, decode=generation.decode,
               data=build("data", TASKS[task].data, data), untrained=imported.untrained, licence=licence,
               languages=languages)  # fmt: skip


def _read_languages(folder: Path) -> str:
    """The two languages of an OPUS-MT checkpoint, as "en-fr"; "" if it names a group of languages, such as ROMANCE, or none."""
    options = weights.read_json(folder, "tokenizer_config.json")
    named = [language_of(str(options.get(key, ""))) for key in ("source_lang", "target_lang")]
    return "-".join(named) if all(named) else ""


def _text_files(tokenizer_file: Path, run: Run, text: TextFormat, hf: dict[str, object]) -> dict[str, dict[str, object]]:
    """The JSON files of a text model."""
    tokenizer, max_len = Tokenizer.load(tokenizer_file), getattr(run.model, "max_len", MAX_LEN)
    ids: dict[str, object] = {**weights.special_token_ids(tokenizer.special, text)}
    files = {"config.json": hf | ids, "tokenizer_config.json": describe_tokenizer(tokenizer, text, max_len)}
    if text.generates:
        files[GENERATION] = ids | describe_generation(run.decode, max_len, text.seq2seq)
    return files


def _with_image_size(imported: ImportedModel, image: int) -> ImportedModel:
    """Set the image size if config.json has none, as a ResNet's; else check it."""
    encoder = imported.checkpoint.get("encoder", imported.checkpoint.config)
    if isinstance(encoder, dict) and "image_size" not in encoder:
        return dataclasses.replace(imported, config=dataclasses.replace(imported.config, image=image))
    if image != imported.config.image:
        raise ValueError(f"{PROCESSOR} makes images of {image} pixels, its model wants {imported.config.image}; "
                         f"they are not from the same checkpoint: download both again")  # fmt: skip
    return imported


def _caption_limit(imported: ImportedModel) -> int:
    """The longest caption in tokens, without start and end: as the checkpoint generates, or as our data has it."""
    limit = imported.checkpoint.generation.get("max_length")
    limit = limit - 2 if isinstance(limit, int) else CAPTION_LEN  # theirs includes the start and end tokens
    return max(2, min(limit, imported.config.max_len - 1))


def _labels(imported: ImportedModel) -> list[str]:
    """The names of the classes, in order; LABEL_n for a class without a name."""
    id2label = imported.checkpoint.get("id2label")
    known = {str(i): str(label) for i, label in id2label.items()} if isinstance(id2label, dict) else {}
    labels = [known.get(str(i), f"LABEL_{i}") for i in range(getattr(imported.config, "classes", 0))]
    for i, label in enumerate(labels):
        if label.splitlines() != [label] or not label.strip():
            raise ValueError(f"config.json has id2label {i} = {label!r}; wanted a name on one line, as in labels.txt: "
                             f"correct config.json")  # fmt: skip
    return labels


def _read_licence(folder: Path) -> str:
    """The licence in the front matter of a checkpoint's model card."""
    card = folder / "README.md"
    text = card.read_text(encoding="utf-8", errors="replace") if card.exists() else ""
    licence = re.search(r"\A---\n.*?^license: *(\S+) *$.*?^---$", text, flags=re.M | re.S)
    return licence[1].strip("'\"") if licence else ""


def _model_card(imported: ImportedModel, run: Run, version: str, source: str, notes: Sequence[str]) -> str:
    kind = (imported.checkpoint.architectures or [imported.table.model_type])[0]
    count = sum(p.numel() for p in imported.model.parameters())
    parts = " and ".join(HEADS[head] for head in imported.untrained if head != "classifier")  # which has a note
    lines = [
        "---", "library_name: regard", *([f"license: {run.licence}"] if run.licence else []), "---", f"# {run.name}", "",
        f"The Hugging Face checkpoint `{source}`, a {kind} of {count:,} parameters, imported by regard {version}.",
        *([f"The checkpoint has no weights for {parts}: these are randomly initialized and need training."] if parts else []),
        *(f"Note: {note}." for note in notes),
        "", "Use it in Python:", "", '    regard.load("this/folder")', "",
    ]  # fmt: skip
    return "\n".join(lines)
