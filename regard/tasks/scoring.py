"""The scores of a split, those of its held-out part, and each example with its answer: what translations and classes share."""

from collections.abc import Sequence

from regard.tasks.errors import ErrorAnalysis, ScoredExample
from regard.tasks.metrics import Score, classification_scores, sentence_chrf, share, translation_scores
from regard.tasks.task import ScoreOptions

__all__ = ["score_classes", "score_translations"]

NEW = "that are not in the training data"


def score_classes(examples: Sequence[ScoredExample], trained: Sequence[bool] | None, labels: Sequence[str], what: str,
                  options: ScoreOptions) -> list[Score]:  # fmt: skip
    """Accuracy and F1, and the accuracy of the held-out examples if the others were trained on."""
    known: Sequence[bool | None] = trained or [None] * len(examples)
    examples = [example._replace(trained=was) for example, was in zip(examples, known, strict=True)]
    scores = classification_scores([e.answer for e in examples], [e.wanted[0] for e in examples], labels, what)
    new = [example for example in examples if example.trained is False]
    if 0 < len(new) < len(examples):
        right = sum(example.answer == example.wanted[0] for example in new)
        scores.append(share("accuracy, held-out", right, len(new), f"{what} {NEW}"))
    if options.collect:
        options.collect(ErrorAnalysis(examples, tuple(labels)))
    return scores


def score_translations(sources: Sequence[str], references: Sequence[Sequence[str]], answers: Sequence[str],
                       trained: Sequence[bool] | None, options: ScoreOptions, *, tokenized: bool,
                       name: str) -> list[Score]:  # fmt: skip
    """BLEU, chrF and exact matches, and the BLEU of the held-out sentences if the others were trained on; `name` is the set's."""
    scores = translation_scores(answers, references, tokenized, options.bootstrap)
    new = [row for row, was in enumerate(trained or ()) if not was]
    if 0 < len(new) < len(sources):
        held_out, *_ = translation_scores([answers[row] for row in new], [references[row] for row in new], tokenized)
        scores.append(held_out._replace(name=f"{held_out.name}, held-out", what=f"sentences {NEW}"))
    if options.collect:
        known: Sequence[bool | None] = trained or [None] * len(sources)
        rows = zip(sources, references, answers, sentence_chrf(answers, references), known, strict=True)
        examples = [ScoredExample(source, tuple(refs), answer, chrf, was, name) for source, refs, answer, chrf, was in rows]
        options.collect(ErrorAnalysis(examples))
    return scores
