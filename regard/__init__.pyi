"""The public names; `__init__.py` imports each when it is first used."""

from regard.config import Run as Run
from regard.data.text.tokenizer import Tokenizer as Tokenizer
from regard.decode.search import beam as beam
from regard.decode.search import greedy as greedy
from regard.decode.search import sample as sample
from regard.layers.attention import Attention as Attention
from regard.layers.attention import attend as attend
from regard.layers.tap import watch as watch
from regard.models.bahdanau import Bahdanau as Bahdanau
from regard.models.bert import BERT as BERT
from regard.models.caption_transformer import CaptionTransformer as CaptionTransformer
from regard.models.captioner import Captioner as Captioner
from regard.models.conformer import Conformer as Conformer
from regard.models.elmo import ELMo as ELMo
from regard.models.gpt import GPT as GPT
from regard.models.image_gpt import ImageGPT as ImageGPT
from regard.models.lrnet import LRNet as LRNet
from regard.models.mvit import MViT as MViT
from regard.models.resnet import ResNet as ResNet
from regard.models.seq2seq import Seq2Seq as Seq2Seq
from regard.models.swin import Swin as Swin
from regard.models.t5 import T5 as T5
from regard.models.transformer import Transformer as Transformer
from regard.models.transformer import TransformerConfig as TransformerConfig
from regard.models.vit import ViT as ViT
from regard.models.word2vec import Word2Vec as Word2Vec
from regard.tasks.bidirectional_lm import BidirectionalLM as BidirectionalLM
from regard.tasks.captioning import Caption as Caption
from regard.tasks.captioning import ImageCaptioner as ImageCaptioner
from regard.tasks.image_classification import ImageClassifier as ImageClassifier
from regard.tasks.image_generation import ImageGenerator as ImageGenerator
from regard.tasks.language_model import TextGenerator as TextGenerator
from regard.tasks.load import load as load
from regard.tasks.masked_lm import MaskedLM as MaskedLM
from regard.tasks.speech import Transcriber as Transcriber
from regard.tasks.speech import Transcript as Transcript
from regard.tasks.text_classification import TextClassifier as TextClassifier
from regard.tasks.text_embedding import TextEmbedder as TextEmbedder
from regard.tasks.translation import Translation as Translation
from regard.tasks.translation import Translator as Translator
from regard.tasks.word_vectors import WordVectors as WordVectors
from regard.train.loop import fit as fit
from regard.view.caption_maps import CaptionMap as CaptionMap
from regard.view.caption_maps import map_caption as map_caption
from regard.view.cost import cost as cost
from regard.view.image_maps import ImageMap as ImageMap
from regard.view.image_maps import map_image_attention as map_image_attention
from regard.view.maps import AttentionMap as AttentionMap
from regard.view.maps import map_attention as map_attention
from regard.view.speech_maps import SpeechMap as SpeechMap
from regard.view.speech_maps import map_speech as map_speech

__version__: str
__all__: list[str]
