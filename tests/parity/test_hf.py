"""GPT, BERT, T5 and Marian are Hugging Face's, with imported weights: same logits, same greedy answers, there and back again.

Shapes: B batch, S source and T target length, D width.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.data.text.tokenizer import SpecialTokens
from regard.decode import search
from regard.decode.fast import decoder
from regard.interop.hf import export_model, export_run, import_model, import_run
from regard.tasks import read_run

CLOSE = {"rtol": 0, "atol": 1e-4}

GPT = {"vocab_size": 97, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 48}
BERT = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128,
        "max_position_embeddings": 48}  # fmt: skip
T5 = {
    "vocab_size": 97,
    "d_model": 32,
    "num_layers": 3,
    "num_heads": 3,
    "d_kv": 16,
    "d_ff": 64,
    "decoder_start_token_id": 0,
}
V11 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
MARIAN = {"vocab_size": 97, "d_model": 32, "max_position_embeddings": 48, "scale_embedding": True,
          **{f"{side}_{key}": n for side in ("encoder", "decoder")
             for key, n in (("layers", 3), ("attention_heads", 4), ("ffn_dim", 64))}}  # fmt: skip
SMALL = {  # kind → their class, their config, the number of padding
    "gpt2": ("GPT2LMHeadModel", transformers.GPT2Config, GPT, 0),
    "gpt2, odd mlp": ("GPT2LMHeadModel", transformers.GPT2Config, {**GPT, "n_inner": 100}, 0),
    "bert": ("BertForMaskedLM", transformers.BertConfig, BERT, 0),
    "bert, odd mlp": ("BertForMaskedLM", transformers.BertConfig, {**BERT, "intermediate_size": 75}, 0),
    "bert classes": ("BertForSequenceClassification", transformers.BertConfig, {**BERT, "num_labels": 3}, 0),
    "t5": ("T5ForConditionalGeneration", transformers.T5Config, T5, 0),
    "t5 v1.1": ("T5ForConditionalGeneration", transformers.T5Config, {**T5, **V11}, 0),
    "marian relu": ("MarianMTModel", transformers.MarianConfig,
                    {**MARIAN, "activation_function": "relu", "pad_token_id": 0, "eos_token_id": 1,
                     "decoder_start_token_id": 0, "forced_eos_token_id": None}, 0),
    "marian": ("MarianMTModel", transformers.MarianConfig,  # as published: swish, the last token pads and starts
               {**MARIAN, "activation_function": "swish", "pad_token_id": 96, "eos_token_id": 1,
                "decoder_start_token_id": 96, "forced_eos_token_id": None}, 96),
}  # fmt: skip
REAL = {  # the released sizes
    "gpt2": ("GPT2LMHeadModel", transformers.GPT2Config, {}, 0),
    "bert": ("BertForMaskedLM", transformers.BertConfig, {}, 0),
    "bert classes": ("BertForSequenceClassification", transformers.BertConfig, {"num_labels": 2}, 0),
    "t5": ("T5ForConditionalGeneration", transformers.T5Config, {"decoder_start_token_id": 0}, 0),
    "t5 v1.1": ("T5ForConditionalGeneration", transformers.T5Config,
                {"num_layers": 8, "num_heads": 6, "d_ff": 1024, "decoder_start_token_id": 0, **V11}, 0),
    "marian": ("MarianMTModel", transformers.MarianConfig,  # opus-mt-en-de
               {**MARIAN, "vocab_size": 58101, "d_model": 512, "max_position_embeddings": 512,
                "activation_function": "swish",
                **{f"{side}_{key}": n for side in ("encoder", "decoder")
                   for key, n in (("layers", 6), ("attention_heads", 8), ("ffn_dim", 2048))}}, 58100),
}  # fmt: skip


class Both(NamedTuple):
    kind: str
    theirs: Any
    family: str
    config: Any
    ours: Any
    pad: int


def louder(model: nn.Module) -> nn.Module:
    """Random weights so large that a wrong layer is seen in the logits, also where a fresh model has ones and zeros."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "embed_positions" in name:
                continue  # computed, not learnt
            norm = "norm" in name.lower() or ".ln_" in name
            mean, std = float(norm and name.endswith("weight")), 0.2 if norm or p.ndim > 1 else 0.1
            p.normal_(mean, std, generator=generator)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(std=0.3, generator=generator)
    return model.eval()


def nudged(model: nn.Module) -> nn.Module:
    """As a large model starts, whose sums would overflow the precision if it were any louder; but no ones and zeros."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in (*(p for p in model.parameters() if p.ndim == 1), getattr(model, "final_logits_bias", torch.zeros(1))):
            p.add_(torch.randn(p.shape, generator=generator), alpha=0.1)
    return model.eval()


def sharper(model: nn.Module) -> nn.Module:
    """A Marian whose heads look at few words each: else it says one word for ever, whatever it was asked."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.mul_(5 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1)
    return model


