"""Verbs that run a trained model: translate, ask, generate, fill, classify, caption, transcribe."""

import dataclasses
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from regard.cli import options
from regard.cli.default_run import choose_run
from regard.cli.embed import encode_noting
from regard.cli.failures import BadInput, Failures, answer_each
from regard.cli.io import (
    TEXTS_PER_CHUNK,
    expand_folders,
    note,
    open_run,
    read_items,
    read_texts,
    show_progress,
    write,
    write_json,
)
from regard.cli.options import Device, Input, Json, OptionalRun, Precision

if TYPE_CHECKING:
    from regard.tasks.captioning import Caption, ImageCaptioner
    from regard.tasks.image_classification import ImageClassifier
    from regard.tasks.image_generation import ImageGenerator
    from regard.tasks.language_model import TextGenerator
    from regard.tasks.masked_lm import MaskedLM
    from regard.tasks.speech import Transcriber, Transcript
    from regard.tasks.text_classification import TextClassifier
    from regard.tasks.text_embedding import Prediction
    from regard.tasks.translation import Translation, Translator

__all__ = ["ask", "caption", "classify", "fill", "generate", "transcribe", "translate"]

SOUNDS = frozenset((".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au"))


def translate(run: OptionalRun = None, sentences: options.Sentences = None, input_: options.TextInput = None,
              out: options.DocumentFile = None, beam: options.Beam = None, n_best: options.NBest = 1,
              length_penalty: options.LengthPenalty = None, tokens: options.AnswerTokens = None, batch: options.BatchSize = None,
              temperature: options.Temperature = None,
              top_k: options.TopK = 0, top_p: options.TopP = 1.0, seed: options.Seed = 0, glossary: options.GlossaryFile = None,
              ensemble: options.EnsembleRuns = None, split: options.SplitTexts = None, strict: options.Strict = False,
              device: Device = "auto", precision: Precision = "float32", json_: Json = False) -> int:  # fmt: skip
    """Translate texts; or a document (.srt, .html, .docx, .txt), whose format is kept.

    regard translate "I love you very much"

    regard translate runs/multi30k "A man is riding a bike." --beam 5 --n-best 3

    regard translate runs/multi30k --input film.srt --out film.de.srt

    regard translate runs/seed1 --ensemble runs/seed2 "A man is riding a bike."
    """
    from regard.cli.documents import is_document, prepare_document, translate_document
    from regard.data.text.glossary import read_glossary

    run, sentences = choose_run("translate", run, sentences)
    document = prepare_document(input_, out, sentences, n_best, json_) if is_document(input_, out) else None
    translator: Translator = open_run(run, "translate", device, precision)
    translator = translator.ensemble(*(open_run(other, "translate", device, precision) for other in ensemble or ()))
    terms = read_glossary(glossary) if glossary else None
    if terms and terms.header:
        note(f"{glossary}: the first line, {', '.join(terms.header)}, is read as a header row, not as a term")
    search = partial(translator.translate, beam=beam, n_best=n_best, length_penalty=length_penalty, tokens=tokens,
                     batch=batch, temperature=temperature, top_k=top_k, top_p=top_p, glossary=terms)  # fmt: skip
    if document is not None:
        return translate_document(partial(search, seed=seed, split=split), document, out, Failures(strict=strict))
    split = translator.splits if split is None else split
    return _answer(translator, search, sentences, input_, Failures(strict=strict, json_=json_), split, json_, n_best, seed)


