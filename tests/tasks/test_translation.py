"""Sentences in, translations out: the same whatever is done at once, in their order, and counted."""

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.text.toys import toy_pairs
from regard.layers.tap import watch
from regard.tasks.load import load
from regard.tasks.translation import SHARE, Sampling, Translator

TEXTS = [source for source, _ in toy_pairs("reverse", "test", 40)]


@pytest.fixture(scope="module")
def translator(small_run) -> Translator:
    return load(small_run)


@pytest.fixture
def cores():
    """Let torch have so many cores in this test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def workers(translator):
    """The threads that read sources in this test, each as often as it did."""
    seen: list[int] = []
    hook = translator.model.embed_source.register_forward_hook(lambda *_: seen.append(threading.get_ident()))
    yield seen
    hook.remove()


def the_same(got, wanted) -> None:
    assert [one.text for one in got] == [one.text for one in wanted]
    assert [one.tokens for one in got] == [one.tokens for one in wanted]
    assert [one.score for one in got] == pytest.approx([one.score for one in wanted], abs=1e-5)
    for one, other in zip(got, wanted, strict=True):
        assert [alike.text for alike in one.n_best] == [alike.text for alike in other.n_best]


# Threads


@pytest.mark.parametrize(
    "how", [{"beam": 1, "scored": True}, {"beam": 3, "n_best": 3}, {"beam": 2, "batch": 5}], ids=str
)
def test_one_core_and_two_give_the_same_translations(translator, cores, workers, how):
    cores(1)
    lock_folder = translator.translate(TEXTS, **how)
    assert set(workers) == {threading.get_ident()}
    cores(2)
    workers.clear()
    shared = translator.translate(TEXTS, **how)
    assert 1 <= len(set(workers)) <= 2
    assert threading.get_ident() not in workers
    the_same(shared, lock_folder)
    assert torch.get_num_threads() == 2


def test_as_many_work_as_have_a_core_and_some_sentences(translator, cores, workers):
    cores(3)
    for count, parts in ((1, 1), (2 * SHARE - 1, 1), (2 * SHARE, 2), (3 * SHARE, 3), (7 * SHARE, 3)):
        workers.clear()
        translator.translate(TEXTS[:1] * count, beam=1)
        assert len(workers) == parts
        assert (threading.get_ident() in workers) == (parts == 1)


def test_while_someone_watches_one_works_alone(translator, cores, workers):
    cores(2)
    with watch(translator.model) as seen:
        watched = translator.translate(TEXTS, beam=1, scored=True)
    assert workers == [threading.get_ident()]
    [lengths] = {tuple(w.shape[-1] for w in calls) for name, calls in seen.items() if name.endswith("decoder.0.attn")}
    assert lengths == tuple(range(1, len(lengths) + 1))  # the steps, in their order
    the_same(watched, translator.translate(TEXTS, beam=1, scored=True))


def test_an_error_in_a_thread_comes_through(translator, cores):
    cores(2)
    with pytest.raises(ValueError, match="temperature -1"):
        translator.translate(TEXTS, temperature=-1.0)
    assert torch.get_num_threads() == 2


def test_a_listener_that_gives_up_leaves_the_cores_as_they_were(translator, cores, workers):
    def give_up(done: int) -> None:
        raise KeyboardInterrupt

    cores(2)
    with pytest.raises(KeyboardInterrupt) as held:
        translator.translate(TEXTS, beam=1, batch=4, progress=give_up)
    assert held.traceback  # which keeps what was under way alive
    found = []
    new = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    new.start()
    new.join()
    assert found == [2]
    workers.clear()
    translator.translate(TEXTS, beam=1)
    assert threading.get_ident() not in workers  # the next one is shared again


# Sentences


@settings(max_examples=10)
@given(
    texts=st.lists(st.sampled_from(["", *TEXTS[:6]]), max_size=12), batch=st.integers(1, 5), threads=st.integers(1, 2)
)
def test_each_sentence_has_its_own_answer_in_its_own_place_and_an_empty_one_stays_empty(
    translator, texts, batch, threads
):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = translator.translate(texts, beam=2, batch=batch)
    finally:
        torch.set_num_threads(before)
    the_same(together, [translator.translate([text], beam=2)[0] for text in texts])
    for text, answer in zip(texts, together, strict=True):
        if not text:
            assert (answer.text, answer.tokens, answer.score) == ("", [], 0.0)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [1, 3, 100])
def test_progress_reaches_the_total_and_never_falls(translator, cores, threads, batch):
    cores(threads)
    heard: list[int] = []
    translator.translate(TEXTS[:20], beam=1, batch=batch, progress=heard.append)
    assert heard == sorted(heard)
    assert heard[-1] == 20
    assert len(heard) == {1: 20, 3: 7, 100: threads}[batch]


# Numbers instead of text


@pytest.mark.parametrize("beam", [1, 3])
def test_search_on_token_numbers_is_what_translate_says(translator, beam):
    texts = ["", *TEXTS[:9]]
    answers = translator.search(translator.tokenizer.encode(texts), beam=beam, batch=4, penalty=0.6, scored=True)
    wanted = translator.translate(texts, beam=beam, n_best=beam, batch=4, length_penalty=0.6, scored=True)
    for hypotheses, one in zip(answers, wanted, strict=True):
        assert [translator.tokenizer.decode(h.tokens) for h in hypotheses] == [best.text for best in one.n_best]
        assert [h.score for h in hypotheses] == [best.score for best in one.n_best]


# Samples


def test_samples_of_a_seed_are_the_same_again_on_any_number_of_cores_and_others_of_another(translator, cores):
    found = []
    for threads, seed in ((1, 1), (1, 1), (2, 1), (1, 2)):
        cores(threads)
        answers = translator.translate(TEXTS[:10], seed=seed, temperature=2.0, top_k=20, top_p=0.95, batch=5)
        found.append([one.text for one in answers])
    once, again, shared, other = found
    assert once == again == shared
    assert once != other


@pytest.mark.parametrize("how", [{"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-9}], ids=str)
def test_a_draw_from_the_likeliest_alone_is_greedy(translator, how):
    drawn = translator.translate(TEXTS, **{"temperature": 1.0, **how}, scored=True)
    the_same(drawn, translator.translate(TEXTS, beam=1, scored=True))


def test_sampling_tells_search_what_translate_was_told(translator):
    ids = translator.tokenizer.encode(TEXTS)
    how = Sampling(temperature=2.0, top_k=5, top_p=0.9, seed=3)
    drawn = translator.search(ids, beam=1, batch=64, penalty=1.0, sampling=how)
    wanted = translator.translate(TEXTS, temperature=2.0, top_k=5, top_p=0.9, seed=3, batch=64, length_penalty=1.0)
    assert [translator.tokenizer.decode(h.tokens) for [h] in drawn] == [one.text for one in wanted]


# Scores


@pytest.mark.parametrize("how", [{"beam": 1}, {"temperature": 0.5, "seed": 3}], ids=str)
def test_a_greedy_answer_or_a_sample_is_the_same_with_its_score_and_without(translator, how):
    plain, scored = translator.translate(TEXTS, **how), translator.translate(TEXTS, **how, scored=True)
    assert [one.tokens for one in plain] == [one.tokens for one in scored]
    assert all(one.score is None for one in plain)
    assert all(one.score < 0 for one in scored)


def test_the_score_of_a_greedy_answer_follows_the_length_penalty(translator):
    whole, mean = (translator.translate(TEXTS, beam=1, scored=True, length_penalty=p) for p in (0.0, 1.0))
    for one, other in zip(whole, mean, strict=True):
        length = one.score / other.score
        assert length == pytest.approx(round(length))
        assert round(length) in (len(one.tokens), len(one.tokens) + 1)  # its end counted, if it came to one


def test_a_beam_knows_its_scores_anyway(translator):
    spoken, empty = translator.translate([TEXTS[0], ""], beam=2)
    assert spoken.score < 0
    assert empty.score == 0


@pytest.mark.parametrize("how", [{"beam": 1}, {"temperature": 0.5}], ids=str)
def test_an_empty_sentence_has_a_score_only_if_others_have(translator, how):
    assert translator.translate([""], **how)[0].score is None
    assert translator.translate([""], **how, scored=True)[0].score == 0


@pytest.mark.parametrize("beam", [1, 3])
def test_an_answer_has_at_most_the_tokens_asked_for(translator, beam):
    whole = translator.translate(TEXTS, beam=1)
    assert max(len(one.tokens) for one in whole) > 2
    cut = translator.translate(TEXTS, beam=beam, tokens=2)
    assert max(len(one.tokens) for one in cut) == 2
    if beam == 1:
        assert [one.tokens for one in cut] == [one.tokens[:2] for one in whole]
    with pytest.raises(ValueError, match="answers of 0 tokens; ask for 1 or more"):
        translator.translate(TEXTS, tokens=0)
