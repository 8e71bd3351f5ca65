"""Does a caption model look at what it names?  Generated shapes whose places are known.

Of the test images, 500 by default: the fraction whose caption is exact, and of those the mean fraction of the attention for
the two words that name shapes (circle, square, triangle, cross) which falls inside the shape named.  The weights are those of
the step that predicts the word.

    inside  a cell of the grid, centred where its convolutions are, counts by the fraction of its area in the shape's bounding
            box, grown by half a cell on each side: a cell that touches a shape is as much about the shape as about its own pixels
    strict  the same, with the box as it is
    peak    the fraction of the words for which the centre of the cell with the largest weight is in the box
    chance  what uniform attention has inside the grown box

    python benchmarks/shapes_attention.py runs/shapes-attend [RUN ...] [--images 500]
"""

import argparse
import sys
from pathlib import Path

import rig
import torch
from rich.console import Console
from rich.table import Table
from rig import say

from regard.data.image.captions import SHAPES_COUNT, SHAPES_SIDE
from regard.data.image.shapes import Box, ShapeImage, shape_image
from regard.tasks.captioning import Caption, ImageCaptioner
from regard.tasks.load import load
from regard.view.caption_maps import attention_inside, map_caption

GROW = 0.5  # cells
COLUMNS = ("exact", "inside", "strict", "peak", "chance")


def main() -> int:
    """Caption, measure, print the table, save the results."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    options.add_argument("--images", type=int, default=SHAPES_COUNT["test"])
    chosen = options.parse_args()
    try:
        runs = {folder.resolve().name: measure(load(folder, "cpu"), chosen.images) for folder in chosen.runs}
    except ValueError as error:
        say(str(error))
        return 2
    table = Table("run", *COLUMNS, "words")
    for name, result in runs.items():
        table.add_row(name, *(f"{result[column]:.1%}" for column in COLUMNS), f"{result['words']:,.0f}")
    Console().print(table)
    say(f"saved in {rig.named(rig.save('shapes_attention', {'images': chosen.images, 'runs': runs}))}")
    return 0


def measure(captioner: ImageCaptioner, images: int) -> dict[str, float]:
    """The figures of one run."""
    made = [shape_image("test", index, SHAPES_SIDE) for index in range(images)]
    captions = captioner.caption([each.image for each in made])
    exact = [(each, caption) for each, caption in zip(made, captions, strict=True) if caption.text == each.caption]
    words = [word for each, caption in exact for word in measure_words(captioner, each, caption)]
    means = torch.tensor(words).mean(0).tolist() if words else [0.0] * 4
    return {"exact": len(exact) / len(made), **dict(zip(COLUMNS[1:], means, strict=True)), "words": len(words)}


def measure_words(captioner: ImageCaptioner, made: ShapeImage, caption: Caption) -> list[tuple[float, ...]]:
    """Inside, strict, peak and chance of each of the two words that name a shape."""
    attention = map_caption(captioner, made.image, caption=caption)
    found, shift = [word for word in attention.words if word.title in made.forms], attention.shift
    figures = list[tuple[float, ...]]()
    for word, form, box in zip(found, made.forms, made.boxes, strict=True):
        if word.title != form:
            raise ValueError(f"the caption {caption.text!r} does not name {' and '.join(made.forms)} in this order")
        grid = torch.tensor(word.weights)  # (Y, X)
        inside, strict = (attention_inside(grid, box, SHAPES_SIDE, grow, shift) for grow in (GROW, 0.0))
        chance = attention_inside(torch.ones_like(grid), box, SHAPES_SIDE, GROW, shift)
        figures.append((inside, strict, float(peak_inside(grid, box, shift)), chance))
    return figures


def peak_inside(grid: torch.Tensor, box: Box, shift: float) -> bool:
    """Whether the centre of the cell with the largest weight is in the box."""
    row, column = divmod(int(grid.argmax()), grid.shape[1])
    y, x = ((place + 0.5 - shift) * SHAPES_SIDE / cells for place, cells in zip((row, column), grid.shape, strict=True))
    return box.top <= y < box.bottom and box.left <= x < box.right


if __name__ == "__main__":
    sys.exit(main())
