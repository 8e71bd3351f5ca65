"""A run with `init` starts from the model, the weights and the tokenizer of another run."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from tiny_tasks import tiny_run, write_data

from regard.tasks import read_run
from regard.train.loop import fit


def finetuning_run(folder, init):
    return tiny_run("text_classification", folder, init=str(init), train={"steps": 1, "device": "cpu"})


def test_fine_tuning_starts_from_the_weights_and_the_tokenizer_of_another_run(tmp_path):
    write_data(tmp_path)
    fit(tiny_run("masked_lm", tmp_path), tmp_path / "first")
    finetuned = tiny_run("text_classification", tmp_path, steps=1, init=str(tmp_path / "first"),
                         train={"steps": 1, "lr": 0.0, "device": "cpu", "average": 1})  # fmt: skip
    fit(finetuned, tmp_path / "second")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    assert {name for name in after if name not in before} == {"classifier.weight", "classifier.bias"}
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert (tmp_path / "second/tokenizer.json").read_bytes() == (tmp_path / "first/tokenizer.json").read_bytes()
    config = json.loads((tmp_path / "second/config.json").read_text())
    assert (config["dim"], config["classes"]) == (16, 2)
    shutil.rmtree(tmp_path / "first")  # a run that has started does not need it any more
    more = read_run(tmp_path / "second/run.toml", ("train.steps=2",))
    assert more.init == str(tmp_path / "first")
    assert fit(more, tmp_path / "second").steps == 2


def test_a_run_cannot_start_from_another_family_or_from_no_run(tmp_path):
    write_data(tmp_path)
    fit(tiny_run("language_model", tmp_path, steps=1), tmp_path / "first")
    with pytest.raises(ValueError, match="is a gpt, the recipe trains a bert"):
        fit(tiny_run("text_classification", tmp_path, init=str(tmp_path / "first")), tmp_path / "second")
    with pytest.raises(ValueError, match=r"no config\.json"):
        fit(tiny_run("text_classification", tmp_path, init=str(tmp_path / "nowhere")), tmp_path / "second")


def test_a_run_cannot_start_from_the_folder_it_is_to_replace(tmp_path):
    write_data(tmp_path)
    fit(tiny_run("masked_lm", tmp_path), tmp_path / "first")
    before = (tmp_path / "first/model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="is the folder to train in"):
        fit(finetuning_run(tmp_path, tmp_path / "first"), tmp_path / "first", fresh=True)
    assert (tmp_path / "first/model.safetensors").read_bytes() == before


def test_damaged_weights_to_start_from_delete_no_earlier_run_and_leave_no_new_one(tmp_path):
    write_data(tmp_path)
    for name in ("first", "old"):
        fit(tiny_run("masked_lm", tmp_path), tmp_path / name)
    whole = (tmp_path / "first/model.safetensors").read_bytes()
    (tmp_path / "first/model.safetensors").write_bytes(whole[:1000])
    for name in ("old", "new"):
        with pytest.raises(ValueError, match="damaged"):
            fit(finetuning_run(tmp_path, tmp_path / "first"), tmp_path / name, fresh=True)
    assert (tmp_path / "old/model.safetensors").exists()
    assert (tmp_path / "old/run.toml").exists()
    assert not (tmp_path / "new").exists()


def test_keys_that_init_decides_cannot_be_changed(tmp_path):
    write_data(tmp_path)
    fit(tiny_run("masked_lm", tmp_path, steps=1), tmp_path / "first")
    init = f"init={tmp_path}/first"
    for change in ("model.dim=64", "data.tokenizer=bytes", "data.vocab=9", "model=tiny"):
        with pytest.raises(ValueError, match="are those of init"):
            read_run("sst2", (init, change))
    assert read_run("sst2", (init, "model.dropout=0.2")).model.dropout == 0.2
