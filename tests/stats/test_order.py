"""Curves of a given shape against exhaustive and quadratic-programme oracles, and intervals that cover."""

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, stats

from heatbath.stats import wording
from heatbath.stats.order import OrderClaim, explained_by_chance, explained_by_order, rank_correlation
from heatbath.stats.verdicts import judge

TEMPERATURES = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
RISING = ((0.1, 0.3), (0.4, 0.5, 0.3), (0.5, 0.9), (0.8, 0.7), (1.1, 0.9, 1.0), (1.4, 1.0))


def cone_error(y, w, signs):
    """The least weighted squared error of ``f`` with ``signs_k (f_{k+1} - f_k) >= 0``.

    Every such ``f`` is a constant plus steps of the right sign: least squares with non-negative steps.
    """
    steps = np.tril(np.ones((len(y), len(y))))[:, 1:] * signs
    columns = np.hstack([np.ones((len(y), 1)), steps]) * np.sqrt(w)[:, None]
    least = np.append(-np.inf, np.zeros(len(y) - 1))
    return 2.0 * optimize.lsq_linear(columns, np.sqrt(w) * y, (least, np.inf), method="bvls", tol=1e-14).cost


def oracle(x, y, w):
    """R^2 with one value for each distinct x, every place of the turn tried in either direction."""
    levels, place = np.unique(x, return_inverse=True)
    weight = np.bincount(place, w)
    pooled = np.bincount(place, w * y) / weight
    scatter = np.sum(w * (y - pooled[place]) ** 2)
    count = len(levels) - 1
    errors = [
        cone_error(pooled, weight, way * np.where(np.arange(count) < turn, 1.0, -1.0))
        for way in (1, -1)
        for turn in range(count + 1)
    ]
    return 1.0 - (scatter + min(errors)) / np.sum(w * (y - np.average(y, weights=w)) ** 2)


def explained(x, means, sizes=None):
    """The plain R^2 of means, as of groups whose seeds all have them: with one seed in one of them, no bootstrap."""
    sizes = [1] * len(means) if sizes is None else sizes
    found = explained_by_order(x, [[mean] * int(size) for mean, size in zip(means, sizes, strict=True)])
    assert (found.low, found.high) == (-math.inf, math.inf)
    return found.estimate


def test_explained_is_the_least_error_of_its_shape():
    rng = np.random.default_rng(3)
    for trial in range(120):
        count = 3 + trial % 9
        x = rng.integers(0, 6, count).astype(float) if trial % 2 else rng.normal(size=count)
        y, w = rng.normal(size=count) + 0.5 * x, rng.integers(1, 6, count).astype(float)
        w[trial % count] = 1.0
        ours = explained(x, y, w)
        np.testing.assert_allclose(ours, oracle(x, y, w), atol=1e-9)
        assert -1e-12 < ours < 1.0 + 1e-12


def test_explained_by_trying_all_block_partitions():
    """A fit is constant on blocks, with their means: the best of all partitions whose means turn at most once."""
    rng = np.random.default_rng(8)
    for _ in range(20):
        y = rng.normal(size=7)
        errors = []
        for cuts in itertools.product((False, True), repeat=6):
            edges = [0, *(k + 1 for k, cut in enumerate(cuts) if cut), 7]
            blocks = [slice(*pair) for pair in itertools.pairwise(edges)]
            means = [np.mean(y[block]) for block in blocks]
            rises = np.diff(means) > 0.0
            if np.count_nonzero(rises[1:] != rises[:-1]) <= 1:
                errors.append(sum(np.sum((y[b] - m) ** 2) for b, m in zip(blocks, means, strict=True)))
        total = np.sum((y - np.mean(y)) ** 2)
        np.testing.assert_allclose(explained(range(7), y), 1.0 - min(errors) / total, atol=1e-12)


def test_explained_by_hand():
    """Of means 1, 3, 2, 4, 0 the violators 3 and 2 pool to 2.5 and leave 0.5 of 10."""
    np.testing.assert_allclose(explained((1, 2, 3, 4, 5), (1, 3, 2, 4, 0)), 0.95)
    np.testing.assert_allclose(explained((1, 2, 3, 4), (1, 3, 3, 2)), 1.0)
    np.testing.assert_allclose(explained((1, 2, 2, 3), (1, 3, 2, 4)), 0.9)  # a tie is one value, 2.5


def test_invariances():
    rng = np.random.default_rng(4)
    x, y, w = rng.uniform(1.0, 2.0, 9), rng.normal(size=9), np.array([1, 4, 2, 3, 1, 2, 2, 3, 4])
    plain, order = explained(x, y, w), rng.permutation(9)
    assert plain < 0.99
    np.testing.assert_allclose(explained(x[order], y[order], w[order]), plain)
    np.testing.assert_allclose(explained(np.exp(x), 3.0 * y - 7.0, w), plain)
    np.testing.assert_allclose(explained(-x, y, w), plain)
    np.testing.assert_allclose(explained(x, -y, w), plain)


