"""A figure as data: what is drawn, apart from how. `plots` makes pictures of it, `page` an interactive page."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from heatbath.stats.verdicts import Verdict


@dataclass(frozen=True)
class Series:
    """One labelled set of points, with an interval around each where there is one.

    Series of the same colour in all panels of a figure belong together and are shown and hidden together.
    """

    name: str  # what the legend says
    x: tuple[float, ...] | tuple[str, ...]  # positions, or names of categories
    y: tuple[float | None, ...]  # values, one for each x; None leaves a gap
    low: tuple[float | None, ...] | None = None  # lower ends of their intervals
    high: tuple[float | None, ...] | None = None
    style: Literal["line", "points"] = "line"
    colour: int = 0  # its place in the palette

    def __post_init__(self) -> None:
        if not len(self.x) == len(self.y) == len(self.low or self.y) == len(self.high or self.y):
            raise ValueError(f"series {self.name!r} has x, y, low and high of different lengths")


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_log: bool = False
    y_log: bool = False
    note: str = ""


@dataclass(frozen=True)
class FigureData:
    """All of one figure: what was asked, what was seen and what follows."""

    name: str  # "figure1" to "figure6", or the name of an extension
    title: str  # a short one
    question: str  # what the figure is to show, in one or two sentences
    panels: tuple[Panel, ...]  # from left to right
    verdicts: tuple[Verdict, ...] = ()  # one for each claim
    errata: tuple[str, ...] = ()  # what the paper got wrong here, a sentence each
    settings: Mapping[str, str] = field(default_factory=dict)  # of the runs, in words: model, data, rate and so on
    missing: tuple[str, ...] = ()  # what was asked for and is not there (yet), a sentence each
    at_paper_scale: Mapping[str, str] = field(default_factory=dict)  # outcomes by claim, for a page of another scale
    unlike_the_paper: str = ""  # why they may differ, in words


@dataclass(frozen=True)
class Opening:
    """What a page says before its figures."""

    title: str  # of the page
    asked: str  # what was asked, in a sentence or two
    source: tuple[str, str] = ("", "")  # what the question comes from, a text and an address, if there is one
    conclusion: tuple[str, ...] = ()  # the answer, a few sentences
    key: tuple[tuple[str, int], ...] = ()  # panels to show first, by the name of their figure and their number in it
    warning: str = ""  # what the page cannot show, if that has to be said


def to_csv(figure: FigureData) -> str:
    """Return the numbers of a figure as CSV, a row for each point: panel, series, x, y, low, high."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("panel", "series", "x", "y", "low", "high"))
    for panel in figure.panels:
        for series in panel.series:
            empty: tuple[Any, ...] = (None,) * len(series.x)
            for point in zip(series.x, series.y, series.low or empty, series.high or empty, strict=True):
                rows.writerow((panel.title, series.name, *("" if value is None else value for value in point)))
    return text.getvalue()
