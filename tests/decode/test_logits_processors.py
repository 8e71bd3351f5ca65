"""Each logits processor gives the scores of Hugging Face's, and leaves its input as it is."""

import math

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config import DecodeConfig
from regard.decode.logits_processors import SearchProgress, logits_processor

EOS, VOCAB = 1, 12

law = settings(max_examples=40)
tokens = st.integers(0, VOCAB - 1)


def theirs(options: dict, prompt: int, limit: int) -> list:
    """Hugging Face's processors for the same options, in the order of `generate`."""
    make = {
        "repetition_penalty": lambda n: transformers.RepetitionPenaltyLogitsProcessor(n),
        "no_repeat_ngram_size": lambda n: transformers.NoRepeatNGramLogitsProcessor(n),
        "bad_words": lambda words: transformers.NoBadWordsLogitsProcessor(words, EOS),
        "min_length": lambda n: transformers.MinLengthLogitsProcessor(n + prompt, EOS),
        "forced_bos": lambda token: transformers.ForcedBOSTokenLogitsProcessor(token),
        "forced_eos": lambda token: transformers.ForcedEOSTokenLogitsProcessor(prompt + limit, token),
        "suppress_tokens": lambda ids: transformers.SuppressTokensLogitsProcessor(ids),
        "renormalize_logits": lambda on: transformers.LogitNormalization(),
    }
    return [make[key](options[key]) for key in make if key in options]


@law
@given(seed=st.integers(0, 1000), rows=st.integers(1, 4), length=st.integers(0, 9),
       options=st.fixed_dictionaries({}, optional={
           "repetition_penalty": st.sampled_from([0.7, 1.5]), "no_repeat_ngram_size": st.integers(1, 4),
           "bad_words": st.lists(st.lists(tokens, min_size=1, max_size=3).filter(lambda w: w != [EOS]), min_size=1, max_size=4),
           "min_length": st.integers(1, 9), "forced_bos": tokens, "forced_eos": tokens,
           "suppress_tokens": st.lists(tokens, min_size=1, max_size=4), "renormalize_logits": st.just(True)}))  # fmt: skip
def test_the_scores_are_those_of_hugging_face(seed, rows, length, options):
    generator, limit = torch.Generator().manual_seed(seed), 9
    scores = 3 * torch.randn(rows, VOCAB, generator=generator)
    history = torch.randint(0, 4 if seed % 2 else VOCAB, (rows, 1 + length), generator=generator)
    wanted = scores
    for processor in theirs(options, 1, limit):
        wanted = processor(history, wanted)
    before, process = scores.clone(), logits_processor(DecodeConfig(**options), EOS)
    found = (
        scores if process is None else process(scores, SearchProgress(history, length, torch.full((rows,), length == limit - 1)))
    )
    nothing = (wanted.isneginf() | wanted.isnan()).all(1)
    torch.testing.assert_close(found[~nothing], wanted[~nothing])
    whole = scores.log_softmax(-1) if options.get("renormalize_logits") else scores
    torch.testing.assert_close(found[nothing], whole[nothing])  # where every token is ruled out, none is
    assert torch.equal(scores, before)
    assert (process is None) == (not options)


def test_nothing_is_done_without_options():
    assert logits_processor(DecodeConfig(beam_size=3, max_length=9), EOS) is None
    assert logits_processor(DecodeConfig(bad_words=[[EOS]]), EOS) is None  # it would forbid every end


def test_each_row_is_forced_at_its_own_limit():
    process = logits_processor(DecodeConfig(forced_eos=EOS), EOS)
    found = process(torch.zeros(2, 3), SearchProgress(torch.zeros(2, 4, dtype=torch.long), 3, torch.tensor([True, False])))
    assert found.tolist() == [[-math.inf, 0.0, -math.inf], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("options", [{"suppress_tokens": [12]}, {"bad_words": [[2, 99]]}, {"forced_eos": 12}], ids=str)
def test_a_token_outside_the_vocabulary_is_refused_by_its_name(options):
    process = logits_processor(DecodeConfig(**options), EOS)
    with pytest.raises(ValueError, match=f"decode.{next(iter(options))} has token .*; this model's tokens are 0 to 11"):
        process(torch.zeros(1, VOCAB), SearchProgress(torch.zeros(1, 1, dtype=torch.long), 0, torch.tensor([False])))
