"""A trained checkpoint, all-MiniLM-L6-v2: same vectors as transformers gives."""

import torch
import transformers
from safetensors.torch import load_file
from torch import nn

from regard.interop.hf import export_run, import_model, import_run
from regard.tasks import read_run

TEXTS = [
    "A man is playing the guitar on stage.",
    "Someone performs music in front of an audience.",
    "The stock market fell sharply on Tuesday!",
    "",
    "naïve café — 東京 [MASK] </s> unaffable",
    " ".join(["Attention is all you need."] * 30),
]


@torch.inference_mode()
def test_minilm_gives_the_same_vectors(minilm):
    folder = minilm
    theirs, tokenizer = (
        transformers.BertModel.from_pretrained(folder).eval(),
        transformers.AutoTokenizer.from_pretrained(folder),
    )
    _, _, ours = import_model(folder)
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=256, return_tensors="pt")
    real = batch["attention_mask"].bool()
    assert not real.all()
    wanted, got = theirs(**batch), ours.encode(batch["input_ids"], real[:, None, None])
    torch.testing.assert_close(got[real], wanted.last_hidden_state[real], rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.pooled(got), wanted.pooler_output, rtol=0, atol=1e-5)


def test_minilm_export_then_import_keeps_every_tensor(minilm, tmp_path):
    import_run(minilm, tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "back")
    before, after = (load_file(folder / "model.safetensors") for folder in (minilm, tmp_path / "back"))
    weights = {name: tensor for name, tensor in before.items() if tensor.is_floating_point()}
    assert after.keys() == weights.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in weights.items())


@torch.inference_mode()
def test_minilm_as_a_run_embeds_sentences_as_transformers_does(minilm, tmp_path):
    from regard.tasks.load import load

    folder = minilm
    theirs, tokenizer = (
        transformers.BertModel.from_pretrained(folder).eval(),
        transformers.AutoTokenizer.from_pretrained(folder),
    )
    import_run(folder, tmp_path / "minilm")
    texts = [text.replace("[MASK] </s> ", "") for text in TEXTS]  # we read the names of special tokens as text
    got = load(tmp_path / "minilm", device="cpu").embed(texts)
    batch = tokenizer(texts, padding=True, truncation=True, max_length=512, return_tensors="pt")
    real = batch["attention_mask"][:, :, None]
    mean = (theirs(**batch).last_hidden_state * real).sum(1) / real.sum(1)
    wanted = nn.functional.normalize(mean)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)
    assert read_run(tmp_path / "minilm" / "run.toml").data.max_len == 254  # 256 with start and end
    alike = got @ got.T
    assert alike[0, 1] > 0.3 > 0.1 > alike[0, 2]  # similar sentences are closer
