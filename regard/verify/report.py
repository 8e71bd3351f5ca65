"""What `regard verify` found, as one self-contained page: statements, measurements, plots, and the code of each check."""

import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path

from regard.verify.catalogue import CHAPTERS
from regard.verify.claim import Claim, Measurement, Verdict
from regard.verify.plots import to_svg
from regard.verify.run import Result

__all__ = ["CORRECTIONS", "ROWS", "About", "about_chapter", "code_of", "coverage", "page"]

ROWS, CORRECTIONS = 88, 28  # of the inventory of the notes
STYLE = Path(__file__).with_name("report.css")
VERDICTS = tuple(Verdict)
NUMBERS = "Claims are numbered 1 to 88; c1 to c28 are corrections of what the notes get wrong."
MEASURED = "What five lecture notes claim, beside what was measured."
NOT_YET_MEASURED = "What five lecture notes claim. A link below a claim measures it now, on this machine."


@dataclass(frozen=True)
class About:
    """Where and how the checks were run."""

    seed: int
    machine: str
    date: str
    seconds: float
    command: str


def code_of(claim: Claim) -> str:
    """The lines of the check, without its decorator."""
    assert claim.check is not None
    lines = textwrap.dedent(inspect.getsource(claim.check)).splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith("def ")), 0)
    return "\n".join(lines[first:])


def coverage(claims: Sequence[Claim]) -> str:
    """How many checks there are, and how much of the inventory of the notes they are about."""
    rows = {claim.row for claim in claims}
    corrections = sum(row.startswith("c") for row in rows)
    count = sum(claim.check is not None for claim in claims)
    checks = "1 check" if count == 1 else f"{count} checks"
    if uncheckable := len(claims) - count:
        checks += f" and {uncheckable} claim{'s' * (uncheckable > 1)} that cannot be checked"
    return f"{checks}: {len(rows) - corrections} of {ROWS} claims of the notes and {corrections} of {CORRECTIONS} corrections"


def page(results: Sequence[Result], about: About | None = None, *, title: str = "The lecture notes, measured",
         link: Callable[[Claim], str] = lambda claim: "", back: str = "") -> str:  # fmt: skip
    """An HTML page that needs no other file.

    `link` is the address at which a claim is checked now, `back` that of the page before.
    """
    found = {result.claim.chapter for result in results}
    chapters = [chapter for chapter in CHAPTERS if chapter in found]
    counts = Counter(result.verdict for result in results)
    hide = "\n".join(
        f"body:has(#show-{_slug(verdict)}:not(:checked)) .{_slug(verdict)} {{ display: none; }}" for verdict in counts
    )
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">',
        f"<title>{escape(title)} – regard</title><style>{STYLE.read_text(encoding='utf-8')}\n{hide}</style></head><body>",
        f'<p><a href="{escape(back)}">Back</a></p>' if back else "",
        f"<h1>{escape(title)}</h1>",
        f"<p>{MEASURED if about else NOT_YET_MEASURED} {NUMBERS}</p>" if len(chapters) > 1 else "",
        f'<p class="about">{coverage([result.claim for result in results])}.</p>' if len(chapters) > 1 else "",
        f'<p class="about">{_where(about)}</p>' if about else "",
        '<fieldset class="filters"><legend>Show the claims whose verdict is</legend>' if len(counts) > 1 else "",
        *(f'<label><input type="checkbox" id="show-{_slug(verdict)}" checked autocomplete="off">'
          f"{verdict} ({counts[verdict]})</label>" for verdict in VERDICTS if verdict in counts and len(counts) > 1),
        "</fieldset>" if len(counts) > 1 else "",
        _contents(chapters) if len(chapters) > 1 else "",
        "<main>",
    ]  # fmt: skip
    numbers = Counter[str]()
    for chapter in chapters:
        parts.append(f'<section id="{chapter}"><h2>{escape(about_chapter(chapter))}</h2>')
        for result in results:
            if result.claim.chapter == chapter:
                numbers[result.claim.row] += 1
                parts.append(_article(result, f"{result.claim.row}-{numbers[result.claim.row]}", link))
        parts.append("</section>")
    return "\n".join([*filter(None, parts), "</main></body></html>\n"])


def _where(about: About) -> str:
    return (f"Measured on {about.date} in {about.seconds:.1f} s by <code>{escape(about.command)}</code>, "
            f"seed {about.seed}; {escape(about.machine)}.")  # fmt: skip


def _contents(chapters: Sequence[str]) -> str:
    names = {chapter: escape(about_chapter(chapter).partition(":")[0]) for chapter in chapters}
    items = "".join(f'<li><a href="#{chapter}">{name}</a></li>' for chapter, name in names.items())
    return f'<nav aria-label="Chapters"><ul>{items}</ul></nav>'


def about_chapter(chapter: str) -> str:
    """What a chapter is about, in a line."""
    return (import_module(f"regard.verify.{chapter}").__doc__ or chapter).splitlines()[0].rstrip(".")


def _slug(verdict: Verdict) -> str:
    return verdict.replace(" ", "-")


def _article(result: Result, number: str, link: Callable[[Claim], str]) -> str:
    claim = result.claim
    where = f"notes {', '.join(claim.notes)} · {claim.name.replace('_', ' ')}"
    where += f" · {result.seconds:.1f} s" if result.measurements else " · slow" if claim.slow else ""
    body = [f'<p class="meta">{escape(where)}</p>']
    if claim.condition:
        body.append(f"<p>It holds {escape(claim.condition)}.</p>")
    if claim.right:
        body.append(f"<p><strong>Right:</strong> {escape(claim.right)}.</p>")
    if result.reason:
        body.append(f'<p class="reason">{escape(result.reason)}</p>')
    if result.measurements:
        body.append(_table(result.measurements))
    body += [f"<figure>{to_svg(plot)}</figure>" for plot in result.plots]
    if claim.check and (address := link(claim)):
        body.append(f'<p><a href="{escape(address)}">Measure it now</a></p>')
    if claim.check:
        body.append(
            f"<details><summary>The code of this check</summary><pre><code>{escape(code_of(claim))}</code></pre></details>"
        )
    return (
        f'<article class="claim {_slug(result.verdict)}" id="claim-{number}"><header><a class="row" href="#claim-{number}">'
        f'{claim.row}</a><h3>{escape(claim.says)}</h3><span class="verdict">{result.verdict}</span></header>'
        f'<div class="body">{"".join(body)}</div></article>'
    )


def _table(measurements: Sequence[Measurement]) -> str:
    rows = []
    for found in measurements:
        expected = (
            f'<span class="notes-say">the notes: {escape(found.expected)}</span>' if found.refutes else escape(found.expected)
        )
        rows.append(f'<tr{"" if found.holds else " class=bad"}><td>{escape(found.what)}</td><td>{expected}</td>'
                    f"<td>{escape(found.measured)}</td></tr>")  # fmt: skip
    head = "<thead><tr><th>what</th><th>expected</th><th>measured</th></tr></thead>"
    return f'<div class="scroll"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'
