"""Observers of texts: they see a text grow, and texts that nobody wants any more stop being decoded."""

import threading
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config import DecodeConfig, Run
from regard.data.text.config import TextData
from regard.data.text.tokenizer import train_tokenizer
from regard.data.text.toys import toy_pairs
from regard.decode.fast import CachedDecoder
from regard.models.gpt import GPT, GPTConfig
from regard.tasks.language_model import Prompt, TextGenerator
from regard.tasks.load import load
from regard.tasks.observer import TextProgress

TEXTS = [source for source, _ in toy_pairs("reverse", "test", 12)]


@dataclass
class Reader:
    """Wants a text until it has seen some states of it."""

    patience: float = float("inf")
    seen: list[str] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    @property
    def wanted(self) -> bool:
        return len(self.seen) < self.patience

    def partial(self, text: str) -> None:
        self.seen.append(text)
        self.threads.add(threading.get_ident())


@dataclass
class Gone:
    """Never wanted the text."""

    wanted: bool = False
    partial: None = None


@pytest.fixture(scope="module")
def translator(small_run):
    return load(small_run)


@pytest.fixture
def rows(monkeypatch):
    """The rows given to each step of a decoder."""
    counts, step = [], CachedDecoder.step
    monkeypatch.setattr(CachedDecoder, "step", lambda self, token, state: counts.append(len(token)) or step(self, token, state))
    return counts


@pytest.mark.parametrize(
    "how", [{"beam": 1}, {"beam": 3}, {"beam": 3, "split": False}, {"beam": 2, "glossary": {"a": "b"}}], ids=str
)
def test_observers_see_the_text_grow_to_the_answer_and_change_nothing(translator, how):
    observers = [Reader() for _ in TEXTS]
    answers = translator.translate(TEXTS, observers=observers, **how)
    assert answers == translator.translate(TEXTS, **how)
    for observer, answer in zip(observers, answers, strict=True):
        assert len(observer.seen) > 1
        if "glossary" not in how:  # the search for a glossary's terms is a second one, which is not shown
            assert observer.seen[-1] == answer.text


def test_token_ids_can_be_observed(translator):
    observers = [Reader() for _ in TEXTS]
    answers = translator.translate(translator.encode(TEXTS), observers=observers)
    assert [observer.seen[-1] for observer in observers] == [answer.text for answer in answers]


@pytest.mark.parametrize("beam", [1, 3])
def test_a_text_that_nobody_wants_leaves_and_the_others_stay_as_they_are(translator, rows, beam):
    wanted = translator.translate(TEXTS, beam=beam)
    rows.clear()
    observers = [Reader(2) if n % 3 == 0 else None if n % 3 == 1 else Reader() for n in range(len(TEXTS))]
    answers = translator.translate(TEXTS, beam=beam, observers=observers)
    assert [a.text for n, a in enumerate(answers) if n % 3] == [a.text for n, a in enumerate(wanted) if n % 3]
    assert all(len(observer.seen) == 2 for observer in observers[::3])
    assert rows[:2] == [len(TEXTS) * beam] * 2
    assert max(rows[2:]) <= 2 * len(TEXTS) // 3 * beam


def test_texts_that_nobody_wants_are_never_begun(translator, rows):
    answers = translator.translate(TEXTS, observers=[Gone() if n else None for n in range(len(TEXTS))])
    assert set(rows) == {translator.run.decode.beam_size}
    assert answers[0].text == translator.translate(TEXTS[:1])[0].text
    assert not any(answer.text for answer in answers[1:])
    rows.clear()
    translator.translate(TEXTS, observers=[Gone()] * len(TEXTS))
    assert not rows


def test_a_text_of_several_sentences_is_one_for_its_observer(translator, rows):
    text = "1 2 3. 4 5 6 7.\n8 9."
    reader = Reader()
    [answer] = translator.translate([text], observers=[reader], protect=False)
    assert reader.seen[-1] == answer.text
    assert answer.sentences > 1
    rows.clear()
    translator.translate([text, TEXTS[0]], observers=[Reader(1), None], protect=False)
    width = translator.run.decode.beam_size
    assert rows[0] == (answer.sentences + 1) * width
    assert max(rows[2:]) == width  # all of its sentences left


def test_protected_spans_are_searched_for_again_only_if_the_text_is_wanted(translator, rows):
    text = "5 2 <b>8</b> 1"
    reader = Reader()
    [answer] = translator.translate([text], observers=[reader], protect=True)
    [plain] = translator.translate([text], protect=True)
    assert answer == plain
    assert answer.restored
    rows.clear()
    translator.translate([text], observers=[Reader(1)], protect=True)
    assert rows == [translator.run.decode.beam_size]


def test_observers_are_called_in_the_threads_that_decode(translator):
    before, observers = torch.get_num_threads(), [Reader() for _ in TEXTS]
    torch.set_num_threads(2)
    try:
        answers = translator.translate(TEXTS, observers=observers)
        dropped = translator.translate(TEXTS, observers=[Reader(1), *[None] * (len(TEXTS) - 1)])
    finally:
        torch.set_num_threads(before)
    assert [observer.seen[-1] for observer in observers] == [answer.text for answer in answers]
    assert threading.get_ident() not in set().union(*(observer.threads for observer in observers))
    assert [answer.text for answer in dropped[1:]] == [answer.text for answer in answers[1:]]


