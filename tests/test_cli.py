"""The command line as a stranger meets it: what works, and what each mistake says."""

import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file, save
from small import SMALL


def refuses(said, *words):
    """A mistake is exit 2, one line on standard error, nothing on standard output."""
    assert said.code == 2, said
    assert said.out == ""
    lines = [line for line in said.err.splitlines() if line.startswith("regard: ")]
    assert len(lines) == 1, said.err
    assert "Traceback" not in said.err
    for word in words:
        assert str(word) in lines[0], f"{word!r} not in {lines[0]!r}"


def write(file: Path, content: bytes | str) -> Path:
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


# -- what works


def test_help_does_not_import_torch_and_is_quick():
    probe = (
        "import sys; sys.argv = ['regard', '--help']\n"
        "from regard.cli import main\ntry: main()\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True)
    times = {"-c 'import typer'": [], "-m regard --help": []}
    for words, taken in [*times.items()] * 3:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *shlex.split(words)], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    least, help_ = map(min, times.values())
    assert help_ < 4 * least  # of a core, so that neither a busy machine nor a slow one matters


@pytest.mark.parametrize("verb", ["train", "translate", "score", "show", "cost", "recipes"])
def test_every_verb_has_help_with_a_command_that_begins_with_regard(regard, verb):
    said = regard(verb, "--help")
    assert said.code == 0
    assert f"regard {verb}" in said.out


def test_translate_answers_each_sentence_in_order_and_keeps_empty_lines(regard, small_run):
    said = regard("translate", small_run, "a b c", "", "d e f g")
    assert said.code == 0
    assert len(said.out.splitlines()) == 3
    assert said.out.splitlines()[1] == ""


def test_translate_n_best_prints_number_rank_score_and_text(regard, small_run):
    rows = [
        line.split("\t")
        for line in regard("translate", small_run, "a b c", "c d", "--beam", 4, "--n-best", 3).out.splitlines()
    ]
    assert [(row[0], row[1]) for row in rows] == [(n, r) for n in "12" for r in "123"]
    scores = [float(row[2]) for row in rows]
    assert scores[:3] == sorted(scores[:3], reverse=True)


def test_translate_json_holds_text_tokens_score_and_the_n_best(regard, small_run):
    found = json.loads(regard("translate", small_run, "a b c", "--json", "--n-best", 2, "--beam", 2).out)
    assert found["source"] == "a b c"
    assert {"text", "tokens", "score", "n_best"} <= set(found)
    assert len(found["n_best"]) == 2
    assert found["n_best"][0]["text"] == found["text"]


def test_translate_json_has_a_score_also_where_none_is_needed_to_find_it(regard, small_run):
    assert json.loads(regard("translate", small_run, "a b c", "--json", "--beam", 1).out)["score"] < 0


def test_translate_reads_a_file_and_standard_input_alike(small_run, tmp_path):
    lines = "a b c\nd e\n\nz y x\n"
    file = write(tmp_path / "in.txt", lines)
    command = [sys.executable, "-m", "regard", "translate", str(small_run)]
    from_file = subprocess.run([*command, "--input", str(file)], capture_output=True, text=True, check=True)
    from_stdin = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    assert from_file.stdout == from_stdin.stdout
    assert len(from_file.stdout.splitlines()) == 4


def test_samples_are_the_same_for_the_same_seed(regard, small_run):
    once, again, other = (
        regard("translate", small_run, "a b c d e f", "--temperature", 3.0, "--seed", s).out for s in (1, 1, 2)
    )
    assert once == again
    assert once != other


def test_precision_int8_translates_and_float32_is_as_without_it(regard, small_run):
    words = ("translate", small_run, "a b c", "", "d e f g")
    small = regard(*words, "--precision", "int8")
    assert (small.code, small.err) == (0, "")
    assert len(small.out.splitlines()) == 3
    assert small.out.splitlines()[1] == ""
    assert regard(*words, "--precision", "float32").out == regard(*words).out


def test_score_prints_figures_with_signatures(regard, small_run):
    said = regard("score", small_run, "--on", "test")
    assert said.code == 0
    assert "version:" in said.out
    assert "chrF" in said.out
    assert "tokenised, lower-cased" in said.out
    assert len(json.loads(regard("score", small_run, "--on", "test", "--json").out)) == 4


