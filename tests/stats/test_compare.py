"""Comparisons of anybody's numbers: the same tests as SciPy's, errors that are kept, and words for what is wrong."""

import json
import math
import subprocess
import sys

import numpy as np
import pandas
import pytest
from scipy import stats

import heatbath as hb
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Epoch, Record
from measured import an_epoch
from samples import LEFT, RIGHT, check_rate_at_most, normals, standardized

BASE = normals(70, 12, mean=0.974, sd=0.004)
A = dict(enumerate((BASE + normals(71, 12, sd=0.0012)).tolist()))
B = dict(enumerate((BASE + 0.002 + normals(72, 12, sd=0.0012)).tolist()))


def test_pairs_are_students_test():
    found, known = hb.compare(A, B), stats.ttest_rel(list(A.values()), list(B.values()))
    assert found.paired
    np.testing.assert_allclose(found.p, known.pvalue, rtol=1e-9)
    np.testing.assert_allclose((found.interval.low, found.interval.high), known.confidence_interval(0.95), rtol=1e-9)
    np.testing.assert_allclose(found.difference, np.mean(list(A.values())) - np.mean(list(B.values())))


def test_groups_without_seeds_are_welchs_test():
    found, known = hb.compare(LEFT, RIGHT, level=0.99), stats.ttest_ind(LEFT, RIGHT, equal_var=False)
    assert not found.paired
    np.testing.assert_allclose(found.p, known.pvalue, rtol=1e-9)
    np.testing.assert_allclose((found.interval.low, found.interval.high), known.confidence_interval(0.99), rtol=1e-9)


def test_equality_is_two_one_sided_tests():
    a, b = normals(1, 30), normals(2, 25, mean=0.1)
    found = hb.compare(a, b, margin=0.9)
    sides = (
        stats.ttest_ind(a + 0.9, b, equal_var=False, alternative="greater").pvalue,
        stats.ttest_ind(a - 0.9, b, equal_var=False, alternative="less").pvalue,
    )
    assert found.verdict == "equal"
    np.testing.assert_allclose(found.p, max(sides), rtol=1e-9)


@pytest.mark.parametrize(
    ("shift", "margin", "verdict", "beyond"),
    [
        (1.0, None, "better", False),
        (-1.0, None, "worse", False),
        (0.05, None, "undecided", False),
        (1.0, 0.2, "better", True),
        (1.0, 0.9, "better", False),
        (0.05, 0.9, "equal", False),
        (0.5, 2.0, "equal", False),
        (0.1, 0.12, "undecided", False),
    ],
)
@pytest.mark.parametrize("lower", [False, True], ids=["higher", "lower"])
def test_verdicts(shift, margin, verdict, beyond, lower):
    turned = {"better": "worse", "worse": "better"}
    found = hb.compare(standardized(40) + shift, standardized(40), margin=margin, lower_is_better=lower)
    assert found.verdict == (turned.get(verdict, verdict) if lower else verdict)
    assert found.is_beyond == beyond
    undecided = verdict == "undecided" or (margin is not None and verdict == "better" and not beyond)
    assert (found.seeds_needed is not None) == undecided


def test_losses_are_better_when_they_are_lower():
    assert hb.compare(RIGHT, LEFT, metric="val_loss").verdict == "better"
    assert hb.compare(RIGHT, LEFT, metric="Test Error").verdict == "better"
    assert hb.compare(RIGHT, LEFT, metric="glossiness").verdict == "worse"
    assert hb.compare(RIGHT, LEFT, metric="val_loss", lower_is_better=False).verdict == "worse"


def test_a_relative_margin_compares_logarithms():
    a, b = np.exp(normals(5, 20, mean=-3.0, sd=0.1)), np.exp(normals(6, 20, mean=-3.01, sd=0.1))
    found, logs = hb.compare(a, b, margin="20 %"), hb.compare(np.log(a), np.log(b), margin=math.log(1.2))
    assert found.verdict == logs.verdict == "equal"
    np.testing.assert_allclose(found.difference, math.exp(logs.difference))
    ends = np.exp((logs.interval.low, logs.interval.high))
    np.testing.assert_allclose((found.interval.low, found.interval.high), ends)
    assert "equal within 20 %" in found.sentence
    nothing = hb.compare([0.0, 1.0], [1.0, 2.0], margin="5%")
    assert nothing.sentence == "Undecided: a relative margin needs positive values."


