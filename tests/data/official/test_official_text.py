"""Text sets in their official formats, served on this machine and read through the public API."""

import gzip
import hashlib
import io
import os
import zipfile
from pathlib import Path

import pytest

from regard.data.official.agnews import repair_html
from regard.data.official.manythings import split_pairs
from regard.data.sources import SOURCES, describe_download, download_size, is_local, locate
from regard.data.text.config import TextData
from regard.data.text.readers import read_ratings
from regard.data.text.splits import find_split

SPLITS = ("train", "valid", "test")
APART = (("train", "valid"), ("train", "test"), ("valid", "test"))
WORDSIM = ("EN-WS-353-ALL", "EN-WS-353-SIM", "EN-WS-353-REL", "EN-SIMLEX-999", "EN-MEN-TR-3k", "EN-RG-65")
DATA = os.environ.get("REGARD_DATA", "nowhere")  # before the fixtures take it away


def pairs_of(name):
    return {split: list(find_split(TextData(source=name), split).pairs()) for split in SPLITS}


def reduced(text):
    return "".join(c for c in text.lower() if c.isalnum())


def italian(count):
    return [f"Sentence number {number}.\tFrase numero {number}.\tCC-BY 2.0 (France) #{number}" for number in range(count)]


def test_manythings_pairs_are_split_by_their_english_side(publish, pack_zip, capsys):
    lines = [*italian(3000), "SENTENCE number 7!\tSette\tx", "Sentence number 8\tOtto\tx"]
    lines += ["Same.\tSame.\tx"] * 2 + ["An\u200b  odd\u00a0one.\tUno  strano.\tx", "w " * 61 + "\tlungo\tx", "empty\t \tx"]
    publish("tatoeba-en-it", {"ita-eng.zip": pack_zip({"_about.txt": b"about", "ita.txt": "\n".join(lines).encode()})})
    found = pairs_of("tatoeba-en-it")
    everything = [pair for rows in found.values() for pair in rows]
    assert len(everything) == len(set(everything)) == 3000 + 4
    assert ("An odd one.", "Uno strano.") in everything
    assert all(10 < len(found[split]) < 60 for split in ("valid", "test"))
    sides = {split: {reduced(english) for english, _ in rows} for split, rows in found.items()}
    assert all(sides[one].isdisjoint(sides[other]) for one, other in APART)
    for rows in found.values():
        hashes = [hashlib.md5(reduced(english).encode()).hexdigest() for english, _ in rows]
        assert hashes == sorted(hashes)
    err = capsys.readouterr().err
    assert "licence: CC BY 2.0 FR" in err
    assert "Scores will differ from those of the recipes" in err


def test_the_other_side_of_a_held_out_pair_is_not_in_training():
    pairs = [(f"sentence {number}", f"frase {number % 2500}") for number in range(3000)]
    splits = split_pairs(pairs, 100)
    others = {split: {other for _, other in rows} for split, rows in splits.items()}
    assert splits["valid"]
    assert all(others[one].isdisjoint(others[other]) for one, other in APART)


def test_the_order_of_the_lines_does_not_matter():
    pairs = [(f"sentence {number}", f"frase {number}") for number in range(500)]
    assert split_pairs(pairs, 100) == split_pairs(pairs[::-1], 100)


def test_hindi_in_latin_letters_is_left_out(publish, pack_zip):
    lines = [f"Sentence {number}.\tवाक्य {number}।" for number in range(300)] + ["Hello.\tnamaste", "Hi.\tनमस्ते Tom"]
    publish("tatoeba-en-hi", {"hin-eng.zip": pack_zip({"hin.txt": "\n".join(lines).encode()})})
    everything = [pair for rows in pairs_of("tatoeba-en-hi").values() for pair in rows]
    assert len(everything) == 301
    assert ("Hello.", "namaste") not in everything


@pytest.mark.parametrize(("files", "message"), [
    ({"deu.txt": b"x"}, "has no ita.txt; get the official file"),
    ({"ita.txt": b"one column\n" * 500}, "has 0 lines of English, a tab, the other language, of 500; wanted at least 495"),
    ({"ita.txt": "Hi.\tCiao.\n".encode("utf-16")}, "is not UTF-8 at byte"),
    ({"ita.txt": b"", "../ita.txt": b""}, "a path outside the archive"),
])  # fmt: skip
def test_another_archive_than_that_of_manythings_is_refused(publish, pack_zip, files, message):
    publish("tatoeba-en-it", {"ita-eng.zip": pack_zip(files)})
    with pytest.raises(ValueError, match=message):
        locate("tatoeba-en-it", "train", "")


