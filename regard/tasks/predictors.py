"""The types of what `regard.load` returns; `load` itself imports only the task of the run that it opens."""

from regard.tasks.bidirectional_lm import BidirectionalLM
from regard.tasks.captioning import ImageCaptioner
from regard.tasks.image_classification import ImageClassifier
from regard.tasks.image_generation import ImageGenerator
from regard.tasks.language_model import TextGenerator
from regard.tasks.masked_lm import MaskedLM
from regard.tasks.speech import Transcriber
from regard.tasks.text_classification import TextClassifier
from regard.tasks.text_embedding import TextEmbedder
from regard.tasks.translation import Translator
from regard.tasks.word_vectors import WordVectors

__all__ = ["Predictor", "TextPredictor"]

TextPredictor = Translator | TextGenerator | MaskedLM | TextClassifier | TextEmbedder
Predictor = TextPredictor | WordVectors | BidirectionalLM | ImageClassifier | ImageGenerator | ImageCaptioner | Transcriber
