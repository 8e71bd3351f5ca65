"""How good a translation is: BLEU and chrF by sacreBLEU, with the signatures that make them comparable."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

__all__ = ["Score", "score"]


class Score(NamedTuple):
    """One figure, 0 to 100, and the signature that says how it was computed."""

    name: str
    value: float
    signature: str


def score(answers: Sequence[str], references: Sequence[Sequence[str]], tokenised: bool) -> list[Score]:
    """Compare answers with one or more references each.

    Beside the standard figures stands BLEU on lower-cased tokens: the text's own tokens if it is `tokenised` (as
    published Multi30k scores are computed), else those of sacreBLEU's 13a.
    """
    most = max(map(len, references))
    streams: Any = [[refs[i] if i < len(refs) else None for refs in references] for i in range(most)]
    exact = 100 * sum(answer in refs for answer, refs in zip(answers, references, strict=True)) / len(answers)
    tokens = BLEU(lowercase=True, tokenize="none" if tokenised else "13a", force=True)
    metrics: dict[str, BLEU | CHRF] = {"BLEU": BLEU(force=True), "chrF": CHRF(), "BLEU, tokenised, lower-cased": tokens}
    found = []
    for name, metric in metrics.items():
        value = metric.corpus_score(list(answers), streams).score
        found.append(Score(name, value, str(metric.get_signature())))
    return [*found, Score("exact", exact, "share of answers equal to a reference")]
