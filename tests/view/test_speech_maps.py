"""Speech as a model hears it: posteriors and attention are the model's, on the time axis of the timestamps."""

import dataclasses
import json

import numpy as np
import pytest
import soundfile
import torch
from cli_checks import assert_refused
from PIL import Image
from tone_speech import TONE, TONES, say, starts

from regard import load
from regard.config import DecodeConfig, Run
from regard.data.audio.batches import to_model_input
from regard.data.audio.config import AudioData
from regard.data.text.tokenizer import train_tokenizer
from regard.layers.tap import tap_of, watch
from regard.models.conformer import Conformer, ConformerConfig
from regard.tasks.speech import TimedWord, Transcriber
from regard.view import speech_maps
from regard.view.speech_maps import FrameAttention, Posteriors, Spectrogram, SpeechMap, map_speech, to_file

TEXT = "a c b a"
KINDS = {"ctc": {}, "joint": {"decoder_depth": 2, "ctc_weight": 0.3}, "attention": {"decoder_depth": 2, "ctc_weight": 0.0}}
EACH = pytest.mark.parametrize("kind", KINDS)


def untrained(kind: str, features: str = "log-mel") -> Transcriber:
    torch.manual_seed(3)
    tokenizer = train_tokenizer(["ab cd"], "characters", 20)
    shape = {"features": 8, "dim": 16, "depth": 3, "heads": 2, "kernel": 3, "subsample": 2}
    config = ConformerConfig(**shape, **KINDS[kind], vocab=tokenizer.vocab)
    data = AudioData(train="x", features=features, mels=8 if features == "log-mel" else 0, ceps=8, rate=8000)
    run = Run("t", "conformer", config, "speech", data=data, decode=DecodeConfig())
    return Transcriber(Conformer(config).eval(), tokenizer, run)


@pytest.fixture(scope="module")
def tones(tone_run) -> Transcriber:
    return load(tone_run)


@EACH
def test_each_frames_posteriors_and_each_rows_attention_sum_to_one(kind):
    speech = map_speech(untrained(kind), say(TEXT), beam=2)
    weights = torch.tensor(speech.attention.weights)
    assert weights.shape == (len(speech.attention.rows) or len(speech.times), len(speech.times))
    torch.testing.assert_close(weights.sum(1), torch.ones(len(weights)))
    assert (kind == "ctc") == (not speech.attention.rows)
    if kind == "attention":
        assert (speech.posteriors, speech.words) == (None, [])
        return
    probabilities = torch.tensor(speech.posteriors.probabilities)  # (tokens, S)
    assert probabilities.shape == (len(speech.posteriors.tokens), len(speech.times))
    torch.testing.assert_close(probabilities.sum(0), torch.ones(len(speech.times)))


def test_posteriors_are_those_of_the_model_for_the_tokens_of_the_transcript_the_others_and_the_blank(tones):
    speech = map_speech(tones, say(TEXT))
    frames, lengths = to_model_input([torch.from_numpy(say(TEXT))], tones.run.data)
    with torch.inference_mode():
        wanted = tones.model(frames, lengths)[0].softmax(-1).T  # (V, S)
    assert speech.transcript == TEXT
    assert speech.posteriors.tokens == ["a", "␣", "c", "b", "(others)", "(blank)"]
    got = torch.tensor(speech.posteriors.probabilities)
    ids = tones.tokenizer.tokens_to_ids(["a", " ", "c", "b"])
    torch.testing.assert_close(got[:4], wanted[ids])
    torch.testing.assert_close(got[-1], wanted[tones.tokenizer.special.pad])
    torch.testing.assert_close(got[4], 1 - wanted[[*ids, 0]].sum(0), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["joint", "attention"])
def test_a_row_of_cross_attention_is_that_of_the_step_that_predicts_its_token(kind):
    transcriber, sound = untrained(kind), say("a b")
    frames, lengths = to_model_input([torch.from_numpy(sound)], transcriber.run.data)
    [found] = transcriber.search(frames, lengths, 2, transcriber.run.decode.length_penalty)
    assert len(found.tokens) > 2
    wanted = []
    for length in range(len(found.tokens)):  # each prefix by itself
        with watch(transcriber.model) as recorded, torch.inference_mode():
            transcriber.model(frames, lengths, torch.tensor([[1, *found.tokens[:length]]]))
        wanted.append(recorded["decoder.1.cross"][0][0, :, -1].mean(0))
    speech = map_speech(transcriber, sound, beam=2)
    assert [row.replace("␣", " ") for row in speech.attention.rows] == transcriber.tokenizer.ids_to_tokens(found.tokens)
    torch.testing.assert_close(torch.tensor(speech.attention.weights), torch.stack(wanted), atol=1e-6, rtol=1e-4)


