"""regard's side of word_vectors.py: the steps of `regard train wikitext-word2vec`, without log, evaluation and checkpoints."""

import dataclasses
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from worker import serve, timed

from regard.data.position import DataPosition
from regard.models import FAMILIES
from regard.tasks import read_run, task_of
from regard.train.malloc import keep_freed
from regard.train.optim import learning_rate, make_optimizer
from regard.version import VERSION

RECIPE = "wikitext-word2vec"


class Side:
    """What the requests ask of regard."""

    def prepare(self, text: str, pairs: list[list[str]], settings: dict[str, Any], epochs: int) -> None:
        """Encode the text."""
        changes = ["data.source=", f"data.train={text}", f"data.valid={text}", "train.device=cpu"]
        self.run = read_run(RECIPE, changes + [f"model.{key}={value}" for key, value in settings.items()])
        self.pairs, self.seed, self.task = pairs, 0, task_of(self.run)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "tokenizer.json"
            self.dataset = self.task.prepare(self.run, file, lambda text: None, lambda what, done: None)
        stream = self.task.batches(self.run, self.dataset, DataPosition())
        steps = next(step for step, (_, after) in enumerate(stream, 1) if after.epoch == epochs)
        self.run = dataclasses.replace(self.run, train=dataclasses.replace(self.run.train, steps=steps))

    def repeat(self) -> dict[str, Any]:
        """Train with a new seed."""
        self.seed += 1
        torch.manual_seed(self.seed)
        run, vocab = self.run, self.dataset.tokenizer.vocab
        model = FAMILIES[run.family].build(dataclasses.replace(run.model, vocab=vocab))
        before = time.process_time()
        with keep_freed():
            seconds, _ = timed(lambda: self.train(model))
        cpu = time.process_time() - before
        vectors = self.task.predictor(model, run, self.dataset.tokenizer, ())
        first, second = (vectors.embed([pair[side] for pair in self.pairs]) for side in (0, 1))
        return {"seconds": seconds, "cpu": cpu, "words": len(vectors.words), "cosines": (first * second).sum(1).tolist()}

    def train(self, model: nn.Module) -> None:
        """All epochs."""
        t, optimizer = self.run.train, make_optimizer(model, self.run.train)
        stream = self.task.batches(self.run, self.dataset, DataPosition())
        for step in range(1, t.steps + 1):
            batch = next(stream)[0]()
            loss, nll = self.task.loss(model, batch, t.label_smoothing)
            (loss / batch.tokens).backward()
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), t.clip_norm or math.inf))
            if not math.isfinite(float(nll) + norm):
                raise ValueError(f"the loss is {float(nll):.3g} and its gradient {norm:.3g} at step {step}")
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, t)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def versions(self) -> dict[str, str]:
        """Of the libraries that decide the speed."""
        return {"regard": VERSION, "torch": torch.__version__}


if __name__ == "__main__":
    side = Side()
    serve({name: getattr(side, name) for name in ("prepare", "repeat", "versions")})