def _answer(translator: "Translator", search: "Callable[..., list[Translation]]", sentences: list[str] | None,
            input_: Path | None, failures: Failures, split: bool, json_: bool, n_best: int = 1, seed: int = 0,
            protect: bool | None = None) -> int:  # fmt: skip
    """Print an answer for each text; one too long is skipped unless texts are split, and one whose glossary terms do not fit."""
    from regard.cli.documents import AnswerNotes
    from regard.decode.constraints import PhrasesTooLong

    done, notes = 0, AnswerNotes()
    with read_items(sentences, input_, "translating") as (chunks, count):
        for chunk in chunks:
            readable = [item for item in chunk if isinstance(item, str)]
            _warn_unprefixed(translator, readable)
            items, encoded = (chunk, {}) if split else _mark_long(translator, chunk, done + 1)
            find = partial(search, seed=seed + done, scored=json_, split=split, protect=protect, details=json_,
                           progress=partial(count, done))  # fmt: skip
            predict = partial(_search_encoded, find, encoded if protect is False else {})
            for number, (item, answer) in enumerate(answer_each(items, predict, PhrasesTooLong), done + 1):
                if isinstance(answer, BadInput):
                    unfit = isinstance(items[number - done - 1], str)
                    failures.skip(answer._replace(error=f"text {number}: {answer.error}") if unfit else answer)
                    continue
                failures.success()
                notes.add(answer)
                if json_:
                    write_json({"source": item, **dataclasses.asdict(answer)})
                elif n_best > 1:
                    for rank, hypothesis in enumerate(answer.n_best, 1):
                        write(number, rank, f"{hypothesis.score:.4f}", hypothesis.text)
                else:
                    write(answer.text)
            sys.stdout.flush()
            done += len(chunk)
    notes.report()
    return failures.code()


def _mark_long(translator: "Translator", items: list[str | BadInput], first: int
               ) -> tuple[list[str | BadInput], dict[str, list[int]]]:  # fmt: skip
    """Texts that are longer than the model takes become failures; the others' token ids; `first` is the number of the first."""
    encoded = iter(translator.encode([item for item in items if isinstance(item, str)]))
    marked, sources = list[str | BadInput](), dict[str, list[int]]()
    for number, item in enumerate(items, first):
        try:
            if isinstance(item, str):
                sources[item] = next(encoded)
                translator.require_short(sources[item], number)
            marked.append(item)
        except ValueError as error:
            marked.append(BadInput(str(item), str(error)))
    return marked, sources


def _search_encoded(find: "Callable[..., list[Translation]]", encoded: dict[str, list[int]],
                    texts: list[str]) -> "list[Translation]":  # fmt: skip
    """Find the answers to texts, given as token ids if they have been encoded already."""
    return find([encoded[text] for text in texts] if encoded else texts)


def ask(run: OptionalRun = None, questions: options.PrefixedTexts = None, input_: Input = None, beam: options.Beam = None,
        tokens: options.AnswerTokens = None, batch: options.BatchSize = None, strict: options.Strict = False,
        device: Device = "auto", precision: Precision = "float32", json_: Json = False) -> int:  # fmt: skip
    """Ask a text-to-text model that was trained with task prefixes.

    regard ask runs/t5-multitask "translate English to German: This is good."
    """
    run, questions = choose_run("ask", run, questions)
    translator: Translator = open_run(run, "ask", device, precision)
    search = partial(translator.translate, beam=beam, tokens=tokens, batch=batch)
    return _answer(translator, search, questions, input_, Failures(strict=strict, json_=json_), False, json_, protect=False)


