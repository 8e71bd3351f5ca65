"""What a user gave to a model: a text, or the bytes of a picture or a sound; checked before anything is decoded.

What a file is, its first bytes tell, not its name.
"""

import base64
import binascii
import math
from pathlib import Path

import torch
from torch import Tensor

from regard.data.audio.io import audio_rate, audio_seconds, stream_audio
from regard.data.image.io import image_size
from regard.data.units import format_size
from regard.layers.tap import attention_modules
from regard.tasks.language_model import TextGenerator
from regard.tasks.masked_lm import MaskedLM
from regard.tasks.predictors import Predictor
from regard.tasks.text_classification import TextClassifier
from regard.tasks.text_embedding import TextEmbedder
from regard.tasks.translation import Translator
from regard.view.record_images import MAX_PIXELS
from regard.view.show import plain_name
from regard.view.speech_maps import MAX_SECONDS
from regard.web.routes import BadRequest

__all__ = ["MAX_FILE", "check_text", "display_name", "input_kind", "max_tokens", "read_file", "read_sound"]

MAX_FILE = 25 << 20  # bytes of a picture or a sound
MAX_CHARACTERS = 100_000  # of a text, before it is cut into tokens
MAX_RECORD = 1 << 30  # bytes of all attention weights and scores of a text and its answer
MAX_PHASES = 20_000  # of the filter that changes the rate of a sound
MAX_NAME = 100  # characters of a file's name

# (bytes, where they are) → what the file is
MAGIC = {
    (b"\x89PNG\r\n", 0): "an image file (png)",
    (b"\xff\xd8\xff", 0): "an image file (jpeg)",
    (b"GIF8", 0): "an image file (gif)",
    (b"WEBP", 8): "an image file (webp)",
    (b"BM", 0): "an image file (bmp)",
    (b"II*\0", 0): "an image file (tiff)",
    (b"MM\0*", 0): "an image file (tiff)",
    (b"ftypavif", 4): "an image file (avif)",
    (b"WAVE", 8): "a sound file (wav)",
    (b"fLaC", 0): "a sound file (flac)",
    (b"OggS", 0): "a sound file (ogg)",
    (b"ID3", 0): "a sound file (mp3)",
    (b"\xff\xfb", 0): "a sound file (mp3)",
    (b"\xff\xf3", 0): "a sound file (mp3)",
    (b"AIFF", 8): "a sound file (aiff)",
    (b"ftyp", 4): "a film, or a photo as iPhones store it (HEIC)",
    (b"%PDF", 0): "a PDF document",
    (b"PK\x03\x04", 0): "a zip archive or an office document",
    (b"\x1f\x8b", 0): "a gzip archive",
}
TEXT_FILE = "a text file"
READS = {"image": "images (png, jpeg, webp, gif, bmp, tiff)", "audio": "sound (wav, flac, ogg, mp3)", "text": "text"}


def input_kind(predictor: Predictor) -> str:
    """What the explorer can give to a predictor: "text", "image", "audio", or "none"."""
    kind = str(getattr(predictor, "INPUT", ""))
    return kind if kind in READS else "none"


def max_tokens(predictor: Predictor) -> int | None:
    """The most tokens of a text that a model reads; None if there is no limit, or it reads no text."""
    if isinstance(predictor, TextGenerator):
        return predictor.context
    if isinstance(predictor, Translator | MaskedLM | TextClassifier | TextEmbedder):
        return int(limit) if (limit := predictor.max_len) < float("inf") else None
    return None


def check_text(predictor: Predictor, name: str, text: str | None, answer: int | None = None) -> str:
    """A text that a model can read and answer with at most `answer` tokens, or a `BadRequest` that says why it cannot."""
    if input_kind(predictor) != "text":
        raise BadRequest(f"{name} reads {READS.get(input_kind(predictor), 'nothing')}; give a file, not a text")
    if text is None or not text.strip():
        raise BadRequest("the text is empty; type a sentence")
    limit = max_tokens(predictor)
    most = f"{name} reads at most {limit:,} tokens: shorten it" if limit else f"{MAX_CHARACTERS:,} at most are read: shorten it"
    if len(text) > MAX_CHARACTERS:
        raise BadRequest(f"the text has {len(text):,} characters; {most}")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise BadRequest("the text has half of a surrogate pair, which is no character; remove it")
    tokens = _count_tokens(predictor, text)
    if limit is not None and tokens > limit:
        raise BadRequest(f"the text has {tokens:,} tokens; {most}")
    more = _max_answer(predictor, tokens, answer)
    if (size := record_bytes(predictor, tokens, more)) > MAX_RECORD:
        both = f"{tokens:,} tokens" + (f", and the answer may have {more:,} more" if more else "")
        raise BadRequest(f"the text has {both}, whose attention and scores take {format_size(size)}; {format_size(MAX_RECORD)} "
                         f"at most is computed: shorten it{', or ask for a shorter answer' if more else ''}")  # fmt: skip
    return text


