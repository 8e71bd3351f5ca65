"""Clients from PyPI, unchanged, against a running server."""

import math
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import serve
from serving_runs import served_app

import regard

KEY = "correct-horse-battery"


@pytest.fixture(scope="module")
def address(runs: dict[str, Path]) -> Iterator[str]:
    yield from serve(served_app(runs))


@pytest.fixture(scope="module")
def locked(runs: dict[str, Path]) -> Iterator[str]:
    yield from serve(served_app(runs, api_key=KEY))


@pytest.fixture(scope="module")
def openai_client(address: str):
    from openai import OpenAI

    with OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_libretranslatepy_translates_as_the_command_line_does(address, runs):
    from libretranslatepy import LibreTranslateAPI

    client = LibreTranslateAPI(address)
    text = "I love you very much. They want the cat."
    [wanted] = regard.load(runs["learner"], "cpu").translate([text])
    assert client.translate(text, "en", "it") == wanted.text
    assert wanted.text.strip()


def test_libretranslatepy_lists_languages(address):
    from libretranslatepy import LibreTranslateAPI

    assert LibreTranslateAPI(address).languages() == [
        {"code": "en", "name": "English", "targets": ["it"]}, {"code": "it", "name": "Italian", "targets": []}
    ]  # fmt: skip


def test_libretranslatepy_detects(address):
    from libretranslatepy import LibreTranslateAPI

    client = LibreTranslateAPI(address)
    assert client.detect("They do not want the old cats here")[0]["language"] == "en"
    assert client.detect("Non vogliono i vecchi gatti qui")[0]["language"] == "it"


def test_libretranslatepy_sends_its_key(locked):
    from urllib.error import HTTPError

    from libretranslatepy import LibreTranslateAPI

    assert LibreTranslateAPI(locked, KEY).translate("I love you", "en", "it")
    assert LibreTranslateAPI(locked, KEY).languages()
    with pytest.raises(HTTPError, match="401") as refused:
        LibreTranslateAPI(locked).translate("I love you", "en", "it")
    refused.value.close()


def test_openai_completes_as_the_model_does(openai_client, runs):
    answer = openai_client.completions.create(model="gpt", prompt="the dog", max_tokens=9, temperature=0.7, top_p=0.9, seed=3)
    wanted = regard.load(runs["gpt"], "cpu").generate("the dog", tokens=9, temperature=0.7, top_p=0.9, seed=3)
    assert answer.choices[0].text == wanted
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == 7, "it reads characters"
    assert answer.usage.completion_tokens == 9
    assert answer.usage.total_tokens == 16


def test_openai_streams_what_it_would_answer_at_once(openai_client):
    how = {"model": "gpt", "prompt": "the dog", "max_tokens": 9, "temperature": 0.7, "seed": 3}
    whole = openai_client.completions.create(**how)
    chunks = list(openai_client.completions.create(**how, stream=True, stream_options={"include_usage": True}))
    pieces = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(piece.text for piece in pieces) == whole.choices[0].text
    assert len(pieces) > 4, "characters come one by one"
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == [whole.choices[0].finish_reason]
    assert chunks[-1].usage == whole.usage


def test_openai_completes_several_prompts_several_times(openai_client, runs):
    answer = openai_client.completions.create(model="gpt", prompt=["the dog", "a"], n=2, max_tokens=5, seed=7)
    generator = regard.load(runs["gpt"], "cpu")
    wanted = [generator.generate(prompt, tokens=5, seed=seed) for prompt in ("the dog", "a") for seed in (7, 8)]
    assert [choice.text for choice in answer.choices] == wanted
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]


def test_openai_stops_at_a_string(openai_client):
    how = {"model": "gpt", "prompt": "the dog", "max_tokens": 12, "temperature": 0}
    text = openai_client.completions.create(**how).choices[0].text
    [choice] = openai_client.completions.create(**how, stop=text[3:5]).choices
    assert choice.text == text[: text.index(text[3:5])]
    assert choice.finish_reason == "stop"