def generate(
    run: OptionalRun = None,
    prompt: Annotated[str | None, typer.Argument(help="The prompt; by default, standard input.", show_default=False)] = None,
    tokens: options.Tokens = None,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")] = 1.0,
    top_k: options.TopK = 0, top_p: options.TopP = 1.0, seed: options.Seed = 0, stop: options.StopStrings = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print text as it is generated.")] = False,
    out: options.GridFile = None,
    count: Annotated[int | None, typer.Option(help="Images to generate.  [default: 64]", show_default=False)] = None,
    device: Device = "auto", precision: Precision = "float32", json_: Json = False,
) -> None:  # fmt: skip
    """Continue a prompt; or generate images, as a grid.

    regard generate runs/shakespeare-gpt "ROMEO:" --tokens 300 --top-p 0.9 --stream

    regard generate runs/mnist-image-gpt --out samples.png
    """
    run, prompts = choose_run("generate", run, None if prompt is None else [prompt])
    if prompts and len(prompts) > 1:
        raise ValueError(
            f"{len(prompts)} prompts, and the first is not a run; put the prompt in quotes, or give a run folder first"
        )
    prompt = prompts[0] if prompts else None
    if stream and json_:
        raise ValueError("--stream prints pieces, --json one object; give one of them")
    predictor = open_run(run, "generate", device, precision)
    images = predictor.OUTPUT == "images"
    for_text = {"PROMPT": prompt, "--tokens": tokens, "--stop": stop or None, "--stream": stream or None,
                "--json": json_ or None}  # fmt: skip
    for_images = {"--out": out, "--count": count}
    useless = [name for name, value in (for_text if images else for_images).items() if value is not None]
    if useless:
        made = predictor.OUTPUT
        raise ValueError(f"{run} generates {made}; {', '.join(useless)} does not apply to {made}, leave it out")
    sampling = _Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    if images:
        _generate_images(predictor, sampling, out, 64 if count is None else count)
    else:
        _generate_text(predictor, sampling, prompt, tokens, stop or (), stream, json_)


class _Sampling(TypedDict):
    temperature: float
    top_k: int
    top_p: float
    seed: int


def _generate_text(generator: "TextGenerator", sampling: _Sampling, prompt: str | None, tokens: int | None, stop: Sequence[str],
                   stream: bool, json_: bool) -> None:  # fmt: skip
    from regard.data.files import read_whole

    if prompt is None:
        prompt = "" if sys.stdin is None or sys.stdin.isatty() else read_whole(Path("-"))
    pieces = generator.stream(prompt, tokens=tokens, stop=stop, **sampling)
    if json_:
        write_json({"prompt": prompt, "text": "".join(pieces)})
    elif stream:
        for piece in chain((prompt,), pieces):
            write(piece, end="")
            sys.stdout.flush()
        print()
    else:
        write(prompt + "".join(pieces))


def _generate_images(generator: "ImageGenerator", sampling: _Sampling, out: Path | None, count: int) -> None:
    from regard.view.image_grid import check_out, save_image_grid

    if out is None:
        raise ValueError("images need a file; give --out samples.png")
    check_out(out)
    with show_progress("pixels") as counter:
        images = generator.generate(count, **sampling, progress=partial(counter, 0))
    save_image_grid(images, out)
    write(f"saved {count:,} images in {out}")


def fill(run: OptionalRun = None, texts: options.MaskedTexts = None,
         top: Annotated[int, typer.Option(help="Predictions for each [MASK].")] = 5,
         device: Device = "auto", json_: Json = False) -> None:  # fmt: skip
    """Predict the words behind [MASK].

    regard fill runs/wikitext-bert "The cat sat on the [MASK]."
    """
    if top < 1:
        raise ValueError(f"--top {top}; ask for 1 or more predictions")
    run, texts = choose_run("fill", run, texts)
    model: MaskedLM = open_run(run, "fill", device)
    with read_texts(texts, None, "reading") as (chunks, _):
        for text in (text for chunk in chunks for text in chunk):
            filled = model.fill(text, top)
            if json_:
                predictions = [[prediction._asdict() for prediction in word] for word in filled.predictions]
                write_json({"source": text, "text": filled.text, "predictions": predictions})
                continue
            write(filled.text)
            for word in filled.predictions:
                write("    " + ", ".join(f"{prediction.text} {prediction.probability:.1%}" for prediction in word))


