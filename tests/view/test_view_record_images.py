"""Records of image models: windows and neighbourhoods where they are in the image, and pictures from untrusted bytes."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from test_image_maps import LABELS, LRNET, MVIT, RESNET, SWIN, VIT, classifier
from test_image_maps import random_image as noise
from tiny_captioners import captioner, random_image

from regard.layers.tap import watch
from regard.models.swin import Swin
from regard.view import record_images
from regard.view.record import record_attention, rollout_of, thumbnails

PADDED = {**SWIN, "image": 22}  # grids of 11 × 11 and 6 × 6, windows of 4
V2 = {**SWIN, "version": "v2", "image": 22}
V1_TOKEN = {**MVIT, "positions": "added", "residual": "none", "expand": "mlp", "pool": "token"}
CASES = {
    "vit": ("vit", VIT), "vit-mean": ("vit", {**VIT, "pool": "mean"}), "swin": ("swin", SWIN), "swin-padded": ("swin", PADDED),
    "swin-v2": ("swin", V2), "mvit": ("mvit", MVIT), "mvit-token": ("mvit", V1_TOKEN), "resnet": ("resnet", RESNET),
    "lrnet": ("lrnet", LRNET), "lrnet-imagenet": ("lrnet", {**LRNET, "stem": "imagenet", "image": 26, "kernel": 5}),
}  # fmt: skip
EVERY = pytest.mark.parametrize("case", CASES)


def recorded(predictor, x) -> dict[str, torch.Tensor]:
    with watch(predictor.model) as found, torch.inference_mode():
        predictor.model(x)
    return {name: calls[0] for name, calls in found.items()}


def swin_dense(model: Swin, name: str, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """By a loop over windows: the dense matrix (H, Q, K), and the weight of each query on padding (H, Q)."""
    block, side = model.get_submodule(name.removesuffix(".attn")), model.config.image
    rows, columns = model.grids(side, side)[int(name.split(".")[1])]
    window, shift = block.fit(block.window, block.shift, rows, columns)
    height, width = (-(-length // window) * window for length in (rows, columns))
    dense, lost = torch.zeros(weights.shape[1], rows * columns, rows * columns), torch.zeros(weights.shape[1], rows * columns)

    def position(n: int, i: int) -> int | None:
        """Of place i of window n, in the grid as it was before it was rolled up and to the left."""
        down, across = divmod(n, width // window)
        y = (down * window + i // window + shift) % height
        x = (across * window + i % window + shift) % width
        return y * columns + x if y < rows and x < columns else None

    for n in range(len(weights)):
        for i in range(window**2):
            for j in range(window**2):
                query, key = position(n, i), position(n, j)
                if query is not None and key is not None:
                    dense[:, query, key] = weights[n, :, i, j]
                elif query is not None:
                    lost[:, query] += weights[n, :, i, j]
    return dense, lost


def lrnet_dense(model, name: str, weights: torch.Tensor) -> torch.Tensor:
    """By a loop over queries and their neighbours: (H, Q, K)."""
    layer, side = model.get_submodule(name), model.input_sides(model.config.image)[name]
    out = -(-side // layer.stride)
    dense = torch.zeros(weights.shape[1], out**2, side**2)
    for query in range(out**2):
        for neighbour in range(layer.kernel**2):
            y = query // out * layer.stride + neighbour // layer.kernel - layer.kernel // 2
            x = query % out * layer.stride + neighbour % layer.kernel - layer.kernel // 2
            if 0 <= y < side and 0 <= x < side:
                dense[:, query, y * side + x] = weights[0, :, query, neighbour]
    return dense


@EVERY
def test_weights_are_those_of_watch_in_their_places_and_rows_sum_to_one(case):
    family, sizes = CASES[case]
    predictor, image = classifier(family, **sizes), noise(sizes["image"])
    record = record_attention(predictor, image)
    seen = recorded(predictor, predictor.to_input(image))
    assert [layer.name for layer in record.layers] == list(seen)
    for layer in record.layers:
        weights, lost = seen[layer.name], torch.zeros(())
        if family == "swin":
            wanted, lost = swin_dense(predictor.model, layer.name, weights)
        else:
            wanted = lrnet_dense(predictor.model, layer.name, weights) if family == "lrnet" else weights[0]
        for head in range(layer.heads):
            torch.testing.assert_close(layer.dense(head), wanted[head], atol=1e-5, rtol=0)
        torch.testing.assert_close(layer.dense(), wanted.mean(0), atol=1e-5, rtol=0)
        torch.testing.assert_close(layer.received(), wanted.mean((0, 1)), atol=1e-5, rtol=0)
        torch.testing.assert_close(wanted.sum(-1) + lost, torch.ones(wanted.shape[:2]))
        assert layer.shape == wanted.shape[1:] == (record.axes[layer.queries].size, record.axes[layer.keys].size)
        torch.testing.assert_close(layer.dense(0, 1, 2, 3, 4), wanted[0, 1:4, 2:6], atol=1e-5, rtol=0)
    padded = case in ("swin-padded", "swin-v2")
    assert any("padding" in note for note in record.notes) == padded


@EVERY
def test_thumbnails_keep_the_largest_weight(case):
    family, sizes = CASES[case]
    record = record_attention(classifier(family, **sizes), noise(sizes["image"]))
    for layer in record.layers:
        whole = torch.stack([layer.dense(head) for head in range(layer.heads)])
        torch.testing.assert_close(thumbnails(layer, 10_000), whole)
        small = thumbnails(layer, 3)
        assert small.shape == (layer.heads, min(3, whole.shape[1]), min(3, whole.shape[2]))
        torch.testing.assert_close(small.amax((1, 2)), whole.amax((1, 2)))


@EVERY
def test_the_answer_is_the_classifiers_and_so_is_the_one_of_running_again(case):
    family, sizes = CASES[case]
    predictor, image = classifier(family, **sizes), noise(sizes["image"])
    record = record_attention(predictor, image)
    [wanted] = predictor.classify([image], top=3)
    assert [item.text for item in record.answer.items] == [best.text for best in wanted]
    probabilities = [item.probability for item in record.answer.items]
    assert probabilities == pytest.approx([best.probability for best in wanted], abs=1e-5)
    assert record.rerun.logprobs().exp().tolist() == pytest.approx(probabilities, abs=1e-5)
    assert record.rerun.answer().text == record.answer.text == wanted[0].text
    assert record.rerun.source == []
    for call in (record.rerun.logprobs, record.rerun.answer):
        with pytest.raises(ValueError, match="reads no text, so no word can be left out"):
            call([1, 2])


def test_grids_are_named_from_fine_to_coarse():
    record = record_attention(classifier("swin", **SWIN), noise(16))
    assert {name: axis.grid for name, axis in record.axes.items() if axis.grid} == {"image": (8, 8), "image1": (4, 4)}
    titles = [layer.title for layer in record.layers]
    assert titles[1] == "layer 2, self-attention in windows of 4 × 4, shifted by 2"
    assert titles[2] == "layer 3, self-attention in windows of 4 × 4"
    mvit = record_attention(classifier("mvit", **MVIT), noise(16))
    assert [(layer.queries, layer.keys) for layer in mvit.layers] == [("image", "image1"), ("image1", "image"),
                                                                     ("image1", "image1")]  # fmt: skip
    for each in (record, mvit):
        with pytest.raises(ValueError, match=r"no rollout|a rollout needs"):
            rollout_of(each, "")


def test_the_alignment_of_a_class_is_the_row_of_the_class_token_or_what_all_positions_look_at():
    token = record_attention(classifier("vit", **VIT), noise(12))
    assert token.axes["image"].labels == ["class token"]
    assert (token.axes["image"].size, token.axes["image"].grid) == (10, (3, 3))
    torch.testing.assert_close(token.alignment, token.layers[-1].weights.mean(0)[:1])
    assert token.alignment_title == "attention of the class token, layer 3 of 3, mean of 3 heads"
    swin = record_attention(classifier("swin", **SWIN), noise(16))
    torch.testing.assert_close(swin.alignment[0], swin.layers[-1].dense().mean(0))
    assert swin.alignment_axes == ("answer", "image1")
    torch.testing.assert_close(rollout_of(token, "").sum(-1), torch.ones(10))


def test_a_model_without_attention_has_classes_and_a_note():
    record = record_attention(classifier("resnet", **{**RESNET, "attention": []}), noise(16))
    assert (record.layers, record.alignment.shape, len(record.answer.items)) == ([], (0, 0), len(LABELS))
    assert "without attention" in record.notes[-1]


def test_the_picture_is_upright_and_not_large():
    record = record_attention(classifier("vit", **VIT), np.zeros((3000, 1500, 3), np.uint8))
    with Image.open(io.BytesIO(record.picture)) as picture:
        assert picture.format == "PNG"
        assert picture.height == 2 * picture.width <= 1024
    top, left, bottom, right = record.region
    assert (left, right) == pytest.approx((1 / 14, 13 / 14))  # the middle 12 pixels of 14
    assert (top + bottom, bottom - top) == pytest.approx((1, 6 / 14))


# -- captions


@pytest.mark.parametrize("family", ["captioner", "caption-transformer"])
@pytest.mark.parametrize("beam", [1, 3])
def test_a_captions_weights_are_those_of_each_step_by_itself(family, beam):
    predictor, image = captioner(family), random_image()
    record = record_attention(predictor, image, beam=beam)
    [caption] = predictor.caption([image], beam=beam)
    assert record.answer.text == caption.text
    assert record.answer.score == pytest.approx(caption.score, abs=1e-4)
    target = [*caption.ids, predictor.tokenizer.special.eos][: record.axes["answer"].size]
    x = predictor.to_input(image)
    for step in range(len(target)):
        with watch(predictor.model) as found, torch.inference_mode():
            logits = predictor.model(x, torch.tensor([[predictor.tokenizer.special.bos, *target[:step]]]))
        for layer in record.layers:
            weights = torch.cat(found[layer.name], -2)[0]
            row = layer.weights if layer.kind == "self" else layer.weights[:, step, : weights.shape[-1]]
            torch.testing.assert_close(row, weights if layer.kind == "self" else weights[:, -1], atol=1e-5, rtol=0)
        probability = float(logits[0, -1].softmax(-1)[target[step]])
        assert record.answer.items[step].probability == pytest.approx(probability, rel=1e-3)
    cross = [layer.weights.mean(0) for layer in record.layers if layer.kind == "cross"]
    torch.testing.assert_close(record.alignment, sum(cross) / len(cross))
    torch.testing.assert_close(record.alignment.sum(-1), torch.ones(len(target)))
    assert record.rerun.answer().text == caption.text
    probabilities = torch.tensor([item.probability for item in record.answer.items])
    torch.testing.assert_close(record.rerun.logprobs().exp(), probabilities, rtol=1e-3, atol=1e-6)
    with pytest.raises(ValueError, match="reads no text"):
        record.rerun.logprobs([1])


def test_the_encoder_of_a_captioner_is_recorded_too():
    vit = record_attention(captioner("caption-transformer"), random_image())
    assert vit.layers[0].title == "encoder layer 1, self-attention"
    assert vit.axes["image"].labels == ["class token"]
    swin = {"family": "swin", "image": 32, "patch": 4, "dim": 8, "depths": [2, 1], "heads": [1, 2], "window": 4}
    predictor = captioner("caption-transformer", encoder=swin)
    record = record_attention(predictor, random_image())
    assert [layer.name for layer in record.layers[:3]] == [f"encoder.net.stages.{n}.attn" for n in ("0.blocks.0", "0.blocks.1",
                                                                                                    "1.blocks.0")]  # fmt: skip
    assert record.layers[1].windows is not None
    assert record.alignment_axes == ("answer", "image1")
    torch.testing.assert_close(record.layers[1].dense().sum(-1), torch.ones(64))


def test_options_that_a_caption_cannot_have_are_refused():
    for option in ({"tokens": 3}, {"temperature": 1.0}):
        with pytest.raises(ValueError, match="leave it out"):
            record_attention(captioner(), random_image(), **option)
    with pytest.raises(ValueError, match="beam 0; use a beam of 1 or more"):
        record_attention(captioner(), random_image(), beam=0)


# -- from bytes


def encoded(image: np.ndarray, kind: str, **options: object) -> bytes:
    with io.BytesIO() as stream:
        Image.fromarray(image).save(stream, kind, **options)
        return stream.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_the_content_of_a_file_is_read_as_the_file_is(tmp_path, kind):
    predictor, content = classifier("vit", **VIT), encoded(random_image(200), kind)
    (tmp_path / "image").write_bytes(content)
    by_content, by_file = (record_attention(predictor, what) for what in (content, tmp_path / "image"))
    assert by_content.answer == by_file.answer
    assert by_content.picture == by_file.picture
    assert torch.equal(by_content.alignment, by_file.alignment)


def png_header(rows: int, columns: int) -> bytes:
    """A file that claims a size, with no pixels."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "it is empty"), (b"hello", "it begins with 'hello'"), (b"\0" * 99, "damaged, or of another kind"),
     (png_header(20_000, 20_000), "20,000 × 20,000 pixels; 50,000,000 at most"), (png_header(9, 9), "damaged or cut short")],
    ids=["empty", "text", "zeros", "bomb", "cut"],
)  # fmt: skip
def test_bytes_that_are_no_image_or_too_large_are_refused_in_one_line(content, message):
    for predictor in (classifier("vit", **VIT), captioner()):
        with pytest.raises(ValueError, match=message) as caught:
            record_attention(predictor, content)
        assert "\n" not in str(caught.value)


def test_a_large_image_is_refused_before_it_is_decoded(monkeypatch):
    content = encoded(np.zeros((30, 40, 3), np.uint8), "PNG")
    monkeypatch.setattr(record_images, "MAX_PIXELS", 1200)
    predictor = classifier("vit", **VIT)
    record_attention(predictor, content)
    monkeypatch.setattr(record_images, "MAX_PIXELS", 1199)
    with pytest.raises(ValueError, match="the image has 40 × 30 pixels; 1,199 at most are read"):
        record_attention(predictor, content)


@pytest.mark.parametrize("what", [3, None, [1, 2], {"a": 1}])
def test_what_is_no_image_is_refused(what):
    with pytest.raises(ValueError, match="tiny reads images, and got"):
        record_attention(classifier("vit", **VIT), what)