def test_the_promised_seeds_decide():
    """Of a comparison whose pilot shows the truth, ``seeds_needed`` decides 90 %."""
    shift, margin, trials = 0.3, 1.0, 400
    pilot = hb.compare(standardized(6) + shift, standardized(6), margin=margin)
    about, low, high = pilot.seeds_needed
    assert low < about < high
    a, b = normals(41, trials, about, mean=shift), normals(42, trials, about)
    decided = sum(hb.compare(x, y, margin=margin).verdict == "equal" for x, y in zip(a, b, strict=True))
    assert abs(decided / trials - 0.9) < 4.0 * math.sqrt(0.09 / trials)


@pytest.mark.parametrize("shift", [0.0, 0.25, 0.5, 1.5])
def test_verdicts_are_rarely_wrong(shift):
    """For equal means, within the margin of 0.5, at it, and beyond: at most 5 % in all."""
    trials, right = 1500, {"better"} if shift >= 0.5 else {"better", "equal"} if shift else {"equal"}
    a, b = normals(50, trials, 6, mean=shift, sd=0.4), normals(51, trials, 6, sd=0.4)
    found = [hb.compare(x, y, margin=0.5).verdict for x, y in zip(a, b, strict=True)]
    wrong = sum(verdict not in right | {"undecided"} for verdict in found)
    check_rate_at_most(wrong, trials, 0.05)
    assert shift == 1.5 or wrong > 0


@pytest.mark.parametrize("against", [None, "control"])
def test_a_family_is_rarely_wrong(against):
    trials, wrong = 300, 0
    for trial in range(trials):
        groups = {name: normals(trial * 10 + k, 8) for k, name in enumerate(("a", "b", "c", "control"))}
        found = hb.compare(groups, margin=0.001, level=0.8, against=against)
        assert len(found) == (6 if against is None else 3)
        wrong += any(one.verdict != "undecided" for one in found)
    check_rate_at_most(wrong, trials, 0.2)
    assert wrong > trials * 0.05


def test_several_metrics_are_a_family():
    frames = [
        pandas.DataFrame({"seed": list(A), "accuracy": list(group.values()), "loss": losses})
        for group, losses in ((A, normals(1, 12, mean=1.0, sd=0.1)), (B, normals(2, 12, mean=1.0, sd=0.1)))
    ]
    found = hb.compare(*frames, metric=["accuracy", "loss"], margin={"accuracy": 0.002, "loss": "10 %"})
    accuracy, loss = found
    assert (accuracy.metric, loss.metric, loss.is_relative, loss.lower_is_better) == ("accuracy", "loss", True, True)
    np.testing.assert_allclose(accuracy.p, 2.0 * hb.compare(A, B, margin=0.002).p)
    assert found.between("A", "B", "loss") is loss
    with pytest.raises(ValueError, match="no margin for the metric 'loss', only for 'accuracy'"):
        hb.compare(*frames, metric=["accuracy", "loss"], margin={"accuracy": 0.002})


def record(seed, accuracy, status="finished", **settings):
    config = RunConfig(epochs=2, seed=seed, **settings)
    epochs = tuple(an_epoch(0.005, 1.0, 0.5, 1.1, value) for value in (accuracy + 0.01, accuracy))
    return Record(config, status, epochs[: 1 if status == "diverged" else 2], origin={"heatbath": "0.1.0"})


def test_records_are_compared_by_seed():
    slow = [record(seed, value, lr=0.005) for seed, value in A.items()]
    fast = [record(seed, value, lr=0.01) for seed, value in reversed(B.items())]
    found = hb.compare(slow, fast, metric="test_accuracy", margin=0.002)
    assert found.p == hb.compare(A, B, metric="test_accuracy", margin=0.002).p
    assert hb.compare(slow, fast).p == hb.compare(A, B).p
    np.testing.assert_allclose(hb.compare(slow, fast, metric="best_test_accuracy").difference, found.difference)
    assert len(set(found.a.digests)) == 12
    assert found.a.versions == ("heatbath 0.1.0",)
    with pytest.raises(ValueError, match="unknown metric 'accuracy': choose one of rate, train_loss"):
        hb.compare(slow, fast, metric="accuracy")
    with pytest.raises(ValueError, match=r"group A differ in more than the seed: lr is 0\.005, 0\.01$"):
        hb.compare([*slow[:3], *fast[3:]], slow)
    with pytest.raises(ValueError, match="group B has seed 3 more than once"):
        hb.compare(slow, [fast[8], record(3, 0.5, lr=0.01)])


