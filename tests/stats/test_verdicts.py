"""Verdicts that err no more often than they promise, and say what they rest on."""

import math

import numpy as np
import pytest
from scipy import stats

from heatbath.stats import wording
from heatbath.stats.intervals import Interval
from heatbath.stats.t_tests import seeds_needed
from heatbath.stats.verdicts import Claim, Evidence, Factor, SeedsNeeded, Verdict, judge
from samples import LEFT, RIGHT, check_rate_at_most, normals, standardized


@pytest.mark.parametrize(
    ("kind", "margin", "shift", "outcome"),
    [
        ("equal", 0.5, 0.0, "confirmed"),
        ("equal", 0.5, 2.0, "contradicted"),
        ("equal", 0.5, -2.0, "contradicted"),
        ("equal", 0.5, 0.5, "undecided"),
        ("greater", 0.0, 1.0, "confirmed"),
        ("greater", 0.0, -1.0, "contradicted"),
        ("greater", 0.8, 0.2, "contradicted"),
        ("greater", -0.8, -0.1, "confirmed"),
        ("greater", 0.3, 0.3, "undecided"),
        ("less", 0.3, -1.0, "confirmed"),
        ("less", 0.3, 0.0, "contradicted"),
        ("less", 0.0, 1.0, "contradicted"),
    ],
)
def test_outcomes(kind, margin, shift, outcome):
    a, b = 0.5 * standardized(30) + shift, 0.7 * standardized(25)
    (verdict,) = judge([Claim("so it is", kind, a, b, margin)])
    assert verdict.outcome == outcome
    assert verdict.claim == "so it is"
    assert verdict.margin == margin
    np.testing.assert_allclose(verdict.interval.estimate, shift, atol=1e-12)
    assert (verdict.p_value <= 0.05) == (outcome != "undecided")


def test_the_ends_of_the_interval_decide():
    """In a family of three the interval of a "greater" or of a confirmed "equal" has the level 1 - 2 * 0.05 / 3."""
    bystander = Claim("other", "greater", LEFT, RIGHT)
    outcomes = []
    for k in range(60):
        a, b = normals(k, 8, mean=0.07 * k - 2.0), normals(999, 8)
        greater, equal, _ = judge([Claim("g", "greater", a, b, 0.4), Claim("e", "equal", a, b, 1.4), bystander])
        np.testing.assert_allclose(greater.interval.level, 1.0 - 0.1 / 3.0)
        assert (greater.outcome == "confirmed") == (greater.interval.low > 0.4)
        assert (greater.outcome == "contradicted") == (greater.interval.high < 0.4)
        assert (equal.outcome == "confirmed") == (max(-equal.interval.low, equal.interval.high) < 1.4)
        outcomes += [greater.outcome, equal.outcome]
    assert set(outcomes) == {"confirmed", "contradicted", "undecided"}


def one_sided(a, alternative):
    return stats.ttest_ind(a, RIGHT, equal_var=False, alternative=alternative).pvalue


def test_equality_by_hand():
    """Means 10 and 10.5, variances 4 and 9, n = 16 and 36: s^2 = 0.25 + 0.25, df = 0.25 / (0.0625/15 + 0.0625/35).

    So s = 0.7071, df = 42, and for the margin 2 the two tests have t = 2.5/0.7071 = 3.536 and 1.5/0.7071 = 2.121.
    """
    (verdict,) = judge([Claim("e", "equal", 10.0 + 2.0 * standardized(16), 10.5 + 3.0 * standardized(36), 2.0)])
    np.testing.assert_allclose(verdict.p_value, 0.01993, atol=2e-5)
    reach = 1.68195 * math.sqrt(0.5)  # the 95 % quantile for df = 42, from tables
    interval = verdict.interval
    np.testing.assert_allclose((interval.low, interval.high), (-0.5 - reach, -0.5 + reach), atol=1e-5)
    np.testing.assert_allclose(interval.level, 0.9)


