"""The README is true: its commands and its Python example run as pasted."""

import ast
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DATA = Path(os.environ.get("REGARD_DATA", "nowhere"))
TINY_CAPTIONER = ["data.vocab=300", "model.dim=16", "model.hidden=16", "model.encoder.image=32", "model.encoder.dims=[8,8]",
                  "model.encoder.depths=[1,1]", "train.batch_size=8"]  # fmt: skip
TINY_CONFORMER = ["model.dim=16", "model.depth=1", "model.heads=2"]


def blocks() -> list[str]:
    return re.findall(r"^```[a-z]*\n(.*?)^```", README, flags=re.M | re.S)


def test_the_readme_is_one_page():
    assert len(README.splitlines()) <= 140


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`?make ([a-z-]+)", README))))
def test_make_knows_the_targets_the_readme_names(target):
    subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


def commands() -> list[list[str]]:
    """The commands of the README, with those in its comments ("your own text: regard train …")."""
    lines = [line for block in blocks() for line in block.splitlines() if line.startswith("regard ")]
    own = [found[1] for line in lines if (found := re.search(r"your own[a-z ]*: (regard .*[^.])$", line))]
    return [shlex.split(line, comments=True) for line in (*lines, *own)]


@pytest.mark.skipif(
    not (DATA / "multi30k").is_dir(), reason="set REGARD_DATA to a folder that holds multi30k/ to run the README's commands"
)
def test_the_commands_run_as_pasted(regard, tmp_path, monkeypatch, minilm):
    """Run each command as written, in order, in an empty folder; trainings take three steps."""
    monkeypatch.chdir(tmp_path)
    pairs = [f"I see {n} birds .\tIch sehe {n} Vögel .\n" for n in range(40)]
    (tmp_path / "my.tsv").write_text("".join(pairs), encoding="utf-8")
    (tmp_path / "valid.tsv").write_text("".join(pairs[:5]), encoding="utf-8")
    (tmp_path / "all-MiniLM-L6-v2").symlink_to(minilm)
    for name in (
        "cat.jpg",
        "dog.png",
        "boot.png",
        "photo.jpg",
        *(f"photos/{label}/{n}.png" for label in ("a", "b") for n in range(3)),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((40, 30), 60).convert("RGB").save(tmp_path / name)
    (tmp_path / "captions.tsv").write_text(
        "".join(f"photos/{label}/{n}.png\ta photo of {label}\n" for label in "ab" for n in range(3))
    )
    for name in ("clip.wav", "clip2.wav"):
        soundfile.write(tmp_path / name, np.sin(np.arange(16_000) / 10), 16_000)
    (tmp_path / "speech.tsv").write_text("clip.wav\ta b\nclip2.wav\tb a\n")
    (tmp_path / "my.txt").write_text("The cat sat on the mat.\n" * 100)
    (tmp_path / "film.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nA man is riding a bike.\n")
    (tmp_path / "terms.tsv").write_text("bike\tRad\n")
    few = ["train.steps=3", "train.save_every=2", "decode.beam_size=1"]
    shape = ["data.vocab=300", "model.dim=16", "model.depth=1", "model.heads=2"]
    small = {"fashion-vit": ["model.dim=18"], "images": ["train.batch_size=2", "model.image=32"],
             "multi30k-seq2seq": ["data.vocab=300", "model.dim=16", "model.hidden=16"],
             "multi30k-bahdanau": ["data.vocab=300", "model.dim=16", "model.hidden=16", "model.readout=16"],
             "wikitext-word2vec": ["model.dim=16"],
             "wikitext-elmo": ["data.vocab=300", "model.dim=16", "model.cells=8", "model.filters=[4]", "model.characters=8"],
             "flickr8k-attend": TINY_CAPTIONER, "captions": [*TINY_CAPTIONER, "train.batch_size=2"],
             "an4-joint": TINY_CONFORMER, "speech": TINY_CONFORMER,
             "mnist-image-gpt": ["model.dim=16", "model.depth=1", "model.heads=2", "model.image=8"]}  # fmt: skip
    assert regard("train", "phrasebook", *few, *shape).code == 0  # as `make demo` does
    verbs = set()
    for words in commands():
        verbs.add(words[1])
        if words[1] == "serve":  # runs until it is stopped
            _serve(words[2:])
            continue
        extra = few if words[1] == "train" and "--resume" not in words else []
        if extra and not any(word.startswith("init=") for word in words):
            extra = [*extra, *small.get(words[2], shape)]
        extra = ["--beam", "1"] if words[1] == "score" and "images" not in words[2] else extra
        done = regard(*words[1:], *extra)  # in this process: importing torch for each takes longer than the commands
        assert done.code == 0, f"{words}: {done.err}"
        assert done.out, words
    texts = {"generate", "fill", "classify", "ask", "embed", "neighbors", "import", "export", "caption", "transcribe"}
    assert verbs == {"train", "translate", "score", "compare", "show", "serve", "trace", "cost", *texts}
    for image in ("map.html", "lengths.png", "boot-attention.png", "samples.png", "words.png"):
        assert (tmp_path / image).stat().st_size > 1000


def _serve(arguments: list[str]) -> None:
    """Start the server as a user does, on a free port, and send it the curl command of the README."""
    server = subprocess.Popen([sys.executable, "-m", "regard", "serve", *arguments, "--port", "0"], stdout=subprocess.PIPE,
                              text=True)  # fmt: skip
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        [line] = [line for block in blocks() for line in block.splitlines() if line.startswith("curl ")]
        curl = shlex.split(line)
        request = urllib.request.Request(
            curl[-1].replace("http://127.0.0.1:8000", address), curl[curl.index("-d") + 1].encode(),
            dict([curl[curl.index("-H") + 1].split(": ")])
        )  # fmt: skip
        with urllib.request.urlopen(request) as answer:
            assert "translatedText" in json.load(answer)
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)


def test_the_python_example_runs(small_run, tmp_path, monkeypatch):
    [block] = [b for b in blocks() if b.startswith("import regard")]
    names: dict[str, object] = {}
    monkeypatch.chdir(tmp_path)
    exec(compile(block.replace("runs/multi30k", str(small_run)).replace("decoder.3", "decoder.0"), "README.md", "exec"), names)
    assert names["weights"].shape[:3] == (1, 2, 1)  # greedy, 2 heads, one token per step


def test_the_sentences_of_the_demo_are_not_in_its_training_data():
    from regard.data.text.toys import toy_pairs

    [line] = [line for line in (ROOT / "Makefile").read_text().splitlines() if "regard translate runs/phrasebook" in line]
    unseen = {source for source, _ in toy_pairs("phrasebook", "test", 20_000)}
    sentences = re.findall(r'"([^"]+)"', line)
    assert len(sentences) == 3
    assert set(sentences) <= unseen


def test_public_names_are_the_same_at_run_time_and_for_type_checkers():
    import regard

    stub = ast.parse((ROOT / "regard" / "__init__.pyi").read_text())  # what type checkers read
    typed = {name.asname for line in stub.body if isinstance(line, ast.ImportFrom) for name in line.names}
    assert len(typed) > 30
    assert typed | {"__version__"} == set(regard.__all__)
    for name in regard.__all__:
        assert getattr(regard, name) is not None
