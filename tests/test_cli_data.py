"""Own data at the command line: messy files are trained on with a report, hostile ones are one line."""

import csv
import gzip
import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from cli_checks import assert_refused, write
from small import SMALL

from regard.tasks import read_run
from regard.web.languages import directions_of

WORDS = {"the": "der", "dog": "hund", "house": "haus", "is": "ist", "big": "groß", "red": "rot", "cat": "katze", "on": "auf"}
TINY = ("model=tiny", *SMALL, "train.steps=2")


def sentences(count: int) -> list[tuple[str, str]]:
    rng, found = random.Random(1), {}
    while len(found) < count:
        words = rng.choices(list(WORDS), k=5)
        found[" ".join(words)] = " ".join(WORDS[word] for word in words)
    return list(found.items())


@pytest.fixture
def messy(tmp_path) -> Path:
    """A semicolon CSV as Excel writes it, with what goes wrong in companies."""
    rows = [(n, a, b, "") for n, (a, b) in enumerate(sentences(300))]
    rows[3:3] = [rows[0]] * 4
    rows.append((7, "the &amp; dog", "der &amp; hund", "check"))
    rows += [(8, b, a, "") for _, a, b, _ in rows[20:28]]
    rows += [(9, 'he said; "hi"\nand left', 'er sagte; "hallo"\nund ging', "")]
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=";").writerows([("ID", "English", "German", "Note"), *rows])
    broken = '310;only one\r\n;;;\r\n311;"not closed;nicht zu;\r\n312;the end;das ende;\r\n'
    return write(tmp_path / "messy.csv", b"\xef\xbb\xbf" + (out.getvalue() + broken).encode())


def test_a_messy_csv_is_trained_on_and_scored_with_its_own_split(regard, messy, tmp_path):
    run = tmp_path / "run"
    result = regard("train", "translate", f"data.train={messy}", *TINY, "--out", run)
    assert result.code == 0, result.err
    report = result.out + result.err
    for line in ("held out for validation: 31 pairs", "header row English, German of 4 columns, semicolons between columns",
                 "2 lines left out (has fewer than 3 columns: line 318; has a quote that is not closed: line 320)",
                 "4 duplicate pairs; 1 pair with HTML entities such as &amp;; 8 pairs whose languages are"):  # fmt: skip
        assert line in report, report
    result = regard("score", run)
    assert "BLEU  (31 sentences; " in result.out
    assert "none of the 31 sentences are in the training data" in result.err
    result = regard("train", "translate", f"data.train={messy}", *TINY[:-1], "train.steps=3", "--out", run, "--resume")
    assert result.code == 0, result.err
    assert "31 pairs" in result.out + result.err
    assert directions_of(read_run(run / "run.toml")) == [("en", "de", "", "")]  # found in the header row, and kept


def test_languages_are_given_where_no_header_row_names_them(regard, tmp_path):
    pairs = write(tmp_path / "my.tsv", "".join(f"{a}\t{b}\n" for a, b in sentences(200)))
    result = regard("train", "translate", f"data.train={pairs}", *TINY, "--out", tmp_path / "nameless")
    assert result.code == 0, result.err
    assert directions_of(read_run(tmp_path / "nameless" / "run.toml")) == []
    result = regard("train", "translate", f"data.train={pairs}", "languages=en-de", *TINY, "--out", tmp_path / "named")
    assert result.code == 0, result.err
    assert directions_of(read_run(tmp_path / "named" / "run.toml")) == [("en", "de", "", "")]
    wrong = regard("train", "translate", f"data.train={pairs}", "languages=English", *TINY, "--out", tmp_path / "wrong")
    assert_refused(wrong, "languages is 'English'; wanted the codes of two languages, source first, such as en-de")


def test_languages_follow_the_data_and_not_an_earlier_run(regard, tmp_path):
    rows = "".join(f"{a}\t{b}\n" for a, b in sentences(200))
    named, nameless = write(tmp_path / "a.tsv", "en\tde\n" + rows), write(tmp_path / "b.tsv", rows)
    assert regard("train", "translate", f"data.train={named}", *TINY, "--out", tmp_path / "a").code == 0
    recipe = tmp_path / "a" / "run.toml"
    assert read_run(recipe).languages == "en-de"
    result = regard("train", recipe, "data.pair=de-en", "--out", tmp_path / "back")
    assert result.code == 0, result.err
    assert read_run(tmp_path / "back" / "run.toml").languages == "de-en"
    result = regard("train", recipe, f"data.train={nameless}", "--out", tmp_path / "other")
    assert result.code == 0, result.err
    assert read_run(tmp_path / "other" / "run.toml").languages == ""
    wrong = regard("train", "translate", f"data.train={named}", "languages=fr-it", *TINY, "--out", tmp_path / "wrong")
    assert_refused(wrong, "languages=fr-it, but the data names en-de")
    assert_refused(
        regard("train", "copy", "languages=fr-it", "--out", tmp_path / "copy"), "languages=fr-it is for translators of own"
    )
    assert_refused(regard("train", "gpt", "data.train=a.txt", "languages=fr-it"), "languages=fr-it is for translators of own")


