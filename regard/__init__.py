"""regard: train, run and see inside Transformers, on your own data, on your own machine.

The public names, in the order of the picture.  Each is imported when it is first used, so that `regard --help` and
`import regard` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.version import VERSION as __version__

if TYPE_CHECKING:
    from regard.config import Run as Run
    from regard.data.text.tokenizer import Tokenizer as Tokenizer
    from regard.decode.search import beam as beam
    from regard.decode.search import greedy as greedy
    from regard.decode.search import sample as sample
    from regard.layers.attention import Attention as Attention
    from regard.layers.attention import attend as attend
    from regard.layers.tap import watch as watch
    from regard.models.bert import BERT as BERT
    from regard.models.gpt import GPT as GPT
    from regard.models.image_gpt import ImageGPT as ImageGPT
    from regard.models.lrnet import LRNet as LRNet
    from regard.models.mvit import MViT as MViT
    from regard.models.resnet import ResNet as ResNet
    from regard.models.swin import Swin as Swin
    from regard.models.t5 import T5 as T5
    from regard.models.transformer import Transformer as Transformer
    from regard.models.transformer import TransformerConfig as TransformerConfig
    from regard.models.vit import ViT as ViT
    from regard.tasks.image_classification import ImageClassifier as ImageClassifier
    from regard.tasks.image_generation import ImageGenerator as ImageGenerator
    from regard.tasks.language_model import TextGenerator as TextGenerator
    from regard.tasks.load import load as load
    from regard.tasks.masked_lm import MaskedLM as MaskedLM
    from regard.tasks.text_classification import TextClassifier as TextClassifier
    from regard.tasks.text_embedding import TextEmbedder as TextEmbedder
    from regard.tasks.translation import Translation as Translation
    from regard.tasks.translation import Translator as Translator
    from regard.train.loop import fit as fit
    from regard.view.cost import cost as cost
    from regard.view.image_maps import ImageMap as ImageMap
    from regard.view.image_maps import map_image_attention as map_image_attention
    from regard.view.maps import AttentionMap as AttentionMap
    from regard.view.maps import map_attention as map_attention

_HOMES = {
    "Run": "config",
    "Tokenizer": "data.text.tokenizer",
    "attend": "layers.attention",
    "Attention": "layers.attention",
    "watch": "layers.tap",
    "Transformer": "models.transformer",
    "TransformerConfig": "models.transformer",
    "GPT": "models.gpt",
    "BERT": "models.bert",
    "T5": "models.t5",
    "ResNet": "models.resnet",
    "LRNet": "models.lrnet",
    "ImageGPT": "models.image_gpt",
    "ViT": "models.vit",
    "Swin": "models.swin",
    "MViT": "models.mvit",
    "greedy": "decode.search",
    "sample": "decode.search",
    "beam": "decode.search",
    "load": "tasks.load",
    "Translation": "tasks.translation",
    "Translator": "tasks.translation",
    "TextGenerator": "tasks.language_model",
    "MaskedLM": "tasks.masked_lm",
    "TextClassifier": "tasks.text_classification",
    "TextEmbedder": "tasks.text_embedding",
    "ImageClassifier": "tasks.image_classification",
    "ImageGenerator": "tasks.image_generation",
    "fit": "train.loop",
    "AttentionMap": "view.maps",
    "map_attention": "view.maps",
    "ImageMap": "view.image_maps",
    "map_image_attention": "view.image_maps",
    "cost": "view.cost",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}; it has {', '.join(_HOMES)}")
    return getattr(import_module(f"regard.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
