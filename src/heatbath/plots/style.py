"""What all pictures share: colours and the look of axes."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by readers with any colour vision.
BLUE, ORANGE, GREEN, PURPLE, SKY, RED = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"
GREY = "#666666"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, "#333333", "#882255", "#999933", "#5B3FA0")  # of a figure's series


def new_axis(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """Return the axis that was given, or that of a new figure of this size in inches."""
    return ax if ax is not None else Figure(figsize=size, layout="constrained").subplots()


def tidy(ax: Axes) -> Axes:
    """Take away the frame's upper and right sides."""
    ax.spines[["top", "right"]].set_visible(False)
    return ax