def their_model(kind: str, table: dict[str, tuple[str, type, dict[str, Any], int]]) -> Any:
    cls, config, sizes, _ = table[kind]
    model = getattr(transformers, cls)(config(**sizes))
    model.set_attn_implementation(
        "eager"
    )  # not the fused kernel that we call: then the two would agree to the last bit
    if kind == "t5 v1.1":  # transformers ties a new one all the same; those that were published are not
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.flip(0) * model.config.d_model**-0.5)
    return model


@pytest.fixture(scope="module", params=SMALL)
def both(request, tmp_path_factory):
    """Their model, and ours as imported from what it saved."""
    kind = request.param
    theirs, folder = louder(their_model(kind, SMALL)), tmp_path_factory.mktemp("theirs")
    theirs.save_pretrained(folder)
    return Both(kind, theirs, *import_model(folder), SMALL[kind][3])


def sentences(count: int, max_len: int, seed: int, vocab: int = 96, pad: int = 0) -> tuple[Tensor, Tensor]:
    """Random tokens of all lengths (B, S), padding after each, and where they are real."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, vocab, (count, max_len), generator=generator)
    real = torch.arange(max_len) < torch.randint(1, max_len + 1, (count, 1), generator=generator)
    return tokens.masked_fill(~real, pad), real


def logits(both: Both, count: int = 5, max_len: int = 40) -> tuple[Tensor, Tensor]:
    """Theirs and ours, of a padded batch, wherever there are real tokens."""
    kind, theirs, ours, vocab = both.kind, both.theirs, both.ours, both.config.vocab - 1
    source, real = sentences(count, max_len, 0, vocab, both.pad)
    assert not real.all()
    mask, theirs_mask = real[:, None, None], real.long()
    if both.family == "gpt":
        return theirs(source, attention_mask=theirs_mask).logits[real], ours(source)[real]
    if both.family == "bert":
        kinds = (torch.arange(max_len) > 10).long().expand(count, -1)
        wanted = theirs(source, attention_mask=theirs_mask, token_type_ids=kinds).logits
        if kind == "bert classes":
            return wanted, ours.classify(source, mask, kinds)
        return wanted[real], ours(source, mask, kinds)[real]
    target, _ = sentences(count, max_len - 10, 1, vocab)
    return theirs(source, attention_mask=theirs_mask, decoder_input_ids=target).logits, ours(source, target)


def same(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.named_parameters(), b.named_parameters(), strict=True)
    return all(name == other and torch.equal(p, q) for (name, p), (other, q) in pairs)


@torch.inference_mode()
def test_logits_are_theirs_with_padding_too(both):
    wanted, got = logits(both)
    assert wanted.std() > 0.1
    torch.testing.assert_close(got, wanted, **CLOSE)


def special(pad: int) -> SpecialTokens:
    return SpecialTokens(pad, pad, 1, 2, None, ())


@torch.inference_mode()
def test_what_is_exported_opens_there_with_the_same_logits(both, tmp_path):
    export_model(both.family, both.config, both.ours, tmp_path, special(both.pad))
    again, info = type(both.theirs).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    spare = {"bert": "bert.pooler", "bert classes": "cls.predictions"}  # that class of theirs has no such head
    assert all(name.startswith(spare[both.kind.partition(",")[0]]) for name in info["unexpected_keys"])
    wanted, got = logits(both._replace(theirs=again.eval()))
    torch.testing.assert_close(got, wanted, **CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("both", ["t5", "marian"], indirect=True)
def test_a_model_is_exported_with_the_tokens_that_start_and_end_its_answers(both, tmp_path):
    export_model(both.family, both.config, both.ours, tmp_path, SpecialTokens(both.pad, 7, 4, 2, None, ()))
    said = type(both.theirs).from_pretrained(tmp_path).generation_config
    assert (said.decoder_start_token_id, said.eos_token_id, said.pad_token_id) == (7, 4, both.pad)
    with pytest.raises(ValueError, match=r"tokens that start and end an output; give .* special=tokenizer\.special\)$"):
        export_model(both.family, both.config, both.ours, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_there_and_back_is_the_same_to_the_bit(both, tmp_path):
    export_model(both.family, both.config, both.ours, tmp_path, special(both.pad))
    family, config, again = import_model(tmp_path)
    assert (family, config) == (both.family, both.config)
    assert same(again, both.ours)


@torch.inference_mode()
@pytest.mark.parametrize("kind", [kind for kind in SMALL if "bert" not in kind])
def test_greedy_answers_are_theirs(kind, tmp_path):
    theirs = sharper(louder(their_model(kind, SMALL)))
    theirs.save_pretrained(tmp_path)
    both = Both(kind, theirs, *import_model(tmp_path), SMALL[kind][3])
    source, real = sentences(8, 12, 2, pad=both.pad)
    if both.family == "gpt":  # no padding: there it would have to be on the left
        source, real = source.masked_fill(~real, 5), torch.ones_like(real)
    how = {"do_sample": False, "max_new_tokens": 20, "eos_token_id": 1, "pad_token_id": both.pad}
    wanted = both.theirs.generate(source, attention_mask=real.long(), **how)
    first = source[:, -1] if both.family == "gpt" else both.pad
    found = search.greedy(decoder(both.ours), source, torch.full((8,), 20), bos=first, eos=1)
    skip = source.shape[1] if both.family == "gpt" else 1
    rows = [row[: row.index(1)] if 1 in row else row for row in wanted[:, skip:].tolist()]
    assert [one.tokens for one in found] == rows
    assert len({tuple(row) for row in rows}) > 4  # answers that know what was asked


@torch.inference_mode()
@pytest.mark.parametrize("both", ["t5", "t5 v1.1"], indirect=True)
def test_a_mask_that_is_not_given_is_that_of_the_padding(both):
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
def test_a_pooled_vector_is_theirs(tmp_path):
    theirs = louder(transformers.BertModel(transformers.BertConfig(**BERT)))
    theirs.save_pretrained(tmp_path)
    _, _, ours = import_model(tmp_path)  # a bare model: no prefix, no head
    source, real = sentences(5, 40, 0)
    wanted = theirs(source, attention_mask=real.long())
    vectors = ours.encode(source, real[:, None, None])
    torch.testing.assert_close(vectors[real], wanted.last_hidden_state[real], **CLOSE)
    torch.testing.assert_close(ours.pooled(vectors), wanted.pooler_output, **CLOSE)


def change(file: Path, changes: dict[str, Any], without: tuple[str, ...] = ()) -> None:
    said = {key: value for key, value in json.loads(file.read_text()).items() if key not in without}
    file.write_text(json.dumps(said | changes))


@torch.inference_mode()
@pytest.mark.parametrize("old", [True, False], ids=["keys of old", "keys of today"])
@pytest.mark.parametrize("own", [True, False], ids=["own output", "tied output"])
@pytest.mark.parametrize("scaled", [True, False], ids=["scaled", "not scaled"])
def test_every_form_of_t5s_output_is_read_right(scaled, own, old, tmp_path):
    """Old checkpoints say tie_word_embeddings alone; new ones scale_decoder_outputs, and that all is tied, if it is or not."""
    theirs = louder(transformers.T5ForConditionalGeneration(transformers.T5Config(**T5, tie_word_embeddings=scaled)))
    if own:
        theirs.lm_head.weight = nn.Parameter(theirs.lm_head.weight.flip(0).contiguous())
    theirs.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    assert (said["scale_decoder_outputs"], said["tie_word_embeddings"]) == (scaled, True)
    if old:
        keys = {} if scaled else {"tie_word_embeddings": False}
        change(tmp_path / "config.json", keys, without=("scale_decoder_outputs", "tie_word_embeddings"))
    family, config, ours = import_model(tmp_path)
    assert config.tied == (scaled and not own)
    wanted, got = logits(Both("t5", theirs, family, config, ours, 0))
    torch.testing.assert_close(got, wanted, **CLOSE)


@torch.inference_mode()
def test_a_marian_whose_padding_is_never_an_answer_never_says_it(tmp_path):
    theirs = sharper(louder(their_model("marian", SMALL)))
    theirs.final_logits_bias[:, 96] = 100.0
    theirs.generation_config.bad_words_ids = [[96]]  # as published ones have it
    theirs.save_pretrained(tmp_path)
    _, _, ours = import_model(tmp_path)
    source, real = sentences(8, 12, 2, pad=96)
    how = {"do_sample": False, "max_new_tokens": 20, "eos_token_id": 1, "pad_token_id": 96}
    wanted = theirs.generate(source, attention_mask=real.long(), **how)[:, 1:].tolist()
    found = search.greedy(decoder(ours), source, torch.full((8,), 20), bos=96, eos=1)
    assert [one.tokens for one in found] == [row[: row.index(1)] if 1 in row else row for row in wanted]
    assert all(one.tokens and 96 not in one.tokens for one in found)


@torch.inference_mode()
def test_a_marian_whose_padding_is_minus_infinity_never_says_it_either(tmp_path):
    theirs = louder(their_model("marian", SMALL))
    theirs.final_logits_bias[:, 96] = -torch.inf
    theirs.save_pretrained(tmp_path)
    _, _, ours = import_model(tmp_path)
    source, _ = sentences(2, 12, 2, pad=96)
    said = ours(source, source)
    assert said.isfinite().all()
    assert (said[..., 96] < -5e3).all()


def halve(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight.half() if weight.is_floating_point() else weight for name, weight in weights.items()}


def brain(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight.bfloat16() if weight.is_floating_point() else weight for name, weight in weights.items()}


def first_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """As bert-base-uncased has them to this day."""
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, first in old.items():
        weights = {name.replace(new, first): weight for name, weight in weights.items()}
    return weights | {"cls.seq_relationship.weight": torch.zeros(2, 32), "cls.seq_relationship.bias": torch.zeros(2)}


def twice(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The output beside the table it is tied to, and under its own name alone the bias."""
    table = weights["bert.embeddings.word_embeddings.weight"].clone()
    bias = weights.pop("cls.predictions.bias")
    return weights | {"cls.predictions.decoder.weight": table, "cls.predictions.decoder.bias": bias}


