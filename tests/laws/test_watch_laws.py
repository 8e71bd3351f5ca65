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
from regard.layers.tap import tap_of, watch
from regard.models.bahdanau import Bahdanau, BahdanauConfig
from regard.models.lrnet import LRNet, LRNetConfig
from regard.models.mvit import MViT, MViTConfig
from regard.models.swin import Swin, SwinConfig
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
