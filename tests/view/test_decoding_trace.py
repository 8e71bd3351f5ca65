"""The steps of a search in words, as a table, a tree and JSON."""

import dataclasses
import json

import pytest
import tokenizers
import torch
from rich.console import Console
from tiny_captioners import captioner, random_image
from tokenizers.processors import TemplateProcessing
from tone_speech import say

from regard.config import DecodeConfig, Run
from regard.data.audio.config import AudioData
from regard.data.text.tokenizer import Tokenizer, train_bpe, train_tokenizer
from regard.data.text.toys import toy_pairs
from regard.models.conformer import Conformer, ConformerConfig
from regard.tasks.load import load
from regard.tasks.speech import Transcriber
from regard.tasks.translation import Sampling
from regard.view.maps import map_attention
from regard.view.trace import GENERATED, to_table, to_tree, trace_decoding

[(TEXT, _)] = toy_pairs("reverse", "test", 1)


@pytest.fixture(scope="module")
def translator(small_run):
    return load(small_run)


def plain(what: object) -> str:
    console = Console(width=200, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


@pytest.mark.parametrize("beam", [1, 3])
def test_the_answer_of_a_trace_is_the_translation(translator, beam):
    trace = trace_decoding(translator, TEXT, beam=beam)
    [answer] = translator.translate([TEXT], beam=beam, scored=True)
    assert trace.text == answer.text
    assert trace.score == pytest.approx(answer.score, abs=1e-5)
    assert len(trace.steps) >= len(answer.ids)
    assert trace.steps[0].beams[0].inputs == ["<s>"]


def test_the_table_has_each_step_with_its_input_and_likely_tokens(translator):
    trace = trace_decoding(translator, TEXT, beam=1, top=2)
    lines = plain(to_table(trace)).splitlines()
    assert len(lines) == 1 + len(trace.steps)
    for number, (line, step) in enumerate(zip(lines[1:], trace.steps, strict=True), 1):
        [beam] = step.beams
        assert line.split()[0] == str(number)
        assert " ".join(beam.inputs) in line
        assert all(f"{word.token} {word.probability:.1%}" in line for word in beam.top)
        assert len(beam.top) == 2


def test_the_tree_has_kept_dropped_and_finished_branches(translator):
    trace = trace_decoding(translator, TEXT, beam=3)
    lines = plain(to_tree(trace)).splitlines()
    branches = [branch for step in trace.steps for branch in step.branches]
    assert len(lines) == 1 + len(branches)
    assert sum("✗" in line for line in lines) == sum(branch.fate == "dropped" for branch in branches) > 0
    assert sum("✓ finished" in line for line in lines) == sum(branch.fate == "finished" for branch in branches) >= 3
    assert max(branch.score for branch in branches if branch.fate == "finished") == pytest.approx(trace.score)


def test_a_prompt_is_traced_as_the_decoder_reads_it(text_runs):
    generator = load(text_runs / "gpt")
    trace = trace_decoding(generator, "the cat", tokens=4)
    assert len(trace.steps) == 4
    assert trace.steps[1].beams[0].inputs == [*trace.source, trace.answer[0]]


@pytest.mark.parametrize("most", [0, 3])
def test_the_trace_of_a_prompt_is_what_is_generated(text_runs, most):
    generator = load(text_runs / "gpt")
    run = dataclasses.replace(generator.run, decode=dataclasses.replace(generator.run.decode, max_length=most))
    generator = dataclasses.replace(generator, run=run)
    for prompt in ("the cat", ""):
        trace, (_, room) = trace_decoding(generator, prompt), generator.encode_prompt(prompt)
        assert generator.generate(prompt, tokens=min(room, GENERATED), temperature=0) == trace.text
        assert 0 < len(trace.steps) <= min(room, GENERATED)


def teacher_forced(translator, answer: list[int]) -> torch.Tensor:
    """The distribution of each token of an answer and of its end, by one forward pass without a cache: (T + 1, V)."""
    source, special = translator.encode([TEXT])[0], translator.tokenizer.special
    inputs = torch.tensor([[special.bos, *answer]])
    with torch.no_grad():
        features = translator.model.features(torch.tensor([[*source, special.eos]]), inputs)
        return translator.model.output(features)[0].double().softmax(-1)


def test_a_sample_is_traced_with_the_probability_it_was_drawn_by(translator):
    how = {"temperature": 0.7, "top_k": 4, "top_p": 0.95, "seed": 3}
    [answer] = translator.translate([TEXT], **how, scored=True)
    trace = trace_decoding(translator, TEXT, top=4, sampling=Sampling(**how))
    assert (trace.text, trace.score) == (answer.text, pytest.approx(answer.score, abs=1e-5))
    wanted, greedy = teacher_forced(translator, answer.ids), 0
    for row, step in zip(wanted, trace.steps, strict=False):  # the last row is not read if the answer reached its limit
        [beam], [branch] = step.beams, step.branches
        kept, ids = row.topk(4)
        sharpened = kept ** (1 / 0.7) / (kept ** (1 / 0.7)).sum()
        inside = sharpened.cumsum(0) - sharpened < 0.95
        sharpened = sharpened * inside / (sharpened * inside).sum()
        assert [word.token for word in beam.top] == translator.tokenizer.display(ids.tolist())
        assert [word.probability for word in beam.top] == pytest.approx(kept.tolist(), abs=1e-5)
        assert [word.sampling for word in beam.top] == pytest.approx(sharpened.tolist(), abs=1e-5)
        assert beam.entropy == pytest.approx(float(-(row * row.log()).sum()), abs=1e-4)
        drawn = next(word for word in beam.top if word.token == branch.token)
        assert (branch.probability, branch.sampling) == (drawn.probability, drawn.sampling)
        greedy += branch.token == beam.top[0].token
    assert greedy < len(trace.steps)  # something else than the most likely token was drawn


def test_a_sampled_prompt_is_what_is_generated(text_runs):
    generator, how = load(text_runs / "gpt"), {"temperature": 1.3, "top_k": 9, "seed": 5}
    trace = trace_decoding(generator, "the cat", tokens=6, sampling=Sampling(**how))
    assert trace.text == generator.generate("the cat", tokens=6, **how)


@pytest.mark.parametrize("family", ["captioner", "caption-transformer"])
@pytest.mark.parametrize("beam", [1, 3])
def test_a_caption_is_traced_as_it_is_found(family, beam):
    predictor, image = captioner(family), random_image()
    [caption] = predictor.caption([image], beam=beam)
    trace = trace_decoding(predictor, image, beam=beam)
    assert (trace.read, trace.source, trace.text) == ("image", [], caption.text)
    assert trace.score == pytest.approx(caption.score, abs=1e-5)
    assert trace.vocab == predictor.tokenizer.vocab


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_a_transcript_of_a_decoder_is_traced_as_it_is_found(weight):
    torch.manual_seed(2)
    words = train_tokenizer(["a b c", "c b a"], "characters", 20)
    shape = {"features": 20, "dim": 16, "depth": 1, "heads": 2, "kernel": 5, "subsample": 2, "vocab": words.vocab}
    config = ConformerConfig(**shape, decoder_depth=1, ctc_weight=weight, pad=words.special.pad)
    data = AudioData(mels=20, rate=8000, normalize="none")
    run = Run("t", "conformer", config, "speech", data=data, decode=DecodeConfig(beam_size=2))
    predictor = Transcriber(Conformer(config).eval().requires_grad_(False), words, run)
    sound = say("a b")
    for beam in (1, 2):
        [transcript], trace = predictor.transcribe([sound], beam=beam), trace_decoding(predictor, sound, beam=beam)
        assert (trace.read, trace.text) == ("sound", transcript.text)
        assert trace.score == pytest.approx(transcript.score, abs=1e-4)
        tops = [sum(word.probability for word in beam.top) for step in trace.steps for beam in step.beams]
        assert max(tops) <= 1 + 1e-6


def test_a_model_without_a_decoder_is_refused(tone_run):
    with pytest.raises(ValueError, match="reads the answer out by CTC"):
        trace_decoding(load(tone_run), say("a b"))


def test_a_prompt_is_traced_and_shown_with_the_start_token_of_its_tokenizer(text_runs):
    generator = load(text_runs / "gpt")
    inner = tokenizers.Tokenizer.from_str(generator.tokenizer._inner.to_str())
    special = generator.tokenizer.special
    [name] = generator.tokenizer.ids_to_tokens([special.bos])
    inner.post_processor = TemplateProcessing(single=f"{name} $A", pair=f"{name} $A $B", special_tokens=[(name, special.bos)])
    generator = dataclasses.replace(generator, tokenizer=Tokenizer(inner))
    assert generator.tokenizer.prompt_start == [special.bos]
    trace = trace_decoding(generator, "the cat", tokens=4)
    assert trace.steps[0].beams[0].inputs[0] == trace.source[0] == name
    assert trace.text == generator.generate("the cat", tokens=4, temperature=0)
    assert map_attention(generator, "the cat").rows == trace.source


def test_an_answer_with_a_vocabulary_of_its_own_is_traced_in_it(translator):
    inner = json.loads(train_bpe(["a quick brown fox jumps over lazy dogs", "hello there, general words"], 80)._inner.to_str())
    special, vocab = translator.tokenizer.special, inner["model"]["vocab"]
    vocab["<s>"], vocab["</s>"] = vocab["</s>"], vocab["<s>"]  # start and end of the target are other ids than the source's
    for token in inner["added_tokens"]:
        token["id"] = vocab[token["content"]]
    target = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(inner)))
    assert (target.special.bos, target.special.eos) == (special.eos, special.bos)
    decode = dataclasses.replace(translator.run.decode, suppress_tokens=[special.bos, special.eos])
    run = dataclasses.replace(translator.run, decode=decode)
    two = dataclasses.replace(translator, run=run, target_tokenizer=target)
    [answer] = two.translate([TEXT], beam=1, tokens=5, split=False, protect=False)
    trace = trace_decoding(two, TEXT, beam=1, tokens=5)
    assert len(answer.ids) == 5
    assert trace.text == answer.text
    assert trace.answer == target.display(answer.ids)
    assert trace.steps[0].beams[0].inputs == target.display([special.eos])
    assert trace.source == translator.tokenizer.display([*translator.tokenizer.encode([TEXT])[0], special.eos])


