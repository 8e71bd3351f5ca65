"""How fast does regard train word vectors, and how good are they, compared with gensim?  One table, and JSON.

Both sides train skip-gram with negative sampling on the same words of WikiText-2, with the same vocabulary, width, window,
negatives, subsampling and epochs: those of the recipe wikitext-word2vec.  Optimizer and batches are each side's own.  Words are
those of the text before subsampling.  Each repeat has another seed; the score is Spearman's correlation on WordSim-353.

    python benchmarks/word_vectors.py --repeats 3
"""

import argparse
import os
from pathlib import Path
from typing import Any

import rig
from rich.console import Console
from rich.table import Table
from rig import Peer, Spread, say

from regard.data.files import cache_folder, write_atomic
from regard.data.sources import locate
from regard.data.text.config import WordData
from regard.data.text.dataset import encode_text_split
from regard.data.text.readers import RatedPair, read_ratings
from regard.data.text.splits import find_split
from regard.data.text.store import UNKNOWN
from regard.data.text.tokenizer import train_tokenizer
from regard.tasks import read_run
from regard.tasks.metrics import spearman

EPOCHS = 5
OURS, THEIRS = "regard", "gensim"
PEERS = (Peer(OURS, "ours_word2vec.py"), Peer(THEIRS, "gensim_word2vec.py", "gensim.txt"))
SETTINGS = ("dim", "window", "negatives", "sample")


def main() -> None:
    """Measure, print the table, save the results."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeats", type=int, default=3)
    asked = options.parse_args()
    run = read_run("wikitext-word2vec")
    settings = {key: getattr(run.model, key) for key in SETTINGS}
    text, words, vocabulary = write_text(run.data)
    rated = read_ratings(locate("wordsim", "wordsim353", "")[0])
    known = [pair for pair in rated if {pair.first.lower(), pair.second.lower()} <= vocabulary]
    pairs = [[pair.first.lower(), pair.second.lower()] for pair in known]
    load = os.getloadavg()[0]
    ready, missing = rig.start(PEERS, {}, {"text": str(text), "pairs": pairs, "settings": settings, "epochs": EPOCHS})
    try:
        versions = {worker.name: worker.ask("versions") for worker in ready}
        say(f"{words:,} words, {EPOCHS} epochs")
        found = rig.interleave(ready, asked.repeats, "repeat")
    finally:
        for worker in ready:
            worker.stop()
    rows = {side: summarize(answers, words * EPOCHS, known, len(vocabulary)) for side, answers in found.items()}
    ratios = {}
    if rows.keys() >= {OURS, THEIRS}:
        times = {side: [answer["seconds"] for answer in answers] for side, answers in found.items()}
        ratios["ratio"] = rig.ratio(times[THEIRS], times[OURS])
    show(rows, ratios, settings, asked.repeats, f"{len(known)} of {len(rated)} pairs")
    for name, reason in missing.items():
        print(f"{name} is not measured: {reason}")
    about = {"repeats": asked.repeats, "epochs": EPOCHS, "words": words, "vocabulary": len(vocabulary), "settings": settings,
             "pairs": len(known), "of_pairs": len(rated), "load_before": load, "versions": versions}  # fmt: skip
    say(f"saved in {rig.named(rig.save('word_vectors', {**about, **rows, **ratios}))}")


def write_text(data: WordData) -> tuple[Path, int, set[str]]:
    """Write the words of the vocabulary, a line of the text a line, to the cache: file, number of words, vocabulary."""
    train = find_split(data.to_text_data(), "train")
    tokenizer = train_tokenizer((line.replace(UNKNOWN, "") for line in train.text()), "words", data.vocab)
    ids = encode_text_split(data.to_text_data(), "train", tokenizer, lambda text: None).tokens.tolist()
    tokens, special = tokenizer.ids_to_tokens(range(tokenizer.vocab)), set(tokenizer.special_ids)
    pieces = [
        "\n" if i == tokenizer.special.eos else f"{tokens[i]} " for i in ids if i not in special or i == tokenizer.special.eos
    ]
    file = cache_folder() / "benchmarks" / "wikitext-2-words.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, "".join(pieces).encode())
    return file, sum(piece != "\n" for piece in pieces), {token for i, token in enumerate(tokens) if i not in special}


def summarize(answers: list[dict[str, Any]], words: int, rated: list[RatedPair], vocabulary: int) -> dict[str, Any]:
    """Words per second of time and of processor time, and Spearman, over the repeats."""
    if any(answer["words"] != vocabulary for answer in answers):
        raise RuntimeError(f"vocabularies of {answers[0]['words']:,} and {vocabulary:,} words cannot be compared")
    ratings = [pair.rating for pair in rated]
    return {
        "words_per_s": Spread.of(words / answer["seconds"] for answer in answers),
        "words_per_cpu_s": Spread.of(words / answer["cpu"] for answer in answers),
        "spearman": Spread.of(spearman(answer["cosines"], ratings) for answer in answers),
    }


def show(rows: dict[str, Any], ratios: dict[str, Spread], settings: dict[str, Any], repeats: int, pairs: str) -> None:
    """One table."""
    what = ", ".join(f"{key} {value}" for key, value in settings.items())
    title = f"skip-gram, {what}, {EPOCHS} epochs, {rig.threads()} threads; {repeats} repeats, median (least–most)"
    table = Table("", "words/s", "words per CPU second", f"Spearman, WordSim-353, {pairs}", title=title)
    for side, row in rows.items():
        speeds = (row[key].text() for key in ("words_per_s", "words_per_cpu_s"))
        table.add_row(side, *speeds, row["spearman"].text(".3f"))
    if ratios:
        table.add_row("ratio", ratios["ratio"].text(".2f"), "", "")
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
