"""What the page says of a run before anything was inspected."""

from regard.config import Run
from regard.layers.tap import attention_modules
from regard.tasks.captioning import ImageCaptioner
from regard.tasks.language_model import TextGenerator
from regard.tasks.masked_lm import MaskedLM
from regard.tasks.origin import parameter_count
from regard.tasks.predictors import Predictor
from regard.tasks.speech import Transcriber
from regard.tasks.translation import Translator
from regard.view.source import describe_training
from regard.web.explorer import ServedRun
from regard.web.inputs import input_kind, max_tokens
from regard.web.languages import directions_of
from regard.web.routes import Json

__all__ = ["describe_run", "languages_of"]

EXAMPLES = {
    "en": "I love you very much",
    "de": "Ich liebe dich sehr",
    "fr": "Je t'aime beaucoup",
    "it": "Ti amo molto",
    "hi": "मैं तुमसे बहुत प्यार करता हूँ",
}
CAPTIONS = {"en": "A man is riding a bike.", "de": "Ein Mann fährt Fahrrad.", "fr": "Un homme fait du vélo."}  # of Multi30k
BY_SOURCE = {
    "copy": "abcdef",
    "reverse": "abcdef",
    "phrasebook": "I love you very much",
    "tinyshakespeare": "ROMEO:",
    "wikitext-2": "The city is known for its",
    "sst2": "a moving and funny film",
    "agnews-small": "The team won the final in the last minute",
}


def describe_run(served: ServedRun) -> Json:
    """`RunInfo` of the API."""
    predictor, run = served.predictor, served.predictor.run
    languages = languages_of(run)
    return {
        "name": served.name,
        "family": run.family,
        "task": run.task,
        "input": input_kind(predictor),
        "verbs": list(getattr(predictor, "VERBS", ())),
        "about": describe_training(predictor),
        "parameters": parameter_count(predictor.model),
        "languages": {"source": languages[0], "target": languages[1]} if languages else None,
        "checkpoints": served.checkpoints,
        "max_tokens": max_tokens(predictor),
        "beam": run.decode.beam_size,
        "example": example_of(predictor),
        "decodes": decodes(predictor),
        "has_attention": bool(attention_modules(predictor.model)),
    }


def decodes(predictor: Predictor) -> bool:
    """Whether a predictor writes its answer token by token."""
    if isinstance(predictor, Transcriber):
        return bool(predictor.run.model.decoder_depth)
    return isinstance(predictor, Translator | TextGenerator | ImageCaptioner)


def languages_of(run: Run) -> tuple[str, str] | None:
    """The codes of the source and target language of a translator, if its data names them."""
    directions = directions_of(run)
    return (directions[0].source, directions[0].target) if directions else None


def example_of(predictor: Predictor) -> str | None:
    """A text to begin with, in the language or of the kind that a model was trained on."""
    if input_kind(predictor) != "text":
        return None
    run = predictor.run
    source, languages = getattr(run.data, "source", "").split(",")[0], languages_of(run)
    text = BY_SOURCE.get(source, EXAMPLES["en"])
    if languages:
        text = (CAPTIONS if source == "multi30k" else EXAMPLES).get(languages[0], text)
    if isinstance(predictor, Translator):
        text = predictor.prefixes[0] + text if predictor.prefixes else text
        if run.task == "span_corruption":
            text = "The <extra_id_0> is known for its <extra_id_1>."
    return "The capital of France is [MASK]." if isinstance(predictor, MaskedLM) else text
