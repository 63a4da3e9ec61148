"""Figures as data, and as CSV."""

import csv
import io

import pytest

from heatbath.report.panels import FigureData, Panel, Series, to_csv


def test_csv_has_a_row_for_each_point():
    curve = Series("a, b", (1.0, 2.0), (0.5, None), low=(0.4, None), high=(0.6, None))
    points = Series("points", ("x", "y"), (1.0, 2.0), style="points")
    figure = FigureData("figure1", "T", "Q?", (Panel("left", "x", "y", (curve,)), Panel("right", "x", "y", (points,))))
    rows = list(csv.DictReader(io.StringIO(to_csv(figure))))
    assert len(rows) == 4
    assert rows[0] == {"panel": "left", "series": "a, b", "x": "1.0", "y": "0.5", "low": "0.4", "high": "0.6"}
    assert rows[1]["y"] == rows[1]["low"] == ""
    assert rows[3] == {"panel": "right", "series": "points", "x": "y", "y": "2.0", "low": "", "high": ""}


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="'s' has x, y, low and high of different lengths"):
        Series("s", (1.0, 2.0), (1.0,))
    with pytest.raises(ValueError, match="different lengths"):
        Series("s", (1.0, 2.0), (1.0, 2.0), low=(1.0,))
