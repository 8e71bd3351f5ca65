"""Words as vectors: one-hot, TF-IDF, word2vec, average meaning, and why a vector should depend on its context."""
