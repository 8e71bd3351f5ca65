"""Words as vectors: one-hot, TF-IDF, word2vec, average meaning, and why a vector should depend on its context.

Shapes: N texts, B sentences, T tokens, D width, V vocabulary.
"""

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from regard.config import Run
from regard.data.sources import locate
from regard.data.text.bag_of_words import one_hot, tf_idf
from regard.data.text.batches import PairBatch, pad
from regard.data.text.config import WordData
from regard.data.text.readers import read_pairs
from regard.data.text.skipgram import WordSampler, count_words, noise_distribution, skipgrams
from regard.data.text.tokenizer import Tokenizer, train_tokenizer
from regard.data.text.toys import toy_pairs
from regard.decode.fast import decoder
from regard.decode.search import greedy
from regard.layers.embed import token_table
from regard.models import build_without_memory, state_tensors
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.word2vec import Word2Vec, Word2VecConfig
from regard.tasks.load import load
from regard.tasks.translation import Translator, sequence_loss
from regard.tasks.word_vectors import WordVectors, negative_sampling_loss
from regard.verify.claim import Finding, at_least, at_most, between, claim, close, equals, not_checkable, refutes
from regard.verify.measures import Points, minimize
from regard.verify.plots import Curves, Heatmap

__all__: list[str] = []

PRINTED = {"king": (0.6, 0.1, 1.0, 0.9), "queen": (0.3, 0.2, 0.9, 1.0)}
APPLES = ("An apple a day keeps the doctor away", "Apple is healthy", "Apple is better than orange", "Apple makes great phones")
ROYAL = ("the {} sat on the throne", "the {} wore a crown", "the {} ruled the land")
FRUIT = ("i ate a sweet {}", "the {} is ripe", "he bought a {} at the market")
HINDI = {"How are you?": "आप कैसे हैं", "Congratulations": "बधाई हो", "Thank you": "धन्यवाद"}
ROMANISED = ("I am good", "Mai badiya hoon")
GRID = ("मुझे", "आइसक्रीम", "खाना", "पसंद", "है")  # the columns of the grid of cross-attention
SCANNED = "मुझे ज्ञानकीम दोनों पसंग है"  # the same sentence above that grid
SPECIAL_TOKENS = 4  # padding, start, end, unknown
# Two senses of a word, two sentences of each; they are two words in Italian.
SENSES = {"right": (("He is right about that.", "You are right."),
                    ("Turn right at the corner.", "Go right at the end of the street.")),
          "like": (("I like this book.", "I like apples."),
                   ("She looks like her mother.", "It looks like rain."))}  # fmt: skip