def test_a_truncated_archive_is_refused_by_name(publish, pack_zip, cache):
    publish("tatoeba-en-it", {"ita-eng.zip": pack_zip({"ita.txt": "\n".join(italian(300)).encode()})[:-30]})
    with pytest.raises(ValueError, match=r"ita-eng\.zip is not a whole archive .* delete it, and get it again"):
        locate("tatoeba-en-it", "train", "")
    assert not list(cache.glob("stores/*"))


def test_a_download_that_was_changed_later_is_noticed(publish, pack_zip, cache):
    publish("tatoeba-en-it", {"ita-eng.zip": pack_zip({"ita.txt": "\n".join(italian(300)).encode()})})
    before = locate("tatoeba-en-it", "train", "")
    kept = cache / "data" / "tatoeba-en-it" / "ita-eng.zip"
    recorded = kept.with_name("ita-eng.zip.sha256")
    assert recorded.read_text() == f"{hashlib.sha256(kept.read_bytes()).hexdigest()}  ita-eng.zip\n"
    kept.write_bytes(pack_zip({"ita.txt": "\n".join(italian(400)).encode()}))
    with pytest.raises(ValueError, match=r"it has changed since its download; delete it .* or delete ita-eng\.zip\.sha256"):
        locate("tatoeba-en-it", "train", "")
    recorded.unlink()
    assert locate("tatoeba-en-it", "train", "") != before


def test_without_a_network_one_line_says_where_to_put_the_file(cache):
    with pytest.raises(ValueError, match=r"cannot download https://www\.manythings\.org/anki/ita-eng\.zip \(") as error:
        locate("tatoeba-en-it", "train", "")
    assert f"put ita-eng.zip into {cache / 'data' / 'tatoeba-en-it'} yourself" in str(error.value)
    assert "\n" not in str(error.value)
    assert not is_local("tatoeba-en-it", "train", "")


def test_what_would_be_downloaded_is_said_with_size_server_and_licence(publish, pack_zip):
    assert describe_download("cifar10") == (
        "cifar10: downloaded when first used, about 170 MB from www.cs.toronto.edu; "
        "licence: none stated; Krizhevsky 2009, for research"
    )
    assert "about 2.0 MB from raw.githubusercontent.com; licence: none stated" in describe_download("multi30k")
    assert all(download_size(name) for name in SOURCES)
    assert describe_download("reverse") == ""
    publish("tatoeba-en-it", {"ita-eng.zip": pack_zip({"ita.txt": "\n".join(italian(300)).encode()})})
    locate("tatoeba-en-it", "train", "")
    assert describe_download("tatoeba-en-it") == ""


def sst2_files(count=40):
    return {f"{split}.tsv": "".join(f"{row % 2}\ta {split} film {row} .\n" for row in range(count)).encode()
            for split in ("train", "dev", "test")}  # fmt: skip


def test_sst2_keeps_the_official_splits(publish):
    publish("sst2", sst2_files())
    found = pairs_of("sst2")
    assert {split: len(rows) for split, rows in found.items()} == dict.fromkeys(SPLITS, 40)
    assert found["valid"][1] == ("a dev film 1 .", "positive")


@pytest.mark.parametrize(("text", "message"), [
    (b"sentence\tlabel\na film\t1\n", r"dev\.tsv line 1 is not 0 or 1"),
    (b"1\tgood\n" * 9, "has the class 1 only; wanted 0 and 1: get the official file"),
    (b"404: Not Found", "line 1 is not 0 or 1"),
])  # fmt: skip
def test_another_file_than_that_of_sst2_is_refused(publish, text, message):
    publish("sst2", {**sst2_files(), "dev.tsv": text})
    with pytest.raises(ValueError, match=message):
        locate("sst2", "train", "")