@EACH
def test_the_last_layer_and_the_mean_of_heads_are_the_default_and_others_can_be_chosen(kind):
    transcriber, sound = untrained(kind), say("a b")
    depth = 3 if kind == "ctc" else 2
    default = map_speech(transcriber, sound, beam=1).attention
    assert default == map_speech(transcriber, sound, beam=1, layer=depth).attention
    assert default.weights != map_speech(transcriber, sound, beam=1, layer=1).attention.weights
    heads = [map_speech(transcriber, sound, beam=1, layer=1, head=head).attention for head in (1, 2)]
    mean = torch.tensor([head.weights for head in heads]).mean(0)
    torch.testing.assert_close(mean, torch.tensor(map_speech(transcriber, sound, beam=1, layer=1).attention.weights))
    name = "self" if kind == "ctc" else "cross"
    assert default.title == f"{name}-attention, layer {depth} of {depth}, mean of 2 heads"
    assert heads[1].title == f"{name}-attention, layer 1 of {depth}, head 2"


def test_rows_of_a_long_transcript_are_words_whose_weights_are_the_mean_of_their_tokens(monkeypatch):
    transcriber, sound = untrained("attention"), torch.from_numpy(say("a"))
    [ids] = transcriber.tokenizer.encode(["ab c dab"])
    monkeypatch.setattr(Transcriber, "search", lambda self, *args, **more: [speech_maps.Recognized(ids, 0.0, None)])
    tokens = torch.tensor(map_speech(transcriber, sound).attention.weights)
    monkeypatch.setattr(speech_maps, "MAX_TOKENS", 5)
    words = map_speech(transcriber, sound).attention
    assert words.rows == ["ab", "c", "dab"]
    groups = [tokens[:2], tokens[2:4], tokens[4:]]  # a space belongs to the word after it
    torch.testing.assert_close(torch.tensor(words.weights), torch.stack([group.mean(0) for group in groups]))


# Time and frequency


def test_words_and_their_times_are_those_of_transcribe_and_hold_the_frames_of_their_tokens(tones):
    speech = map_speech(tones, say(TEXT))
    [transcript] = tones.transcribe([say(TEXT)], timestamps=True)
    assert speech.words == transcript.words
    assert [word.text for word in speech.words] == TEXT.split()
    rows = dict(zip(speech.posteriors.tokens, np.array(speech.posteriors.probabilities), strict=True))
    times = np.array(speech.times)
    for word, start in zip(speech.words, starts(TEXT), strict=True):
        inside = (times >= word.start) & (times <= word.end)
        assert rows[word.text][inside].max() > 0.5  # the frame that made the word is in its span
        assert start - 0.1 < times[inside][rows[word.text][inside].argmax()] < start + TONE + 0.1
    for letter in TONES:  # and no frame with a letter is outside of the spans of that letter
        spans = [word for word in speech.words if word.text == letter]
        for time in times[rows[letter] > 0.5]:
            assert any(word.start <= time <= word.end for word in spans)


@pytest.mark.parametrize(("features", "first"), [("log-mel", 0.0), ("mfcc", 0.0128125)])
def test_encoded_frames_are_centred_on_every_second_frame_of_the_front_end(features, first):
    speech = map_speech(untrained("ctc", features), say(TEXT))
    assert speech.times == pytest.approx([first + 0.02 * n for n in range(len(speech.times))])
    assert speech.seconds == len(say(TEXT)) / 8000
    assert abs(speech.times[-1] - speech.seconds) < 0.03


@pytest.mark.parametrize("features", ["log-mel", "mfcc"])
def test_a_tone_is_loudest_at_its_frequency_and_its_time(features):
    transcriber = untrained("ctc", features)
    spectrogram = map_speech(transcriber, say("c")).spectrogram
    levels = np.array(spectrogram.levels)
    assert levels.shape == (len(spectrogram.frequencies), len(spectrogram.times))
    assert levels.max() == 0
    channel, frame = np.unravel_index(levels.argmax(), levels.shape)
    nearest = np.abs(np.array(spectrogram.frequencies) - TONES["c"]).argmin()
    assert channel == nearest
    assert starts("c")[0] < spectrogram.times[frame] < starts("c")[0] + TONE
    assert levels.shape[0] == (8 if features == "log-mel" else 64)
    assert spectrogram.frequencies[-1] < 4000


