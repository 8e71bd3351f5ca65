"""The command line: each mistake is one line that names it and a remedy."""

import errno
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_checks import assert_refused, write
from safetensors.torch import load_file, save
from small import SMALL


def test_an_unknown_recipe_suggests_the_nearest(regard):
    assert_refused(regard("train", "multi30"), "multi30", "did you mean 'multi30k'")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.step=5", ("train.step", "did you mean 'train.steps'")),
        ("data.trian=a.tsv", ("data.trian", "did you mean 'data.train'")),
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
    assert_refused(regard("train", "reverse", *heads, change, "--out", tmp_path / "run"), *words)


def test_a_missing_file_is_named(regard, tmp_path):
    assert_refused(
        regard("train", "translate", "data.train=none.tsv", "data.valid=none.tsv", "--out", tmp_path / "run"), "none.tsv"
    )
    assert_refused(regard("train", tmp_path / "none.toml"), "none.toml")


def test_missing_data_is_refused_with_its_key(regard, tmp_path):
    assert_refused(regard("train", "translate", "--out", tmp_path / "run"), "data.train")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ("empty",)),
        ("\n\n", ("empty",)),
        ("a\tb\nno tab here\nnor here\n", ("line 2", "tab")),
        (b"a\tb\n" + b"c\xff\td\n" * 3, ("line 2", "byte 2", "0xff")),
        (b"a\tb\n\x00\x01\x02\n", ("line 2", "binary")),
        ("a\t\n\tb\n", ("empty side",)),
    ],
)
def test_a_bad_corpus_is_refused_with_its_line(regard, tmp_path, content, words):
    bad, good = write(tmp_path / "bad.tsv", content), write(tmp_path / "good.tsv", "a b\tb a\n")
    assert_refused(regard("train", "translate", f"data.train={bad}", f"data.valid={good}", "--out", tmp_path / "run"), *words)
    assert_refused(
        regard("train", "translate", f"data.train={good}", f"data.valid={bad}", "--out", tmp_path / "other"), "bad.tsv"
    )


def test_a_training_without_valid_data_leaves_its_folder_usable(regard, tmp_path):
    bad, good = write(tmp_path / "bad.tsv", "x y z"), write(tmp_path / "good.tsv", "a b\tb a\n" * 20)
    for train, valid, code in ((good, bad, 2), (bad, good, 2), (good, good, 0)):
        result = regard("train", "translate", f"data.train={train}", f"data.valid={valid}", "model=tiny", *SMALL, "train.steps=1",
                      "--out", tmp_path / "run")  # fmt: skip
        assert result.code == code, result.err


def test_misaligned_files_are_refused_with_the_line(regard, tmp_path):
    left, right = write(tmp_path / "x.en", "a\nb\nc\n"), write(tmp_path / "x.de", "a\nb\n")
    assert_refused(
        regard("train", "translate", f"data.train={left},{right}", f"data.valid={left},{right}", "--out", tmp_path / "run"),
        "x.de",
        "line 2",
        "x.en",
    )


def test_a_second_training_in_the_same_folder_needs_resume_or_fresh(regard, small_run):
    assert_refused(regard("train", "reverse", "--out", small_run), "--resume", "--fresh", "--out")
    assert_refused(regard("train", "reverse", "--out", small_run, "--resume", "--fresh"), "one of them")
    assert_refused(
        regard("train", "reverse", "--out", small_run, "--resume", "model.dim=32"),
        "trained with model.dim=16, model.dim=32 was asked for",
    )


def test_two_trainings_cannot_share_a_folder_at_once(regard, small_run, tmp_path):
    from regard.run_folder import RunFolder

    shutil.copytree(small_run, tmp_path / "run")
    with RunFolder(tmp_path / "run").locked():
        assert_refused(regard("train", "reverse", "--out", tmp_path / "run", "--resume"), "another training is running in")