def test_ag_news_rows_are_repaired_and_in_one_split_only(publish):
    rows = [f'"{number % 4 + 1}","Title {number}","It #39;s text {number}"' for number in range(2500)]
    rows += [rows[0], '"3","Oil &lt;b&gt;up&lt;/b&gt;","He said ""no"""']
    publish("agnews-small", {"test.csv": "\n".join(rows).encode()})
    found = pairs_of("agnews-small")
    assert {split: len(rows) for split, rows in found.items()} == {"train": 901, "valid": 800, "test": 800}
    texts = [text for rows in found.values() for text, _ in rows]
    assert len(set(texts)) == 2501
    assert 'Oil up. He said "no"' in texts
    labels = {text.split(".")[0]: label for rows in found.values() for text, label in rows}
    assert [labels[f"Title {number}"] for number in range(4)] == ["World", "Sports", "Business", "Sci/Tech"]


@pytest.mark.parametrize(("text", "repaired"), [
    ("Fears for T N pension after talks  Unions ", "Fears for T N pension after talks Unions"),
    ("Sister of man who died in Vancouver #39;s", "Sister of man who died in Vancouver's"),
    ("&lt;strong&gt;Opinion&lt;/strong&gt; The", "Opinion The"),
    ("up\\to $10 &amp; more", "up to $10 & more"),
    ("AT &amp;amp; T", "AT & T"),
    ("3 < 4 and 5 > 4; no change", "3 < 4 and 5 > 4; no change"),
])  # fmt: skip
def test_remains_of_html_are_repaired(text, repaired):
    assert repair_html(text) == repaired


@pytest.mark.parametrize(("text", "message"), [
    (b'"1","a","b"\n' * 3000, "1 different rows; wanted at least 2,400"),
    (b'"5","a","b"\n', "record 1 is not a class from 1 to 4"),
    (b'"1","a', "is not a CSV file"),
    (b"\xff\xfe", "is not a CSV file in UTF-8"),
])  # fmt: skip
def test_another_file_than_that_of_ag_news_is_refused(publish, text, message):
    publish("agnews-small", {"test.csv": text})
    with pytest.raises(ValueError, match=message):
        locate("agnews-small", "train", "")


def test_rated_pairs_with_spaces_or_tabs_are_read(publish):
    files = {f"{name}.txt": b"old\tnew\t1.58\nhard  soft 8.77\n" for name in WORDSIM}
    publish("wordsim", files)
    (file,) = locate("wordsim", "simlex999", "")
    assert [tuple(pair) for pair in read_ratings(file)] == [("old", "new", 1.58), ("hard", "soft", 8.77)]


@pytest.mark.parametrize("text", [b"", b"old new\n", b"old new nan\n", b"<html>\n"])
def test_another_list_than_rated_pairs_is_refused(publish, text):
    publish("wordsim", {**{f"{name}.txt": b"old new 1\n" for name in WORDSIM}, "EN-RG-65.txt": text})
    with pytest.raises(ValueError, match=r"EN-RG-65\.txt"):
        locate("wordsim", "simlex999", "")


@pytest.mark.skipif(not (Path(DATA) / "sst2").is_dir(), reason="set REGARD_DATA to a folder that holds sst2/ and wordsim/")
def test_the_prepared_sets_come_out_as_they_are(publish):
    sst2 = Path(DATA) / "sst2"
    names = {"train": "train", "dev": "valid", "test": "test"}
    publish("sst2", {f"{ours}.tsv": gzip.decompress((sst2 / f"{split}.tsv.gz").read_bytes()) for ours, split in names.items()})
    for split in SPLITS:
        (file,) = locate("sst2", split, "")
        assert gzip.decompress(file.read_bytes()) == gzip.decompress((sst2 / f"{split}.tsv.gz").read_bytes())
    lists = ("wordsim353", "wordsim353-similarity", "wordsim353-relatedness", "simlex999", "men3000", "rg65")
    texts = {name: (Path(DATA) / "wordsim" / f"{name}.tsv").read_bytes() for name in lists}
    publish("wordsim", {f"{ours}.txt": texts[name].replace(b"\t", b" ") for ours, name in zip(WORDSIM, lists, strict=True)})
    for name, text in texts.items():
        (file,) = locate("wordsim", name, "")
        assert file.read_bytes() == text


def test_a_zip_whose_directory_lies_about_a_size_is_refused(publish):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ita.txt", "\n".join(italian(300)))
    content = bytearray(packed.getvalue())
    at = content.rindex(b"PK\x01\x02") + 24  # the unpacked size in the central directory
    content[at : at + 4] = (50).to_bytes(4, "little")
    publish("tatoeba-en-it", {"ita-eng.zip": bytes(content)})
    with pytest.raises(ValueError, match=r"ita-eng\.zip"):
        locate("tatoeba-en-it", "train", "")