def test_openai_translates_with_a_translator(openai_client, runs):
    [wanted] = regard.load(runs["learner"], "cpu").translate(["I love you very much"])
    answer = openai_client.completions.create(model="learner", prompt="I love you very much")
    assert answer.choices[0].text == wanted.text
    chunks = openai_client.completions.create(model="learner", prompt="I love you very much", stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == wanted.text


def test_a_translation_is_no_longer_than_a_translator_writes(openai_client, runs):
    translator = regard.load(runs["learner"], "cpu")
    answer = openai_client.completions.create(model="learner", prompt="love " * 5, max_tokens=100_000, stop=["\n"])
    assert answer.usage.completion_tokens <= translator.max_answer(translator.max_len)
    cut = openai_client.completions.create(model="learner", prompt="I love you very much", max_tokens=2)
    assert (cut.usage.completion_tokens, cut.choices[0].finish_reason) == (2, "length")


def test_openai_lists_models_and_what_they_do(openai_client):
    models = {model.id: model for model in openai_client.models.list()}
    assert {name: model.abilities for name, model in models.items()} == {
        "learner": ["complete"], "gpt": ["complete"], "bert": ["embed"]
    }  # fmt: skip
    assert openai_client.models.retrieve("gpt").id == "gpt"


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_openai_embeds_as_the_model_does(openai_client, runs, encoding):
    texts = ["the dog runs", "a cat sits on the old mat"]
    options = {} if encoding is None else {"encoding_format": encoding}
    answer = openai_client.embeddings.create(model="bert", input=texts, **options)
    wanted = regard.load(runs["bert"], "cpu").embed(texts)
    rows = [item.embedding for item in answer.data]
    if encoding == "base64":
        import base64
        import struct

        rows = [struct.unpack(f"<{len(wanted[0])}f", base64.b64decode(row)) for row in rows]
    for row, vector in zip(rows, wanted.tolist(), strict=True):
        assert all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(row, vector, strict=True))
    assert answer.usage.prompt_tokens > 4


@pytest.mark.parametrize(("how", "words"), [
    ({"model": "gpd", "prompt": "a"}, "did you mean 'gpt'"),
    ({"model": "bert", "prompt": "a"}, "does not complete"),
    ({"model": "gpt", "prompt": "a", "echo": True}, "echo is not supported; leave it out"),
    ({"model": "gpt", "prompt": "a", "logprobs": 2}, "logprobs is not supported; leave it out"),
    ({"model": "gpt", "prompt": [1, 2]}, "token ids"),
    ({"model": "gpt", "prompt": "the dog " * 10}, "context length"),
    ({"model": "gpt", "prompt": "the dog " * 10, "n": 3}, "context length"),
    ({"model": "gpt", "prompt": "a", "max_tokens": 500}, "context length"),
    ({"model": "gpt", "prompt": "a", "n": 65}, "n:"),
    ({"model": "gpt", "prompt": ["a"] * 33, "n": 2}, "66 completions"),
    ({"model": "gpt", "prompt": "a", "temperature": -1}, "temperature"),
])  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_openai_shows_why_a_request_was_refused(openai_client, how, words, stream):
    from openai import APIStatusError

    with pytest.raises(APIStatusError) as refused:
        openai_client.completions.create(**how, stream=stream)
    assert 400 <= refused.value.status_code < 500
    assert words in refused.value.message
    assert refused.value.body["type"]


def test_openai_sends_its_key(locked):
    from openai import AuthenticationError, OpenAI

    with OpenAI(base_url=f"{locked}/v1", api_key=KEY, max_retries=0) as client:
        answer = client.completions.create(model="gpt", prompt="a", max_tokens=2)
    assert answer.choices[0].finish_reason in ("stop", "length")  # a sample may end at once
    with OpenAI(base_url=f"{locked}/v1", api_key="wrong-key", max_retries=0) as client, pytest.raises(AuthenticationError):
        client.models.list()


def test_many_clients_at_once_get_their_own_answers(address, runs):
    """Requests that wait are decoded together; nobody gets another's answer."""
    from openai import OpenAI

    generator = regard.load(runs["gpt"], "cpu")
    prompts = ["the dog", "a cat", "they want", "il", "un gatto siede"] * 4
    wanted = [generator.generate(prompt, tokens=6, seed=number) for number, prompt in enumerate(prompts)]
    found: dict[int, str] = {}
    with OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:

        def one(number: int) -> None:
            answer = client.completions.create(model="gpt", prompt=prompts[number], max_tokens=6, seed=number)
            found[number] = answer.choices[0].text

        threads = [threading.Thread(target=one, args=(number,)) for number in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert [found[number] for number in range(len(prompts))] == wanted