def timed(run) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def test_a_sentence_of_a_hundred_thousand_characters_is_refused_with_the_limit_before_decoding(regard, small_run):
    short = timed(lambda: regard("translate", small_run, "--no-split", "a b " * 60))
    whole = ("translate", small_run, "--no-split", "a b " * 25_000)
    long = timed(lambda: assert_refused(regard(*whole), "sentence 1", "at most 256"))
    assert long < 10 * short  # encoding only: it is not translated


def test_a_too_long_sentence_is_skipped_and_marked_and_the_others_are_translated(regard, small_run):
    texts = ("a b", "c d", "a b " * 25_000, "e f")
    result = regard("translate", small_run, "--no-split", *texts)
    assert result.code == 0
    assert [bool(line) for line in result.out.splitlines()][2:] == [False, True]
    assert result.err.startswith("regard: skipped 1 of 4: sentence 3 has 50,000 tokens")
    strict = regard("translate", small_run, "--no-split", "--strict", *texts)
    assert (strict.code, strict.out, strict.err) == (2, result.out, result.err)
    lines = [json.loads(line) for line in regard("translate", small_run, "--no-split", "--json", *texts).out.splitlines()]
    assert ["error" in line for line in lines] == [False, False, True, False]
    assert "sentence 3" in lines[2]["error"]


def test_a_too_long_sentence_is_cut_and_reported_if_texts_are_split(regard, small_run):
    result = regard("translate", small_run, "a b " * 200)
    assert result.code == 0
    assert result.err == "1 sentence longer than this model takes, translated in pieces\n"


def test_lines_that_are_not_text_are_skipped_and_listed_at_the_end(regard, small_run, tmp_path):
    file = write(tmp_path / "in.txt", b"a b\n\xff\xfe\nc d\n\xe9\n")
    result = regard("translate", small_run, "--input", file)
    assert result.code == 0
    assert len(result.out.splitlines()) == 4
    first, *rest = result.err.splitlines()
    assert first == "regard: skipped 2 of 4:"
    assert [line.split(";")[0] for line in rest] == [
        f"  {file} line {n} is not UTF-8 at byte 1 (0x{b})" for n, b in ((2, "ff"), (4, "e9"))
    ]
    assert_refused(
        regard("translate", small_run, "--input", write(tmp_path / "bad.txt", b"\xff\n")), "bad.txt line 1 is not UTF-8"
    )


def test_an_unknown_command_is_refused_with_the_nearest(regard):
    assert_refused(regard("--", "tranlsate"), "no command 'tranlsate'")
    assert_refused(regard("tranlsate", "x"), "no command 'tranlsate' (did you mean 'translate'?)", "commands are train, recipes")
    result = regard("summarize", "x")
    assert_refused(result, "no command 'summarize'")
    assert "summarize --help" not in result.err


@pytest.mark.parametrize("name", ["\x1b[31mred", "a\x07b", "\x9b2J", "x\u202etxt.exe", "two\nlines"])
def test_control_characters_of_names_do_not_reach_the_terminal(regard, small_run, name):
    for words in (("score", name), (name,), ("train", name), ("translate", small_run, "--input", name)):
        result = regard(*words)
        assert result.code == 2
        assert result.err.isprintable() or result.err[:-1].isprintable()


def test_a_folder_without_a_run_is_refused(regard, tmp_path):
    assert_refused(regard("translate", tmp_path, "a"), "not a run folder")
    assert_refused(regard("translate", tmp_path / "none", "a"), "not a run folder")


def damaged(small_run: Path, tmp_path: Path, name: str, content: bytes | None) -> Path:
    folder = tmp_path / "damaged"
    shutil.copytree(small_run, folder)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "run.toml"])