def test_diverged_and_unfinished_runs_are_told():
    whole = [record(seed, 0.9 + 0.001 * (seed % 3)) for seed in range(6)]
    some = [*(record(seed, 0.8 + 0.001 * (seed % 2)) for seed in range(5)), record(5, 0.9, "diverged")]
    found = hb.compare(some, whole)
    assert found.verdict == "undecided"
    assert "A has no number for seed 5 (diverged or missing); diverged='exclude'" in found.sentence
    excluded, worst, given = (hb.compare(some, whole, diverged=how) for how in ("exclude", "worst", 0.1))
    assert len(excluded.a.values) == len(excluded.b.values) == 5
    assert "1 of 6 runs of A diverged and are left out" in excluded.sentence
    assert worst.a.values[5] == 0.8
    assert given.a.values[5] == 0.1
    assert worst.verdict == "worse"
    assert "1 of 6 runs of A diverged and count as 0.8" in worst.sentence
    running = hb.compare([*some[:5], record(5, 0.9, "running")], whole)
    assert "1 of 6 runs of A have not ended and are left out" in running.sentence
    assert running.verdict == "worse"


@pytest.mark.parametrize("looks", [None, (5, 10)])
def test_a_group_that_diverged_wholly_never_looks_sound(looks):
    found = hb.compare([math.nan] * 5, [0.9, 0.91, 0.92, 0.93, 0.94], margin=0.1, diverged="worst", looks=looks)
    assert found.verdict == "undecided"
    assert "A has no number in 5 of 5 values" in found.sentence
    counted = hb.compare([math.nan] * 5, [0.9, 0.91, 0.92, 0.93, 0.94], margin=0.1, diverged=0.1, looks=looks)
    assert counted.verdict == "worse"


def test_a_difference_as_large_as_the_margin_names_no_seeds_and_says_why():
    found = hb.compare(standardized(8) + 1.0, standardized(8), margin=1.0)
    assert (found.verdict, found.seeds_needed) == ("undecided", None)
    assert "no number of seeds would decide it if the difference is as large as the margin" in found.sentence
    better = hb.compare(standardized(80) + 1.0, standardized(80), margin=1.0)
    assert "no number of seeds would decide it if the difference is as large as the margin" in better.sentence
    same = hb.compare(standardized(8), standardized(8))
    assert "no number of seeds would decide it if the means are equal" in same.sentence


def test_metrics_that_were_not_measured_are_refused_and_named():
    runs = [record(seed, value) for seed, value in A.items()]
    for metric in ("validation_accuracy", "best_validation_loss", "chosen_test_accuracy"):
        with pytest.raises(ValueError, match=f"unknown metric '{metric}': choose one of rate, train_loss"):
            hb.compare(runs, runs[:6], metric=metric)


def test_a_metric_may_be_called_the_best():
    def own(seed):
        return Record(RunConfig(epochs=1, seed=seed), "finished", (Epoch(0.1, {"best_f1": 0.5 + 0.1 * seed}),))

    assert hb.compare([own(0), own(1)], [own(2), own(4)], metric="best_f1").difference == pytest.approx(-0.25)


def test_seeds_of_numpy_are_written_as_numbers():
    found = hb.compare({np.int64(seed): value for seed, value in A.items()}, B)
    assert json.loads(json.dumps(found.to_dict()))["groups"][0]["seeds"] == list(A)
    columns = pandas.DataFrame({0: list(A.values()), "seed": list(A)})
    assert hb.compare(columns, columns, metric="0").difference == 0.0


def test_pairs_where_seeds_match():
    fewer = {seed: A[seed] for seed in range(8)}
    assert hb.compare(fewer, B).notes == ("seeds of one group alone are left out: 4 of B",)
    assert len(hb.compare(fewer, B).b.values) == 8
    apart = {seed + 100: value for seed, value in A.items()}
    assert not hb.compare(apart, B).paired
    assert "A and B have no seed in common" in hb.compare(apart, B).sentence
    assert "have only 3 seeds in common" in hb.compare({seed: A[seed] for seed in range(3)}, B).sentence
    assert not hb.compare(A, B, paired=False).paired
    assert hb.compare(list(A.values()), list(B.values()), paired=True).p == hb.compare(A, B).p
    order = np.random.default_rng(0).permutation(12).tolist()
    assert hb.compare({seed: A[seed] for seed in order}, B).p == hb.compare(A, B).p


