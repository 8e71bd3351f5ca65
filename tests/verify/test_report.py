"""The page of `regard verify --html`, and docs/claims.md."""

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from regard.verify.catalogue import all_claims
from regard.verify.claim import Claim, Finding, Verdict, at_most, equals, refutes
from regard.verify.plots import Curves
from regard.verify.report import About, code_of, coverage, page
from regard.verify.run import Result, verify

DOCS = Path(__file__).parents[2] / "docs"
VOID = {"meta", "input", "br"}


def check_something() -> Iterator[Finding]:
    yield refutes("width of <a key>", 64, 512)
    yield equals("width | of a key", 64, 64)
    yield Curves("A line", "x", "y", {"a": [(0, 0.0), (1, 1.0)]})


def check_what_fails() -> Iterator[Finding]:
    yield at_most("loss", 2.0, 1.0)


def check_that_trains() -> Iterator[Finding]:
    yield at_most("loss", 0.5, 1.0)


def made(row: str, check, chapter: str = "scores", **options: object) -> Claim:
    return Claim(row, check.__name__, chapter, ("001", "002"), f"Claim {row} of <EOS> & *all*.", check, **options)


@pytest.fixture
def results(monkeypatch, tmp_path: Path) -> list[Result]:
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    return list(verify([made("1", check_what_fails), made("2", check_that_trains, "words", slow=True, data=("multi30k",)),
                        made("c3", check_something, right="It is 64")]))  # fmt: skip


def check_that_raises() -> Iterator[Finding]:
    yield equals("width", 64, 64)
    raise OSError("no such model")


def test_a_check_that_raises_is_shown_as_not_measured(write_claims, monkeypatch):
    [result] = verify([made("1", check_that_raises)])
    monkeypatch.setattr(write_claims, "mutations", list)
    for text in (page([result]), "\n".join(write_claims.page([result], {}, ""))):
        assert "could not be measured" in text
        assert "OSError: no such model" in text
        assert "does not hold<" not in text
    assert '<article class="claim could-not-be-measured"' in page([result])


