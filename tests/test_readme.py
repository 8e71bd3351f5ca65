"""The README keeps its word: its tree is the tree, its commands run as they are pasted."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DATA = Path(os.environ.get("REGARD_DATA", "nowhere"))


def blocks() -> list[str]:
    return re.findall(r"^```[a-z]*\n(.*?)^```", README, flags=re.M | re.S)


def tree() -> list[str]:
    """Paths of the README's tree: an indented name belongs to the folder above it."""
    [block] = [b for b in blocks() if b.startswith("README.md")]
    folders: list[str] = []
    paths = []
    for line in block.splitlines():
        indent, name = re.match(r"((?:│   |    )*(?:├── |└── )?)(\S+)", line).groups()
        depth = len(indent) // 4
        folders[depth:] = [name] if name.endswith("/") else []
        paths.append("".join(folders[:depth]) + name)
    return paths


def test_every_file_stands_in_the_tree_once_and_nothing_else_does():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split(
        "\n"
    )
    if not any(listed):
        pytest.skip("not a git checkout; clone the repository to compare its files with the tree")
    wanted = {
        f
        for f in listed
        if f and not f.startswith((".git", "tests/")) and not f.endswith("__init__.py") and (ROOT / f).exists()
    }
    named = [p for p in tree() if not p.endswith("/")]
    assert len(named) == len(set(named))
    assert set(named) == wanted
    folders = {p for p in tree() if p.endswith("/")}
    assert all((ROOT / f).is_dir() for f in folders)
    assert {
        f"tests/{p.name}/" for p in (ROOT / "tests").iterdir() if p.is_dir() and not p.name.startswith(("__", "."))
    } <= folders


def test_every_line_of_the_tree_says_what_the_file_is_for():
    [block] = [b for b in blocks() if b.startswith("README.md")]
    for line in block.splitlines():
        assert re.search(r"\S\s{2,}\S", line.lstrip("│├└─ ")), f"no words after: {line}"


def test_links_and_pictures_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`?make ([a-z-]+)", README))))
def test_make_knows_the_targets_the_readme_names(target):
    subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


def commands() -> list[list[str]]:
    return [
        shlex.split(line, comments=True)
        for block in blocks()
        for line in block.splitlines()
        if line.startswith("regard ")
    ]


@pytest.mark.skipif(
    not (DATA / "multi30k").is_dir(),
    reason="set REGARD_DATA to a folder that holds multi30k/ to run the README's commands",
)
def test_the_commands_run_as_they_are_pasted(regard, tmp_path, monkeypatch, minilm):
    """Each command as it stands, in order, in an empty folder; trainings get three steps more than none."""
    monkeypatch.chdir(tmp_path)
    pairs = [f"I see {n} birds .\tIch sehe {n} Vögel .\n" for n in range(40)]
    (tmp_path / "my.tsv").write_text("".join(pairs), encoding="utf-8")
    (tmp_path / "held.tsv").write_text("".join(pairs[:5]), encoding="utf-8")
    (tmp_path / "all-MiniLM-L6-v2").symlink_to(minilm)
    for name in (
        "cat.jpg",
        "dog.png",
        "boot.png",
        *(f"photos/{label}/{n}.png" for label in ("a", "b") for n in range(3)),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((40, 30), 60).convert("RGB").save(tmp_path / name)
    few = ["train.steps=3", "train.save_every=2", "decode.beam_size=1"]
    shape = ["data.vocab=300", "model.dim=16", "model.depth=1", "model.heads=2"]
    small = {"fashion-vit": ["model.dim=18"], "cifar10-swin": ["model.dim=16"],
             "images": ["train.batch_size=2", "model.image=32"],
             "mnist-image-gpt": ["model.dim=16", "model.depth=1", "model.heads=2", "model.image=8"]}  # fmt: skip
    seen = set()
    for words in commands():
        seen.add(words[1])
        extra = few if words[1] == "train" and "--resume" not in words else []
        if extra and not any(word.startswith("init=") for word in words):
            extra = [*extra, *small.get(words[2], shape)]
        extra = ["--beam", "1"] if words[1] == "score" else extra
        done = regard(*words[1:], *extra)  # in this process: importing torch for each takes longer than the commands
        assert done.code == 0, f"{words}: {done.err}"
        assert done.out, words
    texts = {"generate", "fill", "classify", "ask", "embed", "import", "export"}
    assert seen == {"train", "translate", "score", "show", "cost", *texts}
    for picture in ("bike.png", "bank.png", "boot-attention.png", "samples.png"):
        assert (tmp_path / picture).stat().st_size > 1000


def test_the_python_example_runs(small_run):
    [block] = [b for b in blocks() if b.startswith("import regard")]
    names: dict[str, object] = {}
    exec(
        compile(block.replace("runs/multi30k", str(small_run)).replace("decoder.3", "decoder.0"), "README.md", "exec"),
        names,
    )
    assert names["weights"].shape[:3] == (1, 2, 1)  # this run searches greedily, with 2 heads, a token at a time


def test_the_sentences_of_the_demo_are_held_out_from_its_training():
    from regard.data.text.toys import toy_pairs

    [line] = [
        line for line in (ROOT / "Makefile").read_text().splitlines() if "regard translate runs/phrasebook" in line
    ]
    held_out = {source for source, _ in toy_pairs("phrasebook", "test", 20_000)}
    sentences = re.findall(r'"([^"]+)"', line)
    assert len(sentences) == 3
    assert set(sentences) <= held_out


def test_the_public_names_are_the_same_for_python_and_for_type_checkers():
    import regard

    text = (ROOT / "regard" / "__init__.py").read_text()
    typed = set(re.findall(r"^    from regard\.\S+ import \w+ as (\w+)", text, flags=re.M))
    assert typed | {"__version__"} == set(regard.__all__)
    for name in regard.__all__:
        assert getattr(regard, name) is not None
