"""Tokenizers of checkpoints: old file formats, special tokens, and the template that transformers applies."""

import shutil

import pytest
import tokenizers
import transformers
from text_checkpoints import (
    ODD,
    OURS,
    TEXT,
    assert_run_refused,
    bert_checkpoint,
    bert_tokenizer_folder,
    make_run,
    save_character_tokenizer,
    small_marian,
    update_json,
)

from regard.data.text.tokenizer import BOS, EOS, Tokenizer, train_tokenizer
from regard.interop.hf import export_run, import_run
from regard.interop.tokenizer import read_tokenizer
from regard.tasks.load import load as open_run


@pytest.mark.parametrize("key", ["", "do_lower_case", "strip_accents", "tokenize_chinese_chars"])
def test_vocab_txt_is_read_as_berts_tokenizer(key, tmp_path):
    folder = bert_tokenizer_folder(tmp_path / "bert", **({key: False} if key else {}))
    theirs, ours = transformers.BertTokenizer.from_pretrained(folder), read_tokenizer(folder)
    assert [ours.encode(text).ids for text in ODD] == [theirs(text)["input_ids"] for text in ODD]
    assert ours.encode("the", "cat").type_ids == theirs("the", "cat")["token_type_ids"]


def test_merges_txt_is_read_as_gpt2s_tokenizer(tmp_path):
    train_tokenizer(TEXT, "bytes", 300, ["<|endoftext|>"])._inner.model.save(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"vocab.json", "merges.txt"}
    theirs, ours = transformers.GPT2Tokenizer.from_pretrained(tmp_path), read_tokenizer(tmp_path)
    texts = [*TEXT, *ODD, "two\n\nlines  and   spaces ", "<|endoftext|>the"]
    assert [ours.encode(text).ids for text in texts] == [theirs(text)["input_ids"] for text in texts]
    assert ours.decode(ours.encode(ODD[1]).ids) == ODD[1]


@pytest.mark.parametrize(("files", "message"), [
    (["spiece.model"], r"no tokenizer\.json, only spiece\.model; make one with transformers, AutoTokenizer\.from_pretrained"),
    ([], r"there is no tokenizer\.json, nor vocab\.txt, nor vocab\.json and merges\.txt; make one with transformers"),
    (["tokenizer.json"], r"^cannot read its tokenizer: "),
    (["vocab.txt"], r"^vocab\.txt has no \[UNK\]; wanted BERT's vocabulary, one token per line"),
], ids=str)  # fmt: skip
def test_an_unreadable_tokenizer_gets_a_hint(files, message, tmp_path):
    for name in files:
        (tmp_path / name).write_text("x")
    with pytest.raises(ValueError, match=message) as error:
        read_tokenizer(tmp_path)
    assert "\n" not in str(error.value)


def test_a_marian_without_tokenizer_json_gets_its_own_hint(tmp_path):
    transformers.MarianMTModel(small_marian()).save_pretrained(tmp_path / "marian")
    assert_run_refused(tmp_path / "marian", r"no tokenizer\.json, and no source\.spm, the first of the three files of a Marian "
                       r"tokenizer, beside target\.spm and vocab\.json: download them")  # fmt: skip


