"""Which digits does a speech run hear, and when?  Single clips of FSDD, strings joined from them, speakers never heard.

A string joins 3 to 7 test clips of one speaker, so the time of each join is known.  The error of a join is the distance between
it and the boundary of the two words beside it, of strings with the right transcript: the mean of the end of one and the start of
the next.  With --speakers six further runs are trained, each without one speaker, and scored on all recordings of that speaker.

    python benchmarks/spoken_digits.py runs/fsdd-conformer
    python benchmarks/spoken_digits.py runs/fsdd-conformer --speakers --steps 600
    python benchmarks/spoken_digits.py runs/fsdd-conformer --hours 2        # the speed and the memory of one long recording
"""

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import rig
import soundfile
import torch
from rich.console import Console
from rig import say
from torch import Tensor

from regard.data.audio.store import SpeechStore, read_split
from regard.tasks import read_run, task_of
from regard.tasks.load import load
from regard.tasks.speech import Transcriber
from regard.tasks.task import ScoreOptions
from regard.train.loop import fit

STRINGS = 200
CLIPS = (3, 7)  # of a string, fewest and most
NEAR = 0.05  # seconds: the error that counts as found


def main() -> None:
    """Score the run, train and score the others if asked, print and save the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("run", type=Path)
    options.add_argument("--speakers", action="store_true", help="train six runs, each without one speaker")
    options.add_argument("--steps", type=int, default=600, help="of each of the six")
    options.add_argument("--hours", type=float, default=0.0, help="transcribe a recording of this length instead")
    asked = options.parse_args()
    transcriber = load(asked.run)
    assert isinstance(transcriber, Transcriber)
    if asked.hours:
        say(", ".join(f"{key} {value:.4g}" for key, value in long_recording(transcriber, asked.hours).items()))
        return
    figures: dict[str, Any] = {"single clips": single_clips(transcriber), "strings": strings(transcriber)}
    for name, values in figures.items():
        say(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in values.items()))
    if asked.speakers:
        right = {name: without_speaker(asked.run, name, asked.steps) for name in speakers(transcriber)}
        say(f"mean of the six: {statistics.mean(right.values()):.1f} %")
        rig.save("unheard_speakers", {"steps": asked.steps, "right, %": right})
    say(f"saved {rig.named(rig.save('spoken_digits', figures))}")


def single_clips(transcriber: Transcriber) -> dict[str, float]:
    """The official test split."""
    scores = task_of(transcriber.run).score(transcriber, "test", ScoreOptions())
    return {score.name: score.value for score in scores}


def strings(transcriber: Transcriber) -> dict[str, float]:
    """Joined clips: how many transcripts are right, and how far the times of words are from the joins."""
    store = read_split(transcriber.run.data, "test", transcriber.tokenizer, lambda text: None)
    rng, right, errors = np.random.default_rng(1), 0, list[float]()
    for _ in range(STRINGS):
        sound, texts, joins = join_clips(store, rng)
        [found] = transcriber.transcribe([sound.numpy()], timestamps=True)
        if [word.text for word in found.words] != texts:
            continue
        right += 1
        for join, before, after in zip(joins, found.words, found.words[1:], strict=False):
            errors.append(abs((before.end + after.start) / 2 - join))
    near = sum(error <= NEAR for error in errors) / len(errors)
    return {"strings": STRINGS, "right, %": 100 * right / STRINGS, "median error of a join, ms": 1000 * statistics.median(errors),
            f"joins within {1000 * NEAR:g} ms, %": 100 * near}  # fmt: skip


def long_recording(transcriber: Transcriber, hours: float) -> dict[str, float]:
    """Test clips with pauses between them as one sound file: how long it takes, and how much memory."""
    store = read_split(transcriber.run.data, "test", transcriber.tokenizer, lambda text: None)
    rng, rate, written, digits = np.random.default_rng(1), store.front.rate, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "long.wav"
        with soundfile.SoundFile(file, "w", rate, 1, "PCM_16") as sound:
            while written < hours * 3600 * rate:
                clip = store.read(int(rng.integers(len(store)))).numpy()
                pause = 0.003 * rng.standard_normal(int(rng.integers(rate // 10, rate // 2)))
                for part in (clip, pause):
                    sound.write(part)
                    written += len(part)
                digits += 1
        before, began = _peak_mb(), time.process_time()
        [found] = transcriber.transcribe([file], timestamps=True)
        seconds = time.process_time() - began
    return {"seconds of sound": written / rate, "digits": digits, "words found": len(found.words), "CPU seconds": seconds,
            "real-time factor": seconds * rate / written, "peak MB before": before, "peak MB": _peak_mb()}  # fmt: skip


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def join_clips(store: SpeechStore, rng: np.random.Generator) -> tuple[Tensor, list[str], list[float]]:
    """Clips of one speaker as one sound: its samples, the digits, and the seconds at which clips meet."""
    speaker = int(rng.integers(len(store.speakers)))
    rows = rng.choice(np.flatnonzero(store.speaker_ids == speaker), int(rng.integers(CLIPS[0], CLIPS[1] + 1)), replace=False)
    clips = [store.read(int(row)) for row in rows]
    joins = np.cumsum([len(clip) for clip in clips])[:-1] / store.front.rate
    return torch.cat(clips), [store.utterances[int(row)].text for row in rows], joins.tolist()


def speakers(transcriber: Transcriber) -> list[str]:
    """All speakers of the set."""
    return read_split(transcriber.run.data, "test", transcriber.tokenizer, lambda text: None).speakers


def without_speaker(run: Path, speaker: str, steps: int) -> float:
    """Train the run's recipe without a speaker: the percentage of that speaker's recordings that it transcribes right."""
    changes = (f"data.speaker={speaker}", f"train.steps={steps}", f"train.eval_every={steps}", "name=fsdd")
    with tempfile.TemporaryDirectory() as folder:
        fit(read_run("fsdd-conformer", changes), Path(folder) / "run", console=Console(quiet=True))
        exact = single_clips(load(Path(folder) / "run"))["exact match"]  # type: ignore[arg-type]
    say(f"without {speaker}: {exact:.1f} % of the speaker's recordings")
    return exact


if __name__ == "__main__":
    main()
