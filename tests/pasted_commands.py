"""Running the commands of documents as pasted, in a folder of small inputs: trainings take three steps, of small models."""

import gzip
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import soundfile
from PIL import Image

from regard.data.text.toys import TOYS

ROOT = Path(__file__).parent.parent
FEW = ["train.steps=3", "train.save_every=2", "decode.beam_size=1"]
TEXT = ["data.vocab=300", "model.dim=16", "model.depth=3", "model.heads=4"]
SMALL = {  # changes that make a model of each family small
    "transformer": TEXT, "gpt": TEXT, "bert": TEXT, "t5": TEXT,
    "seq2seq": ["data.vocab=300", "model.dim=16", "model.hidden=16"],
    "bahdanau": ["data.vocab=300", "model.dim=16", "model.hidden=16", "model.readout=16"],
    "word2vec": ["model.dim=16"],
    "elmo": ["data.vocab=300", "model.dim=16", "model.cells=8", "model.filters=[4]", "model.characters=8"],
    "vit": ["model.dim=18", "model.depth=2"], "swin": ["model.dim=8", "model.depths=[2,1]", "model.heads=[2,2]"],
    "mvit": ["model.dim=8", "model.depths=[1,1]"], "lrnet": ["model.dims=[16,16]", "model.widths=[16,16]", "model.depths=[1,1]"],
    "resnet": ["model.dims=[16,16,16]", "model.depths=[1,1,1]", "model.heads=2", "model.image=32"],
    "image-gpt": ["model.dim=16", "model.depth=1", "model.heads=2", "model.image=8"],
    "captioner": ["data.vocab=300", "model.dim=16", "model.hidden=16", "model.encoder.image=32", "model.encoder.dims=[8,8]",
                  "model.encoder.depths=[1,1]", "train.batch_size=8"],
    "caption-transformer": ["data.vocab=300", "model.dim=16", "model.depth=1", "model.heads=2"],
    "conformer": ["model.dim=16", "model.depth=1", "model.heads=2"],
}  # fmt: skip
OWN_FILES = {"translate": "my.tsv", "classify": "labelled.tsv", "gpt": "my.txt", "images": "photos/", "captions": "captions.tsv",
             "speech": "speech.tsv"}  # fmt: skip
ORIGINS = {"general": "multi30k", "mine": "multi30k", "enfr": "multi30k", "tuned": "multi30k",
           "de-en": "multi30k", "classes": "classify"}  # fmt: skip

BEGINNINGS = {"multi30k": 500, "tatoeba-en-it": 500, "tatoeba-en-de": 500, "tatoeba-en-fr": 500, "wikitext-2": 2000,
              "tinyshakespeare": 4000, "sst2": 200, "agnews-small": 200, "flickr8k": 200}  # fmt: skip


class Pasted(NamedTuple):
    """A command as it is written, and the curl command that its code block sends to it, if it is a server."""

    words: tuple[str, ...]
    curl: str = ""


def blocks(text: str) -> list[str]:
    return re.findall(r"^```[a-z]*\n(.*?)^```", text, flags=re.M | re.S)


def commands(text: str) -> list[Pasted]:
    """The commands in the code blocks of a document: those of `regard`, and of the shell between them."""
    found = []
    for block in blocks(text):
        lines = block.splitlines()
        curl = next((line for line in lines if line.startswith("curl ")), "")
        if any(line.startswith("regard ") for line in lines):
            lines = [line for line in lines if re.match(r"(regard|cut|paste) ", line)]
            found += [Pasted(tuple(shlex.split(line, comments=True)), curl if line.startswith("regard serve") else "")
                      for line in lines]  # fmt: skip
    return found


