"""Checkpoints as OPUS-MT and T5 are published: the same tokens, logits and translations as those of transformers."""

from typing import Any

import pytest
import torch
import transformers
from hf_models import CLOSE
from spm_checkpoints import CODES, hostile, lines, marian_folder, randomize, train_spm

from regard.data.text.batches import pad
from regard.interop.hf import import_run
from regard.tasks.load import load

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
FAMILIES: dict[str, dict[str, Any]] = {
    "shared vocabulary": {"lacking": 30},
    "two vocabularies": {"separate": True, "lacking": 10, "scripts": ("devanagari", "latin")},
    "many languages": {"codes": CODES, "scripts": ("latin", "devanagari")},
    "other special ids": {"first": ("<pad>", "<s>", "</s>", "<unk>"), "model_type": "bpe"},
}
TEXTS = 24


def t5_folder(folder: Any) -> Any:
    """A T5 with random weights and its spiece.model."""
    folder.mkdir()
    processor = train_spm(folder / "spiece.model", lines(), 300, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    config = transformers.T5Config(vocab_size=len(processor) + 128, d_model=32, num_layers=2, num_heads=4, d_kv=8, d_ff=64,
                                   decoder_start_token_id=0)  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    randomize(model)
    model.generation_config.update(num_beams=4, max_length=24, early_stopping=True)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module", params=[*FAMILIES, "t5"])
def both(request, tmp_path_factory):
    """The model and tokenizer of transformers, our translator, and texts."""
    home = tmp_path_factory.mktemp("opus")
    t5 = request.param == "t5"
    model = t5_folder(home / "theirs") if t5 else marian_folder(home / "theirs", **FAMILIES[request.param])
    model.set_attn_implementation("eager")
    tokenizer = (transformers.T5Tokenizer if t5 else transformers.MarianTokenizer).from_pretrained(home / "theirs")
    import_run(home / "theirs", home / "run")
    script = "devanagari" if request.param == "two vocabularies" else "latin"
    texts = [*lines(script)[: TEXTS - 6], *(text for text in hostile(60)[21:] if "<" not in text and len(text) < 100)][:TEXTS]
    texts += [f"{code} {text}" for code in CODES[: 2 if request.param == "many languages" else 0] for text in texts[:6]]
    return model, tokenizer, load(home / "run", device="cpu"), texts


@torch.inference_mode()
def test_tokens_and_logits_are_those_of_transformers(both):
    model, tokenizer, translator, texts = both
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    source = pad(translator.encode(texts), translator.tokenizer.special)
    assert torch.equal(source, batch["input_ids"])
    answers = tokenizer(text_target=lines("cyrillic")[: len(texts)], return_tensors="pt", padding=True)["input_ids"][:, :40]
    start = torch.full((len(answers), 1), model.config.decoder_start_token_id)
    target = torch.cat((start, answers), 1)[: len(texts)]
    wanted = model(**batch, decoder_input_ids=target).logits
    torch.testing.assert_close(translator.model(source, target), wanted, **CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("width", [1, 4], ids=["greedy", "beam"])
def test_translations_are_those_of_transformers(both, width):
    model, tokenizer, translator, texts = both
    texts = [text for text in texts if translator.encode([text])[0]]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    wanted = tokenizer.batch_decode(model.generate(**batch, num_beams=width), skip_special_tokens=True)
    answers = translator.translate(texts, beam=width, split=False, protect=False)
    assert [answer.text for answer in answers] == wanted
    assert len(set(wanted)) >= 4  # the answers depend on the texts


def test_a_published_checkpoint_is_imported_and_translates_on_the_command_line(tmp_path, regard):
    marian_folder(tmp_path / "opus-mt-en-ru")
    assert regard("import", tmp_path / "opus-mt-en-ru", "--to", tmp_path / "run").code == 0
    result = regard("translate", tmp_path / "run", "--beam", "1", "Training is fast.")
    [wanted] = load(tmp_path / "run", device="cpu").translate(["Training is fast."], beam=1)
    assert (result.code, result.out) == (0, f"{wanted.text}\n")
