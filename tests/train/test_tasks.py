"""Every task trains, scores, resumes to the same bits, begins from another run, and its loss is the textbook's."""

import gzip
import io
import itertools
import json
import math
import re
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from regard.train.tasks import TASKS
from rich.console import Console
from safetensors.torch import load_file

import regard
from regard.config import make_run
from regard.data.sources import SOURCES
from regard.data.text.batches import DataPosition, LabeledBatch
from regard.data.text.windows import MaskedBatch, WindowBatch
from regard.models import FAMILIES
from regard.models.bert import BERT, BERTConfig
from regard.models.gpt import GPT, GPTConfig
from regard.tasks import read_run
from regard.tasks.loss import classify, guess, next_token
from regard.tasks.metrics import score_split
from regard.train import loop, metrics
from regard.train.optim import adam, cosine

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "the",
    "mat",
    "and",
    "the",
    "dog",
    "ran",
    "to",
    "the",
    "door",
    "while",
    "a",
    "bird",
    "sang",
    "in",
    "the",
    "tree",
]
GOOD, BAD = ["good", "fine", "lovely", "great"], ["bad", "poor", "awful", "dull"]


def write(folder):
    """A small text, and small labelled texts, in a folder."""
    for split, count in (("train", 80), ("valid", 20)):
        lines = [" ".join(WORDS[(i * k) % len(WORDS)] for k in range(1, 9)) for i in range(count)]
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
        rows = [
            (f"a {pair[i % 4]} film {WORDS[i % 17]}", name)
            for i in range(count)
            for pair, name in ((GOOD, "for"), (BAD, "against"))
        ]
        (folder / f"{split}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))


GPT_SHAPE = {"family": "gpt", "dim": 16, "depth": 1, "heads": 2, "max_len": 20, "dropout": 0.1}
BERT_SHAPE = {"family": "bert", "dim": 16, "depth": 1, "heads": 2, "max_len": 24}
T5_SHAPE = {"family": "t5", "dim": 16, "depth": 1, "heads": 2, "head_dim": 8, "mlp_dim": 32}
SHAPES = {
    "next": (GPT_SHAPE, "characters", "txt"),
    "masked": (BERT_SHAPE, "wordpiece", "txt"),
    "spans": (T5_SHAPE, "bpe", "txt"),
    "class": (BERT_SHAPE, "wordpiece", "tsv"),
    "translate": (T5_SHAPE, "bpe", "tsv"),
}
EVERY = pytest.mark.parametrize("task", list(SHAPES))


def a_run(task, folder, steps=6, **more):
    model, tokenizer, kind = SHAPES[task]
    tables = {
        "task": task,
        "model": model,
        "data": {"train": f"{folder}/train.{kind}", "valid": f"{folder}/valid.{kind}", "tokenizer": tokenizer,
                 "vocab": 120, "max_len": 20},
        "train": {"steps": steps, "batch_tokens": 200, "lr": 0.01, "warmup": 3, "eval_every": 3, "save_every": 3, "average": 1,
                  "device": "cpu", "schedule": "cosine", "weight_decay": 0.01},
        "decode": {"beam_size": 1},
        **more,
    }  # fmt: skip
    return make_run(task, tables)


@pytest.mark.parametrize(
    ("task", "optimizer"), [*((task, "adam") for task in SHAPES), ("spans", "adafactor"), ("next", "adafactor")]
)
def test_a_task_stopped_midway_goes_on_to_the_same_bits(task, optimizer, tmp_path):
    write(tmp_path)
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train = {**vars(a_run(task, tmp_path).train), "optimizer": optimizer}
    run = a_run(task, tmp_path, train=train)
    loop.fit(run, whole)
    loop.fit(run, halves)
    for one in ("model.safetensors", "README.md"):
        (halves / one).unlink()
    shutil.rmtree(halves / "checkpoints" / "step-00000006")
    loop.fit(run, halves)
    wanted, got = (load_file(folder / "model.safetensors") for folder in (whole, halves))
    assert wanted.keys() == got.keys()
    assert all(torch.equal(wanted[name], got[name]) for name in wanted)


@EVERY
def test_a_trained_run_opens_answers_and_has_a_card(task, tmp_path):
    write(tmp_path)
    done = loop.fit(a_run(task, tmp_path), tmp_path / "run")
    opened = regard.load(tmp_path / "run")
    answer = {
        "next": lambda: opened.write("the cat", tokens=5),
        "masked": lambda: opened.fill("the [MASK] sat").text,
        "spans": lambda: opened.translate(["the cat <extra_id_0> mat"])[0].text,
        "class": lambda: opened.classify(["a good film"])[0][0].text,
        "translate": lambda: opened.translate(["a good film"])[0].text,
    }[task]()
    assert {
        "next": lambda: 0 < len(opened.tokenizer.encode([answer])[0]) <= 5,
        "masked": lambda: answer.startswith("the ") and answer.endswith(" sat") and "MASK" not in answer,
        "spans": lambda: len(opened.tokenizer.encode([answer])[0]) <= opened.limit(5),
        "class": lambda: answer in ("for", "against"),
        "translate": lambda: len(opened.tokenizer.encode([answer])[0]) <= opened.limit(3),
    }[task]()
    assert done.scores
    assert not any(math.isnan(s.value) for s in done.scores)
    card = (tmp_path / "run" / "README.md").read_text()
    assert all(f"| {s.name} |" in card for s in done.scores)
    if task == "class":
        assert (tmp_path / "run" / "labels.txt").read_text() == "against\nfor\n"


def test_every_task_has_a_family_and_every_family_a_task():
    assert {task for family in FAMILIES.values() for task in family.tasks} == set(TASKS)


def test_classes_are_learnt(tmp_path):
    write(tmp_path)
    done = loop.fit(a_run("class", tmp_path, steps=60), tmp_path / "run")
    assert {s.name: s.value for s in done.scores}["accuracy"] == 100
    reader = regard.load(tmp_path / "run")
    assert [guess.text for [guess] in reader.classify(["a lovely film", "a dull film"])] == ["for", "against"]


def test_fine_tuning_begins_with_the_weights_and_the_tokenizer_of_another_run(tmp_path):
    write(tmp_path)
    loop.fit(a_run("masked", tmp_path), tmp_path / "first")
    inherit_from_init = a_run("class", tmp_path, steps=1, init=str(tmp_path / "first"),
                  train={"steps": 1, "lr": 0.0, "device": "cpu", "average": 1})  # fmt: skip
    loop.fit(inherit_from_init, tmp_path / "second")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    assert {name for name in after if name not in before} == {"classifier.weight", "classifier.bias"}
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert (tmp_path / "second/tokenizer.json").read_bytes() == (tmp_path / "first/tokenizer.json").read_bytes()
    config = json.loads((tmp_path / "second/config.json").read_text())
    assert (config["dim"], config["classes"]) == (16, 2)
    shutil.rmtree(tmp_path / "first")  # a run that has begun needs it no more
    loop.fit(a_run("class", tmp_path, steps=2, init=str(tmp_path / "first")), tmp_path / "second")


def test_a_run_cannot_begin_from_another_family_or_from_nothing(tmp_path):
    write(tmp_path)
    loop.fit(a_run("next", tmp_path, steps=1), tmp_path / "first")
    with pytest.raises(ValueError, match="is a gpt, the recipe trains a bert"):
        loop.fit(a_run("class", tmp_path, init=str(tmp_path / "first")), tmp_path / "second")
    with pytest.raises(ValueError, match=r"no config\.json"):
        loop.fit(a_run("class", tmp_path, init=str(tmp_path / "nowhere")), tmp_path / "second")


def test_a_window_longer_than_the_model_is_refused(tmp_path):
    write(tmp_path)
    with pytest.raises(ValueError, match=r"data\.max_len=30 .*set data\.max_len=20 or model\.max_len=30"):
        loop.fit(a_run("next", tmp_path, data={**vars(a_run("next", tmp_path).data), "max_len": 30}), tmp_path / "run")


def test_places_no_window_reaches_are_refused(tmp_path):
    write(tmp_path)
    short = {**vars(a_run("next", tmp_path).data), "max_len": 10}
    with pytest.raises(
        ValueError, match=r"data\.max_len=10 .*places 11 to 20 .*set model\.max_len=10 too, or data\.max_len=20"
    ):
        loop.fit(a_run("next", tmp_path, data=short), tmp_path / "run")


@pytest.mark.parametrize(
    ("task", "split"), [("next", "train"), ("next", "valid"), ("masked", "train"), ("spans", "train")]
)
def test_a_text_too_short_harms_no_earlier_run_and_leaves_no_new_one(tmp_path, task, split):
    write(tmp_path)
    loop.fit(a_run(task, tmp_path), tmp_path / "old")
    before = (tmp_path / "old/model.safetensors").read_bytes()
    (tmp_path / "short.txt").write_text("a")
    data = {**vars(a_run(task, tmp_path).data), split: str(tmp_path / "short.txt")}
    for name in ("old", "new"):
        with pytest.raises(ValueError, match=r"a text of \d tokens? has no"):
            loop.fit(a_run(task, tmp_path, data=data), tmp_path / name, fresh=True)
    assert (tmp_path / "old/model.safetensors").read_bytes() == before
    assert (tmp_path / "old/run.toml").exists()
    assert not (tmp_path / "new").exists()


def test_a_run_is_scored_where_its_training_text_is_not(tmp_path):
    write(tmp_path)
    loop.fit(a_run("masked", tmp_path), tmp_path / "run")
    shutil.copy(tmp_path / "valid.txt", tmp_path / "held.txt")
    (tmp_path / "train.txt").unlink()
    said = []
    scores = score_split(regard.load(tmp_path / "run"), str(tmp_path / "held.txt"), say=said.append)
    assert [one.name for one in scores] == ["perplexity", "masked-token accuracy"]
    assert any("not compared with counting the training text: no file" in line for line in said)


def test_a_head_without_training_is_not_scored(tmp_path):
    write(tmp_path)
    loop.fit(a_run("masked", tmp_path), tmp_path / "run")
    file = tmp_path / "run/run.toml"
    file.write_text(file.read_text().replace('untrained = ""', 'untrained = "lm_head,pooler"'))
    with pytest.raises(ValueError, match="not trained to guess hidden words"):
        score_split(regard.load(tmp_path / "run"), "valid")


def test_a_file_in_which_each_text_has_its_own_class_is_refused(tmp_path):
    (tmp_path / "ids.tsv").write_text("".join(f"{n}\ta film {n}\tfor\n" for n in range(60)))
    data = {
        **vars(a_run("class", tmp_path).data),
        "train": str(tmp_path / "ids.tsv"),
        "valid": str(tmp_path / "ids.tsv"),
    }
    with pytest.raises(
        ValueError, match="has 60 different classes in its first 60 texts; wanted text, a tab, and one of a few"
    ):
        loop.fit(a_run("class", tmp_path, data=data), tmp_path / "run")


def test_classes_are_counted_and_a_training_gone_too_far_is_told(tmp_path):
    write(tmp_path)
    heard = io.StringIO()
    train = {**vars(a_run("class", tmp_path).train), "steps": 30, "eval_every": 1, "save_every": 30}
    rows = (tmp_path / "train.tsv").read_text().splitlines()
    other = {"for": "against", "against": "for"}  # the better it learns, the worse it fares
    (tmp_path / "valid.tsv").write_text("".join(f"{(t := row.split(chr(9)))[0]}\t{other[t[1]]}\n" for row in rows))
    loop.fit(a_run("class", tmp_path, train=train), tmp_path / "run", console=Console(file=heard, width=400))
    assert "classes: 'against' 80, 'for' 80" in heard.getvalue()
    assert re.search(
        r"the held-out loss was lowest, 0\.\d+, at step \d+, and rose after it: give more data", heard.getvalue()
    )


def test_a_class_that_ends_in_a_line_end_is_refused(tmp_path):
    rows = [{"source": "a b", "target": label} for label in ("for\n", "against")] * 5
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {
        **vars(a_run("class", tmp_path).data),
        "train": str(tmp_path / "rows.jsonl"),
        "valid": str(tmp_path / "rows.jsonl"),
    }
    with pytest.raises(ValueError, match=r"the class 'for\\n' in its text 1, 'a b'; a class is one line"):
        loop.fit(a_run("class", tmp_path, data=data), tmp_path / "run")


def a_begun(tmp_path, init, **more):
    return a_run("class", tmp_path, init=str(init), train={"steps": 1, "device": "cpu"}, **more)


def test_a_run_cannot_begin_from_the_folder_it_is_to_replace(tmp_path):
    write(tmp_path)
    loop.fit(a_run("masked", tmp_path), tmp_path / "first")
    before = (tmp_path / "first/model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="is the folder to train in"):
        loop.fit(a_begun(tmp_path, tmp_path / "first"), tmp_path / "first", fresh=True)
    assert (tmp_path / "first/model.safetensors").read_bytes() == before


def test_a_damaged_beginning_harms_no_earlier_run_and_leaves_no_new_one(tmp_path):
    write(tmp_path)
    for name in ("first", "old"):
        loop.fit(a_run("masked", tmp_path), tmp_path / name)
    whole = (tmp_path / "first/model.safetensors").read_bytes()
    (tmp_path / "first/model.safetensors").write_bytes(whole[:1000])
    for name in ("old", "new"):
        with pytest.raises(ValueError, match="damaged"):
            loop.fit(a_begun(tmp_path, tmp_path / "first"), tmp_path / name, fresh=True)
    assert (tmp_path / "old/model.safetensors").exists()
    assert (tmp_path / "old/run.toml").exists()
    assert not (tmp_path / "new").exists()


def test_what_a_beginning_decides_cannot_be_changed(tmp_path):
    write(tmp_path)
    for change in ("model.dim=64", "data.tokenizer=bytes", "data.vocab=9", "model=tiny"):
        with pytest.raises(ValueError, match="are those of init"):
            read_run("sst2", (f"init={tmp_path}", change))
    assert read_run("sst2", (f"init={tmp_path}", "model.dropout=0.2")).model.dropout == 0.2


def test_a_sample_longer_than_the_model_is_cut(tmp_path):
    write(tmp_path)
    run = a_run("masked", tmp_path, model={**BERT_SHAPE, "max_len": 5},
                data={**vars(a_run("masked", tmp_path).data), "max_len": 5})  # fmt: skip
    assert loop.fit(run, tmp_path / "run").steps == 6


def test_evaluation_leaves_a_model_in_the_mode_it_found(tmp_path):
    write(tmp_path)
    loop.fit(a_run("next", tmp_path), tmp_path / "run")
    opened = regard.load(tmp_path / "run")
    score_split(opened, "valid")
    assert not opened.model.training


def test_text_of_unknown_words_alone_has_nothing_to_predict(tmp_path):
    write(tmp_path)
    loop.fit(a_run("masked", tmp_path), tmp_path / "run")
    (tmp_path / "strange.txt").write_text("東 京 東 京\n" * 30)
    with pytest.raises(ValueError, match=r"hide|predict|special"):
        score_split(regard.load(tmp_path / "run"), str(tmp_path / "strange.txt"))


def test_guesses_by_counting_equal_those_of_plain_loops():
    random = np.random.default_rng(0)
    text, vocab = random.integers(0, 6, 300), 8
    said, truth, before = random.integers(0, 8, (3, 50))
    one, two = metrics._counters(metrics._Guesses(said, truth, before), text, vocab)
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
        right[1] += t == most[-1]  # of two that are as common, the later token
    for found, hits, total in zip((one, two), right, nats, strict=True):
        assert found.value == pytest.approx(100 * hits / 50)
        assert f"perplexity {math.exp(total / 50):.2f}" in found.signature


# A mixture


def write_sets(folder, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", str(folder))
    for split in ("train", "valid", "test"):
        for name, lines in (("sst2", "0\ta bad film\n1\ta good film\n"), ("agnews-small", "1\tA ball\tIt flew\n")):
            (folder / name).mkdir(exist_ok=True)
            (folder / name / f"{split}.tsv.gz").write_bytes(gzip.compress((lines * 9).encode()))


def test_a_mixture_is_scored_set_by_set_and_a_file_as_it_is(tmp_path, monkeypatch):
    write_sets(tmp_path, monkeypatch)
    tables = {"model": T5_SHAPE, "data": {"source": "sst2,agnews-small", "prefixed": True, "vocab": 100},
              "train": {"steps": 1, "device": "cpu"}, "decode": {"beam_size": 1}}  # fmt: skip
    done = loop.fit(make_run("mix", tables), tmp_path / "run")
    assert [s.name for s in done.scores] == ["sst2: accuracy", "agnews-small: accuracy"]
    opened = regard.load(tmp_path / "run")
    assert [s.name for s in score_split(opened, "test")] == ["sst2: accuracy", "agnews-small: accuracy"]
    said = []
    monkeypatch.setitem(SOURCES, "sst2", SOURCES["sst2"]._replace(splits=("train", "valid")))
    assert [s.name for s in score_split(opened, "test", say=said.append)] == ["agnews-small: accuracy"]
    assert "sst2 has no split test; not scored" in said
    asked = []
    monkeypatch.setattr(type(opened), "too_long", lambda self, texts: asked.extend(texts) or [])
    (tmp_path / "own.tsv").write_text("topic: a ball\tSports\n")
    assert "exact" in [s.name for s in score_split(opened, str(tmp_path / "own.tsv"))]
    assert asked == ["topic: a ball"]


# Losses


def text(*shape):
    return torch.randint(5, 40, shape, generator=torch.Generator().manual_seed(0))


def test_the_loss_of_the_next_token_is_that_of_all_logits_and_of_each_window_alone():
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab=40, dim=16, depth=2, heads=2, max_len=16, dropout=0.0)).double()
    model.eval()
    windows = text(5, 9)
    loss, nll = next_token(model, WindowBatch(windows), 0.1)
    logits, wanted = model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()
    torch.testing.assert_close(loss, F.cross_entropy(logits, wanted, reduction="sum", label_smoothing=0.1))
    torch.testing.assert_close(nll, F.cross_entropy(logits, wanted, reduction="sum"))
    lock_folder = sum(next_token(model, WindowBatch(row[None]), 0.1)[0] for row in windows)
    torch.testing.assert_close(loss, lock_folder)
    # Packed as one batch, or each window padded behind its end: what follows a token does not change its loss.
    padded = F.cross_entropy(
        model(F.pad(windows[:, :-1], (0, 4), value=1))[:, :8].flatten(0, 1), wanted, reduction="sum"
    )
    torch.testing.assert_close(nll, padded)


def test_the_loss_of_hidden_tokens_is_that_of_the_logits_where_they_stood():
    torch.manual_seed(0)
    model = BERT(BERTConfig(vocab=40, dim=16, depth=2, heads=2, max_len=16)).double().eval()
    shown, truth = text(4, 9), text(4, 9).flip(0)
    chosen = torch.rand(4, 9, generator=torch.Generator().manual_seed(1)) < 0.4
    loss, nll = guess(model, MaskedBatch(shown, chosen, truth), 0.1)
    logits = model(shown)
    labels = truth.masked_fill(~chosen, -100).flatten()
    torch.testing.assert_close(nll, F.cross_entropy(logits.flatten(0, 1), labels, reduction="sum"))
    torch.testing.assert_close(
        loss, F.cross_entropy(logits.flatten(0, 1), labels, reduction="sum", label_smoothing=0.1)
    )


def test_the_loss_of_classes_is_that_of_each_text_alone():
    torch.manual_seed(0)
    model = BERT(BERTConfig(vocab=40, dim=16, depth=2, heads=2, max_len=16, classes=3)).double().eval()
    rows, labels = text(3, 9), torch.tensor([0, 2, 1])
    mask = torch.ones(3, 1, 1, 9, dtype=torch.bool)
    mask[1, ..., 5:] = False
    loss, nll = classify(model, LabeledBatch(rows, mask, labels), 0.1)
    logits = torch.cat([model.classify(rows[:1]), model.classify(rows[1:2, :5]), model.classify(rows[2:])])
    torch.testing.assert_close(nll, F.cross_entropy(logits, labels, reduction="sum"))
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels, reduction="sum", label_smoothing=0.1))


