"""gensim's side of word_vectors.py: skip-gram with negative sampling, one worker thread for each core."""

import importlib.metadata
import os
import time
from typing import Any

import numpy as np
from gensim.models import Word2Vec
from worker import serve, timed


class Side:
    """What the requests ask of gensim."""

    def prepare(self, text: str, pairs: list[list[str]], settings: dict[str, Any], epochs: int) -> None:
        """Read the text; each line is a list of words."""
        with open(text, encoding="utf-8") as lines:
            self.sentences = [line.split() for line in lines]
        self.pairs, self.settings, self.epochs, self.seed = pairs, settings, epochs, 0

    def repeat(self) -> dict[str, Any]:
        """Train with a new seed; the vocabulary is built before the clock starts."""
        self.seed += 1
        s = self.settings
        model = Word2Vec(
            sg=1, vector_size=s["dim"], window=s["window"], negative=s["negatives"], sample=s["sample"], min_count=1,
            workers=len(os.sched_getaffinity(0)), epochs=self.epochs, seed=self.seed,
        )  # fmt: skip
        model.build_vocab(self.sentences)
        before = time.process_time()
        seconds, _ = timed(lambda: model.train(self.sentences, total_examples=len(self.sentences), epochs=self.epochs))
        cpu = time.process_time() - before
        units = model.wv.get_normed_vectors()
        cosines = [float(np.dot(*(units[model.wv.key_to_index[word]] for word in pair))) for pair in self.pairs]
        return {"seconds": seconds, "cpu": cpu, "words": len(model.wv), "cosines": cosines}

    def versions(self) -> dict[str, str]:
        """Of the libraries that decide the speed."""
        return {name: importlib.metadata.version(name) for name in ("gensim", "numpy")}


if __name__ == "__main__":
    side = Side()
    serve({name: getattr(side, name) for name in ("prepare", "repeat", "versions")})
