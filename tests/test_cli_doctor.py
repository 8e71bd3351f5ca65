"""`regard doctor` reports on the machine, isolates each check and gives advice that can be pasted."""

import importlib.metadata
import json
import math
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from regard.cli import selftest

module = sys.modules["regard.cli.doctor"]  # the name in the package is that of the verb
CPU = {"version": "2.9.0", "cuda": None, "device": "cpu", "gpus": [], "threads": 2, "instructions": "AVX2"}


class Echo:
    """A translator that answers with the source."""

    def translate(self, texts):
        return [SimpleNamespace(text=text) for text in texts]


class Answer:
    """A child process that has answered, or failed."""

    def __init__(self, answer: object):
        self.answer = answer

    def result(self) -> str:
        if isinstance(self.answer, Exception):
            raise self.answer
        return json.dumps(self.answer)


def torch_checks(monkeypatch, driver: bool = False, **about) -> dict[str, module.Check]:
    monkeypatch.setattr(module.shutil, "which", lambda name: "/usr/bin/nvidia-smi" if driver else None)
    checks = module._torch(Answer({"device": {**CPU, **about}}))
    return {check.name: check for check in checks}


def test_a_healthy_machine_passes_with_a_self_test_and_exits_0(regard, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = regard("doctor", "--json")
    report = json.loads(result.out)
    checks = {check["name"]: check for check in report["checks"]}
    assert result.code == 0, result.out
    assert report["healthy"]
    assert {
        "python",
        "packages",
        "torch",
        "threads",
        "cache",
        "runs",
        "data sets",
        "int8",
        "bfloat16",
        "float16",
        "attention",
        "training",
    } <= checks.keys()
    assert importlib.metadata.version("torch") in checks["packages"]["found"]
    assert checks["training"]["status"] == checks["attention"]["status"] == "ok"
    assert checks["translation"]["found"].startswith("en-it: I love you very much → Ti amo molto., in ")
    assert checks["translation"]["status"] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_cuda_wheels_on_a_machine_without_a_gpu_give_the_line_that_installs_cpu_only_torch(monkeypatch):
    check = torch_checks(monkeypatch, cuda="13.0")["gpu"]
    assert check.status == "note"
    assert "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cpu;" in check.advice
    assert "nvidia-* packages and triton may be uninstalled" in check.advice


def test_other_mismatches_of_torch_and_gpu_are_said_too(monkeypatch):
    assert "gpu" not in torch_checks(monkeypatch)
    assert "gpu" not in torch_checks(monkeypatch, cuda="13.0", device="cuda", gpus=["A GPU"])
    assert "driver" in torch_checks(monkeypatch, driver=True, cuda="13.0")["gpu"].advice
    assert "CPU-only" in torch_checks(monkeypatch, driver=True)["gpu"].found


def test_fewer_threads_than_cores_and_a_container_with_fewer_cores_are_said(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(module, "_cpu_quota", lambda: 0.0)
    assert module._threads(8).status == "ok"
    assert "OMP_NUM_THREADS=8" in module._threads(1).advice
    monkeypatch.setattr(module, "_cpu_quota", lambda: 2.0)
    assert "OMP_NUM_THREADS=2" in module._threads(8).advice


def test_a_check_that_breaks_is_a_line_and_the_others_still_run(regard, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def broken():
        raise RuntimeError("a \x1b[31mbroken part")

    monkeypatch.setattr(module, "_packages", broken)
    monkeypatch.setattr(module._Child, "result", lambda self: (_ for _ in ()).throw(ChildProcessError("it ended with -4")))
    result = regard("doctor", "--fast")
    assert result.code == 1
    lines = result.out.splitlines()
    assert any(line.startswith("failed  packages: the check failed: RuntimeError: a \\x1b[31mbroken part") for line in lines)
    assert any(line.startswith("failed  torch: ") and "it ended with -4" in line for line in lines)
    assert any(line.startswith("ok      python: ") for line in lines)
    assert "\x1b" not in result.out
    assert "Traceback" not in result.err


def test_a_missing_or_old_package_fails_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: ["nosuchpackage>=1", "numpy>=99", "x; extra == 'hub'"])
    _, missing, old = module._packages()
    assert (missing.status, missing.found) == ("failed", "nosuchpackage is missing")
    assert old.status == "failed"
    assert "older than 99" in old.found
    assert missing.advice == "pip install --upgrade 'nosuchpackage>=1'"
    assert old.advice == "pip install --upgrade 'numpy>=99'"


def test_a_missing_extra_is_a_note_with_its_pip_line(monkeypatch):
    monkeypatch.setattr(module, "EXTRAS", {"hub": ("nosuchmodule", "nosuch.docx"), "tables": ("json",)})
    monkeypatch.setattr(module, "PROJECTS", {"nosuch.docx": "python-docx"})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name.startswith("nosuch") else name)
    hub, tables = module._extras()
    assert (hub.status, hub.advice) == ("note", "pip install nosuchmodule python-docx")
    assert tables.status == "ok"


def test_the_extras_are_those_of_the_package():
    extras = {need.partition("extra == ")[2].strip('"') for need in importlib.metadata.requires("regard") if "extra ==" in need}
    assert extras - {"test"} == set(module.EXTRAS)


def test_a_data_folder_that_is_missing_and_a_cache_that_cannot_be_written_fail(monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "nowhere"))
    assert next(module._data_sets()).status == "failed"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert next(module._disk()).status == "failed"


