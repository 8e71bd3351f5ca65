"""GPT, BERT, T5 and Marian with imported weights equal Hugging Face's: same logits, same greedy output, exact round trip."""

import pytest
import torch
import transformers
from hf_models import (
    BERT,
    CLOSE,
    REAL,
    SMALL,
    Both,
    hf_model,
    logits,
    perturb,
    randomize,
    same_weights,
    sentences,
    sharpen_attention,
    special_tokens,
)

from regard.data.text.tokenizer import SpecialTokens
from regard.decode import search
from regard.decode.fast import decoder
from regard.interop.hf import export_model, import_model


@pytest.fixture(scope="module", params=SMALL)
def both(request, tmp_path_factory):
    """Hugging Face's model, and ours imported from it."""
    kind = request.param
    theirs, folder = randomize(hf_model(kind, SMALL)), tmp_path_factory.mktemp("theirs")
    theirs.save_pretrained(folder)
    return Both(kind, theirs, *import_model(folder), SMALL[kind][3])


@torch.inference_mode()
def test_logits_equal_hugging_faces_with_padding(both):
    wanted, got = logits(both)
    assert wanted.std() > 0.1
    torch.testing.assert_close(got, wanted, **CLOSE)


@torch.inference_mode()
def test_from_pretrained_loads_an_export_with_the_same_logits(both, tmp_path):
    export_model(both.family, both.config, both.ours, tmp_path, special_tokens(both.pad))
    again, info = type(both.theirs).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    spare = {"bert": "bert.pooler", "bert classes": "cls.predictions"}  # that class has no such head
    assert all(name.startswith(spare[both.kind.partition(",")[0]]) for name in info["unexpected_keys"])
    wanted, got = logits(both._replace(theirs=again.eval()))
    torch.testing.assert_close(got, wanted, **CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("both", ["t5", "marian"], indirect=True)
def test_an_export_names_the_start_and_end_tokens(both, tmp_path):
    export_model(both.family, both.config, both.ours, tmp_path, SpecialTokens(both.pad, 7, 4, 2, None, ()))
    generation = type(both.theirs).from_pretrained(tmp_path).generation_config
    assert (generation.decoder_start_token_id, generation.eos_token_id, generation.pad_token_id) == (7, 4, both.pad)
    with pytest.raises(ValueError, match=r"tokens that start and end an output; give .* special=tokenizer\.special\)$"):
        export_model(both.family, both.config, both.ours, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_export_then_import_is_bit_identical(both, tmp_path):
    export_model(both.family, both.config, both.ours, tmp_path, special_tokens(both.pad))
    family, config, again = import_model(tmp_path)
    assert (family, config) == (both.family, both.config)
    assert same_weights(again, both.ours)


@torch.inference_mode()
@pytest.mark.parametrize("kind", [kind for kind in SMALL if "bert" not in kind])
def test_greedy_output_equals_hugging_faces(kind, tmp_path):
    theirs = sharpen_attention(randomize(hf_model(kind, SMALL)))
    theirs.save_pretrained(tmp_path)
    both = Both(kind, theirs, *import_model(tmp_path), SMALL[kind][3])
    source, real = sentences(8, 12, 2, pad=both.pad)
    if both.family == "gpt":  # no padding: generate would need it on the left
        source, real = source.masked_fill(~real, 5), torch.ones_like(real)
    how = {"do_sample": False, "max_new_tokens": 20, "eos_token_id": 1, "pad_token_id": both.pad}
    wanted = both.theirs.generate(source, attention_mask=real.long(), **how)
    first = source[:, -1] if both.family == "gpt" else both.pad
    found = search.greedy(decoder(both.ours), source, torch.full((8,), 20), bos=first, eos=1)
    skip = source.shape[1] if both.family == "gpt" else 1
    rows = [row[: row.index(1)] if 1 in row else row for row in wanted[:, skip:].tolist()]
    assert [hypothesis.tokens for hypothesis in found] == rows
    assert len({tuple(row) for row in rows}) > 4  # the output depends on the source


@torch.inference_mode()
@pytest.mark.parametrize("both", ["t5", "t5 v1.1"], indirect=True)
def test_the_default_mask_is_the_padding_mask(both):
    source, real = sentences(5, 20, 0)
    target, _ = sentences(5, 10, 1)
    mask = real[:, None, None]
    assert torch.equal(both.ours(source, target), both.ours(source, target, mask))
    assert torch.equal(both.ours.encode(source)[0], both.ours.encode(source, mask)[0])
    assert not torch.allclose(both.ours(source, target), both.ours(source, target, torch.ones_like(mask)))
    token = target[:, 0]
    steps = decoder(both.ours)
    stepped = steps.step(token, steps.start(source))[0]
    torch.testing.assert_close(stepped, both.ours(source, target)[:, 0], **CLOSE)


@torch.inference_mode()
def test_the_pooled_vector_equals_hugging_faces(tmp_path):
    theirs = randomize(transformers.BertModel(transformers.BertConfig(**BERT)))
    theirs.save_pretrained(tmp_path)
    _, _, ours = import_model(tmp_path)  # without heads, names have no prefix
    source, real = sentences(5, 40, 0)
    wanted = theirs(source, attention_mask=real.long())
    vectors = ours.encode(source, real[:, None, None])
    torch.testing.assert_close(vectors[real], wanted.last_hidden_state[real], **CLOSE)
    torch.testing.assert_close(ours.pooled(vectors), wanted.pooler_output, **CLOSE)


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize("kind", REAL)
def test_released_sizes_agree_too(kind, tmp_path):
    theirs = perturb(hf_model(kind, REAL))
    theirs.save_pretrained(tmp_path / "theirs")
    found = Both(kind, theirs, *import_model(tmp_path / "theirs"), REAL[kind][3])
    wanted, got = logits(found, count=3, max_len=64)
    assert wanted.std() > 0.01
    torch.testing.assert_close(got, wanted, **CLOSE)
    export_model(found.family, found.config, found.ours, tmp_path / "back", special_tokens(found.pad))
    assert same_weights(import_model(tmp_path / "back")[2], found.ours)
    del theirs
    again = type(found.theirs).from_pretrained(tmp_path / "back").eval()
    torch.testing.assert_close(logits(found._replace(theirs=again), count=3, max_len=64)[0], wanted, **CLOSE)
