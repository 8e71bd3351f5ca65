"""An image is prepared as the checkpoint's image processor does."""

import dataclasses
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from image_checkpoints import MEAN, STD, assert_run_refused, vit_checkpoint, write_processor
from PIL import Image
from torch import nn

from regard.data.image.config import ImageData
from regard.data.image.io import resize_square
from regard.interop.hf import export_run, import_run
from regard.interop.image_processor import ImagePreprocessing, describe_processor, read_processor
from regard.interop.resnet import FAMILY as RESNET
from regard.tasks.load import load as open_run

DATA = Path(os.environ.get("REGARD_DATA", "nowhere"))
FORMS = {  # preprocessor_config.json → our preprocessing
    "oldest": ({}, ImagePreprocessing(28, 28, "squash", "bilinear", MEAN, STD)),
    "named": ({"feature_extractor_type": "ViTFeatureExtractor", "resample": 3, "size": [28, 28]},
              ImagePreprocessing(28, 28, "squash", "bicubic", MEAN, STD)),
    "current": ({"image_processor_type": "ViTImageProcessorFast", "size": {"height": 28, "width": 28}, "resample": 2,
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
    "one value": ({"image_mean": 0.5, "image_std": 0.25},
                  ImagePreprocessing(28, 28, "squash", "bilinear", [0.5] * 3, [0.25] * 3)),
    "from -1 to 1": ({"rescale_factor": 2 / 255, "image_mean": [1.0] * 3, "image_std": [1.0] * 3},
                     ImagePreprocessing(28, 28, "squash", "bilinear", [0.5] * 3, [0.5] * 3)),
    "bytes": ({"do_rescale": False, "image_mean": [51, 102, 153], "image_std": [51, 51, 51]},
              ImagePreprocessing(28, 28, "squash", "bilinear", [0.2, 0.4, 0.6], [0.2] * 3)),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_an_image_is_prepared_as_the_image_processor_does(form, photos, tmp_path):
    content, wanted = FORMS[form]
    write_processor(tmp_path, **content)
    assert read_processor(tmp_path, "ViT", 3) == wanted
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')  # for a file that names no kind
    theirs = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    for file in photos:
        square = resize_square(np.asarray(Image.open(file)), wanted.resize, wanted.image, wanted.fit, wanted.resample)
        cut = (wanted.resize - wanted.image) // 2
        pixels = (square[cut : cut + wanted.image, cut : cut + wanted.image] / 255 - wanted.mean) / wanted.std
        there = theirs(Image.open(file), return_tensors="pt").pixel_values[0].permute(1, 2, 0)
        np.testing.assert_allclose(there.numpy(), pixels, rtol=0, atol=1e-4)
        assert np.array_equal(resize_square(square, wanted.resize, wanted.image, wanted.fit, wanted.resample), square)


@pytest.mark.parametrize("form", FORMS)
def test_a_written_preprocessing_is_read_back_the_same(form, tmp_path):
    preprocessing = FORMS[form][1]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(describe_processor(preprocessing)))
    assert read_processor(tmp_path, "ViT", 3) == preprocessing


def test_only_the_middle_of_a_long_strip_is_resized():
    """The whole strip would take 14 GB."""
    strip = np.zeros((1, 100_000, 3), np.uint8)
    strip[:, 49_990:50_010] = 200
    assert (resize_square(strip, 256, 224) == 0).mean() < 0.01
    assert resize_square(strip.transpose(1, 0, 2), 256, 224).shape == (256, 256, 3)


def test_a_resnets_size_is_the_shorter_side_by_default(tmp_path):
    write_processor(tmp_path)
    assert read_processor(tmp_path, RESNET.image_processor, 3) == ImagePreprocessing(28, 32, "crop", "bicubic", MEAN, STD)


@pytest.mark.parametrize(("keys", "message"), [
    ({"image_processor_type": "CLIPImageProcessor"},
     r"is for a CLIPImageProcessor; regard supports ViTImageProcessor, .*, BitI\w+$"),
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
    ({"image_std": [0.5, 0.5, 0]}, r"preprocessor_config\.json has image_std = \[0\.5, 0\.5, 0\]; wanted numbers above 0$"),
    ({"rescale_factor": 0}, r"has rescale_factor = 0; wanted 1 / 255, or another number above 0$"),
    ({"image_processor_type": "ConvNextImageProcessor", "crop_pct": 0}, r"has crop_pct = 0; wanted a fraction"),
    ({"size": 56}, r"makes images of 56 pixels, its model wants 28; they are not from the same checkpoint"),
], ids=str)  # fmt: skip
def test_unsupported_preprocessing_is_refused_in_one_line(keys, message, tmp_path):
    theirs = vit_checkpoint(tmp_path / "theirs")
    write_processor(theirs, **keys)
    assert_run_refused(theirs, message)


def test_a_damaged_or_missing_preprocessor_config_is_refused(tmp_path):
    theirs = vit_checkpoint(tmp_path / "theirs")
    file = theirs / "preprocessor_config.json"
    file.write_text("{")
    assert_run_refused(theirs, r"theirs: preprocessor_config\.json is damaged \(")
    file.unlink()
    assert_run_refused(theirs, r"there is no preprocessor_config\.json, .*AutoImageProcessor\.from_pretrained\(\.\.\.\)\.save_")


@pytest.mark.parametrize("form", [form for form in FORMS if FORMS[form][1].image == 28])
def test_an_imported_run_gives_the_probabilities_of_the_pipeline(form, photos, tmp_path):
    theirs = vit_checkpoint(tmp_path / "theirs")
    write_processor(theirs, **FORMS[form][0])
    import_run(theirs, tmp_path / "run")
    pipeline, ours = (transformers.pipeline("image-classification", str(theirs)), open_run(tmp_path / "run", device="cpu"))
    export_run(tmp_path / "run", tmp_path / "back")
    again = transformers.pipeline("image-classification", str(tmp_path / "back"))
    for file, mine in zip(photos, ours.classify(photos, top=3), strict=True):
        wanted = {prediction.text: prediction.probability for prediction in mine}
        for there in (pipeline, again):
            assert {output["label"]: output["score"] for output in there(str(file))} == pytest.approx(wanted, abs=1e-3)


SHAPES = {"ViT": {"num_hidden_layers": 2, "hidden_size": 96, "intermediate_size": 192, "num_attention_heads": 3},
          "Swin": {"depths": [2, 2], "num_heads": [3, 6]},
          "Swinv2": {"depths": [2, 2], "num_heads": [3, 6], "window_size": 8, "image_size": 256},
          "ResNet": {"hidden_sizes": [64, 128], "depths": [1, 1]}}  # fmt: skip


@pytest.mark.skipif(not (DATA / "flowers5").exists(), reason="set REGARD_DATA to a folder that holds flowers5/")
@pytest.mark.parametrize("kind", SHAPES)
def test_probabilities_agree_on_real_photos(kind, tmp_path):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SHAPES[kind], num_labels=5)
    model = getattr(transformers, f"{kind}ForImageClassification")(config)
    nn.init.normal_(model.classifier[-1].weight if kind == "ResNet" else model.classifier.weight, std=0.3)
    model.save_pretrained(tmp_path / "theirs")
    write_processor(tmp_path / "theirs", size=getattr(config, "image_size", 224), resample=3)
    import_run(tmp_path / "theirs", tmp_path / "run")
    files = save_flowers(tmp_path)
    pipeline, ours = transformers.pipeline("image-classification", str(tmp_path / "theirs")), open_run(tmp_path / "run")
    here, there = ([{prediction.text: prediction.probability for prediction in mine} for mine in ours.classify(files, top=5)],
                   [{output["label"]: output["score"] for output in pipeline(str(file))} for file in files])  # fmt: skip
    assert max(here[0].values()) - min(here[0].values()) > 0.1
    assert there == [pytest.approx(probabilities, abs=1e-3) for probabilities in here]
    plain = dataclasses.replace(ours, run=dataclasses.replace(ours.run, data=ImageData(mean=MEAN, std=STD)))
    other = {prediction.text: prediction.probability for prediction in plain.classify(files, top=5)[-1]}
    assert kind == "ResNet" or other != pytest.approx(here[-1], abs=1e-3)  # a different crop gives different probabilities


def save_flowers(home: Path) -> list[Path]:
    """Save three photos, one of them square."""
    arrays = np.load(DATA / "flowers5" / "train.npz")
    for i, (first, last) in enumerate(zip(arrays["offsets"][:3], arrays["offsets"][1:4], strict=True)):
        whole = Image.open(io.BytesIO(arrays["jpeg"][first:last].tobytes()))
        whole.crop((0, 0, 96, 96 - 20 * i)).save(home / f"{i}.png")
    return sorted(home.glob("*.png"))
