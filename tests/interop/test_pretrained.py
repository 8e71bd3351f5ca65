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
from regard.train.card import read_card
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
    texts, rounded = ["a b c", "d e", "f g h a"], package.load(small_run)
    with torch.no_grad():
        for weight in rounded.model.parameters():
            weight.copy_(weight.half())
    answers = [answer.text for answer in package.load(out).translate(texts)]
    assert answers == [answer.text for answer in rounded.translate(texts)]
    assert any(answers)
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


def test_the_card_has_the_scores_of_a_split_that_is_asked_for(regard, small_run, tmp_path):
    result = regard("export", small_run, "--to", "pretrained", tmp_path / "tiny", "--score", "test")
    assert result.code == 0, result.err
    scored = json.loads(regard("score", tmp_path / "tiny", "--on", "test", "--json").out)
    card = read_card((tmp_path / "tiny" / "README.md").read_text())
    assert [(name, value.split()[0]) for name, value, _ in card.test.scores] == [
        (score["name"], f"{score['value']:.2f}") for score in scored
    ]
    assert card.test.on == "test data, beam 1, length penalty 1.0"
    before = read_card((small_run / "README.md").read_text())
    assert card.valid == before.valid
    assert card.valid.on.startswith("validation data, ")
    assert before.test.scores == ()
    assert card.usage == 'regard translate tiny "…"'
    export_pretrained(tmp_path / "tiny", tmp_path / "again" / "tiny", "test")  # nothing comes twice
    assert (tmp_path / "again" / "tiny" / "README.md").read_text() == (tmp_path / "tiny" / "README.md").read_text()
    assert_refused(regard("export", small_run, "--to", "hf", tmp_path / "hf", "--score", "test"), "regard score", "--on test")
    assert_refused(regard("export", small_run, "--to", "pretrained", tmp_path / "b", "--score", "tset"), "tset")
    assert not (tmp_path / "b").exists()


def test_the_card_of_a_model_that_ships_has_the_licence_of_its_weights(small_run, tmp_path, monkeypatch):
    run = shutil.copytree(small_run, tmp_path / "run")
    text = (run / "run.toml").read_text().replace('licence = "generated by regard"', 'licence = "CC BY-SA 4.0 (Digits)"')
    (run / "run.toml").write_text(text)
    for ships, name in ((False, "a"), (True, "b")):
        if ships:
            monkeypatch.setattr("regard.interop.pretrained.PRETRAINED", tmp_path)
        export_pretrained(run, tmp_path / name)
        row = "| licence of the weights | Apache-2.0, as regard; credit the data: CC BY-SA 4.0 (Digits) |"
        assert (row in (tmp_path / name / "README.md").read_text().splitlines()) == ships
    export_pretrained(small_run, tmp_path / "c")
    assert "| licence of the weights | Apache-2.0, as regard |" in (tmp_path / "c" / "README.md").read_text()


@pytest.mark.parametrize("line", ["# reverse", "| parameters |", "Use it on the command line", "    regard train"])
def test_a_card_that_lacks_a_line_is_refused_and_not_half_rewritten(small_run, tmp_path, line):
    run = shutil.copytree(small_run, tmp_path / "run")
    kept = [text for text in (run / "README.md").read_text().splitlines(keepends=True) if not text.startswith(line)]
    assert len(kept) == len((run / "README.md").read_text().splitlines()) - 1
    (run / "README.md").write_text("".join(kept))
    with pytest.raises(ValueError, match=r"the card of the run has no line .*; restore its README\.md"):
        export_pretrained(run, tmp_path / "tiny")
    assert not (tmp_path / "tiny").exists()


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
