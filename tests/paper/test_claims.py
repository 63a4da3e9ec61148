import numpy as np
import pytest
from scipy import stats
from synthetic_records import make_record, make_records

from heatbath.paper.claims import Above, Every, Near, Not, all_equal
from heatbath.paper.groups import FINAL_TEST, Found, perceptron, protocol_groups
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


def test_above_is_the_one_sided_one_sample_test():
    evidence = Above("x", A, 0.895).weigh(0.05, 0.9)
    assert evidence.p_if_false == pytest.approx(stats.ttest_1samp(A, 0.895, alternative="greater").pvalue, rel=1e-9)
    assert "(n = 8) against 0.895," in evidence.numbers
    assert judge([Above("x", [], 1.0)])[0].outcome == "undecided"


def test_all_equal_looks_at_every_pair():
    """Two groups on either side of a third, each within the margin of it, are not within the margin of each other."""
    groups = protocol_groups(perceptron("smoke"), 6, protocols=("constant", "random", "cyclic:6"))
    levels = dict(zip((group.label for group in groups), (0.892, 0.9, 0.908), strict=True))
    records = {}
    for group in groups:
        records |= {record.run: record for record in make_records(group.configs, accuracy=levels[group.label]).values()}
    found = Found("smoke", tuple(groups), records)
    (verdict,) = judge([all_equal(found, "alike", groups, FINAL_TEST, 0.01)])
    assert verdict.outcome == "contradicted"
    assert "constant against cyclic:6" in verdict.detail


def test_diverged_runs_leave_a_claim_open():
    groups = protocol_groups(perceptron("smoke"), 6, protocols=("constant", "random"))
    records = {}
    for group in groups:
        made = make_records(group.configs).values()
        records |= {record.run: record for record in made}
    broken = groups[1].configs[0]
    records[broken.run] = make_record(broken, status="diverged")
    found = Found("smoke", tuple(groups), records)
    (verdict,) = judge([all_equal(found, "alike", groups, FINAL_TEST, 0.01)])
    assert verdict.outcome == "undecided"
    assert "diverged" in verdict.detail


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
