"""`regard score`: how many examples, which are training data, where the model is wrong; the card's own command."""

import json
import re
import shutil

import numpy as np
import pytest
from cli_checks import assert_refused
from PIL import Image
from small import SMALL

SHAPE = ("model=vit-tiny", "model.image=16", "model.patch=8", "model.dim=16", "model.depth=1", "model.heads=2")
FEW = ("train.steps=4", "train.batch_size=4", "train.eval_every=4", "train.save_every=4")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Ten photos of each class, all different."""
    home, rng = tmp_path_factory.mktemp("photos") / "all", np.random.default_rng(1)
    for label in ("day", "night"):
        (home / label).mkdir(parents=True)
        for number in range(10):
            Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(home / label / f"{number}.png")
    return home


@pytest.fixture(scope="module")
def image_run(photos, tmp_path_factory):
    from regard.tasks import read_run
    from regard.train.loop import fit

    folder = tmp_path_factory.mktemp("runs") / "images"
    fit(read_run("images", (*SHAPE, *FEW, f"data.train={photos}")), folder)
    return folder


def test_training_photos_in_a_folder_are_counted_and_the_held_out_ones_scored_apart(regard, image_run, photos, tmp_path):
    result = regard("score", image_run, "--on", photos)
    assert "18 of 20 images are training images: the scores are too high" in result.err
    assert re.search(r"accuracy, held-out  \(\d of 2 images that are not in the training data; 95 % confidence", result.out)
    copied = tmp_path / "copied"
    (copied / "day").mkdir(parents=True)
    for number in range(3):  # training photos among them, under other names
        shutil.copy(photos / "day" / f"{number}.png", copied / "day" / f"holiday{number}.png")
    Image.fromarray(np.zeros((20, 24, 3), np.uint8)).save(copied / "day" / "new.png")
    counted = regard("score", image_run, "--on", copied).err
    assert re.search(r"[23] of 4 images are training images", counted)
    shutil.rmtree(copied / "day")
    (copied / "day").mkdir()
    Image.fromarray(np.zeros((20, 24, 3), np.uint8)).save(copied / "day" / "new.png")
    assert "none of the 1 images are training images" in regard("score", image_run, "--on", copied).err


def test_images_of_the_run_that_was_fine_tuned_are_training_images_too(regard, image_run, photos, tmp_path):
    from regard.tasks import read_run
    from regard.train.loop import fit

    rng = np.random.default_rng(2)
    for label in ("day", "night"):
        (tmp_path / "new" / label).mkdir(parents=True)
        for number in range(3):
            Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(tmp_path / "new" / label / f"{number}.png")
    fit(read_run("images", (*FEW, f"data.train={tmp_path}/new", f"init={image_run}")), tmp_path / "run")
    assert "18 of 20 images are training images" in regard("score", tmp_path / "run", "--on", photos).err


def test_photos_are_scored_without_the_training_folder_too(regard, image_run, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "copy")
    shutil.copytree(image_run, tmp_path / "run")
    toml = (tmp_path / "run/run.toml").read_text().replace(str(photos), str(tmp_path / "gone"))
    (tmp_path / "run/run.toml").write_text(toml)
    result = regard("score", tmp_path / "run", "--on", tmp_path / "copy")
    assert result.code == 0
    assert "not checked whether training images are among them" in result.err
    assert "held-out" not in result.out


def test_errors_of_photos_name_files_classes_and_training_data(regard, image_run, photos, tmp_path):
    shown = regard("score", image_run, "--on", photos, "--errors", "--out", tmp_path / "errors.tsv")
    assert shown.code == 0, shown.err
    assert "confusion matrix" in shown.out
    assert "recall" in shown.out
    rows = [line.split("\t") for line in (tmp_path / "errors.tsv").read_text().splitlines()][1:]
    assert sorted(row[0] for row in rows) == sorted(str(file) for file in photos.glob("*/*.png"))
    assert all(row[2] in row[0] for row in rows)  # the class is the folder
    assert sorted(row[5] for row in rows).count("held-out") == 2
    wrong = [row for row in rows if row[4] == "no"]
    found = json.loads(regard("score", image_run, "--on", photos, "--errors", "--json").out)
    assert len(found["worst"]) == len(wrong)
    assert sum(map(sum, found["confusion"])) == found["examples"] == 20
    assert found["scores"][0]["name"] == "accuracy"
    assert found["scores"][0]["low"] < found["scores"][0]["value"] < found["scores"][0]["high"]
    held_out = json.loads(regard("score", image_run, "--errors", "--json").out)
    assert held_out["examples"] == 2
    assert not any(row["in_training_data"] for row in held_out["worst"])


def test_translations_are_counted_and_those_in_the_training_data_said(regard, tmp_path):
    rows = [f"{a} {b}\t{b} {a}\n" for a in "abcdef" for b in "ghijkl"]
    (tmp_path / "train.tsv").write_text("".join(rows[:30]))
    (tmp_path / "valid.tsv").write_text("".join(rows[30:]) + rows[0])
    run = tmp_path / "run"
    made = regard("train", "reverse", *SMALL, "data.source=", f"data.train={tmp_path}/train.tsv",
                  f"data.valid={tmp_path}/valid.tsv", "train.steps=5", "--out", run)  # fmt: skip
    assert made.code == 0, made.err
    assert f"data.valid={tmp_path}/valid.tsv train.steps=5 --out {run}\n" in (run / "README.md").read_text()
    result = regard("score", run, "--errors", "--out", tmp_path / "errors.json")
    assert "1 of 7 sentences are in the training data: the scores are too high" in result.err
    assert "BLEU  (7 sentences; nrefs:1|" in result.out
    assert "BLEU, held-out  (6 sentences that are not in the training data; nrefs:1|" in result.out
    assert re.search(r"\d\.\d\d %  exact match  \(\d of 7 answers equal to a reference", result.out)
    assert "lowest sentence chrF" in result.out
    found = json.loads((tmp_path / "errors.json").read_text())
    assert [row["input"] for row in found["all"] if row["in_training_data"]] == ["a g"]
    values = [row["chrF"] for row in found["worst"]]
    assert values == sorted(values)
    plain = json.loads(regard("score", run, "--json").out)
    assert {score["examples"] for score in plain} == {6, 7}
    (tmp_path / "train.tsv").unlink()
    gone = regard("score", run)
    assert gone.code == 0
    assert "not checked whether sentences are in the training data" in gone.err


@pytest.mark.parametrize(("third", "signature"), [("ein hund schlief", "nrefs:2|"), ("", "nrefs:var|")])
def test_every_reference_column_counts_and_the_signature_says_so(regard, small_run, tmp_path, third, signature):
    rows = [("a b c", "der hund lief", "ein hund lief"), ("d e f", "der mann lief", "ein mann lief"),
            ("c a b", "der hund schlief", third)]  # fmt: skip
    (tmp_path / "own.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    found = json.loads(regard("score", small_run, "--on", tmp_path / "own.tsv", "--errors", "--json").out)
    assert all(signature in score["signature"] for score in found["scores"] if score["name"].startswith(("BLEU", "chrF")))
    assert found["examples"] == 3
    references = {row["input"]: row["references"] for row in found["worst"]}
    assert references["a b c"] == ["der hund lief", "ein hund lief"]
    assert references["c a b"] == ["der hund schlief", *filter(None, [third])]


def test_a_run_can_be_scored_on_the_validation_data_of_another(regard, small_run, tmp_path):
    from regard.tasks import read_run
    from regard.train.loop import fit

    fit(read_run("copy", (*SMALL, "train.steps=2")), tmp_path / "copy")
    mine, other, same = (
        json.loads(regard("score", small_run, *on, "--json").out) for on in ((), ("--on", tmp_path / "copy"), ("--on", small_run))
    )
    assert mine == same
    assert other != mine
    fit_task = regard("score", small_run, "--on", tmp_path / "copy")
    assert "sentences are in the training data" in fit_task.err


def test_bleu_has_a_confidence_interval_if_asked_for(regard, small_run):
    result = regard("score", small_run, "--bootstrap", 50)
    assert re.search(r"BLEU  \(500 sentences; nrefs:1\|bs:50\|.*; 95 % confidence [\d.]+ to [\d.]+\)", result.out)
    assert "confidence" not in regard("score", small_run).out.splitlines()[0]


def test_error_analysis_is_refused_where_there_is_none(regard, text_runs, small_run, tmp_path):
    assert_refused(regard("score", text_runs / "gpt", "--errors"), "--errors", "translations and classes")
    assert_refused(regard("score", text_runs / "gpt", "--bootstrap", 10), "--bootstrap 10")
    assert_refused(regard("score", small_run, "--out", tmp_path / "x.png"), "confusion matrix", ".tsv")
    assert_refused(regard("score", text_runs / "gpt", "--on", small_run), "translation", "same task")


def test_classes_of_texts_are_analysed(regard, text_runs):
    result = regard("score", text_runs / "classes", "--errors")
    assert "60 of 60 texts are in the training data: the scores are too high" in result.err
    assert "confusion matrix" in result.out
    assert "against" in result.out


@pytest.mark.parametrize(("run", "words"), [
    ("gpt", 'regard generate {} "…"'), ("bert", 'regard fill {} "… [MASK] …"'), ("elmo", 'regard embed {} "…" "…" --word word'),
    ("classes", 'regard classify {} "…"'), ("t5", 'regard translate {} "…"'), ("spans", 'regard ask {} "… <extra_id_0> …"'),
])  # fmt: skip
def test_the_card_shows_a_command_that_works_on_its_folder(regard, text_runs, run, words):
    card = (text_runs / run / "README.md").read_text()
    assert f"    {words.format(text_runs / run)}\n" in card
    assert f'    regard.load("{text_runs / run}").' in card
    asked = words.format(text_runs / run).replace('"', "").replace("…", "the cat").replace("--word word", "--word cat")
    verb, folder, *rest = asked.split(" ")[1:]
    text = [" ".join(rest)] if "--word" not in asked else ["the cat", "the cat", "--word", "cat"]
    result = regard(verb, folder, *text)
    assert result.code == 0, result.err


def test_the_command_of_a_card_trains_the_same_model_again(regard, small_run, tmp_path):
    import shlex

    shutil.copytree(small_run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints")
    first = (tmp_path / "run/model.safetensors").read_bytes()
    command = next(line.strip() for line in (small_run / "README.md").read_text().splitlines() if "regard train" in line)
    _, *words = shlex.split(command.replace(f"{small_run}-again", str(tmp_path / "again")))
    result = regard(*words)
    assert result.code == 0, result.err
    assert (tmp_path / "again/model.safetensors").read_bytes() == first