def test_a_weight_is_a_repeated_group():
    x, y = (3.0, 1.0, 2.0, 4.0, 5.0), (0.5, 0.2, 0.7, 0.1, 0.3)
    twice = explained((*x, 2.0), (*y, 0.7))
    np.testing.assert_allclose(explained(x, y, (1, 1, 2, 1, 1)), twice)


def scattered(rng, means, seeds, sd):
    return [rng.normal(mean, sd, seeds) for mean in means]


def test_the_interval_covers_what_the_true_means_have():
    """At least as often as it says, to a few points; the plain value alone is mostly too small."""
    rng, trials, covered, small, errors = np.random.default_rng(6), 200, 0, 0, []
    for trial in range(trials):
        means = np.linspace(0.0, 2.0, 12) + rng.normal(0.0, 0.35, 12)
        groups = scattered(rng, means, 8, 0.6)
        truth = explained(range(12), means)
        plain = explained(range(12), [group.mean() for group in groups])
        found = explained_by_order(range(12), groups, level=0.9, resamples=150, seed=trial)
        covered += found.contains(truth)
        small += plain < truth
        errors.append((found.estimate - truth, plain - truth))
    assert covered / trials > 0.88 - 3.0 * math.sqrt(0.09 / trials)
    assert small / trials > 0.6
    corrected, plain = np.mean(errors, axis=0)
    assert abs(corrected) < 0.5 * abs(plain)


def test_perfect_order_is_not_certainty():
    """Means in order by much less than their noise leave everything open."""
    groups = [(mean - 1.0, mean, mean + 1.0) for mean in 0.05 * np.arange(9)]
    found = explained_by_order(range(9), groups)
    assert explained(range(9), range(9)) == 1.0
    assert found.estimate == 1.0
    assert found.low < 0.5


def test_an_interval_is_a_pure_function_of_the_seed():
    one, again, other = (explained_by_order(TEMPERATURES, RISING, resamples=200, seed=seed) for seed in (2, 2, 3))
    assert one == again != other
    assert 0.5 < one.low < one.estimate <= one.high <= 1.0


def test_more_seeds_make_shorter_intervals():
    rng = np.random.default_rng(9)
    means = (0.0, 0.5, 0.3, 0.8, 0.6, 1.0)
    widths = []
    for seeds in (5, 2000):
        found = explained_by_order(TEMPERATURES, scattered(rng, means, seeds, 0.3), resamples=300)
        widths.append(found.high - found.low)
    assert widths[1] < 0.2 * widths[0]
    np.testing.assert_allclose(found.estimate, explained(TEMPERATURES, means), atol=0.03)


def knob_groups(rng, of_knob, seeds=8):
    """Twelve groups at rising temperatures, with a knob of four values that matters as well."""
    knob = np.arange(12) % 4
    means = np.linspace(0.0, 1.0, 12) + of_knob * knob + rng.normal(0.0, 0.1, 12)
    return knob, means, scattered(rng, means, seeds, 0.25)


def test_claims_on_orders():
    rng = np.random.default_rng(5)
    outcomes = []
    for of_knob in (0.0, 0.9):
        knob, _, groups = knob_groups(rng, of_knob)
        claims = [
            OrderClaim("T rather than knob", range(12), knob, groups),
            OrderClaim("T", range(12), None, groups, 0.6),
        ]
        outcomes += [verdict.outcome for verdict in judge(claims)]
    assert outcomes == ["confirmed", "confirmed", "contradicted", "contradicted"]


def test_an_open_claim_on_orders():
    knob, means, groups = knob_groups(np.random.default_rng(5), 0.33, seeds=3)
    (verdict,) = judge([OrderClaim("T rather than knob", range(12), knob, groups, margin=0.1)])
    assert verdict.outcome == "undecided"
    assert verdict.interval.contains(explained(range(12), means) - explained(knob, means))
    assert verdict.seeds.about > 3
    assert wording.detail(verdict).startswith(
        f"leads in explaining by {verdict.interval} of the variance between 12 groups;"
    )
    assert "explains 0." in wording.detail(judge([OrderClaim("T", range(12), None, groups)])[0])
    (silent,) = judge([OrderClaim("c", (1, 2), None, [[0.1], [0.2, 0.3]])])
    assert wording.outcome(silent) == "undecided"
    assert (
        wording.detail(silent)
        == "orders can be judged by two or more finite values in each group, of means that differ."
    )


