"""The best of several groups, with an error that is kept."""

import json

import numpy as np
import pytest

import heatbath as hb
from samples import check_rate_at_most, normals, standardized


def groups(*means, n=20, sd=1.0):
    return {f"g{k}": mean + sd * standardized(n) for k, mean in enumerate(means)}


def test_a_clear_winner():
    found = hb.compare(groups(0.0, 5.0, 1.0), against="best")
    assert [one.name for one in found] == ["g1", "g2", "g0"]
    assert [one.verdict for one in found] == ["best", "not the best", "not the best"]
    assert found.candidates == ("g1",)
    assert found.sentence == "g1 is the best of 3 (wrong with a chance of at most 5 %)."
    assert found[0].interval.low == 0.0 < found[0].interval.estimate < found[0].interval.high
    assert found[2].interval.high == 0.0


def test_two_groups_are_the_one_sided_test():
    """The candidates are those that the 90 % interval of the difference leaves."""
    for shift in np.linspace(-1.0, 1.0, 41):
        pair = groups(0.0, shift, n=9)
        interval = hb.compare(pair, level=0.9)[0].interval
        expected = {"g0"} if interval.low > 0.0 else {"g1"} if interval.high < 0.0 else {"g0", "g1"}
        assert set(hb.compare(pair, against="best").candidates) == expected


def test_lower_may_be_better_and_margins_relative():
    found = hb.compare(groups(1.0, 1.002, 9.0, sd=0.01), metric="loss", margin="5 %", against="best")
    assert found[0].name == "g0"
    assert [one.verdict for one in found] == ["within the margin of the best"] * 2 + ["not the best"]
    assert "Within 5 % of the best: g0, g1." in found.sentence
    assert json.dumps(found.to_dict(), allow_nan=False)
    assert "not the best" in found._repr_html_()
    assert r"\toprule" in found.to_latex()


@pytest.mark.parametrize("means", [(0.0, 0.0, 0.0, 0.0), (0.5, 0.0, 0.5, 0.2), (1.0, 0.0, 0.0, 0.0)])
def test_the_best_is_rarely_missed(means):
    """Neither that it is not the best, nor that another one is, nor that one is within a margin that it is not."""
    trials, wrong, margin = 400, 0, 0.3
    top = max(means)
    for trial in range(trials):
        drawn = {f"g{k}": normals(10 * trial + k, 8, mean=mean) for k, mean in enumerate(means)}
        standings = {one.name: one.verdict for one in hb.compare(drawn, margin=margin, level=0.8, against="best")}
        for k, mean in enumerate(means):
            verdict = standings[f"g{k}"]
            miss = (verdict == "not the best" and mean == top and means.count(top) == 1) or (
                verdict == "not the best" and mean == top and means.count(top) > 1 and k == means.index(top)
            )
            miss |= verdict == "best" and mean < top
            miss |= verdict == "within the margin of the best" and mean < top - margin
            if miss:
                wrong += 1
                break
    check_rate_at_most(wrong, trials, 0.2)


def test_what_has_no_test_leaves_all_open():
    found = hb.compare({"a": [1.0, 2.0], "b": [1.0, float("nan")], "c": [0.0, 0.5]}, against="best")
    assert set(found.candidates) == {"a", "b", "c"}
    assert "B has no number in 1 of 2 values" in str(found)
    with pytest.raises(ValueError, match="against='best' takes one metric, and no planned looks"):
        hb.compare(groups(0.0, 1.0), against="best", looks=(5, 10))