def test_single_claims_and_families():
    claims = [Claim("g", "greater", LEFT, RIGHT, 0.005), Claim("e", "equal", LEFT, RIGHT, 0.02)]
    greater, equal = (judge([claim])[0] for claim in claims)
    np.testing.assert_allclose(greater.p_value, one_sided(np.subtract(LEFT, 0.005), "greater"))
    sides = one_sided(np.add(LEFT, 0.02), "greater"), one_sided(np.subtract(LEFT, 0.02), "less")
    np.testing.assert_allclose(equal.p_value, max(sides))
    np.testing.assert_allclose([v.p_value for v in judge(claims)], [2 * greater.p_value, 2 * equal.p_value])
    mirrored = judge([Claim("l", "less", RIGHT, LEFT, 0.005)])[0]
    np.testing.assert_allclose(mirrored.p_value, greater.p_value)
    assert judge([]) == ()


def test_contradicting_equality_counts_both_sides():
    """Next to no margin it is Welch's two-sided test."""
    (verdict,) = judge([Claim("e", "equal", LEFT, RIGHT, 1e-12)])
    np.testing.assert_allclose(verdict.p_value, stats.ttest_ind(LEFT, RIGHT, equal_var=False).pvalue, rtol=1e-6)


@pytest.mark.parametrize("margin", [0.05, 0.4, 1.0, 3.0])
def test_a_true_equality_is_rarely_contradicted(margin):
    """At its very edge, with few seeds: at most 5 %, for margins small and large against the noise."""
    trials = 1500
    a, b = normals(21, trials, 4, mean=margin, sd=1.0), normals(22, trials, 4, sd=1.0)
    claims = [Claim("e", "equal", *pair, margin) for pair in zip(a, b, strict=True)]
    wrong = sum(judge([claim])[0].outcome == "contradicted" for claim in claims)
    check_rate_at_most(wrong, trials, 0.05)
    assert wrong > trials * 0.02  # not by never deciding


# For each claim its kind, by how much mean(a) exceeds mean(b), and whether it counts as true, for the margin 0.5. At
# their margin claims are the limit of true ones as well as of false ones, and the easiest to settle wrongly.
FAMILIES = {
    "all at the edge": [("greater", 0.5, True), ("greater", 0.5, False), ("less", -0.5, True), ("less", -0.5, False)],
    "half of them clear": [("greater", 0.5, False), ("greater", 5.0, True), ("less", 5.0, False), ("less", -0.5, True)],
    "equalities": [("equal", 0.5, True), ("equal", 0.5, False), ("equal", -0.5, True), ("equal", 6.0, False)],
    "off the edge": [("greater", 0.8, True), ("less", -0.2, False), ("equal", 0.0, True), ("equal", 0.9, False)],
}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
@pytest.mark.parametrize("shared", [False, True], ids=["independent", "shared control"])
def test_a_family_is_rarely_settled_wrongly(family, shared):
    trials, n, level = 500, 6, 0.8
    rng = np.random.default_rng(31)
    wrong = 0
    for _ in range(trials):
        control = rng.normal(0.0, 0.7, size=n)
        claims = [
            Claim("c", kind, rng.normal(shift, 1.0, size=n), control if shared else rng.normal(0.0, 0.7, size=n), 0.5)
            for kind, shift, _ in family
        ]
        falsehoods = ["contradicted" if true else "confirmed" for _, _, true in family]
        wrong += any(v.outcome == false for v, false in zip(judge(claims, level), falsehoods, strict=True))
    check_rate_at_most(wrong, trials, 1.0 - level)
    assert wrong > 0


@pytest.mark.parametrize(
    ("kind", "margin", "shift"),
    [
        ("greater", 0.0, 0.9),
        ("greater", 1.0, 0.2),
        ("less", 0.2, -1.1),
        ("equal", 1.0, 0.2),
        ("equal", 0.3, 1.4),
        ("equal", 1.5, -2.2),
    ],
)
def test_the_promised_seeds_settle_a_claim(kind, margin, shift):
    """Of a claim whose pilot shows the truth, ``seeds_needed`` settles 90 %."""
    pilot = Claim("c", kind, standardized(3) + shift, standardized(3), margin)
    first, _ = judge([pilot, pilot])
    assert first.outcome == "undecided"
    n, trials = first.seeds.about, 600
    a, b = normals(41, trials, n, mean=shift), normals(42, trials, n)
    claims = [Claim("c", kind, *pair, margin) for pair in zip(a, b, strict=True)]
    settled = sum(judge([claim], level=0.975)[0].outcome != "undecided" for claim in claims)
    error = math.sqrt(0.09 / trials)
    assert -4.0 * error < settled / trials - 0.9 < 0.03 + 4.0 * error


