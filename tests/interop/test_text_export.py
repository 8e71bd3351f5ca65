"""A run is exported for transformers and imported again: same weights, same text, same predictions."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from text_checkpoints import MARIAN, OURS, TEXT, TINY, make_run, same_weights

from regard.data.text.tokenizer import BOS, EOS, PAD, Tokenizer
from regard.interop.hf import export_run, import_run
from regard.models import load_model
from regard.models.transformer import TransformerConfig
from regard.tasks import read_run
from regard.tasks.load import load as open_run


@pytest.fixture(scope="module", params=OURS)
def exported(request, tmp_path_factory):
    """A kind of model, a run of it, and its export."""
    home = tmp_path_factory.mktemp("export")
    run = make_run(home / "run", request.param)
    export_run(run, home / "theirs")
    return request.param, run, home / "theirs"


@torch.inference_mode()
def test_export_then_import_restores_the_run(exported, tmp_path):
    kind, run, theirs = exported
    import_run(theirs, tmp_path / "again", "1.2.3")
    assert same_weights(load_model(tmp_path / "again"), load_model(run))
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert config["regard_version"] == "1.2.3"
    plan = read_run(tmp_path / "again" / "run.toml")
    family, _, task, tokens = OURS[kind]
    assert (plan.name, plan.family, plan.data.tokenizer) == ("again", family, tokens)
    assert plan.task == ("translation" if task == "span_corruption" else task)
    opened = open_run(tmp_path / "again", device="cpu")
    assert opened.tokenizer.encode(TEXT) == Tokenizer.load(run / "tokenizer.json").encode(TEXT)
    assert "imported by regard 1.2.3" in (tmp_path / "again" / "README.md").read_text()
    labels = tmp_path / "again" / "labels.txt"
    assert (labels.read_text() if labels.exists() else "") == ("bad\nvery good\n" if task == "text_classification" else "")


def test_no_temporary_folder_is_left(exported):
    _, _, theirs = exported
    assert sorted(path.name for path in theirs.parent.iterdir()) == ["run", "theirs"]


@torch.inference_mode()
def test_auto_classes_load_an_export_and_tokenize_alike(exported):
    kind, run, theirs = exported
    tokenizer, model = (transformers.AutoTokenizer.from_pretrained(theirs), transformers.AutoModel.from_pretrained(theirs))
    opened = open_run(run, device="cpu")
    ids, special = opened.tokenizer.encode(TEXT), opened.tokenizer.special
    family = OURS[kind][0]
    around = {"gpt": lambda x: x, "bert": lambda x: [special.bos, *x, special.eos]}.get(family, lambda x: [*x, special.eos])
    batch = tokenizer(TEXT, padding=True, return_tensors="pt")
    assert tokenizer(TEXT)["input_ids"] == [around(line) for line in ids]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id or tokenizer.sep_token_id) == (special.pad, special.eos)
    assert tokenizer.mask_token_id == special.mask
    assert tokenizer.model_max_length == (512 if family in ("t5", "transformer") else 64)
    assert tokenizer.decode(ids[0], skip_special_tokens=True).strip() == opened.tokenizer.decode(ids[0])
    assert ("token_type_ids" in batch) == (family == "bert")  # GPT-2 would add them to the embeddings
    if family == "bert":
        real = batch["attention_mask"].bool()
        wanted = model.eval()(**batch).last_hidden_state[real]
        torch.testing.assert_close(opened.model.encode(batch["input_ids"], real[:, None, None])[real], wanted, rtol=0, atol=1e-5)


def test_a_pipeline_generates_the_same_text(tmp_path, monkeypatch):
    monkeypatch.setitem(OURS, "letters", (*OURS["gpt"][:3], "characters"))  # random bytes are not valid text
    run = make_run(tmp_path / "run", "letters")
    export_run(run, tmp_path / "theirs")
    output = transformers.pipeline("text-generation", str(tmp_path / "theirs"))(
        "the cat", do_sample=False, max_new_tokens=12, return_full_text=False
    )
    assert output[0]["generated_text"]
    assert output[0]["generated_text"] == open_run(run, device="cpu").generate("the cat", tokens=12, temperature=0)


def test_a_pipeline_ranks_masked_tokens_alike(tmp_path):
    run = make_run(tmp_path / "run", "bert")
    export_run(run, tmp_path / "theirs")
    words = [token for token in Tokenizer.load(run / "tokenizer.json").ids_to_tokens(range(5, 30)) if token.isalpha()]
    outputs = transformers.pipeline("fill-mask", str(tmp_path / "theirs"))("the [MASK] sat.", targets=words, top_k=len(words))
    filled = open_run(run, device="cpu").fill("the [MASK] sat.", top=97)
    ours = {
        prediction.text: prediction.probability for prediction in filled.predictions[0] if not prediction.text.startswith("##")
    }
    ranked = [output["token_str"] for output in outputs]
    assert len(ranked) > 5
    assert ranked == sorted(words, key=lambda word: -ours[word])
    assert [output["score"] for output in outputs] == pytest.approx([ours[word] for word in ranked], rel=1e-4)


def test_a_pipeline_predicts_the_same_class(tmp_path):
    run = make_run(tmp_path / "run", "bert classes")
    export_run(run, tmp_path / "theirs")
    pipeline = transformers.pipeline("text-classification", str(tmp_path / "theirs"))
    ours = open_run(run, device="cpu").classify(TEXT)
    for [mine], theirs in zip(ours, pipeline(TEXT), strict=True):
        assert theirs["label"] == mine.text
        assert theirs["score"] == pytest.approx(mine.probability, abs=1e-5)
    assert {mine.text for [mine] in ours} <= {"bad", "very good"}


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["t5", "t5 v1.1", "transformer", "pre-norm transformer"])
def test_generate_gives_the_same_output(kind, tmp_path):
    run = make_run(tmp_path / "run", kind)
    export_run(run, tmp_path / "theirs")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "theirs").eval()
    assert model.generation_config.num_beams == 5
    assert model.generation_config.decoder_start_token_id == BOS
    batch = tokenizer(TEXT[:4], padding=True, return_tensors="pt")
    assert (batch["input_ids"] == PAD).any()
    rows = model.generate(**batch, num_beams=1, max_new_tokens=8)[:, 1:].tolist()
    opened = open_run(run, device="cpu")
    ours = opened.search(opened.tokenizer.encode(TEXT[:4]), beam=1, batch=4, penalty=1.0)
    assert [row[: row.index(EOS)] if EOS in row else row for row in rows] == [best.tokens[:8] for [best] in ours]
    assert all(best.tokens for [best] in ours)


@pytest.mark.parametrize(("key", "value"), [("positions", "learned"), ("tied", False), ("target_vocab", 50)])
def test_exporting_a_transformer_unlike_pegasus_names_the_key(key, value, tmp_path, monkeypatch):
    config = TransformerConfig(**TINY, **{**MARIAN, "norm": "pre", key: value})
    monkeypatch.setitem(OURS, "other", ("transformer", config, "translation", "bpe"))
    run = make_run(tmp_path / "run", "other")
    with pytest.raises(ValueError, match=rf"^this transformer has {key} = {value!r}; .*train it with model\.{key}=\w+$"):
        export_run(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_existing_folder_is_not_overwritten(exported, tmp_path):
    _, run, theirs = exported
    (tmp_path / "mine").mkdir()
    for act, what in ((import_run, theirs), (export_run, run)):
        with pytest.raises(ValueError, match=r"mine already exists; give another folder, or remove it$"):
            act(what, tmp_path / "mine")
    assert not list((tmp_path / "mine").iterdir())


def test_a_full_disk_leaves_no_files(exported, tmp_path, monkeypatch):
    _, run, theirs = exported
    replace = os.replace

    def full(source: Any, target: Any) -> None:
        if Path(target).name == "model.safetensors":
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    for act, what in ((import_run, theirs), (export_run, run)):
        with pytest.raises(OSError, match="No space left"):
            act(what, tmp_path / "out")
    assert not list(tmp_path.iterdir())