@pytest.mark.parametrize("how", ["missing", "empty", "cut", "garbage"])
def test_a_damaged_run_folder_is_refused_with_the_damaged_file(regard, small_run, tmp_path, name, how):
    whole = (small_run / name).read_bytes()
    content = {"missing": None, "empty": b"", "cut": whole[: len(whole) // 2], "garbage": b"\xff\x00garbage" * 50}[how]
    assert_refused(regard("translate", damaged(small_run, tmp_path, name, content), "a b"), name)


@pytest.mark.parametrize("how", [(), ("--beam", "1"), ("--temperature", "1"), ("--precision", "int8")])
def test_weights_with_nan_are_refused_by_every_decoding(regard, small_run, tmp_path, how):
    weights = load_file(small_run / "model.safetensors")
    weights["decoder.0.cross_residual.norm.weight"][0] = float("nan")
    folder = damaged(small_run, tmp_path, "model.safetensors", save(weights))
    assert_refused(regard("translate", folder, "a b", *how), "model.safetensors", "decoder.0.cross_residual.norm.weight")


def test_a_beam_that_exceeds_memory_is_refused_in_one_line(regard, small_run):
    assert_refused(regard("translate", small_run, "a b c d e", "--beam", "1000000000000"), "not enough memory", "--beam")


def test_a_run_folder_of_another_version_is_refused(regard, small_run, tmp_path):
    config = json.loads((small_run / "config.json").read_text()) | {"format": 99, "regard_version": "9.9"}
    assert_refused(
        regard("translate", damaged(small_run, tmp_path, "config.json", json.dumps(config).encode()), "a b"), "9.9", "format 99"
    )


def test_a_tokenizer_of_another_vocabulary_is_refused(regard, small_run, tmp_path):
    from regard.data.text.tokenizer import train_bpe

    train_bpe(["quite other words", "than those"], 90).save(tmp_path / "other.json")
    folder = damaged(small_run, tmp_path, "tokenizer.json", (tmp_path / "other.json").read_bytes())
    assert_refused(regard("translate", folder, "a b"), "tokenizer.json", "vocabulary")


def test_weights_of_another_shape_are_refused_with_the_tensor(regard, small_run, tmp_path):
    config = json.loads((small_run / "config.json").read_text()) | {"dim": 32}
    assert_refused(
        regard("translate", damaged(small_run, tmp_path, "config.json", json.dumps(config).encode()), "a"), "does not fit", "("
    )


def test_bad_decoding_options_are_refused(regard, small_run):
    assert_refused(regard("translate", small_run, "a", "--beam", 0), "beam 0")
    assert_refused(regard("translate", small_run, "a", "--beam", 2, "--n-best", 3), "n_best 3")
    assert_refused(regard("translate", small_run, "a", "--temperature", 0), "temperature 0")
    assert_refused(regard("translate", small_run, "a", "--batch", 0), "batch 0")
    assert_refused(regard("translate", small_run, "a", "--input", "x.txt"), "one of them")
    assert_refused(regard("show", small_run, ""), "empty sentence")
    assert_refused(regard("show", small_run, "a b", "--layer", 7), "no layer 7")
    assert_refused(regard("show", small_run, "a b", "--out", "map.gif"), "map.gif", ".png")
    assert_refused(regard("cost", "transformer-bass"), "did you mean 'transformer-base'")
    assert_refused(regard("score", small_run, "--on", "tset"), "tset", "did you mean 'test'")


@pytest.mark.parametrize("verb", [("translate", "a b"), ("score", "--on", "test")], ids=["translate", "score"])
def test_an_unknown_precision_is_refused_with_the_known_ones(regard, small_run, verb):
    name, *words = verb
    assert_refused(regard(name, small_run, *words, "--precision", "int4"), "int4", "float32", "int8")


def test_a_machine_without_int8_is_refused_with_a_remedy(regard, small_run, monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))  # as a trial that died
    assert_refused(regard("translate", small_run, "a b", "--precision", "int8"), "int8 does not run", "--precision float32")


def test_options_without_effect_are_refused(regard, small_run, tmp_path):
    assert_refused(regard("translate", small_run, "a", "--top-k", 3), "temperature")
    assert_refused(regard("translate", small_run, "a", "--temperature", 1, "--n-best", 2), "n_best 2")
    assert_refused(regard("train", "reverse", "data.train=x.tsv", "--out", tmp_path / "run"), "source=reverse", "data.source=")
    assert_refused(
        regard("train", "translate", "data.source=tatoeba-en-it", "data.pair=it-en", "--out", tmp_path / "run"), "it-en", "en-it"
    )


def test_fresh_deletes_a_run_only_after_the_new_data_is_read(regard, small_run, tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(small_run, run)
    before = (run / "model.safetensors").read_bytes()
    assert_refused(regard("train", "translate", "data.train=no.tsv", "data.valid=no.tsv", "--fresh", "--out", run), "no.tsv")
    assert (run / "model.safetensors").read_bytes() == before
    other.mkdir()
    write(other / "thesis.txt", "years of work")
    assert_refused(regard("train", "reverse", "--fresh", "--out", other), "other files")
    assert (other / "thesis.txt").exists()
    write(run / "notes.txt", "mine")
    assert regard("train", "reverse", *SMALL, "train.steps=1", "--fresh", "--out", run).code == 0
    assert (run / "notes.txt").exists()
    assert [p.name for p in (run / "checkpoints").glob("step-*")] == ["step-00000001"]


def test_a_too_long_validation_sentence_does_not_end_the_training(regard, tmp_path):
    train = write(tmp_path / "train.tsv", "a b c\tc b a\n" * 50)
    valid = write(tmp_path / "valid.tsv", "a b " * 90 + "\tx\n" + "a b c\tc b a\n" * 4 + "b " * 90 + "\ty\n")
    result = regard("train", "translate", f"data.train={train}", f"data.valid={valid}", "data.max_len=20", "model=tiny", *SMALL,
                  "train.steps=2", "--out", tmp_path / "run")  # fmt: skip
    assert result.code == 0, result.err
    result = regard("score", tmp_path / "run", "--on", valid)
    assert result.code == 0
    assert "2 of 6 sentences are too long" in result.err


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
        (("score",), "run"),
        (("tranlsate", "x"), "tranlsate"),
    ],
)
def test_unusual_mistakes_are_one_line_too(regard, small_run, tmp_path, words, hint):
    (tmp_path / "folder.toml").mkdir()
    assert_refused(regard(*(word.format(run=small_run, tmp=tmp_path) for word in words)), hint)


