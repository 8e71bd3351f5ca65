"""How good a translation is: BLEU and chrF by sacreBLEU, with the signatures that make them comparable."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from regard.data.corpus import find_split
from regard.data.sources import SOURCES
from regard.decode.translator import Translator

__all__ = ["Score", "score", "score_split"]


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


def score_split(
    translator: Translator,
    split: str,
    most: int | None = None,
    say: Callable[[str], None] = lambda text: None,
    **how: Any,
) -> list[Score]:
    """Translate a split of the run's data, or a file, and compare with its references.

    A sentence too long for the model counts as translated by nothing.
    """
    data = translator.run.data
    pairs = list(islice(find_split(data, split).pairs(), most))
    if not pairs:
        raise ValueError(f"{split} is empty; give a file with source and target on each line")
    sources, references = [source for source, _ in pairs], [[target] for _, target in pairs]
    if data.source in SOURCES and SOURCES[data.source].several:
        grouped: dict[str, list[str]] = {}
        for source, target in pairs:
            grouped.setdefault(source, []).append(target)
        sources, references = list(grouped), list(grouped.values())
    long = translator.too_long(sources)
    if long:
        say(f"{len(long)} of {len(sources)} sentences are too long for this model and count as not translated")
    translator.model.eval()
    answers = translator.translate(["" if row in long else source for row, source in enumerate(sources)], **how)
    return score([answer.text for answer in answers], references, tokenised=data.text == "tok")
