"""Speech: the loss equals its parts, transcripts and times of tones are right, in pieces as in one, and bad sound is refused."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from tone_speech import CHANGES, PAUSE, TONE, random_text, say, starts, write_tones

from regard import load
from regard.config import DecodeConfig, Run
from regard.data.audio.batches import SpeechBatch, to_model_input
from regard.data.audio.config import AudioData
from regard.data.audio.pieces import cut_pieces
from regard.data.position import DataPosition
from regard.data.text.tokenizer import train_tokenizer
from regard.models.conformer import Conformer, ConformerConfig
from regard.tasks import TASKS, read_run
from regard.tasks.metrics import transcript_scores
from regard.tasks.speech import Transcriber, speech_loss
from regard.train.loop import fit

SHAPE = {"features": 8, "vocab": 9, "dim": 16, "depth": 1, "heads": 2, "kernel": 3, "subsample": 2}
JOINT = {"decoder_depth": 1, "ctc_weight": 0.3}
ATTENTION = {"decoder_depth": 1, "ctc_weight": 0.0}


@pytest.fixture(scope="module")
def tones(tone_run):
    return load(tone_run)


def batch_of(*targets):
    """Random frames, ten for each token, and targets with start 1 and end 2."""
    rows = [torch.tensor([1, *target, 2]) for target in targets]
    lengths = torch.tensor([10 * len(target) for target in targets])
    frames = [torch.randn(int(length), SHAPE["features"]) for length in lengths]
    return SpeechBatch(torch.nn.utils.rnn.pad_sequence(frames, True), lengths, torch.nn.utils.rnn.pad_sequence(rows, True))


@pytest.mark.parametrize("more", [{}, JOINT, ATTENTION], ids=["ctc", "joint", "attention"])
def test_the_loss_is_the_weighted_sum_of_ctc_and_cross_entropy_of_each_utterance_alone(more):
    torch.manual_seed(0)
    model = Conformer(ConformerConfig(**SHAPE, **more)).eval()
    batch = batch_of([4, 5, 5], [6], [8, 7, 8, 4])
    weight, ctc, smoothed, plain = model.config.ctc_weight, 0.0, 0.0, 0.0
    for frames, length, target in zip(batch.frames, batch.lengths, batch.target, strict=True):
        target = target[target != 0]
        memory, mask = model.encode(frames[None, :length])
        if weight:
            labels = target[1:-1]
            log_probs = model.ctc_logits(memory)[0].log_softmax(-1)
            ctc += F.ctc_loss(log_probs, labels, (len(log_probs),), (len(labels),), reduction="sum")
        if weight < 1:
            logits = model.output(model.features(memory, mask, target[None, :-1]))[0]
            smoothed += F.cross_entropy(logits, target[1:], reduction="sum", label_smoothing=0.1)
            plain += F.cross_entropy(logits, target[1:], reduction="sum")
    loss, nll = speech_loss(model, batch, 0.1)
    torch.testing.assert_close(loss, torch.as_tensor(weight * ctc + (1 - weight) * smoothed))
    torch.testing.assert_close(nll, torch.as_tensor(weight * ctc + (1 - weight) * plain))
    assert batch.tokens == 3 + 1 + 4 + 3  # ends included
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


# Transcripts of a run that has learned tones


def test_tones_are_transcribed_and_their_words_begin_where_they_are_spoken(tones):
    texts = [random_text(words, 100 + words) for words in (1, 3, 6, 5)]
    found = tones.transcribe([say(text) for text in texts], timestamps=True)
    assert [transcript.text for transcript in found] == texts
    for text, transcript in zip(texts, found, strict=True):
        assert [word.text for word in transcript.words] == text.split()
        assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(transcript.words))
        cuts = [(a.end + b.start) / 2 for a, b in itertools.pairwise(transcript.words)]
        wanted = [start - PAUSE / 2 for start in starts(text)[1:]]  # the middle of each pause
        assert np.abs(np.subtract(cuts, wanted)).max(initial=0) < TONE / 2
        assert 0 <= transcript.words[0].start <= transcript.words[-1].end <= len(say(text)) / 8000


def test_a_transcript_does_not_depend_on_the_other_sounds_of_its_batch(tones):
    sounds = [say(random_text(words, words)) for words in (4, 1, 6)]
    together = tones.transcribe(sounds, beam=3, timestamps=True)
    for alone, transcript in zip((tones.transcribe([sound], 3, True)[0] for sound in sounds), together, strict=True):
        assert (alone.text, alone.words) == (transcript.text, transcript.words)
        assert alone.score == pytest.approx(transcript.score, abs=1e-3)


def test_transcribing_in_pieces_equals_transcribing_whole_away_from_the_cuts(tones):
    text = random_text(24, 7)
    sound, seconds = say(text), list[int]()
    (whole,) = tones.transcribe([sound], timestamps=True, piece=10)
    (pieces,) = tones.transcribe([sound], timestamps=True, piece=1.5, progress=seconds.append)
    assert whole.text == pieces.text == text
    assert seconds[-1] == round(len(sound) / 8000)
    off = [abs(a.start - b.start) for a, b in zip(whole.words, pieces.words, strict=True)]
    assert np.median(off) <= 0.02  # one encoded frame
    assert max(off) <= PAUSE  # a word after a cut


def test_silence_is_an_empty_transcript_and_one_sample_a_short_one(tones):
    for sound in (np.zeros(8000, np.float32), np.zeros(1, np.float32)):
        (found,) = tones.transcribe([sound], timestamps=True)
        assert (found.text, found.words) == ("", [])
    (found,) = tones.transcribe([np.ones(1, np.float32)], timestamps=True)
    assert len(found.text) <= 2
    assert all(word.start <= word.end <= 1 for word in found.words)


def test_arrays_of_integers_and_of_two_channels_are_the_same_sound(tones):
    sound = say("a b c")
    integers = np.round(32_768 * sound).astype(np.int16)
    stereo = np.stack((sound, sound), 1)
    (found,) = tones.transcribe([sound])
    for other in (integers, stereo, torch.from_numpy(sound)):
        (same,) = tones.transcribe([other])
        assert same.text == found.text == "a b c"
        assert same.score == pytest.approx(found.score, abs=0.05)


@pytest.mark.parametrize(
    ("sound", "wanted"),
    [
        (np.zeros(0, np.float32), "the sound has no samples"),
        (np.array([0, np.nan], np.float32), "not a number, sample 1"),
        (np.zeros((2, 2, 2), np.float32), r"samples of shape \(2, 2, 2\)"),
        (np.zeros(10, np.int64), "floats or int16"),
        ("nowhere.wav", "no file nowhere.wav"),
    ],
)
def test_a_sound_that_cannot_be_read_is_refused_after_the_transcripts_before_it(tones, sound, wanted):
    stream = tones.stream([say("a b"), sound, say("c")])
    assert next(stream).text == "a b"
    with pytest.raises(ValueError, match=wanted):
        next(stream)


def test_wrong_arguments_are_refused(tones):
    for arguments, wanted in (
        ({"sounds": "a.wav"}, "put it in brackets"),
        ({"sounds": [], "beam": 0}, "beam 0"),
        ({"sounds": [], "piece": 0.0}, "pieces of 0 seconds; use 1 to 60"),
    ):
        with pytest.raises(ValueError, match=wanted):
            tones.transcribe(**arguments)


@pytest.mark.parametrize("key", ["min_length", "max_length", "no_repeat_ngram_size", "repetition_penalty", "suppress_tokens",
                                 "bad_words", "forced_bos", "forced_eos"])  # fmt: skip
def test_settings_that_ctc_alone_cannot_obey_are_refused_by_search_and_before_training(key):
    tokenizer, data = train_tokenizer(["abcd"], "characters", 20), AudioData(train="x", mels=8, rate=8000)
    value = {"repetition_penalty": 1.5, "suppress_tokens": [3], "bad_words": [[3]]}.get(key, 3)
    config, decode = ConformerConfig(**{**SHAPE, "vocab": tokenizer.vocab}), DecodeConfig(**{key: value})
    run, model = Run("t", "conformer", config, "speech", data=data, decode=decode), Conformer(config).eval()
    with pytest.raises(ValueError, match=rf"decode\.{key} = .* has no effect on CTC alone \(ctc_weight 1\); leave it out"):
        Transcriber(model, tokenizer, run).transcribe([say("a b")])
    with pytest.raises(ValueError, match=rf"decode\.{key}"):
        TASKS["speech"].check(run, model)
    joint = ConformerConfig(**{**SHAPE, **JOINT, "vocab": tokenizer.vocab})
    TASKS["speech"].check(run, Conformer(joint))


@pytest.mark.parametrize("more", [JOINT, ATTENTION], ids=["joint", "attention"])
def test_the_score_of_a_model_with_a_decoder_is_that_of_its_tokens_by_greedy_and_by_beam(more):
    torch.manual_seed(1)
    tokenizer = train_tokenizer(["abcd"], "characters", 20)
    config = ConformerConfig(**{**SHAPE, **more, "vocab": tokenizer.vocab})
    data = AudioData(train="x", mels=8, rate=8000)
    transcriber = Transcriber(
        Conformer(config).eval(), tokenizer, Run("t", "conformer", config, "speech", data=data, decode=DecodeConfig())
    )
    model, weight, sounds = transcriber.model.requires_grad_(False), config.ctc_weight, [say("a b"), say("c")]
    frames, lengths = to_model_input([torch.from_numpy(sound) for sound in sounds], data)
    for beam in (1, 4):
        found = transcriber.search(frames, lengths, beam, penalty=0.0)
        for row, length, (ids, score, _) in zip(frames, lengths, found, strict=True):
            memory, mask = model.encode(row[None, :length])
            whole = len(ids) <= memory.shape[1]  # else it was stopped at the limit, without an end
            labels = torch.tensor([*ids, 2] if whole else ids)
            logits = model.output(model.features(memory, mask, torch.cat((torch.tensor([1]), labels[:-1]))[None]))[0]
            wanted = -(1 - weight) * F.cross_entropy(logits, labels, reduction="sum")
            if weight:
                assert whole
                log_probs = model.ctc_logits(memory)[0].log_softmax(-1)
                wanted -= weight * F.ctc_loss(log_probs, labels[:-1], (len(log_probs),), (len(ids),), reduction="sum")
            assert score == pytest.approx(float(wanted), abs=1e-3)
    wide = transcriber.transcribe(sounds, beam=4)
    if config.ctc_weight:
        timed = transcriber.transcribe(sounds, beam=4, timestamps=True)
        assert [t.text for t in timed] == [w.text for w in wide]
        assert [" ".join(word.text for word in t.words) for t in timed] == [t.text for t in timed]
    else:
        with pytest.raises(ValueError, match="times come from CTC"):
            transcriber.transcribe(sounds, timestamps=True)


# Pieces


def test_pieces_are_bounded_together_the_sound_and_cut_in_pauses():
    text, rate = random_text(40, 3), 8000
    sound = torch.from_numpy(say(text))
    for size in (100, 777, 8000, len(sound)):
        pieces = list(cut_pieces(sound.split(size), rate, 2.0))
        assert torch.equal(torch.cat([piece.samples for piece in pieces]), sound)
        assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert all(0.5 * rate <= len(piece.samples) <= 2 * rate for piece in pieces)
        for piece in pieces[1:]:
            spoken = min(abs(piece.start / rate - (start + TONE / 2)) for start in starts(text))
            assert spoken > TONE / 2  # outside of every tone


def test_a_piece_is_ready_before_the_rest_of_the_sound_is_read():
    read = list[int]()

    def blocks():
        for number in range(1000):
            read.append(number)
            yield torch.randn(800)

    next(cut_pieces(blocks(), 8000, 2.0))
    assert len(read) <= 26  # 2.5 seconds of a tenth each


# Training and scores


def test_utterances_with_more_labels_than_frames_are_left_out_with_a_count(tmp_path):
    file = write_tones(tmp_path, 20)
    file.write_text(file.read_text() + "".join(f"{n}.wav\t{'abc ' * 40}\n" for n in (1, 2)))
    run = read_run("speech", (*CHANGES, f"data.train={file}", f"data.valid={file}", "train.steps=2"))
    with open(tmp_path / "log.txt", "w") as log:
        done = fit(run, tmp_path / "run", console=Console(file=log, width=400))
    written = (tmp_path / "log.txt").read_text()
    assert "training: 2 utterances have fewer frames than CTC needs and are left out; the first is 1.wav" in written
    assert np.isfinite(done.loss)


def test_a_model_that_reads_other_features_and_smoothing_without_a_decoder_are_refused(tmp_path):
    file = write_tones(tmp_path, 4)
    for change, wanted in (
        ("data.mels=30", "a frame of the data has 30 features, the model reads 20; set model.features=30"),
        ("train.label_smoothing=0.1", "this model has CTC alone: set train.label_smoothing=0.0"),
    ):
        run = read_run("speech", (*CHANGES, f"data.train={file}", change))
        with pytest.raises(ValueError, match=wanted):
            fit(run, tmp_path / "run")


def edits(a, b):
    """The fewest insertions, deletions and substitutions, by the textbook table."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def test_error_rates_equal_edit_distances_over_all_words_and_characters():
    references = ["one two three", "four", "five six", "nine nine"]
    answers = ["one too three", "", "five six", "nine"]
    word, character, exact = transcript_scores(answers, references)
    pairs = list(zip(references, answers, strict=True))
    assert word.value == pytest.approx(100 * sum(edits(r.split(), a.split()) for r, a in pairs) / 8)
    assert character.value == pytest.approx(100 * sum(edits(r, a) for r, a in pairs) / sum(map(len, references)))
    assert "1 substitutions, 2 deletions, 0 insertions of 8 words" in word.signature
    assert (exact.value, exact.signature) == (25.0, "1 of 4 transcripts")


def test_joined_transcripts_of_one_word_have_a_space_between_them(tmp_path):
    file = write_tones(tmp_path, 13)
    file.write_text("".join(line for line in file.read_text().splitlines(True) if " " not in line))
    changes = (*CHANGES, "data.join=3", f"data.train={file}", f"data.valid={file}", "train.steps=1")
    run = read_run("speech", changes)
    dataset = TASKS["speech"].prepare(run, tmp_path / "tokenizer.json", lambda text: None, lambda what, done: None)
    stream = itertools.islice(TASKS["speech"].batches(run, dataset, DataPosition()), 20)
    texts = [dataset.tokenizer.decode(row.tolist()) for make, _ in stream for row in make().target]
    assert any(" " in text for text in texts)
    assert {word for text in texts for word in text.split(" ")} <= set("abc")