def test_a_file_of_another_rate_has_the_same_axes(tones, tmp_path):
    soundfile.write(tmp_path / "clip.wav", say(TEXT, 44_100), 44_100)
    speech, wanted = map_speech(tones, tmp_path / "clip.wav"), map_speech(tones, say(TEXT))
    assert speech.transcript == TEXT
    assert speech.times == wanted.times
    assert [word.start for word in speech.words] == pytest.approx([word.start for word in wanted.words], abs=0.03)


# Files


@EACH
def test_a_json_file_holds_the_map(kind, tmp_path):
    speech = map_speech(untrained(kind), say("a b"), beam=2)
    assert to_file(speech, tmp_path / "map.json") == []
    read = json.loads((tmp_path / "map.json").read_text(encoding="utf-8"))
    read["words"] = [TimedWord(**word) for word in read["words"]]
    read["spectrogram"], read["attention"] = Spectrogram(**read["spectrogram"]), FrameAttention(**read["attention"])
    read["posteriors"] = read["posteriors"] and Posteriors(**read["posteriors"])
    assert SpeechMap(**read) == speech


@EACH
def test_each_kind_of_model_is_drawn_with_seconds_and_hertz(kind, tmp_path):
    file = tmp_path / "map.svg"
    assert to_file(map_speech(untrained(kind), say("a b"), beam=2), file) == []
    written = file.read_text()
    named = [text for text in ("hertz", "1,000", "CTC posteriors", "(blank)", "seconds", "query, seconds")
             if f">{text}<" in written]  # fmt: skip
    axis = ["query, seconds"] if kind == "ctc" else ["seconds"]
    assert named == ["hertz", "1,000", *(["CTC posteriors", "(blank)"] if kind != "attention" else []), *axis]
    assert "-attention, layer" in written


def test_a_pdf_file_is_written(tmp_path):
    to_file(drawn([[0.25] * 4] * 4), tmp_path / "map.pdf")
    assert (tmp_path / "map.pdf").read_bytes()[:5] == b"%PDF-"


def drawn(weights, words=(), **changes) -> SpeechMap:
    spectrogram = Spectrogram([0.0, 0.5], [100.0, 200.0], [[0.0, -60.0], [-60.0, 0.0]])
    speech = SpeechMap("t", "$a", 1.0, list(words), spectrogram, [0.125, 0.375, 0.625, 0.875], None,
                       FrameAttention("x", [], weights))  # fmt: skip
    return dataclasses.replace(speech, **changes)


