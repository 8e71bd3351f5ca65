"""Training on images: it resumes to the same bits, the EMA is the model, own folders work from training to classification."""

import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file

import regard
from regard.data.image.batches import ImageBatch
from regard.data.image.store import read_split
from regard.models import FAMILIES, state_tensors
from regard.models.vit import ViT, ViTConfig
from regard.tasks import make_run, read_run, task_of
from regard.tasks.image_classification import ImageClassifier, image_class_loss
from regard.tasks.task import ScoreOptions
from regard.train import loop
from regard.train.ema import EMA

MODELS = {
    "vit": {"family": "vit", "image": 8, "patch": 4, "dim": 16, "depth": 2, "heads": 2, "drop_path": 0.2},
    "hybrid": {"family": "vit", "image": 8, "patch": 4, "dim": 16, "depth": 1, "heads": 2, "convs": [4, 6]},
    "image-gpt": {"family": "image-gpt", "image": 6, "channels": 1, "levels": 4, "dim": 16, "depth": 1, "heads": 2},
    "resnet": {"family": "resnet", "size": "20", "image": 8, "dims": [4, 8, 8], "depths": [1, 1, 1]},
}
AUGMENTATION = {"crop": 2, "flip": True, "augment": 0.5, "mixup": 0.3, "erase": 0.5}


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Folders of red and of blue images of several sizes, for training and for validation."""
    home, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for split, count in (("train", 12), ("valid", 3)):
        for label, channel in (("red", 0), ("blue", 2)):
            (home / split / label).mkdir(parents=True)
            for number in range(count):
                image = rng.integers(0, 60, (9 + number, 12, 3), dtype=np.uint8)
                image[..., channel] += 150
                Image.fromarray(image).save(home / split / label / f"{number}.png")
    return home


def score(predictor, split):
    return task_of(predictor.run).score(predictor, split, ScoreOptions())


def a_run(kind, photos, steps=6, **more):
    tables = {
        "model": MODELS[kind],
        "data": {"train": f"{photos}/train", "valid": f"{photos}/valid", **(AUGMENTATION if kind != "image-gpt" else {})},
        "train": {"steps": steps, "batch_size": 8, "lr": 0.01, "warmup": 3, "eval_every": 3, "save_every": 3, "average": 1,
                  "device": "cpu", "schedule": "cosine", "weight_decay": 0.01, "ema": 0.9},
        **more,
    }  # fmt: skip
    return make_run(kind, tables)


@pytest.mark.parametrize("kind", [kind for kind in MODELS if MODELS[kind]["family"] in FAMILIES])
def test_a_run_on_images_that_is_resumed_midway_ends_with_the_same_bits(kind, photos, tmp_path):
    run, whole, halves = a_run(kind, photos), tmp_path / "whole", tmp_path / "halves"
    loop.fit(run, whole)
    loop.fit(run, halves)
    for name in ("model.safetensors", "README.md"):
        (halves / name).unlink()
    shutil.rmtree(halves / "checkpoints" / "step-00000006")
    loop.fit(run, halves)
    wanted, got = (load_file(folder / "model.safetensors") for folder in (whole, halves))
    assert wanted.keys() == got.keys()
    assert all(torch.equal(wanted[name], got[name]) for name in wanted)


def test_own_images_are_classified_after_training(photos, tmp_path):
    done = loop.fit(a_run("vit", photos, steps=60), tmp_path / "run")
    assert [s.value for s in done.scores] == [100.0, 100.0]
    opened = regard.load(tmp_path / "run")
    assert opened.labels == ("blue", "red")
    files = [photos / "valid" / label / "1.png" for label in ("red", "blue")]
    assert [best.text for [best] in opened.classify(files)] == ["red", "blue"]
    [both] = opened.classify(files[:1], top=5)
    assert sum(prediction.probability for prediction in both) == pytest.approx(1)
    again = score(opened, str(photos / "valid"))
    assert again == done.scores
    assert "image-classification" in (tmp_path / "run" / "README.md").read_text()


@pytest.mark.parametrize("how", [{}, {"resize": 10}, {"source": "cifar10"}, {"resize": 9, "fit": "squash"}])
def test_a_classifier_reads_an_image_as_its_score_did(how, photos, tmp_path):
    (tmp_path / "large" / "red").mkdir(parents=True)
    noise = np.random.default_rng(1).integers(0, 256, (90, 71, 3), dtype=np.uint8)  # large enough to be decoded smaller
    Image.fromarray(noise).save(tmp_path / "large" / "red" / "1.png")
    run = a_run("vit", photos, data=how)
    reader = ImageClassifier(ViT(run.model), run, ("blue", "red"))
    for folder in (photos / "valid", tmp_path / "large"):
        stored = read_split(run.data, run.model, str(folder), print, labels=reader.labels)
        files = sorted(folder.glob("*/*.png"), key=str)
        assert len(files) == len(stored)
        for file, kept in zip(files, stored.images, strict=True):
            assert np.array_equal(reader.square(file), kept)


def test_a_tenth_is_for_validation_if_no_folder_is_given(photos, tmp_path):
    run = a_run("vit", photos, data={"train": f"{photos}/train"})
    loop.fit(run, tmp_path / "run")
    [line] = score(regard.load(tmp_path / "run"), "valid")[:1]
    assert line.signature == "2 of 2 images"


def test_an_image_generator_opens_and_is_scored_in_bits_per_pixel(photos, tmp_path):
    done = loop.fit(a_run("image-gpt", photos), tmp_path / "run")
    assert done.scores[0].name == "bits per pixel"
    assert done.scores[0].value == pytest.approx(done.loss / np.log(2))
    generated = regard.load(tmp_path / "run").generate(3)
    assert generated.shape == (3, 6, 6, 1)


def test_a_checkpoint_holds_the_ema_as_the_model_and_the_raw_weights_to_resume_from(photos, tmp_path):
    run = a_run("vit", photos, steps=3)
    loop.fit(run, tmp_path / "run")
    saved = tmp_path / "run" / "checkpoints" / "step-00000003"
    mean, moments = load_file(saved / "model.safetensors"), load_file(saved / "optimizer.safetensors")
    raw = {name.removesuffix("/raw"): tensor for name, tensor in moments.items() if name.endswith("/raw")}
    assert raw.keys() == mean.keys()
    assert any(not torch.equal(raw[name], mean[name]) for name in raw)
    published = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(published[name], mean[name]) for name in mean)


def test_the_ema_is_the_weighted_sum_of_all_steps():
    torch.manual_seed(0)
    model = torch.nn.BatchNorm1d(3)
    model.num_batches_tracked = None
    mean, wanted = EMA(model, 0.5), {name: tensor.clone() for name, tensor in state_tensors(model).items()}
    for step in (1, 2, 30):
        with torch.no_grad():
            for tensor in state_tensors(model).values():
                tensor.add_(torch.randn_like(tensor))
        mean.update(step)
        keep = min(0.5, (1 + step) / (10 + step))
        wanted = {name: keep * before + (1 - keep) * state_tensors(model)[name] for name, before in wanted.items()}
    assert set(wanted) == {"weight", "bias", "running_mean", "running_var"}
    for name, tensor in mean.weights.items():
        torch.testing.assert_close(tensor, wanted[name].detach())
    before = model.weight.detach().clone()
    with mean.swapped():
        torch.testing.assert_close(model.weight.detach(), wanted["weight"].detach())
    assert torch.equal(model.weight, before)


def test_the_loss_of_mixed_images_is_that_of_mixed_labels():
    torch.manual_seed(0)
    model = ViT(ViTConfig(image=8, patch=4, dim=16, depth=1, heads=2, classes=4)).eval()
    torch.nn.init.normal_(model.classifier.weight)  # initialized to zero, so all classes would be equal
    x, label, other, part = torch.randn(5, 3, 8, 8), torch.arange(5) % 4, (torch.arange(5) + 1) % 4, torch.rand(5)
    loss, nll = image_class_loss(model, ImageBatch(x, label, other, part), 0.1)
    target = part[:, None] * F.one_hot(label, 4) + (1 - part[:, None]) * F.one_hot(other, 4)
    target = 0.9 * target + 0.1 / 4
    torch.testing.assert_close(loss, -(target * model(x).log_softmax(-1)).sum())
    torch.testing.assert_close(nll, F.cross_entropy(model(x), label, reduction="sum"))


def test_a_size_of_another_family_replaces_the_recipes_model():
    run = read_run("fashion-vit", ("model=mvit-v2-tiny", "model.image=32"))
    assert (run.family, run.model.image, run.model.channels, run.model.dim) == ("mvit", 32, 1, 96)
    tiny = read_run("fashion-vit", ("model=tiny", "model.patch=4"))
    assert (tiny.family, tiny.model.image, tiny.model.dim, tiny.model.depth, tiny.model.convs) == ("vit", 28, 192, 12, [])


def test_a_list_may_be_emptied():
    assert read_run("fashion-vit", ("model.convs=[]",)).model.convs == []