def test_score_takes_a_file_of_ones_own(regard, small_run, tmp_path):
    assert regard("score", small_run, "--on", write(tmp_path / "own.tsv", "a b\tb a\n")).code == 0


def test_cost_of_base_names_the_counts_of_the_paper(regard):
    said = regard("cost", "transformer-base", "--json")
    parts = {part["name"]: part for part in json.loads(said.out)["transformer-base"]}
    assert parts["encoder"]["parameters"] + parts["decoder"]["parameters"] == 44_140_544
    assert parts["all"]["parameters"] == 63_084_544
    assert "63,084,544" in regard("cost", "transformer-base").out


def test_cost_takes_a_run_folder(regard, small_run):
    assert regard("cost", small_run).code == 0


def test_show_prints_a_grid_and_draws_a_picture(regard, small_run, tmp_path):
    assert "cross-attention" in regard("show", small_run, "a b c").out
    assert regard("show", small_run, "a b c", "--out", tmp_path / "map.png").code == 0
    assert (tmp_path / "map.png").stat().st_size > 1000


def test_recipes_lists_what_train_takes(regard):
    names = [line for line in regard("recipes").out.splitlines() if not line.startswith(" ")]
    assert {"multi30k", "multi30k-tok", "phrasebook", "reverse", "copy", "translate"} <= set(names)


@pytest.mark.parametrize("form", ["tsv", "tsv.gz", "pair", "jsonl"])
def test_train_reads_own_data_in_every_form(regard, tmp_path, form):
    import gzip

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
    said = regard(
        "train",
        "translate",
        f"data.train={what}",
        f"data.valid={what}",
        "model=tiny",
        *SMALL,
        "train.steps=2",
        "--out",
        tmp_path / "run",
    )
    assert said.code == 0, said.err
    assert {"README.md", "config.json", "log.jsonl", "model.safetensors", "run.toml", "tokenizer.json"} <= set(
        os.listdir(tmp_path / "run")
    )


def test_a_card_states_data_licence_scores_and_the_command(small_run):
    card = (small_run / "README.md").read_text()
    for word in ("regard train reverse", "generated by regard", "BLEU", "chrF", "version:", "parameters", "minutes"):
        assert word in card


# -- mistakes


def test_an_unknown_recipe_names_the_nearest(regard):
    refuses(regard("train", "multi30"), "multi30", "did you mean 'multi30k'")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.step=5", ("train.step", "did you mean 'steps'")),
        ("trian.steps=5", ("trian", "did you mean 'train'")),
        ("train.steps=many", ("train.steps", "integer", "'many'")),
        ("train.steps=0", ("steps is 0", "use 1 or more")),
        ("train.steps", ("train.steps", "table.key=value")),
        ("model=tinny", ("tinny", "did you mean 'tiny'")),
        ("model.family=transfomer", ("transfomer", "did you mean 'transformer'")),
        ("model.dim=100", ("width 100 does not split into 8 heads",)),
        ("model.dropout=1.5", ("dropout is 1.5",)),
        ("model.vocab=5", ("data.vocab",)),
        ("data.source=tatoeba-en-itt", ("tatoeba-en-itt", "did you mean 'tatoeba-en-it'")),
        ("train.device=gpu", ("gpu", "cpu")),
    ],
)
def test_a_wrong_key_or_value_is_one_line(regard, tmp_path, change, words):
    heads = ("model.heads=8",) if "dim" in change else ()
    refuses(regard("train", "reverse", *heads, change, "--out", tmp_path / "run"), *words)


def test_a_missing_file_is_named(regard, tmp_path):
    refuses(
        regard("train", "translate", "data.train=none.tsv", "data.valid=none.tsv", "--out", tmp_path / "run"),
        "none.tsv",
    )
    refuses(regard("train", tmp_path / "none.toml"), "none.toml")


