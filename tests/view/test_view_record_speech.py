"""Records of speech recognizers: self-attention of the frames, cross-attention of the tokens, and CTC's own frames."""

import io

import numpy as np
import pytest
import soundfile
import torch
from test_speech_maps import EACH, untrained
from tone_speech import say

from regard.data.audio import io as audio_io
from regard.data.audio.batches import to_model_input
from regard.data.audio.io import audio_seconds, read_audio
from regard.decode.ctc import align
from regard.layers.tap import watch
from regard.view.record import record_attention

TEXT = "a c b a"


def encoded(sound: np.ndarray, rate: int = 8000, **options: str) -> bytes:
    with io.BytesIO() as stream:
        soundfile.write(stream, sound, rate, **{"format": "WAV", "subtype": "FLOAT", **options})
        return stream.getvalue()


@EACH
def test_weights_are_those_of_watch_and_rows_sum_to_one(kind):
    transcriber, sound = untrained(kind), say(TEXT)
    record = record_attention(transcriber, sound, beam=2)
    frames, lengths = to_model_input([torch.from_numpy(sound)], transcriber.run.data)
    [found] = transcriber.search(frames, lengths, 2, transcriber.run.decode.length_penalty)
    assert record.answer.text == transcriber.to_text(found.tokens)
    target = [*found.tokens, transcriber.tokenizer.special.eos][: record.axes["answer"].size]
    with watch(transcriber.model) as recorded, torch.inference_mode():
        if kind == "ctc":
            log_probs = transcriber.model(frames, lengths)[0].log_softmax(-1)
        else:
            read = torch.tensor([[1, *target[:-1]]])
            log_probs = transcriber.model(frames, lengths, read)[0].log_softmax(-1)
    assert [layer.name for layer in record.layers] == [name for name, calls in recorded.items() if calls]
    for layer in record.layers:
        torch.testing.assert_close(layer.weights, recorded[layer.name][0][0], atol=1e-5, rtol=0)
        torch.testing.assert_close(layer.weights.sum(-1), torch.ones(layer.weights.shape[:2]))
        assert layer.shape == (record.axes[layer.queries].size, record.axes[layer.keys].size)
        assert layer.stack == layer.name.split(".")[0]
    last = [layer.weights.mean(0) for layer in record.layers if layer.kind == "cross"]
    for row, (item, token) in enumerate(zip(record.answer.items, target, strict=True)):
        if kind == "ctc":
            span = align(log_probs, target, blank=0)[row]
            own = range(span.start, span.stop)
            wanted = sum(record.layers[-1].weights[:, frame].mean(0) for frame in own) / len(own)
            probability = max(float(log_probs[frame, token].exp()) for frame in own)
        else:
            wanted, probability = sum(weights[row] for weights in last) / len(last), float(log_probs[row, token].exp())
        torch.testing.assert_close(record.alignment[row], wanted, atol=1e-5, rtol=0)
        assert item.probability == pytest.approx(probability, rel=1e-3)
    assert record.alignment_axes == ("answer", "frames")


@EACH
def test_running_again_gives_the_same_and_no_other_source(kind):
    record = record_attention(untrained(kind), say(TEXT), beam=1)
    probabilities = torch.tensor([item.probability for item in record.answer.items])
    torch.testing.assert_close(record.rerun.logprobs().exp(), probabilities, rtol=1e-3, atol=1e-6)
    assert record.rerun.answer().text == record.answer.text
    assert record.rerun.source == []
    for call in (record.rerun.logprobs, record.rerun.answer):
        with pytest.raises(ValueError, match="reads no text"):
            call([1])


@EACH
def test_frames_have_times_and_the_spectrogram_levels(kind):
    transcriber, sound = untrained(kind), say(TEXT)
    record = record_attention(transcriber, sound)
    times, spectrogram = record.axes["frames"].times, record.spectrogram
    assert times == transcriber.frame_times(len(times))
    assert spectrogram.seconds == len(sound) / 8000
    assert spectrogram.levels.shape[0] == len(spectrogram.frequencies)
    assert (float(spectrogram.levels.min()) >= 0, float(spectrogram.levels.max())) == (True, 1.0)


@pytest.mark.parametrize("form", [{}, {"format": "FLAC", "subtype": "PCM_16"}, {"format": "OGG", "subtype": "VORBIS"},
                                  {"format": "MP3", "subtype": "MPEG_LAYER_III"}])  # fmt: skip
def test_the_content_of_a_file_is_read_as_the_file_is(tmp_path, form):
    transcriber, content = untrained("joint"), encoded(np.stack([say(TEXT)] * 2, 1), **form)
    (tmp_path / "sound").write_bytes(content)
    assert torch.equal(read_audio(content, 8000), read_audio(tmp_path / "sound", 8000))
    assert audio_seconds(content) == audio_seconds(tmp_path / "sound")
    by_content, by_file = (record_attention(transcriber, what) for what in (content, str(tmp_path / "sound")))
    assert by_content.answer == by_file.answer
    assert torch.equal(by_content.alignment, by_file.alignment)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"hello there", "it begins with 'hello there'"),
        (b"RIFF\0\0\0\0WAVE" + b"\0" * 99, "not readable"),
        (encoded(say(TEXT))[:60], "No 'data' chunk"),
        (encoded(np.zeros(8000)), "is silent"),
        (encoded(np.full(8000, np.nan)), "not a number"),
        (encoded(np.zeros(8000 * 31)), "lasts 31.0 seconds"),
        (encoded(say(TEXT), 2_000_003), "would not fit into memory"),
    ],
    ids=["empty", "text", "zeros", "cut", "silent", "nan", "long", "rate"],
)
def test_bytes_that_are_no_short_sound_are_refused_in_one_line(content, message):
    with pytest.raises(ValueError, match=message) as caught:
        record_attention(untrained("joint"), content)
    assert "\n" not in str(caught.value)


def test_a_filter_of_a_strange_rate_is_bounded_before_it_is_made(monkeypatch):
    monkeypatch.setattr(audio_io, "TAPS", 10_000)
    with pytest.raises(ValueError, match="would not fit into memory"):
        read_audio(encoded(say(TEXT), 7993), 8000)


@pytest.mark.parametrize("options", [{"tokens": 3}, {"temperature": 1.0}, {"beam": 0}])
def test_options_that_a_transcript_cannot_have_are_refused(options):
    with pytest.raises(ValueError, match=r"leave it out|use a beam of 1 or more"):
        record_attention(untrained("joint"), say(TEXT), **options)


def test_what_is_no_sound_is_refused():
    with pytest.raises(ValueError, match="t reads sound, and got int"):
        record_attention(untrained("joint"), 3)