def test_resuming_a_run_of_another_version_is_refused(regard, small_run, tmp_path):
    config = json.loads((small_run / "config.json").read_text()) | {"format": 99}
    folder = damaged(small_run, tmp_path, "config.json", json.dumps(config).encode())
    assert_refused(regard("train", "reverse", "--resume", "--out", folder), "format 99")


def test_a_closed_pipe_is_not_an_error(small_run):
    command = f"{shlex.quote(sys.executable)} -m regard recipes | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_is_one_line_and_keeps_the_last_checkpoint(regard, small_run, tmp_path, monkeypatch):
    from regard.train import checkpoint

    folder = tmp_path / "run"
    shutil.copytree(small_run, folder)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        result = regard("train", "reverse", "--out", folder, "--resume", *SMALL, "train.steps=20")
    assert_refused(result, "No space left on device", "--resume")
    assert not list(folder.glob("checkpoints/.part*"))
    result = regard("train", "reverse", "--out", folder, "--resume", *SMALL, "train.steps=15")
    assert result.code == 0
    assert "resumed at step 10" in result.err


def test_ctrl_c_during_an_import_is_an_interruption(regard, monkeypatch):
    def broken(name):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("cannot load module more than once per process") from None

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("regard.models.preset", broken)
    result = regard("cost", "transformer-base")
    assert (result.code, result.out, result.err) == (130, "", "regard: interrupted\n")
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_during_a_translation_is_said_in_one_line(regard, small_run, monkeypatch):
    def interrupted(self, *args, **options):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("regard.tasks.translation.Translator.search", interrupted)
    result = regard("translate", small_run, "a b c")
    assert (result.code, result.out, result.err) == (130, "", "regard: interrupted\n")


def test_placeholders_are_kept_without_splitting_too(regard, small_run):
    result = regard("translate", small_run, "--no-split", "a b. {name} c %s", "--beam", 1)
    assert result.code == 0
    assert "{name}" in result.out
    assert "%s" in result.out
