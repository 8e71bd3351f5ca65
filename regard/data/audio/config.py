"""Which speech a run reads, and how sound becomes frames and transcripts become tokens."""

import dataclasses
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from regard.config import STRICT, require_max, require_min
from regard.data.sources import require_one_source

__all__ = ["AudioData"]


@dataclass(frozen=True, config=STRICT)
class AudioData:
    """Keys of [data] for speech recognition."""

    # Keys that a fine-tuned run takes from the run it starts from.
    INHERITED: ClassVar = ("features", "rate", "mels", "ceps", "window", "hop", "low", "high", "normalize", "tokenizer",
                           "vocab", "lowercase")  # fmt: skip

    source: str = ""  # a named data set (fsdd, an4-mfcc, yesno); empty: own files
    train: str = ""  # own TSV file, plain or .gz: sound file, transcript, and perhaps the speaker
    valid: str = ""  # the same, for validation; empty: a tenth of `train`
    speaker: str = ""  # left out of train and valid; all recordings of this speaker become the test split
    max_seconds: float = 30.0  # longer utterances are left out
    features: Literal["log-mel", "mfcc"] = "log-mel"  # mfcc: the cepstra of CMU Sphinx
    rate: int = 16_000  # samples a second; other sound is resampled
    mels: int = 0  # mel filters; 0: 80 for log-mel, 40 for mfcc
    ceps: int = 13  # cepstra of a frame, for mfcc
    window: float = 0.0  # milliseconds; 0: 25 for log-mel, 25.625 for mfcc
    hop: float = 10.0  # milliseconds from one frame to the next
    low: float = 0.0  # Hz, where the lowest filter begins; 0: 0 for log-mel, 130 for mfcc
    high: float = 0.0  # Hz, where the highest filter ends; 0: half of `rate` for log-mel, 6800 for mfcc
    normalize: Literal["utterance", "speaker", "none"] = "utterance"  # whose mean and standard deviation become 0 and 1
    speed: list[float] = dataclasses.field(default_factory=lambda: [1.0])  # factors; training draws one for each utterance
    time_masks: int = 0  # SpecAugment: spans of frames set to the mean, in training
    time_mask: float = 0.05  # largest fraction of an utterance that one span covers
    freq_masks: int = 0  # SpecAugment: bands of channels set to the mean
    freq_mask: int = 27  # largest number of channels in one band
    join: int = 1  # training utterances of one speaker joined at random, up to this many; 1: none
    tokenizer: Literal["characters", "bpe", "bytes", "wordpiece", "words"] = "characters"
    vocab: int = 1000  # tokens to learn; characters: as many as there are
    lowercase: bool = False  # write transcripts in lower case

    def __post_init__(self) -> None:
        require_min(1, vocab=self.vocab, ceps=self.ceps, join=self.join, hop=self.hop)
        require_min(0, mels=self.mels, window=self.window, low=self.low, high=self.high, time_masks=self.time_masks,
                    time_mask=self.time_mask, freq_masks=self.freq_masks, freq_mask=self.freq_mask)  # fmt: skip
        require_min(0.1, max_seconds=self.max_seconds)
        require_min(1000, rate=self.rate)
        require_max(192_000, rate=self.rate)
        require_max(1, time_mask=self.time_mask)
        require_max(1000, mels=self.mels, window=self.window, hop=self.hop)
        require_max(self.rate / 2, low=self.low, high=self.high)
        if not self.speed:
            raise ValueError("speed is empty; give factors such as [0.9, 1.0, 1.1], or [1.0] for none")
        for factor in self.speed:
            if not 0.5 <= factor <= 2 or abs(100 * factor - round(100 * factor)) > 1e-6:
                raise ValueError(f"speed has the factor {factor}; use 0.5 to 2, with two decimals at most")
        if (self.time_masks or self.freq_masks) and self.normalize == "none":
            raise ValueError("time_masks and freq_masks set frames to 0, the mean of normalised frames; with normalize=none use "
                             "time_masks=0 freq_masks=0")  # fmt: skip
        require_one_source(self.source, self.train, self.valid)