def test_the_command_prints_steps_and_json(small_run, regard):
    printed = regard("trace", small_run, TEXT, "--beam", 2, "--top", 2)
    assert printed.code == 0
    assert "time step" in printed.out
    assert "finished" in printed.out
    found = json.loads(regard("trace", small_run, TEXT, "--beam", 2, "--json").out)
    assert found["text"] == regard("translate", small_run, TEXT, "--beam", 2).out.strip()
    assert found["sampling"] is None
    assert {branch["fate"] for step in found["steps"] for branch in step["branches"]} == {"kept", "finished", "dropped"}


def test_the_command_samples(small_run, regard):
    found = json.loads(regard("trace", small_run, TEXT, "--temperature", 0.9, "--top-k", 3, "--seed", 2, "--json").out)
    sampled = regard("translate", small_run, TEXT, "--temperature", 0.9, "--top-k", 3, "--seed", 2)
    assert found["text"] == sampled.out.strip()
    assert found["sampling"] == {"temperature": 0.9, "top_k": 3, "top_p": 1.0, "seed": 2}


@pytest.mark.parametrize(("words", "message"), [
    (["--beam", "0"], "use 1 or more"), (["--top", "0"], "use 1 or more"),
    (["--top-k", "3"], "give a --temperature too"), (["--beam", "2", "--temperature", "1"], "search with a beam or sample"),
])  # fmt: skip
def test_options_that_cannot_be_met_are_refused(small_run, regard, words, message):
    found = regard("trace", small_run, TEXT, *words)
    assert (found.code, message in found.err) == (2, True)


def test_a_text_without_words_and_a_model_that_does_not_decode_are_refused(small_run, text_runs, regard):
    assert "there is no text" in regard("trace", small_run, " ").err
    assert "without decoding steps" in regard("trace", text_runs / "bert", "the cat").err