@pytest.mark.parametrize("kind", ["equal", "greater", "less"])
@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ([], RIGHT, "nothing to compare yet: n = 0 against n = 6."),
        ([], [], "nothing to compare yet: n = 0 against n = 0."),
        ([0.7, math.nan, math.inf], RIGHT, "no number in 2 of 9 values: runs diverged, are missing or too short."),
        ([0.7, None], RIGHT, "no number in 1 of 8 values: runs diverged, are missing or too short."),
        ([0.7], [0.6], "one seed says nothing about the spread"),
        ([0.7], [0.6, 0.6], "one seed says nothing about the spread"),
        ([0.7] * 4, [0.6] * 4, "without a spread between seeds there is no test"),
        ([0.3] * 2, [0.1 + 0.2, 0.3], "without a spread between seeds there is no test"),
    ],
    ids=["no a", "nothing", "diverged", "missing", "one each", "one a", "constant", "rounding"],
)
def test_too_little_is_undecided(kind, a, b, reason):
    if len(a) == len(b):
        assert reason in wording.detail(judge([Claim("c", kind, a, b, 0.01, paired=True)])[0])
    (verdict,) = judge([Claim("c", kind, a, b, 0.01)])
    assert verdict.outcome == wording.outcome(verdict) == "undecided"
    assert reason in wording.detail(verdict)
    assert verdict.p_value in (None, 1.0)
    assert verdict.seeds is None


def test_one_seed_is_lent_the_spread_of_the_others():
    (verdict,) = judge([Claim("c", "greater", [0.72], RIGHT, 0.0)])
    assert verdict.outcome == "undecided"
    sd = np.std(RIGHT, ddof=1)
    assert verdict.seeds.about == seeds_needed(sd, sd, 0.72 - np.mean(RIGHT), level=0.9) > 10
    assert (
        wording.outcome(verdict)
        == f"undecided: needs about {verdict.seeds.about} seeds ({verdict.seeds.low} to {verdict.seeds.high})"
    )


@pytest.mark.parametrize("correlation", [0.0, 0.9, 0.999])
def test_pairs_are_judged_by_their_differences(correlation):
    common = normals(61, 9)
    a, b = (correlation * common + math.sqrt(1 - correlation**2) * normals(seed, 9) for seed in (62, 63))
    a += 0.1 - np.mean(a - b)
    margin = 0.4
    claim = Claim("c", "equal", a, b, margin, paired=True)
    evidence = claim.weigh(0.05)
    sides = [stats.ttest_rel(a, b + margin, alternative="less"), stats.ttest_rel(a, b - margin, alternative="greater")]
    np.testing.assert_allclose(evidence.p_if_false, max(side.pvalue for side in sides))
    expected = stats.ttest_rel(a, b).confidence_interval(0.9)
    np.testing.assert_allclose([evidence.interval.low, evidence.interval.high], expected)
    sd = float(np.std(a - b, ddof=1))
    assert claim.seeds_needed(0.05, 0.9) == max(10, seeds_needed(sd, 0.0, np.mean(a - b), level=0.95, margin=margin))
    assert wording.evidence(evidence).startswith(f"{a.mean():.5g} against {b.mean():.5g} (n = 9 pairs), difference ")
    ratio = Claim("c", "equal", np.exp(a), np.exp(b), Factor(math.exp(margin)), paired=True).weigh(0.05)
    np.testing.assert_allclose((ratio.p_if_false, ratio.p_if_true), (evidence.p_if_false, evidence.p_if_true))
    assert f"{math.exp(a.mean()):.4g} against {math.exp(b.mean()):.4g} (n = 9 pairs), ratio " in wording.evidence(ratio)


