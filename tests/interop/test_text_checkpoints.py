"""A checkpoint becomes a run folder and a run folder a checkpoint: whole or not at all, and what is wrong is said in one line."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save, save_file
from torch import nn

from regard.config import Run, to_toml
from regard.data.text.tokenizer import BOS, EOS, PAD, Tokenizer, train_tokenizer
from regard.interop.hf import export_run, fetch, import_model, import_run
from regard.interop.tokenizer import read_tokenizer
from regard.models import FAMILIES, describe, load_model, saved_tensors
from regard.models.bert import BERTConfig
from regard.models.gpt import GPTConfig
from regard.models.t5 import T5Config
from regard.models.transformer import TransformerConfig
from regard.tasks import read_run
from regard.tasks.load import load as open_run

TEXT = [
    "the cat sat on the mat.",
    "a dog, the cat and Ann ran!",
    "does it rain? no, the sun is out.",
    "I see 3 old houses.",
] * 3
TINY = {"vocab": 97, "dim": 16, "depth": 2, "heads": 2}
MARIAN = {"norm": "post", "activation": "silu", "output_bias": True}
OURS: dict[str, tuple[str, Any, str, str]] = {  # kind → family, config, task, tokenizer
    "gpt": ("gpt", GPTConfig(**TINY, max_len=64), "next", "bytes"),
    "bert": ("bert", BERTConfig(**TINY, max_len=64), "masked", "wordpiece"),
    "bert classes": ("bert", BERTConfig(**TINY, max_len=64, classes=2), "class", "wordpiece"),
    "t5": ("t5", T5Config(**TINY, head_dim=8, mlp_dim=24), "translate", "bpe"),
    "t5 v1.1": ("t5", T5Config(**TINY, head_dim=8, mlp_dim=24, gated=True, tied=False), "spans", "bpe"),
    "transformer": ("transformer", TransformerConfig(**TINY, **MARIAN), "translate", "bpe"),
}  # fmt: skip


def loud(model: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    return model.eval()


def our_run(folder: Path, kind: str) -> Path:
    """A run folder as training leaves it, but for the training."""
    family, config, task, tokens = OURS[kind]
    tokenizer = train_tokenizer(TEXT, tokens, 97)
    values = {**vars(config), "vocab": tokenizer.vocab}
    config = type(config)(**{key: value for key, value in values.items() if not key.startswith("_")})
    folder.mkdir()
    tokenizer.save(folder / "tokenizer.json")
    (folder / "config.json").write_text(json.dumps(describe(family, config, "0")))
    (folder / "model.safetensors").write_bytes(save(saved_tensors(loud(FAMILIES[family].build(config)))))
    (folder / "run.toml").write_text(to_toml(Run("ours", family, config, task)))
    if task == "class":
        (folder / "labels.txt").write_text("bad\nvery good\n", encoding="utf-8")
    return folder


def same(a: Any, b: Any) -> bool:
    pairs = zip(a.named_parameters(), b.named_parameters(), strict=True)
    return a.config == b.config and all(name == other and torch.equal(p, q) for (name, p), (other, q) in pairs)


@pytest.fixture(scope="module", params=OURS)
def exported(request, tmp_path_factory):
    """A kind, a run of ours, and what is made of it for them."""
    home = tmp_path_factory.mktemp("export")
    run = our_run(home / "run", request.param)
    export_run(run, home / "theirs")
    return request.param, run, home / "theirs"


@torch.inference_mode()
def test_a_run_that_went_there_and_back_is_the_same_and_opens(exported, tmp_path):
    kind, run, theirs = exported
    import_run(theirs, tmp_path / "again", "1.2.3")
    assert same(load_model(tmp_path / "again"), load_model(run))
    said = json.loads((tmp_path / "again" / "config.json").read_text())
    assert said["regard_version"] == "1.2.3"
    plan = read_run(str(tmp_path / "again" / "run.toml"), ())
    family, _, task, tokens = OURS[kind]
    assert (plan.name, plan.family, plan.data.tokenizer) == ("again", family, tokens)
    assert plan.task == ("translate" if task == "spans" else task)
    opened = open_run(tmp_path / "again", device="cpu")
    assert opened.tokenizer.encode(TEXT) == Tokenizer.load(run / "tokenizer.json").encode(TEXT)
    assert "imported by regard 1.2.3" in (tmp_path / "again" / "README.md").read_text()
    labels = tmp_path / "again" / "labels.txt"
    assert (labels.read_text() if labels.exists() else "") == ("bad\nvery good\n" if task == "class" else "")


def test_no_part_is_left_beside_a_folder_that_was_made(exported):
    _, _, theirs = exported
    assert sorted(path.name for path in theirs.parent.iterdir()) == ["run", "theirs"]


@torch.inference_mode()
def test_auto_classes_open_what_is_exported_and_read_text_as_we_do(exported):
    kind, run, theirs = exported
    tokenizer, model = (
        transformers.AutoTokenizer.from_pretrained(theirs),
        transformers.AutoModel.from_pretrained(theirs),
    )
    opened = open_run(run, device="cpu")
    ids, special = opened.tokenizer.encode(TEXT), opened.tokenizer.special
    family = OURS[kind][0]
    around = {"gpt": lambda x: x, "bert": lambda x: [special.bos, *x, special.eos]}.get(
        family, lambda x: [*x, special.eos]
    )
    batch = tokenizer(TEXT, padding=True, return_tensors="pt")
    assert tokenizer(TEXT)["input_ids"] == [around(one) for one in ids]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id or tokenizer.sep_token_id) == (
        special.pad,
        special.eos,
    )
    assert tokenizer.mask_token_id == special.mask
    assert tokenizer.model_max_length == (512 if family in ("t5", "transformer") else 64)
    assert tokenizer.decode(ids[0], skip_special_tokens=True).strip() == opened.tokenizer.decode(ids[0])
    assert ("token_type_ids" in batch) == (family == "bert")  # GPT-2 would add them to the words
    if family == "bert":
        real = batch["attention_mask"].bool()
        wanted = model.eval()(**batch).last_hidden_state[real]
        torch.testing.assert_close(
            opened.model.encode(batch["input_ids"], real[:, None, None])[real], wanted, rtol=0, atol=1e-5
        )


def test_a_pipeline_writes_what_we_write(tmp_path, monkeypatch):
    monkeypatch.setitem(OURS, "letters", (*OURS["gpt"][:3], "characters"))  # random bytes would be no text
    run = our_run(tmp_path / "run", "letters")
    export_run(run, tmp_path / "theirs")
    said = transformers.pipeline("text-generation", str(tmp_path / "theirs"))(
        "the cat", do_sample=False, max_new_tokens=12, return_full_text=False
    )
    assert said[0]["generated_text"]
    assert said[0]["generated_text"] == open_run(run, device="cpu").write("the cat", tokens=12, temperature=0)


def test_a_pipeline_fills_in_what_we_fill_in(tmp_path):
    run = our_run(tmp_path / "run", "bert")
    export_run(run, tmp_path / "theirs")
    usual = [token for token in Tokenizer.load(run / "tokenizer.json").tokens(range(5, 30)) if token.isalpha()]
    said = transformers.pipeline("fill-mask", str(tmp_path / "theirs"))(
        "the [MASK] sat.", targets=usual, top_k=len(usual)
    )
    filled = open_run(run, device="cpu").fill("the [MASK] sat.", top=97)
    ours = {guess.text: guess.probability for guess in filled.guesses[0] if not guess.text.startswith("##")}
    ranked = [one["token_str"] for one in said]
    assert len(ranked) > 5
    assert ranked == sorted(usual, key=lambda word: -ours[word])


def test_a_pipeline_gives_the_class_we_give(tmp_path):
    run = our_run(tmp_path / "run", "bert classes")
    export_run(run, tmp_path / "theirs")
    pipeline = transformers.pipeline("text-classification", str(tmp_path / "theirs"))
    ours = open_run(run, device="cpu").classify(TEXT)
    for [mine], theirs in zip(ours, pipeline(TEXT), strict=True):
        assert theirs["label"] == mine.text
        assert theirs["score"] == pytest.approx(mine.probability, abs=1e-5)
    assert {mine.text for [mine] in ours} <= {"bad", "very good"}


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["t5", "t5 v1.1", "transformer"])
def test_generate_answers_what_we_answer(kind, tmp_path):
    run = our_run(tmp_path / "run", kind)
    export_run(run, tmp_path / "theirs")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "theirs").eval()
    assert model.generation_config.num_beams == 5
    assert model.generation_config.decoder_start_token_id == BOS
    batch = tokenizer(TEXT[:4], padding=True, return_tensors="pt")
    assert (batch["input_ids"] == PAD).any()
    said = model.generate(**batch, num_beams=1, max_new_tokens=8)[:, 1:].tolist()
    opened = open_run(run, device="cpu")
    ours = opened.search(opened.tokenizer.encode(TEXT[:4]), beam=1, batch=4, penalty=1.0)
    assert [row[: row.index(EOS)] if EOS in row else row for row in said] == [one.tokens[:8] for [one] in ours]
    assert all(one.tokens for [one] in ours)


@pytest.mark.parametrize(("key", "value"), [("norm", "pre"), ("positions", "learned"), ("tied", False)])
def test_a_transformer_that_is_no_marian_is_refused_with_the_key_that_differs(key, value, tmp_path, monkeypatch):
    config = TransformerConfig(**TINY, **{**MARIAN, key: value})
    monkeypatch.setitem(OURS, "other", ("transformer", config, "translate", "bpe"))
    run = our_run(tmp_path / "run", "other")
    with pytest.raises(
        ValueError, match=rf"^this transformer has {key} = {value!r}; .*train it with model\.{key}=\w+$"
    ):
        export_run(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Whole or not at all


def test_a_folder_that_is_there_is_not_touched(exported, tmp_path):
    _, run, theirs = exported
    (tmp_path / "mine").mkdir()
    for act, what in ((import_run, theirs), (export_run, run)):
        with pytest.raises(ValueError, match=r"mine already exists; give another folder, or remove it$"):
            act(what, tmp_path / "mine")
    assert not list((tmp_path / "mine").iterdir())


def test_a_disk_that_fails_leaves_nothing(exported, tmp_path, monkeypatch):
    _, run, theirs = exported
    kept = os.replace

    def full(source: Any, target: Any) -> None:
        if Path(target).name == "model.safetensors":
            raise OSError(28, "No space left on device")
        kept(source, target)

    monkeypatch.setattr(os, "replace", full)
    for act, what in ((import_run, theirs), (export_run, run)):
        with pytest.raises(OSError, match="No space left"):
            act(what, tmp_path / "out")
    assert not list(tmp_path.iterdir())


# Tokenizers of old

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "cafe", "Cafe", "café", ",", "東", "un", "##aff",
         "##able"]  # fmt: skip
ODD = ["The cats,", "CAFÉ cafe Café", "unaffable 東東", "it's", "", "cat\u00adcat\tthe"]


def bert_folder(folder: Path, **keys: Any) -> Path:
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **keys}))
    return folder


@pytest.mark.parametrize("key", ["", "do_lower_case", "strip_accents", "tokenize_chinese_chars"])
def test_a_list_of_words_is_read_as_berts_tokenizer(key, tmp_path):
    folder = bert_folder(tmp_path / "bert", **({key: False} if key else {}))
    theirs, ours = transformers.BertTokenizer.from_pretrained(folder), read_tokenizer(folder)
    assert [ours.encode(text).ids for text in ODD] == [theirs(text)["input_ids"] for text in ODD]
    assert ours.encode("the", "cat").type_ids == theirs("the", "cat")["token_type_ids"]


def test_merges_are_read_as_gpt2s_tokenizer(tmp_path):
    train_tokenizer(TEXT, "bytes", 300, ["<|endoftext|>"])._inner.model.save(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"vocab.json", "merges.txt"}
    theirs, ours = transformers.GPT2Tokenizer.from_pretrained(tmp_path), read_tokenizer(tmp_path)
    texts = [*TEXT, *ODD, "two\n\nlines  and   spaces ", "<|endoftext|>the"]
    assert [ours.encode(text).ids for text in texts] == [theirs(text)["input_ids"] for text in texts]
    assert ours.decode(ours.encode(ODD[1]).ids) == ODD[1]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            ["spiece.model"],
            r"no tokenizer\.json, only spiece\.model; make one with transformers, AutoTokenizer\.from_pretrained",
        ),
        (
            ["source.spm", "target.spm", "vocab.json"],
            r"no tokenizer\.json, and Marian's source\.spm, .* are not read; put one there, made with the tokenizers library",
        ),
        (
            [],
            r"there is no tokenizer\.json, nor vocab\.txt, nor vocab\.json and merges\.txt; make one with transformers",
        ),
        (["tokenizer.json"], r"^cannot read its tokenizer: "),
        (["vocab.txt"], r"^vocab\.txt has no \[UNK\]; wanted BERT's vocabulary, one token per line"),
    ],
    ids=str,
)
def test_a_tokenizer_that_cannot_be_read_is_said(files, said, tmp_path):
    for name in files:
        (tmp_path / name).write_text("x")
    with pytest.raises(ValueError, match=said) as error:
        read_tokenizer(tmp_path)
    assert "\n" not in str(error.value)


def test_a_marian_from_the_hub_is_known_without_its_pieces(tmp_path):
    """Only `vocab.json` of its three files is fetched."""
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    with pytest.raises(ValueError, match=r"Marian's source\.spm, target\.spm and vocab\.json are not read"):
        read_tokenizer(tmp_path)


def test_a_tokenizer_that_pads_and_cuts_does_neither_here(tmp_path):
    folder = bert_checkpoint(tmp_path / "theirs")
    inner = read_tokenizer(bert_folder(tmp_path / "words"))
    inner.enable_padding(length=30)
    inner.enable_truncation(4)
    inner.save(str(folder / "tokenizer.json"))
    import_run(folder, tmp_path / "run")
    kept = tokenizers.Tokenizer.from_file(str(tmp_path / "run" / "tokenizer.json"))
    assert (kept.padding, kept.truncation) == (None, None)


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    folder = bert_checkpoint(tmp_path / "theirs", vocab_size=10)
    shutil.copy(bert_folder(tmp_path / "words") / "vocab.txt", folder)
    with pytest.raises(
        ValueError, match=r"its tokenizer has ids up to 15, its model has 10 tokens; they are not from the same"
    ):
        import_run(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# What is refused


def bert_checkpoint(folder: Path, **keys: Any) -> Path:
    config = {"vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
              "max_position_embeddings": 20} | keys  # fmt: skip
    transformers.BertForMaskedLM(transformers.BertConfig(**config)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def gpt2_saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2") / "gpt2"
    config = transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=48)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def gpt2(gpt2_saved, tmp_path):
    return Path(shutil.copytree(gpt2_saved, tmp_path / "gpt2"))


def refused(folder: Path, said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        import_model(folder)
    assert "\n" not in str(error.value)


def test_a_tensor_of_another_shape_is_named(gpt2):
    weights = load_file(gpt2 / "model.safetensors")
    weights["transformer.h.1.mlp.c_fc.weight"] = torch.zeros(32, 96)
    save_file(weights, gpt2 / "model.safetensors")
    refused(gpt2, r"transformer\.h\.1\.mlp\.c_fc\.weight is \(32, 96\); its config\.json makes it \(32, 128\)$")


def test_a_tensor_that_is_missing_or_too_many_or_different_is_named(gpt2):
    weights = load_file(gpt2 / "model.safetensors")
    save_file(weights | {"transformer.h.0.extra.weight": torch.zeros(2)}, gpt2 / "model.safetensors")
    refused(gpt2, r"there is a tensor transformer\.h\.0\.extra\.weight that regard's gpt does not have$")
    save_file(weights | {"lm_head.weight": torch.zeros(97, 32)}, gpt2 / "model.safetensors")
    refused(gpt2, r"lm_head\.weight differs from transformer\.wte\.weight; regard's gpt ties them$")
    save_file(weights | {"transformer.ln_f.bias": torch.zeros(32, dtype=torch.int8)}, gpt2 / "model.safetensors")
    refused(gpt2, r"transformer\.ln_f\.bias holds torch\.int8; regard reads float32, float16 and bfloat16$")
    del weights["transformer.ln_f.bias"]
    save_file(weights, gpt2 / "model.safetensors")
    refused(gpt2, r"there is no tensor transformer\.ln_f\.bias; it is not the gpt its config\.json describes$")


def test_half_a_head_is_refused_and_none_is_said_on_the_card(tmp_path):
    folder = bert_checkpoint(tmp_path / "bert")
    weights = load_file(folder / "model.safetensors")
    save_file(
        {k: v for k, v in weights.items() if k != "cls.predictions.transform.dense.bias"}, folder / "model.safetensors"
    )
    refused(folder, r"there is no tensor cls\.predictions\.transform\.dense\.bias")
    save_file({k: v for k, v in weights.items() if not k.startswith("cls.")}, folder / "model.safetensors")
    shutil.copy(bert_folder(tmp_path / "words") / "vocab.txt", folder)
    import_run(folder, tmp_path / "run", name="some/bert")
    assert read_run(str(tmp_path / "run" / "run.toml"), ()).untrained == "lm_head,pooler"
    card = (tmp_path / "run" / "README.md").read_text()
    assert "checkpoint `some/bert`, a BertForMaskedLM of" in card
    assert "no weights for masked tokens and the pooled vector: these are randomly initialized" in card
    assert same(import_model(folder)[2], load_model(tmp_path / "run"))  # at random, but alike each time


def test_a_pickle_is_refused_with_the_way_to_convert_it(gpt2):
    (gpt2 / "model.safetensors").rename(gpt2 / "pytorch_model.bin")
    refused(gpt2, r"pytorch_model\.bin is a pickle, which can run any code.*transformers\.GPT2LMHeadModel\.from_pretrained.*"
                  r"safe_serialization=True\)$")  # fmt: skip
    (gpt2 / "pytorch_model.bin").unlink()
    refused(
        gpt2,
        r"there is no model\.safetensors \(nor other safetensors; pickles, .* neither fetched nor opened\)",
    )


def test_a_t5_saved_without_its_output_is_refused(tmp_path):
    config = transformers.T5Config(vocab_size=97, d_model=32, num_layers=1, num_heads=2, d_kv=16, d_ff=64,
                                   feed_forward_proj="gated-gelu", tie_word_embeddings=False)  # fmt: skip
    transformers.T5Model(config).save_pretrained(tmp_path / "t5")
    refused(
        tmp_path / "t5", r"no tensor lm_head\.weight; .* save it again as a transformers\.T5ForConditionalGeneration$"
    )


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"model_type": ["gpt2"]}, r"model_type = \['gpt2'\]"),
        ({"architectures": 5}, "architectures = 5; wanted a list of names"),
        ({"architectures": {"a": 1}}, "wanted a list of names"),
        ({"architectures": [1]}, "wanted a list of names"),
    ],
)
def test_a_config_of_wrong_types_is_refused_in_one_line(gpt2, said, wanted):
    file = gpt2 / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | said))
    refused(gpt2, wanted)


def test_a_file_that_is_cut_off_or_missing_is_named(gpt2):
    file = gpt2 / "model.safetensors"
    whole = file.read_bytes()
    for content in (whole[:-100], whole[:20], b""):
        file.write_bytes(content)
        refused(gpt2, r"model\.safetensors is damaged \(.*download it again$")
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    refused(gpt2, r"model\.safetensors is a Git LFS pointer; run `git lfs pull` there$")
    (gpt2 / "config.json").write_text("{")
    refused(gpt2, r"config\.json is damaged \(.*download it again$")
    (gpt2 / "config.json").write_text("[]")
    refused(gpt2, r"config\.json is damaged \(no table of keys\)")
    (gpt2 / "config.json").unlink()
    refused(gpt2, r"there is no config\.json; give the folder of a Hugging Face checkpoint$")
    refused(gpt2 / "nowhere", r"nowhere: there is no config\.json")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            {"a": "model-1.safetensors"},
            r"there is no model-1\.safetensors, which model\.safetensors\.index\.json names; download it$",
        ),
        ({"a": "../elsewhere.safetensors"}, r"index\.json is damaged \(no names of files beside it\)"),
        ("none", r"index\.json is damaged \(no names of files beside it\)"),
    ],
    ids=str,
)
def test_an_index_of_files_that_are_not_there_is_refused(names, said, gpt2):
    (gpt2 / "model.safetensors").rename(gpt2.parent / "elsewhere.safetensors")
    (gpt2 / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    refused(gpt2, said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "gpt3"}, r"model_type = 'gpt3' \(did you mean 'gpt2'\?\); regard reads gpt2, bert, .*, resnet$"),
        ({"model_type": None}, r"config\.json has model_type = None; regard reads gpt2, bert, .*, resnet$"),
        ({"activation_function": "relu"}, r"activation_function = 'relu'; regard's model has 'gelu_new' or 'gelu_pytorch_tanh'$"),
        ({"n_embd": None}, r"config\.json has n_embd = None; wanted a number$"),
        ({"n_embd": "many"}, r"config\.json has n_embd = 'many'; wanted a number$"),
        ({"n_head": 5}, r"width 32 does not split into 5 heads; use a multiple of 5$"),
        ({"n_inner": -4}, r"mlp_dim is -4; use 0 or more$"),
        ({"resid_pdrop": "no"}, r"config\.json\.dropout: .*got 'no'$"),
    ],
    ids=str,
)  # fmt: skip
def test_what_regard_does_not_do_is_said(gpt2, change, said):
    file = gpt2 / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    refused(gpt2, said)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: transformers.BertForTokenClassification(small_bert()),
            r"architectures = 'BertForTokenClassification'",
        ),
        (
            lambda: transformers.BertForMaskedLM(small_bert(layer_norm_eps=1e-5)),
            r"layer_norm_eps = 1e-05; .* has 1e-12$",
        ),
        (
            lambda: transformers.MarianMTModel(small_marian(scale_embedding=False)),
            r"scale_embedding = False; .* has True$",
        ),
        (
            lambda: transformers.MarianMTModel(small_marian(decoder_layers=2)),
            r"decoder_layers = 2; regard's model has 1$",
        ),
        (
            lambda: transformers.MarianMTModel(small_marian(activation_function="gelu")),
            r"= 'gelu'; .* has 'relu' or 'swish'",
        ),
    ],
    ids=["token classes", "another epsilon", "not scaled", "shallow decoder", "gelu"],
)
def test_other_models_of_a_family_are_refused(make: Callable[[], Any], said, tmp_path):
    make().save_pretrained(tmp_path)
    refused(tmp_path, said)


def small_bert(**keys: Any) -> Any:
    return transformers.BertConfig(
        vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, **keys
    )


def small_marian(**keys: Any) -> Any:
    sides = {f"{side}_{key}": n for side in ("encoder", "decoder")
             for key, n in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))}  # fmt: skip
    rest = {"vocab_size": 16, "d_model": 8, "scale_embedding": True, "activation_function": "relu", "pad_token_id": 15,
            "decoder_start_token_id": 15}  # fmt: skip
    return transformers.MarianConfig(**{**rest, **sides, **keys})


# Marks, in the tokenizer and in the tables


def letters(folder: Path) -> None:
    """A tokenizer whose padding, start and end are 0, 1 and 2."""
    train_tokenizer(["abc"], "characters", 16).save(folder / "tokenizer.json")


def change(file: Path, **keys: Any) -> None:
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | keys))


def import_refused(folder: Path, said: str, **how: Any) -> None:
    to = folder.parent / "refused"
    with pytest.raises(ValueError, match=said) as error:
        import_run(folder, to, **how)
    assert "\n" not in str(error.value)
    assert not to.exists()


def test_padding_that_model_and_tokenizer_number_differently_is_refused(tmp_path):
    transformers.MarianMTModel(small_marian()).save_pretrained(tmp_path / "marian")
    letters(tmp_path / "marian")
    import_refused(tmp_path / "marian", r"config\.json has pad_token_id = 15, its tokenizer has <pad> = 0 for that; use the "
                   r"tokenizer the model was trained with, or correct config\.json$")  # fmt: skip


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("key", "token"),
    [("pad_token_id", "<pad> = 0"), ("eos_token_id", "</s> = 2"), ("decoder_start_token_id", "<s> = 1")],
)
@pytest.mark.parametrize("kind", ["t5", "marian"])
def test_another_padding_start_or_end_is_refused_with_both_numbers(kind, key, token, file, tmp_path):
    ends = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1}
    if kind == "t5":
        sizes = {"vocab_size": 16, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **ends))
    else:
        model = transformers.MarianMTModel(small_marian(**ends, bos_token_id=2))  # Marians write one that is never used
    theirs = tmp_path / "theirs"
    model.save_pretrained(theirs)
    letters(theirs)
    import_run(theirs, tmp_path / "run")
    change(theirs / file, **{key: 9})
    import_refused(theirs, rf"theirs: {file} has {key} = 9, its tokenizer has {token} for that; use")


@pytest.mark.parametrize(("key", "token"), [("eos_token_id", "</s> = 2"), ("bos_token_id", "<s> = 1")])
def test_another_start_or_end_of_a_gpt_is_refused_and_its_padding_means_nothing(key, token, gpt2):
    letters(gpt2)
    change(gpt2 / "config.json", bos_token_id=1, eos_token_id=[2], pad_token_id=50)
    change(gpt2 / "generation_config.json", bos_token_id=1, eos_token_id=2)
    import_run(gpt2, gpt2.parent / "run")
    assert open_run(gpt2.parent / "run", device="cpu").tokenizer.special.eos == 2  # 97 in the model, 8 in the tokenizer
    change(gpt2 / "config.json", **{key: 3})
    import_refused(gpt2, rf"config\.json has {key} = 3, its tokenizer has {token}")


def test_of_a_berts_marks_only_padding_counts(tmp_path):
    folder = bert_checkpoint(tmp_path / "theirs", bos_token_id=7, eos_token_id=8)
    shutil.copy(bert_folder(tmp_path / "words") / "vocab.txt", folder)
    import_run(folder, tmp_path / "run")
    change(folder / "config.json", pad_token_id=5)
    import_refused(folder, r"config\.json has pad_token_id = 5, its tokenizer has \[PAD\] = 0")


# Heads that a checkpoint lacks


def their_bert(folder: Path, kind: str, **keys: Any) -> Path:
    loud(getattr(transformers, kind)(small_bert(max_position_embeddings=20, **keys))).save_pretrained(folder)
    shutil.copytree(bert_folder(folder.with_name(f"{folder.name} words")), folder, dirs_exist_ok=True)
    return folder


@pytest.mark.parametrize(("kind", "untrained"), [
    ("BertModel", "lm_head"), ("BertForMaskedLM", "pooler"), ("BertForPreTraining", ""),
    ("BertForSequenceClassification", "lm_head"),
])  # fmt: skip
def test_a_head_that_a_checkpoint_lacks_is_lacking_when_it_goes_back(kind, untrained, tmp_path):
    theirs = their_bert(tmp_path / "theirs", kind)
    import_run(theirs, tmp_path / "run")
    assert read_run(str(tmp_path / "run" / "run.toml"), ()).untrained == untrained
    export_run(tmp_path / "run", tmp_path / "back")
    before, after = (load_file(folder / "model.safetensors") for folder in (theirs, tmp_path / "back"))
    learnt = {name: tensor for name, tensor in before.items() if "seq_relationship" not in name}
    assert after.keys() == learnt.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in learnt.items())
    [named] = json.loads((tmp_path / "back" / "config.json").read_text())["architectures"]
    assert named == ("BertForMaskedLM" if kind == "BertForPreTraining" else kind)
    _, info = getattr(transformers, named).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not info["missing_keys"]
    import_run(tmp_path / "back", tmp_path / "again")
    assert same(load_model(tmp_path / "again"), load_model(tmp_path / "run"))
    assert read_run(str(tmp_path / "again" / "run.toml"), ()).untrained == untrained


def test_a_pooler_that_was_trained_for_classes_is_not_left_out(tmp_path):
    """A run with classes that began from a checkpoint without one still says that it was lacking."""
    run = our_run(tmp_path / "run", "bert classes")
    (run / "run.toml").write_text(
        (run / "run.toml").read_text().replace('untrained = ""', 'untrained = "lm_head,pooler"')
    )
    export_run(run, tmp_path / "theirs")
    names = load_file(tmp_path / "theirs" / "model.safetensors")
    assert "bert.pooler.dense.weight" in names
    assert not any(name.startswith("cls.") for name in names)


def test_classes_without_a_pooler_are_refused(tmp_path):
    theirs = their_bert(tmp_path / "theirs", "BertForSequenceClassification")
    file = theirs / "model.safetensors"
    save_file({k: v for k, v in load_file(file).items() if "pooler" not in k}, file)
    import_refused(theirs, r"there is no tensor bert\.pooler\.dense\.weight")


# Classes


@pytest.mark.parametrize(("keys", "said"), [
    ({"num_labels": 1}, r"has one output \(a score, .*\); regard's model needs two or more classes: use"),
    ({"problem_type": "multi_label_classification"}, r"problem_type = 'multi_label_classification'; .* one class, 'single"),
    ({"problem_type": "regression", "num_labels": 3}, r"config\.json has problem_type = 'regression'; .*: use a checkp"),
], ids=str)  # fmt: skip
def test_numbers_and_several_classes_at_once_are_refused(keys, said, tmp_path):
    import_refused(their_bert(tmp_path / "theirs", "BertForSequenceClassification", **keys), said)


def test_names_of_classes_come_one_a_line(tmp_path):
    theirs = their_bert(tmp_path / "theirs", "BertForSequenceClassification",
                        problem_type="single_label_classification", num_labels=3)  # fmt: skip
    change(theirs / "config.json", id2label={"0": "no", "2": " not  sure"})
    import_run(theirs, tmp_path / "run")
    assert (tmp_path / "run" / "labels.txt").read_text() == "no\nLABEL_1\n not  sure\n"
    assert open_run(tmp_path / "run", device="cpu").labels == ("no", "LABEL_1", " not  sure")


@pytest.mark.parametrize("name", ["two\nlines", "two\rlines", "two\u2028lines", "end\n", "", "  "])
def test_a_name_of_a_class_that_is_no_line_is_refused(name, tmp_path):
    theirs = their_bert(tmp_path / "theirs", "BertForSequenceClassification")
    change(theirs / "config.json", id2label={"0": "no", "1": name})
    import_refused(theirs, r"config\.json has id2label 1 = '.*'; wanted a name on one line, .*: correct config\.json$")


# What sentence-transformers adds

KINDS = ("Transformer", "Pooling", "Normalize")
MODES = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def embedder(folder: Path, pooling: dict[str, Any], kinds: tuple[str, ...] = KINDS, **keys: Any) -> Path:
    their_bert(folder, "BertModel")
    modules = [{"idx": n, "type": f"sentence_transformers.models.{kind}"} for n, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps(keys))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 8} | pooling))
    return folder


def modes(*on: str) -> dict[str, bool]:
    return {f"pooling_mode_{mode}": mode in on for mode in MODES}


@pytest.mark.parametrize(
    "pooling", [modes("mean_tokens"), {"pooling_mode": "mean"}, {"pooling_mode": ["mean"]}], ids=str
)
@pytest.mark.parametrize(("most", "max_len"), [(12, 10), (3, 2), (512, 18), (None, 20)])  # the model has 20 places
def test_a_model_that_embeds_by_the_mean_is_read_with_its_length(pooling, most, max_len, tmp_path):
    import_run(embedder(tmp_path / "theirs", pooling, max_seq_length=most), tmp_path / "run")
    assert read_run(str(tmp_path / "run" / "run.toml"), ()).data.max_len == max_len
    assert open_run(tmp_path / "run", device="cpu").embed(["the cat"]).shape == (1, 8)


@pytest.mark.parametrize(("pooling", "said"), [
    (modes("cls_token"), r"\['cls_token'\]"), (modes("mean_tokens", "max_tokens"), r"\['max_tokens', 'mean_tokens'\]"),
    (modes(), r"\[\]"), ({"pooling_mode": "cls"}, "'cls'"), ({"pooling_mode": ["mean", "max"]}, r"\['mean', 'max'\]"),
], ids=str)  # fmt: skip
def test_a_model_that_embeds_otherwise_is_refused(pooling, said, tmp_path):
    import_refused(embedder(tmp_path / "theirs", pooling), rf"1_Pooling/config\.json has pooling_mode = {said}; regard embeds "
                   r"a text by the mean of its tokens: use a checkpoint that does$")  # fmt: skip


def test_a_module_after_the_mean_is_refused_and_a_missing_one_named(tmp_path):
    folder = embedder(tmp_path / "theirs", modes("mean_tokens"), (*KINDS[:2], "Dense"))
    import_refused(folder, r"modules\.json has a Dense after the model; .*: use a checkpoint without it$")
    folder = embedder(tmp_path / "other", modes("mean_tokens"))
    shutil.rmtree(folder / "1_Pooling")
    import_refused(folder, r"there is no 1_Pooling/config\.json, though modules\.json has a Pooling; download it$")


# Numbers


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_tensor_that_holds_no_numbers_is_named(value, gpt2):
    weights = load_file(gpt2 / "model.safetensors")
    weights["transformer.h.1.mlp.c_fc.bias"][3] = value
    save_file(weights, gpt2 / "model.safetensors")
    refused(gpt2, r"transformer\.h\.1\.mlp\.c_fc\.bias has NaN or infinite values; download it again")
    weights["transformer.h.1.mlp.c_fc.bias"][3] = 0
    weights["transformer.wte.weight"][3] = value
    save_file(weights | {"lm_head.weight": weights["transformer.wte.weight"].clone()}, gpt2 / "model.safetensors")
    refused(gpt2, r"transformer\.wte\.weight has NaN or infinite values")


def test_a_model_of_one_place_is_refused_in_one_line(tmp_path):
    config = transformers.GPT2Config(
        vocab_size=16, n_embd=8, n_layer=1, n_head=2, n_positions=1, bos_token_id=1, eos_token_id=2
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "theirs")
    letters(tmp_path / "theirs")
    import_refused(tmp_path / "theirs", r"max_len is 1; use 2 or more$")


# What stands around a text there


@pytest.mark.parametrize(("kind", "ends"), [("gpt", (0, 0)), ("bert", (1, 1)), ("t5", (0, 1)), ("transformer", (0, 1))])
def test_our_word_pieces_get_the_ends_of_the_model_that_reads_them(kind, ends, tmp_path, monkeypatch):
    monkeypatch.setitem(OURS, "pieces", (*OURS[kind][:3], "wordpiece"))
    run = our_run(tmp_path / "run", "pieces")
    export_run(run, tmp_path / "theirs")
    ours, theirs = (
        Tokenizer.load(run / "tokenizer.json"),
        transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs"),
    )
    [ids] = ours.encode(["the cat"])
    first, last = ends
    assert theirs("the cat")["input_ids"] == [BOS] * first + ids + [EOS] * last


def test_an_imported_tokenizer_keeps_the_ends_it_has(tmp_path):
    run = our_run(tmp_path / "run", "gpt")
    inner = read_tokenizer(bert_folder(tmp_path / "words"))
    inner.save(str(run / "tokenizer.json"))
    export_run(run, tmp_path / "theirs")
    assert read_tokenizer(tmp_path / "theirs").encode("the").tokens == ["[CLS]", "the", "[SEP]"]


# The hub


def test_without_the_extra_a_name_of_the_hub_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        ValueError, match=r"^no folder bert-base-uncased, and huggingface_hub is not installed.*regard\[hub\]'$"
    ):
        fetch("bert-base-uncased")


@pytest.mark.parametrize("name", ["bert-base-uncased", "no such/name/at all"])
def test_a_hub_that_does_not_answer_is_said_in_one_line(name, tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        ValueError, match=rf"^no folder {name}, and the download from the hub failed \(.+\); check the name"
    ) as error:
        fetch(name)
    assert "\n" not in str(error.value)


def test_no_more_is_fetched_than_what_is_read(monkeypatch, tmp_path):
    from huggingface_hub.utils import filter_repo_objects

    asked: dict[str, Any] = {}
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda name, **how: asked.update(how, name=name) or str(tmp_path)
    )
    assert fetch("some/model") == tmp_path
    assert asked.pop("name") == "some/model"
    wanted = ["config.json", "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
              "tokenizer.json", "vocab.txt", "1_Pooling/config.json", "sentence_bert_config.json", "README.md"]  # fmt: skip
    other = ["pytorch_model.bin", "modeling.py", "onnx/config.json", "onnx/model.safetensors", "2_Dense/config.json",
             "1_Pooling/pytorch_model.bin", "docs/README.md", "tf_model.h5", "train_script.py"]  # fmt: skip
    assert list(filter_repo_objects([*wanted, *other], **asked)) == wanted


@pytest.mark.parametrize("broken", ["config.json", "model.safetensors", "tokenizer.json", "vocabulary"])
def test_what_is_wrong_is_said_of_the_name_that_was_given(broken, tmp_path):
    theirs = bert_checkpoint(tmp_path / "snapshots" / "0123abcd", vocab_size=10 if broken == "vocabulary" else 16)
    shutil.copy(bert_folder(tmp_path / "words") / "vocab.txt", theirs)
    if broken != "vocabulary":
        (theirs / broken).write_text("{")
    import_refused(theirs, r"^some/bert: ", name="some/bert")
    with pytest.raises(ValueError, match=rf"^{theirs}: "):
        import_run(theirs, tmp_path / "run")
    with pytest.raises(ValueError, match=r"^some/bert: ") as error:
        import_run(theirs, tmp_path / "run", name="some/bert")
    assert "0123abcd" not in str(error.value)