@torch.inference_mode()
@pytest.mark.parametrize("form", [halve, brain, first_names, twice])
def test_other_forms_of_the_same_weights_are_read(form: Callable[[Any], Any], tmp_path):
    theirs = louder(their_model("bert", SMALL))
    theirs.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file(form(load_file(file)), file, {"format": "pt"})
    family, config, ours = import_model(tmp_path)
    assert {p.dtype for p in ours.parameters()} == {torch.float32}
    if form in (halve, brain):
        for p in theirs.parameters():
            p.copy_(p.half() if form is halve else p.bfloat16())
    wanted, got = logits(Both("bert", theirs, family, config, ours, 0))
    torch.testing.assert_close(got, wanted, **CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["gpt2", "t5", "marian"])
def test_weights_in_several_files_are_read(kind, tmp_path):
    theirs = louder(their_model(kind, SMALL))
    theirs.save_pretrained(tmp_path / "one")
    theirs.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert not (tmp_path / "many" / "model.safetensors").exists()
    assert len(list((tmp_path / "many").glob("model-*.safetensors"))) > 2
    assert same(import_model(tmp_path / "many")[2], import_model(tmp_path / "one")[2])


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize("kind", REAL)
def test_at_real_sizes_too(kind, tmp_path):
    theirs = nudged(their_model(kind, REAL))
    theirs.save_pretrained(tmp_path / "theirs")
    found = Both(kind, theirs, *import_model(tmp_path / "theirs"), REAL[kind][3])
    wanted, got = logits(found, count=3, max_len=64)
    assert wanted.std() > 0.01
    torch.testing.assert_close(got, wanted, **CLOSE)
    export_model(found.family, found.config, found.ours, tmp_path / "back", special(found.pad))
    assert same(import_model(tmp_path / "back")[2], found.ours)
    del theirs
    again = type(found.theirs).from_pretrained(tmp_path / "back").eval()
    torch.testing.assert_close(logits(found._replace(theirs=again), count=3, max_len=64)[0], wanted, **CLOSE)