def classify(run: OptionalRun = None, texts: options.TextsOrImages = None, input_: Input = None,
             top: Annotated[int, typer.Option(help="Print this many most likely classes.")] = 1,
             strict: options.Strict = False, device: Device = "auto", precision: Precision = "float32",
             json_: Json = False) -> int:  # fmt: skip
    """Classify texts or images; a folder is all images in it.

    regard classify runs/sst2 "a gripping, funny film"

    regard classify runs/cifar10-swin cat.jpg dog.png --top 3
    """
    if top < 1:
        raise ValueError(f"--top {top}; ask for 1 or more classes")
    run, texts = choose_run("classify", run, texts)
    predictor: TextClassifier | ImageClassifier = open_run(run, "classify", device, precision)
    done, images = 0, predictor.INPUT == "image"
    size = predictor.run.decode.batch_size if images else TEXTS_PER_CHUNK
    failures = Failures(strict=strict, json_=json_)
    with read_items(texts, input_, "classifying", size, endings=_image_endings() if images else ()) as (chunks, count):
        for chunk in chunks:

            def predict(some: list[str], before: int = done, most: int = _count_texts(chunk)) -> "list[list[Prediction]]":
                encoded = encode_noting(predictor, some, quiet=len(some) < most)
                return predictor.classify(encoded, top=top, progress=partial(count, before))

            for source, classes in answer_each(chunk, predict):
                if isinstance(classes, BadInput):
                    failures.skip(classes, f"{source}\t" if images else "")
                    continue
                failures.success()
                if json_:
                    write_json({"source": source, "classes": [c._asdict() for c in classes]})
                else:
                    line = "\t".join(f"{prediction.text} {prediction.probability:.1%}" for prediction in classes)
                    write(f"{source}\t{line}" if images else line)
            done += len(chunk)
            sys.stdout.flush()
    return failures.code()


def _count_texts(items: list[str | BadInput]) -> int:
    return sum(isinstance(item, str) for item in items)


def _image_endings() -> Collection[str]:
    from regard.data.image.folders import TRIED

    return TRIED


def transcribe(run: OptionalRun = None, files: options.SoundFiles = None, input_: Input = None, beam: options.Beam = None,
               timestamps: Annotated[bool, typer.Option(
                   "--timestamps", help="Print a line for each word: file, start and end in seconds, word.")] = False,
               piece: Annotated[float | None, typer.Option(
                   help="Cut longer sound into pieces of this many seconds, where it is quietest.  "
                        "[default: 20, or data.max_seconds if less]", show_default=False)] = None,
               strict: options.Strict = False, device: Device = "auto", json_: Json = False) -> int:  # fmt: skip
    """Transcribe speech: sound files of any length, rate and number of channels; a folder is all sound files in it.

    regard transcribe runs/an4-joint clip.wav --timestamps
    """
    run, files = choose_run("transcribe", run, files)
    transcriber: Transcriber = open_run(run, "transcribe", device)
    search = partial(transcriber.stream, beam=beam, timestamps=timestamps, piece=piece)
    if files:  # now, so that the seconds are known
        files = [name if isinstance(name, str) else name.source for name in expand_folders(files, SOUNDS)]
    done, total, failures = 0, _seconds(files or []), Failures(strict=strict, json_=json_)
    with read_items(files, input_, "transcribing, seconds", total=total, endings=SOUNDS) as (chunks, count):
        for chunk in chunks:
            seconds = 0

            def progress(heard: int, before: int = done) -> None:
                nonlocal seconds
                seconds = heard
                count(before, heard)

            for file, found in _transcribe_each(search, chunk, progress):
                if isinstance(found, BadInput):
                    failures.skip(found, f"{file}\t")
                    continue
                failures.success()
                if json_:
                    fields = {key: value for key, value in dataclasses.asdict(found).items() if timestamps or key != "words"}
                    write_json({"source": file, **fields})
                elif timestamps:
                    for word in found.words:
                        write(file, f"{word.start:.2f}", f"{word.end:.2f}", word.text)
                else:
                    write(file, found.text)
                sys.stdout.flush()
            done += seconds
    return failures.code()