def test_strict_data_refuses_the_first_bad_line(regard, messy, tmp_path):
    result = regard("train", "translate", f"data.train={messy}", "data.strict=true", *TINY, "--out", tmp_path / "run")
    assert_refused(result, "messy.csv line 318 has fewer than 3 columns")


def test_two_tsv_files_are_two_files_to_read(regard, tmp_path):
    rows = sentences(200)
    for name, part in (("a", rows[:100]), ("b", rows[100:])):
        write(tmp_path / f"{name}.tsv", "".join(f"{a}\t{b}\n" for a, b in part))
    both = f"{tmp_path}/a.tsv,{tmp_path}/b.tsv"
    for own in (both, f"{tmp_path}/*.tsv"):
        result = regard(
            "train", "translate", f"data.train={own}", f"data.valid={both}", *TINY, "--out", tmp_path / "run", "--fresh"
        )
        assert result.code == 0, result.err
        assert f"{own}: 200 pairs" in result.out + result.err


def test_a_second_reference_column_counts(regard, small_run, tmp_path):
    rows = [(a, b, f"{b} ja") for a, b in sentences(20)]
    file = write(tmp_path / "test.tsv", "".join("\t".join(row) + "\n" for row in rows))
    result = regard("score", small_run, "--on", file, "--json")
    assert {score["examples"] for score in json.loads(result.out)} == {20}
    assert all("nrefs:2" in score["signature"] for score in json.loads(result.out) if "BLEU" in score["name"])


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("hostile")
    write(home / "line.tsv", b"x" * 10_000_000 + b"\ty\n")
    write(home / "deep.jsonl", "[" * 100_000)
    write(home / "bomb.tsv.gz", gzip.compress(b"a" * (80 << 20), 1))
    write(home / "zeros.tsv.gz", gzip.compress(bytes(80 << 20), 1))
    write(home / "latin.tsv", "größe\tsize\n".encode("latin-1") * 100)
    os.mkfifo(home / "pipe.tsv")
    (home / "zero.tsv").symlink_to("/dev/zero")
    return home


HOSTILE = {"line.tsv": "has over 1,048,576 bytes", "bomb.tsv.gz": "has over 67,108,864 bytes", "zeros.tsv.gz": "it is binary",
           "pipe.tsv": "is a FIFO, not a regular file", "zero.tsv": "is a device, not a regular file",
           "latin.tsv": "iconv -f cp1252"}  # fmt: skip


@pytest.mark.parametrize("name", [*HOSTILE, "deep.jsonl"])
def test_hostile_training_data_is_one_line(regard, hostile, tmp_path, name):
    message = HOSTILE.get(name, "is nested too deeply")
    result = regard("train", "translate", f"data.train={hostile / name}", *TINY, "--out", tmp_path / "run")
    assert_refused(result, name, message)


@pytest.mark.parametrize("name", sorted(HOSTILE.keys() - {"latin.tsv"}))
def test_hostile_input_is_one_line(regard, hostile, small_run, name):
    assert_refused(regard("translate", small_run, "--input", hostile / name), name, HOSTILE[name])


@pytest.mark.parametrize(("source", "message"), [("line.tsv", "standard input line 1 has over"), ("zero.tsv", "it is binary")])
def test_hostile_standard_input_is_one_line_in_bounded_memory(hostile, small_run, source, message):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30)); from regard.cli import main; "
    command = [sys.executable, "-c", limit + "raise SystemExit(main())", "translate", str(small_run)]
    with open(hostile / source, "rb") as stream:
        done = subprocess.run(command, stdin=stream, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["pipe.tsv", "zero.tsv", "zeros.tsv.gz", "latin.tsv"])
def test_hostile_plain_text_is_one_line(regard, hostile, tmp_path, name):
    result = regard("train", "gpt", f"data.train={hostile / name}", "model.dim=16", "model.heads=2", "model.depth=1", "--out",
                    tmp_path / "run")  # fmt: skip
    assert_refused(result, name, HOSTILE[name])


@pytest.mark.parametrize(("recipe", "content", "held"), [
    ("gpt", "the cat sat on the mat\nand the dog ran to the door\n" * 60, "tokens"),
    ("classify", "".join(f"a {n} film\t{'for' if n % 2 else 'against'}\n" for n in range(100)), "10 texts"),
])  # fmt: skip
def test_texts_and_labelled_texts_are_split_too(regard, text_runs, tmp_path, recipe, content, held):
    file, run = write(tmp_path / "my.txt", content), tmp_path / "run"
    init = (f"init={text_runs / ('gpt' if recipe == 'gpt' else 'bert')}",)
    change = (f"data.train={file}", "data.max_len=24", "train.steps=2", "train.batch_tokens=200")
    result = regard("train", recipe, *init, *change, "--out", run)
    assert result.code == 0, result.err
    line = next(line for line in (result.out + result.err).splitlines() if "held out for validation" in line)
    assert line.endswith(held)
    assert regard("score", run).code == 0
