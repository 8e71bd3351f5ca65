"""Heads are switched off, calls recorded and positions removed for one context, by the same tap that `watch` uses."""

import asyncio
import copy
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from regard.decode.fast import decoder
from regard.decode.search import beam
from regard.layers.attention import Attention
from regard.layers.tap import ablate, attention_modules, record_calls, tap_of, watch, without_positions
from regard.models.bahdanau import Bahdanau, BahdanauConfig
from regard.models.bert import BERT, BERTConfig
from regard.models.captioner import Captioner, CaptionerConfig
from regard.models.conformer import Conformer, ConformerConfig
from regard.models.gpt import GPT, GPTConfig
from regard.models.lrnet import LocalRelation, LRNet, LRNetConfig
from regard.models.mvit import MViT, MViTConfig
from regard.models.resnet import ResNet, ResNetConfig
from regard.models.swin import Swin, SwinConfig
from regard.models.t5 import T5, T5Config
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vit import ViT, ViTConfig

SWIN = {"image": 16, "patch": 2, "dim": 8, "depths": [2, 2], "heads": [2, 2], "window": 4, "classes": 3}
MVIT = {"image": 16, "patch": 2, "kernel": 3, "dim": 8, "heads": 2, "depths": [1, 2, 1], "mlp_ratio": 2, "classes": 5}
SMALL = {"vocab": 11, "dim": 8, "depth": 2, "heads": 2, "mlp_ratio": 2}
ENCODER = {"family": "resnet", "stem": "cifar", "image": 16, "dim": 4, "dims": [8], "depths": [1]}


class Case(NamedTuple):
    """A model and inputs for it."""

    model: nn.Module
    inputs: tuple[Tensor, ...]


def texts(*shapes: tuple[int, int]) -> tuple[Tensor, ...]:
    return tuple(torch.randint(1, 11, shape) for shape in shapes)


CASES: dict[str, Callable[[], Case]] = {
    "transformer": lambda: Case(Transformer(TransformerConfig(**SMALL)), texts((3, 5), (3, 4))),
    "gpt": lambda: Case(GPT(GPTConfig(**SMALL, max_len=16)), texts((3, 5))),
    "bert": lambda: Case(BERT(BERTConfig(**SMALL, max_len=16)), texts((3, 5))),
    "t5": lambda: Case(T5(T5Config(vocab=11, dim=8, depth=2, heads=2, head_dim=4, mlp_dim=16)), texts((3, 5), (3, 4))),
    "vit": lambda: Case(ViT(ViTConfig(image=16, patch=4, dim=8, depth=2, heads=2, classes=3)), (torch.randn(2, 3, 16, 16),)),
    "swin": lambda: Case(Swin(SwinConfig(**SWIN)), (torch.randn(2, 3, 16, 16),)),
    "swin v2": lambda: Case(Swin(SwinConfig(**SWIN, version="v2")), (torch.randn(2, 3, 16, 16),)),
    "mvit": lambda: Case(
        MViT(MViTConfig(**MVIT, residual="none", pooling="max", positions="added")), (torch.randn(2, 3, 16, 16),)
    ),
    "conformer": lambda: Case(
        Conformer(ConformerConfig(features=8, vocab=11, dim=8, depth=2, heads=2, kernel=3, subsample=2, mlp_ratio=2,
                                  decoder_depth=1, ctc_weight=0.3)),
        (torch.randn(2, 12, 8), torch.tensor([12, 7]), torch.randint(1, 11, (2, 4)))),
}  # fmt: skip

OTHERS: dict[str, Callable[[], Case]] = {
    "mvit v2": lambda: Case(MViT(MViTConfig(**MVIT)), (torch.randn(2, 3, 16, 16),)),
    "lrnet": lambda: Case(LRNet(LRNetConfig(image=16, stem="cifar", dim=8, widths=[8], dims=[16], depths=[1], kernel=3,
                                            channels_per_head=4)), (torch.randn(2, 3, 16, 16),)),
    "bahdanau": lambda: Case(Bahdanau(BahdanauConfig(vocab=11, dim=8, hidden=8, align=6, readout=8)), texts((3, 5), (3, 4))),
    "captioner": lambda: Case(Captioner(CaptionerConfig(encoder=ENCODER, vocab=11, dim=8, hidden=8, align=6)),
                              (torch.randn(2, 3, 16, 16), torch.randint(1, 11, (2, 4)))),
}  # fmt: skip


def make(name: str) -> Case:
    torch.manual_seed(0)
    case = (CASES | OTHERS)[name]()
    with torch.no_grad():  # many weights start small or at zero: every part should have an effect
        for p in case.model.parameters():
            if p.square().mean() < 0.01 and not (p == 1).all():
                p.normal_(std=0.4)
    return Case(case.model.eval(), case.inputs)


