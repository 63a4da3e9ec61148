"""Curves of groups: the mean and its t interval at each epoch, without the runs that diverged."""

import numpy as np
import pytest
from scipy import stats

import heatbath as hb
from heatbath.report.curves import curves_panel
from heatbath.runs.records import Record
from measured import an_epoch


def record(losses, seed, status="finished"):
    return Record(
        hb.RunConfig(epochs=3, seed=seed), status, tuple(an_epoch(0.1, loss, 0.7, 0.6, 0.8) for loss in losses)
    )


def test_means_and_intervals():
    losses = np.array([[3.0, 2.0, 1.5], [2.5, 2.2, 1.0], [3.5, 1.9, 1.1]])
    runs = [record(row, seed) for seed, row in enumerate(losses.tolist())]
    panel = curves_panel({"all": [*runs, record([9.0], 3, "diverged")], "one": runs[:1]}, "train_loss")
    series, alone = panel.series
    np.testing.assert_allclose(series.y, losses.mean(0))
    reach = stats.t.ppf(0.975, 2) * losses.std(0, ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(np.array(series.high) - series.y, reach)
    np.testing.assert_allclose(np.array(series.y) - series.low, reach)
    assert (alone.y, alone.low, alone.high) == ((3.0, 2.0, 1.5), (None,) * 3, (None,) * 3)
    assert (series.x, series.colour, alone.colour) == ((1, 2, 3), 0, 1)
    assert "all: 3 runs; one: 1 runs" in panel.note
    assert "1 diverged" in panel.note


def test_an_unknown_metric_is_told():
    with pytest.raises(ValueError, match="no run has a metric 'f1'"):
        curves_panel({"all": [record([1.0], 0)]}, "f1")