def test_an_observer_for_each_text_is_wanted(translator):
    with pytest.raises(ValueError, match="1 observers for 2 texts"):
        translator.translate(TEXTS[:2], observers=[None])


@settings(max_examples=40)
@given(lengths=st.lists(st.integers(1, 3), min_size=1, max_size=4), data=st.data())
def test_a_text_is_shown_up_to_its_first_unfinished_sentence(lengths, data):
    """Whatever the order in which sentences are decoded."""
    shown, parts = [], ["", *[part for n in range(len(lengths)) for part in (f"source {n}", f"|{n}|")]]
    progress = TextProgress(shown.append, parts, lambda tokens: "".join(chr(97 + token) for token in tokens))
    steps, written, text = [n for n, length in enumerate(lengths) for _ in range(length)], [0] * len(lengths), ""
    for n in data.draw(st.permutations(steps)):
        written[n] += 1
        progress.update(n, [n] * written[n], written[n] == lengths[n])
        before, text = text, ""
        for k, (some, length) in enumerate(zip(written, lengths, strict=True)):
            text += chr(97 + k) * some + f"|{k}|" * (some == length)
            if some < length:
                break
        assert text == before or shown[-1] == text
    assert shown[-1] == text


# Generation


def make_generator(kind: str = "characters", **decode) -> TextGenerator:
    torch.manual_seed(0)
    text = "to be, or not to be:\nthat is the question.\n"
    tokenizer = train_tokenizer([text] * 3, kind, 60)
    config = GPTConfig(vocab=tokenizer.vocab, dim=16, depth=2, heads=2, max_len=60)
    model = GPT(config).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.4)
    run = Run("tiny", "gpt", config, task="language_model", data=TextData(tokenizer=kind))
    return TextGenerator(model, tokenizer, replace(run, decode=DecodeConfig(**decode)))


prompts_with_options = st.lists(
    st.builds(Prompt, st.text("to be,rnhaqu\n", max_size=12), tokens=st.one_of(st.none(), st.integers(1, 20)),
              temperature=st.sampled_from([0.0, 0.7, 1.3]), top_k=st.sampled_from([0, 4]), top_p=st.sampled_from([1.0, 0.8]),
              seed=st.integers(0, 99), stop=st.lists(st.sampled_from(["t", "be", "\n"]), max_size=2)),
    min_size=1, max_size=6,
)  # fmt: skip


def alone(generator: TextGenerator, prompt: Prompt) -> str:
    options = {name: value for name, value in vars(prompt).items() if name != "text"}
    return generator.generate(prompt.text, **options)


@pytest.mark.parametrize("kind", ["characters", "bpe", "bytes"])
def test_each_prompt_of_a_batch_is_continued_as_alone(kind):
    generator = make_generator(kind)

    @settings(max_examples=15)
    @given(prompts=prompts_with_options)
    def check(prompts: list[Prompt]) -> None:
        observers = [Reader() for _ in prompts]
        found = generator.generate_batch(prompts, observers)
        assert [text.text for text in found] == [alone(generator, prompt) for prompt in prompts]
        for prompt, text, reader in zip(prompts, found, observers, strict=True):
            limit = generator.encode_prompt(prompt.text, prompt.tokens)[1]
            assert text.tokens <= limit
            assert text.reason == "stop" or text.tokens == limit
            assert text.prompt_tokens == len(generator.encode_prompt(prompt.text)[0])
            assert all(after.startswith(before) for before, after in zip(reader.seen, reader.seen[1:], strict=False))
            assert not reader.seen or text.text.startswith(reader.seen[-1])

    check()


@settings(max_examples=15)
@given(prompts=prompts_with_options)
def test_options_that_read_the_history_hold_in_a_batch_too(prompts):
    generator = make_generator(no_repeat_ngram_size=2, repetition_penalty=1.2, batch_size=2)
    assert [text.text for text in generator.generate_batch(prompts)] == [alone(generator, prompt) for prompt in prompts]


def test_prompts_of_different_lengths_share_each_step_and_leave_when_nobody_wants_them(rows):
    generator = make_generator()
    prompts = [Prompt("to be"[:n], tokens=10, temperature=0.9, seed=n) for n in (1, 2, 3, 4, 5)]
    wanted = [alone(generator, prompt) for prompt in prompts]
    rows.clear()
    found = generator.generate_batch(prompts, [Reader(2), Gone(), *[None] * 3])
    assert rows[:2] == [4, 4]
    assert max(rows[2:]) <= 3
    assert [text.text for text in found[2:]] == wanted[2:]
    assert wanted[0].startswith(found[0].text)
    assert not found[1].text


def test_a_bad_prompt_of_a_batch_is_refused_before_any_is_decoded(rows):
    with pytest.raises(ValueError, match="temperature -1"):
        make_generator().generate_batch([Prompt("to"), Prompt("be", temperature=-1.0)])
    assert not rows
