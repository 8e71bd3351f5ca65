"""A checkpoint that looks at pictures becomes a run and a run a checkpoint; both see the same of a photo."""

import dataclasses
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load as from_bytes
from safetensors.torch import load_file, save, save_file
from torch import nn

from regard.config import DataConfig, Run, make_run, to_toml
from regard.data.image.io import resize_square
from regard.interop.hf import export_run, import_model, import_run
from regard.interop.image_processor import ImagePreprocessing, describe_processor, read_processor
from regard.interop.resnet import FAMILY as RESNET
from regard.layers.attention import QKVWithoutKeyBias
from regard.models import FAMILIES, describe, load_model, saved_tensors, state_tensors
from regard.models.mvit import MViTConfig
from regard.models.resnet import ResNetConfig
from regard.models.swin import SwinConfig
from regard.models.vit import ViTConfig
from regard.tasks import read_run
from regard.tasks.image_classification import ImageClassifier
from regard.tasks.load import load as open_run
from regard.train.loop import fit

DATA = Path(os.environ.get("REGARD_DATA", "nowhere"))
FIELDS = {field.name for field in dataclasses.fields(DataConfig)}

LABELS = ("a daisy", "tulip", "roses")
MEAN, STD = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]
SWIN = {"image": 28, "patch": 2, "dim": 8, "depths": [1, 2], "heads": [1, 2], "window": 7, "classes": 3}
OURS: dict[str, tuple[str, Any]] = {
    "vit": ("vit", ViTConfig(image=28, patch=7, dim=16, depth=2, heads=2, classes=3, dropout=0.1, drop_path=0.1)),
    "swin": ("swin", SwinConfig(**SWIN)),
    "swin v2": ("swin", SwinConfig(**SWIN, version="v2")),
    "resnet": ("resnet", ResNetConfig(image=28, dim=8, dims=[16, 32], depths=[1, 1], classes=3)),
}


def loud(model: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    for part in model.modules():
        if isinstance(part, QKVWithoutKeyBias):
            nn.init.zeros_(part.bias.chunk(3)[1])  # as it always is
    return model.eval()


def our_run(folder: Path, kind: str, **data: Any) -> Path:
    """A run folder as training leaves it, but for the training."""
    family, config = OURS[kind]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(describe(family, config, "0")))
    (folder / "model.safetensors").write_bytes(save(saved_tensors(loud(FAMILIES[family].build(config)))))
    how = DataConfig(**{"mean": MEAN, "std": STD, **data})
    (folder / "run.toml").write_text(to_toml(Run("ours", family, config, "image", data=how)))
    (folder / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS))
    return folder


def their_vit(folder: Path, kind: str = "ViTForImageClassification", **keys: Any) -> Path:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
             "image_size": 28, "patch_size": 7, "num_labels": 3}  # fmt: skip
    loud(getattr(transformers, kind)(transformers.ViTConfig(**{**sizes, **keys}))).save_pretrained(folder)
    processor(folder)
    return folder


def processor(folder: Path, **keys: Any) -> None:
    """Write a file such as the first checkpoints have."""
    usual = {"do_resize": True, "size": 28, "do_normalize": True, "image_mean": MEAN, "image_std": STD}
    said = {key: value for key, value in {**usual, **keys}.items() if value is not None}
    (folder / "preprocessor_config.json").write_text(json.dumps(said))


