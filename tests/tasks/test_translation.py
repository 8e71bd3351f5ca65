"""Translations do not depend on batches or threads, come in the order of the sentences, and are counted."""

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.text.toys import toy_pairs
from regard.layers.tap import watch
from regard.tasks.load import load
from regard.tasks.translation import MIN_SENTENCES, Sampling, Translator

TEXTS = [source for source, _ in toy_pairs("reverse", "test", 40)]
SHORT = 12  # tokens of an answer where its length does not matter; a model that has learnt little writes on to the limit


@pytest.fixture(scope="module")
def translator(small_run) -> Translator:
    return load(small_run)


@pytest.fixture
def cores():
    """Set the number of torch's threads in this test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def workers(translator):
    """The thread of each call of the encoder."""
    calls: list[int] = []
    hook = translator.model.embed_source.register_forward_hook(lambda *_: calls.append(threading.get_ident()))
    yield calls
    hook.remove()


def assert_same(got, wanted) -> None:
    assert [answer.text for answer in got] == [answer.text for answer in wanted]
    assert [answer.tokens for answer in got] == [answer.tokens for answer in wanted]
    assert [answer.score for answer in got] == pytest.approx([answer.score for answer in wanted], abs=1e-5)
    for a, b in zip(got, wanted, strict=True):
        assert [answer.text for answer in a.n_best] == [answer.text for answer in b.n_best]


# Threads


@pytest.mark.parametrize("how", [{"beam": 1, "scored": True}, {"beam": 3, "n_best": 3}, {"beam": 2, "batch": 5}], ids=str)
def test_one_thread_and_two_give_the_same_translations(translator, cores, workers, how):
    cores(1)
    alone = translator.translate(TEXTS, **how)
    assert set(workers) == {threading.get_ident()}
    cores(2)
    workers.clear()
    shared = translator.translate(TEXTS, **how)
    assert 1 <= len(set(workers)) <= 2
    assert threading.get_ident() not in workers
    assert_same(shared, alone)
    assert torch.get_num_threads() == 2


def test_each_thread_has_enough_sentences(translator, cores, workers):
    cores(3)
    for count, parts in (
        (1, 1),
        (2 * MIN_SENTENCES - 1, 1),
        (2 * MIN_SENTENCES, 2),
        (3 * MIN_SENTENCES, 3),
        (7 * MIN_SENTENCES, 3),
    ):
        workers.clear()
        translator.translate(TEXTS[:1] * count, beam=1)
        assert len(workers) == parts
        assert (threading.get_ident() in workers) == (parts == 1)


def test_watched_attention_is_collected_by_one_thread(translator, cores, workers):
    cores(2)
    with watch(translator.model) as recorded:
        watched = translator.translate(TEXTS, beam=1, scored=True, tokens=SHORT)
    assert workers == [threading.get_ident()]
    [lengths] = {tuple(w.shape[-1] for w in calls) for name, calls in recorded.items() if name.endswith("decoder.0.attn")}
    assert lengths == tuple(range(1, len(lengths) + 1))  # the steps, in their order
    assert_same(watched, translator.translate(TEXTS, beam=1, scored=True, tokens=SHORT))


def test_an_error_in_a_thread_is_raised(translator, cores):
    cores(2)
    with pytest.raises(ValueError, match="temperature -1"):
        translator.translate(TEXTS, temperature=-1.0)
    assert torch.get_num_threads() == 2


def test_an_interrupted_translation_restores_the_number_of_threads(translator, cores, workers):
    def interrupt_at_once(done: int) -> None:
        raise KeyboardInterrupt

    cores(2)
    with pytest.raises(KeyboardInterrupt) as interrupt:
        translator.translate(TEXTS, beam=1, batch=4, progress=interrupt_at_once)
    assert interrupt.traceback  # keeps the frames of the translation alive
    found = []
    new = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    new.start()
    new.join()
    assert found == [2]
    workers.clear()
    translator.translate(TEXTS, beam=1)
    assert threading.get_ident() not in workers  # the next one runs in threads again


# Sentences


@settings(max_examples=10)
@given(texts=st.lists(st.sampled_from(["", *TEXTS[:6]]), max_size=12), batch=st.integers(1, 5), threads=st.integers(1, 2))
def test_answers_come_in_the_order_of_the_sentences_and_an_empty_one_stays_empty(translator, texts, batch, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = translator.translate(texts, beam=2, batch=batch, tokens=SHORT)
    finally:
        torch.set_num_threads(before)
    alone = {text: translator.translate([text], beam=2, tokens=SHORT)[0] for text in set(texts)}
    assert_same(together, [alone[text] for text in texts])
    for text, answer in zip(texts, together, strict=True):
        if not text:
            assert (answer.text, answer.tokens, answer.score) == ("", [], 0.0)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [1, 3, 100])
def test_progress_reaches_the_total_and_never_falls(translator, cores, threads, batch):
    cores(threads)
    counts: list[int] = []
    translator.translate(TEXTS[:20], beam=1, batch=batch, progress=counts.append)
    assert counts == sorted(counts)
    assert counts[-1] == 20
    assert len(counts) == {1: 20, 3: 7, 100: threads}[batch]


# Token ids instead of text


@pytest.mark.parametrize("beam", [1, 3])
def test_search_on_token_ids_equals_translate(translator, beam):
    texts = ["", *TEXTS[:9]]
    answers = translator.search(translator.tokenizer.encode(texts), beam=beam, batch=4, penalty=0.6, scored=True)
    wanted = translator.translate(texts, beam=beam, n_best=beam, batch=4, length_penalty=0.6, scored=True)
    for hypotheses, answer in zip(answers, wanted, strict=True):
        assert [translator.tokenizer.decode(h.tokens) for h in hypotheses] == [best.text for best in answer.n_best]
        assert [h.score for h in hypotheses] == [best.score for best in answer.n_best]


# Samples


def test_samples_depend_on_the_seed_and_not_on_the_number_of_threads(translator, cores):
    found = []
    for threads, seed in ((1, 1), (1, 1), (2, 1), (1, 2)):
        cores(threads)
        answers = translator.translate(TEXTS[:10], seed=seed, temperature=2.0, top_k=20, top_p=0.95, batch=5, tokens=SHORT)
        found.append([answer.text for answer in answers])
    once, again, shared, other = found
    assert once == again == shared
    assert once != other


@pytest.mark.parametrize("how", [{"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-9}], ids=str)
def test_a_sample_of_the_most_likely_token_is_greedy(translator, how):
    sampled = translator.translate(TEXTS, **{"temperature": 1.0, **how}, scored=True)
    assert_same(sampled, translator.translate(TEXTS, beam=1, scored=True))


def test_translate_passes_its_sampling_options_to_search(translator):
    ids = translator.tokenizer.encode(TEXTS)
    how = Sampling(temperature=2.0, top_k=5, top_p=0.9, seed=3)
    sampled = translator.search(ids, beam=1, batch=64, penalty=1.0, sampling=how)
    wanted = translator.translate(TEXTS, temperature=2.0, top_k=5, top_p=0.9, seed=3, batch=64, length_penalty=1.0)
    assert [translator.tokenizer.decode(h.tokens) for [h] in sampled] == [answer.text for answer in wanted]


# Scores


@pytest.mark.parametrize("how", [{"beam": 1}, {"temperature": 0.5, "seed": 3}], ids=str)
def test_a_greedy_answer_or_a_sample_is_the_same_with_and_without_a_score(translator, how):
    plain, scored = translator.translate(TEXTS, **how), translator.translate(TEXTS, **how, scored=True)
    assert [answer.tokens for answer in plain] == [answer.tokens for answer in scored]
    assert all(answer.score is None for answer in plain)
    assert all(answer.score < 0 for answer in scored)


def test_the_score_of_a_greedy_answer_follows_the_length_penalty(translator):
    whole, mean = (translator.translate(TEXTS, beam=1, scored=True, length_penalty=p) for p in (0.0, 1.0))
    for total, average in zip(whole, mean, strict=True):
        length = total.score / average.score
        assert length == pytest.approx(round(length))
        assert round(length) in (len(total.tokens), len(total.tokens) + 1)  # with its end token, if it has one


def test_beam_search_always_has_scores(translator):
    full, empty = translator.translate([TEXTS[0], ""], beam=2)
    assert full.score < 0
    assert empty.score == 0


@pytest.mark.parametrize("how", [{"beam": 1}, {"temperature": 0.5}], ids=str)
def test_an_empty_sentence_has_a_score_only_if_others_have(translator, how):
    assert translator.translate([""], **how)[0].score is None
    assert translator.translate([""], **how, scored=True)[0].score == 0


@pytest.mark.parametrize("beam", [1, 3])
def test_an_answer_has_at_most_the_tokens_asked_for(translator, beam):
    whole = translator.translate(TEXTS, beam=1)
    assert max(len(answer.tokens) for answer in whole) > 2
    cut = translator.translate(TEXTS, beam=beam, tokens=2)
    assert max(len(answer.tokens) for answer in cut) == 2
    if beam == 1:
        assert [answer.tokens for answer in cut] == [answer.tokens[:2] for answer in whole]
    with pytest.raises(ValueError, match="answers of 0 tokens; ask for 1 or more"):
        translator.translate(TEXTS, tokens=0)


def test_a_mixture_of_texts_and_token_ids_is_refused(translator):
    ids = translator.encode(TEXTS[:2])
    for mixed in ([TEXTS[0], *ids], [*ids, TEXTS[0]]):
        with pytest.raises(ValueError, match=r"^2 of 3 texts are lists of token ids, the others strings; give one kind$"):
            translator.translate(mixed)
    assert translator.translate([]) == []
