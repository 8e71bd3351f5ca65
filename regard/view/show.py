"""`regard.show`: the attention of any predictor for any input, as a map that draws itself in a notebook."""

from pathlib import Path
from typing import cast

from regard.data.image.io import ImageLike
from regard.data.terminal import printable
from regard.tasks.captioning import ImageCaptioner
from regard.tasks.image_classification import ImageClassifier
from regard.tasks.load import load
from regard.tasks.predictors import Predictor, TextPredictor
from regard.tasks.speech import Samples, Transcriber
from regard.view.caption_maps import CaptionMap, map_caption
from regard.view.image_maps import ImageMap, map_image_attention
from regard.view.maps import AttentionMap, Which, check_which, map_attention
from regard.view.speech_maps import SpeechMap, map_speech

__all__ = ["AnyMap", "free_file", "map_file", "plain_name", "show"]

AnyMap = AttentionMap | ImageMap | CaptionMap | SpeechMap


def show(predictor: str | Path | Predictor, what: ImageLike | Samples, *, which: Which | None = None, layer: int | None = None,
         head: int | None = None, beam: int | None = None, device: str = "auto", name: str = "") -> AnyMap:  # fmt: skip
    """Map the attention of a run, or of what `regard.load` returns, for a text, an image or a sound.

    An image is a file, PIL's image or an array of bytes, a sound a file or an array of samples.  `layer` and `head` count from 1;
    `which` is "encoder", "decoder" or "cross", for translators.  The map has `save(file)`, and a notebook shows it.
    Errors call the model `name`, by default its folder or run.
    """
    if not isinstance(predictor, str | Path) and not hasattr(predictor, "VERBS"):
        raise ValueError(f"a model of type {type(predictor).__name__}; wanted a run folder, or what regard.load returns")
    if beam is not None and not hasattr(beam, "__index__"):
        raise ValueError(f"beam {beam!r} of type {type(beam).__name__}; give a whole number, from 1")
    name = name or (str(predictor) if isinstance(predictor, str | Path) else predictor.run.name)
    model = load(predictor, device) if isinstance(predictor, str | Path) else predictor
    check_which(which)
    kind = getattr(model, "INPUT", "")
    if kind in ("image", "audio") and which is not None:
        raise ValueError(
            f"which {which!r} is for translators; {name} reads {'images' if kind == 'image' else 'sound'}, leave it out"
        )
    if isinstance(model, ImageCaptioner):
        return map_caption(model, cast(ImageLike, what), beam=beam, layer=layer, head=head)
    if isinstance(model, ImageClassifier):
        if beam is not None:
            raise ValueError(f"beam {beam} is for translations and captions; {model.run.name} classifies images")
        return map_image_attention(model, cast(ImageLike, what), layer, head)
    if isinstance(model, Transcriber):
        return map_speech(model, cast(str | Path | Samples, what), beam=beam, layer=layer, head=head)
    if kind != "text":
        other = "cannot be shown; use regard " + " or ".join(getattr(model, "VERBS", ("score",)))
        hint = getattr(model, "HINTS", {}).get("show", other)
        raise ValueError(f"{name} {hint.replace('THIS_FOLDER', name)}")
    if not isinstance(what, str):
        raise ValueError(f"{name} reads text, and got {type(what).__name__}; give one sentence as a string")
    return map_attention(cast(TextPredictor, model), what, which=which, beam=beam, layer=layer, head=head)


def plain_name(name: str) -> str:
    """A name for a file without control characters: they would be obeyed by terminals that list it."""
    return "".join("_" if printable(letter, keep="") != letter else letter for letter in name)


def map_file(source: str) -> Path:
    """Where the map of an image or a sound is drawn by default: in the current folder."""
    return free_file(Path(f"{plain_name(Path(source).stem)}-attention.png"))


def free_file(file: Path) -> Path:
    """The file, or if it exists the first of FILE-2, FILE-3, … that does not: no map of another photo is overwritten."""
    number, free = 2, file
    while free.exists() or free.is_symlink():
        free, number = file.with_name(f"{file.stem}-{number}{file.suffix}"), number + 1
    return free
