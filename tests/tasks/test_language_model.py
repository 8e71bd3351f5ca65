"""A writer: its pieces, its stops, its room."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config import DataConfig, Run
from regard.data.text.tokenizer import train_tokenizer
from regard.decode import search
from regard.decode.fast import decoder
from regard.models.gpt import GPT, GPTConfig
from regard.tasks.language_model import TextGenerator, _until

TEXT = "to be, or not to be:\nthat is the question.\n"
law = settings(max_examples=40)


def writer(kind: str = "characters", max_len: int = 40) -> TextGenerator:
    torch.manual_seed(0)
    tokenizer = train_tokenizer([TEXT] * 3, kind, 60)
    config = GPTConfig(vocab=tokenizer.vocab, dim=16, depth=1, heads=2, max_len=max_len)
    model = GPT(config).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return TextGenerator(
        model, tokenizer, Run("tiny", "gpt", config, task="language_model", data=DataConfig(tokenizer=kind))
    )


one = writer()


@law
@given(
    text=st.text("ab", max_size=12), stop=st.lists(st.text("ab", min_size=1, max_size=3), max_size=3), data=st.data()
)
def test_pieces_end_before_the_stop_that_is_complete_first(text, stop, data):
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text)), max_size=6)) | {len(text)}) if text else []
    pieces = list(_until(stop, iter([text[:cut] for cut in cuts])))
    complete = [(end, len(s)) for end in range(len(text) + 1) for s in sorted(stop, key=len) if text[:end].endswith(s)]
    end, length = min(complete, key=lambda one: (one[0], -one[1]), default=(len(text), 0))
    assert "".join(pieces) == text[: end - length]
    assert all(pieces)


@law
@given(
    seed=st.integers(0, 500),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    stop=st.text("aeot ", min_size=1, max_size=2),
)
def test_a_text_with_a_stop_is_the_beginning_of_the_text_without(seed, temperature, stop):
    how = {"tokens": 20, "temperature": temperature, "seed": seed}
    whole = one.write("to be", **how)
    assert one.write("to be", **how, stop=[stop]) == whole.partition(stop)[0]
    assert "".join(one.stream("to be", **how)) == whole == one.write("to be", **how)


def test_the_likeliest_text_is_what_repeated_forward_passes_say():
    [ids] = one.tokenizer.encode(["to be"])
    for _ in range(10):
        ids.append(int(one.model(torch.tensor([ids]))[0, -1].argmax()))
        if ids[-1] == one.tokenizer.special.eos:
            break
    said = ids[5:-1] if ids[-1] == one.tokenizer.special.eos else ids[5:]
    assert one.write("to be", tokens=10, temperature=0) == one.tokenizer.decode(said)


def test_other_seeds_write_other_texts():
    assert len({one.write("to be", tokens=20, seed=seed) for seed in range(5)}) > 1


@pytest.mark.parametrize("kind", ["characters", "bytes", "bpe"])
def test_an_empty_prompt_begins_a_text(kind):
    this = writer(kind)
    lines = this.tokenizer.keeps_newlines
    first = this.tokenizer.encode(["\n"])[0] if lines else [this.tokenizer.special.eos]
    ids = list(first)
    for _ in range(3):
        ids.append(int(this.model(torch.tensor([ids]))[0, -1].argmax()))
    ended = ids.index(this.tokenizer.special.eos, 1) if lines and this.tokenizer.special.eos in ids[1:] else None
    said = this.tokenizer.decode(ids[:ended]).removeprefix("\n" if lines else "").rstrip("\ufffd")  # half a character
    assert this.write("", tokens=3, temperature=0).replace("\n", "") == said.replace("\n", "")


def test_one_string_to_stop_at_is_refused():
    with pytest.raises(ValueError, match="a list of strings"):
        one.write("to be", stop="END")


def test_an_end_is_the_end_of_a_line_where_tokens_know_no_other():
    lines = writer("bpe")
    eos = lines.tokenizer.special.eos
    [ids] = lines.tokenizer.encode(["to be"])
    *_, text = lines._spell([eos], iter([*ids, eos, *ids]))
    assert text.split("\n") == ["to be", "to be"]
    *_, text = one._spell(one.tokenizer.encode(["to be"])[0], iter([*one.tokenizer.encode([" or"])[0], eos, 5, 5]))
    assert text == " or"  # characters know line ends, so there an end ends the text


def test_half_a_character_waits_for_its_other_half():
    byte = writer("bytes")
    [ids] = byte.tokenizer.encode(["€ü"])
    texts = list(byte._spell(byte.tokenizer.encode(["to"])[0], iter(ids)))
    assert texts[-1] == "€ü"
    assert not any("\ufffd" in text for text in texts)


@pytest.mark.parametrize(
    ("prompt", "how", "wanted"),
    [
        ("to be", {"tokens": 0}, "0 tokens; ask for 1 or more"),
        ("to be", {"tokens": 37}, "5 tokens and 37 more.* places for 40: ask for at most 36"),
        ("to be " * 10, {"tokens": 1}, "60 tokens.* places for 40: shorten it"),
        ("to be", {"stop": [""]}, "empty string"),
        ("to be", {"tokens": 3, "temperature": -1.0}, "temperature -1.0"),
        ("to be", {"tokens": 3, "top_p": 0.0}, "top_p 0.0"),
    ],
)
def test_what_cannot_be_written_is_refused_in_one_line(prompt, how, wanted):
    with pytest.raises(ValueError, match=wanted) as refused:
        one.stream(prompt, **how)
    assert "\n" not in str(refused.value)


def test_all_places_can_be_used():
    ids = one.tokenizer.encode(["to be"])[0]
    source, wanted = torch.tensor([ids]), list(ids)
    said = search.stream(decoder(one.model), source, search.argmax, bos=source[:, -1], limit=36)
    for token in said:
        wanted.append(int(one.model(torch.tensor([wanted]))[0, -1].argmax()))
        assert token == wanted[-1]
    assert len(wanted) == one.model.max_len + 1  # the last is not read again
    assert one._read("to be", None)[1] == 36
