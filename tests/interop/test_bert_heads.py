"""BERT checkpoints without a head, with classes, and from sentence-transformers."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from text_checkpoints import (
    assert_model_refused,
    assert_run_refused,
    bert_checkpoint,
    bert_tokenizer_folder,
    bert_with_tokenizer,
    make_run,
    same_weights,
    update_json,
)

from regard.interop.hf import export_run, import_model, import_run
from regard.models import load_model
from regard.tasks import read_run
from regard.tasks.load import load as open_run


def test_an_incomplete_head_is_refused_and_a_missing_one_is_on_the_card(tmp_path):
    folder = bert_checkpoint(tmp_path / "bert")
    weights = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in weights.items() if k != "cls.predictions.transform.dense.bias"}, folder / "model.safetensors")
    assert_model_refused(folder, r"there is no tensor cls\.predictions\.transform\.dense\.bias")
    save_file({k: v for k, v in weights.items() if not k.startswith("cls.")}, folder / "model.safetensors")
    shutil.copy(bert_tokenizer_folder(tmp_path / "words") / "vocab.txt", folder)
    import_run(folder, tmp_path / "run", name="some/bert")
    assert read_run(tmp_path / "run" / "run.toml").untrained == ("lm_head", "pooler")
    card = (tmp_path / "run" / "README.md").read_text()
    assert "checkpoint `some/bert`, a BertForMaskedLM of" in card
    assert "no weights for masked tokens and the pooled vector: these are randomly initialized" in card
    assert same_weights(import_model(folder)[2], load_model(tmp_path / "run"))  # random, but the same each time


@pytest.mark.parametrize(("kind", "untrained"), [
    ("BertModel", ("lm_head",)), ("BertForMaskedLM", ("pooler",)), ("BertForPreTraining", ()),
    ("BertForSequenceClassification", ("lm_head",)),
])  # fmt: skip
def test_a_head_that_a_checkpoint_lacks_is_not_exported(kind, untrained, tmp_path):
    theirs = bert_with_tokenizer(tmp_path / "theirs", kind)
    import_run(theirs, tmp_path / "run")
    assert read_run(tmp_path / "run" / "run.toml").untrained == untrained
    export_run(tmp_path / "run", tmp_path / "back")
    before, after = (load_file(folder / "model.safetensors") for folder in (theirs, tmp_path / "back"))
    weights = {name: tensor for name, tensor in before.items() if "seq_relationship" not in name}
    assert after.keys() == weights.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in weights.items())
    [named] = json.loads((tmp_path / "back" / "config.json").read_text())["architectures"]
    assert named == ("BertForMaskedLM" if kind == "BertForPreTraining" else kind)
    _, info = getattr(transformers, named).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not info["missing_keys"]
    import_run(tmp_path / "back", tmp_path / "again")
    assert same_weights(load_model(tmp_path / "again"), load_model(tmp_path / "run"))
    assert read_run(tmp_path / "again" / "run.toml").untrained == untrained


def test_a_pooler_trained_with_a_classifier_is_exported(tmp_path):
    """A classifier initialized from a checkpoint without a pooler still lists it as untrained."""
    run = make_run(tmp_path / "run", "bert classes")
    (run / "run.toml").write_text((run / "run.toml").read_text().replace("untrained = []", 'untrained = ["lm_head", "pooler"]'))
    export_run(run, tmp_path / "theirs")
    names = load_file(tmp_path / "theirs" / "model.safetensors")
    assert "bert.pooler.dense.weight" in names
    assert not any(name.startswith("cls.") for name in names)


def test_a_classifier_without_a_pooler_is_refused(tmp_path):
    theirs = bert_with_tokenizer(tmp_path / "theirs", "BertForSequenceClassification")
    file = theirs / "model.safetensors"
    save_file({k: v for k, v in load_file(file).items() if "pooler" not in k}, file)
    assert_run_refused(theirs, r"there is no tensor bert\.pooler\.dense\.weight")


@pytest.mark.parametrize(("keys", "message"), [
    ({"num_labels": 1}, r"has one output \(a score, .*\); regard's model needs two or more classes: use"),
    ({"problem_type": "multi_label_classification"}, r"problem_type = 'multi_label_classification'; regard's model has 'single"),
    ({"problem_type": "regression", "num_labels": 3}, r"config\.json has problem_type = 'regression'; .*: use another ch"),
], ids=str)  # fmt: skip
def test_regression_and_multi_label_classification_are_refused(keys, message, tmp_path):
    assert_run_refused(bert_with_tokenizer(tmp_path / "theirs", "BertForSequenceClassification", **keys), message)


def test_labels_are_written_one_per_line(tmp_path):
    theirs = bert_with_tokenizer(tmp_path / "theirs", "BertForSequenceClassification",
                        problem_type="single_label_classification", num_labels=3)  # fmt: skip
    update_json(theirs / "config.json", id2label={"0": "no", "2": " not  sure"})
    import_run(theirs, tmp_path / "run")
    assert (tmp_path / "run" / "labels.txt").read_text() == "no\nLABEL_1\n not  sure\n"
    assert open_run(tmp_path / "run", device="cpu").labels == ("no", "LABEL_1", " not  sure")


@pytest.mark.parametrize("name", ["two\nlines", "two\rlines", "two\u2028lines", "end\n", "", "  "])
def test_a_label_that_is_not_one_line_is_refused(name, tmp_path):
    theirs = bert_with_tokenizer(tmp_path / "theirs", "BertForSequenceClassification")
    update_json(theirs / "config.json", id2label={"0": "no", "1": name})
    assert_run_refused(theirs, r"config\.json has id2label 1 = '.*'; wanted a name on one line, .*: correct config\.json$")


KINDS = ("Transformer", "Pooling", "Normalize")
MODES = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def embedder(folder: Path, pooling: dict[str, Any], kinds: tuple[str, ...] = KINDS, **keys: Any) -> Path:
    bert_with_tokenizer(folder, "BertModel")
    modules = [{"idx": n, "type": f"sentence_transformers.models.{kind}"} for n, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps(keys))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 8} | pooling))
    return folder


def modes(*on: str) -> dict[str, bool]:
    return {f"pooling_mode_{mode}": mode in on for mode in MODES}


@pytest.mark.parametrize("pooling", [modes("mean_tokens"), {"pooling_mode": "mean"}, {"pooling_mode": ["mean"]}], ids=str)
@pytest.mark.parametrize(
    ("limit", "max_len"), [(12, 10), (4, 2), (512, 18), (None, 20)]
)  # the model's context length is 20 tokens
def test_a_mean_pooling_embedder_is_imported_with_its_max_len(pooling, limit, max_len, tmp_path):
    import_run(embedder(tmp_path / "theirs", pooling, max_seq_length=limit), tmp_path / "run")
    assert read_run(tmp_path / "run" / "run.toml").data.max_len == max_len
    assert open_run(tmp_path / "run", device="cpu").embed(["the cat"]).shape == (1, 8)


@pytest.mark.parametrize(("pooling", "message"), [
    (modes("cls_token"), r"\['cls_token'\]"), (modes("mean_tokens", "max_tokens"), r"\['max_tokens', 'mean_tokens'\]"),
    (modes(), r"\[\]"), ({"pooling_mode": "cls"}, "'cls'"), ({"pooling_mode": ["mean", "max"]}, r"\['mean', 'max'\]"),
], ids=str)  # fmt: skip
def test_other_pooling_is_refused(pooling, message, tmp_path):
    message = rf"1_Pooling/config\.json has pooling_mode = {message}; regard embeds a text by the mean of its tokens: use a "
    assert_run_refused(embedder(tmp_path / "theirs", pooling), rf"{message}checkpoint that does$")


def test_a_further_module_is_refused_and_a_missing_one_is_named(tmp_path):
    folder = embedder(tmp_path / "theirs", modes("mean_tokens"), (*KINDS[:2], "Dense"))
    assert_run_refused(folder, r"modules\.json has a Dense after the model; .*: use a checkpoint without it$")
    folder = embedder(tmp_path / "other", modes("mean_tokens"))
    shutil.rmtree(folder / "1_Pooling")
    assert_run_refused(folder, r"there is no 1_Pooling/config\.json, though modules\.json has a Pooling; download it$")


def test_the_order_of_modules_is_checked(tmp_path):
    for n, kinds in enumerate([("Transformer", "Normalize", "Pooling"), ("Transformer",), ("Transformer", "Normalize")]):
        folder = embedder(tmp_path / str(n), modes("mean_tokens"), kinds)
        assert_run_refused(
            folder, rf"modules\.json has {', '.join(kinds)}; regard embeds a text by Transformer, Pooling and at most "
        )


def set_path(folder: Path, kind: str, path: str) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    changed = [{**module, "path": path} if module["type"].endswith(kind) else module for module in modules]
    (folder / "modules.json").write_text(json.dumps(changed))


def test_the_pooling_that_modules_json_names_is_read(tmp_path):
    folder = embedder(tmp_path / "theirs", modes("mean_tokens"))
    (folder / "3_Pooling").mkdir()
    (folder / "3_Pooling" / "config.json").write_text(json.dumps(modes("cls_token")))
    import_run(folder, tmp_path / "run")
    set_path(folder, "Pooling", "3_Pooling")
    assert_run_refused(folder, r"3_Pooling/config\.json has pooling_mode = \['cls_token'\]")
    for path in ("../theirs/1_Pooling", str(folder / "1_Pooling")):
        set_path(folder, "Pooling", path)
        assert_run_refused(folder, r"modules\.json has the path '.*' for its Pooling; wanted a folder inside the checkpoint$")
    set_path(folder, "Pooling", "4_Pooling")
    (folder / "4_Pooling").symlink_to(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(modes("mean_tokens")))
    assert_run_refused(folder, r"4_Pooling/config\.json is a link to a file outside the checkpoint; copy the file itself$")


def test_a_width_or_a_length_that_does_not_fit_is_refused(tmp_path):
    folder = embedder(tmp_path / "theirs", {**modes("mean_tokens"), "word_embedding_dimension": 9})
    assert_run_refused(folder, r"config\.json has word_embedding_dimension = 9, its model has vectors of 8 numbers; ")
    for length in (0, -1, 3, True, "many"):
        update_json(folder / "1_Pooling" / "config.json", word_embedding_dimension=8)
        update_json(folder / "sentence_bert_config.json", max_seq_length=length)
        assert_run_refused(
            folder, rf"sentence_bert_config\.json has max_seq_length = {length!r}; wanted a number of tokens, 4 or "
        )


@torch.inference_mode()
def test_an_import_notes_that_vectors_are_scaled_unless_the_checkpoint_scales_them(tmp_path):
    assert import_run(embedder(tmp_path / "scaled", modes("mean_tokens")), tmp_path / "run") == ()
    folder = embedder(tmp_path / "theirs", modes("mean_tokens"), KINDS[:2])
    for n, theirs in enumerate([folder, bert_with_tokenizer(tmp_path / "plain", "BertModel")]):
        [note] = import_run(theirs, tmp_path / f"run{n}")
        assert note.startswith("`regard embed` gives the mean of a text's tokens scaled to length 1; the checkpoint does not")
    ours = open_run(tmp_path / "run0", device="cpu")
    [ids] = ours.tokenizer.encode(["the cats"])
    output = transformers.BertModel.from_pretrained(folder).eval()(torch.tensor([[2, *ids, 3]])).last_hidden_state
    torch.testing.assert_close(ours.embed(["the cats"]), torch.nn.functional.normalize(output.mean(1)), rtol=0, atol=1e-5)


def test_an_exported_embedder_has_the_files_of_sentence_transformers(tmp_path):
    import_run(embedder(tmp_path / "theirs", modes("mean_tokens"), max_seq_length=12), tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "again")
    kinds = [module["type"].rpartition(".")[2] for module in json.loads((tmp_path / "again" / "modules.json").read_text())]
    assert kinds == list(KINDS)
    assert json.loads((tmp_path / "again" / "1_Pooling" / "config.json").read_text())["word_embedding_dimension"] == 8
    assert json.loads((tmp_path / "again" / "sentence_bert_config.json").read_text())["max_seq_length"] == 12
    assert import_run(tmp_path / "again", tmp_path / "run2") == ()
    assert read_run(tmp_path / "run2" / "run.toml").data.max_len == 10


@pytest.mark.parametrize(("kind", "notes"), [
    ("BertForNextSentencePrediction", ["no place for cls.seq_relationship.bias, cls.seq_relationship.weight: left", "scaled"]),
    ("BertForPreTraining", ["no place for cls.seq_relationship.bias, cls.seq_relationship.weight: left out"]),
    ("BertForMaskedLM", []),
])  # fmt: skip
def test_heads_that_are_left_out_are_named(kind, notes, tmp_path):
    found = import_run(bert_with_tokenizer(tmp_path / "theirs", kind), tmp_path / "run")
    assert len(found) == len(notes)
    assert all(wanted in note for wanted, note in zip(notes, found, strict=True))


def test_a_head_that_the_config_names_and_the_weights_lack_is_noted(tmp_path):
    folder = bert_with_tokenizer(tmp_path / "theirs", "BertModel")
    update_json(folder / "config.json", architectures=["BertForSequenceClassification"])
    first, _ = import_run(folder, tmp_path / "run")
    assert "architectures = 'BertForSequenceClassification', but there are no weights of its head" in first
