"""Captioning from the command line and in Python: training, resuming, captions, scores, an encoder that was trained before."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from regard import load
from regard.data.image.captions import find_captions
from regard.tasks import read_run
from regard.tasks.metrics import caption_scores

RESNET = "family = 'resnet'\nimage = 16\nstem = 'cifar'\ndim = 4\ndims = [4, 8]\ndepths = [1, 1]\nblock = 'basic'\n"
TRAIN = ("[train]\nsteps = 6\nbatch_size = 16\nlr = 0.01\nwarmup = 3\neval_every = 3\nsave_every = 3\naverage = 1\n"
         "device = 'cpu'\n[decode]\nbeam_size = 2\n")  # fmt: skip
DATA = "[data]\nsource = 'shapes'\nresize = 18\nmax_len = 20\nvocab = 60\ncaptions = 1\n"
DECODERS = {
    "captioner": "dim = 16\nhidden = 16\nalign = 8\n",
    "caption-transformer": "dim = 16\ndepth = 1\nheads = 2\nmax_len = 24\n",
}
FAMILIES = pytest.mark.parametrize("family", list(DECODERS))


@pytest.fixture(scope="module")
def few_shapes():
    """Few generated images: these tests are not about learning."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.data.image.captions.SHAPES_COUNT", {"train": 48, "valid": 12, "test": 12})
        yield


@pytest.fixture(scope="module")
def runs(few_shapes, tmp_path_factory):
    """A trained run of each family, and its recipe."""
    from regard.train.loop import fit

    folder = tmp_path_factory.mktemp("captions")
    for family, keys in DECODERS.items():
        recipe = folder / f"{family}.toml"
        recipe.write_text(f"[model]\nfamily = '{family}'\n{keys}[model.encoder]\n{RESNET}{DATA}{TRAIN}")
        fit(read_run(str(recipe)), folder / family)
    return folder


@FAMILIES
def test_a_resumed_training_is_bit_identical(runs, regard, family, tmp_path):
    recipe = runs / f"{family}.toml"
    for steps in (3, 6):
        result = regard("train", recipe, f"train.steps={steps}", "train.schedule=inverse", "--resume", "--out", tmp_path / "cut")
        assert result.code == 0, result.err
    assert regard("train", recipe, "train.schedule=inverse", "--out", tmp_path / "whole").code == 0
    cut, whole = (load_file(tmp_path / name / "model.safetensors") for name in ("cut", "whole"))
    assert all(torch.equal(cut[name], whole[name]) for name in whole)


@FAMILIES
def test_a_run_writes_captions_and_scores_them(runs, regard, family):
    captioner = load(runs / family)
    images = list(find_captions(captioner.run.data, captioner.run.model, "test").images())
    best = captioner.caption(images[:3], beam=3, n_best=2)
    assert [len(caption.n_best) for caption in best] == [2, 2, 2]
    assert all(caption.n_best[0].score >= caption.n_best[1].score for caption in best)
    assert captioner.caption(images[:3], beam=3)[1].text == captioner.caption([images[1]], beam=3)[0].text
    result = regard("score", runs / family, "--on", "test")
    assert result.code == 0, result.err
    assert all(f"BLEU-{order}" in result.out for order in (1, 2, 3, 4))


def test_wrong_images_and_options_are_answered_in_one_line(runs, tmp_path):
    captioner = load(runs / "captioner")
    with pytest.raises(ValueError, match="put it in brackets"):
        captioner.caption("photo.jpg")
    with pytest.raises(ValueError, match=r"an array of float64, \(4, 4, 3\); wanted bytes"):
        captioner.caption([np.zeros((4, 4, 3))])
    with pytest.raises(ValueError, match="beam 1 and n_best 2"):
        captioner.caption([np.zeros((4, 4, 3), dtype=np.uint8)], beam=1, n_best=2)
    (tmp_path / "text.jpg").write_text("no image")
    with pytest.raises(ValueError, match=r"text\.jpg"):
        captioner.caption([tmp_path / "text.jpg"])
    assert captioner.caption([np.zeros((1, 1, 3), dtype=np.uint8)])  # one pixel is an image


