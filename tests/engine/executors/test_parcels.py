"""What a worker elsewhere sends back, and how much of it at a time."""

import pytest

from fake_engine import CONFIGS, alone
from heatbath.engine.executors import parcels
from heatbath.engine.executors.parcels import pack, train_parcel
from heatbath.engine.jobs import Ended, Job
from heatbath.engine.options import Options


@pytest.mark.parametrize(
    ("seconds", "checkpoint_seconds", "sizes"),
    [(1000.0, 1000.0, [5]), (0.0, 1000.0, [1] * 5), (1000.0, 0.0, [1, 1, 1, 2])],
    ids=["together", "one by one", "with each state"],
)
def test_epochs_of_a_short_time_are_sent_together(engine, monkeypatch, seconds, checkpoint_seconds, sizes):
    """The last of them with the end; a state is sent at once."""
    monkeypatch.setattr(parcels, "LETTER", seconds)
    job = Job("0123456789abcdef.1", CONFIGS[:1], (None,))
    expected = alone(CONFIGS[:1])[CONFIGS[0].run]
    letters = list(train_parcel(pack(job, Options(device="cpu", checkpoint_seconds=checkpoint_seconds))))
    *measured, end = [outcome for letter in letters for outcome, _ in letter]
    assert [len(letter) for letter in letters] == sizes
    assert [one.epochs[0][0].metrics for one in measured] == [epoch.metrics for epoch in expected]
    assert end == Ended()
