"""Text generation: streaming, stop strings, the context length."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config import Run
from regard.data.text.config import TextData
from regard.data.text.tokenizer import train_tokenizer
from regard.decode import search
from regard.decode.fast import decoder
from regard.models.gpt import GPT, GPTConfig
from regard.tasks.language_model import TextGenerator, _WrittenText

TEXT = "to be, or not to be:\nthat is the question.\n"
law = settings(max_examples=40)


def make_generator(kind: str = "characters", max_len: int = 40) -> TextGenerator:
    torch.manual_seed(0)
    tokenizer = train_tokenizer([TEXT] * 3, kind, 60)
    config = GPTConfig(vocab=tokenizer.vocab, dim=16, depth=1, heads=2, max_len=max_len)
    model = GPT(config).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return TextGenerator(model, tokenizer, Run("tiny", "gpt", config, task="language_model", data=TextData(tokenizer=kind)))


generator = make_generator()


@law
@given(text=st.text("ab", max_size=12), stop=st.lists(st.text("ab", min_size=1, max_size=3), max_size=3), data=st.data())
def test_pieces_end_before_the_stop_string_completed_first(text, stop, data):
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text)), max_size=6)) | {len(text)}) if text else []
    written, sure = _WrittenText(generator.tokenizer, [], stop), [0]
    for cut in cuts:
        if not written.ended:
            written.extend_to(text[:cut])
            sure.append(written.sure)
    complete = [(end, len(s)) for end in range(len(text) + 1) for s in sorted(stop, key=len) if text[:end].endswith(s)]
    end, length = min(complete, key=lambda found: (found[0], -found[1]), default=(len(text), 0))
    assert written.text == text[: end - length]
    assert sure == sorted(sure)  # nothing is taken back
    assert written.text[: sure[-1]] + written.withheld == written.text


@law
@given(seed=st.integers(0, 500), temperature=st.sampled_from([0.0, 0.7, 1.5]), stop=st.text("aeot ", min_size=1, max_size=2))
def test_a_text_with_a_stop_string_is_a_prefix_of_the_text_without(seed, temperature, stop):
    how = {"tokens": 20, "temperature": temperature, "seed": seed}
    whole = generator.generate("to be", **how)
    assert generator.generate("to be", **how, stop=[stop]) == whole.partition(stop)[0]
    assert "".join(generator.stream("to be", **how)) == whole == generator.generate("to be", **how)


def test_greedy_text_equals_repeated_forward_passes():
    [ids] = generator.tokenizer.encode(["to be"])
    for _ in range(10):
        ids.append(int(generator.model(torch.tensor([ids]))[0, -1].argmax()))
        if ids[-1] == generator.tokenizer.special.eos:
            break
    generated = ids[5:-1] if ids[-1] == generator.tokenizer.special.eos else ids[5:]
    assert generator.generate("to be", tokens=10, temperature=0) == generator.tokenizer.decode(generated)


def test_other_seeds_generate_other_texts():
    assert len({generator.generate("to be", tokens=20, seed=seed) for seed in range(5)}) > 1


@pytest.mark.parametrize("kind", ["characters", "bytes", "bpe"])
def test_an_empty_prompt_starts_a_text(kind):
    other = make_generator(kind)
    lines = other.tokenizer.keeps_newlines
    first = other.tokenizer.encode(["\n"])[0] if lines else [other.tokenizer.special.eos]
    ids = list(first)
    for _ in range(3):
        ids.append(int(other.model(torch.tensor([ids]))[0, -1].argmax()))
    ended = ids.index(other.tokenizer.special.eos, 1) if lines and other.tokenizer.special.eos in ids[1:] else None
    generated = (
        other.tokenizer.decode(ids[:ended]).removeprefix("\n" if lines else "").rstrip("\ufffd")
    )  # an incomplete character
    assert other.generate("", tokens=3, temperature=0).replace("\n", "") == generated.replace("\n", "")


def test_one_stop_string_instead_of_a_list_is_refused():
    with pytest.raises(ValueError, match="a list of strings"):
        generator.generate("to be", stop="END")


def test_an_end_token_ends_a_line_if_the_tokenizer_has_no_newlines():
    lines = make_generator("bpe")
    eos = lines.tokenizer.special.eos
    [ids] = lines.tokenizer.encode(["to be"])
    text = lines.decode_answer([eos], [*ids, eos, *ids])
    assert text.split("\n") == ["to be", "to be"]
    prompt, answer = generator.tokenizer.encode(["to be", " or"])
    text = generator.decode_answer(prompt, [*answer, eos, 5, 5])
    assert text == " or"  # characters have newlines, so there it ends the text


def test_an_incomplete_character_is_withheld():
    by_bytes = make_generator("bytes")
    [ids] = by_bytes.tokenizer.encode(["€ü"])
    pieces = list(_WrittenText(by_bytes.tokenizer, by_bytes.tokenizer.encode(["to"])[0], ()).pieces(ids))
    assert "".join(pieces) == "€ü"
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize(
    ("prompt", "how", "wanted"),
    [
        ("to be", {"tokens": 0}, "0 tokens; ask for 1 or more"),
        ("to be", {"tokens": 37}, "5 tokens and 37 more.* context length is 40: ask for at most 36"),
        ("to be " * 10, {"tokens": 1}, "60 tokens.* context length is 40: shorten it"),
        ("to be", {"stop": [""]}, "empty stop string"),
        ("to be", {"tokens": 3, "temperature": -1.0}, "temperature -1.0"),
        ("to be", {"tokens": 3, "top_p": 0.0}, "top_p 0.0"),
    ],
)
def test_invalid_options_are_refused_in_one_line(prompt, how, wanted):
    with pytest.raises(ValueError, match=wanted) as error:
        generator.stream(prompt, **how)
    assert "\n" not in str(error.value)


def test_the_whole_context_can_be_used():
    ids = generator.tokenizer.encode(["to be"])[0]
    source, wanted = torch.tensor([ids]), list(ids)
    generated = search.stream(decoder(generator.model), source, search.argmax, bos=source[:, -1], limit=36)
    for token in generated:
        wanted.append(int(generator.model(torch.tensor([wanted]))[0, -1].argmax()))
        assert token == wanted[-1]
    assert len(wanted) == generator.model.max_len + 1  # the last is not read again
    assert generator.encode_prompt("to be", None)[1] == 36
