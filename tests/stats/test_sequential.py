"""Looks that are planned keep the error; looks that are not do not."""

import math

import numpy as np
import pytest

import heatbath as hb
from heatbath.stats.sequential import doubling_looks, plan_looks
from samples import check_rate_at_most, normals, standardized

PLAN = (5, 10, 20, 40)


def test_the_shares_add_up():
    looks = plan_looks(PLAN)
    assert [look.seeds for look in looks] == list(PLAN)
    np.testing.assert_allclose(sum(look.share for look in looks), 1.0)
    np.testing.assert_allclose(looks[0].share, (5 / 40) ** 1.5)
    np.testing.assert_allclose(looks[0].share + looks[1].share, (10 / 40) ** 1.5)


def test_plans_that_double():
    assert doubling_looks(40) == PLAN
    assert doubling_looks(12) == (6, 12)
    assert doubling_looks(9) == (9,)
    assert doubling_looks(30) == (8, 15, 30)


def verdicts(shift, margin, trials, paired):
    """The verdicts after up to four looks; pairs share half of their variance."""
    sd = math.sqrt(0.5) if paired else 1.0
    common = normals(1, trials, 40, sd=sd) if paired else 0.0
    a, b = common + normals(2, trials, 40, mean=shift, sd=sd), common + normals(3, trials, 40, sd=sd)
    return [hb.compare(x, y, margin=margin, looks=PLAN, paired=paired) for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("paired", [False, True], ids=["welch", "pairs"])
def test_equal_means_are_rarely_told_apart(paired):
    trials = 1500
    wrong = sum(one.verdict != "undecided" for one in verdicts(0.0, None, trials, paired))
    check_rate_at_most(wrong, trials, 0.05)
    assert wrong > 0.02 * trials


@pytest.mark.parametrize("paired", [False, True], ids=["welch", "pairs"])
def test_means_at_the_margin_are_rarely_called_equal(paired):
    trials = 1500
    found = [one.verdict for one in verdicts(0.6, 0.6, trials, paired)]
    wrong = found.count("equal") + found.count("worse")
    check_rate_at_most(wrong, trials, 0.05)
    assert wrong > 0.02 * trials


def test_looks_without_a_plan_are_often_wrong():
    """What the plan is for: the same looks, each at 5 %, find a difference where there is none in more than 10 %."""
    trials = 600
    a, b = normals(2, trials, 40), normals(3, trials, 40)
    wrong = sum(any(hb.compare(x[:n], y[:n]).verdict != "undecided" for n in PLAN) for x, y in zip(a, b, strict=True))
    assert wrong > 0.10 * trials


def test_a_large_difference_is_decided_early():
    trials = 200
    found = verdicts(1.5, None, trials, False)
    assert all(one.verdict == "better" for one in found)
    assert np.mean([one.look.seeds for one in found]) < 17.0


def test_looks_stay_what_they_were_when_seeds_are_added():
    a, b = dict(enumerate(normals(5, 60, mean=1.2))), dict(enumerate(normals(6, 60)))
    decided = None
    for n in (3, 5, 7, 12, 20, 33, 40, 60):
        found = hb.compare({s: a[s] for s in range(n)}, {s: b[s] for s in range(n)}, looks=PLAN)
        if decided is None and found.verdict != "undecided":
            decided = found
        if decided is not None:
            assert (found.verdict, found.difference, found.look) == (decided.verdict, decided.difference, decided.look)
    assert decided is not None
    assert f"; look {decided.look.number} of 4, at {decided.look.seeds} of at most 40 seeds." in found.sentence
    assert f"Decided at this look; {60 - decided.look.seeds} later seeds are not used." in found.sentence


def test_diverged_runs_count_as_the_worst_that_a_look_has_seen():
    a, b = normals(5, 20, mean=1.0), normals(6, 20)
    a[2], b[15] = np.nan, -50.0
    early, late = (hb.compare(a[:n], b[:n], looks=(10, 20), diverged="worst") for n in (10, 20))
    assert early.a.values[2] == min(np.nanmin(a[:10]), b[:10].min())
    assert late.look.number == 2
    assert late.a.values[2] == -50.0
    assert late.sentence.count("diverged and count as") == 1


@pytest.mark.parametrize(
    ("n", "words"),
    [
        (3, "The first look is planned at 5 seeds, and there are 3."),
        (12, "look 2 of 4, at 10 of at most 40 seeds. 2 more seeds wait for the look at 20."),
        (50, "look 4 of 4, at 40 of at most 40 seeds. 10 seeds beyond the plan are not used."),
    ],
)
def test_what_the_looks_say(n, words):
    found = hb.compare(normals(7, n), normals(8, n), looks=PLAN)
    assert found.verdict == "undecided"
    assert words in found.sentence


def test_the_interval_of_a_look_decides():
    """Its level is one less the look's share of the error."""
    for shift in np.linspace(0.2, 1.4, 25):
        found = hb.compare(standardized(10) + shift, standardized(10), looks=(10, 20))
        np.testing.assert_allclose(found.interval.level, 1.0 - 0.05 * 0.5**1.5)
        assert (found.verdict == "better") == (found.interval.low > 0.0)
