"""Mutations of vocabularies, word vectors and what makes them depend on their context."""

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
import torch
from mutation import Mutation, replace_everywhere
from torch import Tensor


def shifted_one_hot(patch: pytest.MonkeyPatch) -> None:
    from regard.data.text.bag_of_words import one_hot

    replace_everywhere(patch, one_hot, lambda ids, vocab: one_hot(ids, vocab).roll(1, -1))


def no_idf(patch: pytest.MonkeyPatch) -> None:
    from regard.data.text.bag_of_words import TfIdf, tf_idf

    def changed(texts: Sequence[str]) -> TfIdf:
        words, idf, vectors = tf_idf(texts)
        return TfIdf(words, torch.ones_like(idf), torch.nn.functional.normalize(vectors / idf))

    replace_everywhere(patch, tf_idf, changed)


def dot_products(patch: pytest.MonkeyPatch) -> None:
    from regard.tasks.word_vectors import WordVectors

    patch.setattr(WordVectors, "_units", property(lambda self: self._table))


def no_negatives(patch: pytest.MonkeyPatch) -> None:
    from regard.data.text.skipgram import Floats, Ints, noise_distribution

    def changed(counts: Ints) -> Floats:
        return np.eye(len(counts))[0]  # only the padding token

    replace_everywhere(patch, noise_distribution, changed)


def no_mixing(patch: pytest.MonkeyPatch) -> None:
    from regard.layers.attention import attend

    def changed(q: Tensor, k: Tensor, v: Tensor, **options: object) -> tuple[Tensor, Tensor | None]:
        mixed, weights = attend(q, k, v, **options)
        return torch.zeros_like(mixed), weights

    replace_everywhere(patch, attend, changed)


def small_vocabulary(patch: pytest.MonkeyPatch) -> None:
    from regard.data.text.tokenizer import Tokenizer, train_tokenizer

    def changed(lines: Iterable[str], kind: str, vocab: int, extra: Sequence[str] = ()) -> Tokenizer:
        return train_tokenizer(lines, kind, min(vocab, 10), extra)

    replace_everywhere(patch, train_tokenizer, changed)


def lost_ends(patch: pytest.MonkeyPatch) -> None:
    from regard.data.text.tokenizer import Tokenizer

    encode = Tokenizer.encode
    patch.setattr(Tokenizer, "encode", lambda self, lines, *parse: [ids[:-1] for ids in encode(self, lines, *parse)])


MUTATIONS = [
    Mutation("one-hot vectors are shifted by one", shifted_one_hot, ("one_hot_vectors_select_rows",)),
    Mutation("TF-IDF has no inverse document frequency", no_idf, ("tf_idf_equals_a_count_by_hand",)),
    Mutation("cosines are dot products", dot_products, ("the_vectors_of_king_and_queen_are_similar",)),
    Mutation("word2vec draws no word as a negative", no_negatives,
             ("word2vec_learns_that_king_and_queen_are_alike", "a_static_vector_is_an_average_over_all_uses")),
    Mutation("attention adds nothing", no_mixing, ("self_attention_gives_a_word_a_vector_for_each_sense",)),
    Mutation("a vocabulary of Hindi has six words at most", small_vocabulary,
             ("five_thousand_hindi_sentences_have_thousands_of_words",), slow=True),
    Mutation("encoding loses the last token of a line", lost_ends,
             ("hindi_survives_tokenization", "a_transformer_learns_the_rows_of_the_notes", "the_vocabulary_is_made_of_subwords",
              "the_hindi_of_the_scan_is_not_that_of_the_grid")),
    Mutation("encoding loses the last token of a line of Tatoeba", lost_ends,
             ("the_hindi_of_the_scan_has_words_that_no_sentence_has",), slow=True),
]  # fmt: skip
