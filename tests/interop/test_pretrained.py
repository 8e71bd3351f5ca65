"""`regard export --to pretrained`: a small run folder that answers as the run does, without anything of the machine."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import torch
from cli_checks import assert_refused
from safetensors.torch import load_file, save_file

import regard as package
from regard.interop.pretrained import MACHINE_PATH, _command, export_pretrained, to_half
from regard.models import load_model
from regard.train.inventory import summarize


@pytest.fixture
def out(small_run, tmp_path) -> Path:
    export_pretrained(small_run, tmp_path / "tiny")
    return tmp_path / "tiny"


def test_weights_are_the_nearest_float16_and_load_as_float32(small_run, out):
    before, after = load_file(small_run / "model.safetensors"), load_file(out / "model.safetensors")
    assert before.keys() == after.keys()
    assert {weight.dtype for weight in after.values()} == {torch.float16}
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight.to(torch.float16), rtol=0, atol=0)
    model = load_model(out)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight, after[name].float(), rtol=0, atol=0)


def test_the_folder_is_a_run_that_answers_and_has_its_learning_curve(small_run, out):
    assert str(package.load(out).translate(["a b c"])[0])
    found, before = summarize(out), summarize(small_run)
    assert (found.status, found.step, found.scores) == ("finished", before.step, before.scores)
    assert found.parameters == before.parameters
    assert found.bytes < before.bytes / 4
    losses = [json.loads(line).get("loss") for line in (out / "log.jsonl").read_text().splitlines()]
    assert losses == [json.loads(line).get("loss") for line in (small_run / "log.jsonl").read_text().splitlines()]


def test_checkpoints_events_and_hidden_files_are_left_out_and_named(regard, small_run, tmp_path):
    result = regard("export", small_run, "--to", "pretrained", tmp_path / "tiny")
    assert result.code == 0, result.err
    files = {"README.md", "config.json", "log.jsonl", "model.safetensors", "run.toml", "tokenizer.json"}
    assert {file.name for file in (tmp_path / "tiny").iterdir()} == files
    assert "left out: checkpoints/ (" in result.err
    assert "events/ (" in result.err
    assert "in all" in result.err


def test_no_path_of_the_machine_is_in_any_file(text_runs, tmp_path):
    export_pretrained(text_runs / "classes", tmp_path / "classes")
    for file in (tmp_path / "classes").iterdir():
        assert str(text_runs).encode() not in file.read_bytes(), file.name
        assert str(tmp_path).encode() not in file.read_bytes(), file.name
    tables = tomllib.loads((tmp_path / "classes" / "run.toml").read_text())
    assert (tables["name"], tables["init"], tables["data"]["train"]) == ("classes", "bert", "rows.tsv")
    assert package.load(tmp_path / "classes").classify(["a good film"])
    assert (tmp_path / "classes" / "labels.txt").read_text() == (text_runs / "classes" / "labels.txt").read_text()


def test_the_card_names_the_model_its_command_and_the_precision(small_run, out):
    card, before = (out / "README.md").read_text(), (small_run / "README.md").read_text()
    assert "\n# tiny\n" in card
    assert '    regard translate tiny "…"\n' in card
    assert 'regard.load("tiny").translate' in card
    assert "| weights | float16" in card
    table = [line for line in before.splitlines() if line.startswith(("| BLEU", "| chrF", "| licence", "| trained"))]
    assert len(table) > 3
    assert set(table) <= set(card.splitlines())


@pytest.mark.parametrize(("given", "wanted"), [
    ("regard train reverse train.steps=9 --out /home/me/runs/x", "regard train reverse train.steps=9"),
    ("regard train /home/me/reverse.toml --fresh --out=x", "regard train reverse"),
    ("regard train /home/me/runs/x/run.toml --resume", "regard train reverse"),
    ("regard train own.toml 'name=a b'", "regard train reverse 'name=a b'"),
])  # fmt: skip
def test_the_command_of_the_card_names_the_recipe_and_no_folder(given, wanted):
    assert _command(given, "reverse") == wanted


@pytest.mark.parametrize(("text", "path"), [
    ("regard train /home/me/x.toml --fresh", "/home/me/x.toml"), ("see ~/runs/a", "~/runs/a"),
    (r"C:\Users\me\x", r"C:\Users\me\x"),
    ("https://example.org/a/b", None), ("1/2 and/or 5,000 tokens/s", None), ("runs/a/b", None), ("</b>", None),
])  # fmt: skip
def test_paths_of_a_machine_are_told_from_other_slashes(text, path):
    found = MACHINE_PATH.search(text)
    assert (found and found[0]) == path


def test_a_weight_that_float16_cannot_hold_is_refused_by_name(small_run, tmp_path):
    shutil.copytree(small_run, tmp_path / "run")
    weights = load_file(tmp_path / "run" / "model.safetensors")
    name = sorted(weights)[0]
    weights[name].view(-1)[0] = 70_000.0
    save_file(weights, tmp_path / "run" / "model.safetensors")
    with pytest.raises(ValueError, match=f"{name} holds 70000, and half precision holds numbers up to 65,504"):
        export_pretrained(tmp_path / "run", tmp_path / "tiny")
    weights[name].view(-1)[0] = float("nan")
    save_file(weights, tmp_path / "run" / "model.safetensors")
    with pytest.raises(ValueError, match=f"{name} holds NaN"):
        export_pretrained(tmp_path / "run", tmp_path / "tiny")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]  # no part of the folder


def test_whole_numbers_stay_as_they_are():
    found = to_half({"count": torch.tensor([100_000]), "weight": torch.tensor([0.1])})
    assert found["count"].tolist() == [100_000]
    assert found["weight"].dtype == torch.float16


def test_only_a_finished_run_with_a_card_and_a_new_folder_is_taken(regard, small_run, out, tmp_path):
    assert_refused(regard("export", small_run, "--to", "pretrained", out), "already exists")
    assert_refused(regard("export", small_run, "--to", "pretrained", tmp_path / "a b"), "is not a model name")
    assert_refused(regard("export", small_run, "--to", "zip", tmp_path / "ab"), "there is hf, word2vec, pretrained")
    shutil.copytree(small_run, tmp_path / "run")
    (tmp_path / "run" / "README.md").unlink()
    assert_refused(regard("export", tmp_path / "run", "--to", "pretrained", tmp_path / "ab"), "README.md")
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run" / "log.jsonl").write_text("".join(lines[:-1]))
    assert_refused(regard("export", tmp_path / "run", "--to", "pretrained", tmp_path / "ab"), "only a finished run can ship")
