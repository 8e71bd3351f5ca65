"""How long does `regard translate` take for a short sentence, from the shell and once the model is loaded?

Cold: the whole command in a new process, imports and loading included.  Warm: `Translator.translate` of one sentence after the
other, in one process.  Both with the shipped model en-it, its own beam of 5, and all cores.

    python benchmarks/short_sentences.py
"""

import statistics
import subprocess
import sys
import time

import rig
from rich.console import Console
from rich.table import Table
from rig import Spread

import regard

MODEL = "en-it"
COLD, WARM = 10, 200  # repeats
BARS = {"cold": 1.5, "warm": 0.060}  # seconds
SENTENCES = [
    "I love you very much.",
    "Where is the station?",
    "She has never seen the sea.",
    "Can you help me?",
    "It is raining.",
]


def main() -> None:
    """Measure, print the table, save the results."""
    cold = Spread.of([cold_seconds(SENTENCES[0]) for _ in range(COLD + 1)][1:])  # the first one reads the files from disk
    translator = regard.load(MODEL, device="cpu")
    warm = [warm_seconds(translator, SENTENCES[n % len(SENTENCES)]) for n in range(WARM + 10)][10:]
    table = Table("what", "median (range)", "compared", "bar", "", title=f"{MODEL}, a short sentence, {rig.threads()} cores")
    found = {"cold": cold, "warm": Spread.of(warm)}
    compared = {"cold": ("slowest", cold.most), "warm": ("p95", statistics.quantiles(warm, n=20, method="inclusive")[-1])}
    for what, bar in BARS.items():
        name, seconds = compared[what]
        row = f"{found[what].text('.3f')} s", f"{name} {seconds:.3f} s", f"≤ {bar} s", "met" if seconds <= bar else "MISSED"
        table.add_row(what, *row)
    Console().print(table)
    rig.save("short_sentences", {"model": MODEL, "beam": translator.run.decode.beam_size, **found, "compared": compared})


def cold_seconds(sentence: str) -> float:
    """Of the command, as a user waits for it."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "regard", "translate", MODEL, sentence], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def warm_seconds(translator: "regard.Translator", sentence: str) -> float:
    """Of one call."""
    start = time.perf_counter()
    translator.translate([sentence])
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
