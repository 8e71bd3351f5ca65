"""Colours of weights: from 0 to 100 %, and relative to uniform attention on one scale for all panels.

A panel that is stretched to its own least and most makes every model look as if it had found something.  So a weight over an
image or a sound is drawn as a multiple of uniform attention, on a fixed logarithmic scale whose middle is neutral.

Shapes: Y X rows and columns of the places attended to.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

__all__ = ["LESS_TO_MORE", "NO_PREFERENCE", "STOPS", "TIMES", "add_ratio_bar", "colour", "has_preference", "ink", "levels",
           "palette", "preference_note", "ratio_colour", "ratios"]  # fmt: skip

Floats = npt.NDArray[np.float64]
RGB = tuple[int, int, int]

# Dark to light in even steps of lightness, so that the order is seen in grey and with any colour vision.
STOPS: tuple[RGB, ...] = ((13, 8, 40), (110, 30, 110), (220, 80, 60), (252, 180, 60), (250, 250, 190))
# Blue to orange, which people with red-green colour blindness tell apart; uniform attention is nearly white.
LESS_TO_MORE: tuple[RGB, ...] = ((22, 58, 112), (96, 148, 202), (242, 242, 240), (242, 148, 62), (150, 48, 0))
TIMES = 8  # the scale goes from 1/8 to 8 times uniform attention
NO_PREFERENCE = 1.5  # a panel has no preference if all places have between 1/1.5 and 1.5 times uniform attention


def colour(weight: float, stops: tuple[RGB, ...] = STOPS) -> RGB:
    """A weight from 0 to 1 → red, green, blue."""
    position = min(max(weight, 0.0), 1.0) * (len(stops) - 1)
    low = min(int(position), len(stops) - 2)
    red, green, blue = (round(a + (b - a) * (position - low)) for a, b in zip(stops[low], stops[low + 1], strict=True))
    return red, green, blue


def ink(paper: RGB) -> RGB:
    """Black or white, whichever is easier to read on a colour."""
    red, green, blue = paper
    return (0, 0, 0) if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else (255, 255, 255)


def palette(stops: tuple[RGB, ...] = STOPS) -> "LinearSegmentedColormap":
    """The colours of `colour`, for matplotlib."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("regard", [tuple(c / 255 for c in stop) for stop in stops])


def ratios(weights: npt.ArrayLike, uniform: npt.ArrayLike | None = None) -> Floats:
    """Weights of places as multiples of uniform attention over these places: 1 everywhere if the model attends evenly.

    `uniform` is what each place gets of uniform attention, if that is not the same for all.
    """
    shares = np.asarray(weights, np.float64)
    even = shares.size if uniform is None else np.sum(uniform) / np.maximum(uniform, 1e-12)
    return shares * even / max(float(shares.sum()), 1e-12)


def levels(ratio: npt.ArrayLike, times: float = TIMES) -> Floats:
    """Where multiples of uniform attention are on the scale: their base-2 logarithm, from -log₂ `times` to log₂ `times`."""
    return np.log2(np.clip(ratio, 1 / times, times))


def ratio_colour(ratio: float, times: float = TIMES) -> RGB:
    """The colour of a multiple of uniform attention."""
    return colour(float(levels(ratio, times) / np.log2(times) + 1) / 2, LESS_TO_MORE)


def has_preference(weights: npt.ArrayLike, uniform: npt.ArrayLike | None = None) -> bool:
    """Whether some place has much more or much less than uniform attention, by a factor of `NO_PREFERENCE`."""
    ratio = ratios(weights, uniform)
    return bool(ratio.max() >= NO_PREFERENCE or ratio.min() <= 1 / NO_PREFERENCE)


def preference_note(weights: npt.ArrayLike, uniform: npt.ArrayLike | None = None) -> str:
    """A few words below the title of a panel."""
    if not has_preference(weights, uniform):
        return "no preference"
    ratio = ratios(weights, uniform)
    most, least = float(ratio.max()), float(ratio.min())
    if most >= NO_PREFERENCE:
        return f"up to {most:.{1 if most < 9.95 else 0}f}× uniform"
    return f"down to 1/{1 / least:.{1 if least > 1 / 9.95 else 0}f}× uniform" if least > 0.01 else "down to 0× uniform"


def add_ratio_bar(figure: "Figure", drawn: "AxesImage", bar: "Axes", times: float = TIMES) -> None:
    """The legend of the scale, in axes of its own."""
    powers = range(-round(np.log2(times)), round(np.log2(times)) + 1)
    names = [f"1/{2**-power}" if power < 0 else f"{2**power}" for power in powers]
    names[0], names[-1] = f"≤ {names[0]}", f"≥ {names[-1]}"
    legend = figure.colorbar(drawn, cax=bar, ticks=list(powers))
    legend.set_ticklabels(names)
    legend.outline.set_visible(False)
    bar.set_facecolor("#b4b4b4")  # as the grey below translucent colours
    bar.set_title("× uniform", fontsize=8, color="#666666", loc="left", pad=9)
    bar.tick_params(labelsize=8, length=2)
