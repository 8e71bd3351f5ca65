"""An image classifier is exported for transformers and imported again: same weights, same classes."""

import dataclasses

import numpy as np
import pytest
import torch
import transformers
from image_checkpoints import MEAN, OURS, STD, make_photo, make_run, same_weights
from PIL import Image

from regard.interop.hf import export_run, import_run
from regard.models import load_model
from regard.models.mvit import MViTConfig
from regard.models.vit import ViTConfig
from regard.run_folder import RunFolder
from regard.tasks import read_run
from regard.tasks.image_classification import ImageClassifier
from regard.tasks.load import load as open_run


@pytest.fixture(scope="module", params=OURS)
def exported(request, tmp_path_factory):
    """A kind of model, a run of it, and its export."""
    home = tmp_path_factory.mktemp("export")
    run = make_run(home / "run", request.param)
    export_run(run, home / "theirs")
    return request.param, run, home / "theirs"


def test_export_then_import_restores_the_run(exported, tmp_path):
    kind, run, theirs = exported
    import_run(theirs, tmp_path / "again", "1.2.3")
    assert same_weights(load_model(tmp_path / "again"), load_model(run))
    plan = read_run(tmp_path / "again" / "run.toml")
    assert (plan.name, plan.family, plan.task, plan.untrained) == ("again", OURS[kind][0], "image_classification", ())
    assert (plan.data.mean, plan.data.std) == (MEAN, STD)
    assert isinstance(open_run(tmp_path / "again", device="cpu"), ImageClassifier)
    assert (tmp_path / "again" / "labels.txt").read_text() == "a daisy\ntulip\nroses\n"
    assert "imported by regard 1.2.3" in (tmp_path / "again" / "README.md").read_text()
    made = {"README.md", "config.json", "labels.txt", "model.safetensors", "run.toml"}
    assert {file.name for file in (tmp_path / "again").iterdir()} == made
    assert sorted(path.name for path in theirs.parent.iterdir()) == ["run", "theirs"]


@torch.inference_mode()
def test_auto_classes_load_an_export_with_the_same_logits(exported):
    _, run, theirs = exported
    model = transformers.AutoModelForImageClassification.from_pretrained(theirs).eval()
    assert model.config.architectures == [type(model).__name__]
    x = torch.randn(3, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(load_model(run)(x), model(x).logits, rtol=0, atol=1e-4)


def test_a_pipeline_predicts_the_same_class(exported, photos):
    _, run, theirs = exported
    pipeline = transformers.pipeline("image-classification", str(theirs))
    square = [file for file in photos if file.name == "96x96.jpg"]
    [mine] = open_run(run, device="cpu").classify(square, top=3)
    there = pipeline(str(square[0]))
    assert [output["label"] for output in there] == [prediction.text for prediction in mine]
    assert [output["score"] for output in there] == pytest.approx([prediction.probability for prediction in mine], abs=1e-3)


@torch.inference_mode()
@pytest.mark.parametrize("source", ["", "cifar10"])
def test_the_exported_processor_prepares_images_alike(source, photos, tmp_path, monkeypatch):
    """They round the longer side differently, by less than a pixel; images that already have the size are not resized."""
    monkeypatch.setitem(OURS, "vit", ("vit", dataclasses.replace(OURS["vit"][1], image=32, patch=8)))
    run = make_run(tmp_path / "run", "vit", source=source)
    export_run(run, tmp_path / "theirs")
    there = transformers.AutoImageProcessor.from_pretrained(tmp_path / "theirs")
    ours = open_run(run, device="cpu")
    if source:
        tiny = np.asarray(make_photo(32, 32))
        pixels = there(Image.fromarray(tiny), return_tensors="pt").pixel_values
        torch.testing.assert_close(pixels, ours.to_input(tiny), rtol=0, atol=1e-5)
        return
    for file in photos:
        difference = there(Image.open(file), return_tensors="pt").pixel_values - ours.to_input(file)
        assert difference.abs().mean() < (1e-5 if file.name == "96x96.jpg" else 0.15)


def test_a_grayscale_model_is_exported_with_one_mean(tmp_path, monkeypatch):
    monkeypatch.setitem(OURS, "grayscale", ("vit", dataclasses.replace(OURS["vit"][1], channels=1)))
    run = make_run(tmp_path / "run", "grayscale", mean=[0.3], std=[])
    export_run(run, tmp_path / "theirs")
    there, gray = transformers.AutoImageProcessor.from_pretrained(tmp_path / "theirs"), make_photo(96, 96).convert("L")
    wanted = open_run(run, device="cpu").to_input(np.asarray(gray)[:, :, None])
    torch.testing.assert_close(there(gray, return_tensors="pt").pixel_values, wanted, rtol=0, atol=1e-5)
    import_run(tmp_path / "theirs", tmp_path / "again")
    plan = read_run(tmp_path / "again" / "run.toml")
    assert (plan.data.mean, plan.data.std) == ([0.3], [0.5])


@pytest.mark.parametrize(("family", "config", "message"), [
    ("vit", ViTConfig(pool="mean"), r"^this vit has pool = 'mean'; .* has 'token': train it with model\.pool=token$"),
    ("vit", ViTConfig(convs=[8, 8, 8, 8]), r"^this vit has convs = \[8, .* has none: train it with 'model\.convs=\[\]'$"),
    ("mvit", MViTConfig(), r"^'mvit' cannot be exported to Hugging Face; supported are gpt, bert, .*, vit, swin"),
], ids=["mean", "convs", "mvit"])  # fmt: skip
def test_a_model_without_a_hugging_face_form_is_refused(family, config, message, tmp_path):
    RunFolder(tmp_path).write_description(family, dataclasses.asdict(config), "0")
    with pytest.raises(ValueError, match=message):
        export_run(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
