"""Word vectors: the loss equals a plain loop over pairs; neighbors, analogies, scores, errors; similar words meet."""

import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cli_checks import assert_refused
from tiny_tasks import tiny_run, write_data

import regard as package
from regard.data.sources import locate
from regard.data.text.readers import read_ratings
from regard.data.text.skipgram import WordSampler, all_skipgrams, count_words
from regard.data.text.tokenizer import train_tokenizer
from regard.models.word2vec import Word2Vec, Word2VecConfig
from regard.tasks import TASKS, read_run
from regard.tasks.metrics import spearman
from regard.tasks.word_vectors import WordVectors, negative_sampling_loss
from regard.train.loop import fit

# The king and the queen of the lecture notes, and a word of our own
LECTURE = {"king": [0.6, 0.1, 1.0, 0.9], "queen": [0.3, 0.2, 0.9, 1.0], "apple": [-0.9, 0.8, 0.1, -0.2]}


def make_vectors(table):
    """A predictor with these vectors."""
    tokenizer = train_tokenizer([" ".join(table)], "words", 100)
    model = Word2Vec(Word2VecConfig(vocab=tokenizer.vocab, dim=len(next(iter(table.values())))))
    with torch.no_grad():
        for word, vector in table.items():
            model.input.weight[tokenizer.encode([word])[0][0]] = torch.tensor(vector)
    return WordVectors(model, tokenizer, read_run("wikitext-word2vec"))


# The loss


