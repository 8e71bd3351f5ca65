"""Options of foreign tokenizers: the same ids as transformers gives, and the same continuations."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from text_checkpoints import TEXT, assert_run_refused, bert_with_tokenizer, randomize, update_json
from tokenizers import pre_tokenizers, processors

from regard.data.text.tokenizer import train_tokenizer
from regard.interop.hf import import_run
from regard.tasks.load import load

END = "<|endoftext|>"
TEXTS = ["the cat", "Ann  ran", " a dog", "rain?\nno", "é"]


def gpt2_folder(folder: Path, *, stored: bool, options: dict[str, Any], prefix: bool = False, template: str = "") -> Path:
    """A small GPT-2 with a byte-level tokenizer, in tokenizer.json or in the two older files."""
    inner = tokenizers.Tokenizer.from_str(train_tokenizer(TEXT, "bytes", 300, [END])._inner.to_str())
    end = inner.token_to_id(END)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    if template:
        inner.post_processor = processors.TemplateProcessing(single=template, pair=f"{template} $B", special_tokens=[(END, end)])
    config = transformers.GPT2Config(
        vocab_size=300, n_embd=16, n_layer=1, n_head=2, n_positions=40, bos_token_id=1, eos_token_id=2
    )
    randomize(transformers.GPT2LMHeadModel(config)).save_pretrained(folder)
    if stored:
        inner.save(str(folder / "tokenizer.json"))
    else:
        model = json.loads(inner.to_str())["model"]
        (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
        merges = (" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"])
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
        for name in ("config.json", "generation_config.json"):
            update_json(folder / name, bos_token_id=end, eos_token_id=end)
    names = {"tokenizer_class": "GPT2Tokenizer", "bos_token": END, "eos_token": END, "unk_token": END}
    update_json(folder / "tokenizer_config.json", **names, **options)
    return folder


CASES: dict[str, dict[str, Any]] = {
    "plain": {"stored": True, "options": {}},
    "prefix space": {"stored": True, "options": {"add_prefix_space": True}},
    "prefix space of the file only": {"stored": True, "options": {}, "prefix": True},
    "prefix space of a plain class": {"stored": True, "options": {"tokenizer_class": "PreTrainedTokenizerFast"}, "prefix": True},
    "start token in the template": {"stored": True, "options": {}, "template": f"{END} $A"},
    "start token in the template, not in the options": {
        "stored": True, "options": {"add_bos_token": False}, "template": f"{END} $A"},
    "start and end token in the options, not in the file": {
        "stored": True, "options": {"add_bos_token": True, "add_eos_token": True}},
    "older files": {"stored": False, "options": {}},
    "older files, prefix space": {"stored": False, "options": {"add_prefix_space": True}},
    "older files, start token": {"stored": False, "options": {"add_bos_token": True}},
}  # fmt: skip


@torch.inference_mode()
@pytest.mark.parametrize("name", CASES)
def test_a_gpt2_tokenizes_and_continues_as_in_transformers(name, tmp_path):
    case = {**CASES[name], "options": dict(CASES[name]["options"])}
    folder = gpt2_folder(tmp_path / "theirs", **case) if "tokenizer_class" not in case["options"] else None
    if folder is None:
        kind = case["options"].pop("tokenizer_class")
        folder = gpt2_folder(tmp_path / "theirs", **case)
        update_json(folder / "tokenizer_config.json", tokenizer_class=kind)
    import_run(folder, tmp_path / "run")
    ours, theirs = load(tmp_path / "run", device="cpu"), transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ours.tokenizer.prompt_start + ours.tokenizer.encode([text])[0] == ids
        output = model.generate(torch.tensor([ids]), max_new_tokens=6, do_sample=False, pad_token_id=0)[0].tolist()
        assert ours.generate(text, tokens=6, temperature=0) == ours.tokenizer.decode(output)[len(ours.tokenizer.decode(ids)) :]


def test_a_gpt2_that_ends_each_prompt_is_refused(tmp_path):
    folder = gpt2_folder(tmp_path / "theirs", stored=False, options={"add_eos_token": True})
    assert_run_refused(folder, r"its tokenizer makes 'TEXT <\|endoftext\|>' of a text; regard's gpt adds 0 special tokens before")


def test_a_class_that_does_not_fit_its_file_is_refused(tmp_path):
    folder = gpt2_folder(tmp_path / "theirs", stored=True, options={})
    update_json(folder / "tokenizer.json", normalizer={"type": "Lowercase"})
    assert_run_refused(folder, r"tokenizer_class = 'GPT2Tokenizer', but tokenizer\.json is none \(normalizer Lowercase")


@pytest.mark.parametrize("options", [{}, {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}])
@pytest.mark.parametrize("stored", [True, False])
def test_a_bert_reads_the_options_of_its_class(options, stored, tmp_path):
    folder = bert_with_tokenizer(tmp_path / "theirs", "BertForMaskedLM")
    update_json(folder / "tokenizer_config.json", **options)
    if stored:  # lower-cased or not: the class decides
        transformers.BertTokenizer.from_pretrained(folder).backend_tokenizer.save(str(folder / "tokenizer.json"))
        normal = json.loads((folder / "tokenizer.json").read_text())["normalizer"]
        update_json(folder / "tokenizer.json", normalizer=normal | {"lowercase": not normal["lowercase"]})
    import_run(folder, tmp_path / "run")
    ours, theirs = load(tmp_path / "run", device="cpu").tokenizer, transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("The cats", "Café CAFÉ cafe", "unaffable 東東cat"):
        assert ours.encode([text])[0] == theirs(text, add_special_tokens=False)["input_ids"]


def test_lower_casing_by_sentence_transformers_is_obeyed(tmp_path):
    folder = bert_with_tokenizer(tmp_path / "theirs", "BertModel")
    update_json(folder / "tokenizer_config.json", do_lower_case=False)
    (folder / "1_Pooling").mkdir()
    update_json(folder / "1_Pooling" / "config.json", pooling_mode_mean_tokens=True)
    update_json(folder / "sentence_bert_config.json", max_seq_length=16, do_lower_case=True)
    import_run(folder, tmp_path / "run")
    embedder = load(tmp_path / "run", device="cpu")
    assert embedder.tokenizer.encode(["The Cats"]) == embedder.tokenizer.encode(["the cats"])
    assert embedder.tokenizer.special.unk not in embedder.tokenizer.encode(["The Cats"])[0]
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert embedder.tokenizer.encode(["THE Cafe"])[0] == theirs("the cafe", add_special_tokens=False)["input_ids"]
