"""Checkpoints from the Hugging Face hub: what is downloaded, and errors."""

import shutil
import sys
from typing import Any

import pytest
from text_checkpoints import assert_run_refused, bert_checkpoint, bert_tokenizer_folder

from regard.interop.hf import fetch, import_run


def test_without_huggingface_hub_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        ValueError, match=r"^no folder bert-base-uncased, and huggingface_hub is not installed.*pip install huggingface_hub$"
    ):
        fetch("bert-base-uncased")


@pytest.mark.parametrize("name", ["bert-base-uncased", "no such/name/at all"])
def test_a_failed_download_is_reported_in_one_line(name, tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        ValueError, match=rf"^no folder {name}, and the download from the hub failed \(.+\); check the name"
    ) as error:
        fetch(name)
    assert "\n" not in str(error.value)


def test_only_files_that_are_read_are_downloaded(monkeypatch, tmp_path):
    from huggingface_hub.utils import filter_repo_objects

    asked: dict[str, Any] = {}
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **how: asked.update(how, name=name) or str(tmp_path))
    assert fetch("some/model") == tmp_path
    assert asked.pop("name") == "some/model"
    wanted = ["config.json", "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
              "tokenizer.json", "vocab.txt", "1_Pooling/config.json", "sentence_bert_config.json", "README.md"]  # fmt: skip
    other = ["pytorch_model.bin", "modeling.py", "onnx/config.json", "onnx/model.safetensors", "2_Dense/config.json",
             "1_Pooling/pytorch_model.bin", "docs/README.md", "tf_model.h5", "train_script.py"]  # fmt: skip
    assert list(filter_repo_objects([*wanted, *other], **asked)) == wanted


@pytest.mark.parametrize("broken", ["config.json", "model.safetensors", "tokenizer.json", "vocabulary"])
def test_errors_begin_with_the_name_the_user_gave(broken, tmp_path):
    theirs = bert_checkpoint(tmp_path / "snapshots" / "0123abcd", vocab_size=10 if broken == "vocabulary" else 16)
    shutil.copy(bert_tokenizer_folder(tmp_path / "words") / "vocab.txt", theirs)
    if broken != "vocabulary":
        (theirs / broken).write_text("{")
    assert_run_refused(theirs, r"^some/bert: ", name="some/bert")
    with pytest.raises(ValueError, match=rf"^{theirs}: "):
        import_run(theirs, tmp_path / "run")
    with pytest.raises(ValueError, match=r"^some/bert: ") as error:
        import_run(theirs, tmp_path / "run", name="some/bert")
    assert "0123abcd" not in str(error.value)
