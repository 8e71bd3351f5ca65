"""The command line with recurrent translators, seq2seq and Bahdanau: every verb of a translation model, and compare."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from cli_checks import assert_refused, write
from PIL import Image
from safetensors.torch import load_file

from regard.data.text.toys import toy_pairs
from regard.layers.linear import Int8Linear
from regard.layers.tap import watch
from regard.models import load_model
from regard.tasks import read_run
from regard.tasks.load import load
from regard.train.loop import fit

TRAINING = ("model.dropout=0.1", "data.pairs=300", "train.batch_tokens=256", "train.save_every=5", "train.eval_every=10",
            "train.log_every=5", "train.steps=10")  # fmt: skip
SHAPES = {
    "seq2seq": ("model=seq2seq-tiny", "model.dim=16", "model.hidden=16", "model.depth=1"),
    "bahdanau": ("model=bahdanau-tiny", "model.dim=16", "model.hidden=16", "model.align=8", "model.readout=16"),
}
LOCATION = (*SHAPES["bahdanau"], "model.score=location", "model.max_len=13", "data.max_len=12")
EACH = pytest.mark.parametrize("family", list(SHAPES))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder with runs `seq2seq`, `bahdanau` and `location` after ten steps on `reverse`, and `copy` on the other toy."""
    home = tmp_path_factory.mktemp("recurrent")
    for family, shape in SHAPES.items():
        fit(read_run("reverse", (*shape, *TRAINING)), home / family)
    fit(read_run("reverse", (*LOCATION, *TRAINING)), home / "location")
    fit(read_run("copy", (*SHAPES["bahdanau"], *TRAINING)), home / "copy")
    return home


# Training


@EACH
def test_train_writes_a_run_whose_card_names_it(runs, family):
    card = (runs / family / "README.md").read_text()
    for word in (family, f"regard train {runs / family}/run.toml", "BLEU", "parameters"):
        assert word in card
    assert load(runs / family).run.family == family


@EACH
def test_a_run_that_is_resumed_midway_ends_with_the_same_bits(runs, tmp_path, family):
    halves = tmp_path / "halves"
    shutil.copytree(runs / family, halves)
    for name in ("model.safetensors", "README.md"):
        (halves / name).unlink()
    shutil.rmtree(halves / "checkpoints" / "step-00000010")
    fit(read_run("reverse", (*SHAPES[family], *TRAINING)), halves)
    wanted, got = (load_file(folder / "model.safetensors") for folder in (runs / family, halves))
    assert wanted.keys() == got.keys()
    assert all(torch.equal(wanted[name], got[name]) for name in wanted)


def test_a_location_score_with_fewer_positions_than_the_data_has_tokens_is_refused(regard, tmp_path):
    result = regard("train", "reverse", *SHAPES["bahdanau"], *TRAINING, "model.score=location", "model.max_len=20",
                    "data.max_len=20", "--out", tmp_path / "run")  # fmt: skip
    assert_refused(result, "data.max_len=20", "context length of 20", "set data.max_len=19 or model.max_len=21")
    assert not (tmp_path / "run").exists()


# Translating


@EACH
def test_translate_keeps_the_order_of_sentences_and_empty_lines(regard, runs, family):
    result = regard("translate", runs / family, "a b c", "", "d e f g", "--beam", 1)
    assert (result.code, result.err) == (0, "")
    assert len(result.out.splitlines()) == 3
    assert result.out.splitlines()[1] == ""


@EACH
def test_translate_n_best_prints_number_rank_score_and_text(regard, runs, family):
    result = regard("translate", runs / family, "a b c", "c d", "--beam", 5, "--n-best", 3)
    rows = [line.split("\t") for line in result.out.splitlines()]
    assert [(row[0], row[1]) for row in rows] == [(n, r) for n in "12" for r in "123"]
    for answers in (rows[:3], rows[3:]):
        scores = [float(row[2]) for row in answers]
        assert scores == sorted(scores, reverse=True)
        assert len({row[3] for row in answers}) == 3


@EACH
def test_translate_json_has_the_answer_of_the_library(regard, runs, family):
    found = json.loads(regard("translate", runs / family, "a b c", "--json", "--beam", 5, "--n-best", 3).out)
    [wanted] = load(runs / family).translate(["a b c"], beam=5, n_best=3)
    assert [best["text"] for best in found["n_best"]] == [best.text for best in wanted.n_best]
    assert [best["score"] for best in found["n_best"]] == pytest.approx([best.score for best in wanted.n_best], abs=1e-5)


@EACH
def test_samples_depend_on_the_seed_only(regard, runs, family):
    words = ("translate", runs / family, "a b c d e f", "--temperature", 3.0, "--seed")
    once, again, other = (regard(*words, seed).out for seed in (1, 1, 2))
    assert once == again != other


