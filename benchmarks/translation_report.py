"""Tables of translation.py: speed by question, and agreement of the translations."""

from typing import Any

from rich.console import Console
from rich.table import Table

from regard.data.text.tokenizer import Tokenizer
from regard.tasks.metrics import translation_scores


def compare_outputs(
    tokenizer: Tokenizer, references: list[str], found: list[Any], slow: dict[int, list[list[int]]]
) -> list[dict[str, Any]]:
    """BLEU of each side's translations, and how many equal regard's slow path token for token."""
    rows = []
    for question in found:
        for side, answers in question["answers"].items():
            texts = [tokenizer.decode(ids) for ids in answers]
            bleu = translation_scores(texts, [[reference] for reference in references[: len(texts)]], tokenized=False)[0]
            same = sum(ids == wanted for ids, wanted in zip(answers, slow[question["beam"]], strict=False))
            rows.append({"side": side, "question": question["name"], "BLEU": bleu.value, "signature": bleu.signature,
                         "same as the slow path": same, "sentences": len(answers)})  # fmt: skip
    return rows


def show(found: list[Any], agreement: list[dict[str, Any]], scale: list[Any], repeats: int) -> None:
    """One table per question."""
    console = Console(width=150)
    for question in found:
        console.print(speed_table(question, repeats))
        for side, reason in question["left out"].items():
            console.print(f"{side} is left out: {reason}", soft_wrap=True, markup=False)
    same = Table("", "question", "BLEU", "token for token as regard's slow path", title="Translations")
    for row in agreement:
        like = f"{row['same as the slow path']:,} of {row['sentences']:,}"
        same.add_row(row["side"], row["question"], f"{row['BLEU']:.2f}", like)
    console.print(same)
    batches = sorted({row["batch"] for row in scale})
    titled = "regard by batch and beam, float32, measured once"
    grid = Table("sentences/s", *(f"batch {batch}" for batch in batches), title=titled)
    for beam in sorted({row["beam"] for row in scale}):
        grid.add_row(f"beam {beam}", *(f"{row['sentences/s']:,.1f}" for row in scale if row["beam"] == beam))
    console.print(grid)


def speed_table(question: Any, repeats: int) -> Table:
    """Median and range of each side, the ratio, and the fraction of the machine's limit it reaches."""
    unit = "GB/s" if question["alone"] else "GFLOP/s of float32"
    bound = f"limit {question['limit'].median:,.0f} {unit}" if question["limit"] else "limit not measured"
    measured = ["p50 ms", "p95 ms"] if question["alone"] else ["sentences/s"]
    titled = f"{question['name']}; {question.get('rows', 0):,} sentences, {repeats} repeats; {bound}"
    table = Table("", "settings", *measured, "regard is × as fast", "of the limit", title=titled)
    for side, cells in question["sides"].items():
        form = ",.2f" if question["alone"] else ",.1f"
        faster, fraction = cells["regard is faster by"], cells["of the limit"]
        table.add_row(
            side,
            cells["settings"],
            *(cells[key].text(form) for key in measured),
            faster.text(".2f") if faster and side != "regard" else "–",
            f"{fraction.median:.1%}" if fraction else "–",
        )
    return table
