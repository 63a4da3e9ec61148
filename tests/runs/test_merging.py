"""Two records of one run: which one a merge keeps, and when it says that they disagree."""

import pytest

from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Record
from heatbath.runs.store import judge
from measured import an_epoch

CONFIG = RunConfig(epochs=3)


def record(status, losses):
    return Record(CONFIG, status, tuple(an_epoch(0.1, loss, 0.5, loss, 0.5) for loss in losses))


SAME, OTHER = (0.9, 0.8, 0.7), (0.9, 0.6, 0.5)


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        (("finished", SAME), ("finished", SAME), "known"),
        (("finished", SAME), ("finished", OTHER), "differing"),
        (("pending", SAME[:2]), ("finished", SAME), "improved"),
        (("pending", SAME[:2]), ("finished", OTHER), "differing"),
        (("running", SAME[:2]), ("finished", SAME), "busy"),
        (("running", SAME[:2]), ("pending", OTHER[:2]), "differing"),
        (("finished", SAME), ("pending", SAME[:2]), "known"),
        (("pending", SAME[:2]), ("pending", SAME[:1]), "known"),
        (("pending", ()), ("pending", ()), "known"),
        (("pending", ()), ("diverged", ()), "improved"),
        (("diverged", SAME[:1]), ("finished", SAME), "differing"),
        (("diverged", SAME[:1]), ("pending", SAME[:2]), "differing"),
        (("diverged", SAME[:1]), ("pending", SAME[:1]), "known"),
        (("diverged", SAME[:2]), ("diverged", OTHER[:2]), "differing"),
        (("diverged", SAME[:2]), ("diverged", SAME[:1]), "differing"),
        (("diverged", SAME[:2]), ("diverged", SAME[:2]), "known"),
        (("pending", SAME[:2]), ("diverged", SAME[:2]), "improved"),
        (("pending", SAME[:2]), ("diverged", SAME[:1]), "differing"),
    ],
)
def test_what_a_merge_does(ours, theirs, verdict):
    assert judge(record(*ours), record(*theirs)) == verdict


def test_what_is_not_here_is_added():
    assert judge(None, record("pending", ())) == "added"