def without_columns(case: Case, name: str, heads: list[int]) -> Tensor:
    """The output of a copy of the model in which the output projection of an attention does not read these heads."""
    model = copy.deepcopy(case.model)
    part = attention_modules(model)[name]
    weight, width = part.out.weight, part.out.in_features // part.heads
    with torch.no_grad():
        for head in heads:
            weight[:, head * width : (head + 1) * width] = 0
    return model(*case.inputs)


@torch.no_grad()
@pytest.mark.parametrize("family", CASES)
def test_a_switched_off_head_is_one_that_the_output_projection_does_not_read(family):
    case = make(family)
    plain = case.model(*case.inputs)
    used = [name for name, calls in watched(case).items() if calls]
    assert used
    for name in used:
        for heads in ([1], list(range(attention_modules(case.model)[name].heads))):
            with ablate(case.model, {name: heads}):
                got = case.model(*case.inputs)
            torch.testing.assert_close(got, without_columns(case, name, heads), rtol=1e-4, atol=1e-5)
            assert (got - plain).abs().max() > 1e-4
        with ablate(case.model, {name: None}):
            torch.testing.assert_close(case.model(*case.inputs), got, rtol=0, atol=0)


def watched(case: Case) -> dict[str, list[Tensor]]:
    with watch(case.model) as weights:
        case.model(*case.inputs)
    return weights


