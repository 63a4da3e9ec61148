"""What looks broken is told, what does not is not, and permutation tests are exact."""

import itertools

import numpy as np
import pytest
from scipy import stats

import heatbath as hb
from heatbath.stats.assumptions import check_assumptions, find_outliers, p_greater
from samples import LEFT, RIGHT, check_rate_at_most, normals


@pytest.mark.parametrize("n", [5, 12, 60])
def test_normal_groups_are_rarely_suspected(n):
    trials = 1000
    a, b = normals(1, trials, n, sd=2.0), normals(2, trials, n, mean=3.0)
    found = [check_assumptions(x, y, paired=False) for x, y in zip(a, b, strict=True)]
    check_rate_at_most(sum(any(one.outliers) for one in found), trials, 0.02)
    check_rate_at_most(sum(one.skewness != 0.0 for one in found), trials, 0.02)


def test_outliers_are_found():
    values = normals(3, 12)
    assert find_outliers(values) == ()
    values[7] = 9.0
    assert find_outliers(values) == (7,)
    assert find_outliers(np.array([0.7] * 5 + [0.9])) == (5,)
    assert find_outliers(np.full(6, 0.7)) == ()
    found = hb.compare(dict(enumerate(values)), dict(enumerate(0.1 * normals(4, 12))))
    assert "careful: the difference of a and b has an outlier (seed 7)" in found.sentence.lower()
    assert "Careful: A has an outlier (value 7), " in hb.compare(values, normals(4, 12)).sentence


def test_skewness_matters_where_it_does_not_average_out():
    """Exponential groups: alike they do no harm, nor when they are large; one spread wider than the other does."""
    rng = np.random.default_rng(5)
    a, b = rng.exponential(1.0, (30, 40)), rng.exponential(1.0, (30, 40))
    alike = sum(check_assumptions(x, y, paired=False).skewness != 0.0 for x, y in zip(a, b, strict=True))
    wide = sum(check_assumptions(4.0 * x, y, paired=False).skewness != 0.0 for x, y in zip(a, b, strict=True))
    assert alike < 12 < 16 < wide
    large = rng.exponential(4.0, 4000), rng.exponential(1.0, 4000)
    assert check_assumptions(*large, paired=False).skewness == 0.0
    skewed = next(k for k in range(30) if check_assumptions(4.0 * a[k], b[k], paired=False).skewness)
    assert "the groups are skewed unequally" in hb.compare(4.0 * a[skewed], b[skewed]).sentence


def test_few_seeds_are_told():
    assert "Careful: fewer than five seeds say little about the spread." in hb.compare(LEFT[:4], RIGHT).sentence
    assert "Careful" not in hb.compare(LEFT, RIGHT).sentence


@pytest.mark.parametrize("paired", [False, True])
def test_permutations_are_exact_for_few_values(paired):
    a, b = np.array([1.2, 0.4, 2.2, 1.9, 0.6]), np.array([0.3, 0.5, 1.1, -0.2, 0.9])
    if paired:
        signs = np.array(list(itertools.product((1, -1), repeat=5)))
        expected = np.mean(signs @ (a - b) >= (a - b).sum() - 1e-9)
    else:
        pooled = np.concatenate((a, b))
        t_values = []
        for chosen in itertools.combinations(range(10), 5):
            rest = [k for k in range(10) if k not in chosen]
            t_values.append(stats.ttest_ind(pooled[list(chosen)], pooled[rest], equal_var=False).statistic)
        expected = np.mean(np.array(t_values) >= stats.ttest_ind(a, b, equal_var=False).statistic - 1e-9)
    assert p_greater(a, b, paired=paired) == expected


@pytest.mark.parametrize("paired", [False, True])
def test_sampled_permutations_agree_with_the_t_test_of_normal_groups(paired):
    a, b = normals(8, 30, mean=0.5), normals(9, 30)
    known = stats.ttest_rel(a, b, alternative="greater") if paired else stats.ttest_ind(a, b, alternative="greater")
    found = p_greater(a, b, paired=paired)
    assert 0.005 < known.pvalue < 0.2
    np.testing.assert_allclose(found, known.pvalue, rtol=0.25)


def test_the_check_says_whether_it_agrees():
    values = 0.3 * normals(10, 12)
    values[0] = -2.5
    clear = hb.compare(values + 3.0, values[::-1].copy())
    assert clear.verdict == "better"
    assert clear.check.p <= 0.001
    assert "a permutation test agrees (p = " in clear.sentence
    even = hb.compare(values, 0.3 * normals(11, 12), margin=2.0)
    assert even.verdict == "equal"
    assert even.check.p < 0.05
    open_one = hb.compare(values, 0.3 * normals(11, 12))
    assert open_one.verdict == "undecided"
    assert open_one.check.p > 0.05
    assert "agrees" in open_one.sentence