@claim(1, "002", "One-hot encoding makes mat, cat and rat the rows of a 3 × 3 identity matrix.")
def one_hot_vectors_select_rows() -> Iterator[Finding]:
    vectors = one_hot(torch.arange(3), 3)
    yield equals("vectors of mat, cat, rat", vectors.int().tolist(), [[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    table, ids = token_table(50, 8), torch.randint(50, (3, 7))
    yield close("one-hot times a matrix, against an embedding layer", one_hot(ids, 50) @ table.weight, table(ids), within=1e-6)
    yield close("distance of any two of 50 words", F.pdist(one_hot(torch.arange(50), 50)), torch.full((50 * 49 // 2,), 2**0.5),
                within=1e-6)  # fmt: skip


@claim(2, "002", "TF-IDF makes numbers of words.")
def tf_idf_equals_a_count_by_hand() -> Iterator[Finding]:
    found = tf_idf(APPLES)
    bags = [re.findall(r"\w{2,}", text.lower()) for text in APPLES]
    words = sorted({word for bag in bags for word in bag})
    idf = {word: 1 + math.log(5 / (1 + sum(word in bag for bag in bags))) for word in words}
    rows = [[bag.count(word) * idf[word] for word in words] for bag in bags]
    lengths = [math.sqrt(sum(value**2 for value in row)) for row in rows]
    expected = torch.tensor([[value / length for value in row] for row, length in zip(rows, lengths, strict=True)])
    yield equals("words of the notes' four sentences on apples", list(found.words), words)
    yield close("vectors, against counts by hand", found.vectors, expected, within=1e-6)
    weight = dict(zip(found.words, found.idf.tolist(), strict=True))
    yield close("weight of apple, in all four sentences", weight["apple"], 1.0, within=1e-6)
    yield close("weight of phones, in one", weight["phones"], 1 + math.log(5 / 2), within=1e-6)
    yield Heatmap("TF-IDF of four sentences", "word", "sentence", found.vectors, APPLES, words, "weight")


@claim(3, "002", "Word2vec gives words vectors, such as king [0.6, 0.1, 1.0, 0.9] and queen [0.3, 0.2, 0.9, 1.0].")
def the_vectors_of_king_and_queen_are_similar() -> Iterator[Finding]:
    words = [*PRINTED, *(f"other{number}" for number in range(500))]
    tokenizer = train_tokenizer([" ".join(words)], "words", 1000)
    model = Word2Vec(Word2VecConfig(vocab=tokenizer.vocab, dim=4))
    with torch.no_grad():  # the others point anywhere
        model.input.weight.normal_()
        model.input.weight[tokenizer.tokens_to_ids([*PRINTED])] = torch.tensor([*PRINTED.values()])
    nearest = {word: (rank, cosine) for rank, (word, cosine) in enumerate(predictor(model, tokenizer).neighbors("king", top=501))}
    rank, cosine = nearest["queen"]
    yield close("cosine of king and queen", cosine, 2.0 / math.sqrt(2.18 * 1.94), within=1e-5)
    yield at_most("random vectors nearer to king than queen, of 500", rank, 10)


@claim(3, "002", "Word2vec learns vectors of words from text.")
def word2vec_learns_that_king_and_queen_are_alike() -> Iterator[Finding]:
    uses = [(line, word) for line in ROYAL for word in ("king", "queen")] + [(line, word) for line in FRUIT
                                                                            for word in ("apple", "orange")]  # fmt: skip
    vectors, losses = learn_vectors([line.format(word) for line, word in uses] * 30, dim=16, window=2, steps=80)
    king, queen, apple, orange = vectors.embed(["king", "queen", "apple", "orange"])
    yield at_least("cosine of king and queen", (king @ queen).item(), 0.95)
    yield at_least("cosine of apple and orange", (apple @ orange).item(), 0.95)
    across = max((king @ apple).item(), (queen @ orange).item())
    yield at_most("cosine of king and apple, of queen and orange: the larger", across, 0.93)
    yield at_most("loss after training / before", losses[-1][1] / losses[0][1], 0.75)
    yield Curves("Skip-gram with negative sampling", "training step", "loss of a pair in nats", {"36 lines, 30 times": losses})


@claim(4, "002", "A word's vector is its average meaning in the data: apple, a fruit in 9,000 of 10,000 sentences and technology "
       "in 1,000, becomes [0.9, 0.1].")  # fmt: skip
def a_static_vector_is_an_average_over_all_uses() -> Iterator[Finding]:
    uses = [f"apple {sense}" for sense in ("taste",) * 900 + ("technology",) * 100]
    vectors, losses = learn_vectors([uses[place] for place in torch.randperm(1000)], dim=4, window=1, steps=100, lr=0.2)
    model, tokenizer = vectors.model, vectors.tokenizer
    ids = torch.tensor(tokenizer.tokens_to_ids(["apple", "taste", "technology"]))
    counts = torch.zeros(tokenizer.vocab)
    counts[ids] = torch.tensor([1000.0, 900, 100])
    noise = torch.from_numpy(noise_distribution(counts.numpy().astype(np.int64)))[ids[1:]]
    with torch.no_grad():  # a logit learns log(p / k noise), Levy and Goldberg 2014
        found = model(ids[:1], ids[1:])[0].exp() * Word2VecConfig().negatives * noise
    yield close("taste in the contexts of apple, by its vector, of taste and technology", (found[0] / found.sum()).item(), 0.9,
                within=0.04)  # fmt: skip
    yield between("taste and technology together, by the same vector", found.sum().item(), 0.8, 1.2)
    yield Curves("The vector of apple", "training step", "loss of a pair in nats", {"900 of 1,000 on taste": losses})


@claim(4, "002", "Word embeddings are static, one vector for all sentences; self-attention makes dynamic embeddings, one for "
       "each context.")  # fmt: skip
def self_attention_gives_a_word_a_vector_for_each_sense() -> Iterator[Finding]:
    translator = load("en-it", "cpu")
    assert isinstance(translator, Translator)
    model, tokenizer = translator.model, translator.tokenizer
    assert isinstance(model, Transformer)
    for word, senses in SENSES.items():
        static, dynamic = [], []
        texts = [*senses[0], *senses[1]]
        for text in texts:
            ids = tokenizer.encode([text])[0]
            [place] = [i for i, token in enumerate(tokenizer.ids_to_tokens(ids)) if token.strip("▁") == word]
            source = torch.tensor([[*ids, tokenizer.special.eos]])
            with torch.no_grad():
                static.append(model.embed_source.tokens(source)[0, place])
                dynamic.append(model.encode(source)[0][0, place])
        yield equals(
            f"premise, a lookup: static vectors of {word!r} in four sentences", len(torch.stack(static).unique(dim=0)), 1
        )
        cosines = F.normalize(torch.stack(dynamic)) @ F.normalize(torch.stack(dynamic)).T  # (4, 4)
        within, across = (cosines[0, 1] + cosines[2, 3]) / 2, cosines[:2, 2:].mean()
        yield at_most(f"largest cosine of two contextual vectors of {word!r}", cosines.triu(1).max().item(), 0.97)
        yield at_least(f"cosine within a sense of {word!r} - cosine between its senses", (within - across).item(), 0.02)
        yield Heatmap(f"Contextual vectors of {word!r}", "sentence", "sentence", cosines, texts, texts, "cosine")


@claim(54, "002", "5,000 samples have about 10,000 Hindi words, so the output layer has 10,000 neurons.", slow=True,
       right="that depends on the sentences: 5,000 everyday ones of 6 words have about 4,000 different words, and as many "
       "neurons and 4 for special tokens; longer sentences have more", data=("tatoeba-en-hi",))  # fmt: skip
def five_thousand_hindi_sentences_have_thousands_of_words() -> Iterator[Finding]:
    sentences = hindi_sentences()
    sizes = {count: train_tokenizer(sentences[:count], "words", 100_000).vocab for count in (1250, 2500, 5000)}
    growth = [(count, vocab - SPECIAL_TOKENS) for count, vocab in sizes.items()]
    counted = {word for line in sentences[:5000] for word in re.findall(r"[\w\u0900-\u0963]+|[^\w\s]+", line.lower())}
    yield close("different words of 5,000 everyday sentences, against a count by hand", growth[-1][1], len(counted), rel=0.02)
    yield refutes("different words of 5,000 everyday sentences", growth[-1][1], 10_000, by=4000)
    by_length = sorted(sentences, key=lambda line: len(line.split()))
    short, long = (train_tokenizer(lines, "words", 100_000).vocab for lines in (by_length[:5000], by_length[-5000:]))
    yield at_least("words of the 5,000 longest sentences / of the 5,000 shortest", long / short, 1.25)
    yield at_least("words of 5,000 sentences / words of 1,250", growth[-1][1] / growth[0][1], 1.5)
    model = build_without_memory(lambda: Transformer(TransformerConfig(target_vocab=sizes[5000], depth=1)))
    assert isinstance(model, Transformer)
    yield equals("neurons of the output layer", model.output.out_features, growth[-1][1] + SPECIAL_TOKENS)
    yield Curves("Hindi words of Tatoeba", "sentences", "different words", {"tatoeba-en-hi": growth})


@claim(62, "002", "A data set for translation has rows such as How are you? - आप कैसे हैं, Congratulations - बधाई हो, "
       "Thank you - धन्यवाद, I am good - Mai badiya hoon.",
       condition="with tokenizers that keep vowel signs; BERT's, which strips accents, loses them")  # fmt: skip
def hindi_survives_tokenization() -> Iterator[Finding]:
    lines = [*HINDI.values(), " ".join(GRID), ROMANISED[1]]
    for kind in ("bpe", "bytes", "characters", "words"):
        tokenizer = train_tokenizer(lines, kind, 400)
        kept = [tokenizer.decode(ids) for ids in tokenizer.encode(lines)]
        wanted = [line.lower() if kind == "words" else line for line in lines]
        yield equals(f"rows that come back, tokenizer {kind}", kept, wanted)
    pieces = train_tokenizer(lines, "wordpiece", 400)
    yield refutes("मुझे by BERT's tokenizer", pieces.decode(pieces.encode([GRID[0]])[0]), GRID[0])


@claim(62, "002", "A Transformer learns to translate from rows of English and Hindi.")
def a_transformer_learns_the_rows_of_the_notes() -> Iterator[Finding]:
    rows = {**HINDI, ROMANISED[0]: ROMANISED[1], "I like eating ice-cream": " ".join(GRID)}
    tokenizer = train_tokenizer([*rows, *rows.values()], "bpe", 200)
    source, target, special = tokenizer.encode([*rows]), tokenizer.encode([*rows.values()]), tokenizer.special
    batch = PairBatch(pad(source, special), pad([[special.bos, *ids] for ids in target], special))
    model = Transformer(TransformerConfig(vocab=tokenizer.vocab, dim=48, depth=1, heads=4, dropout=0.0))
    losses = minimize(model.parameters(), lambda: sequence_loss(model, batch, 0.0)[0] / batch.tokens,  # type: ignore[arg-type]
                      steps=60, lr=0.005)  # fmt: skip
    model.eval()
    with torch.inference_mode():
        found = greedy(decoder(model), batch.source, torch.full((len(rows),), 30), bos=special.bos, eos=special.eos)
    yield at_most("loss after 60 steps, nats of a token", losses[-1][1], 0.1)
    yield equals("translations", [tokenizer.decode(each.tokens) for each in found], [*rows.values()])
    yield Curves("Five rows of English and Hindi", "training step", "loss of a token in nats", {"training": losses})


@claim("c12", "001", "The paper maps about 37,000 words to 512 numbers.",
       right="it maps 37,000 subword tokens of one vocabulary for both languages, and any word is a few of them")  # fmt: skip
def the_vocabulary_is_made_of_subwords() -> Iterator[Finding]:
    pairs = [*toy_pairs("phrasebook", "train", 400)]
    tokenizer = train_tokenizer([side for pair in pairs for side in pair], "bpe", 150)
    words = {word for pair in pairs for side in pair for word in side.split()}
    whole = sum(token.strip("▁") in words for token in tokenizer.ids_to_tokens(range(SPECIAL_TOKENS, tokenizer.vocab)))
    yield refutes("tokens of a vocabulary of 150 that are words", whole, tokenizer.vocab - SPECIAL_TOKENS, by=20)
    new = ["The unseen bears dreamt", "camerata bianchissima"]
    yield equals("words of two new lines that the tokenizer was trained on", len(words & {*" ".join(new).split()}), 0)
    ids = tokenizer.encode(new)
    yield equals("new lines in both languages, written and read", [tokenizer.decode(line) for line in ids], new)
    yield equals("unknown tokens in them", sum(line.count(tokenizer.special.unk) for line in ids), 0)
    known = [len(line) for line in tokenizer.encode(sorted(words))]
    yield between("tokens of a word, mean of all", sum(known) / len(known), 2, 6)
    model = build_without_memory(lambda: Transformer(TransformerConfig()))
    assert isinstance(model, Transformer)
    yield equals("rows and columns of the table", list(model.embed_source.tokens.weight.shape), [37_000, 512])
    yield equals("one table for source, target and output",
                 model.embed_source.tokens.weight is model.embed_target.tokens.weight is model.output.weight, True)  # fmt: skip
    yield close("parameters of the base model, millions (the paper prints 65)",
                sum(tensor.numel() for tensor in state_tensors(model).values()) / 1e6, 65, within=2.5)  # fmt: skip


@claim("c21", "002", "I like eating ice-cream is मुझे ज्ञानकीम दोनों पसंग है.",
       right="the columns of the grid below it have मुझे आइसक्रीम खाना पसंद है, which shares two words with it: the scan misread "
       "three; this check compares these two places of the notes, the slow one asks Tatoeba")  # fmt: skip
def the_hindi_of_the_scan_is_not_that_of_the_grid() -> Iterator[Finding]:
    tokenizer = train_tokenizer([" ".join(GRID)], "words", 100)
    yield refutes("the sentence as scanned, read with the words of the grid", known_words(tokenizer, SCANNED), SCANNED)
    yield equals("the words they have in common", known_words(tokenizer, SCANNED), "मुझे है")


not_checkable(
    "c21", "002", "The steps of How are you are numbered 1, 2, 3, 4, 3 and 3.",
    name="step_numbers_repeat", chapter=__name__,
    why="step numbers repeat, a slip of the numbering; claim 52 measures the steps themselves in their order",
)  # fmt: skip


@claim("c21", "002", "I like eating ice-cream is मुझे ज्ञानकीम दोनों पसंग है.", slow=True, data=("tatoeba-en-hi",),
       right="it is मुझे आइसक्रीम खाना पसंद है, whose words all stand in sentences of Tatoeba")  # fmt: skip
def the_hindi_of_the_scan_has_words_that_no_sentence_has() -> Iterator[Finding]:
    tokenizer = train_tokenizer(hindi_sentences(), "words", 100_000)
    yield refutes("the sentence as scanned, without words unknown to Tatoeba", known_words(tokenizer, SCANNED), SCANNED)
    for line in (" ".join(GRID), *HINDI.values()):
        yield equals("without words unknown to Tatoeba", known_words(tokenizer, line), line)


def hindi_sentences() -> list[str]:
    """The Hindi sentences of Tatoeba."""
    return [hindi for _, hindi in read_pairs(locate("tatoeba-en-hi", "train", "en-hi"))]


def known_words(tokenizer: Tokenizer, line: str) -> str:
    """A line without the words that are not in the vocabulary."""
    return tokenizer.decode(tokenizer.encode([line])[0])


def predictor(model: Word2Vec, tokenizer: Tokenizer) -> WordVectors:
    """Word vectors that can be asked for neighbors."""
    return WordVectors(model, tokenizer, Run("toy", "word2vec", model.config, task="word_vectors", data=WordData()))


def learn_vectors(lines: Sequence[str], dim: int, window: int, steps: int,
                  lr: float = 0.03) -> tuple[WordVectors, Points]:  # fmt: skip
    """Train word2vec on lines of text: → the vectors, and the losses."""
    tokenizer = train_tokenizer(lines, "words", 1000)
    end = tokenizer.special.eos
    text = np.array([token for line in tokenizer.encode(lines) for token in (*line, end)])
    counts = count_words(text, tokenizer.vocab, tokenizer.special_ids)
    config = Word2VecConfig(vocab=tokenizer.vocab, dim=dim, window=window, sample=0.0)
    model, sampler = Word2Vec(config), WordSampler.of(counts, window, 0.0, end)
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=lr), Points()
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, steps)
    stream = skipgrams(text, sampler, 1500, torch.initial_seed())
    for step, (make, _) in zip(range(steps), stream, strict=False):
        batch = make()
        loss = negative_sampling_loss(model, batch, 0.0)[0] / batch.tokens
        losses.append((step, loss.item()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return predictor(model, tokenizer), losses
