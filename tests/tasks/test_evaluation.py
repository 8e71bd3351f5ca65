"""Scoring a run on a split, a file, or each set of a mixture."""

import gzip
import itertools
import math
import shutil

import numpy as np
import pytest
from tiny_tasks import T5_SHAPE, tiny_run, write_data

import regard
from regard.data.sources import SOURCES
from regard.tasks import make_run, masked_lm, task_of
from regard.tasks.task import ScoreOptions
from regard.train.loop import fit


def score(predictor, split, **options):
    return task_of(predictor.run).score(predictor, split, ScoreOptions(**options))


def test_a_run_is_scored_without_baselines_where_its_training_text_is_missing(tmp_path):
    write_data(tmp_path)
    fit(tiny_run("masked_lm", tmp_path), tmp_path / "run")
    shutil.copy(tmp_path / "valid.txt", tmp_path / "other.txt")
    (tmp_path / "train.txt").unlink()
    lines = []
    scores = score(regard.load(tmp_path / "run"), str(tmp_path / "other.txt"), report=lines.append)
    assert [s.name for s in scores] == ["perplexity", "masked-token accuracy"]
    assert any("not compared with the baselines of the training text: no file" in line for line in lines)


def test_an_untrained_head_is_not_scored(tmp_path):
    write_data(tmp_path)
    fit(tiny_run("masked_lm", tmp_path), tmp_path / "run")
    file = tmp_path / "run/run.toml"
    assert "untrained = []" in file.read_text()
    file.write_text(file.read_text().replace("untrained = []", 'untrained = ["lm_head", "pooler"]'))
    with pytest.raises(ValueError, match="not trained to predict masked words"):
        score(regard.load(tmp_path / "run"), "valid")


def test_evaluation_leaves_a_model_in_its_mode(tmp_path):
    write_data(tmp_path)
    fit(tiny_run("language_model", tmp_path), tmp_path / "run")
    opened = regard.load(tmp_path / "run")
    score(opened, "valid")
    assert not opened.model.training


def test_a_text_of_unknown_words_alone_has_nothing_to_predict(tmp_path):
    write_data(tmp_path)
    fit(tiny_run("masked_lm", tmp_path), tmp_path / "run")
    (tmp_path / "strange.txt").write_text("東 京 東 京\n" * 30)
    with pytest.raises(ValueError, match=r"mask|predict|special"):
        score(regard.load(tmp_path / "run"), str(tmp_path / "strange.txt"))


def test_unigram_and_bigram_baselines_equal_plain_loops():
    random = np.random.default_rng(0)
    text, vocab = random.integers(0, 6, 300), 8
    best, truth, before = random.integers(0, 8, (3, 50))
    baselines = masked_lm._baselines(masked_lm._Predicted(best, truth, before), text, vocab)
    counts = [1 + sum(t == n for t in text) for n in range(vocab)]
    right, nats = [0, 0], [0.0, 0.0]
    for t, b in zip(truth, before, strict=True):
        p = counts[t] / sum(counts)
        after = [sum((x, y) == (b, n) for x, y in itertools.pairwise(text)) for n in range(vocab)]
        kinds = sum(n > 0 for n in after)
        q = (after[t] + kinds * p) / (sum(after) + kinds) if kinds else p
        nats = [nats[0] - math.log(p), nats[1] - math.log(q)]
        right[0] += t == counts.index(max(counts))
        most = [n for n in range(vocab) if after[n] == max(after)] if kinds else [counts.index(max(counts))]
        right[1] += t == most[-1]  # of two that are as frequent, the later token
    assert [found.name for found in baselines] == ["unigram baseline", "bigram baseline"]
    for found, hits, total in zip(baselines, right, nats, strict=True):
        assert found.value == pytest.approx(100 * hits / 50)
        assert f"perplexity {math.exp(total / 50):.2f}" in found.signature


def write_sets(folder, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", str(folder))
    for split in ("train", "valid", "test"):
        for name, lines in (("sst2", "0\ta bad film\n1\ta good film\n"), ("agnews-small", "1\tA ball\tIt flew\n")):
            (folder / name).mkdir(exist_ok=True)
            (folder / name / f"{split}.tsv.gz").write_bytes(gzip.compress((lines * 9).encode()))


def test_a_mixture_is_scored_set_by_set_and_a_file_as_a_whole(tmp_path, monkeypatch):
    write_sets(tmp_path, monkeypatch)
    tables = {"model": T5_SHAPE, "data": {"source": "sst2,agnews-small", "prefixed": True, "vocab": 100},
              "train": {"steps": 1, "device": "cpu"}, "decode": {"beam_size": 1}}  # fmt: skip
    done = fit(make_run("mix", tables), tmp_path / "run")
    assert [s.name for s in done.scores] == ["sst2: accuracy", "agnews-small: accuracy"]
    opened = regard.load(tmp_path / "run")
    assert [s.name for s in score(opened, "test")] == ["sst2: accuracy", "agnews-small: accuracy"]
    lines = []
    monkeypatch.setitem(SOURCES, "sst2", SOURCES["sst2"]._replace(splits=("train", "valid")))
    assert [s.name for s in score(opened, "test", report=lines.append)] == ["agnews-small: accuracy"]
    assert "sst2 has no split test; not scored" in lines
    sources, encode = [], type(opened).encode
    monkeypatch.setattr(type(opened), "encode", lambda self, texts: sources.extend(texts) or encode(self, texts))
    (tmp_path / "own.tsv").write_text("topic: a ball\tSports\n")
    assert "exact match" in [s.name for s in score(opened, str(tmp_path / "own.tsv"))]
    assert sources == ["topic: a ball"]