def test_no_data_at_all_says_which_key(regard, tmp_path):
    refuses(regard("train", "translate", "--out", tmp_path / "run"), "data.train")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ("empty",)),
        ("\n\n", ("empty",)),
        ("a\tb\nno tab here\n", ("line 2", "tab")),
        (b"a\tb\nc\xff\td\n", ("line 2", "byte 2", "0xff")),
        (b"a\tb\n\x00\x01\x02\n", ("line 2", "binary")),
        ("a\t\n\tb\n", ("empty side",)),
    ],
)
def test_a_bad_corpus_is_refused_with_its_line(regard, tmp_path, content, words):
    bad, good = write(tmp_path / "bad.tsv", content), write(tmp_path / "good.tsv", "a b\tb a\n")
    refuses(regard("train", "translate", f"data.train={bad}", f"data.valid={good}", "--out", tmp_path / "run"), *words)
    refuses(
        regard("train", "translate", f"data.train={good}", f"data.valid={bad}", "--out", tmp_path / "other"),
        "bad.tsv",
    )


def test_a_training_that_found_no_data_leaves_the_folder_free(regard, tmp_path):
    bad, good = write(tmp_path / "bad.tsv", "x y z"), write(tmp_path / "good.tsv", "a b\tb a\n" * 20)
    for train, valid, code in ((good, bad, 2), (bad, good, 2), (good, good, 0)):
        said = regard("train", "translate", f"data.train={train}", f"data.valid={valid}", "model=tiny", *SMALL, "train.steps=1",
                      "--out", tmp_path / "run")  # fmt: skip
        assert said.code == code, said.err


def test_misaligned_files_are_refused_with_the_line(regard, tmp_path):
    left, right = write(tmp_path / "x.en", "a\nb\nc\n"), write(tmp_path / "x.de", "a\nb\n")
    refuses(
        regard(
            "train", "translate", f"data.train={left},{right}", f"data.valid={left},{right}", "--out", tmp_path / "run"
        ),
        "x.de",
        "line 2",
        "x.en",
    )


def test_a_second_training_in_the_same_folder_needs_a_decision(regard, small_run):
    refuses(regard("train", "reverse", "--out", small_run), "--resume", "--fresh", "--out")
    refuses(regard("train", "reverse", "--out", small_run, "--resume", "--fresh"), "one of them")
    refuses(regard("train", "reverse", "--out", small_run, "--resume", "model.dim=32"), "another model")


def test_two_trainings_cannot_share_a_folder_at_once(regard, small_run, tmp_path):
    from regard.data.files import lock_folder

    shutil.copytree(small_run, tmp_path / "run")
    with lock_folder(tmp_path / "run"):
        refuses(regard("train", "reverse", "--out", tmp_path / "run", "--resume"), "another training is at work")


def test_a_sentence_of_a_hundred_thousand_characters_is_refused_with_the_limit(regard, small_run):
    start = time.process_time()
    refuses(regard("translate", small_run, "a b " * 25_000), "sentence 1", "at most 256")
    assert time.process_time() - start < 20  # it takes a hundredth of that


def test_what_stands_before_a_sentence_too_long_is_translated_first(regard, small_run):
    said = regard("translate", small_run, "a b", "c d", "a b " * 25_000, "e f")
    assert said.code == 2
    assert len(said.out.splitlines()) == 2
    assert "sentence 3" in said.err


def test_a_folder_that_is_no_run_is_refused(regard, tmp_path):
    refuses(regard("translate", tmp_path, "a"), "not a run folder")
    refuses(regard("translate", tmp_path / "none", "a"), "not a run folder")


def damaged(small_run: Path, tmp_path: Path, name: str, content: bytes | None) -> Path:
    folder = tmp_path / "damaged"
    shutil.copytree(small_run, folder)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "run.toml"])