def test_claims_on_orders_are_rarely_settled_wrongly():
    """The margin is the true difference, so that either verdict is wrong half the time: each at most 10 %."""
    rng, trials, confirmed, contradicted = np.random.default_rng(12), 200, 0, 0
    for trial in range(trials):
        knob, means, groups = knob_groups(rng, 0.3)
        truth = explained(range(12), means) - explained(knob, means)
        claim = OrderClaim("c", range(12), knob, groups, margin=truth, resamples=150, seed=trial)
        outcome = judge([claim], level=0.9)[0].outcome
        confirmed += outcome == "confirmed"
        contradicted += outcome == "contradicted"
    most = trials * 0.1 + 3.0 * math.sqrt(trials * 0.09)
    assert confirmed + contradicted > 0
    assert confirmed < most
    assert contradicted < most


def test_noise_does_not_contradict_an_order():
    """Means on one curve, and seeds as far apart as they: R^2 is low without being so in truth."""
    rng = np.random.default_rng(11)
    x, truth = np.repeat(np.arange(6.0), 2), np.repeat([0.0, 2.0, 3.0, 3.5, 3.7, 3.8], 2)
    assert explained(x, truth) == 1.0
    for trial in range(40):
        groups = truth[:, None] + 2.0 * rng.standard_normal((12, 2))
        (verdict,) = judge([OrderClaim("x decides", x, None, groups, 0.9, resamples=200, seed=trial)])
        assert verdict.outcome == "undecided"


@pytest.mark.parametrize(("noise", "outcome"), [(0.1, "contradicted"), (2.0, "undecided")])
def test_disorder_is_told_where_the_noise_is_small(noise, outcome):
    x, n = np.arange(8.0), 20
    deviations = np.linspace(-1.0, 1.0, n) / np.std(np.linspace(-1.0, 1.0, n), ddof=1)
    means = np.array([0.0, 1.0] * 4)
    groups = means[:, None] + noise * deviations
    (verdict,) = judge([OrderClaim("x decides", x, None, groups, 0.95, resamples=400)])
    assert verdict.outcome == outcome
    if outcome == "undecided":
        needed = n * (noise**2 / n) / np.var(means, ddof=1) / 0.1  # for a tenth of the variance to be noise
        assert verdict.seeds.about == math.ceil(needed)


def test_chance_grows_with_the_freedom_of_the_curve():
    """What a meaningless x explains is the mean over all its orders; more distinct values explain more."""
    values = np.random.default_rng(15).normal(size=6)
    groups = [[value] for value in values]
    exact = np.array([oracle(np.arange(6.0), np.array(row), np.ones(6)) for row in itertools.permutations(values)])
    found = explained_by_chance(range(6), groups, shuffles=1500)
    assert abs(found - exact.mean()) < 4.0 * exact.std() / math.sqrt(1500)
    assert explained_by_chance([k % 3 for k in range(6)], groups, shuffles=300) < found - 0.1


def test_rank_correlation_is_spearmans():
    """With one seed it is the plain one; with many it loses its bias and gains an interval."""
    rng = np.random.default_rng(2)
    for _ in range(10):
        x, y = rng.integers(0, 5, 8), rng.integers(0, 5, 8)
        found = rank_correlation(x, [[value] for value in y])
        np.testing.assert_allclose(found.estimate, stats.spearmanr(x, y).statistic)
        assert (found.low, found.high) == (-math.inf, math.inf)
    found = rank_correlation(TEMPERATURES, RISING, level=0.9, resamples=300)
    assert 0.2 < found.low < found.estimate <= found.high <= 1.0
    falling = rank_correlation([-x for x in TEMPERATURES], RISING, level=0.9, resamples=300)
    np.testing.assert_allclose(-falling.estimate, found.estimate, atol=1e-12)


@pytest.mark.parametrize(
    "groups",
    [((0.1, 0.2), (0.3, math.nan), (0.1, 0.4)), ((0.1, 0.2), (), (0.1, 0.4)), ((0.25, 0.25),) * 3],
    ids=["nan", "empty", "equal"],
)
def test_too_little_is_unbounded(groups):
    for found in (explained_by_order((1, 2, 3), groups), rank_correlation((1, 2, 3), groups)):
        assert str(found) == "nan (95 %: unbounded)"


def test_one_seed_has_no_interval():
    found = explained_by_order((1, 2, 3, 4, 5), [[1.0], [3.0, 3.4], [2.0], [4.0], [0.0]])
    expected = oracle(np.arange(5.0), np.array([1.0, 3.2, 2.0, 4.0, 0.0]), np.array([1.0, 2.0, 1.0, 1.0, 1.0]))
    np.testing.assert_allclose(found.estimate, expected)
    assert (found.low, found.high) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": (1, 2)}, r"x must hold one finite number for each of 3 groups, got \[1, 2\]"),
        ({"x": (1, 2, math.nan)}, "x must hold one finite number for each of 3 groups"),
        ({"level": 2.0}, "level must be a number with 0 < level < 1, got 2.0"),
    ],
)
def test_errors(change, message):
    with pytest.raises(ValueError, match=message):
        explained_by_order(**{"x": (1, 2, 3), "groups": ((1.0, 2.0), (2.0, 2.5), (3.0, 4.0)), **change})
