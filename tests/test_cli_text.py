"""The command line for text models: generate, fill, classify, ask, embed, import, export; results and mistakes."""

import json
import re
import shutil

import numpy as np
import pytest
from cli_checks import assert_refused
from safetensors.torch import load_file

from regard.cli.io import TEXTS_PER_CHUNK
from regard.decode.search import Hypothesis
from regard.tasks.load import load
from regard.tasks.translation import Translator

# -- results


def test_generate_continues_a_prompt_and_a_stream_prints_the_same(regard, text_runs):
    how = ("generate", text_runs / "gpt", "the cat", "--tokens", "10", "--seed", "3")
    plain, streamed, read = regard(*how), regard(*how, "--stream"), regard(*how, "--json")
    assert plain.code == streamed.code == read.code == 0
    assert plain.out == streamed.out
    assert plain.out.startswith("the cat")
    found = json.loads(read.out)
    assert found["prompt"] + found["text"] + "\n" == plain.out
    assert regard(*how[:-1], "4").out != plain.out


def test_generate_is_greedy_at_temperature_0_and_ends_before_a_stop_string(regard, text_runs):
    how = ("generate", text_runs / "gpt", "the cat", "--tokens", "12", "--temperature", "0")
    whole = regard(*how).out.removeprefix("the cat").rstrip("\n")
    stop = whole[3:5]
    assert regard(*how, "--seed", "9").out == regard(*how).out
    assert regard(*how, "--stop", stop).out == "the cat" + whole.partition(stop)[0] + "\n"


def test_fill_predicts_each_masked_word(regard, text_runs):
    result = regard("fill", text_runs / "bert", "the [MASK] sat on the [MASK]", "--top", "3")
    assert result.code == 0
    text, *predictions = result.out.splitlines()
    assert "[MASK]" not in text
    assert [line.count("%") for line in predictions] == [3, 3]
    found = json.loads(regard("fill", text_runs / "bert", "the [MASK]", "--json").out)
    assert len(found["predictions"][0]) == 5
    assert sum(prediction["probability"] for prediction in found["predictions"][0]) <= 1