# The schedule


def test_a_cosine_rises_to_its_peak_and_falls_to_a_tenth():
    rates = [cosine(step, 1.0, 10, 100) for step in range(1, 101)]
    assert rates[4] == 0.5
    assert rates[9] == max(rates) == 1.0
    assert rates[54] == pytest.approx(0.55)  # half of the way down
    assert rates[-1] == pytest.approx(0.1)
    assert rates[9:] == sorted(rates[9:], reverse=True)


def test_weights_decay_and_biases_do_not():
    layer = torch.nn.Linear(3, 3)
    weight, bias = (p.detach().clone() for p in layer.parameters())
    optimizer = adam(layer, decay=0.5)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    for p in layer.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), weight * 0.95)
    assert torch.equal(layer.bias.detach(), bias)


def test_places_of_all_tasks_are_found_again(tmp_path):
    """The batch after a place is the one that came after it."""
    write(tmp_path)
    from regard.data.text.dataset import prepare

    for task in SHAPES:
        run = a_run(task, tmp_path)
        corpus = prepare(run.data, task, tmp_path / f"{task}.json", lambda text: None, lambda what, n: None)
        stream = TASKS[task].batches(run, corpus, DataPosition())
        for _ in range(25):
            _, place = next(stream)
            wanted, _ = next(stream)
            got, _ = next(TASKS[task].batches(run, corpus, place))
            assert all(torch.equal(a, b) for a, b in zip(wanted, got, strict=True) if isinstance(a, torch.Tensor))
