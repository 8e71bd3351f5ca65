"""A caption model that was trained on generated shapes writes exact captions and looks at the shape that it names."""

import numpy as np
import pytest

import regard
from regard.data.image.shapes import shape_image
from regard.tasks import read_run
from regard.train.loop import fit


@pytest.mark.slow
def test_shapes_attend_writes_exact_captions_and_looks_at_the_shapes_it_names(tmp_path):
    fit(read_run("shapes-attend", ()), tmp_path / "run")
    captioner = regard.load(tmp_path / "run", "cpu")
    made = [shape_image("test", index) for index in range(200)]
    captions = captioner.caption([each.image for each in made])
    exact = [(each, caption) for each, caption in zip(made, captions, strict=True) if each.caption == caption.text]
    assert len(exact) >= 0.95 * len(made)
    inside = list[float]()
    for each, caption in exact:
        attention = regard.map_caption(captioner, each.image, caption=caption)
        words, up = [word for word in attention.words if word.title in each.forms], round(8 * attention.shift)  # pixels
        for word, box in zip(words, each.boxes, strict=True):
            pixels = np.kron(word.weights, np.full((8, 8), 1 / 64))  # each cell's weight, evenly over its 8 × 8 pixels
            assert pixels.sum() == pytest.approx(1, abs=1e-4)
            top, left = (max(0, edge - 4 + up) for edge in (box.top, box.left))  # grown by half a cell
            inside.append(pixels[top : box.bottom + 4 + up, left : box.right + 4 + up].sum())
    assert np.mean(inside) >= 0.8