@pytest.mark.parametrize(("words", "window", "negatives"), [(5, 1, 1), (50, 3, 5), (200, 5, 2)])
def test_the_loss_of_blocks_is_that_of_a_loop_over_pairs_and_negatives(words, window, negatives):
    rng, vocab, dim = np.random.default_rng(words), 30, 7
    text = rng.integers(4, vocab, words).astype(np.uint16)
    text[rng.random(words) < 0.05] = 2  # line ends
    text[:3] = 5
    [batch] = all_skipgrams(text, WordSampler.of(count_words(text, vocab, range(4)), window, 0.3, 2), words)
    torch.manual_seed(0)
    model = Word2Vec(Word2VecConfig(vocab=vocab, dim=dim, window=window, negatives=negatives)).double()
    torch.nn.init.normal_(model.input.weight)
    torch.nn.init.normal_(model.output.weight)
    loss, nll = negative_sampling_loss(model, batch, 0.0)
    got = torch.autograd.grad(loss, list(model.parameters()))

    wanted, pairs = torch.zeros((), dtype=torch.float64), 0
    blocks = len(batch.words) // len(batch.negatives)  # of a group
    for n, (row, lefts, rights) in enumerate(zip(batch.words, batch.left.tolist(), batch.right.tolist(), strict=True)):
        noise = batch.negatives[n // blocks]
        for place, (left, right) in enumerate(zip(lefts, rights, strict=True), window):
            for other in (k for k in range(place - left, place + right + 1) if k != place):
                centre = model.input.weight[row[place]]
                wanted = wanted - F.logsigmoid(centre @ model.output.weight[row[other]])
                wanted = wanted - F.logsigmoid(-(model.output.weight[noise] @ centre)).mean() * negatives
                pairs += 1
    assert pairs == batch.tokens > 0
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(nll, wanted)
    for a, b in zip(got, torch.autograd.grad(wanted, list(model.parameters())), strict=True):
        torch.testing.assert_close(a, b)


def test_an_untrained_model_finds_nothing_likely():
    text = np.arange(4, 104).astype(np.uint16)
    [batch] = all_skipgrams(text, WordSampler.of(count_words(text, 104, range(4)), 5, 0.0, 2), 100)
    _, nll = negative_sampling_loss(Word2Vec(Word2VecConfig(vocab=104)), batch, 0.0)
    assert float(nll) / batch.tokens == pytest.approx(6 * math.log(2))  # one pair and five negatives, each at a half


@torch.no_grad()
def test_forward_gives_the_inner_products_of_the_two_tables():
    model = Word2Vec(Word2VecConfig(vocab=9, dim=4))
    torch.nn.init.normal_(model.output.weight)
    scores = model(torch.tensor([[1, 2]]), torch.tensor([[3, 4, 5]]))
    wanted = [[[float(model.input.weight[c] @ model.output.weight[o]) for o in (3, 4, 5)] for c in (1, 2)]]
    torch.testing.assert_close(scores, torch.tensor(wanted))


# Learning


@pytest.fixture(scope="module")
def kingdom(tmp_path_factory):
    """A run on a text in which kings and queens do the same things, and other words others."""
    folder, rng = tmp_path_factory.mktemp("kingdom"), random.Random(1)
    rulers, fruits = ("king", "queen", "prince"), ("apple", "pear", "plum")
    lines = []
    for _ in range(1500):
        lines.append(f"the {rng.choice(rulers)} {rng.choice(('rules', 'governs'))} a {rng.choice(('large', 'old'))} kingdom")
        lines.append(f"we {rng.choice(('eat', 'peel'))} one {rng.choice(('ripe', 'sweet'))} {rng.choice(fruits)} for lunch")
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    run = read_run("wikitext-word2vec", ("data.source=", f"data.train={folder}/text.txt", f"data.valid={folder}/text.txt",
                   "model.dim=16", "model.sample=0.0", "train.steps=150", "train.batch_tokens=2000", "train.lr=0.05",
                   "train.eval_every=150", "train.save_every=150", "train.device=cpu"))  # fmt: skip
    done = fit(run, folder / "run")
    return folder / "run", done


def test_words_in_the_same_places_get_similar_vectors(kingdom):
    vectors = package.load(kingdom[0])
    king, queen, *others = vectors.embed(["king", "queen", "apple", "lunch", "peel"])
    assert king @ queen > max(king @ other for other in others) + 0.2
    assert {near.word for near in vectors.neighbors("king", top=2)} == {"queen", "prince"}
    assert {near.word for near in vectors.neighbors("Apple", top=2)} == {"pear", "plum"}


def test_training_lowers_the_loss_below_that_of_an_untrained_model(kingdom):
    assert kingdom[1].loss < 0.8 * 6 * math.log(2)
    assert [score.name for score in kingdom[1].scores] == ["negative-sampling loss"]  # no pair of WordSim is in this text


@pytest.mark.slow
def test_the_recipe_agrees_with_human_ratings(tmp_path):
    try:
        locate("wordsim", "wordsim353", "")
    except ValueError:
        pytest.skip("no wordsim here; set REGARD_DATA to a folder that holds wordsim/")
    scores = {score.name: score for score in fit(read_run("wikitext-word2vec"), tmp_path / "run").scores}
    assert scores["Spearman, wordsim353"].value > 0.40
    assert scores["Spearman, wordsim353"].signature == "319 of 353 pairs are in the vocabulary"


# Answers


def test_the_king_of_the_lecture_is_nearer_to_the_queen_than_to_another_word():
    vectors = make_vectors(LECTURE)
    [queen, apple] = vectors.neighbors("king")
    assert (queen.word, apple.word) == ("queen", "apple")
    product, lengths = 0.18 + 0.02 + 0.9 + 0.9, math.sqrt(2.18) * math.sqrt(1.94)
    assert queen.cosine == pytest.approx(product / lengths)
    assert vectors.vector("king").tolist() == pytest.approx(LECTURE["king"])
    assert vectors.words == sorted(LECTURE)  # all are equally frequent
    torch.testing.assert_close(vectors.vectors, torch.tensor([LECTURE[word] for word in sorted(LECTURE)]))


def test_an_analogy_adds_and_subtracts_unit_vectors_and_leaves_its_words_out():
    table = {
        "man": [1.0, 0.0, 0.0],
        "king": [2.0, 2.0, 0.0],
        "woman": [0.0, 0.0, 3.0],
        "queen": [-0.3, 0.7, 1.0],
        "tree": [1, -1, 0],
    }
    vectors = make_vectors(table)
    units = {word: np.array(vector) / np.linalg.norm(vector) for word, vector in table.items()}
    wanted = units["king"] - units["man"] + units["woman"]
    found = vectors.analogy("king", "man", "woman")
    assert [near.word for near in found] == ["queen", "tree"]
    assert found[0].cosine == pytest.approx(units["queen"] @ wanted / np.linalg.norm(wanted), abs=1e-6)


def test_neighbors_are_those_of_a_loop_over_all_words():
    rng = np.random.default_rng(0)
    table = {f"word{n}": rng.normal(size=5).tolist() for n in range(30)}
    cosine = lambda a, b: float(F.cosine_similarity(torch.tensor(table[a]), torch.tensor(table[b]), dim=0))  # noqa: E731
    wanted = sorted((word for word in table if word != "word3"), key=lambda word: -cosine("word3", word))[:7]
    assert [near.word for near in make_vectors(table).neighbors("word3", top=7)] == wanted


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda v: v.neighbors("quen"), "no word 'quen' in the vocabulary of 3 words; did you mean queen?"),
        (lambda v: v.neighbors("zzz"), "no word 'zzz' in the vocabulary of 3 words; use a word of the training text"),
        (lambda v: v.neighbors("the king"), "'the king' is 2 words; wanted one"),
        (lambda v: v.vector(" "), "' ' is no word; wanted one"),
        (lambda v: v.vector("<unk>"), "'<unk>' is 3 words"),
        (lambda v: v.neighbors("king", top=0), "top is 0; ask for 1 or more"),
        (lambda v: v.analogy("king", "quee", "apple"), "no word 'quee'"),
        (lambda v: v.embed("king"), "put it in brackets"),
    ],
)
def test_a_wrong_word_is_refused_in_one_line(call, message):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        call(make_vectors(LECTURE))
    assert message in str(caught.value)


