import math
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from synthetic_records import make_record, make_records

from heatbath.paper.claims import LOSS_MARGIN, PAIRED_FROM, Every, Not, above, all_equal, greater, near
from heatbath.paper.groups import FigureRuns, perceptron, protocol_groups
from heatbath.paper.quantities import FINAL_TEST, TAIL_LOSS
from heatbath.stats import wording
from heatbath.stats.verdicts import Claim, Factor, judge

RANDOM = np.random.default_rng(5)
A, B, FAR = (RANDOM.normal(mean, 0.01, 8) for mean in (0.90, 0.90, 0.95))


def equal(a, b, margin=0.03):
    return Claim("equal", "equal", a, b, margin)


def test_near_is_the_one_sample_test():
    evidence = near("x", A, 0.895, 0.02).weigh(0.05)
    higher = stats.ttest_1samp(A, 0.895 - 0.02, alternative="greater").pvalue
    below = stats.ttest_1samp(A, 0.895 + 0.02, alternative="less").pvalue
    assert evidence.p_if_false == pytest.approx(max(higher, below), rel=1e-9)
    interval = stats.ttest_1samp(A, 0.895).confidence_interval(0.9)
    assert (evidence.interval.low, evidence.interval.high) == pytest.approx(
        (interval.low - 0.895, interval.high - 0.895)
    )
    assert "(n = 8) against 0.895," in wording.evidence(evidence)


def test_near_without_values_decides_nothing():
    assert judge([near("x", [], 1.0, 0.1)])[0].outcome == "undecided"


def test_above_is_the_one_sided_one_sample_test():
    evidence = above("x", A, 0.895).weigh(0.05)
    assert evidence.p_if_false == pytest.approx(stats.ttest_1samp(A, 0.895, alternative="greater").pvalue, rel=1e-9)
    assert "(n = 8) against 0.895," in wording.evidence(evidence)
    assert judge([above("x", [], 1.0)])[0].outcome == "undecided"


def test_all_equal_looks_at_every_pair():
    """Two groups on either side of a third, each within the margin of it, are not within the margin of each other."""
    groups = protocol_groups(perceptron("smoke"), 6, protocols=("constant", "random", "cyclic:6"))
    levels = dict(zip((group.label for group in groups), (0.892, 0.9, 0.908), strict=True))
    records = {}
    for group in groups:
        records |= {record.run: record for record in make_records(group.configs, accuracy=levels[group.label]).values()}
    found = FigureRuns("smoke", tuple(groups), records)
    (verdict,) = judge([all_equal(found, "alike", groups, FINAL_TEST, margin=0.01)])
    assert verdict.outcome == "contradicted"
    assert "constant against cyclic:6" in wording.detail(verdict)


LOSSES, HIGHER = (np.exp(RANDOM.normal(mean, 0.02, 8)) for mean in (-6.4, -5.95))


@pytest.mark.parametrize(
    ("factor", "outcome"), [(1.105, "contradicted"), (1.7, "confirmed"), (float(np.exp(0.45)), "undecided")]
)
def test_a_factor_is_tested_on_logarithms_and_told_as_a_ratio(factor, outcome):
    claim = Claim("same loss", "equal", HIGHER, LOSSES, Factor(factor))
    logarithms = equal(np.log(HIGHER), np.log(LOSSES), float(np.log(factor)))
    found, plain = claim.weigh(0.05), logarithms.weigh(0.05)
    assert (found.p_if_false, found.p_if_true) == pytest.approx((plain.p_if_false, plain.p_if_true), rel=1e-9)
    assert claim.seeds_needed(0.05, 0.9) == logarithms.seeds_needed(0.05, 0.9)
    ends = (found.interval.estimate, found.interval.low, found.interval.high)
    assert np.log(ends) == pytest.approx((plain.interval.estimate, plain.interval.low, plain.interval.high), rel=1e-9)
    (verdict,) = judge([claim])
    assert verdict.outcome == outcome
    first, second = (stats.gmean(values) for values in (HIGHER, LOSSES))
    start = f"{first:.4g} (n = 8) against {second:.4g} (n = 8), ratio {first / second:.3f} (90 %: "
    assert wording.detail(verdict).startswith(start)
    assert f"); margin a factor {factor:.4g}, p = " in wording.detail(verdict)
    assert verdict.margin == factor