@torch.no_grad()
def test_mvit_v2_keeps_the_pooled_queries_of_a_switched_off_head():
    case = make("mvit v2")
    name = list(attention_modules(case.model))[1]
    copied = copy.deepcopy(case.model)
    for p in attention_modules(copied)[name].pool_v.norm.parameters():
        p.zero_()  # then all values are zero
    with ablate(case.model, {name: None}):
        torch.testing.assert_close(case.model(*case.inputs), copied(*case.inputs), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_switched_off_head_of_lrnet_gives_zeros_in_its_channels_and_nothing_else_changes():
    torch.manual_seed(0)
    part, x = LocalRelation(3, 10, 3, 4, lambda q, k: q * k), torch.randn(2, 3, 6, 6)  # the last head has 2 of its 4 channels
    plain = part(x)
    with ablate(part, {"": [1]}):
        got = part(x)
    assert not got[:, 4:8].any()
    torch.testing.assert_close(got[:, [0, 1, 2, 3, 8, 9]], plain[:, [0, 1, 2, 3, 8, 9]])


@torch.no_grad()
@pytest.mark.parametrize("family", ["bahdanau", "captioner"])
def test_a_recurrent_decoder_without_attention_reads_a_context_of_zeros(family):
    case = make(family)
    copied = copy.deepcopy(case.model)
    if family == "bahdanau":  # the weights that read the context are zero
        copied.decoder.context.weight.zero_()
        copied.decoder.readout.weight[:, 8 : 8 + 16] = 0
    else:
        copied.decoder.context.weight.zero_()
        copied.decoder.context_readout.weight.zero_()
    with ablate(case.model, {"decoder.cross": [0]}):
        got = case.model(*case.inputs)
    torch.testing.assert_close(got, copied(*case.inputs))
    assert not torch.allclose(got, case.model(*case.inputs))


@torch.no_grad()
@pytest.mark.parametrize("family", [*CASES, *OTHERS])
def test_switching_nothing_off_changes_no_bit(family):
    case = make(family)
    plain = case.model(*case.inputs)
    with ablate(case.model, {}):
        assert torch.equal(case.model(*case.inputs), plain)
    with ablate(case.model, {name: [] for name in attention_modules(case.model)}):
        assert torch.equal(case.model(*case.inputs), plain)
    with ablate(case.model, dict.fromkeys(attention_modules(case.model))):
        assert not torch.allclose(case.model(*case.inputs), plain, atol=1e-4)
    assert torch.equal(case.model(*case.inputs), plain)


@torch.no_grad()
@pytest.mark.parametrize("family", ["transformer", "gpt", "t5", "bahdanau"])
def test_cached_decoding_is_changed_as_teacher_forcing_is(family):
    case = make(family)
    modules = list(attention_modules(case.model))
    off = {name: [0] for name in modules[:-1]} | {modules[-1]: None}
    *source, target = case.inputs
    with ablate(case.model, off):
        whole = case.model(*case.inputs)
        fast = decoder(case.model)
        state, steps = fast.start(*source) if source else fast.start(target[:, :1]), []
        for token in target.T:
            logits, state = fast.step(token, state)
            steps.append(logits)
    torch.testing.assert_close(torch.stack(steps, 1), whole, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_beam_search_with_heads_off_is_that_of_a_model_without_them():
    case, name = make("transformer"), "decoder.1.cross"
    limits, how = torch.tensor([6, 6, 6]), {"bos": 1, "eos": 2, "width": 3}
    copied = copy.deepcopy(case.model)
    copied.decoder[1].cross.out.weight[:, :4] = 0
    wanted = beam(decoder(copied), case.inputs[0], limits, **how)
    with ablate(case.model, {name: [0]}):
        got = beam(decoder(case.model), case.inputs[0], limits, **how)
    assert [[h.tokens for h in n_best] for n_best in got] == [[h.tokens for h in n_best] for n_best in wanted]
    torch.testing.assert_close(torch.tensor(got[0][0].score), torch.tensor(wanted[0][0].score), rtol=1e-4, atol=1e-5)


def test_an_unknown_module_or_head_is_refused_with_the_known_ones():
    model, _ = make("transformer")
    with pytest.raises(ValueError, match=r"no attention module is called 'encoder.7.attn'; wanted one of 'encoder.0.attn'"):
        ablate(model, {"encoder.7.attn": None}).__enter__()
    with pytest.raises(ValueError, match=r"'decoder.0.cross' has heads 0 to 1, not 2"):
        ablate(model, {"decoder.0.cross": [0, 2]}).__enter__()
    with pytest.raises(ValueError, match="wanted a torch module"):
        ablate("model", {}).__enter__()


# Nesting, threads and tasks


@torch.no_grad()
@pytest.mark.parametrize("watch_first", [True, False])
def test_a_watch_sees_the_weights_of_a_model_with_heads_off(watch_first):
    case, off = make("transformer"), {"encoder.0.attn": [1]}
    copied = copy.deepcopy(case.model)
    copied.encoder[0].attn.out.weight[:, 4:] = 0
    wanted = watched(Case(copied, case.inputs))
    if watch_first:
        with watch(case.model) as got, ablate(case.model, off):
            case.model(*case.inputs)
    else:
        with ablate(case.model, off):
            got = watched(case)
    for name, [weights] in wanted.items():
        torch.testing.assert_close(got[name][0], weights, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_nested_ablations_add_up():
    case, name = make("gpt"), "blocks.0.attn"
    with ablate(case.model, {name: [0]}), ablate(case.model, {name: [1]}):
        got = case.model(*case.inputs)
    with ablate(case.model, {name: None}):
        torch.testing.assert_close(got, case.model(*case.inputs), rtol=0, atol=0)


@torch.no_grad()
def test_another_thread_is_not_changed_and_nothing_is_left():
    case = make("transformer")
    plain, off = case.model(*case.inputs), dict.fromkeys(attention_modules(case.model))
    with ThreadPoolExecutor(1) as pool:
        with ablate(case.model, off), without_positions(case.model):
            other = pool.submit(torch.no_grad()(case.model), *case.inputs).result()
        assert torch.equal(other, plain)
    assert torch.equal(case.model(*case.inputs), plain)
    assert all(tap_of(part) is None for part in case.model.modules())


def test_a_task_that_outlives_the_ablation_is_no_longer_changed():
    case = make("transformer")

    async def late(after: asyncio.Event) -> tuple[Tensor, Tensor]:
        inside = case.model(*case.inputs)
        await after.wait()
        return inside, case.model(*case.inputs)

    async def both() -> tuple[Tensor, Tensor]:
        after = asyncio.Event()
        with ablate(case.model, dict.fromkeys(attention_modules(case.model))), without_positions(case.model):
            task = asyncio.create_task(late(after))
            await asyncio.sleep(0)
        after.set()
        return await task

    plain = case.model(*case.inputs)
    inside, after = asyncio.run(both())
    assert torch.equal(after, plain)
    assert not torch.allclose(inside, plain)


def test_gradients_flow_past_heads_that_are_off():
    case, name = make("gpt"), "blocks.1.attn"
    with ablate(case.model, {name: [0]}):
        case.model(*case.inputs).square().sum().backward()
    value_rows = case.model.blocks[1].attn.qkv.weight.grad[16:]  # of head 0, then of head 1
    assert not value_rows[:4].any()
    assert value_rows[4:].any()


# Recorded calls


@torch.no_grad()
@pytest.mark.parametrize("family", [*CASES, *OTHERS])
def test_a_recorded_call_is_all_that_its_weights_and_output_need(family):
    case = make(family)
    weights = watched(case)
    for name in (name for name, calls in weights.items() if calls):
        with record_calls(case.model, name) as calls:
            case.model(*case.inputs)
        assert len(calls) == len(weights[name])
        for call, seen in zip(calls, weights[name], strict=True):
            scores = call.score(call.q, call.k) if call.score else torch.einsum("...qe,...ke->...qk", call.q, call.k) * call.scale
            scores = scores if call.bias is None else scores + call.bias
            scores = scores if call.mask is None else torch.where(call.mask, scores, -math.inf)
            computed = scores.exp() / scores.exp().sum(-1, keepdim=True)
            torch.testing.assert_close(computed.reshape(seen.shape), seen, rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(torch.einsum("...qk,...ke->...qe", computed, call.v), call.mixed, rtol=1e-4, atol=1e-5)
            assert call.x is not None


@torch.no_grad()
def test_a_recorded_call_has_the_tokens_that_queries_and_keys_were_computed_from():
    model, (source, target) = make("transformer")
    memory, _ = model.encode(source)
    with record_calls(model, "decoder.1.cross") as calls:
        model(source, target)
    [call], attn = calls, model.decoder[1].cross
    torch.testing.assert_close(call.memory, memory)
    torch.testing.assert_close(attn.queries(call.x), call.q)
    torch.testing.assert_close(attn.keys_values(call.memory).keys, call.k)
    with record_calls(model, "encoder.0.attn") as calls:
        model(source, target)
    assert calls[0].memory is None
    torch.testing.assert_close(calls[0].x, model.encoder[0].attn_residual.norm(model.embed_source(source)))


# Positions


@torch.no_grad()
@pytest.mark.parametrize("family", ["transformer", "bert", "t5"])
def test_without_positions_shuffled_words_give_shuffled_outputs(family):
    model, (tokens, *_) = make(family)
    order = torch.tensor([3, 0, 4, 1, 2])

    def encode(ids: Tensor) -> Tensor:
        found = model.encode(ids)
        return found[0] if isinstance(found, tuple) else found

    plain = encode(tokens)
    with without_positions(model):
        straight, shuffled = encode(tokens), encode(tokens[:, order])
    torch.testing.assert_close(shuffled, straight[:, order], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(encode(tokens[:, order]), plain[:, order], atol=1e-3)
    assert torch.equal(encode(tokens), plain)


@torch.no_grad()
def test_without_positions_a_vit_sees_a_bag_of_patches():
    model, (image,) = make("vit")
    moved = image.unflatten(2, (4, 4)).unflatten(4, (4, 4)).flip(2, 4).flatten(4, 5).flatten(2, 3)  # patches, not pixels
    assert not torch.equal(moved, image)
    with without_positions(model):
        torch.testing.assert_close(model(moved), model(image), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(moved), model(image), atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("family", ["swin", "swin v2", "mvit", "mvit v2", "conformer", "lrnet", "gpt", "transformer", "t5"])
def test_every_kind_of_position_has_an_effect_that_can_be_removed(family):
    case = make(family)
    plain = case.model(*case.inputs)
    zeroed = copy.deepcopy(case.model)
    for part in zeroed.modules():
        if getattr(type(part), "positional", False):
            part.forward = zeros_like_output(part.forward)
    with without_positions(case.model):
        got = case.model(*case.inputs)
    torch.testing.assert_close(got, zeroed(*case.inputs), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(got, plain, atol=1e-4)
    assert torch.equal(case.model(*case.inputs), plain)


def zeros_like_output(forward):
    """Of Conformer's pair, only the bias is a position."""

    def zero(*inputs):
        found = forward(*inputs)
        return (found[0], torch.zeros_like(found[1])) if isinstance(found, tuple) else torch.zeros_like(found)

    return zero


@torch.no_grad()
def test_cached_decoding_leaves_positions_out_too():
    model, (tokens,) = make("gpt")
    with without_positions(model):
        whole = model(tokens)
        fast = decoder(model)
        state, steps = fast.start(tokens[:, :1]), []
        for token in tokens.T:
            logits, state = fast.step(token, state)
            steps.append(logits)
    torch.testing.assert_close(torch.stack(steps, 1), whole, rtol=1e-4, atol=1e-5)


def test_heads_of_attention_inside_a_resnet_can_be_switched_off():
    torch.manual_seed(0)
    model = ResNet(ResNetConfig(stem="cifar", image=16, dim=4, dims=[8], depths=[1], attention=[1], heads=2, classes=3)).eval()
    [(name, part)] = attention_modules(model).items()
    assert isinstance(part, Attention)
    with torch.no_grad(), record_calls(model, name) as calls, ablate(model, {name: [0]}):
        model(torch.randn(1, 3, 16, 16))
    assert calls[0].mixed[:, 0].any() == torch.tensor(False)  # the outer sees what the inner left
    assert calls[0].mixed[:, 1].any()