# --- an encoder that was trained before


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A trained image classifier."""
    from PIL import Image

    from regard.train.loop import fit

    folder = tmp_path_factory.mktemp("classifier")
    for number in range(12):
        label = folder / "images" / ("dark" if number % 2 else "light")
        label.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((16, 16, 3), (20 if number % 2 else 200) + number, dtype=np.uint8)).save(label / f"{number}.png")
    data = f"[data]\ntrain = '{folder}/images'\nmean = [0.4, 0.5, 0.6]\nstd = [0.2, 0.2, 0.2]\nfit = 'squash'\n"
    (folder / "classify.toml").write_text(f"[model]\n{RESNET}{data}{TRAIN}")
    fit(read_run(str(folder / "classify.toml")), folder / "run")
    return folder / "run"


@FAMILIES
def test_the_encoder_starts_from_an_image_classifier(runs, classifier, regard, family, tmp_path):
    recipe, out = tmp_path / "new.toml", tmp_path / "run"
    recipe.write_text(f"init_encoder = '{classifier}'\n[model]\nfamily = '{family}'\n{DECODERS[family]}{DATA}{TRAIN}")
    run = read_run(str(recipe))
    assert run.model.encoder["family"] == "resnet"
    assert run.model.encoder["dims"] == [4, 8]
    assert (run.data.mean, run.data.fit) == ([0.4, 0.5, 0.6], "squash")
    result = regard("train", recipe, "train.steps=1", "train.lr=0.0", "--out", out)
    assert result.code == 0, result.err
    assert "the encoder is initialized with the weights of" in result.err
    ours, theirs = load_file(out / "model.safetensors"), load_file(classifier / "model.safetensors")
    for name, tensor in theirs.items():
        if not name.startswith("classifier.") and "running" not in name and "batches" not in name:
            assert torch.equal(ours[f"encoder.net.{name}"], tensor), name
    assert read_run(out / "run.toml").init_encoder == str(classifier)
    result = regard("train", recipe, "train.steps=2", "--resume", "--out", out)
    assert result.code == 0, result.err


def test_what_init_encoder_decides_cannot_be_changed(runs, classifier, tmp_path):
    recipe = tmp_path / "new.toml"
    recipe.write_text(f"init_encoder = '{classifier}'\n[model]\nfamily = 'captioner'\n{DATA}")
    assert read_run(str(recipe), ["model.encoder.image=24"]).model.image == 24  # a ResNet reads any size
    for change in ("model.encoder.dims=[4,4]", "data.mean=[0.5,0.5,0.5]"):
        with pytest.raises(ValueError, match=r"and init_encoder=.* were both given"):
            read_run(str(recipe), [change])
    with pytest.raises(ValueError, match="a gpt has no image encoder"):
        read_run("gpt", [f"init_encoder={classifier}"])
    with pytest.raises(ValueError, match="is a captioner; wanted an image classifier: resnet"):
        read_run(str(recipe), [f"init_encoder={runs}/captioner"])
    with pytest.raises(ValueError, match="init and init_encoder were both given"):
        read_run(str(recipe), [f"init={runs}/captioner"])


def test_wrong_keys_of_the_encoder_are_named():
    for change, wanted in (
        ("model.encoder.family=resnt", r"encoder\.family is 'resnt' \(did you mean 'resnet'\?\)"),
        ("model.encoder.dimms=3", r"unknown key encoder\.dimms \(did you mean 'encoder\.dims'\?\)"),
        ("model.encoder.size=19", r"encoder\.size is 19"),
        ("model.encoder.classes=x", r"encoder\.classes"),
    ):
        with pytest.raises(ValueError, match=wanted):
            read_run("flickr8k-attend", [change])


def test_bleu_of_captions_counts_every_reference():
    scores = {score.name: score.value for score in caption_scores(["a dog runs"], [["a cat sits", "a dog runs"]], tokenized=True)}
    assert scores["BLEU-1"] == pytest.approx(100)
    assert scores["exact match"] == 100
    scores = {score.name: score.value for score in caption_scores(["a dog"], [["a cat", "one dog"]], tokenized=True)}
    assert scores["BLEU-1"] == pytest.approx(100)  # each word is in a reference
    assert scores["BLEU-2"] < 100
