"""Error analysis: the counts are those of sklearn-style definitions, written as loops; the worst come first."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.tasks.errors import ErrorAnalysis, ScoredExample
from regard.tasks.metrics import classification_scores
from regard.view import compare, fonts
from regard.view.compare import Bucket, Comparison
from regard.view.errors import check_file, to_file, to_json, to_text

LABELS = ("ant", "bee", "wasp")
CASES = st.lists(st.tuples(st.sampled_from(LABELS), st.sampled_from(LABELS), st.floats(0.34, 1)), min_size=1, max_size=60)


def analysis_of(cases, labels=LABELS):
    rows = [ScoredExample(f"{n}.jpg", (wanted,), answer, p, None) for n, (wanted, answer, p) in enumerate(cases)]
    return ErrorAnalysis(rows, labels)


@given(CASES)
def test_matrix_recall_precision_and_pairs_agree_with_plain_loops(cases):
    analysis = analysis_of(cases)
    matrix = analysis.matrix()
    for i, wanted in enumerate(LABELS):
        for j, answer in enumerate(LABELS):
            assert matrix[i][j] == sum(w == wanted and a == answer for w, a, _ in cases)
    for errors in analysis.classes():
        of_class = [a for w, a, _ in cases if w == errors.label]
        taken = [w for w, a, _ in cases if a == errors.label]
        assert errors.recall == (of_class.count(errors.label) / len(of_class) if of_class else None)
        assert errors.precision == (taken.count(errors.label) / len(taken) if taken else None)
    accuracy = classification_scores([a for _, a, _ in cases], [w for w, _, _ in cases], LABELS, "images")[0].value
    assert accuracy == pytest.approx(100 * sum(matrix[i][i] for i in range(3)) / len(cases))
    confused = analysis.confused()
    assert sum(pair.times for pair in confused) == sum(w != a for w, a, _ in cases)
    assert [pair.times for pair in confused] == sorted((pair.times for pair in confused), reverse=True)


@given(CASES)
def test_the_worst_are_wrong_and_the_most_confident_come_first(cases):
    worst = analysis_of(cases).worst()
    assert len(worst) == sum(w != a for w, a, _ in cases)
    assert all(example.answer not in example.wanted for example in worst)
    assert [example.value for example in worst] == sorted((example.value for example in worst), reverse=True)


def test_the_worst_translations_have_the_lowest_chrf():
    values = [50.0, 3.0, 99.0, 20.0]
    analysis = ErrorAnalysis([ScoredExample(f"s{n}", ("r",), "a", value, None) for n, value in enumerate(values)])
    assert [example.input for example in analysis.worst(2)] == ["s1", "s3"]


def test_few_classes_are_a_table_and_many_the_most_confused_pairs():
    few = to_text(analysis_of([("ant", "bee", 0.9), ("ant", "ant", 0.8), ("wasp", "bee", 0.99)]))
    assert "confusion matrix" in few
    assert few.index("99.0 %  bee, wanted wasp: 2.jpg") < few.index("90.0 %  bee, wanted ant: 0.jpg")
    row = next(line for line in few.splitlines() if line.startswith("ant"))
    assert row.split() == ["ant", "1", "1", "0", "2", "50.0", "%", "100.0", "%"]
    labels = tuple(f"class{n}" for n in range(30))
    many = to_text(analysis_of([("class1", "class2", 0.5)] * 3 + [("class4", "class4", 0.9)], labels))
    assert "confusion matrix" not in many
    assert "     3  class1 taken for class2" in many
    assert to_text(analysis_of([("ant", "ant", 0.9)])).endswith("no mistakes")


def test_control_characters_of_labels_texts_and_files_are_escaped():
    evil = "\x1b[31mred\x07"
    analysis = ErrorAnalysis([ScoredExample(evil, (evil,), "bee", 0.9, True)], (evil, "bee"))
    shown = to_text(analysis)
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert r"\x1b[31mred" in shown
    assert "[training data]" in shown
    assert "\x1b" not in to_text(ErrorAnalysis([ScoredExample(evil, (evil,), evil, 9.0, None)]))


def test_all_examples_are_written_as_tsv_and_json_and_drawn(tmp_path):
    rows = [ScoredExample("a.jpg", ("ant",), "bee", 0.9, True), ScoredExample("b\t.jpg", ("bee",), "bee", 0.7, False)]
    analysis = ErrorAnalysis(rows, LABELS)
    to_file(analysis, [], tmp_path / "errors.tsv")
    lines = [line.split("\t") for line in (tmp_path / "errors.tsv").read_text().splitlines()]
    assert lines == [
        ["input", "answer", "class", "probability", "correct", "data"],
        ["a.jpg", "bee", "ant", "0.9000", "no", "training"],
        ["b\\x09.jpg", "bee", "bee", "0.7000", "yes", "held-out"],
    ]
    to_file(analysis, [], tmp_path / "errors.json")
    found = json.loads((tmp_path / "errors.json").read_text())
    assert len(found["all"]) == found["examples"] == 2
    assert found["confusion"][0] == [0, 1, 0]
    assert found["worst"] == [{"input": "a.jpg", "class": "ant", "answer": "bee", "probability": 0.9, "in_training_data": True}]
    assert to_json(analysis, [])["worst"] == found["worst"]
    to_file(analysis, [], tmp_path / "errors.png")
    assert (tmp_path / "errors.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("label", ["हिन्दी", "猫"])
def test_letters_of_classes_and_runs_are_drawn_or_named(label, tmp_path, monkeypatch):
    monkeypatch.setattr(fonts, "_installed", lambda: [])
    [note, *_] = to_file(
        ErrorAnalysis([ScoredExample("a.jpg", (label,), "bee", 0.9, True)], (label, "bee")), [], tmp_path / "e.png"
    )
    assert note.startswith("no installed font has")
    whole = Bucket(0, None, 1, [20.0], [30.0])
    for comparison in (
        Comparison("valid", [label], "BLEU", "", whole, []),
        Comparison(label, ["run"], "BLEU", "", whole, [whole]),
    ):
        [note, *_] = compare.to_file(comparison, tmp_path / "c.png")
        assert note.startswith("no installed font has")


def test_files_that_cannot_be_written_are_refused_before_the_model_runs(tmp_path):
    with pytest.raises(ValueError, match=r"a drawing is a confusion matrix, of classes; give a name that ends in .tsv or"):
        check_file(tmp_path / "errors.png", classes=False)
    with pytest.raises(ValueError, match=r"cannot write errors\.docx"):
        check_file(tmp_path / "errors.docx", classes=True)
    with pytest.raises(ValueError, match="no folder"):
        check_file(tmp_path / "gone/errors.tsv", classes=True)