@EACH
def test_int8_translates_with_rounded_weights(regard, runs, monkeypatch, family):
    monkeypatch.setattr(sys, "executable", shutil.which("true"))  # the probe of the machine, seconds long, is tested elsewhere
    result = regard("translate", runs / family, "a b c", "", "d e f g", "--precision", "int8")
    assert (result.code, result.err) == (0, "")
    assert len(result.out.splitlines()) == 3
    small = load(runs / family, precision="int8").model
    assert any(isinstance(part, Int8Linear) for part in small.modules())
    source, target = torch.randint(4, 30, (2, 20, 8), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        wanted, got = (model(source, target).log_softmax(-1) for model in (load(runs / family).model, small))
    assert 0 < (got - wanted).std() < 0.05 * wanted.std()


def test_a_sentence_longer_than_the_positions_of_a_location_score_is_refused(regard, runs):
    assert regard("translate", runs / "location", "--no-split", "a b c d e f g h i j k l").code == 0
    assert_refused(
        regard("translate", runs / "location", "--no-split", "a b c d e f g h i j k l m"),
        "sentence 1 has 13 tokens",
        "at most 12",
    )


@EACH
def test_one_thread_and_two_give_the_same_translations(runs, family):
    texts = [source for source, _ in toy_pairs("reverse", "test", 20)]
    translator, before = load(runs / family), torch.get_num_threads()
    answers = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            answers.append(
                [[(best.text, best.score) for best in a.n_best] for a in translator.translate(texts, beam=3, n_best=3)]
            )
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*answers, strict=True):
        assert [text for text, _ in one] == [text for text, _ in two]
        assert [score for _, score in one] == pytest.approx([score for _, score in two], abs=1e-5)


# Scores


@EACH
def test_score_prints_metrics_with_signatures(regard, runs, family):
    found = json.loads(regard("score", runs / family, "--on", "test", "--json").out)
    assert [score["name"] for score in found] == ["BLEU", "chrF", "BLEU, lower-cased", "exact match"]
    assert "version:" in found[0]["signature"]


def test_compare_prints_the_scores_of_score_for_each_run(regard, runs, tmp_path):
    both = [runs / "seq2seq", runs / "bahdanau"]
    result = regard("compare", *both, "--on", "test", "--by", "length", "--json", "--out", tmp_path / "lengths.png")
    assert result.code == 0, result.err
    assert f"saved {tmp_path}/lengths.png" in result.err  # standard output is JSON only
    found = json.loads(result.out)
    assert found["runs"] == [str(run) for run in both]
    for index, run in enumerate(both):
        scores = {s["name"]: s["value"] for s in json.loads(regard("score", run, "--on", "test", "--json").out)}
        assert found["whole"]["bleu"][index] == pytest.approx(scores["BLEU"])
        assert found["whole"]["chrf"][index] == pytest.approx(scores["chrF"])
    assert [(bucket["low"], bucket["high"]) for bucket in found["buckets"]] == [(1, 5), (6, None)]  # of 3 to 10 letters
    assert sum(bucket["sentences"] for bucket in found["buckets"]) == found["whole"]["sentences"] == 500
    with Image.open(tmp_path / "lengths.png") as image:
        assert image.format == "PNG"
        assert image.width > 1000


def test_compare_prints_a_table(regard, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for family, name in (("seq2seq", "plain"), ("bahdanau", "[red]")):  # brackets are no markup
        shutil.copytree(runs / family, name)
    result = regard("compare", "plain", "[red]", "--by", "length", "--beam", 1, "--out", "x.svg")
    assert result.code == 0, result.err
    assert "valid: BLEU" in result.out
    for word in ("plain", "[red]", "1–5", "6+", "all", "500", "chrF", "version:", "saved x.svg"):
        assert word in result.out
    assert "1–5" not in regard("compare", "plain", "--beam", 1).out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("seq2seq", "copy"), ("copy and", "different test data for 'valid'", "--on FILE")),
        (("seq2seq", "--by", "nonsense"), ("--by nonsense; use --by length",)),
        (("seq2seq", "nowhere"), ("nowhere",)),
        (("seq2seq", "--out", "x.txt"), ("cannot write x.txt",)),
        (("seq2seq", "--on", "tset"), ("reverse has no split 'tset'", "test")),
        (("seq2seq", "--beam", "0"), ("beam 0",)),
    ],
    ids=["data", "by", "run", "out", "split", "beam"],
)
def test_what_cannot_be_compared_is_one_line(regard, runs, monkeypatch, words, hint):
    monkeypatch.chdir(runs)
    assert_refused(regard("compare", *words), *hint)