def record_bytes(predictor: Predictor, tokens: int, answer: int) -> int:
    """What all attention weights of a text and its answer take, and the scores of the answer's tokens; at most, in float32."""
    config = predictor.run.model
    heads, vocab = getattr(config, "heads", 1), getattr(config, "vocab", 0)
    modules = len(attention_modules(predictor.model)) * (heads if isinstance(heads, int) else max(heads))
    return 4 * (modules * (tokens + answer) ** 2 + answer * vocab)


def _max_answer(predictor: Predictor, tokens: int, wanted: int | None) -> int:
    """The most tokens of an answer to a text of some tokens."""
    if isinstance(predictor, Translator):
        return predictor.max_answer(tokens, wanted)
    if isinstance(predictor, TextGenerator):  # what does not fit the context is refused later, with the context length
        return min(wanted or predictor.run.decode.max_length or 0, max(0, predictor.context - tokens))
    return 0


def _count_tokens(predictor: Predictor, text: str) -> int:
    """The tokens of a text; masks count once."""
    if isinstance(predictor, Translator):
        return len(predictor.encode([text])[0])
    if isinstance(predictor, TextGenerator):
        return len(predictor.tokenizer.prompt_start) + len(predictor.tokenizer.encode([text])[0])
    assert isinstance(predictor, MaskedLM | TextClassifier | TextEmbedder)
    return len(predictor.tokenizer.encode([text], parse_special=True)[0])


def read_file(predictor: Predictor, name: str, encoded: str, file_name: str) -> bytes:
    """The bytes of a picture or a sound that a model can read, from base64; bombs are refused before they are decoded."""
    if len(encoded) > (MAX_FILE + 2) // 3 * 4:
        raise BadRequest(f"{file_name} is larger than {format_size(MAX_FILE)}; give a smaller file", 413)
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest("file is not base64; send the bytes of the file in base64") from None
    if not content:
        raise BadRequest(f"{file_name} is empty; give another file")
    kind, found = input_kind(predictor), describe_file(content)
    wanted = {"image": "an image file", "audio": "a sound file"}.get(kind, "text")
    if not found.startswith(wanted) and (kind not in ("image", "audio") or found != "a file of unknown kind"):
        got = "give the text itself, not a file" if (kind, found) == ("text", TEXT_FILE) else f"got {found}"
        raise BadRequest(f"{name} reads {READS.get(kind, 'no input')}; {got}")
    if kind == "image":
        height, width = image_size(content, file_name)
        if width * height > MAX_PIXELS:
            size = f"{width:,} × {height:,} pixels"
            raise BadRequest(f"{file_name} has {size}; {MAX_PIXELS:,} at most are read: make it smaller", 413)
    return content


def describe_file(content: bytes) -> str:
    """What kind of file it is, by its first bytes."""
    for (magic, at), kind in MAGIC.items():
        if content[at : at + len(magic)] == magic:
            return kind
    head = content[:256]
    if b"\0" not in head and head.decode("utf-8", "ignore").replace("\n", "").replace("\r", "").replace("\t", "").isprintable():
        return TEXT_FILE
    return "a file of unknown kind"


def display_name(name: str | None) -> str:
    """The name of a file for messages and titles: no folder, no control characters, not long."""
    plain = plain_name(Path((name or "").replace("\\", "/")).name)[:MAX_NAME].strip(" .")
    return plain or "the file"


def read_sound(content: bytes, name: str, rate: int) -> Tensor:
    """The samples (N,) of a sound at a model's rate; what its header says of length and rate is checked, but not trusted."""
    if (seconds := audio_seconds(content)) > MAX_SECONDS:
        raise BadRequest(f"{name} lasts {seconds:,.1f} seconds; {MAX_SECONDS:g} at most are shown: cut a part out of it")
    source = audio_rate(content)
    up, down = (number // math.gcd(source, rate) for number in (rate, source))
    if up * max(1, down // up) > MAX_PHASES:  # the filter that changes the rate would be huge
        raise BadRequest(f"{name} has {source:,} samples a second; convert it to a usual rate, such as {rate:,} or 44,100")
    blocks, count = list[Tensor](), 0
    for block in stream_audio(content, rate, 1.0):
        blocks.append(block)
        count += len(block)
        if count > MAX_SECONDS * rate:
            raise BadRequest(f"{name} lasts more than {MAX_SECONDS:g} seconds; cut a part out of it")
    return torch.cat(blocks)
