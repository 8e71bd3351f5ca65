"""Translation runs side by side: their scores on the same test data, by the length of the source sentence."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regard.data.files import write_atomic
from regard.data.text.splits import find_split, source_names
from regard.tasks.metrics import translation_scores
from regard.tasks.task import ScoreOptions
from regard.tasks.translation import Translator, read_references, translate_split
from regard.view.draw import check_file, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["BUCKETS", "Bucket", "Comparison", "compare", "draw", "to_file"]

BUCKETS = (5, 10, 15, 20, 25, 30)  # the largest number of words of each bucket; one more holds all longer sentences
MIN_SENTENCES = 10  # of the first and the last bucket; a smaller one is joined to the one beside it
References = tuple[list[str], list[list[str]]]  # sentences, and the reference translations of each


@dataclass(frozen=True)
class Bucket:
    """The sentences whose source has `low` to `high` words, and the scores of each run on them."""

    low: int
    high: int | None  # None: no limit
    sentences: int
    bleu: list[float]
    chrf: list[float]

    @property
    def words(self) -> str:
        """The numbers of words: 6–10."""
        return f"{self.low}+" if self.high is None else f"{self.low}–{self.high}"


@dataclass(frozen=True)
class Comparison:
    """The scores of several runs on one split, on the whole of it and by length."""

    title: str  # what was translated
    runs: list[str]
    metric: str  # which BLEU it is
    signature: str  # of that BLEU
    whole: Bucket
    buckets: list[Bucket]  # empty if not asked for

    def to_json(self) -> str:
        """The comparison as JSON."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


def compare(names: Sequence[str], load: Callable[[str], Translator], split: str, options: ScoreOptions, *,
            by_length: bool) -> Comparison:  # fmt: skip
    """Translate a split with several runs and score them, as a whole and by source length.

    `load` opens a run by its name; only one model is in memory at a time.
    """
    # Translating takes minutes, so all runs are checked first.
    sets, title, tokenized, (sources, references) = _require_same_data(names, load, split, options.limit)
    answers = [translate_split(load(name), split, options, only).answers for name, only in zip(names, sets, strict=True)]

    lengths = [len(source.split()) for source in sources]
    metric = "BLEU, tokenized, lower-cased" if tokenized else "BLEU"

    def score(low: int, high: int | None) -> Bucket:
        rows = [row for row, length in enumerate(lengths) if low <= length and (high is None or length <= high)]
        wanted = [references[row] for row in rows]
        scores = (translation_scores([of_run[row] for row in rows], wanted, tokenized) for of_run in answers)
        found = [{score.name: score.value for score in of_run} for of_run in scores]
        return Bucket(low, high, len(rows), [of_run[metric] for of_run in found], [of_run["chrF"] for of_run in found])

    signature = {s.name: s.signature for s in translation_scores(answers[0], references, tokenized)}[metric]
    limits = _limits(lengths) if by_length else []
    if by_length and len(limits) < 2:
        options.report(
            f"{len(lengths):,} sentences are too few, or too much of one length, to be split by length; shown as a whole"
        )
    buckets = [score(low, high) for low, high in limits] if len(limits) > 1 else []
    return Comparison(title, list(names), metric, signature, score(0, None), buckets)


def _require_same_data(names: Sequence[str], load: Callable[[str], Translator], split: str, limit: int | None,
                       ) -> tuple[list[str], str, bool, References]:  # fmt: skip
    """The data set of each run; and of the test data that all have in common its name, whether it is tokenized, and its text."""
    sets, title, common, tokenized = list[str](), split, None, False
    for name in names:
        data = load(name).run.data
        if len(parts := source_names(data)) > 1:
            raise ValueError(f"{name} was trained on a mixture of {len(parts)} sets; compare wants runs of one data set")
        found, tokens = read_references(data, split, parts[0], limit), data.text == "tok"
        if common is not None and tokens != tokenized:
            tok, raw = (name, names[0]) if tokens else (names[0], name)
            raise ValueError(f"{tok} translates tokenized text, {raw} does not; compare runs with the same data.text")
        if common is not None and found != common:
            raise ValueError(f"{name} and {names[0]} have different test data for {split!r}; compare runs of the same data set "
                             f"and text, or give a file: --on FILE")  # fmt: skip
        common, tokenized, title = found, tokens, find_split(data, split, parts[0]).name
        sets.append(parts[0])
    if common is None:
        raise ValueError("no runs to compare; give one or more run folders")
    return sets, title, tokenized, common


def _limits(lengths: Sequence[int]) -> list[tuple[int, int | None]]:
    """The smallest and largest number of words of each bucket that has sentences; the last one has no limit."""
    edges = [0, *BUCKETS]
    while len(edges) > 1 and sum(length > edges[-1] for length in lengths) < MIN_SENTENCES:
        edges.pop()
    while len(edges) > 1 and sum(0 < length <= edges[1] for length in lengths) < MIN_SENTENCES:
        edges.pop(1)
    limits: list[tuple[int, int | None]] = [
        (low + 1, high) for low, high in zip(edges, [*edges[1:], None], strict=True)
    ]  # an empty source has no words and is in no bucket
    return [(low, high) for low, high in limits if any(low <= n and (high is None or n <= high) for n in lengths)]


def to_file(comparison: Comparison, file: Path) -> list[str]:
    """Draw BLEU by source length as PNG, SVG or PDF, or write JSON, by the file's suffix; returns notes for the user."""
    check_file(file)
    if file.suffix.lower() == ".json":
        write_atomic(file, comparison.to_json().encode() + b"\n")
        return []
    size = (8.5, 4.2) if comparison.buckets else (7.0, 1.2 + 0.45 * len(comparison.runs))
    texts = [*comparison.runs, comparison.title]
    with new_figure(*size, texts) as figure:
        axes = figure.add_subplot()
        draw(axes, comparison)
        return save_figure(figure, file, texts)


def draw(axes: "Axes", comparison: Comparison) -> None:
    """One line a run; without buckets, one bar a run."""
    runs, whole = _labels(comparison.runs), comparison.whole.bleu
    if comparison.buckets:
        places = range(len(comparison.buckets))
        lines = [axes.plot(places, [b.bleu[run] for b in comparison.buckets], marker="o")[0] for run in range(len(runs))]
        axes.set_xticks(places, [f"{bucket.words}\n({bucket.sentences:,})" for bucket in comparison.buckets])
        axes.set_xlabel("words of the source sentence (number of sentences)")
        labels = [f"{run}  ({score:.1f})" for run, score in zip(runs, whole, strict=True)]
        legend = axes.legend(lines, labels, title="run (whole split)", frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        texts = legend.get_texts()
        axes.set_ylabel(comparison.metric)
        axes.set_ylim(bottom=0)
    else:
        bars = axes.barh(range(len(runs)), whole, height=0.6)
        axes.bar_label(bars, fmt="%.1f", padding=3)
        axes.set_yticks(range(len(runs)), runs)
        axes.invert_yaxis()  # the first run on top
        texts = axes.get_yticklabels()
        axes.set_xlabel(comparison.metric)
        axes.margins(x=0.1)
    for text in (*texts, axes.set_title(comparison.title, loc="left", fontsize=10)):
        text.set_parse_math(False)  # a folder may have $ in its name
    axes.spines[["top", "right"]].set_visible(False)


def _labels(runs: Sequence[str]) -> list[str]:
    """The folder names of runs; their paths, if two have the same name."""
    names = [Path(run).name for run in runs]
    return names if len({*names}) == len({*runs}) else list(runs)