# Scores


def test_spearman_is_pearson_of_the_ranks_with_ties_shared():
    x, y = [1.0, 2.0, 2.0, 9.0, 5.0], [10.0, 40.0, 30.0, 20.0, 20.0]
    ranks = [1, 2.5, 2.5, 5, 4], [1, 5, 4, 2.5, 2.5]
    assert spearman(x, y) == pytest.approx(np.corrcoef(ranks)[0, 1])
    assert spearman(x, [2 * n for n in x]) == pytest.approx(1)
    assert spearman(x, [-n for n in x]) == pytest.approx(-1)
    assert math.isnan(spearman(x, [3.0] * 5))


def test_spearman_is_that_of_scipy():
    stats = pytest.importorskip("scipy.stats", reason="no scipy; pip install '.[test]'")
    x, y = np.random.default_rng(0).integers(0, 9, (2, 50))
    assert spearman(x.tolist(), y.tolist()) == pytest.approx(stats.spearmanr(x, y).statistic)


def score_on(tmp_path, text):
    (tmp_path / "rated.tsv").write_text(text)
    options = package.tasks.task.ScoreOptions()
    return TASKS["word_vectors"].score(make_vectors(LECTURE), str(tmp_path / "rated.tsv"), options)


def test_rated_pairs_are_scored_with_their_coverage(tmp_path):
    [score] = score_on(tmp_path, "King\tQueen\t9\nking\tapple\t1\nqueen\tapple\t1.5\nking\tship\t4\n")
    cosines = [float(make_vectors(LECTURE).embed([a]) @ make_vectors(LECTURE).embed([b]).T) for a, b in
               (("king", "queen"), ("king", "apple"), ("queen", "apple"))]  # fmt: skip
    assert score.value == pytest.approx(spearman(cosines, [9, 1, 1.5]))
    assert score.signature == "3 of 4 pairs are in the vocabulary"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("king\tqueen\n", "line 1 is 'king\\\\tqueen'; wanted two words and a number"),
        ("king\tqueen\tmuch\n", "wanted two words and a number"),
        ("king\tqueen\tnan\n", "wanted two words and a number"),
        ("\n", "is empty; wanted two words and a number"),
        ("king\tship\t1\n", "0 of 1 pairs have both words in the vocabulary"),
        ("king\tqueen\t1\nking\tapple\t1\n", "are equal; a correlation needs different ones"),
    ],
)
def test_ratings_that_cannot_be_scored_are_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        score_on(tmp_path, text)


def test_ratings_are_read_with_their_words(tmp_path):
    (tmp_path / "rated.tsv").write_text("tiger\tcat\t7.35\n\nbook\tpaper\t7\n")
    assert read_ratings(tmp_path / "rated.tsv") == [("tiger", "cat", 7.35), ("book", "paper", 7.0)]


# Keys


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.label_smoothing=0.1", ("train.label_smoothing=0.1", "word vectors have none")),
        ("data.max_len=20", ("unknown key data.max_len",)),
        ("data.tokenizer=bpe", ("unknown key data.tokenizer",)),
        ("data.vocab=3", ("vocab is 3; use 6 or more",)),
        ("model.heads=2", ("unknown key model.heads",)),
        ("model.window=0", ("window is 0; use 1 or more",)),
        ("model.sample=1.0", ("sample is 1.0",)),
        ("data.source=sst2", ("sst2 holds labelled texts, task word_vectors learns from plain text",)),
    ],
)
def test_a_key_that_word_vectors_do_not_have_is_refused(regard, tmp_path, change, words):
    (tmp_path / "text.txt").write_text("a cat and a dog\n" * 9)
    own = () if change.startswith("data.source") else ("data.source=", f"data.train={tmp_path}/text.txt",
                                                       f"data.valid={tmp_path}/text.txt")  # fmt: skip
    result = regard("train", "wikitext-word2vec", *own, change, "--out", tmp_path / "run")
    assert_refused(result, *words)
    assert not (tmp_path / "run").exists()


def test_a_run_continues_on_another_text_with_the_same_words(tmp_path):
    write_data(tmp_path)
    fit(tiny_run("word_vectors", tmp_path), tmp_path / "first")
    again = tiny_run("word_vectors", tmp_path, init=str(tmp_path / "first"), model={"family": "word2vec"})
    fit(again, tmp_path / "second")
    assert package.load(tmp_path / "second").words == package.load(tmp_path / "first").words
