"""Measure every claim of the lecture notes and write docs/claims.md: `python docs/write_claims.py --slow --seeds 3`."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from regard.verify.catalogue import CHAPTERS, choose
from regard.verify.claim import Claim, Verdict
from regard.verify.machine import describe_machine
from regard.verify.report import about_chapter, coverage
from regard.verify.run import Result, verify

DOCS = Path(__file__).parent
PAGE = DOCS / "claims.md"
sys.path.insert(0, str(DOCS.parent / "tests" / "verify"))

INTRODUCTION = """\
# The lecture notes, measured

`regard verify` measures every claim of five lecture notes and says what it found: it holds, it holds under a condition, or the
notes are wrong and something else is right. Claims are numbered 1 to 88; c1 to c28 are corrections of what the notes get wrong.
A check is a short function that uses the package's own models.

"Does not hold" is none of these: a measurement was not what the check expects, so either the package is broken or the check is;
it says nothing about the notes. "Could not be measured" means that the check stopped with an error. The exit code is 1 for both.

`regard verify --list` lists the claims, and `regard verify --slow` also runs the checks that take longer: they train a model,
time layers or read a data set. `regard verify 25 --explain` prints a check with all its measurements and its plot, and
`regard verify --html report.html` writes a page with all plots. `regard serve` has a page `/claims`, where a click measures one
claim.
"""
POWER = """\
## What turns a check red

A check that cannot fail proves nothing. Each of these changes breaks one mechanism of the package, and then a measurement of each
check beside it is wrong (`tests/verify/test_mutations.py`). Every check is named at least once. The list is not complete: a
change may also break checks that are not named beside it.

| change | checks that fail |
|---|---|
"""


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slow", action="store_true", help="also the checks that take longer")
    parser.add_argument("--seeds", type=int, default=1, help="repeat the checks with seeds 1 to SEEDS - 1")
    options = parser.parse_args()
    command = " ".join(["python docs/write_claims.py", *sys.argv[1:]])
    results = measure(choose(slow=options.slow), seed=0)
    measured = [result.claim for result in results if result.verdict not in (Verdict.SKIPPED, Verdict.NOT_CHECKABLE)]
    repeated = {seed: measure(measured, seed) for seed in range(1, options.seeds)}
    PAGE.write_text("\n".join(page(results, repeated, command)) + "\n", encoding="utf-8")


def measure(claims: Sequence[Claim], seed: int) -> list[Result]:
    """Check the claims, with a line on standard error for each."""
    results = list[Result]()
    for result in verify(claims, seed):
        results.append(result)
        line = f"seed {seed}  {result.claim.row:>4}  {result.verdict}  {result.seconds:.1f} s  {result.claim.name}"
        print(line, file=sys.stderr, flush=True)
    return results


def page(results: Sequence[Result], repeated: Mapping[int, Sequence[Result]], command: str) -> Iterator[str]:
    """The lines of the page; `repeated` is what the checks found with other seeds than 0."""
    counts = Counter(result.verdict for result in results)
    found = ", ".join(f"{counts[verdict]} × {verdict}" for verdict in Verdict if verdict in counts)
    yield INTRODUCTION
    yield f"{coverage([result.claim for result in results])}. Their verdicts: {found}.\n"
    yield f"Measured on {time.strftime('%Y-%m-%d')} by `{command}`, seed 0; {describe_machine()}. {durations(results)}\n"
    if repeated:
        yield f"{stability(results, repeated)}\n"
    for chapter in CHAPTERS:
        if all(result.claim.chapter != chapter for result in results):
            continue
        yield f"## {about_chapter(chapter)}\n"
        yield "| claim, and what was measured | notes | expected | measured | verdict |"
        yield "|---|---|---|---|---|"
        for result in results:
            if result.claim.chapter == chapter:
                yield from rows(result)
        yield ""
    yield POWER.rstrip("\n")
    yield from mutations()


def durations(results: Sequence[Result]) -> str:
    """How long the checks took, the quick and the slow ones."""
    quick, slow = ([result for result in results if result.claim.check and result.claim.slow is slow] for slow in (False, True))
    text = f"The {len(quick)} quick checks took {sum(result.seconds for result in quick):.0f} s"
    if slow:
        together, longest = sum(result.seconds for result in slow), max(slow, key=lambda result: result.seconds)
        text += f"; the slow ones (`--slow`), {len(slow)} of them, took {together:,.0f} s"
        text += f", the longest {longest.seconds:.0f} s (claim {longest.claim.row})"
    return f"{text}."


def stability(results: Sequence[Result], repeated: Mapping[int, Sequence[Result]]) -> str:
    """Whether the verdicts stay if the checks draw other random numbers."""
    first = {result.claim.name: result.verdict for result in results}
    changed = [
        f"claim {result.claim.row} ({result.claim.name.replace('_', ' ')}) with seed {seed}: {result.verdict}"
        for seed, others in repeated.items()
        for result in others
        if result.verdict != first[result.claim.name]
    ]
    seeds = ", ".join(map(str, [0, *repeated]))
    if not changed:
        return f"With the seeds {seeds} the verdict of each check is the same."
    return f"With the seeds {seeds} the verdict of each check is the same, except {'; '.join(changed)}."


def rows(result: Result) -> Iterator[str]:
    """The lines of a claim: what the notes say, then one for each measurement."""
    claim = result.claim
    says = f"**{claim.row}** {cell(claim.says)}"
    if claim.right:
        says += f" **Right:** {cell(claim.right)}."
    if claim.condition:
        says += f" *It holds {cell(claim.condition)}.*"
    if result.reason:
        says += f" *{cell(result.reason)}*"
    yield f"| {says} | {' '.join(claim.notes)} | | | {result.verdict} |"
    for found in result.measurements:
        expected = f"{'the notes: ' if found.refutes else ''}{cell(found.expected)}"
        yield f"| – {cell(found.what)} | | {expected} | {cell(found.measured)} | |"


def mutations() -> Iterable[str]:
    """The table of mutations."""
    from mutation import all_mutations

    return [f"| {cell(each.what)} | {', '.join(name.replace('_', ' ') for name in each.catches)} |" for each in all_mutations()]


def cell(text: str) -> str:
    """Text inside a table, with Markdown characters escaped."""
    for character in "\\|*":
        text = text.replace(character, f"\\{character}")
    return text.replace("<", "&lt;").replace("\n", " ")


if __name__ == "__main__":
    main()
