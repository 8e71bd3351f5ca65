"""Image checkpoints without classes, and ViTs that regard cannot read."""

import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from image_checkpoints import MEAN, assert_run_refused, randomize, same_weights, update_json, vit_checkpoint, write_processor
from PIL import Image
from safetensors.torch import load as from_bytes
from safetensors.torch import load_file, save_file

from regard.interop.hf import export_run, import_model, import_run
from regard.models import load_model
from regard.tasks import make_run, read_run
from regard.tasks.load import load as open_run
from regard.train.loop import fit


@pytest.mark.parametrize("kind", ["ViTModel", "ViTForMaskedImageModeling"])
def test_a_vit_without_a_classifier_is_exported_without_one(kind, photos, tmp_path):
    theirs = vit_checkpoint(tmp_path / "theirs", kind, encoder_stride=7)
    dropped, untrained = import_run(theirs, tmp_path / "run")
    assert ("pooler.dense.weight" if kind == "ViTModel" else "decoder.0.weight") in dropped
    assert untrained.startswith("the checkpoint has no weights for classes")
    assert read_run(tmp_path / "run" / "run.toml").untrained == ("classifier",)
    assert "no weights for classes: these are randomly initialized" in (tmp_path / "run" / "README.md").read_text()
    with pytest.raises(ValueError, match=r"^this model has no trained classes; train it on some: regard train "):
        open_run(tmp_path / "run", device="cpu").classify(photos)
    export_run(tmp_path / "run", tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["architectures"] == ["ViTModel"]
    before, after = (load_file(folder / "model.safetensors") for folder in (theirs, tmp_path / "back"))
    before = {name.removeprefix("vit."): tensor for name, tensor in before.items()}
    other = {name for name in before if name.startswith(("pooler", "decoder")) or name.endswith("mask_token")}
    assert after.keys() == before.keys() - other
    assert all(torch.equal(after[name], before[name]) for name in after)
    import_run(tmp_path / "back", tmp_path / "again")
    assert same_weights(load_model(tmp_path / "again"), load_model(tmp_path / "run"))  # random, but the same each time
    assert read_run(tmp_path / "again" / "run.toml").untrained == ("classifier",)


def test_a_resnet_without_a_classifier_is_exported_unchanged(tmp_path):
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1])
    randomize(transformers.ResNetModel(config)).save_pretrained(tmp_path / "theirs")
    write_processor(tmp_path / "theirs")
    import_run(tmp_path / "theirs", tmp_path / "run")
    plan = read_run(tmp_path / "run" / "run.toml")
    assert (plan.untrained, plan.model.image) == (("classifier",), 28)  # its config.json has none
    export_run(tmp_path / "run", tmp_path / "back")
    _, info = transformers.ResNetModel.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_a_swin_without_a_classifier_is_exported_unchanged(tmp_path):
    config = transformers.SwinConfig(image_size=28, patch_size=2, embed_dim=8, depths=[1], num_heads=[1])
    transformers.SwinModel(config).save_pretrained(tmp_path / "theirs")
    write_processor(tmp_path / "theirs")
    import_run(tmp_path / "theirs", tmp_path / "swin")
    with pytest.raises(ValueError, match="has no trained classes; train it on some"):
        open_run(tmp_path / "swin").classify([np.zeros((28, 28, 3), np.uint8)])
    export_run(tmp_path / "swin", tmp_path / "back")
    wanted, got = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "back"))
    weights = {name for name in wanted if not name.endswith("relative_position_index")}
    assert weights == set(got)
    assert all(torch.equal(wanted[name], got[name]) for name in weights)


def test_a_vit_without_a_classifier_learns_classes(tmp_path):
    """Two classes, red and blue, with init from the imported run."""
    theirs = vit_checkpoint(tmp_path / "theirs", "ViTModel", id2label={}, num_labels=0)
    import_run(theirs, tmp_path / "vit")
    rng = np.random.default_rng(0)
    for label, channel in (("red", 0), ("blue", 2)):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i in range(6):
            image = rng.integers(0, 60, (30, 33, 3), dtype=np.uint8)
            image[..., channel] += 150
            Image.fromarray(image).save(tmp_path / "photos" / label / f"{i}.png")
    tables = {"model": {"family": "vit", "dim": 16, "heads": 2, "depth": 2}, "init": str(tmp_path / "vit"),
              "data": {"train": str(tmp_path / "photos")},
              "train": {"steps": 30, "batch_size": 6, "lr": 0.01, "warmup": 3, "device": "cpu"}}  # fmt: skip
    fit(make_run("new", tables), tmp_path / "run")
    opened = open_run(tmp_path / "run", device="cpu")
    files = [tmp_path / "photos" / label / "1.png" for label in ("red", "blue")]
    assert [prediction.text for [prediction] in opened.classify(files)] == ["red", "blue"]
    assert opened.run.data.mean == MEAN
    export_run(tmp_path / "run", tmp_path / "back")
    model = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "back")
    assert model.config.id2label == {0: "blue", 1: "red"}