def change(file: Path, **keys: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


def same(a: Any, b: Any) -> bool:
    one, other = state_tensors(a), state_tensors(b)
    return a.config == b.config and one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def a_photo(rows: int, columns: int) -> Image.Image:
    """A picture with large and small things in it."""
    rng = np.random.default_rng(rows)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)).resize((columns, rows), 3)
    noise = rng.integers(-40, 40, (rows, columns, 3))
    return Image.fromarray((np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Files of all shapes: square, upright, wide, large, of the very size."""
    home = tmp_path_factory.mktemp("photos")
    for rows, columns in ((96, 96), (97, 60), (61, 143), (300, 410), (28, 28), (20, 25)):
        a_photo(rows, columns).save(home / f"{rows}x{columns}.jpg", quality=90)
    return sorted(home.iterdir())


# There and back


@pytest.fixture(scope="module", params=OURS)
def exported(request, tmp_path_factory):
    """A kind, a run of ours, and what is made of it for them."""
    home = tmp_path_factory.mktemp("export")
    run = our_run(home / "run", request.param)
    export_run(run, home / "theirs")
    return request.param, run, home / "theirs"


def test_a_run_that_went_there_and_back_is_the_same_and_opens(exported, tmp_path):
    kind, run, theirs = exported
    import_run(theirs, tmp_path / "again", "1.2.3")
    assert same(load_model(tmp_path / "again"), load_model(run))
    plan = read_run(str(tmp_path / "again" / "run.toml"), ())
    assert (plan.name, plan.family, plan.task, plan.untrained) == ("again", OURS[kind][0], "image", "")
    assert (plan.data.mean, plan.data.std) == (MEAN, STD)
    assert isinstance(open_run(tmp_path / "again", device="cpu"), ImageClassifier)
    assert (tmp_path / "again" / "labels.txt").read_text() == "a daisy\ntulip\nroses\n"
    assert "imported by regard 1.2.3" in (tmp_path / "again" / "README.md").read_text()
    made = {"README.md", "config.json", "labels.txt", "model.safetensors", "run.toml"}
    assert {file.name for file in (tmp_path / "again").iterdir()} == made
    assert sorted(path.name for path in theirs.parent.iterdir()) == ["run", "theirs"]


@torch.inference_mode()
def test_their_classes_open_what_is_exported_with_the_same_logits(exported):
    _, run, theirs = exported
    model = transformers.AutoModelForImageClassification.from_pretrained(theirs).eval()
    assert model.config.architectures == [type(model).__name__]
    x = torch.randn(3, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(load_model(run)(x), model(x).logits, rtol=0, atol=1e-4)


def test_a_pipeline_gives_the_class_we_give(exported, photos):
    _, run, theirs = exported
    pipeline = transformers.pipeline("image-classification", str(theirs))
    square = [file for file in photos if file.name == "96x96.jpg"]
    [mine] = open_run(run, device="cpu").classify(square, top=3)
    there = pipeline(str(square[0]))
    assert [one["label"] for one in there] == [guess.text for guess in mine]
    assert [one["score"] for one in there] == pytest.approx([guess.probability for guess in mine], abs=1e-3)


@torch.inference_mode()
@pytest.mark.parametrize("source", ["", "cifar10"])
def test_their_processor_sees_what_we_see(source, photos, tmp_path, monkeypatch):
    """A longer side is rounded elsewhere, by less than a pixel; pictures of a set of this very size are left as they are."""
    monkeypatch.setitem(OURS, "vit", ("vit", dataclasses.replace(OURS["vit"][1], image=32, patch=8)))
    run = our_run(tmp_path / "run", "vit", source=source)
    export_run(run, tmp_path / "theirs")
    there = transformers.AutoImageProcessor.from_pretrained(tmp_path / "theirs")
    ours = open_run(run, device="cpu")
    if source:
        tiny = np.asarray(a_photo(32, 32))
        seen = there(Image.fromarray(tiny), return_tensors="pt").pixel_values
        torch.testing.assert_close(seen, ours.read(tiny), rtol=0, atol=1e-5)
        return
    for file in photos:
        apart = there(Image.open(file), return_tensors="pt").pixel_values - ours.read(file)
        assert apart.abs().mean() < (1e-5 if file.name == "96x96.jpg" else 0.15)


def test_a_grey_model_is_exported_with_one_mean(tmp_path, monkeypatch):
    monkeypatch.setitem(OURS, "grey", ("vit", dataclasses.replace(OURS["vit"][1], channels=1)))
    run = our_run(tmp_path / "run", "grey", mean=[0.3], std=[])
    export_run(run, tmp_path / "theirs")
    there, grey = transformers.AutoImageProcessor.from_pretrained(tmp_path / "theirs"), a_photo(96, 96).convert("L")
    wanted = open_run(run, device="cpu").read(np.asarray(grey)[:, :, None])
    torch.testing.assert_close(there(grey, return_tensors="pt").pixel_values, wanted, rtol=0, atol=1e-5)
    import_run(tmp_path / "theirs", tmp_path / "again")
    plan = read_run(str(tmp_path / "again" / "run.toml"), ())
    assert (plan.data.mean, plan.data.std) == ([0.3], [0.5])


@pytest.mark.parametrize(("family", "config", "said"), [
    ("vit", ViTConfig(pool="mean"), r"^this vit has pool = 'mean'; .* has 'token': train it with model\.pool=token$"),
    ("vit", ViTConfig(convs=[8, 8, 8, 8]), r"^this vit has convs = \[8, .* has none: train it with 'model\.convs=\[\]'$"),
    ("mvit", MViTConfig(), r"^'mvit' cannot be exported to Hugging Face; supported are gpt, bert, .*, vit, swin"),
], ids=["mean", "convs", "mvit"])  # fmt: skip
def test_what_has_no_form_there_is_refused(family, config, said, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(describe(family, config, "0")))
    with pytest.raises(ValueError, match=said):
        export_run(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# How pictures are prepared

FORMS = {  # what a file may say → what we make of it
    "first": ({}, ImagePreprocessing(28, 28, "squash", "bilinear", MEAN, STD)),
    "named": ({"feature_extractor_type": "ViTFeatureExtractor", "resample": 3, "size": [28, 28]},
              ImagePreprocessing(28, 28, "squash", "bicubic", MEAN, STD)),
    "of today": ({"image_processor_type": "ViTImageProcessorFast", "size": {"height": 28, "width": 28}, "resample": 2,
                  "do_rescale": True, "rescale_factor": 0.00392156862745098},
                 ImagePreprocessing(28, 28, "squash", "bilinear", MEAN, STD)),
    "deit": ({"feature_extractor_type": "DeiTFeatureExtractor", "size": 32, "crop_size": 28, "do_center_crop": True,
              "resample": 3}, ImagePreprocessing(28, 32, "squash", "bicubic", MEAN, STD)),
    "convnext": ({"image_processor_type": "ConvNextImageProcessor", "crop_pct": 0.875},
                 ImagePreprocessing(28, 32, "crop", "bicubic", MEAN, STD)),
    "convnext, odd": ({"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 28}, "crop_pct": 0.8},
                      ImagePreprocessing(28, 35, "crop", "bicubic", MEAN, STD)),
    "convnext, large": ({"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 384}},
                        ImagePreprocessing(384, 384, "squash", "bicubic", MEAN, STD)),
    "bit": ({"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 30}, "resample": 2,
             "crop_size": {"height": 28, "width": 28}}, ImagePreprocessing(28, 30, "crop", "bilinear", MEAN, STD)),
    "not normalised": ({"do_normalize": False}, ImagePreprocessing(28, 28, "squash", "bilinear", [0.0] * 3, [1.0] * 3)),
    "one for all": ({"image_mean": 0.5, "image_std": 0.25}, ImagePreprocessing(28, 28, "squash", "bilinear", [0.5] * 3, [0.25] * 3)),
    "from -1 to 1": ({"rescale_factor": 2 / 255, "image_mean": [1.0] * 3, "image_std": [1.0] * 3},
                     ImagePreprocessing(28, 28, "squash", "bilinear", [0.5] * 3, [0.5] * 3)),
    "bytes": ({"do_rescale": False, "image_mean": [51, 102, 153], "image_std": [51, 51, 51]},
              ImagePreprocessing(28, 28, "squash", "bilinear", [0.2, 0.4, 0.6], [0.2] * 3)),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_photo_is_prepared_as_their_processor_does(form, photos, tmp_path):
    said, wanted = FORMS[form]
    processor(tmp_path, **said)
    assert read_processor(tmp_path, "ViT", 3) == wanted
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')  # so that a file without a kind is known
    theirs = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    for file in photos:
        square = resize_square(np.asarray(Image.open(file)), wanted.resize, wanted.image, wanted.fit, wanted.resample)
        cut = (wanted.resize - wanted.image) // 2
        seen = (square[cut : cut + wanted.image, cut : cut + wanted.image] / 255 - wanted.mean) / wanted.std
        there = theirs(Image.open(file), return_tensors="pt").pixel_values[0].permute(1, 2, 0)
        np.testing.assert_allclose(there.numpy(), seen, rtol=0, atol=1e-4)
        assert np.array_equal(resize_square(square, wanted.resize, wanted.image, wanted.fit, wanted.resample), square)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_of_a_preparation_is_read_as_the_same(form, tmp_path):
    seen = FORMS[form][1]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(describe_processor(seen)))
    assert read_processor(tmp_path, "ViT", 3) == seen


def test_of_a_long_strip_only_the_middle_is_scaled():
    """All of it would be 14 GB."""
    strip = np.zeros((1, 100_000, 3), np.uint8)
    strip[:, 49_990:50_010] = 200
    assert (resize_square(strip, 256, 224) == 0).mean() < 0.01
    assert resize_square(strip.transpose(1, 0, 2), 256, 224).shape == (256, 256, 3)


def test_of_a_resnet_the_shorter_side_is_meant(tmp_path):
    processor(tmp_path)
    assert read_processor(tmp_path, RESNET.image_processor, 3) == ImagePreprocessing(
        28, 32, "crop", "bicubic", MEAN, STD
    )


@pytest.mark.parametrize(("keys", "said"), [
    ({"image_processor_type": "CLIPImageProcessor"}, r"is for a CLIPImageProcessor; regard supports ViTImageProcessor, .*BitImageProcessor$"),
    ({"resample": 1}, r"has resample = 1; regard resizes images with 2 \(bilinear\) or 3 \(bicubic\)"),
    ({"do_resize": False}, r"has do_resize = False; regard does not support it: use"),
    ({"do_pad": True}, r"has do_pad = True; "),
    ({"size": [28, 30]}, r"has size = \[28, 30\]; wanted the side of a square, in pixels$"),
    ({"size": {"longest_edge": 28}}, r"has size = {'longest_edge': 28}; wanted the side"),
    ({"size": "28"}, r"has size = '28'; wanted the side"),
    ({"size": 0}, r"has size = 0; wanted the side"),
    ({"do_center_crop": True}, r"has crop_size = None; wanted the side"),
    ({"do_center_crop": True, "crop_size": 30}, r"crops 30 pixels out of an image of 28; correct it$"),
    ({"image_mean": None}, r"has image_mean = None; wanted a number for each channel$"),
    ({"image_std": ["a"]}, r"has image_std = \['a'\]; wanted a number for each channel$"),
    ({"image_mean": [0.5]}, r"has image_mean = \[0\.5\]; the model has 3 channels$"),
    ({"image_std": [0.5, 0.5, 0]}, r"std is 0\.0; use more than 0"),
    ({"rescale_factor": 0}, r"has rescale_factor = 0; wanted 1 / 255, or another number above 0$"),
    ({"image_processor_type": "ConvNextImageProcessor", "crop_pct": 0}, r"has crop_pct = 0; wanted a fraction"),
    ({"size": 56}, r"makes images of 56 pixels, its model wants 28; they are not from the same checkpoint"),
], ids=str)  # fmt: skip
def test_what_a_picture_cannot_be_made_is_said_in_one_line(keys, said, tmp_path):
    theirs = their_vit(tmp_path / "theirs")
    processor(theirs, **keys)
    import_refused(theirs, said)


def test_a_checkpoint_that_does_not_say_how_is_refused(tmp_path):
    theirs = their_vit(tmp_path / "theirs")
    file = theirs / "preprocessor_config.json"
    file.write_text("{")
    import_refused(theirs, r"theirs: preprocessor_config\.json is damaged \(")
    file.unlink()
    import_refused(
        theirs, r"there is no preprocessor_config\.json, .*AutoImageProcessor\.from_pretrained\(\.\.\.\)\.save_"
    )


@pytest.mark.parametrize("form", [form for form in FORMS if FORMS[form][1].image == 28])
def test_an_imported_run_gives_the_probabilities_of_their_pipeline(form, photos, tmp_path):
    theirs = their_vit(tmp_path / "theirs")
    processor(theirs, **FORMS[form][0])
    import_run(theirs, tmp_path / "run")
    pipeline, ours = (
        transformers.pipeline("image-classification", str(theirs)),
        open_run(tmp_path / "run", device="cpu"),
    )
    export_run(tmp_path / "run", tmp_path / "back")
    again = transformers.pipeline("image-classification", str(tmp_path / "back"))
    for file, mine in zip(photos, ours.classify(photos, top=3), strict=True):
        wanted = {guess.text: guess.probability for guess in mine}
        for there in (pipeline, again):
            assert {one["label"]: one["score"] for one in there(str(file))} == pytest.approx(wanted, abs=1e-3)


SHAPES = {"ViT": {"num_hidden_layers": 2, "hidden_size": 96, "intermediate_size": 192, "num_attention_heads": 3},
          "Swin": {"depths": [2, 2], "num_heads": [3, 6]},
          "Swinv2": {"depths": [2, 2], "num_heads": [3, 6], "window_size": 8, "image_size": 256},
          "ResNet": {"hidden_sizes": [64, 128], "depths": [1, 1]}}  # fmt: skip


@pytest.mark.skipif(not (DATA / "flowers5").exists(), reason="set REGARD_DATA to a folder that holds flowers5/")
@pytest.mark.parametrize("kind", SHAPES)
def test_of_a_real_photo_too(kind, tmp_path):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SHAPES[kind], num_labels=5)
    model = getattr(transformers, f"{kind}ForImageClassification")(config)
    nn.init.normal_(model.classifier[-1].weight if kind == "ResNet" else model.classifier.weight, std=0.3)
    model.save_pretrained(tmp_path / "theirs")
    processor(tmp_path / "theirs", size=getattr(config, "image_size", 224), resample=3)
    import_run(tmp_path / "theirs", tmp_path / "run")
    files = some_flowers(tmp_path)
    pipeline, ours = transformers.pipeline("image-classification", str(tmp_path / "theirs")), open_run(tmp_path / "run")
    here, there = ([{guess.text: guess.probability for guess in mine} for mine in ours.classify(files, top=5)],
                   [{one["label"]: one["score"] for one in pipeline(str(file))} for file in files])  # fmt: skip
    assert max(here[0].values()) - min(here[0].values()) > 0.1
    assert there == [pytest.approx(one, abs=1e-3) for one in here]
    plain = dataclasses.replace(ours, run=dataclasses.replace(ours.run, data=DataConfig(mean=MEAN, std=STD)))
    other = {guess.text: guess.probability for guess in plain.classify(files, top=5)[-1]}
    assert kind == "ResNet" or other != pytest.approx(here[-1], abs=1e-3)  # what is cut otherwise is seen otherwise


def some_flowers(home: Path) -> list[Path]:
    """Photos, one of them square."""
    held = np.load(DATA / "flowers5" / "train.npz")
    for number, (first, last) in enumerate(zip(held["offsets"][:3], held["offsets"][1:4], strict=True)):
        whole = Image.open(io.BytesIO(held["jpeg"][first:last].tobytes()))
        whole.crop((0, 0, 96, 96 - 20 * number)).save(home / f"{number}.png")
    return sorted(home.glob("*.png"))


# A checkpoint without classes


@pytest.mark.parametrize("kind", ["ViTModel", "ViTForMaskedImageModeling"])
def test_a_vit_without_classes_says_so_and_goes_back_without(kind, photos, tmp_path):
    theirs = their_vit(tmp_path / "theirs", kind, encoder_stride=7)
    import_run(theirs, tmp_path / "run")
    assert read_run(str(tmp_path / "run" / "run.toml"), ()).untrained == "classifier"
    assert "no weights for classes: these are randomly initialized" in (tmp_path / "run" / "README.md").read_text()
    with pytest.raises(ValueError, match=r"^this model has learnt no classes; train it on some: regard train "):
        open_run(tmp_path / "run", device="cpu").classify(photos)
    export_run(tmp_path / "run", tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["architectures"] == ["ViTModel"]
    before, after = (load_file(folder / "model.safetensors") for folder in (theirs, tmp_path / "back"))
    before = {name.removeprefix("vit."): one for name, one in before.items()}
    other = {name for name in before if name.startswith(("pooler", "decoder")) or name.endswith("mask_token")}
    assert after.keys() == before.keys() - other
    assert all(torch.equal(after[name], before[name]) for name in after)
    import_run(tmp_path / "back", tmp_path / "again")
    assert same(load_model(tmp_path / "again"), load_model(tmp_path / "run"))  # at random, but alike each time
    assert read_run(str(tmp_path / "again" / "run.toml"), ()).untrained == "classifier"


def test_a_resnet_without_classes_goes_there_and_back_too(tmp_path):
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1])
    loud(transformers.ResNetModel(config)).save_pretrained(tmp_path / "theirs")
    processor(tmp_path / "theirs")
    import_run(tmp_path / "theirs", tmp_path / "run")
    plan = read_run(str(tmp_path / "run" / "run.toml"), ())
    assert (plan.untrained, plan.model.image) == ("classifier", 28)  # which its config.json does not say
    export_run(tmp_path / "run", tmp_path / "back")
    _, info = transformers.ResNetModel.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(one, after[name]) for name, one in before.items())


def test_a_swin_without_classes_waits_for_training_and_goes_back_as_it_came(tmp_path):
    config = transformers.SwinConfig(image_size=28, patch_size=2, embed_dim=8, depths=[1], num_heads=[1])
    transformers.SwinModel(config).save_pretrained(tmp_path / "theirs")
    processor(tmp_path / "theirs")
    import_run(tmp_path / "theirs", tmp_path / "swin")
    with pytest.raises(ValueError, match="has learnt no classes; train it on some"):
        open_run(tmp_path / "swin").classify([np.zeros((28, 28, 3), np.uint8)])
    export_run(tmp_path / "swin", tmp_path / "back")
    wanted, got = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "back"))
    learnt = {name for name in wanted if not name.endswith("relative_position_index")}
    assert learnt == set(got)
    assert all(torch.equal(wanted[name], got[name]) for name in learnt)


def test_a_vit_without_classes_learns_some(tmp_path):
    """A red and a blue one, from what it was imported with."""
    theirs = their_vit(tmp_path / "theirs", "ViTModel", id2label={}, num_labels=0)
    import_run(theirs, tmp_path / "vit")
    rng = np.random.default_rng(0)
    for label, channel in (("red", 0), ("blue", 2)):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(6):
            picture = rng.integers(0, 60, (30, 33, 3), dtype=np.uint8)
            picture[..., channel] += 150
            Image.fromarray(picture).save(tmp_path / "photos" / label / f"{number}.png")
    tables = {"model": {"family": "vit", "dim": 16, "heads": 2, "depth": 2}, "init": str(tmp_path / "vit"),
              "data": {"train": str(tmp_path / "photos")},
              "train": {"steps": 30, "batch_size": 6, "lr": 0.01, "warmup": 3, "device": "cpu"}}  # fmt: skip
    fit(make_run("new", tables), tmp_path / "run")
    opened = open_run(tmp_path / "run", device="cpu")
    files = [tmp_path / "photos" / label / "1.png" for label in ("red", "blue")]
    assert [guess.text for [guess] in opened.classify(files)] == ["red", "blue"]
    assert opened.run.data.mean == MEAN
    export_run(tmp_path / "run", tmp_path / "back")
    model = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "back")
    assert model.config.id2label == {0: "blue", 1: "red"}


def test_half_a_head_is_refused(tmp_path):
    theirs = their_vit(tmp_path / "theirs")
    file = theirs / "model.safetensors"
    save_file({name: one for name, one in load_file(file).items() if name != "classifier.bias"}, file)
    import_refused(theirs, r"there is no tensor classifier\.bias; it is not the vit its config\.json describes$")


# What is refused


def import_refused(folder: Path, said: str) -> None:
    to = folder.parent / "refused"
    with pytest.raises(ValueError, match=said) as error:
        import_run(folder, to)
    assert "\n" not in str(error.value)
    assert not to.exists()


@pytest.mark.parametrize(("keys", "said"), [
    ({"layer_norm_eps": 1e-6}, r"config\.json has layer_norm_eps = 1e-06; regard's model has 1e-12$"),
    ({"hidden_act": "relu"}, r"config\.json has hidden_act = 'relu'; regard's model has 'gelu'$"),
    ({"qkv_bias": False}, r"config\.json has qkv_bias = False; regard's model has True$"),
    ({"intermediate_size": 40}, r"has intermediate_size = 40; regard needs a multiple of hidden_size$"),
    ({"intermediate_size": None}, r"has intermediate_size = None; "),
    ({"image_size": [28, 35]}, r"config\.json has image_size = \[28, 35\]; wanted a number$"),
    ({"image_size": 30}, r"patch 7 does not tile an image of 30 pixels"),
    ({"image_size": 35}, r"position_embeddings is \(1, 17, 16\); its config\.json makes it \(1, 26, 16\)$"),
    ({"num_attention_heads": 3}, r"width 16 does not split into 3 heads"),
    ({"hidden_dropout_prob": "0.1"}, r"hidden_dropout_prob|dropout"),
    ({"id2label": {"0": "a", "1": "b"}}, r"classifier\.\w+ is \(3,.*\); its config\.json makes it \(2,.*\)$"),
    ({"id2label": {"0": "a"}}, r"has one output \(regression\); .* needs two or more classes: use"),
    ({"id2label": {}, "num_labels": 3}, r"classes is 0; use 1 or more$"),
    ({"problem_type": "multi_label_classification"}, r"has problem_type = 'multi_label_classification'; "),
    ({"id2label": {"0": "a", "1": "b\nc", "2": "d"}}, r"has id2label 1 = 'b\\nc'; wanted a name on one line"),
    ({"model_type": "deit"}, r"model_type = 'deit'.*; regard reads gpt2, bert, t5, marian, vit, swin, swinv2"),
], ids=str)  # fmt: skip
def test_another_vit_is_refused_with_what_differs(keys, said, tmp_path):
    theirs = their_vit(tmp_path / "theirs")
    change(theirs / "config.json", **keys)
    import_refused(theirs, said)


def test_a_square_may_be_given_by_both_sides(tmp_path):
    theirs = their_vit(tmp_path / "theirs", image_size=[28, 28], patch_size=[7, 7])
    assert import_model(theirs)[1].image == 28


def test_weights_that_are_cut_off_or_pickled_or_not_its_own_are_refused(tmp_path):
    theirs = their_vit(tmp_path / "theirs")
    file = theirs / "model.safetensors"
    whole = file.read_bytes()
    weights = from_bytes(whole)
    for content in (whole[:-100], whole[:20], b""):
        file.write_bytes(content)
        import_refused(theirs, r"theirs: model\.safetensors is damaged \(")
    save_file(weights | {"vit.extra": torch.zeros(2)}, file)
    import_refused(theirs, r"there is a tensor vit\.extra that regard's vit does not have$")
    name = "vit.embeddings.patch_embeddings.projection.weight"
    save_file(weights | {name: torch.zeros(16, 3, 4, 4)}, file)
    import_refused(theirs, rf"{name} is \(16, 3, 4, 4\); its config\.json makes it \(16, 3, 7, 7\)$")
    weights["vit.layernorm.bias"][2] = torch.nan
    save_file(weights, file)
    import_refused(theirs, r"vit\.layernorm\.bias has NaN or infinite values")
    file.rename(theirs / "pytorch_model.bin")
    import_refused(
        theirs, r"pytorch_model\.bin is a pickle, .*transformers\.ViTForImageClassification\.from_pretrained"
    )


# The command line


def test_from_a_checkpoint_to_an_answer_and_back(regard, photos, tmp_path):
    theirs, run = their_vit(tmp_path / "theirs"), tmp_path / "run"
    assert regard("import", theirs, "--to", run) == (0, f"saved in {run}\n", "")
    said = regard("classify", run, photos[0], "--top", 2, "--device", "cpu")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"{photos[0]}\tLABEL_")
    assert regard("export", run, tmp_path / "back") == (0, f"saved in {tmp_path / 'back'}\n", "")
    shutil.rmtree(theirs)
    their_vit(theirs, "ViTModel")
    regard("import", theirs, "--to", tmp_path / "bare")
    said = regard("classify", tmp_path / "bare", photos[0], "--device", "cpu")
    assert (said.code, said.out) == (2, "")
    assert "this model has learnt no classes; train it on some" in said.err