def test_an_imported_tokenizer_neither_pads_nor_truncates(tmp_path):
    folder = bert_checkpoint(tmp_path / "theirs")
    inner = read_tokenizer(bert_tokenizer_folder(tmp_path / "words"))
    inner.enable_padding(length=30)
    inner.enable_truncation(4)
    inner.save(str(folder / "tokenizer.json"))
    import_run(folder, tmp_path / "run")
    stored = tokenizers.Tokenizer.from_file(str(tmp_path / "run" / "tokenizer.json"))
    assert (stored.padding, stored.truncation) == (None, None)


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    folder = bert_checkpoint(tmp_path / "theirs", vocab_size=10)
    shutil.copy(bert_tokenizer_folder(tmp_path / "words") / "vocab.txt", folder)
    with pytest.raises(ValueError, match=r"its tokenizer has ids up to 15, its model has 10 tokens; they are not from the same"):
        import_run(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_padding_id_that_differs_between_model_and_tokenizer_is_refused(tmp_path):
    transformers.MarianMTModel(small_marian()).save_pretrained(tmp_path / "marian")
    save_character_tokenizer(tmp_path / "marian")
    assert_run_refused(tmp_path / "marian", r"config\.json has pad_token_id = 15, its tokenizer has <pad> = 0 for that; use the "
                   r"tokenizer the model was trained with, or correct config\.json$")  # fmt: skip


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("key", "token"), [("pad_token_id", "<pad> = 0"), ("eos_token_id", "</s> = 2"), ("decoder_start_token_id", "<s> = 1")]
)
@pytest.mark.parametrize("kind", ["t5", "marian"])
def test_a_different_special_token_is_refused_with_both_ids(kind, key, token, file, tmp_path):
    ends = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1}
    if kind == "t5":
        sizes = {"vocab_size": 16, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **ends))
    else:
        model = transformers.MarianMTModel(small_marian(**ends, bos_token_id=2))  # Marian checkpoints have one, and never use it
    theirs = tmp_path / "theirs"
    model.save_pretrained(theirs)
    save_character_tokenizer(theirs)
    import_run(theirs, tmp_path / "run")
    update_json(theirs / file, **{key: 9})
    assert_run_refused(theirs, rf"theirs: {file} has {key} = 9, its tokenizer has {token} for that; use")


@pytest.mark.parametrize(("key", "token"), [("eos_token_id", "</s> = 2"), ("bos_token_id", "<s> = 1")])
def test_a_gpt_with_a_different_start_or_end_is_refused_and_its_padding_is_ignored(key, token, gpt2):
    save_character_tokenizer(gpt2)
    update_json(gpt2 / "config.json", bos_token_id=1, eos_token_id=[2], pad_token_id=50)
    update_json(gpt2 / "generation_config.json", bos_token_id=1, eos_token_id=2)
    import_run(gpt2, gpt2.parent / "run")
    assert open_run(gpt2.parent / "run", device="cpu").tokenizer.special.eos == 2  # the model has 97 tokens, the tokenizer 8
    update_json(gpt2 / "config.json", **{key: 3})
    assert_run_refused(gpt2, rf"config\.json has {key} = 3, its tokenizer has {token}")


def test_only_the_padding_id_of_a_bert_is_checked(tmp_path):
    folder = bert_checkpoint(tmp_path / "theirs", bos_token_id=7, eos_token_id=8)
    shutil.copy(bert_tokenizer_folder(tmp_path / "words") / "vocab.txt", folder)
    import_run(folder, tmp_path / "run")
    update_json(folder / "config.json", pad_token_id=5)
    assert_run_refused(folder, r"config\.json has pad_token_id = 5, its tokenizer has \[PAD\] = 0")


@pytest.mark.parametrize(("kind", "ends"), [("gpt", (0, 0)), ("bert", (1, 1)), ("t5", (0, 1)), ("transformer", (0, 1))])
def test_exported_word_pieces_get_the_template_of_the_model(kind, ends, tmp_path, monkeypatch):
    monkeypatch.setitem(OURS, "pieces", (*OURS[kind][:3], "wordpiece"))
    run = make_run(tmp_path / "run", "pieces")
    export_run(run, tmp_path / "theirs")
    ours, theirs = (Tokenizer.load(run / "tokenizer.json"), transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs"))
    [ids] = ours.encode(["the cat"])
    first, last = ends
    assert theirs("the cat")["input_ids"] == [BOS] * first + ids + [EOS] * last


def test_an_imported_tokenizer_keeps_its_template(tmp_path):
    run = make_run(tmp_path / "run", "gpt")
    inner = read_tokenizer(bert_tokenizer_folder(tmp_path / "words"))
    inner.save(str(run / "tokenizer.json"))
    export_run(run, tmp_path / "theirs")
    assert read_tokenizer(tmp_path / "theirs").encode("the").tokens == ["[CLS]", "the", "[SEP]"]


def test_a_huge_vocabulary_is_refused_before_its_tokenizer_is_built(monkeypatch, tmp_path):
    folder = bert_checkpoint(tmp_path / "theirs")
    train_tokenizer(TEXT, "wordpiece", 97).save(folder / "tokenizer.json")
    monkeypatch.setattr(tokenizers.Tokenizer, "from_file", None)  # would raise a TypeError
    assert_run_refused(
        folder, r"cannot read its tokenizer: it has \d+ tokens, its model has 16; they are not from the same check"
    )
