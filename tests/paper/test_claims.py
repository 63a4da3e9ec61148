import numpy as np
import pytest
from scipy import stats

from heatbath.paper.claims import Every, Near, Not
from heatbath.statistics import Claim, judge

RANDOM = np.random.default_rng(5)
A, B, FAR = (RANDOM.normal(mean, 0.01, 8) for mean in (0.90, 0.90, 0.95))


def equal(a, b, margin=0.03):
    return Claim("equal", "equal", a, b, margin)


def test_near_is_the_one_sample_test():
    evidence = Near("x", A, 0.895, 0.02).weigh(0.05, 0.9)
    above = stats.ttest_1samp(A, 0.895 - 0.02, alternative="greater").pvalue
    below = stats.ttest_1samp(A, 0.895 + 0.02, alternative="less").pvalue
    assert evidence.p_if_false == pytest.approx(max(above, below), rel=1e-9)
    interval = stats.ttest_1samp(A, 0.895).confidence_interval(0.9)
    assert (evidence.interval.low, evidence.interval.high) == pytest.approx(
        (interval.low - 0.895, interval.high - 0.895)
    )
    assert "(n = 8) against 0.895," in evidence.numbers


def test_near_without_values_decides_nothing():
    assert judge([Near("x", [], 1.0, 0.1)])[0].outcome == "undecided"


def test_every_is_as_strong_as_its_weakest_part():
    parts = {"one": equal(A, B), "two": equal(A, A + 0.012)}
    single = {name: part.weigh(0.05, 0.9) for name, part in parts.items()}
    both = Every("both", parts).weigh(0.05, 0.9)
    assert both.p_if_false == max(e.p_if_false for e in single.values()) == single["two"].p_if_false
    assert both.p_if_true == min(1.0, 2 * min(e.p_if_true for e in single.values()))
    assert both.interval == single["two"].interval
    assert "two" in both.numbers


@pytest.mark.parametrize(
    ("b", "outcome"), [((B, B), "confirmed"), ((B, FAR), "contradicted"), ((B, A[:3] + 0.03), "undecided")]
)
def test_every_part_has_to_hold(b, outcome):
    claim = Every("all alike", {str(k): equal(A, values) for k, values in enumerate(b)})
    assert judge([claim])[0].outcome == outcome
    opposite = {"confirmed": "contradicted", "contradicted": "confirmed"}.get(outcome, outcome)
    assert judge([Not("not all alike", claim)])[0].outcome == opposite


def test_a_part_without_values_leaves_the_whole_open():
    verdict = judge([Every("all", {"good": equal(A, B), "empty": equal(A, [])})])[0]
    assert verdict.outcome == "undecided"
    assert verdict.detail.startswith("empty: nothing to compare")