def commands_in_text(text: str) -> list[Pasted]:
    """The commands between the code blocks that say all they need: no … and no placeholder such as RUN."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    spans = re.findall(r"`(regard [a-z]+ [^`\n]+)`", prose)
    lines = [shlex.split(span) for span in spans if "…" not in span]
    return [Pasted(tuple(words)) for words in lines if not any(re.search(r"(^|[/|])[A-Z]{3,}$", word) for word in words)
            and words[2:] and not words[2].startswith("-")]  # fmt: skip


def write_inputs(folder: Path, minilm: Path) -> None:
    """The files that the commands of the documents read."""
    pairs = [f"I see {n} birds .\tIch sehe {n} Vögel .\n" for n in range(40)]
    sources, targets = zip(*(pair.rstrip("\n").split("\t") for pair in pairs), strict=True)
    tmx = "".join(f'<tu><tuv xml:lang="en"><seg>I hear {n} dogs .</seg></tuv><tuv xml:lang="de"><seg>Ich höre {n} Hunde .</seg>'
                  "</tuv></tu>" for n in range(40))  # fmt: skip
    labelled = [f"a {word} film {n}\t{label}\n" for n in range(20) for word, label in (("good", "for"), ("bad", "against"))]
    texts = {
        "labelled.tsv": "".join(labelled), "labelled-valid.tsv": "".join(labelled[:4]),
        "my.tsv": "".join(pairs), "valid.tsv": "".join(pairs[:5]), "general.tsv": "".join(pairs[10:]),
        "references.tsv": "".join(f"{pair.rstrip()}\tIch kann {n} Vögel sehen .\n" for n, pair in enumerate(pairs[:5])),
        "pairs.csv": "German,English\n" + "".join(f'"{b}","{a}"\n' for a, b in zip(sources, targets, strict=True)),
        "terms.csv": "English,German\nbird,Vogel\n" * 20,
        "memory.tmx": f'<tmx version="1.4"><header srclang="en"/><body>{tmx}</body></tmx>',
        "train.en": "\n".join(sources) + "\n", "train.de": "\n".join(targets) + "\n", "mono.de": "\n".join(targets) + "\n",
        "my.txt": "The cat sat on the mat.\n" * 100, "valid.txt": "The cat sat on the mat.\n" * 10, "terms.tsv": "bike\tRad\n",
        "film.srt": "1\n00:00:01,000 --> 00:00:02,000\nA man is riding a bike.\n",
        "captions.tsv": "".join(f"photos/{label}/{n}.png\ta photo of {label}\n" for label in "ab" for n in range(3)),
        "speech.tsv": "clip.wav\ta b\nclip2.wav\tb a\n",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "all-MiniLM-L6-v2").symlink_to(minilm)
    photos = [f"photos/{label}/{n}.png" for label in ("a", "b") for n in range(3)]
    for name in ("cat.jpg", "dog.png", "new.jpg", "boot.png", "photo.jpg", "shapes.png", *photos):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((40, 30), 60).convert("RGB").save(folder / name)
    for name in ("clip.wav", "clip2.wav"):
        soundfile.write(folder / name, np.sin(np.arange(16_000) / 10), 16_000)


def write_data(folder: Path) -> None:
    """The data sets of $REGARD_DATA: of large texts these lines of the training data, and 200 of the rest."""
    home = Path(os.environ["REGARD_DATA"])
    for file in (file for file in home.rglob("*") if file.is_file()):
        copy, lines = folder / file.relative_to(home), BEGINNINGS.get(file.relative_to(home).parts[0], 0)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not lines or file.suffix != ".gz":
            copy.symlink_to(file)
            continue
        with gzip.open(file) as whole, gzip.open(copy, "w", 1) as beginning:
            beginning.writelines(islice(whole, lines if file.name.startswith(("train", "input")) else 200))


def fewer(words: tuple[str, ...]) -> list[str]:
    """What is added to a command so that it takes seconds."""
    if words[1] == "train":
        if "--resume" in words:
            return ["train.steps=4"]
        changes = [word for word in words[3:] if re.match(r"[a-z_.]+=", word)]
        if any(change.startswith(("init=", "init_encoder=", "task=")) for change in changes):
            return FEW
        return [*FEW, *small_model(words[2], changes)]
    return []


def small_model(recipe: str, changes: list[str]) -> list[str]:
    """Changes that make the model of a recipe small, without those that the command itself makes."""
    from regard.tasks import read_run

    own_runs = ("data.train=", "data.valid=", "data.mix=")
    run = read_run(recipe, [change for change in changes if not change.startswith(own_runs)])
    named = {change.partition("=")[0] for change in changes}
    small = [change for change in SMALL.get(run.family, []) if change.partition("=")[0] not in named]
    if getattr(run.data, "source", "") in TOYS and "data.pairs" not in named:
        small += ["data.pairs=300"]
    if recipe in ("images", "captions"):
        small += ["train.batch_size=2"]
    return small


class Folder:
    """A folder in which commands run; runs that they name and nobody has trained are trained first."""

    def __init__(self, path: Path, minilm: Path):
        self.path, self.done = path, set[tuple[str, ...]]()
        self.data = path / ".data"
        write_inputs(path, minilm)
        write_data(self.data)

    def enter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Be in this folder, with its data sets, for one test."""
        monkeypatch.chdir(self.path)
        monkeypatch.setenv("REGARD_DATA", str(self.data))

    def run(self, command: Pasted, regard: Callable) -> None:
        """Run a command that has not run yet; it must succeed."""
        if command.words in self.done:
            return
        self.done.add(command.words)
        words = list(command.words)
        if "opus-mt-en-fr/" in words:
            from spm_checkpoints import marian_folder  # transformers and sentencepiece take seconds to import

            marian_folder(self.path / "opus-mt-en-fr")
        written = {words[i + 1] for i, word in enumerate(words[:-1]) if word in ("--out", "--to")}
        for name in re.findall(r"runs/([\w-]+)", " ".join(words)):
            if f"runs/{name}" not in written:
                self.need(name, regard)
        if words[0] in ("cut", "paste"):
            to = words.index(">")
            done = subprocess.run(words[:to], capture_output=True, check=True, cwd=self.path)
            (self.path / words[to + 1]).write_bytes(done.stdout)
            return
        if words[1] == "serve":  # runs until it is stopped
            serve(words[2:], command.curl)
            return
        if words[1] == "train" and "--resume" not in words and "--fresh" not in words:
            target = words[words.index("--out") + 1] if "--out" in words else f"runs/{words[2]}"
            words += ["--fresh"] if (self.path / target).exists() else []  # another page has trained it
        if words[1:3] == ["train", "classify"]:  # there my.tsv has a text and its class on each line
            words = [word.replace("=my", "=labelled").replace("=valid", "=labelled-valid") for word in words]
        target = words[words.index(">") + 1] if ">" in words else ""
        words = words[: words.index(">")] if target else words
        result = regard(*words[1:], *fewer(tuple(words)))  # in this process: importing torch takes longer than most commands
        assert result.code == 0, f"{words}: {result.err}"
        assert result.out, words
        if target:
            (self.path / target).write_text(result.out, encoding="utf-8")

    def need(self, name: str, regard: Callable) -> None:
        """Train a run that something needs, from the recipe of its name, unless it is there."""
        if (self.path / "runs" / name / "config.json").exists():
            return
        if name == "minilm":
            words = ["import", "all-MiniLM-L6-v2/", "--to", "runs/minilm"]
        else:
            recipe = ORIGINS.get(name, name)
            own = [f"data.train={OWN_FILES[recipe]}"] if recipe in OWN_FILES else []
            words = ["train", recipe, *own, "--out", f"runs/{name}", *FEW, *small_model(recipe, [])]
        result = regard(*words)
        assert result.code == 0, f"{words}: {result.err}"


def serve(arguments: list[str], curl: str) -> None:
    """Start the server as a user does, on a free port, and send it a curl command."""
    server = subprocess.Popen([sys.executable, "-m", "regard", "serve", *arguments, "--port", "0"], stdout=subprocess.PIPE,
                              text=True)  # fmt: skip
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address.startswith("http"), address
        if curl:
            words = shlex.split(curl)
            request = urllib.request.Request(
                words[-1].replace("http://127.0.0.1:8000", address), words[words.index("-d") + 1].encode(),
                dict([words[words.index("-H") + 1].split(": ")])
            )  # fmt: skip
            with urllib.request.urlopen(request) as answer:
                assert "translatedText" in json.load(answer)
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