def test_classify_prints_a_class_for_each_line(regard, text_runs, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("a good film\na bad film\n\n")
    result = regard("classify", text_runs / "classes", "--input", file)
    assert result.code == 0
    assert [line.split()[0] in ("for", "against") for line in result.out.splitlines()] == [True] * 3
    both = json.loads(regard("classify", text_runs / "classes", "a good film", "--top", "2", "--json").out)
    assert {c["text"] for c in both["classes"]} == {"for", "against"}
    assert sum(c["probability"] for c in both["classes"]) == pytest.approx(1)


def test_ask_prints_the_answer_of_translate(regard, text_runs):
    result = regard("ask", text_runs / "t5", "a good film", "--json")
    assert result.code == 0
    found, opened = json.loads(result.out), load(text_runs / "t5")
    [wanted] = opened.translate(["a good film"], scored=True)
    assert (found["source"], found["text"]) == ("a good film", wanted.text)
    assert found["score"] == pytest.approx(wanted.score)


def test_an_answer_of_spans_keeps_its_sentinels(text_runs, monkeypatch):
    opened = load(text_runs / "spans")
    first, second, third = opened.tokenizer.special.sentinels[:3]
    [cat, mat] = opened.tokenizer.encode(["cat", "mat"])
    result = [Hypothesis([first, *cat, second, *mat, third], 0.0)]
    monkeypatch.setattr(Translator, "search", lambda *given, **how: [result])
    assert opened.translate(["the <extra_id_0>"])[0].text == "<extra_id_0> cat <extra_id_1> mat <extra_id_2>"


def test_embed_compares_prints_and_saves_vectors(regard, text_runs, tmp_path):
    texts = ("the cat", "the dog", "the cat")
    result = regard("embed", text_runs / "bert", *texts)
    rows = [line.split()[-3:] for line in result.out.splitlines()[1:]]
    assert [row[i] for i, row in enumerate(rows)] == ["1.00"] * 3
    assert rows[0][2] == "1.00"
    saved = regard("embed", text_runs / "bert", *texts, "--out", tmp_path / "v.npy")
    assert saved.code == 0
    vectors = np.load(tmp_path / "v.npy", allow_pickle=False)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    lines = [json.loads(line) for line in regard("embed", text_runs / "bert", *texts, "--json").out.splitlines()]
    np.testing.assert_allclose([line["vector"] for line in lines], vectors, atol=1e-6)


@pytest.mark.parametrize("run", ["elmo", "bert", "classes"])
def test_embed_compares_a_word_in_each_of_its_contexts(regard, text_runs, tmp_path, run):
    words = ("embed", text_runs / run, "--word", "cat")
    texts = ("the cat sat", "a dog ran to the Cat and the cat", "the cat sat")
    result = regard(*words, *texts)
    header, *rows = result.out.splitlines()
    assert header.split() == ["1", "2", "3", "4"]
    assert [row[: row.index("]") + 1] for row in rows] == [
        "1 the [cat]", "2 a dog ran to the [Cat]", "3 a dog ran to the Cat and the [cat]", "4 the [cat]"
    ]  # fmt: skip
    assert rows[0].split()[-4] == rows[0].split()[-1] == "1.000"
    saved = regard(*words, *texts, "--out", tmp_path / "v.npy")
    assert "saved 4 vectors of 16 numbers" in saved.out
    vectors = np.load(tmp_path / "v.npy", allow_pickle=False)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-4  # another context, another vector
    lines = [json.loads(line) for line in regard(*words, *texts, "--json").out.splitlines()]
    assert [(line["source"][line["start"] : line["end"]], line["source"]) for line in lines] == [
        ("cat", texts[0]), ("Cat", texts[1]), ("cat", texts[1]), ("cat", texts[2])
    ]  # fmt: skip
    np.testing.assert_allclose([line["vector"] for line in lines], vectors, atol=1e-6)


@pytest.mark.parametrize("run", ["elmo", "bert"])
def test_a_word_that_cannot_be_embedded_is_refused(regard, text_runs, run):
    words = ("embed", text_runs / run, "--word")
    for text, wanted in (("the cats", "text 2, 'the cats', does not contain the word 'cat'"), (" ", "text 2 is empty")):
        result = regard(*words, "cat", "the cat", text, "the cat")
        assert result.code == 0
        assert result.err.startswith(f"regard: skipped 1 of 3: {wanted}")
        assert [line.split()[0] for line in result.out.splitlines() if line.strip()] == ["1", "1", "2"]
        assert regard(*words, "cat", "--strict", "the cat", text, "the cat").code == 2
    assert_refused(regard(*words, " ", "the cat"), "an empty word")
    late = " ".join(["the"] * 40) + " cat"
    if run == "bert":
        assert_refused(regard(*words, "cat", late), "text 1 contains the word as token", "shorten the text")
    else:  # no limit, no note
        result = regard(*words, "cat", late)
        assert (result.code, result.err) == (0, "")
    assert_refused(regard(*words, "cat", *["cat cat"] * 16), "over 30", "--out", "--json")
    assert_refused(regard("embed", text_runs / "gpt", "--word", "cat", "the cat"), "regard embed does not take")


def test_embed_counts_texts_of_a_file_from_its_start(regard, text_runs, tmp_path):
    (tmp_path / "texts.txt").write_text("the cat\n" * TEXTS_PER_CHUNK + "the dog\n")
    result = regard("embed", text_runs / "elmo", "--word", "cat", "--input", tmp_path / "texts.txt", "--out", tmp_path / "v.npy")
    assert result.code == 0
    assert f"skipped 1 of {TEXTS_PER_CHUNK + 1:,}: text {TEXTS_PER_CHUNK + 1}, 'the dog', does not contain" in result.err


def test_an_elmo_has_no_attention_to_show(regard, text_runs):
    assert_refused(regard("show", text_runs / "elmo", "the cat"), "has LSTMs and no attention to show", "regard embed")


def test_score_prints_the_metrics_of_the_task(regard, text_runs):
    names = {
        run: [s["name"] for s in json.loads(regard("score", text_runs / run, "--json").out)]
        for run in ("gpt", "bert", "elmo", "classes", "t5")
    }
    assert names["gpt"] == ["perplexity", "bits per character"]
    assert names["bert"] == ["perplexity", "masked-token accuracy", "unigram baseline", "bigram baseline"]
    assert names["elmo"] == ["forward perplexity", "backward perplexity"]
    assert names["classes"] == ["accuracy", "F1"]
    assert "BLEU" in names["t5"]


@pytest.mark.parametrize("run", ["gpt", "bert", "t5", "classes"])
def test_show_and_cost_take_every_family(regard, text_runs, tmp_path, run):
    assert regard("show", text_runs / run, "the cat sat", "--out", tmp_path / "a.png").code == 0
    assert (tmp_path / "a.png").stat().st_size > 1000
    [parts] = json.loads(regard("cost", text_runs / run, "--source", "16", "--json").out).values()
    weights = load_file(text_runs / run / "model.safetensors")
    assert parts[-1]["parameters"] == sum(w.numel() for w in weights.values())


@pytest.mark.parametrize("run", ["gpt", "bert", "classes", "t5"])
def test_a_run_exported_and_imported_has_the_same_weights_and_answers(regard, text_runs, tmp_path, run):
    assert regard("export", text_runs / run, "--to", "hf", tmp_path / "out").code == 0
    assert regard("import", tmp_path / "out", "--to", tmp_path / "back").code == 0
    before, after = (load_file(folder / "model.safetensors") for folder in (text_runs / run, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert all(bool((before[name] == after[name]).all()) for name in before)
    verb = {"gpt": ("generate", "the cat", "--tokens", "5"), "bert": ("fill", "the [MASK] sat"),
            "classes": ("classify", "a good film"), "t5": ("ask", "a good film", "--beam", "1", "--tokens", "20")}[run]  # fmt: skip
    result = [regard(verb[0], folder, *verb[1:]) for folder in (text_runs / run, tmp_path / "back")]
    assert result[0].code == 0
    assert result[0].out == result[1].out


def test_a_text_without_a_task_prefix_gets_a_warning(regard, text_runs, tmp_path):
    shutil.copytree(text_runs / "t5", tmp_path / "t5")
    file = tmp_path / "t5/run.toml"
    text = file.read_text().replace('source = ""', 'source = "sst2,agnews-small"').replace("prefixed = false", "prefixed = true")
    file.write_text(re.sub(r'(?m)^(train|valid) = ".*"$', "", text))
    bare, asked = (regard("ask", tmp_path / "t5", text) for text in ("a good film", "sst2 sentence: a good film"))
    assert (bare.code, asked.code) == (0, 0)
    assert "'a good film' has none of the task prefixes this model was trained with, 'sst2 sentence: ', 'topic: '" in bare.err
    assert "prefix" not in asked.err


def test_generate_reads_its_prompt_from_standard_input(regard, text_runs, monkeypatch, tmp_path):
    (tmp_path / "in.txt").write_text("the cat\n")
    with open(tmp_path / "in.txt") as given:
        monkeypatch.setattr("sys.stdin", given)
        piped = regard("generate", text_runs / "gpt", "--tokens", "5")
    assert piped.out == regard("generate", text_runs / "gpt", "the cat", "--tokens", "5").out


def test_empty_input_gets_a_warning(regard, text_runs, tmp_path):
    (tmp_path / "none.txt").write_text("")
    for verb, run in (("classify", "classes"), ("embed", "bert"), ("ask", "t5")):
        result = regard(verb, text_runs / run, "--input", tmp_path / "none.txt")
        assert (result.code, result.out, result.err) == (0, "", "regard: nothing to read\n")


def test_decoding_options_survive_export_and_import(regard, text_runs, tmp_path):
    shutil.copytree(text_runs / "t5", tmp_path / "t5")
    file = tmp_path / "t5/run.toml"
    file.write_text(
        re.sub(r"length_penalty = .*", "length_penalty = 0.3", file.read_text()).replace("beam_size = 1", "beam_size = 3")
    )
    assert regard("export", tmp_path / "t5", "--to", "hf", tmp_path / "out").code == 0
    assert regard("import", tmp_path / "out", "--to", tmp_path / "back").code == 0
    how = load(tmp_path / "back").run.decode
    assert (how.beam_size, how.length_penalty) == (3, 0.3)
    before, after = (
        load(folder).translate(["a good film"], n_best=3, tokens=20) for folder in (tmp_path / "t5", tmp_path / "back")
    )
    assert before == after


def test_a_sentinel_is_shown_as_one_token(text_runs):
    from regard.view.maps import map_attention

    attention = map_attention(load(text_runs / "spans"), "the cat <extra_id_0> mat </s>")
    assert attention.columns.count("<extra_id_0>") == 1
    assert attention.columns[-1] == "</s>"
    assert attention.columns.count("</s>") == 1  # the end token; the one typed is text


def test_the_map_of_a_gpt_is_causal_and_that_of_a_bert_is_not(regard, text_runs):
    from regard.view.maps import map_attention

    causal = map_attention(load(text_runs / "gpt"), "the cat sat")
    assert causal.mask == [[column <= row for column in range(len(causal.rows))] for row in range(len(causal.rows))]
    assert all(weight == 0 for y, row in enumerate(causal.weights) for x, weight in enumerate(row) if not causal.allows(y, x))
    assert map_attention(load(text_runs / "bert"), "the cat sat").mask is None
    assert_refused(regard("show", text_runs / "gpt", "the cat", "--which", "decoder"), "is for translators; a gpt has one stack")


def test_texts_with_brackets_are_not_parsed_as_markup(regard, text_runs):
    result = regard("embed", text_runs / "bert", "see [/b] there", "[red] mat")
    assert result.code == 0
    assert "see [/b] there" in result.out
    assert "[red] mat" in result.out


# -- mistakes


def test_a_verb_that_does_not_fit_the_run_is_refused_with_those_that_do(regard, text_runs):
    assert_refused(regard("translate", text_runs / "gpt", "a"), "family gpt", "regard generate")
    assert_refused(regard("generate", text_runs / "t5", "a"), "family t5", "regard translate or ask")
    assert_refused(regard("fill", text_runs / "gpt", "a [MASK]"), "regard generate")
    assert_refused(regard("classify", text_runs / "bert", "a"), "regard classify does not take", "init=")


def test_a_prompt_longer_than_the_context_is_refused(regard, text_runs):
    assert_refused(regard("generate", text_runs / "gpt", "the cat " * 10), "80 tokens", "context length is 24")
    assert_refused(regard("generate", text_runs / "gpt", "the cat", "--tokens", "300"), "7 tokens and 300 more", "at most 18")


def test_an_unknown_mask_token_is_refused(regard, text_runs):
    assert_refused(regard("fill", text_runs / "bert", "the <mask> sat"), "no [MASK] in", "write [MASK]")


def test_a_label_unknown_in_training_is_refused(regard, text_runs, tmp_path):
    (tmp_path / "new.tsv").write_text("a good film\tfor\na strange film\tneither\n")
    assert_refused(
        regard("score", text_runs / "classes", "--on", tmp_path / "new.tsv"), "'neither'", "never seen", "against, for"
    )


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--stream", "--json"), ("--stream", "--json")),
        (("--tokens", "0"), ("0 tokens", "1 or more")),
        (("--top-p", "2"), ("top_p 2.0",)),
        (("--temperature", "-1"), ("temperature -1.0",)),
        (("--stop", ""), ("empty stop string",)),
        (("--seed", "99999999999999999999"), ("seed 99999999999999999999",)),
        (("--precision", "int4"), ("precision 'int4'",)),
    ],
)
def test_invalid_options_of_generate_are_refused(regard, text_runs, words, wanted):
    assert_refused(regard("generate", text_runs / "gpt", "the cat", *words), *wanted)


def test_other_invalid_options_are_refused(regard, text_runs, tmp_path):
    assert_refused(regard("fill", text_runs / "bert", "a [MASK]", "--top", "0"), "--top 0")
    assert_refused(regard("classify", text_runs / "classes", "a", "--top", "0"), "--top 0")
    assert_refused(regard("embed", text_runs / "bert", "a", "--out", tmp_path / "v.txt"), ".npy")
    assert_refused(regard("ask", text_runs / "gpt", "a"), "regard ask does not take; use regard generate")
    assert_refused(regard("train", "gpt", "steps=3"), "did you mean train.steps?")
    assert_refused(regard("classify", text_runs / "clases", "a"), "did you mean 'classes'?")
    assert_refused(regard("embed", text_runs / "bert", "a", "--out", "nowhere/v.npy"), "no folder nowhere")
    assert_refused(regard("import", "/nowhere/at/all", "--to", "x"), "no folder /nowhere/at/all; check the path")
    assert_refused(regard("import", text_runs / "gpt", "--to", "x"), "already a run folder of regard")
    assert_refused(regard("import", text_runs / "gpt" / "config.json", "--to", "x"), "is a file; give its folder")
    assert_refused(regard("embed", text_runs / "bert", *"abcdefghijklmnopqrstuvwxyzabcdef"), "over 30 texts", "--out")
    assert_refused(regard("embed", text_runs / "bert", "a", "--out", tmp_path / "v.npy", "--json"), "--out", "--json")
    assert_refused(regard("score", text_runs / "gpt", "--beam", "3"), "--beam 3", "translations")
    assert_refused(regard("score", text_runs / "gpt", "--precision", "int8"), "--precision int8", "float32")
    assert_refused(
        regard("fill", text_runs / "classes", "a [MASK]"),
        "regard fill does not take",
        "train it to predict masked words",
        "init=",
    )
    assert_refused(regard("export", text_runs / "gpt", tmp_path / "o", "--to", "onnx"), "onnx", "hf")
    assert_refused(regard("show", text_runs / "gpt", "the cat", "--beam", "2"), "beam 2")


def test_a_run_without_its_labels_is_refused(regard, text_runs, tmp_path):
    shutil.copytree(text_runs / "classes", tmp_path / "run")
    (tmp_path / "run" / "labels.txt").unlink()
    assert_refused(regard("classify", tmp_path / "run", "a"), "labels.txt", "names 0 classes")


def test_a_resumed_run_keeps_its_task_and_its_initialization(regard, text_runs, tmp_path):
    shutil.copytree(text_runs / "classes", tmp_path / "run")
    how = ("train", "sst2", "--out", tmp_path / "run", "--resume")
    shutil.copytree(text_runs / "bert", tmp_path / "elsewhere")
    assert_refused(regard(*how, f"init={tmp_path}/elsewhere"), "--resume may change train and decode keys only")
    assert_refused(regard(*how, "task=masked_lm"), "--resume may change train and decode keys only")


def test_a_fine_tuned_run_resumes_without_the_run_it_started_from(regard, text_runs, tmp_path):
    shutil.copytree(text_runs / "bert", tmp_path / "bert")
    how = ("train", "sst2", f"init={tmp_path}/bert", "data.source=", f"data.train={text_runs}/rows.tsv",
           f"data.valid={text_runs}/rows.tsv", "data.max_len=24", "--out", tmp_path / "run", "--resume")  # fmt: skip
    assert regard(*how, "train.steps=2").code == 0
    shutil.rmtree(tmp_path / "bert")
    result = regard(*how, "train.steps=3")
    assert result.code == 0, result.err
    assert "after 3 steps" in result.out


def test_a_checkpoint_of_another_library_must_be_imported_first(regard, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    assert_refused(regard("generate", tmp_path, "a"), "gpt2 of another library", "regard import")


def test_import_refuses_a_folder_without_a_checkpoint_and_pickles(regard, tmp_path):
    assert_refused(regard("import", tmp_path, "--to", tmp_path / "run"), "config.json")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    assert_refused(regard("import", tmp_path, "--to", tmp_path / "run"), "pickle", "safe_serialization")
    assert not (tmp_path / "run").exists()