class Tags(HTMLParser):
    """Checks that each tag is closed, outside SVG elements."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_has_every_claim_its_verdict_and_its_code(results):
    text = page(results, About(3, "a machine", "2020-01-02", 4.5, "regard verify <all>"))
    assert Tags(text).open == []
    assert "Measured on 2020-01-02 in 4.5 s by <code>regard verify &lt;all&gt;</code>, seed 3; a machine." in text
    assert "Claim 1 of &lt;EOS&gt; &amp; *all*." in text
    assert "<strong>Right:</strong> It is 64.</p>" in text
    assert "<tr class=bad><td>loss</td><td>≤ 1</td><td>2</td></tr>" in text
    assert '<span class="notes-say">the notes: 512</span></td><td>64</td>' in text
    assert "yield refutes(&quot;width of &lt;a key&gt;&quot;, 64, 512)" in text
    assert text.index('id="words"') < text.index('id="scores"')  # in the order of the chapters
    assert '<a href="#words">Words as vectors</a>' in text


def test_every_id_of_the_page_is_there_once(results):
    ids = Tags(page([*results, *results])).ids
    svg = {found for found in ids if re.fullmatch(r"[a-z][0-9a-f]{9,}", found)}  # the same plot twice has the same ids
    assert len(ids) > 8
    assert sorted({*ids} - svg) == sorted(found for found in ids if found not in svg)


def test_the_coverage_counts_checks_claims_and_corrections(results):
    assert coverage([result.claim for result in results]) == "3 checks: 2 of 88 claims of the notes and 1 of 28 corrections"
    assert coverage([results[0].claim]).startswith("1 check: 1 of 88")
    quoted = replace(results[0].claim, row="88", check=None, why_not="a quotation")
    assert coverage([results[0].claim, quoted]).startswith("1 check and 1 claim that cannot be checked: 2 of 88")


def test_the_code_of_a_check_starts_at_its_name():
    assert code_of(made("1", check_what_fails)).splitlines() == [
        "def check_what_fails() -> Iterator[Finding]:", '    yield at_most("loss", 2.0, 1.0)']  # fmt: skip


@pytest.fixture
def write_claims(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    import write_claims

    yield write_claims
    sys.modules.pop("write_claims")


def test_the_page_of_the_documentation_has_a_line_for_each_measurement(results, write_claims, monkeypatch):
    monkeypatch.setattr(write_claims, "mutations", list)
    lines = list(write_claims.page(results, {}, "python docs/write_claims.py"))
    says = "**c3** Claim c3 of &lt;EOS> & \\*all\\*. **Right:** It is 64."
    assert f"| {says} | 001 002 | | | the notes are wrong |" in lines
    assert "| – width of &lt;a key> | | the notes: 512 | 64 | |" in lines
    assert "| – width \\| of a key | | 64 | 64 | |" in lines
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines if line.startswith("|")} == {6}
    text = "\n".join(lines)
    assert "1 × the notes are wrong, 1 × does not hold, 1 × not run" in text
    assert "by `python docs/write_claims.py`, seed 0; " in text
    assert "The 2 quick checks took 0 s; the slow ones (`--slow`), 1 of them, took 0 s, the longest 0 s" in text
    assert "seeds" not in text


def test_the_page_says_for_which_seeds_the_verdicts_stay(results, write_claims):
    same = "With the seeds 0, 1, 2 the verdict of each check is the same"
    assert write_claims.stability(results, {1: results, 2: results}) == f"{same}."
    changed = [Result(made("1", check_what_fails), Verdict.HOLDS)]
    different = f"{same}, except claim 1 (check what fails) with seed 2: holds."
    assert write_claims.stability(results, {1: results, 2: changed}) == different


@pytest.mark.parametrize("slow", [[], ["--slow"]])
def test_every_measured_check_is_repeated_with_other_seeds(write_claims, monkeypatch, tmp_path: Path, slow: list[str]):
    quick, long = made("1", check_something), made("2", check_that_trains, slow=True)
    quoted = replace(made("3", check_what_fails), check=None, why_not="a quotation")
    monkeypatch.setattr(write_claims, "choose", lambda slow: [claim for claim in (quick, long, quoted) if slow or not claim.slow])
    monkeypatch.setattr(write_claims, "PAGE", tmp_path / "claims.md")
    monkeypatch.setattr(write_claims, "mutations", list)
    monkeypatch.setattr(sys, "argv", ["write_claims.py", "--seeds", "3", *slow])
    asked = list[tuple[int, list[str]]]()
    measure = write_claims.measure

    def note(claims: list[Claim], seed: int) -> list[Result]:
        asked.append((seed, [claim.row for claim in claims]))
        return measure(claims, seed)

    monkeypatch.setattr(write_claims, "measure", note)
    write_claims.main()
    measured = ["1", "2"] if slow else ["1"]
    assert asked == [(0, [*measured, "3"]), (1, measured), (2, measured)]
    assert "With the seeds 0, 1, 2 the verdict of each check is the same." in (tmp_path / "claims.md").read_text()


def test_the_page_in_the_documentation_is_that_of_these_claims_and_mutations(write_claims):
    lines = (DOCS / "claims.md").read_text(encoding="utf-8").splitlines()
    claims, again = all_claims(), "run: python docs/write_claims.py --slow --seeds 3"
    heads = [next(write_claims.rows(Result(claim, claim.intended, reason=claim.why_not))) for claim in claims]
    assert [head for head in heads if head not in lines] == [], again
    assert [line for line in write_claims.mutations() if line not in lines] == [], again
    assert any(line.startswith(f"{coverage(claims)}. ") for line in lines), again
    assert sum(line.startswith("| **") for line in lines) == len(claims), again
    assert all(line in lines for line in (write_claims.INTRODUCTION + write_claims.POWER).splitlines()), again