def test_data_sets_are_found_by_their_files(monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    (tmp_path / "multi30k").mkdir()
    (tmp_path / "cifar10").mkdir()
    for name in ("multi30k/train.en.gz", "multi30k/train.de.gz", "cifar10/cifar-10-binary.tar.gz"):
        assert f"{name.partition('/')[0]} (" in next(module._data_sets()).found
        (tmp_path / name).write_bytes(b"")
    (check,) = module._data_sets()
    assert check.found.startswith("cifar10, multi30k; downloaded when first used: tatoeba-en-it (8.0 MB), ")


def test_a_wrong_attention_or_a_model_that_does_not_learn_fails():
    trial = {"loss": 1.0, "first_loss": 4.0, "seconds": 3.0, "right": 70, "of": 80}
    done = {"source": "a", "answer": "b", "right": True, "milliseconds": 9}
    good = {"attention": {"difference": 1e-7}, "train": trial, "translate": {"ab": done}}
    assert [check.status for check in module._self_test(Answer(good))] == ["ok", "ok", "ok"]
    bad = {"attention": {"difference": 0.1}, "train": {**trial, "right": 39}, "translate": {"ab": {**done, "right": False}}}
    assert [check.status for check in module._self_test(Answer(bad))] == ["failed", "failed", "failed"]
    worse = {**good, "train": {**trial, "loss": 4.0}}
    assert [check.status for check in module._self_test(Answer(worse))] == ["ok", "failed", "ok"]


def test_a_shipped_translator_that_answers_with_the_source_or_otherwise_than_expected_is_wrong(small_run, monkeypatch):
    found = dict.fromkeys(("en-it", "other"), small_run)
    monkeypatch.setattr("regard.shipped.shipped_models", lambda: found)
    answers = selftest.translate()  # of a model that has learned next to nothing
    assert answers["en-it"]["answer"] != "Ti amo molto."
    assert not answers["en-it"]["right"]
    assert answers["other"]["right"] == (answers["other"]["answer"] != "")
    monkeypatch.setattr(selftest, "SENTENCE", answers["other"]["answer"])
    monkeypatch.setattr("regard.tasks.load.load", lambda *_: Echo())
    assert not selftest.translate()["other"]["right"]


def test_the_self_test_is_short():
    """About 4 seconds of one core; CPU time does not depend on what else the machine does."""
    before = os.times()
    subprocess.run(
        [sys.executable, "-m", "regard.cli.selftest", "attention", "train", "translate"], check=True, capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 40


def test_a_result_that_is_not_a_number_is_a_large_difference():
    assert selftest._largest(torch.tensor([0.1, math.nan])) == math.inf
    assert selftest._largest(torch.tensor([0.1, -0.3])) == pytest.approx(0.3)


def test_a_machine_without_a_reduced_precision_is_a_note():
    failed = Answer(ChildProcessError("its process was ended: Illegal instruction"))
    for check in (*module._int8(failed), *module._reduced("bfloat16", failed)):
        assert (check.status, check.advice) == ("note", "use float32, the default")
        assert "(its process was ended: Illegal instruction)" in check.found
    (wrong,) = module._reduced("bfloat16", Answer({"bfloat16": {"error": 3.0}}))
    assert (wrong.status, wrong.found) == ("note", "products in bfloat16 are wrong by 3 on this machine")


def test_a_child_that_an_illegal_instruction_kills_is_one_line(monkeypatch):
    with module._Child("unused") as child:
        pass
    child.command, child.start = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGILL)"], True
    with child, pytest.raises(ChildProcessError, match=r"^its process was ended: Illegal instruction$"):
        child.result()


def test_fused_and_explicit_attention_agree_in_this_process():
    assert selftest.attention()["difference"] < selftest.ATTENTION_ERROR


def test_a_python_file_in_the_current_folder_is_not_run(tmp_path):
    (tmp_path / "torch.py").write_text("open('ran', 'w')")
    env = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "regard", "doctor", "--fast"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert "torch" in done.stdout
    assert not (tmp_path / "ran").exists()