def test_an_incomplete_classifier_is_refused(tmp_path):
    theirs = vit_checkpoint(tmp_path / "theirs")
    file = theirs / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(file).items() if name != "classifier.bias"}, file)
    assert_run_refused(theirs, r"there is no tensor classifier\.bias; it is not the vit its config\.json describes$")


@pytest.mark.parametrize(("keys", "message"), [
    ({"hidden_act": "tanh"}, r"config\.json has hidden_act = 'tanh'; regard's model has 'relu', 'gelu'"),
    ({"intermediate_size": None}, r"has intermediate_size = None; "),
    ({"image_size": [28, 35]}, r"config\.json has image_size = \[28, 35\]; regard's model reads squares: "),
    ({"image_size": 30}, r"patch 7 does not tile an image of 30 pixels"),
    ({"image_size": 35}, r"position_embeddings is \(1, 17, 16\); its config\.json makes it \(1, 26, 16\)$"),
    ({"num_attention_heads": 3}, r"width 16 does not split into 3 heads"),
    ({"hidden_dropout_prob": "0.1"}, r"hidden_dropout_prob|dropout"),
    ({"id2label": {"0": "a", "1": "b"}}, r"classifier\.\w+ is \(3,.*\); its config\.json makes it \(2,.*\)$"),
    ({"id2label": {"0": "a"}}, r"has one output \(regression\); .* needs two or more classes: use"),
    ({"id2label": {}, "num_labels": 3}, r"classes is 0; use 1 or more$"),
    ({"problem_type": "multi_label_classification"}, r"has problem_type = 'multi_label_classification'; "),
    ({"id2label": {"0": "a", "1": "b\nc", "2": "d"}}, r"has id2label 1 = 'b\\nc'; wanted a name on one line"),
    ({"model_type": "deit"}, r"model_type = 'deit'.*; regard reads gpt2, bert, t5, marian, pegasus, vit, swin, swinv2"),
], ids=str)  # fmt: skip
def test_an_unsupported_vit_is_refused_with_the_difference(keys, message, tmp_path):
    theirs = vit_checkpoint(tmp_path / "theirs")
    update_json(theirs / "config.json", **keys)
    assert_run_refused(theirs, message)


def test_an_image_size_may_be_a_list_of_two_sides(tmp_path):
    theirs = vit_checkpoint(tmp_path / "theirs", image_size=[28, 28], patch_size=[7, 7])
    assert import_model(theirs)[1].image == 28


def test_truncated_pickled_or_foreign_weights_are_refused(tmp_path):
    theirs = vit_checkpoint(tmp_path / "theirs")
    file = theirs / "model.safetensors"
    whole = file.read_bytes()
    weights = from_bytes(whole)
    for content in (whole[:-100], whole[:20], b""):
        file.write_bytes(content)
        assert_run_refused(theirs, r"theirs: model\.safetensors is damaged \(")
    save_file(weights | {"vit.extra": torch.zeros(2)}, file)
    assert_run_refused(theirs, r"there is a tensor vit\.extra that regard's vit does not have$")
    name = "vit.embeddings.patch_embeddings.projection.weight"
    save_file(weights | {name: torch.zeros(16, 3, 4, 4)}, file)
    assert_run_refused(theirs, rf"{name} is \(16, 3, 4, 4\); its config\.json makes it \(16, 3, 7, 7\)$")
    weights["vit.layernorm.bias"][2] = torch.nan
    save_file(weights, file)
    assert_run_refused(theirs, r"vit\.layernorm\.bias has NaN or infinite values")
    file.rename(theirs / "pytorch_model.bin")
    assert_run_refused(theirs, r"pytorch_model\.bin is a pickle, .*transformers\.ViTForImageClassification\.from_pretrained")


def test_import_classify_and_export_on_the_command_line(regard, photos, tmp_path):
    theirs, run = vit_checkpoint(tmp_path / "theirs"), tmp_path / "run"
    assert regard("import", theirs, "--to", run) == (0, f"saved in {run}\n", "")
    result = regard("classify", run, photos[0], "--top", 2, "--device", "cpu")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"{photos[0]}\tLABEL_")
    assert regard("export", run, tmp_path / "back") == (0, f"saved in {tmp_path / 'back'}\n", "")
    shutil.rmtree(theirs)
    vit_checkpoint(theirs, "ViTModel")
    regard("import", theirs, "--to", tmp_path / "bare")
    result = regard("classify", tmp_path / "bare", photos[0], "--device", "cpu")
    assert (result.code, result.out) == (2, "")
    assert "this model has no trained classes; train it on some" in result.err