@pytest.mark.parametrize("how", ["missing", "empty", "cut", "garbage"])
def test_a_damaged_run_folder_is_refused_by_the_name_of_the_file(regard, small_run, tmp_path, name, how):
    whole = (small_run / name).read_bytes()
    content = {"missing": None, "empty": b"", "cut": whole[: len(whole) // 2], "garbage": b"\xff\x00garbage" * 50}[how]
    refuses(regard("translate", damaged(small_run, tmp_path, name, content), "a b"), name)


@pytest.mark.parametrize("how", [(), ("--beam", "1"), ("--temperature", "1"), ("--precision", "int8")])
def test_weights_that_are_not_numbers_are_refused_however_they_are_used(regard, small_run, tmp_path, how):
    weights = load_file(small_run / "model.safetensors")
    weights["decoder.0.cross_residual.norm.weight"][0] = float("nan")
    folder = damaged(small_run, tmp_path, "model.safetensors", save(weights))
    refuses(regard("translate", folder, "a b", *how), "model.safetensors", "decoder.0.cross_residual.norm.weight")


def test_a_beam_too_wide_for_the_memory_is_refused_in_one_line(regard, small_run):
    refuses(regard("translate", small_run, "a b c d e", "--beam", "1000000000000"), "not enough memory", "--beam")


def test_a_run_folder_of_another_version_is_refused(regard, small_run, tmp_path):
    config = json.loads((small_run / "config.json").read_text()) | {"format": 99, "regard_version": "9.9"}
    refuses(
        regard("translate", damaged(small_run, tmp_path, "config.json", json.dumps(config).encode()), "a b"),
        "9.9",
        "format 99",
    )


def test_a_tokenizer_of_another_vocabulary_is_refused(regard, small_run, tmp_path):
    from regard.data.text.tokenizer import train_bpe

    train_bpe(["quite other words", "than those"], 90).save(tmp_path / "other.json")
    folder = damaged(small_run, tmp_path, "tokenizer.json", (tmp_path / "other.json").read_bytes())
    refuses(regard("translate", folder, "a b"), "tokenizer.json", "vocabulary")


def test_weights_of_another_shape_are_refused_by_the_name_of_the_tensor(regard, small_run, tmp_path):
    config = json.loads((small_run / "config.json").read_text()) | {"dim": 32}
    refuses(
        regard("translate", damaged(small_run, tmp_path, "config.json", json.dumps(config).encode()), "a"),
        "does not fit",
        "(",
    )


def test_bad_decoding_options_are_refused(regard, small_run):
    refuses(regard("translate", small_run, "a", "--beam", 0), "beam 0")
    refuses(regard("translate", small_run, "a", "--beam", 2, "--n-best", 3), "n_best 3")
    refuses(regard("translate", small_run, "a", "--temperature", 0), "temperature 0")
    refuses(regard("translate", small_run, "a", "--batch", 0), "batch 0")
    refuses(regard("translate", small_run, "a", "--input", "x.txt"), "one of them")
    refuses(regard("show", small_run, ""), "empty sentence")
    refuses(regard("show", small_run, "a b", "--layer", 7), "no layer 7")
    refuses(regard("show", small_run, "a b", "--out", "map.gif"), "map.gif", ".png")
    refuses(regard("cost", "transformer-bass"), "did you mean 'transformer-base'")
    refuses(regard("score", small_run, "--on", "tset"), "tset", "did you mean 'test'")


@pytest.mark.parametrize("verb", [("translate", "a b"), ("score", "--on", "test")], ids=["translate", "score"])
def test_an_unknown_precision_is_one_line_with_the_known_ones(regard, small_run, verb):
    name, *words = verb
    refuses(regard(name, small_run, *words, "--precision", "int4"), "int4", "float32", "int8")


def test_a_machine_that_cannot_do_int8_is_one_line_with_the_way_out(regard, small_run, monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))  # as a trial that died
    refuses(regard("translate", small_run, "a b", "--precision", "int8"), "int8 does not run", "--precision float32")


def test_options_that_would_do_nothing_are_refused(regard, small_run, tmp_path):
    refuses(regard("translate", small_run, "a", "--top-k", 3), "temperature")
    refuses(regard("translate", small_run, "a", "--temperature", 1, "--n-best", 2), "n_best 2")
    refuses(regard("train", "reverse", "data.train=x.tsv", "--out", tmp_path / "run"), "source=reverse", "data.source=")
    refuses(
        regard("train", "translate", "data.source=tatoeba-en-it", "data.pair=it-en", "--out", tmp_path / "run"),
        "it-en",
        "en-it",
    )


def test_fresh_deletes_a_run_only_once_the_new_data_is_good(regard, small_run, tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(small_run, run)
    before = (run / "model.safetensors").read_bytes()
    refuses(regard("train", "translate", "data.train=no.tsv", "data.valid=no.tsv", "--fresh", "--out", run), "no.tsv")
    assert (run / "model.safetensors").read_bytes() == before
    other.mkdir()
    write(other / "thesis.txt", "years of work")
    refuses(regard("train", "reverse", "--fresh", "--out", other), "other things")
    assert (other / "thesis.txt").exists()
    write(run / "notes.txt", "mine")
    assert regard("train", "reverse", *SMALL, "train.steps=1", "--fresh", "--out", run).code == 0
    assert (run / "notes.txt").exists()
    assert [p.name for p in (run / "checkpoints").glob("step-*")] == ["step-00000001"]


def test_a_held_out_sentence_too_long_for_the_model_does_not_end_the_training(regard, tmp_path):
    train = write(tmp_path / "train.tsv", "a b c\tc b a\n" * 50)
    valid = write(tmp_path / "valid.tsv", "a b " * 90 + "\tx\n" + "a b c\tc b a\n" * 4 + "b " * 90 + "\ty\n")
    said = regard("train", "translate", f"data.train={train}", f"data.valid={valid}", "data.max_len=20", "model=tiny", *SMALL,
                  "train.steps=2", "--out", tmp_path / "run")  # fmt: skip
    assert said.code == 0, said.err
    said = regard("score", tmp_path / "run", "--on", valid)
    assert said.code == 0
    assert "2 of 6 sentences are too long" in said.err


def test_a_diverging_training_stops_before_it_is_saved(regard, tmp_path):
    wild = ("train.save_every=1", "train.lr=1e30", "train.warmup=1", "train.clip_norm=0.0")
    refuses(regard("train", "reverse", *SMALL, "train.steps=30", *wild, "--out", tmp_path / "run"), "train.lr")
    saved = list((tmp_path / "run" / "checkpoints").glob("step-*/model.safetensors"))
    assert saved
    for file in saved:
        assert all(weight.isfinite().all() for weight in load_file(file).values())


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("translate", "{run}/model.safetensors", "a"), "not a run folder"),
        (("train", "{tmp}/folder.toml"), "folder"),
        (("train", "reverse", "--out", "{run}/config.json"), "is a file"),
        (("show", "{run}", "a b", "--out", "{tmp}/no/such/x.png"), "no folder"),
        (("translate", "{run}", "a", "--device", "cpu:x"), "cpu:x"),
        (("translate", "{run}", "a", "--device", "cuda:99"), "cuda:99"),
        (("train", "reverse", "licence.x=1"), "licence"),
        (("train", "reverse", "name="), "name"),
        (("train", "reverse", "name=../x"), "name"),
        (("translate", "{run}", "a", "--length-penalty", "1000"), "length_penalty"),
        (("translate", "{run}", "a", "--temperature", "1", "--seed", "99999999999999999999"), "seed"),
        (("translate", "{run}", "a", "--beem", "3"), "--beem"),
        (("translate",), "run"),
        (("tranlsate", "x"), "tranlsate"),
    ],
)
def test_odd_input_is_one_line_too(regard, small_run, tmp_path, words, hint):
    (tmp_path / "folder.toml").mkdir()
    refuses(regard(*(word.format(run=small_run, tmp=tmp_path) for word in words)), hint)