def test_a_ratio_of_one_seed_or_of_no_number_decides_nothing():
    (one,) = judge([Claim("same loss", "equal", HIGHER[:1], LOSSES, LOSS_MARGIN)])
    assert one.outcome == "undecided"
    assert "(90 %: unbounded): one seed says nothing about the spread; margin a factor 1.105" in wording.detail(one)
    (none,) = judge([Claim("same loss", "equal", [*HIGHER, np.nan], LOSSES, LOSS_MARGIN)])
    assert wording.detail(none).startswith("no number in 1 of 17 values")
    (wild,) = judge([Claim("same loss", "equal", [1e-30, 1e30], [1e30, 1e-30], LOSS_MARGIN)], level=0.9999)
    assert (wild.outcome, wild.interval.high) == ("undecided", np.inf)


def test_losses_of_runs_are_compared_by_their_ratio():
    groups = protocol_groups(perceptron("smoke"), 6, protocols=("constant", "random"))
    levels = dict(zip((group.label for group in groups), (0.9, 0.8), strict=True))
    records = {}
    for group in groups:
        records |= make_records(group.configs, accuracy=levels[group.label])
    found = FigureRuns("smoke", tuple(groups), records)
    losses = [stats.gmean([TAIL_LOSS.of(record) for record in found.runs(group)]) for group in groups]
    (verdict,) = judge([all_equal(found, "alike", groups, TAIL_LOSS, margin=LOSS_MARGIN)])
    assert verdict.outcome == "contradicted"
    assert verdict.interval.estimate == pytest.approx(losses[0] / losses[1], rel=1e-9)
    assert f"{losses[0]:.4g} (n = 6) against {losses[1]:.4g} (n = 6), ratio 0." in wording.detail(verdict)


def test_groups_of_many_seeds_are_compared_by_seed():
    """Runs that have no partner yet are left out; a diverged one is not."""
    groups = protocol_groups(perceptron("smoke"), PAIRED_FROM, protocols=("constant", "random"))
    records = make_records(groups[0].configs) | make_records(groups[1].configs[1:])
    del records[groups[0].configs[3].run]
    found = FigureRuns("smoke", tuple(groups), records)

    def detail(asked):
        return wording.detail(judge([all_equal(found, "alike", asked, FINAL_TEST, margin=0.01)])[0])

    seeds = [seed for seed in range(PAIRED_FROM) if seed not in (0, 3)]
    expected = [[FINAL_TEST.of(records[group.configs[seed].run]) for seed in seeds] for group in groups]
    assert list(found.pairs(*((group, FINAL_TEST) for group in groups))) == expected
    assert f"(n = {len(seeds)} pairs), difference " in detail(groups)
    assert "(n = 8) against " in detail([replace(group, seeds=PAIRED_FROM - 1) for group in groups])
    records[groups[1].configs[2].run] = make_record(groups[1].configs[2], status="diverged")
    assert f"no number in 1 of {2 * len(seeds)} values" in detail(groups)


def test_of_few_seeds_the_number_needed_is_that_of_pairs_if_there_would_be_pairs():
    """Runs that rise and fall with their seed: ten pairs tell what sixty runs of each would not."""
    constant, random = protocol_groups(perceptron("smoke"), 5, protocols=("constant", "random"))
    b = [0.735, 0.734, 0.743, 0.744, 0.739]
    a = [0.7375, 0.738, 0.7458, 0.7475, 0.742]

    def claim(a, b, common=5):
        values = {random: a, constant: b}
        pairs = [values[random][:common], values[constant][:common]]
        found = SimpleNamespace(values=lambda group, _: values[group], pairs=lambda *_: pairs)
        return greater(found, "random is better", (random, constant), FINAL_TEST)

    def needed(one):
        return one.seeds_needed(0.05 / 14, 0.9)

    welch, pairs = (Claim("", "greater", a, b, paired=paired) for paired in (False, True))
    assert needed(pairs) < PAIRED_FROM < needed(welch)
    assert claim(a, b).weigh(0.05 / 14) == welch.weigh(0.05 / 14)
    assert needed(claim(a, b)) == PAIRED_FROM
    apart = [value + 0.05 for value in a]
    assert needed(claim(apart, b)) == needed(Claim("", "greater", apart, b))
    assert needed(claim(a, b, common=0)) == needed(welch)


