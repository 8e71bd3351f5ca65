"""Plots of the saved results: `python benchmarks/plots.py` reads `results/*.json`, writes `docs/*.png`.

    speed.png     training and translation compared with the peers
    scale.png     cost against length, size, batch and beam
    curves.png    the loss of regard and of the textbook, from the same initial weights
    generate.png  GPT-2 generation compared with the peers
    lengths.png   BLEU by length of the sentence, from `regard compare … --by length --out benchmarks/results/lengths-NAME.json`
    learning.png  how the translator that ships with regard learned, from its log

regard is in colour, peers are grey; whiskers show the range of all repeats.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from regard.run_folder import RunFolder
from regard.shipped import shipped_models
from regard.view.compare import Bucket, Comparison
from regard.view.compare import draw as draw_comparison

HERE = Path(__file__).parent
OURS, INK = "regard", "#333333"
ACCENT, GREY, PALE = "#0072b2", "#9a9a9a", "#c4c4c4"  # distinct from grey for colour-blind readers
SHADES, MARKERS = ("#003f63", "#0072b2", "#4da3d4", "#8cc8ea"), ("o", "s", "^", "D")
WIDTH, DPI = 10, 120  # inches; a page shows them at about 1,000 pixels
STYLE = {
    "font.size": 10, "axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": INK, "axes.labelcolor": INK,
    "axes.axisbelow": True, "text.color": INK, "xtick.color": INK, "ytick.color": INK, "legend.frameon": False,
    "figure.constrained_layout.h_pad": 0.08, "figure.constrained_layout.w_pad": 0.08,
}  # fmt: skip
NAMES = {"transformers": "Hugging Face"}
ALLOCATORS = {"box": "as they come", "same": "same allocator"}


class Bar(NamedTuple):
    """One line of a bar chart; without a spread, a heading."""

    name: str
    spread: dict[str, float] | None = None
    note: str = ""
    mark: float | None = None  # a second value of the same thing


def colour(name: str) -> str:
    return ACCENT if name == OURS else GREY


def search(beam: int) -> str:
    return "greedy" if beam == 1 else f"beam {beam}"


def times(ratio: dict[str, float] | None, name: str) -> str:
    """How a peer compares, in words for its bar."""
    return f"   regard × {ratio['median']:.2f}" if ratio and name != OURS else ""


def draw_bars(axes: Axes, bars: list[Bar], form: str, beside: int = 0) -> None:
    """Bars from top to bottom, each with its value, as thick as those of the neighbouring panel, which has `beside` bars."""
    thick = 0.74 * len(bars) / max(len(bars), beside)
    for row, bar in enumerate(bars):
        if bar.spread is None:
            continue
        middle, least, most = (bar.spread[key] for key in ("median", "least", "most"))
        axes.barh(row, middle, height=thick, color=colour(bar.name))
        axes.errorbar(middle, row, xerr=[[middle - least], [most - middle]], color=INK, capsize=2.5, linewidth=1)
        end = max(most, bar.mark or 0)
        if bar.mark is not None:
            axes.plot(bar.mark, row, marker="|", markersize=10, markeredgewidth=2, color=INK)
        second = "" if bar.mark is None else f" | {bar.mark:{form}}"
        axes.annotate(f"{middle:{form}}{second}{bar.note}", (end, row), xytext=(6, 0), textcoords="offset points", va="center",
                      fontsize=9, color=colour(bar.name) if bar.name == OURS else INK,
                      weight="bold" if bar.name == OURS else "normal")  # fmt: skip
    axes.set_yticks(range(len(bars)), [bar.name for bar in bars])
    for label, bar in zip(axes.get_yticklabels(), bars, strict=True):
        label.set_fontweight("bold" if bar.spread is None or bar.name == OURS else "normal")
        label.set_color(ACCENT if bar.name == OURS else INK)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.6 * max(max(bar.spread["most"], bar.mark or 0) for bar in bars if bar.spread))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")


def caption(figure: Figure, results: Iterable[dict[str, Any]], text: str) -> None:
    """Below the panels: on which machine, and how to read them."""
    machines = {f"{r['machine']['processor']}, {r['machine']['cores']} cores" for r in results if r}
    figure.supxlabel(f"{'; '.join(sorted(machines))}.  {text}", fontsize=9, color=INK)


# ---- speed.png


def speed(found: dict[str, Any]) -> Figure | None:
    """Training and translation, each beside its peers."""
    runs = found.get("training", {}).get("runs", [])
    questions = [q for q in found.get("translation", {}).get("questions", []) if q["sides"]]
    sizes = list(dict.fromkeys(run["size"] for run in runs))
    heights = [0.34 * max(len(run["peers"]) for run in runs if run["size"] == size) + 0.7 for size in sizes]
    heights += [0.34 * max(map(len, translation_bars(questions))) + 0.7] if questions else []
    if not heights:
        return None
    figure = plt.figure(figsize=(WIDTH, sum(heights) + 0.4), layout="constrained")
    rows = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    for size, row in zip(sizes, rows, strict=False):
        draw_training(row, [run for run in runs if run["size"] == size])
    if questions:
        draw_translation(rows[-1], questions)
    results = [found.get(name) for name in ("training", "translation")]
    text = "Bars: median; whiskers: least and most; regard × 1.5: it is 1.5 times as fast (median of the repeats' ratios)."
    caption(figure, results, text)
    return figure


def draw_training(row: Any, runs: list[dict[str, Any]]) -> None:
    """One size, one panel for each allocator, the peers in the same order in both."""
    order = sorted(runs[0]["peers"], key=lambda name: -runs[0]["peers"][name]["tokens_per_s"]["median"])
    for axes, run in zip(row.subplots(1, len(runs), squeeze=False)[0], runs, strict=True):
        peers = {name: run["peers"][name] for name in (*order, *run["peers"]) if name in run["peers"]}
        bars = [Bar(name, peer["tokens_per_s"], times(peer["regard_is_faster"], name)) for name, peer in peers.items()]
        draw_bars(axes, bars, ",.0f")
        axes.set_title(f"Training {run['size']}, {ALLOCATORS[run['allocator']]}")
        axes.set_xlabel("target tokens/s, higher is better")


def translation_bars(questions: list[dict[str, Any]]) -> tuple[list[Bar], list[Bar]]:
    """Sentences per second in batches; milliseconds per single sentence."""
    together, alone = [], []
    for question in questions:
        bars = alone if question["alone"] else together
        bars.append(Bar(f"{search(question['beam'])}, {question['precision']}"))
        for side, cells in sorted(question["sides"].items(), key=lambda item: item[0] != OURS):
            key = "p50 ms" if question["alone"] else "sentences/s"
            mark = cells["p95 ms"]["median"] if question["alone"] else None
            bars.append(Bar(NAMES.get(side, side), cells[key], times(cells.get("regard is faster by"), side), mark))
    return together, alone


def draw_translation(row: Any, questions: list[dict[str, Any]]) -> None:
    """Throughput on the left, latency on the right."""
    panels = [bars for bars in translation_bars(questions) if bars]
    for axes, bars in zip(row.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        alone = any(bar.mark for bar in bars)
        draw_bars(axes, bars, ",.1f" if alone else ",.0f", max(map(len, panels)))
        axes.set_title("Translation, one sentence at a time" if alone else "Translation, all sentences at once")
        axes.set_xlabel("ms a sentence, p50 and | p95, lower is better" if alone else "sentences/s, higher is better")


# ---- scale.png


def scale(found: dict[str, Any]) -> Figure | None:
    """Four panels; parts that have not been measured are omitted."""
    measured, decoding = found.get("scale", {}), found.get("translation", {}).get("scale")
    panels: list[tuple[Callable[[Axes, Any], None], Any]] = []
    if "attention" in measured:
        panels += [(draw_time, measured["attention"]), (draw_memory, measured["attention"])]
    if "training" in measured:
        panels.append((draw_sizes, measured["training"]))
    if decoding:
        panels.append((draw_decoding, decoding))
    if not panels:
        return None
    lines = -(-len(panels) // 2)
    figure = plt.figure(figsize=(WIDTH, 3.7 * lines + 0.5), layout="constrained")
    for i, (draw, what) in enumerate(panels, 1):
        draw(figure.add_subplot(lines, 2, i), what)
    text = "All axes are logarithmic."
    if "processes" in measured:
        ratio, count = measured["processes"]["ratio"], measured["processes"]["processes"]
        text += (
            f"\n{count} training processes under torchrun are {ratio['median']:.2f} "
            f"({ratio['least']:.2f}–{ratio['most']:.2f}) times as fast as one that makes the same steps with all cores."
        )
    caption(figure, [measured, found.get("translation") if decoding else None], text)
    return figure


def draw_line(axes: Axes, x: list[float], y: list[Any], label: str, **how: Any) -> None:
    """Points joined by a line, with whiskers where they are spreads."""
    middles = [value["median"] if isinstance(value, dict) else value for value in y]
    axes.plot(x, middles, label=label, markersize=5, **how)
    for position, value in zip(x, y, strict=True):
        if isinstance(value, dict):
            axes.plot([position, position], [value["least"], value["most"]], color=INK, linewidth=1, zorder=3)


def draw_fit(axes: Axes, x: list[float], y: list[float], power: float | None) -> None:
    """The straight line of an exponent through the points it was fitted to."""
    if power is None or not x:
        return
    height = statistics.mean(math.log(b) - power * math.log(a) for a, b in zip(x, y, strict=True))
    ends = [0.8 * min(x), 1.25 * max(x)]
    axes.plot(ends, [math.exp(height) * a**power for a in ends], color=INK, linewidth=0.8, linestyle=":", zorder=1)


def draw_growth(axes: Axes, found: dict[str, Any], key: str, what: str, unit: float) -> None:
    """Both paths of attention against length."""
    for path, shade, marker in (("explicit", GREY, "s"), ("fused", ACCENT, "o")):
        rows = [row for row in found["rows"] if row["path"] == path]
        y = [{k: unit * v for k, v in row[key].items()} if isinstance(row[key], dict) else unit * row[key] for row in rows]
        power = found["exponents"][path][what]
        label = path if power is None else f"{path}: grows as length$^{{{power:.2f}}}$"
        draw_line(axes, [row["length"] for row in rows], y, label, color=shade, marker=marker, linewidth=2)
        long = [(row["length"], value["median"] if isinstance(value, dict) else value)
                for row, value in zip(rows, y, strict=True) if row["length"] >= found["fitted from"]]  # fmt: skip
        draw_fit(axes, [a for a, _ in long], [b for _, b in long], power)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({row["length"] for row in found["rows"]})
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
    axes.set_xlabel(f"tokens; dotted: fitted from {found['fitted from']:,}")
    plain(axes)
    axes.legend(loc="upper left")


def draw_time(axes: Axes, found: dict[str, Any]) -> None:
    draw_growth(axes, found, "seconds", "time", 1e3)
    axes.set_title("Attention in training: time, lower is better")
    axes.set_ylabel("ms, forward and backward")


def draw_memory(axes: Axes, found: dict[str, Any]) -> None:
    draw_growth(axes, found, "bytes", "memory", 1e-6)
    axes.set_title("Attention in training: memory, lower is better")
    axes.set_ylabel("peak, MB")


def draw_sizes(axes: Axes, found: dict[str, Any]) -> None:
    """Seconds a step against parameters."""
    rows, power = found["rows"], found["exponent"]
    x, y = [row["inner"] / 1e6 for row in rows], [row["seconds"] for row in rows]
    label = f"batch of {found['batch']['tokens']:,} target tokens"
    label += "" if power is None else f":\ngrows as parameters$^{{{power:.2f}}}$"
    draw_line(axes, x, y, label, color=ACCENT, marker="o", linewidth=2)
    draw_fit(axes, x, [value["median"] for value in y], power)
    for position, row in zip(x, rows, strict=True):
        text = f"{row['size']}\n{row['tokens_per_s']['median']:,.0f} tokens/s"
        axes.annotate(text, (position, row["seconds"]["median"]), xytext=(8, -7), textcoords="offset points", va="top",
                      fontsize=9)  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(0.7 * min(x), 3.2 * max(x))
    axes.set_ylim(0.5 * min(value["least"] for value in y), 1.8 * max(value["most"] for value in y))
    axes.xaxis.set_major_formatter(lambda number, _: f"{number:g}")
    axes.set_xlabel("million parameters without embeddings")
    axes.set_ylabel("seconds a step")
    axes.set_title("Training against size, lower is better")
    plain(axes, between=True)
    axes.legend(loc="upper left")


def draw_decoding(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """Sentences a second against batch, one line for each beam."""
    batches = sorted({row["batch"] for row in rows})
    beams = sorted({row["beam"] for row in rows})
    for i, beam in enumerate(beams):
        mine = sorted((row["batch"], row["sentences/s"]) for row in rows if row["beam"] == beam)
        label = search(beam)
        how = {"color": SHADES[i % len(SHADES)], "marker": MARKERS[i % len(MARKERS)]}
        draw_line(axes, [a for a, _ in mine], [b for _, b in mine], label, linewidth=2, **how)
        axes.annotate(label, mine[-1], xytext=(9, 0), textcoords="offset points", va="center")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(batches, [f"{n:,}" for n in batches])
    axes.set_xlim(0.8 * batches[0], 4.5 * batches[-1])
    axes.set_xlabel("sentences in a batch")
    axes.set_ylabel("sentences/s")
    axes.set_title("Translation by batch and beam, higher is better")
    plain(axes, between=True)


def plain(axes: Axes, between: bool = False) -> None:
    """Plain numbers instead of powers of ten, with 2 and 5 `between` them, and a light grid."""
    if between:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda number, _: f"{number:,.10g}")
    axes.minorticks_off()
    axes.grid(color="#e6e6e6", linewidth=0.8)


# ---- curves.png


def curves(found: dict[str, Any]) -> Figure | None:
    """Two pairs of curves, and below each pair their difference."""
    result = found.get("curves", {})
    pairs = {name: lines for name, lines in result.items() if name.startswith("dropout")}
    if not pairs:
        return None
    figure, axes = plt.subplots(
        2, len(pairs), figsize=(WIDTH, 5.6), height_ratios=[3, 1.2], sharex=True, sharey="row", squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for column, (name, lines) in enumerate(pairs.items()):
        above, below = axes[:, column]
        steps = range(1, len(lines[OURS]) + 1)
        for peer in [peer for peer in lines if peer != OURS]:
            difference = [max(abs(a - b), 1e-9) for a, b in zip(lines[OURS], lines[peer], strict=True)]
            above.plot(steps, lines[peer], color=PALE, linewidth=5, label=f"{peer}, drawn wide")
            below.plot(steps, difference, color=INK, linewidth=1)
        above.plot(steps, lines[OURS], color=ACCENT, linewidth=1.5, label=OURS)
        above.set_title(f"Training loss, {name}, lower is better")
        above.legend(loc="upper right")
        below.set_yscale("log")
        below.set_xlabel("step")
        for panel in (above, below):
            panel.grid(color="#e6e6e6", linewidth=0.8)
    axes[0, 0].set_ylabel("nats a token")
    axes[1, 0].set_ylabel("difference,\nnats a token")
    text = f"Model {result['size']}: the same initial weights, the same batches; with dropout each samples its own masks."
    caption(figure, [result], text)
    return figure


# ---- generate.png


def generate(found: dict[str, Any]) -> Figure | None:
    """Tokens per second of one text, by precision."""
    result = found.get("generate", {})
    sides, bars = result.get("sides", []), []
    for precision in dict.fromkeys(side["precision"] for side in sides):
        bars.append(Bar(precision))
        for side in (side for side in sides if side["precision"] == precision):
            faster = side["faster than transformers by"]
            note = f"   × {faster['median']:.2f}" if faster and side["side"] not in NAMES else ""
            bars.append(Bar(NAMES.get(side["side"], side["side"]), side["tokens/s"], note))
    if not bars:
        return None
    figure, axes = plt.subplots(figsize=(WIDTH, 0.34 * len(bars) + 1.4), layout="constrained")
    draw_bars(axes, bars, ",.1f")
    axes.set_title(f"GPT-2 {result['settings']['size']} generates one text, greedy")
    axes.set_xlabel("tokens/s, higher is better")
    text = "Bars: median; whiskers: least and most; × 1.5: 1.5 times as fast as Hugging Face (median of the ratios)."
    caption(figure, [result], text)
    return figure


def lengths(found: dict[str, Any]) -> Figure | None:
    """BLEU by length of the source sentence, a panel for each data set."""
    saved = [result for name, result in found.items() if name.startswith("lengths-")]
    if not saved:
        return None
    figure, rows = plt.subplots(len(saved), figsize=(WIDTH, 3.4 * len(saved)), layout="constrained", squeeze=False)
    for axes, result in zip(rows[:, 0], saved, strict=True):
        whole, buckets = Bucket(**result["whole"]), [Bucket(**bucket) for bucket in result["buckets"]]
        draw_comparison(axes, Comparison(**{**result, "whole": whole, "buckets": buckets}))
    return figure


def learning(found: dict[str, Any]) -> Figure | None:
    """Training and validation loss of the shipped translator, and its learning rate."""
    log = shipped_models().get("en-it")
    if log is None:
        return None
    lines = [json.loads(line) for line in RunFolder(log).log.read_text(encoding="utf-8").splitlines()]
    figure, (above, below) = plt.subplots(2, figsize=(WIDTH, 4.6), height_ratios=[3, 1.2], sharex=True, layout="constrained")
    for key, label, how in (("loss", "training, with dropout", {"color": PALE}),
                            ("valid_loss", "validation", {"color": ACCENT, "marker": "o"})):  # fmt: skip
        points = [(line["step"], line[key]) for line in lines if key in line]
        above.plot(*zip(*points, strict=True), label=label, **how)
    below.plot(*zip(*((line["step"], line["lr"]) for line in lines if "lr" in line), strict=True), color=INK, linewidth=1)
    above.set_title("en-it: nats per token, lower is better")
    above.set_yscale("log")
    above.set_yticks(ticks := [1, 1.5, 2, 3, 5, 8], [f"{tick:g}" for tick in ticks], minor=False)
    above.minorticks_off()
    above.legend(loc="upper right")
    above.set_ylabel("nats a token")
    below.set_ylabel("learning rate")
    below.set_xlabel("step")
    for panel in (above, below):
        panel.grid(color="#e6e6e6", linewidth=0.8)
    return figure


def read(folder: Path) -> dict[str, Any]:
    """The results saved so far."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def main() -> None:
    """Draw all saved results."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--results", type=Path, default=HERE / "results", help="a folder with JSON")
    options.add_argument("--out", type=Path, default=HERE.parent / "docs", help="a folder for the plots")
    asked = options.parse_args()
    found = read(asked.results)
    plt.rcParams.update(STYLE)
    for draw in (speed, scale, curves, generate, lengths, learning):
        figure = draw(found)
        if figure is None:
            print(f"nothing to draw for {draw.__name__}.png yet")
            continue
        file = asked.out / f"{draw.__name__}.png"
        figure.savefig(file, dpi=DPI, pil_kwargs={"optimize": True})
        print(f"saved {file.name}")


if __name__ == "__main__":
    main()
