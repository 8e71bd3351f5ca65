"""Every task that decodes obeys the options of its run's decode table."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from regard.config import DecodeConfig
from regard.data.text.tokenizer import train_tokenizer
from regard.data.text.toys import toy_pairs
from regard.decode import search
from regard.models.bahdanau import Bahdanau, BahdanauConfig
from regard.models.conformer import Conformer, ConformerConfig, Utterances
from regard.tasks.captioning import ImageCaptioner
from regard.tasks.load import load
from regard.tasks.speech import Transcriber

TEXTS = [source for source, _ in toy_pairs("reverse", "test", 6)]
TOKENIZER = train_tokenizer(["abcdefgh"], "characters", 16)
BEAMS = pytest.mark.parametrize("beam", [1, 3])


def with_decode(predictor, **options):
    return replace(predictor, run=replace(predictor.run, decode=DecodeConfig(**options)))


@BEAMS
def test_a_translator_obeys_the_lengths_and_tokens_of_its_run(small_run, beam):
    plain = load(small_run)
    eos = plain.tokenizer.special.eos

    def ids(**options):
        return [answer.ids for answer in with_decode(plain, **options).translate(TEXTS, beam=beam)]

    assert all(len(answer) <= 3 for answer in ids(max_length=3))
    assert all(len(answer) >= 12 for answer in ids(min_length=12))
    assert all(len(set(answer)) == len(answer) for answer in ids(no_repeat_ngram_size=1))
    assert all(len(set(pairwise(answer))) == len(answer) - 1 for answer in ids(no_repeat_ngram_size=2))
    assert {answer[0] for answer in ids(forced_bos=7)} == {7}
    banned = {token for answer in ids() for token in answer}
    assert not banned & {token for answer in ids(suppress_tokens=sorted(banned)) for token in answer}
    first = ids()[0][:2]
    assert first not in [answer[:2] for answer in ids(bad_words=[first])]
    assert all(len(answer) == 2 for answer in ids(max_length=3, min_length=2, forced_eos=eos))
    tokens = with_decode(plain, max_length=3, suppress_tokens=[eos]).translate(TEXTS[:1], beam=beam, tokens=5)[0].ids
    assert len(tokens) == 5  # the caller's number goes first


def test_a_token_that_the_model_does_not_have_is_refused(small_run):
    plain = load(small_run)
    vocab = plain.tokenizer.vocab
    for options in ({"suppress_tokens": [vocab]}, {"bad_words": [[3, vocab]]}, {"forced_bos": vocab}, {"bad_words": [[-1]]}):
        with pytest.raises(
            ValueError, match=rf"decode.{next(iter(options))} has token -?\d+; this model's tokens are 0 to {vocab - 1}"
        ):
            with_decode(plain, **options).translate(TEXTS)
    with pytest.raises(ValueError, match="empty sequence"):
        with_decode(plain, bad_words=[[]]).translate(TEXTS)


def test_a_generator_obeys_the_lengths_and_tokens_of_its_run(text_runs, monkeypatch):
    plain, chosen = load(text_runs / "gpt"), []
    real = search.stream
    monkeypatch.setattr(search, "stream", lambda *args, **keys: (chosen.append(token) or token for token in real(*args, **keys)))
    [prompt] = plain.tokenizer.encode(["the cat"])

    def tokens(temperature=0.0, **options):
        chosen.clear()
        with_decode(plain, **options).generate("the cat", temperature=temperature, seed=3)
        return [*chosen]

    eos = plain.tokenizer.special.eos
    assert len(tokens(max_length=4, suppress_tokens=[eos])) == 4
    assert len(tokens(max_length=9, min_length=9)) == 9
    both = [*prompt, *tokens(max_length=6, no_repeat_ngram_size=1, suppress_tokens=[eos])]
    assert len(set(both[len(prompt) - 1 :])) == len(both[len(prompt) - 1 :])
    assert not set(prompt) & set(both[len(prompt) :])  # the prompt counts too
    often = tokens(1.0, max_length=30)
    assert not set(often) & set(tokens(1.0, max_length=30, suppress_tokens=often))
    assert tokens(max_length=5, forced_bos=9, min_length=5, forced_eos=eos)[::4] == [9, eos]


@BEAMS
def test_a_captioner_obeys_the_lengths_and_tokens_of_its_run(beam):
    torch.manual_seed(0)
    model = Bahdanau(BahdanauConfig(vocab=TOKENIZER.vocab, dim=8, hidden=8, align=6, readout=8)).eval()
    source = torch.randint(3, TOKENIZER.vocab, (3, 4))

    def found(**options):
        run = SimpleNamespace(decode=DecodeConfig(**options), data=SimpleNamespace(max_len=9))
        return [hypotheses[0].tokens for hypotheses in ImageCaptioner(model, TOKENIZER, run).search(source, beam, 1.0)]

    model.max_len = 20
    assert {len(tokens) for tokens in found(max_length=4, suppress_tokens=[TOKENIZER.special.eos])} == {4}
    assert all(len(set(tokens)) == len(tokens) for tokens in found(no_repeat_ngram_size=1))
    assert {tokens[0] for tokens in found(forced_bos=5)} == {5}


@BEAMS
@pytest.mark.parametrize("weight", [0.0, 0.3], ids=["attention", "joint"])
def test_a_transcriber_obeys_the_lengths_and_tokens_of_its_run(beam, weight):
    torch.manual_seed(0)
    shape = {"vocab": TOKENIZER.vocab, "features": 8, "dim": 8, "depth": 1, "heads": 2, "mlp_ratio": 2, "kernel": 3}
    config = ConformerConfig(**shape, decoder_depth=1, ctc_weight=weight)
    model, source = Conformer(config).eval(), Utterances(torch.randn(2, 60, 8), torch.tensor([60, 50]))

    def found(**options):
        run = SimpleNamespace(decode=DecodeConfig(**options), model=config)
        with torch.inference_mode():
            found = Transcriber(model, TOKENIZER, run)._search_tokens(source, torch.tensor([12, 10]), beam, 1.0)
        return [hypothesis.tokens for hypothesis in found]

    assert all(len(tokens) <= 3 for tokens in found(max_length=3))
    assert all(len(set(tokens)) == len(tokens) for tokens in found(no_repeat_ngram_size=1))
    assert {tokens[0] for tokens in found(forced_bos=5)} == {5}