def test_nobody_can_say_at_the_margin():
    (verdict,) = judge([Claim("c", "greater", standardized(9) + 1.0, standardized(9), 1.0 - 1e-9)])
    assert wording.outcome(verdict) == "undecided"


def test_verdict_in_words():
    for seeds, words in ((38, "about 38"), (834, "about 840"), (1000, "about 1000"), (1001, "over 1000")):
        open_ = Verdict("c", "undecided", Evidence(), 0.1, seeds=SeedsNeeded(seeds, seeds, seeds))
        assert wording.outcome(open_) == f"undecided: needs {words} seeds"
    assert wording.outcome(Verdict("c", "confirmed", Evidence(), 0.1)) == "confirmed"
    (verdict, _) = judge([Claim("c", "greater", LEFT, RIGHT, 0.005)] * 2)
    assert wording.detail(verdict) == (
        "0.7312 (n = 5) against 0.71517 (n = 6), difference 0.0160 (95 %: 0.0093 to 0.0228); "
        f"margin 0.005, p = {verdict.p_value:.2g} among 2 claims."
    )


def test_any_claim_that_weighs_itself_is_judged():
    class Given:
        statement, margin = "given", 0.25

        def weigh(self, error):
            assert round(error, 12) == 0.05
            return Evidence(0.5, 0.01, Interval(0.1, 0.0, 0.2, 1.0 - 2.0 * error), means=(1.3, 1.2), sizes=(4, 5))

        def seeds_needed(self, error, power, spread=1.0):
            pytest.fail("of a settled claim nobody asks")

    class Silent(Given):
        def weigh(self, error):
            return Evidence(obstacle="broken", sizes=(4, 5), broken=2)

        def seeds_needed(self, error, power, spread=1.0):
            assert (round(error, 12), power) == (0.05, 0.8)
            return round(7 * spread**2)

    given, silent = judge([Given(), Silent()], level=0.9, power=0.8)
    assert (given.outcome, given.p_value, given.seeds) == ("contradicted", 0.02, None)
    numbers = "1.3 (n = 4) against 1.2 (n = 5), difference 0.10 (90 %: 0.00 to 0.20)"
    assert wording.detail(given) == f"{numbers}; margin 0.25, p = 0.02 among 2 claims."
    assert wording.detail(silent) == "no number in 2 of 9 values: runs diverged, are missing or too short."
    assert (silent.outcome, silent.p_value) == ("undecided", None)
    freedom = 4 + 5 - 2
    low, high = (7 * freedom / stats.chi2.ppf(tail, freedom) for tail in (0.9, 0.1))
    assert silent.seeds == (7, round(low), round(high))


def test_claims_added_after_looking_say_so():
    verdicts = [judge([Claim("c", "greater", LEFT, RIGHT)], planned=planned)[0] for planned in (True, False)]
    assert [verdict.planned for verdict in verdicts] == [True, False]
    assert wording.detail(verdicts[1]) == f"{wording.detail(verdicts[0])[:-1]} added after looking."


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Claim("c", "same", LEFT, RIGHT), "unknown kind of claim 'same': choose one of equal, greater, less"),
        (lambda: Claim("c", "equal", LEFT, RIGHT), "margin must be a positive finite number, got 0.0"),
        (lambda: Claim("c", "greater", LEFT, RIGHT, math.nan), "margin must be a finite number, got nan"),
        (lambda: Claim("c", "equal", LEFT, RIGHT, Factor(1.0)), "a factor must be a finite number above 1, got 1.0"),
        (
            lambda: Claim("c", "greater", LEFT, RIGHT, Factor(-2.0)),
            "a factor must be a finite number above 0, got -2.0",
        ),
        (lambda: Claim("c", "equal", LEFT, RIGHT, 0.1, paired=True), "pairs need a value of each group, got 5 and 6"),
        (lambda: judge([], level=0.5), "level must be a number with 0.5 < level < 1, got 0.5"),
        (lambda: judge([], power=0.0), "power must be a number with 0 < power < 1, got 0.0"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
