"""What all pictures share: colours and the look of axes."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, SKY = "#0072b2", "#d97a00", "#56b4e9"
GREY = "#666666"
# Of a figure's series, and of the report's page in light. Any two differ for readers with any colour vision, by
# lightness where not by hue, and all stand out from white: blue, orange, green, plum, violet, brown and so on.
COLOURS = (
    *(BLUE, ORANGE, "#4fa38b", "#71046e", "#b677f8", "#973f10", "#333333"),
    *("#2211cc", "#cc0066", "#9922ff"),
)


def new_axis(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """Return the axis that was given, or that of a new figure of this size in inches."""
    return ax if ax is not None else Figure(figsize=size, layout="constrained").subplots()


def tidy(ax: Axes, title: str = "", *, legend: bool = False, **labels: Any) -> Axes:
    """Set the title, labels and limits that are given and a legend, and take away the frame's upper and right sides."""
    if title:
        ax.set_title(title)
    ax.set(**labels)
    if legend:
        ax.legend(frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    return ax
