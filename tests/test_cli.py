"""The command line: verbs for translation and training that succeed."""

import gzip
import importlib.metadata
import json
import os
import resource
import subprocess
import sys
from collections import Counter

import pytest
from cli_checks import write
from small import SMALL

from regard.cli import command
from regard.data.text.tokenizer import Tokenizer


def cpu_seconds(*words: str) -> float:
    """CPU time of a Python process, the least of three runs; a busy machine does not change it."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def test_help_does_not_import_torch():
    probe = (
        "import sys; sys.argv = ['regard', '--help']\n"
        "from regard.cli import main\ntry: main()\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True)


def test_help_takes_little_longer_than_importing_typer():
    assert cpu_seconds("-m", "regard", "--help") < 4 * cpu_seconds("-c", "import typer")


@pytest.mark.parametrize("verb", ["train", "translate", "score", "show", "cost", "recipes"])
def test_the_help_of_every_verb_has_an_example(regard, verb):
    result = regard(verb, "--help")
    assert result.code == 0
    assert f"regard {verb}" in result.out


def test_translate_keeps_the_order_of_sentences_and_empty_lines(regard, small_run):
    result = regard("translate", small_run, "a b c", "", "d e f g")
    assert result.code == 0
    assert len(result.out.splitlines()) == 3
    assert result.out.splitlines()[1] == ""


def test_translate_n_best_prints_number_rank_score_and_text(regard, small_run):
    rows = [
        line.split("\t") for line in regard("translate", small_run, "a b c", "c d", "--beam", 4, "--n-best", 3).out.splitlines()
    ]
    assert [(row[0], row[1]) for row in rows] == [(n, r) for n in "12" for r in "123"]
    scores = [float(row[2]) for row in rows]
    assert scores[:3] == sorted(scores[:3], reverse=True)


def test_translate_json_has_text_tokens_ids_score_and_the_n_best(regard, small_run):
    found = json.loads(regard("translate", small_run, "a b c", "--json", "--n-best", 2, "--beam", 2).out)
    assert found["source"] == "a b c"
    assert {"text", "tokens", "ids", "score", "n_best"} <= set(found)
    assert len(found["n_best"]) == 2
    assert found["n_best"][0]["text"] == found["text"]


def test_translate_json_has_a_score_for_greedy_answers_too(regard, small_run):
    assert json.loads(regard("translate", small_run, "a b c", "--json", "--beam", 1).out)["score"] < 0


def test_translate_reads_a_file_and_standard_input_alike(regard, small_run, tmp_path):
    lines = "a b c\nd e\n\nz y x\n"
    from_file = regard("translate", small_run, "--input", write(tmp_path / "in.txt", lines))
    command = [sys.executable, "-m", "regard", "translate", str(small_run)]
    from_stdin = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    assert from_file.out == from_stdin.stdout
    assert len(from_file.out.splitlines()) == 4


def test_samples_depend_on_the_seed_only(regard, small_run):
    once, again, other = (regard("translate", small_run, "a b c d e f", "--temperature", 3.0, "--seed", s).out for s in (1, 1, 2))
    assert once == again
    assert once != other


def test_precision_int8_translates_and_float32_is_the_default(regard, small_run):
    words = ("translate", small_run, "a b c", "", "d e f g")
    small = regard(*words, "--precision", "int8")
    assert (small.code, small.err) == (0, "")
    assert len(small.out.splitlines()) == 3
    assert small.out.splitlines()[1] == ""
    assert regard(*words, "--precision", "float32").out == regard(*words).out


def test_score_prints_metrics_with_signatures(regard, small_run):
    result = regard("score", small_run, "--on", "test")
    assert result.code == 0
    assert "version:" in result.out
    assert "chrF" in result.out
    assert "BLEU, lower-cased" in result.out
    assert len(json.loads(regard("score", small_run, "--on", "test", "--json").out)) == 4


def test_score_takes_a_users_file(regard, small_run, tmp_path):
    assert regard("score", small_run, "--on", write(tmp_path / "own.tsv", "a b\tb a\n")).code == 0


def test_cost_of_the_base_model_equals_the_papers_counts(regard):
    result = regard("cost", "transformer-base", "--json")
    parts = {part["name"]: part for part in json.loads(result.out)["transformer-base"]}
    assert parts["encoder"]["parameters"] + parts["decoder"]["parameters"] == 44_140_544
    assert parts["all"]["parameters"] == 63_084_544
    assert "63,084,544" in regard("cost", "transformer-base").out


def test_cost_takes_a_run_folder(regard, small_run):
    assert regard("cost", small_run).code == 0


def test_show_prints_a_grid_or_draws_a_file(regard, small_run, tmp_path):
    assert "cross-attention" in regard("show", small_run, "a b c").out
    assert regard("show", small_run, "a b c", "--out", tmp_path / "map.png").code == 0
    assert (tmp_path / "map.png").stat().st_size > 1000


def test_recipes_lists_the_recipes_of_train(regard):
    names = [line for line in regard("recipes").out.splitlines() if not line.startswith(" ")]
    assert {"multi30k", "multi30k-tok", "phrasebook", "reverse", "copy", "translate"} <= set(names)


@pytest.mark.parametrize("form", ["tsv", "tsv.gz", "pair", "jsonl"])
def test_train_reads_user_data_in_every_format(regard, tmp_path, form):
    pairs = [(f"a b {chr(97 + i % 26)}", f"{chr(97 + i % 26)} b a") for i in range(60)]
    tsv = "".join(f"{s}\t{t}\n" for s, t in pairs)
    if form == "tsv":
        what = write(tmp_path / "x.tsv", tsv)
    elif form == "tsv.gz":
        what = write(tmp_path / "x.tsv.gz", gzip.compress(tsv.encode()))
    elif form == "jsonl":
        what = write(tmp_path / "x.jsonl", "".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in pairs))
    else:
        left = write(tmp_path / "x.en", "".join(f"{s}\n" for s, _ in pairs))
        right = write(tmp_path / "x.de", "".join(f"{t}\n" for _, t in pairs))
        what = f"{left},{right}"
    result = regard("train", "translate", f"data.train={what}", f"data.valid={what}", "model=tiny", *SMALL, "train.steps=2",
                    "--out", tmp_path / "run")  # fmt: skip
    assert result.code == 0, result.err
    assert {"README.md", "config.json", "log.jsonl", "model.safetensors", "run.toml", "tokenizer.json"} <= set(
        os.listdir(tmp_path / "run")
    )


def test_a_card_states_data_licence_scores_and_the_command(small_run):
    card = (small_run / "README.md").read_text()
    assert f"regard train {small_run}/run.toml --out {small_run}-again\n" in card  # it was trained from Python
    assert f'regard translate {small_run} "…"\n' in card
    assert f'regard.load("{small_run}").translate(["…"])\n' in card
    for word in ("generated by regard", "BLEU", "chrF", "version:", "parameters", "minutes"):
        assert word in card


@pytest.mark.parametrize(
    ("verb", "run", "words"),
    [
        ("translate", "t5", ("--beam", "2")),
        ("ask", "t5", ("--json",)),
        ("ask", "spans", ()),
        ("classify", "classes", ()),
        ("embed", "bert", ()),
        ("show", "t5", ()),
        ("show", "gpt", ()),
    ],
)
def test_each_sentence_is_encoded_once(regard, text_runs, monkeypatch, verb, run, words):
    encoded: Counter[str] = Counter()

    def encode(tokenizer, lines, parse_special=False, original=Tokenizer.encode):
        encoded.update(lines)
        return original(tokenizer, lines, parse_special)

    monkeypatch.setattr(Tokenizer, "encode", encode)
    texts = ("the cat sat",) if verb == "show" else ("the cat sat", "on the mat", "the cat " * 40)
    result = regard(verb, text_runs / run, *texts, *words)
    assert result.out
    assert {text: encoded[text] for text in texts} == dict.fromkeys(texts, 1)


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["translate", "runs/none", "a"], 2)])
def test_the_program_has_the_exit_code_of_the_verb(words, code):
    done = subprocess.run([sys.executable, "-m", "regard", *words], capture_output=True, text=True)
    assert done.returncode == code, done.stderr


def test_the_console_script_is_the_program():
    [script] = [point for point in importlib.metadata.entry_points(group="console_scripts") if point.name == "regard"]
    assert script.load() is command
