"""Translations use the glossary's terms, and are otherwise what they would be without it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.text.toys import toy_pairs
from regard.tasks.load import load
from regard.tasks.translation import Translator

TEXTS = [source for source, _ in toy_pairs("reverse", "test", 12)]
WORDS = sorted({word for text in TEXTS for word in text.split()})
words = st.sampled_from(WORDS)


@pytest.fixture(scope="module")
def translator(small_run) -> Translator:
    return load(small_run)


@settings(max_examples=15)
@given(
    terms=st.dictionaries(st.sampled_from(WORDS), st.sampled_from(WORDS), min_size=1, max_size=3), beam=st.sampled_from([1, 3])
)
def test_a_translation_has_the_term_of_each_occurrence(translator, terms, beam):
    plain = translator.translate(TEXTS, beam=beam)
    for text, before, answer in zip(TEXTS, plain, translator.translate(TEXTS, beam=beam, glossary=terms), strict=True):
        wanted = [terms[word] for word in text.split() if word in terms]
        assert all(answer.text.split().count(target) >= wanted.count(target) for target in wanted)
        if all(before.text.split().count(target) >= wanted.count(target) for target in wanted):
            assert answer.ids == before.ids


def test_the_command_reads_a_glossary(small_run, regard, tmp_path):
    text = TEXTS[0]
    (tmp_path / "terms.tsv").write_text(f"{text.split()[0]}\t{WORDS[-1]} {WORDS[0]}\n")
    assert f"{WORDS[-1]} {WORDS[0]}" in regard("translate", small_run, text, "--glossary", tmp_path / "terms.tsv").out
    (tmp_path / "terms.tsv").write_text("no tab\n")
    found = regard("translate", small_run, text, "--glossary", tmp_path / "terms.tsv")
    assert found.code == 2
    assert "line 1: wanted a source term, a tab and a target term" in found.err
    assert "no file" in regard("translate", small_run, text, "--glossary", tmp_path / "none.tsv").err


def test_a_sample_has_no_glossary(translator):
    with pytest.raises(ValueError, match="cannot be required of a sample"):
        translator.translate(TEXTS[:1], temperature=1.0, glossary={"a": "b"})


def test_phrases_are_given_for_each_sentence(translator):
    ids, [phrase] = translator.encode(TEXTS[:2]), translator.encode([WORDS[0]])
    found = translator.search(ids, beam=2, batch=8, penalty=1.0, constraints=[[phrase], []], logprobs=True)
    assert all(WORDS[0] in translator.tokenizer.decode(hypothesis.tokens).split() for hypothesis in found[0])
    assert len(found[0][0].logprobs) >= len(found[0][0].tokens)
    with pytest.raises(ValueError, match="constraints for 1 sentences, got 2"):
        translator.search(ids, beam=2, batch=8, penalty=1.0, constraints=[[phrase]])
    with pytest.raises(ValueError, match="leave some out, or allow more tokens"):
        translator.search(ids, beam=2, batch=8, penalty=1.0, tokens=2, constraints=[[phrase] * 3, []])