def _transcribe_each(search: "Callable[..., Iterator[Transcript]]", items: list[str | BadInput], progress: Callable[[int], None],
                     ) -> "Iterator[tuple[str, Transcript | BadInput]]":  # fmt: skip
    """The transcript of each file; after one that cannot be read the search starts again with the next."""
    at, heard = 0, 0
    while at < len(items):
        item = items[at]
        if isinstance(item, BadInput):
            at += 1
            yield item.source, item
            continue
        files = list(takewhile(lambda item: isinstance(item, str), items[at:]))
        before = heard

        def report(seconds: int, before: int = before) -> None:
            nonlocal heard
            heard = before + seconds
            progress(heard)

        try:
            for found in search(files, progress=report):
                at += 1
                yield str(items[at - 1]), found
        except ValueError as error:
            at += 1
            yield str(items[at - 1]), BadInput(str(items[at - 1]), str(error))


def _seconds(files: Sequence[str]) -> float:
    """How long sound files are together; those that cannot be read are reported when they are transcribed."""
    from regard.data.audio.io import audio_seconds

    total = 0.0
    for file in files:
        with suppress(ValueError):
            total += audio_seconds(file)
    return total


def caption(run: OptionalRun = None, images: options.Images = None, input_: Input = None, beam: options.Beam = None,
            n_best: Annotated[int, typer.Option(
                help="Captions per image, printed as image, rank, score and caption, separated by tabs.")] = 1,
            length_penalty: options.LengthPenalty = None,
            show: Annotated[Path | None, typer.Option(
                help="Draw the image once per word, with where the model looked: a .png, .svg, .pdf or .json file.",
                show_default=False)] = None,
            strict: options.Strict = False, device: Device = "auto", precision: Precision = "float32",
            json_: Json = False) -> int:  # fmt: skip
    """Write captions of images; a folder is all images in it.

    regard caption runs/flickr8k-attend photo.jpg --beam 5 --show words.png
    """
    run, images = choose_run("caption", run, images)
    if show:
        from regard.view.draw import check_file

        check_file(show, "--show")
        if len(images or ()) > 1:
            raise ValueError(f"--show {show} draws one image, and there are {len(images or ())}; give one, or leave --show out")
    captioner: ImageCaptioner = open_run(run, "caption", device, precision)
    search = partial(captioner.caption, beam=beam, n_best=n_best, length_penalty=length_penalty)
    done, size, failures = 0, max(2, captioner.run.decode.batch_size), Failures(strict=strict, json_=json_)
    with read_items(images, input_, "captioning", size, endings=_image_endings()) as (chunks, count):
        for chunk in chunks:
            if show and len(chunk) > 1:
                raise ValueError(f"--show {show} draws one image, and there are more; give one, or leave --show out")

            def predict(some: list[str], before: int = done) -> "list[Caption]":
                return search(some, progress=partial(count, before))

            for image, found in answer_each(chunk, predict):
                if isinstance(found, BadInput):
                    failures.skip(found, f"{image}\t")
                    continue
                failures.success()
                _print_caption(image, found, n_best, json_)
                if show:
                    _draw_caption(captioner, image, found, show)
            done += len(chunk)
            sys.stdout.flush()
    return failures.code()


def _print_caption(image: str, found: "Caption", n_best: int, json_: bool) -> None:
    if json_:
        write_json({"source": image, **dataclasses.asdict(found)})
    elif n_best > 1:
        for rank, hypothesis in enumerate(found.n_best, 1):
            write(image, rank, f"{hypothesis.score:.4f}", hypothesis.text)
    else:
        write(image, found.text)


def _draw_caption(captioner: "ImageCaptioner", image: str, found: "Caption", file: Path) -> None:
    from regard.view.caption_maps import map_caption, to_file

    for line in (*to_file(map_caption(captioner, image, caption=found), file), f"saved {file}"):
        note(line)


def _warn_unprefixed(translator: "Translator", texts: list[str]) -> None:
    prefixes = translator.prefixes
    bare = next((text for text in texts if prefixes and text.strip() and not text.startswith(prefixes)), None)
    if bare is not None:
        note(f"regard: {bare[:40]!r} has none of the task prefixes this model was trained with, "
             f"{', '.join(map(repr, prefixes))}; its answer may be meaningless")  # fmt: skip