def test_data_frames_and_series():
    frames = [pandas.DataFrame({"seed": list(group), "score": list(group.values())}) for group in (A, B)]
    assert hb.compare(*frames, metric="score").p == hb.compare(A, B).p
    assert hb.compare(*frames).p == hb.compare(A, B).p
    series = [frame.set_index("seed")["score"] for frame in frames]
    assert hb.compare(*series).paired
    assert not hb.compare(*(frame["score"] for frame in frames)).paired
    with pytest.raises(ValueError, match="group A has no column 'loss': choose one of seed, score"):
        hb.compare(*frames, metric="loss")


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ([0.7], [0.6, 0.5], "one seed says nothing about the spread"),
        ([0.5] * 4, [0.6] * 4, "without a spread between seeds there is no test"),
        ([], [0.6, 0.5], "nothing to compare yet: n = 0 against n = 2"),
        ([0.5, math.nan], [0.6, 0.5], "A has no number in 1 of 2 values"),
        ([0.5, None], [0.6, math.inf], "A has no number in 1 of 2 values and B has no number in 1 of 2 values"),
    ],
)
def test_nothing_is_decided_where_there_is_no_test(a, b, words):
    found = hb.compare(a, b, margin=0.1)
    assert found.verdict == "undecided"
    assert found.p == 1.0
    assert words in found.sentence
    assert json.dumps(found.to_dict(), allow_nan=False)
    assert words in found._repr_html_().replace("&#x27;", "'")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"margin": 0.0}, ValueError, "margin must be a positive finite number, got 0.0"),
        ({"margin": -0.1}, ValueError, "margin must be a positive finite number, got -0.1"),
        ({"margin": "wide"}, ValueError, "margin must be a positive number, or one with a percent sign, got 'wide'"),
        ({"margin": "0 %"}, ValueError, "margin must be a positive finite number, got 0.0"),
        ({"level": 95}, ValueError, "level must be a number with 0.5 < level < 1, got 95"),
        ({"level": "high"}, TypeError, "level must be a number with 0.5 < level < 1, got 'high'"),
        ({"power": 1.0}, ValueError, "power must be a number"),
        ({"metric": 5}, ValueError, "metric must be a name or several different ones, got 5"),
        ({"history": "/nonexistent/looks.json"}, FileNotFoundError, "there is no folder /nonexistent for the record"),
        ({"metric": []}, ValueError, r"metric must be a name or several different ones, got \[\]"),
        ({"metric": ["x", "y"]}, ValueError, "several metrics need data frames or records"),
        ({"diverged": None}, ValueError, "diverged must be tell, exclude, worst or a number, got None"),
        ({"diverged": True}, ValueError, "diverged must be tell, exclude, worst or a number, got True"),
        ({"diverged": "drop"}, ValueError, "diverged must be tell, exclude, worst or a number, got 'drop'"),
        ({"diverged": math.nan, "a": [math.nan, 1.0]}, ValueError, "or a finite number, got nan"),
        ({"paired": True}, ValueError, "as many values of A as of B: got 5 and 6"),
        ({"names": ("x", "x")}, ValueError, "names must be two different ones"),
        ({"a": "0.5"}, TypeError, "group A must be numbers, a mapping from seeds to numbers, a data frame or records"),
        ({"a": 0.5}, TypeError, "group A must be numbers"),
        ({"a": ["0.5", "0.6"]}, TypeError, "group A must have one number for each seed, got '0.5'"),
        ({"a": np.zeros((2, 2))}, TypeError, r"group A must have one number for each seed, got \[0.0, 0.0\]"),
        ({"a": {0: 1.0}, "b": None}, TypeError, "compare needs two groups, or a mapping from names to groups"),
        ({"a": {"x": [1.0]}, "b": None}, ValueError, "compare needs two groups or more, got 1"),
        ({"a": {"x": LEFT, "y": RIGHT}, "b": None, "against": "z"}, ValueError, "no group 'z' to compare with: choose"),
        ({"looks": 5}, TypeError, "looks must be numbers of seeds such as"),
        ({"looks": (5, 5)}, ValueError, r"looks must be rising numbers of seeds such as .*, got \(5, 5\)"),
        ({"looks": (1, 5)}, ValueError, "looks must be an integer with 2 <= looks"),
    ],
)
def test_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        hb.compare(**{"a": LEFT, "b": RIGHT, **arguments})


def test_a_comparison_is_not_a_truth_value():
    with pytest.raises(TypeError, match="ask for its verdict"):
        bool(hb.compare(LEFT, RIGHT))


def test_neither_torch_nor_pandas_is_imported():
    program = (
        "import sys, heatbath as hb; hb.compare([1.0, 2.0, 4.0], [2.0, 3.0, 3.5], margin=0.1).sentence;"
        "print([m for m in ('torch', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