def test_a_resume_of_a_run_of_another_version_is_refused(regard, small_run, tmp_path):
    config = json.loads((small_run / "config.json").read_text()) | {"format": 99}
    folder = damaged(small_run, tmp_path, "config.json", json.dumps(config).encode())
    refuses(regard("train", "reverse", "--resume", "--out", folder), "format 99")


def test_a_reader_that_has_seen_enough_is_no_error(small_run):
    command = f"{shlex.quote(sys.executable)} -m regard recipes | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_is_one_line_and_the_checkpoint_before_is_whole(regard, small_run, tmp_path, monkeypatch):
    import errno

    from regard.train import checkpoint

    folder = tmp_path / "run"
    shutil.copytree(small_run, folder)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        said = regard("train", "reverse", "--out", folder, "--resume", *SMALL, "train.steps=20")
    refuses(said, "No space left on device", "--resume")
    assert not list(folder.glob("checkpoints/.part*"))
    said = regard("train", "reverse", "--out", folder, "--resume", *SMALL, "train.steps=15")
    assert said.code == 0
    assert "resumed at step 10" in said.err


def test_ctrl_c_while_a_library_is_imported_is_an_interruption(regard, monkeypatch):
    def broken(name):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("cannot load module more than once per process") from None

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("regard.models.sized", broken)
    said = regard("cost", "transformer-base")
    assert (said.code, said.out, said.err) == (130, "", "regard: interrupted\n")
    assert signal.getsignal(signal.SIGINT) is before
