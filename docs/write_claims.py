"""Measure every claim of the lecture notes and write docs/claims.md: `python docs/write_claims.py --slow`."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from regard.verify.catalogue import CHAPTERS, choose
from regard.verify.claim import Measurement, Verdict
from regard.verify.machine import describe_machine
from regard.verify.report import about_chapter, coverage
from regard.verify.run import Result, verify

DOCS = Path(__file__).parent
PAGE = DOCS / "claims.md"
sys.path.insert(0, str(DOCS.parent / "tests" / "verify"))

INTRODUCTION = """\
# The lecture notes, measured

`regard verify` measures every statement of the five lecture notes and says what it found: it holds, it holds under a condition,
or the notes are wrong and something else is right. A check is a short function that uses the package's own models.
`regard verify 25 --explain` prints it with all its measurements and its plot, `regard verify --html report.html` writes a page
with all plots, and `regard serve` has that page at `/claims`, where a click measures one claim.

```
regard verify
regard verify --slow
regard verify --list
regard verify 25 --explain
```
"""
POWER = """\
## What turns a check red

A check that cannot fail proves nothing. Each of these changes breaks one mechanism of the package, and the checks beside it then
fail (`tests/verify/test_mutations.py`); every check is named at least once.

| change | checks that fail |
|---|---|
"""


def main() -> None:
    """Measure and write."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--slow", action="store_true", help="also the checks that train models")
    slow, start, results = options.parse_args().slow, time.perf_counter(), list[Result]()
    for result in verify(choose(slow=slow)):
        results.append(result)
        print(
            f"{result.claim.row:>4}  {result.verdict}  {result.seconds:.1f} s  {result.claim.name}", file=sys.stderr, flush=True
        )
    PAGE.write_text("\n".join(page(results, time.perf_counter() - start, slow)) + "\n", encoding="utf-8")


def page(results: Sequence[Result], seconds: float, slow: bool) -> Iterator[str]:
    """The lines of the page."""
    command = f"python docs/write_claims.py{' --slow' if slow else ''}"
    counts = Counter(result.verdict for result in results)
    found = ", ".join(f"{counts[verdict]} × {verdict}" for verdict in Verdict if verdict in counts)
    yield INTRODUCTION
    yield f"{len(results)} checks of {coverage([result.claim for result in results])}: {found}."
    yield f"Measured on {time.strftime('%Y-%m-%d')} in {seconds:.0f} s by `{command}`, seed 0; {describe_machine()}.\n"
    for chapter in CHAPTERS:
        yield f"## {about_chapter(chapter)}\n"
        yield "| row | notes | the notes say | expected | measured | verdict |"
        yield "|---|---|---|---|---|---|"
        yield from (row(result) for result in results if result.claim.chapter == chapter)
        yield ""
    yield POWER.rstrip("\n")
    yield from mutations()


def row(result: Result) -> str:
    """A line of a table."""
    claim = result.claim
    says = (
        claim.says
        + (f" **Right:** {claim.right}" if claim.right else "")
        + (f" *Holds {claim.condition}.*" if claim.condition else "")
    )
    shown = telling(result.measurements)
    expected = "<br>".join(f"{'the notes: ' if found.refutes else ''}{found.expected}" for found in shown)
    measured = "<br>".join(f"{found.measured} ({found.what})" for found in shown) or result.reason
    return f"| {claim.row} | {' '.join(claim.notes)} | {cell(says)} | {cell(expected)} | {cell(measured)} | {result.verdict} |"


def telling(measurements: Sequence[Measurement]) -> Sequence[Measurement]:
    """Three measurements at most: what refutes the notes first."""
    return sorted(measurements, key=lambda found: not found.refutes)[:3]


def mutations() -> Iterable[str]:
    """The table of mutations."""
    from mutation import all_mutations

    return [f"| {cell(each.what)} | {', '.join(name.replace('_', ' ') for name in each.catches)} |" for each in all_mutations()]


def cell(text: str) -> str:
    """Text inside a table."""
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    main()