def test_diverged_runs_leave_a_claim_open():
    groups = protocol_groups(perceptron("smoke"), 6, protocols=("constant", "random"))
    records = {}
    for group in groups:
        made = make_records(group.configs).values()
        records |= {record.run: record for record in made}
    broken = groups[1].configs[0]
    records[broken.run] = make_record(broken, status="diverged")
    found = FigureRuns("smoke", tuple(groups), records)
    (verdict,) = judge([all_equal(found, "alike", groups, FINAL_TEST, margin=0.01)])
    assert verdict.outcome == "undecided"
    assert "diverged" in wording.detail(verdict)


def test_every_is_as_strong_as_its_weakest_part():
    parts = {"one": equal(A, B), "two": equal(A, A + 0.012)}
    single = {name: part.weigh(0.05) for name, part in parts.items()}
    both = Every("both", parts).weigh(0.05)
    assert both.p_if_false == max(e.p_if_false for e in single.values()) == single["two"].p_if_false
    assert both.p_if_true == min(1.0, 2 * min(e.p_if_true for e in single.values()))
    assert both.interval == single["two"].interval
    assert "two" in str(both)


def test_one_failing_part_is_what_more_seeds_would_settle():
    """Not the part that is hardest to tell: the whole falls with the first that does."""
    parts = {"fails": equal(A, A + 0.05), "holds": equal(A, A + 0.012), "open": equal(A, A + 0.0299)}
    single = {name: part.seeds_needed(0.01, 0.9) for name, part in parts.items()}
    assert single["open"] > 100 * single["fails"]
    assert Every("all", parts).seeds_needed(0.01, 0.9) == parts["fails"].seeds_needed(0.01 / 3, 0.9)
    del parts["fails"]
    assert Every("all", parts).seeds_needed(0.01, 0.9) == single["open"]


@pytest.mark.parametrize("means", [(0.0, 0.0, 0.0, 0.0), (0.0, 0.1, 0.2, 0.3)], ids=["all hard", "one harder"])
def test_the_promised_seeds_settle_all_parts_at_once(means):
    """90 % of the time, as for one part alone, and not much more often."""

    def alike(groups):
        return Every("all", {str(k): equal(*pair, 0.8) for k, pair in enumerate(combinations(groups, 2))})

    pilot = np.array([-1.0, 1.0, -1.0, 1.0]) * math.sqrt(0.75)
    n, trials = alike([pilot + mean for mean in means]).seeds_needed(0.01, 0.9), 400
    data = np.random.default_rng(71).normal(size=(trials, len(means), n)) + np.array(means)[:, None]
    settled = sum(alike(groups).weigh(0.01).p_if_false <= 0.01 for groups in data)
    assert -4.0 * math.sqrt(0.09 / trials) < settled / trials - 0.9 < 0.09


@pytest.mark.parametrize(
    ("b", "outcome"), [((B, B), "confirmed"), ((B, FAR), "contradicted"), ((B, A[:3] + 0.03), "undecided")]
)
def test_every_part_has_to_hold(b, outcome):
    claim = Every("all alike", {str(k): equal(A, values) for k, values in enumerate(b)})
    assert judge([claim])[0].outcome == outcome
    opposite = {"confirmed": "contradicted", "contradicted": "confirmed"}.get(outcome, outcome)
    assert judge([Not(claim)])[0].outcome == opposite


def test_a_part_without_values_leaves_the_whole_open():
    verdict = judge([Every("all", {"good": equal(A, B), "empty": equal(A, [])})])[0]
    assert verdict.outcome == "undecided"
    assert wording.detail(verdict).startswith("empty: nothing to compare")