# The one trained checkpoint that can be had without the hub


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


def test_minilm_there_and_back_has_the_very_tensors_it_came_with(minilm, tmp_path):
    import_run(minilm, tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "back")
    before, after = (load_file(folder / "model.safetensors") for folder in (minilm, tmp_path / "back"))
    learnt = {name: tensor for name, tensor in before.items() if tensor.is_floating_point()}
    assert after.keys() == learnt.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in learnt.items())


@torch.inference_mode()
def test_minilm_as_a_run_embeds_sentences_as_it_does_there(minilm, tmp_path):
    from regard.tasks.load import load

    folder = minilm
    theirs, tokenizer = (
        transformers.BertModel.from_pretrained(folder).eval(),
        transformers.AutoTokenizer.from_pretrained(folder),
    )
    import_run(folder, tmp_path / "minilm")
    texts = [text.replace("[MASK] </s> ", "") for text in TEXTS]  # to us names of marks are text, there they are marks
    got = load(tmp_path / "minilm", device="cpu").embed(texts)
    batch = tokenizer(texts, padding=True, truncation=True, max_length=512, return_tensors="pt")
    real = batch["attention_mask"][:, :, None]
    mean = (theirs(**batch).last_hidden_state * real).sum(1) / real.sum(1)
    wanted = nn.functional.normalize(mean)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)
    assert read_run(str(tmp_path / "minilm" / "run.toml"), ()).data.max_len == 254  # 256 with start and end
    alike = got @ got.T
    assert alike[0, 1] > 0.3 > 0.1 > alike[0, 2]  # trained weights, and meaning
