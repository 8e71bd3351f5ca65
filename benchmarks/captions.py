"""How good are captions, compared with one caption for all images?  BLEU-1 to BLEU-4 of several runs on one split.

The constant caption is a training caption: of the 200 whose word sequences occur in the captions of the most training images, the
best on the validation set, once by BLEU-1 and once by BLEU-4.

    python benchmarks/captions.py runs/flickr8k-attend runs/flickr8k-transformer
"""

import argparse
from collections import Counter
from pathlib import Path

import rig
from rich.console import Console
from rich.table import Table
from rig import say

from regard.data.image.captions import find_captions
from regard.tasks import task_of
from regard.tasks.captioning import ImageCaptioner
from regard.tasks.load import load
from regard.tasks.metrics import caption_scores
from regard.tasks.task import ScoreOptions

CANDIDATES = 200
ORDERS = (1, 2, 3, 4)
Scores = dict[str, float]


def main() -> None:
    """Score the runs and the constant captions, print the table, save the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("runs", nargs="+", type=Path)
    options.add_argument("--on", default="test", help="a split")
    asked = options.parse_args()
    rows: dict[str, Scores] = {}
    for folder in asked.runs:
        captioner = load(folder)
        assert isinstance(captioner, ImageCaptioner)
        if not rows:
            rows = constant_captions(captioner, asked.on)
        scores = task_of(captioner.run).score(captioner, asked.on, ScoreOptions())
        rows[folder.name] = {score.name: score.value for score in scores}
    table = Table(title=f"captions of {asked.on}: BLEU, lower case, all references", title_justify="left")
    for heading in ("", *(f"BLEU-{order}" for order in ORDERS)):
        table.add_column(heading)
    for name, row in rows.items():
        table.add_row(name, *(f"{row[f'BLEU-{order}']:.1f}" for order in ORDERS))
    Console(width=120).print(table)
    say(f"saved {rig.named(rig.save('caption_scores', {'split': asked.on, 'rows': rows}))}")


def constant_captions(captioner: ImageCaptioner, split: str) -> dict[str, Scores]:
    """The best constant captions by BLEU-1 and by BLEU-4, and their scores on a split."""
    data, model = captioner.run.data, captioner.run.model
    train, valid, test = (find_captions(data, model, name).captions for name in ("train", "valid", split))
    images: Counter[str] = Counter()
    for captions in train:
        images.update({part for caption in captions for part in _parts(caption)})
    distinct = {caption for captions in train for caption in captions}
    common = sorted(distinct, key=lambda caption: -sum(images[part] for part in _parts(caption)) / max(1, len(_parts(caption))))
    tried = {caption: _bleu(caption, valid) for caption in common[:CANDIDATES]}
    found = {}
    for order in (1, 4):
        caption = max(tried, key=lambda text: tried[text][f"BLEU-{order}"])
        found[f'"{caption}"'] = _bleu(caption, test)
    return found


def _parts(caption: str) -> set[str]:
    """All sequences of one to four words."""
    words = caption.split()
    return {" ".join(words[i : i + n]) for n in ORDERS for i in range(len(words) - n + 1)}


def _bleu(caption: str, references: list[list[str]]) -> Scores:
    scores = caption_scores([caption] * len(references), references, tokenized=True)
    return {score.name: score.value for score in scores}


if __name__ == "__main__":
    main()