def test_runs_of_different_data_are_compared_on_a_file(regard, runs, tmp_path):
    file = write(tmp_path / "own.tsv", "a b c\tc b a\nd e f g\tg f e d\n")
    found = json.loads(regard("compare", runs / "seq2seq", runs / "copy", "--on", file, "--json").out)
    assert found["whole"]["sentences"] == 2
    assert found["buckets"] == []


def test_compare_of_another_model_names_its_verbs(regard, text_runs):
    assert_refused(
        regard("compare", text_runs / "gpt"), "is of family gpt, which regard translate does not take; use regard generate"
    )


# Inside


def test_show_maps_the_tokens_of_both_sentences(regard, runs, tmp_path):
    assert "cross-attention" in regard("show", runs / "bahdanau", "a b c").out
    assert regard("show", runs / "bahdanau", "a b c", "--out", tmp_path / "map.json").code == 0
    found = json.loads((tmp_path / "map.json").read_text())
    [answer] = load(runs / "bahdanau").translate(["a b c"])
    assert found["title"] == "cross-attention"  # one layer and one head: no mean
    assert found["columns"] == ["▁a", "▁b", "▁c", "</s>"]
    assert found["rows"] in (answer.tokens, [*answer.tokens, "</s>"])
    assert [sum(row) for row in found["weights"]] == pytest.approx([1.0] * len(found["rows"]), abs=1e-5)
    assert regard("show", runs / "bahdanau", "a b c", "--out", tmp_path / "map.png").code == 0


def test_show_maps_the_attention_of_each_step_of_decoding(runs):
    """The map is recorded while the model reads its answer; a greedy search records the same, one step at a time."""
    from regard.view.maps import map_attention

    translator = load(runs / "bahdanau")
    with watch(translator.model) as recorded:
        translator.translate(["a b c d"], beam=1)
    steps = torch.cat(recorded["decoder.cross"], -2)[0, 0]
    found = torch.tensor(map_attention(translator, "a b c d", beam=1).weights)
    torch.testing.assert_close(found, steps[: len(found)], rtol=0, atol=1e-5)


def test_a_beam_search_records_the_attention_of_every_beam(runs):
    translator = load(runs / "bahdanau")
    with watch(translator.model) as recorded:
        translator.translate(["a b c d", "d e"], beam=3)
    weights = recorded["decoder.cross"]
    assert weights[0].shape[:2] == (2, 1)
    assert {w.shape[-2] for w in weights} <= {1, 3}
    assert any(w.shape == (2, 1, 3, 5) for w in weights)  # sentences, a head, beams, source tokens with the end
    for w in weights:
        torch.testing.assert_close(w.sum(-1), torch.ones(w.shape[:-1]))


@pytest.mark.parametrize("words", [("--layer", 2), ("--head", 2)], ids=["layer", "head"])
def test_a_layer_or_head_that_a_bahdanau_lacks_is_refused(regard, runs, words):
    kind = words[0].removeprefix("--")
    assert_refused(regard("show", runs / "bahdanau", "a b c", *words), f"no {kind} 2", f"{kind}s 1 to 1")


@EACH
def test_an_empty_sentence_cannot_be_shown(regard, runs, family):
    assert_refused(regard("show", runs / family, ""), "an empty sentence has no attention to show")


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_a_recurrent_side_has_no_self_attention_to_show(regard, runs, side):
    refused = f"the {side} of a bahdanau is recurrent and has no self-attention; use which='cross', or a model such as"
    assert_refused(regard("show", runs / "bahdanau", "a b c", "--which", side), refused)
    refused = f"the {side} of a seq2seq is recurrent and has no self-attention; use a model such as transformer or t5"
    assert_refused(regard("show", runs / "seq2seq", "a b c", "--which", side), refused)


def test_a_seq2seq_has_no_attention_to_show(regard, runs):
    assert_refused(
        regard("show", runs / "seq2seq", "a b c"), "a seq2seq has no cross-attention", "such as bahdanau or transformer"
    )


@EACH
def test_cost_counts_the_parameters_of_the_run(regard, runs, family):
    whole = json.loads(regard("cost", runs / family, "--source", 3, "--target", 2, "--json").out)[str(runs / family)][-1]
    assert whole["parameters"] == sum(p.numel() for p in load_model(runs / family).parameters())
    assert whole["score_bytes"] == (4 * 3 * 2 if family == "bahdanau" else 0)  # a float32 for each pair of tokens


@EACH
def test_export_names_the_families_that_can_be_exported(regard, runs, tmp_path, family):
    result = regard("export", runs / family, "--to", "hf", tmp_path / "out")
    assert_refused(result, f"'{family}' cannot be exported to Hugging Face; supported are", "transformer", "gpt", "bert", "t5")
    assert not (tmp_path / "out").exists()
