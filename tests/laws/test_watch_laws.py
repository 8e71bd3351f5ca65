"""A watch sees the calls of its own context and no others, however many threads or tasks use the model at once."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from regard.data.text.toys import toy_pairs
from regard.decode.workers import map_in_threads
from regard.layers.tap import attention_modules, tap_of, watch
from regard.models import FAMILIES
from regard.models.bahdanau import Bahdanau, BahdanauConfig
from regard.models.bert import BERT, BERTConfig
from regard.models.caption_transformer import CaptionTransformer, CaptionTransformerConfig
from regard.models.captioner import Captioner, CaptionerConfig
from regard.models.conformer import Conformer, ConformerConfig
from regard.models.gpt import GPT, GPTConfig
from regard.models.image_gpt import ImageGPT, ImageGPTConfig
from regard.models.lrnet import LRNet, LRNetConfig
from regard.models.mvit import MViT, MViTConfig
from regard.models.resnet import ResNet, ResNetConfig
from regard.models.swin import Swin, SwinConfig
from regard.models.t5 import T5, T5Config
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vit import ViT, ViTConfig
from regard.tasks.load import load
from regard.view.maps import map_attention

THREADS = 6
TEXTS = [source for source, _ in toy_pairs("reverse", "test", 24)]

Recorded = dict[str, list[Tensor]]


def at_once(work: Callable[[int], object], count: int = THREADS) -> list:
    """The results of `count` threads that start together."""
    start = threading.Barrier(count)

    def run(number: int) -> object:
        start.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def tiny_text(family: str) -> nn.Module:
    torch.manual_seed(0)
    if family == "bahdanau":
        return Bahdanau(BahdanauConfig(vocab=11, dim=8, hidden=8, align=6, readout=8)).eval()
    return Transformer(TransformerConfig(vocab=11, dim=8, depth=2, heads=2, mlp_ratio=2)).eval()


def tiny_image(family: str) -> nn.Module:
    torch.manual_seed(0)
    model = {
        "vit": lambda: ViT(ViTConfig(image=16, patch=4, dim=8, depth=2, heads=2, classes=3)),
        "swin": lambda: Swin(SwinConfig(image=16, patch=2, dim=8, depths=[2, 2], heads=[1, 2], window=4, classes=3)),
        "mvit": lambda: MViT(MViTConfig(image=16, patch=2, kernel=3, dim=6, depths=[1, 2, 1], mlp_ratio=2, classes=5)),
        "lrnet": lambda: LRNet(LRNetConfig(image=16, stem="cifar", dim=8, widths=[8], dims=[16], depths=[1], kernel=3)),
    }[family]()
    return model.eval()


def watched(model: nn.Module, *inputs: Tensor) -> Recorded:
    with torch.no_grad(), watch(model) as recorded:
        model(*inputs)
    return recorded


def assert_equal(got: Recorded, wanted: Recorded) -> None:
    assert got.keys() == wanted.keys()
    for name, calls in wanted.items():
        assert [tuple(call.shape) for call in got[name]] == [tuple(call.shape) for call in calls]
        for ours, theirs in zip(got[name], calls, strict=True):
            torch.testing.assert_close(ours, theirs)


# Threads


def test_threads_that_map_and_translate_at_once_get_what_each_gets_alone(small_run):
    translator = load(small_run)
    maps = {text: map_attention(translator, text, beam=1) for text in TEXTS}
    answers = [answer.text for answer in translator.translate(TEXTS, beam=3)]

    def work(number: int) -> bool:
        for _ in range(2):
            if number % 2:
                assert [answer.text for answer in translator.translate(TEXTS, beam=3)] == answers
                continue
            for text in TEXTS[number::THREADS]:
                found = map_attention(translator, text, beam=1)
                assert (found.rows, found.columns) == (maps[text].rows, maps[text].columns)
                torch.testing.assert_close(torch.tensor(found.weights), torch.tensor(maps[text].weights))
        return True

    assert all(at_once(work))


@pytest.mark.parametrize("family", ["transformer", "bahdanau"])
def test_each_thread_records_its_own_texts(family):
    model = tiny_text(family)
    sources = [torch.randint(1, 11, (2, 3 + number)) for number in range(THREADS)]
    targets = [torch.randint(1, 11, (2, 8 - number)) for number in range(THREADS)]
    alone = [watched(model, *inputs) for inputs in zip(sources, targets, strict=True)]
    for _ in range(5):
        for got, wanted in zip(at_once(lambda n: watched(model, sources[n], targets[n])), alone, strict=True):
            assert_equal(got, wanted)


@pytest.mark.parametrize("family", ["vit", "swin", "mvit", "lrnet"])
def test_each_thread_records_its_own_images(family):
    model = tiny_image(family)
    images = [torch.randn(1 + number, 3, 16, 16) for number in range(4)]
    alone = [watched(model, image) for image in images]
    assert any(calls for calls in alone[0].values())
    for _ in range(3):
        for got, wanted in zip(at_once(lambda n: watched(model, images[n]), 4), alone, strict=True):
            assert_equal(got, wanted)


@pytest.mark.parametrize("family", ["transformer", "bahdanau", "vit", "swin", "lrnet"])
def test_a_watch_of_one_thread_is_not_seen_by_another(family):
    model = tiny_text(family) if family in ("transformer", "bahdanau") else tiny_image(family)
    tokens, image = torch.randint(1, 11, (2, 5)), torch.randn(1, 3, 16, 16)
    inputs = (tokens, tokens) if family in ("transformer", "bahdanau") else (image,)
    with watch(model) as recorded, ThreadPoolExecutor(1) as pool:
        pool.submit(model, *inputs).result()
        assert not any(recorded.values())
        assert all(pool.submit(tap_of, part).result() is None for part in model.modules())


def test_a_job_of_a_watched_call_belongs_to_its_context():
    model, tokens = tiny_text("transformer"), torch.randint(1, 11, (2, 5))
    with watch(model) as recorded:
        list(map_in_threads(lambda _: model(tokens, tokens), range(4), 2))
    assert all(len(calls) == 4 for calls in recorded.values())


# Outputs


def speech_model(**changes: object) -> nn.Module:
    config = ConformerConfig(features=8, dim=16, depth=2, heads=2, kernel=3, subsample=2, vocab=11, **changes)
    return Conformer(config)


def every_family() -> dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]]:
    """Each family that attends: a model, and what it reads."""
    image, tokens, target = torch.randn(2, 3, 16, 16), torch.randint(1, 11, (2, 7)), torch.randint(1, 11, (2, 5))
    frames, lengths = torch.randn(2, 24, 8), torch.tensor([24, 15])
    padded = tokens.clone()
    padded[1, 4:] = 0
    picture = {"family": "vit", "image": 16, "patch": 4, "dim": 8, "depth": 1, "heads": 2}
    swin = {"image": 22, "patch": 2, "dim": 8, "depths": [2, 2], "heads": [1, 2], "window": 4, "classes": 3}
    resnet = {"image": 16, "stem": "cifar", "dim": 8, "dims": [8, 16], "depths": [1, 1], "block": "basic", "attention": [2],
              "heads": 2, "classes": 3}  # fmt: skip
    text = {"vocab": 11, "dim": 8, "depth": 2, "heads": 2}
    return {
        "transformer": (lambda: tiny_text("transformer"), (padded, target)),
        "transformer-post": (lambda: Transformer(TransformerConfig(**text, norm="post", tied=False)), (padded, target)),
        "bahdanau": (lambda: tiny_text("bahdanau"), (padded, target)),
        "t5": (lambda: T5(T5Config(**text, head_dim=4, mlp_dim=16)), (padded, target)),
        "gpt": (lambda: GPT(GPTConfig(**text, max_len=8)), (tokens,)),
        "image-gpt": (lambda: ImageGPT(ImageGPTConfig(image=4, channels=1, levels=10, dim=8, depth=2, heads=2)), (tokens,)),
        "bert": (lambda: BERT(BERTConfig(**text, max_len=8)), (tokens,)),
        "vit": (lambda: tiny_image("vit"), (image,)),
        "swin": (lambda: tiny_image("swin"), (image,)),
        "swin-padded": (lambda: Swin(SwinConfig(**swin)), (torch.randn(2, 3, 22, 22),)),
        "swin-v2": (lambda: Swin(SwinConfig(**swin, version="v2")), (torch.randn(2, 3, 22, 22),)),
        "mvit": (lambda: tiny_image("mvit"), (image,)),
        "lrnet": (lambda: tiny_image("lrnet"), (image,)),
        "resnet": (lambda: ResNet(ResNetConfig(**resnet)), (image,)),
        "captioner": (lambda: Captioner(CaptionerConfig(vocab=11, dim=8, hidden=8, align=6, encoder=picture)), (image, target)),
        "caption-transformer": (
            lambda: CaptionTransformer(CaptionTransformerConfig(**text, max_len=8, encoder=picture)), (image, target)),
        "conformer-ctc": (lambda: speech_model(), (frames, lengths)),
        "conformer": (lambda: speech_model(decoder_depth=2, ctc_weight=0.3), (frames, lengths, target)),
    }  # fmt: skip


@pytest.mark.parametrize("family", every_family())
def test_a_watch_changes_no_output_and_leaves_no_trace(family):
    torch.manual_seed(1)
    build, inputs = every_family()[family]
    model = build().eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.2 * torch.randn_like(p)  # also of gates that start at 0: each head matters
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.inference_mode():
        before = model(*inputs)
        with watch(model) as recorded:
            during = model(*inputs)
        after = model(*inputs)
    assert any(recorded.values())
    assert {name for name, calls in recorded.items() if calls} == {*attention_modules(model)}  # each has a stable name
    torch.testing.assert_close(during, before, atol=1e-5, rtol=1e-5)
    assert torch.equal(after, before)
    counts = {name: len(calls) for name, calls in recorded.items()}
    with torch.inference_mode():
        model(*inputs)
    assert {name: len(calls) for name, calls in recorded.items()} == counts  # no longer recorded
    assert all(tap_of(part) is None for part in model.modules())
    assert all(not part._forward_hooks and not part._forward_pre_hooks for part in model.modules())
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("family", every_family())
def test_watched_rows_sum_to_one(family):
    build, inputs = every_family()[family]
    recorded = watched(build().eval(), *inputs)
    for calls in recorded.values():
        for weights in calls:
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


def test_every_family_with_attention_is_checked_here():
    without = {"word2vec", "seq2seq", "elmo"}  # have no attention
    assert {*FAMILIES} - without <= {*every_family()}


# Tasks, generators and nesting


def test_each_task_records_its_own_calls_across_its_waits():
    model = tiny_text("transformer")
    tokens = [torch.randint(1, 11, (1, 3 + number)) for number in range(4)]

    async def task(number: int) -> Recorded:
        with watch(model) as recorded:
            for _ in range(3):
                await asyncio.sleep(0)
                model(tokens[number], tokens[number])
                await asyncio.sleep(0)
        return recorded

    async def every() -> list[Recorded]:
        return await asyncio.gather(*(task(number) for number in range(4)))

    for number, recorded in enumerate(asyncio.run(every())):
        alone = watched(model, tokens[number], tokens[number])
        assert_equal(recorded, {name: calls * 3 for name, calls in alone.items()})


def test_a_task_that_outlives_the_watch_around_it_is_no_longer_recorded():
    model, tokens = tiny_text("transformer"), torch.randint(1, 11, (1, 4))

    async def late(after: asyncio.Event) -> None:
        model(tokens, tokens)
        await after.wait()
        model(tokens, tokens)

    async def both() -> Recorded:
        after = asyncio.Event()
        with watch(model) as recorded:
            task = asyncio.create_task(late(after))
            await asyncio.sleep(0)
        after.set()
        await task
        return recorded

    assert all(len(calls) == 1 for calls in asyncio.run(both()).values())


def test_a_generator_that_watches_can_be_closed_in_another_context():
    model, tokens = tiny_text("transformer"), torch.randint(1, 11, (1, 4))

    def steps():
        with watch(model) as recorded:
            while True:
                model(tokens, tokens)
                yield recorded

    generator = steps()
    recorded = contextvars.copy_context().run(next, generator)
    generator.close()  # here, not where it was started
    model(tokens, tokens)
    assert all(len(calls) == 1 for calls in recorded.values())
    assert all(tap_of(part) is None for part in model.modules())


def test_an_inner_watch_takes_the_calls_of_its_modules_from_the_outer():
    model, tokens = tiny_text("transformer"), torch.randint(1, 11, (1, 4))
    with watch(model) as outer:
        model(tokens, tokens)
        with watch(model.decoder) as inner:
            model(tokens, tokens)
        model(tokens, tokens)
    assert {name: len(calls) for name, calls in inner.items()} == dict.fromkeys(inner, 1)
    assert {name: len(calls) for name, calls in outer.items()} == {
        name: 2 if name.startswith("decoder.") else 3 for name in outer
    }
