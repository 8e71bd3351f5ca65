"""Error analysis for the terminal, and as TSV, JSON or a drawn confusion matrix."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from regard.data.files import write_atomic
from regard.data.terminal import printable
from regard.tasks.errors import ErrorAnalysis, ScoredExample
from regard.tasks.metrics import Score
from regard.view import draw
from regard.view.draw import DRAWINGS, new_figure, save_figure
from regard.view.scale import palette

__all__ = ["check_file", "to_file", "to_json", "to_text"]

TABLE_CLASSES = 12  # most classes of a confusion matrix in the terminal
CONFUSED = 10  # pairs of classes that are shown
WORST = 5  # examples that are shown
LABEL, TEXT = 16, 200  # characters of a class in a heading, and of a text
DRAWN_CLASSES = 100  # most classes of a drawn matrix
TABLES = (".tsv", ".json")


def check_file(file: Path, classes: bool) -> None:
    """Refuse a file that cannot be written, before the model runs."""
    why = "" if classes or file.suffix.lower() not in DRAWINGS else ": a drawing is a confusion matrix, of classes"
    draw.check_file(file, kinds=(*TABLES, *DRAWINGS) if classes else TABLES, why=why)


def to_text(analysis: ErrorAnalysis) -> str:
    """The classes, the most confused ones and the worst examples, for the terminal."""
    lines = [*(_class_lines(analysis) if analysis.labels else ()), *_worst_lines(analysis)]
    return "\n".join(lines)


def _class_lines(analysis: ErrorAnalysis) -> Iterator[str]:
    names = [printable(label, keep="")[:LABEL] for label in analysis.labels]
    wide = max(map(len, (*names, "true class")))
    few = len(names) <= TABLE_CLASSES
    columns = [max(len(name), 5) for name in names] if few else []
    headings = "".join(f"  {name:>{size}}" for name, size in zip(names, columns, strict=False))
    yield "confusion matrix: a row for each true class, a column for each answer" if few else "classes"
    yield f"{'true class':{wide}}{headings}   examples  recall  precision"
    for name, row, errors in zip(names, analysis.matrix(), analysis.classes(), strict=True):
        cells = "".join(f"  {count:>{size},}" for count, size in zip(row, columns, strict=False))
        yield f"{name:{wide}}{cells}   {errors.examples:>8,}  {_percent(errors.recall):>6}  {_percent(errors.precision):>9}"
    if not few and (confused := analysis.confused(CONFUSED)):
        yield "most confused"
        for pair in confused:
            yield f"{pair.times:6,}  {printable(pair.wanted, keep='')} taken for {printable(pair.answer, keep='')}"


def _worst_lines(analysis: ErrorAnalysis) -> Iterator[str]:
    worst = list({example.input: example for example in reversed(analysis.worst())}.values())[::-1][:WORST]  # each text once
    if not worst:
        yield "no mistakes"
    elif analysis.labels:
        yield "most confident mistakes"
        for example in worst:
            answer, wanted, which = map(_short, (example.answer, example.wanted[0], example.input))
            yield f"{100 * example.value:5.1f} %  {answer}, wanted {wanted}: {which}{_where(example)}"
    else:
        yield "lowest sentence chrF"
        for example in worst:
            yield f"{example.value:7.2f}  {_short(example.input)}{_where(example)}"
            yield f"         answer     {_short(example.answer)}"
            yield from (f"         reference  {_short(text)}" for text in example.wanted)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _short(text: str) -> str:
    return printable(text if len(text) <= TEXT else text[: TEXT - 1] + "…", keep="")


def _where(example: ScoredExample) -> str:
    return "  [training data]" if example.trained else ""


def to_json(analysis: ErrorAnalysis, scores: Sequence[Score], count: int | None = None) -> dict[str, object]:
    """Scores, classes, confusion matrix and the worst examples; all of them without a `count`."""
    found: dict[str, object] = {"scores": [score.to_json() for score in scores], "examples": len(analysis.examples)}
    if analysis.labels:
        found["labels"] = list(analysis.labels)
        found["confusion"] = analysis.matrix()
        found["classes"] = [
            {"label": c.label, "examples": c.examples, "recall": c.recall, "precision": c.precision} for c in analysis.classes()
        ]
        found["confused"] = [pair._asdict() for pair in analysis.confused()]
    found["worst"] = [_row(example, bool(analysis.labels)) for example in analysis.worst(count)]
    return found


def _row(example: ScoredExample, classes: bool) -> dict[str, object]:
    wanted = {"class": example.wanted[0]} if classes else {"references": list(example.wanted)}
    value = {"probability" if classes else "chrF": example.value}
    known = {} if example.trained is None else {"in_training_data": example.trained}
    return {"input": example.input, **wanted, "answer": example.answer, **value, **known,
            **({"set": example.set_name} if example.set_name else {})}  # fmt: skip


def to_file(analysis: ErrorAnalysis, scores: Sequence[Score], file: Path) -> list[str]:
    """Write every example as .tsv, all as .json, or draw the confusion matrix; returns notes for the user."""
    check_file(file, bool(analysis.labels))
    if file.suffix.lower() == ".json":
        examples = [_row(example, bool(analysis.labels)) for example in analysis.examples]
        content = {**to_json(analysis, scores), "all": examples}
        write_atomic(file, json.dumps(content, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
        return []
    if file.suffix.lower() == ".tsv":
        write_atomic(file, "".join(f"{line}\n" for line in _tsv(analysis)).encode("utf-8", "backslashreplace"))
        return []
    return _draw(analysis, file)


def _tsv(analysis: ErrorAnalysis) -> Iterator[str]:
    classes = bool(analysis.labels)
    names = ("class", "probability") if classes else ("reference", "chrF")
    yield "\t".join(("input", "answer", *names, "correct", "data"))
    data = {True: "training", False: "held-out", None: "not checked"}
    for e in analysis.examples:
        texts = (e.input, e.answer, " | ".join(e.wanted))
        cells = [printable(text, keep="") for text in texts]
        yield "\t".join((*cells, f"{e.value:.4f}", "yes" if e.answer in e.wanted else "no", data[e.trained]))


def _draw(analysis: ErrorAnalysis, file: Path) -> list[str]:
    names = [printable(label, keep="")[:LABEL] for label in analysis.labels]
    if len(names) > DRAWN_CLASSES:
        raise ValueError(f"{len(names)} classes are too many to draw; write .tsv or .json instead")
    counts = analysis.matrix()
    parts = [[count / max(1, sum(row)) for count in row] for row in counts]
    labels, cells = 0.09 * max(map(len, names)), 0.55 * max(4, len(names))  # inches
    with new_figure(cells + labels + 2.4, cells + labels + 1.0, names) as figure:
        axes = figure.add_subplot()
        image = axes.imshow([[100 * part for part in row] for row in parts], cmap=palette(), vmin=0, vmax=100)
        axes.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor", parse_math=False)
        axes.set_yticks(range(len(names)), names, parse_math=False)
        axes.set_xlabel("answer")
        axes.set_ylabel("true class")
        axes.tick_params(length=0)
        for y, row in enumerate(counts):
            for x, count in enumerate(row):
                if count:
                    ink = "black" if parts[y][x] > 0.5 else "white"
                    axes.text(x, y, f"{count:,}", ha="center", va="center", fontsize=8, color=ink)
        figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03, label="% of the true class").outline.set_visible(False)
        return save_figure(figure, file, names)
