"""regard's side of translation.py: from token ids to token ids, as in `Translator.translate`."""

import importlib.metadata
from typing import Any

import torch
from worker import each, serve

import regard


class Side:
    """What the requests ask of regard."""

    def prepare(self, run: str, sources: list[list[int]], **_: Any) -> None:
        """Take the sentences and open the run."""
        self.run, self.sources = run, sources
        self.translators = {"float32": regard.load(run, "cpu")}

    def choose(self, beam: int, precision: str, rows: int, alone: bool, settings: dict[str, Any]) -> str:
        """What the next repeats do; → why it cannot be done, if so."""
        if precision not in self.translators:
            try:
                self.translators[precision] = regard.load(self.run, "cpu", precision)
            except ValueError as error:
                return str(error)
        self.translator, self.beam = self.translators[precision], beam
        self.batch = settings.get("batch", self.translator.run.decode.batch_size)
        self.groups = [[row] for row in range(rows)] if alone else [list(range(rows))]
        return ""

    def translate(self, rows: list[int]) -> list[Any]:
        return self.translator.search([self.sources[row] for row in rows], beam=self.beam, batch=self.batch, penalty=1.0)

    def repeat(self) -> dict[str, list[float]]:
        """Seconds of all sentences at once, or of each alone."""
        seconds, self.found = each(self.translate, self.groups)
        return {"seconds": seconds}

    def answers(self) -> list[list[int]]:
        """The tokens that the last repeat found, without start and end."""
        return [hypotheses[0].tokens for group in self.found for hypotheses in group]

    def versions(self) -> dict[str, str]:
        """Of the libraries that decide the speed."""
        return {"regard": importlib.metadata.version("regard"), "torch": torch.__version__}


if __name__ == "__main__":
    side = Side()
    serve({name: getattr(side, name) for name in ("prepare", "choose", "repeat", "answers", "versions")})
