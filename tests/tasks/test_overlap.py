"""Which of the scored texts are training texts."""

import dataclasses

from regard.tasks import overlap, read_run
from regard.tasks.overlap import trained_texts


def run_on(file):
    run = read_run("translate", (f"data.train={file}",))
    return dataclasses.replace(run, data=dataclasses.replace(run.data, valid=str(file)))


def test_texts_are_found_whatever_their_white_space_and_the_search_is_cached(tmp_path, monkeypatch):
    file, lines = tmp_path / "a.tsv", list[str]()
    file.write_text("".join(f"the {n} dog\tder {n} Hund\n" for n in range(50)))
    texts = ["the  7 dog ", "a cat", "the 9 dog", "a cat"]
    assert trained_texts(run_on(file), texts, "sentences", lines.append) == [True, False, True, False]
    assert lines == ["2 of 4 sentences are in the training data: the scores are too high"]
    monkeypatch.setattr(overlap, "_normal", lambda text: " ".join(text.split()) if text in texts else 1 / 0)  # not read again
    assert trained_texts(run_on(file), texts, "sentences", lines.append) == [True, False, True, False]
    monkeypatch.undo()
    file.write_text("a cat\teine Katze\n" * 3)  # a file that has changed is read again
    assert trained_texts(run_on(file), texts, "sentences", lines.append) == [False, True, False, True]


def test_a_long_search_reports_its_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(overlap, "CHECKED", 10)
    monkeypatch.setattr(overlap, "PAUSE", 0.0)
    (tmp_path / "a.tsv").write_text("a dog\tein Hund\n" * 25)
    lines = list[str]()
    trained_texts(run_on(tmp_path / "a.tsv"), ["a cat"], "sentences", lines.append)
    assert lines[:2] == [f"looking for the sentences in the training data: {n} read of {tmp_path}/a.tsv" for n in (10, 20)]


def test_training_data_that_is_gone_is_reported(tmp_path):
    (tmp_path / "a.tsv").write_text("a dog\tein Hund\n")
    run, lines = run_on(tmp_path / "a.tsv"), list[str]()
    (tmp_path / "a.tsv").unlink()
    assert trained_texts(run, ["a dog"], "sentences", lines.append) is None
    assert "not available" in lines[0]