def blue_and_orange(weights, file) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of coloured pixels, without the colour bars."""
    to_file(drawn(weights), file)
    with Image.open(file) as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)[:, : round(0.8 * image.width)]
    warmth = pixels[..., 0] - pixels[..., 2]
    return np.argwhere(warmth < -20), np.argwhere(warmth > 20)


def test_the_place_attended_to_is_orange_and_the_others_are_blue(tmp_path):
    for query, key in ((1, 2), (2, 0)):
        weights = [[float((row, column) == (query, key)) for column in range(4)] for row in range(4)]
        cold, warm = blue_and_orange(weights, tmp_path / "map.png")
        assert len(cold) > 5 * len(warm) > 0
        high = 1 + cold[:, 0].max() - cold[:, 0].min()
        assert 4 * (warm[:, 0].mean() - cold[:, 0].min()) / high == pytest.approx(query + 0.5, abs=0.1)


def test_uniform_attention_is_flat_and_called_no_preference(tmp_path):
    cold, warm = blue_and_orange([[0.25] * 4] * 4, tmp_path / "flat.png")
    assert len(cold) == len(warm) == 0
    to_file(drawn([[0.25] * 4] * 4), tmp_path / "flat.svg")
    written = (tmp_path / "flat.svg").read_text()
    assert all(f">{text}<" in written for text in ("x: no preference", "× uniform", "≥ 32", "≤ 1/32"))
    to_file(drawn([[0.0, 1.0, 0.0, 0.0]] * 4), tmp_path / "peak.svg")
    assert "x: up to 4.0× uniform" in (tmp_path / "peak.svg").read_text()


def test_a_map_is_saved_shown_in_a_notebook_and_its_repr_is_short(tmp_path):
    speech = drawn([[0.25] * 4] * 4)
    assert speech.save(tmp_path / "map.svg") == tmp_path / "map.svg"
    assert speech._repr_png_().startswith(b"\x89PNG")
    assert repr(speech) == "SpeechMap('t', '$a', 1.0 seconds)"


def test_crowded_words_are_written_sideways_and_an_empty_transcript_is_drawn(tmp_path):
    few = [TimedWord("one", 0.1, 0.4), TimedWord("two", 0.4, 0.9)]
    many = [TimedWord("seventeen", n / 30, (n + 1) / 30) for n in range(30)]
    flat = [[0.25] * 4] * 4
    heights = []
    for words in ([], few, many):
        assert to_file(drawn(flat, words), tmp_path / "map.png") == []
        with Image.open(tmp_path / "map.png") as image:
            heights.append(image.height)
    assert heights[0] < heights[1] < heights[2]
    posteriors = Posteriors(["(others)", "(blank)"], [[0.0] * 4, [1.0] * 4])
    empty = drawn([], transcript="", posteriors=posteriors)
    assert to_file(empty, tmp_path / "empty.png") == []


def test_a_note_says_how_many_rows_are_not_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(speech_maps, "MAX_ROWS", 3)
    rows = FrameAttention("x", list("abcde"), [[0.25] * 4] * 5)
    assert to_file(drawn([], attention=rows), tmp_path / "map.png") == ["3 of 5 rows are drawn; a .json file holds all"]


@EACH
def test_one_sample_is_drawn(kind, tmp_path):
    assert to_file(map_speech(untrained(kind), np.ones(1, np.float32)), tmp_path / "one.png") == []


def test_mapping_leaves_the_model_unchanged(tones):
    before = tones.transcribe([say(TEXT)], timestamps=True)
    map_speech(tones, say(TEXT))
    assert tones.transcribe([say(TEXT)], timestamps=True) == before
    assert all(tap_of(part) is None for part in tones.model.modules())


# The command line


def test_show_prints_the_words_with_their_times_and_draws_the_sound(regard, tone_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    soundfile.write("clip.flac", say(TEXT, 16_000), 16_000)
    result = regard("show", tone_run, "clip.flac")
    assert result.code == 0, result.err
    *lines, last = result.out.splitlines()
    assert [line.split("\t")[2] for line in lines] == TEXT.split()
    assert all(float(line.split("\t")[0]) < float(line.split("\t")[1]) for line in lines)
    assert last == f"clip.flac: {TEXT}, saved clip-attention.png"
    with Image.open("clip-attention.png") as image:
        assert image.width > 1000
    assert regard("show", tone_run, "clip.flac", "--head", 2, "--out", "map.json").code == 0
    assert json.loads((tmp_path / "map.json").read_text())["attention"]["title"].endswith("head 2")


def test_each_mistake_is_one_line(regard, tone_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.wav").write_text("this is not sound\n")
    for name, sound in (("clip", say(TEXT)), ("long", np.ones(8000 * 31)), ("silent", np.zeros(8000))):
        soundfile.write(f"{name}.wav", sound, 8000)
    show = ("show", tone_run)
    assert_refused(regard(*show, "text.wav"), "text.wav is not a readable sound file: it begins with 'this is not sound")
    assert_refused(regard(*show, "missing.wav"), "no file missing.wav")
    assert_refused(regard(*show, "long.wav"), "long.wav lasts 31.0 seconds", "cut a part out of it")
    assert_refused(regard(*show, "silent.wav"), "silent.wav is silent; give a sound with speech in it")
    assert_refused(regard(*show, "clip.wav", "--layer", 2), "no layer 2; this model has layers 1 to 1")
    assert_refused(regard(*show, "clip.wav", "--head", 0), "no head 0; this model has heads 1 to 2")
    assert_refused(regard(*show, "clip.wav", "--beam", 0), "beam 0; use a beam of 1 or more")
    assert_refused(regard(*show, "clip.wav", "--out", "map.bmp"), "cannot write map.bmp")
    assert not list(tmp_path.glob("*attention*"))


def test_a_sound_of_hours_is_refused_before_it_is_read(tones, tmp_path, monkeypatch):
    soundfile.write(tmp_path / "long.wav", np.zeros(8000 * 40), 8000)
    monkeypatch.setattr(speech_maps, "read_audio", lambda *_: pytest.fail("it was read"))
    with pytest.raises(ValueError, match=r"lasts 40\.0 seconds, and a map of more than 30 is unreadable; cut a part out of it"):
        map_speech(tones, tmp_path / "long.wav")
    with pytest.raises(ValueError, match=r"the sound lasts 40\.0 seconds"):
        map_speech(tones, np.ones(8000 * 40, np.float32))
