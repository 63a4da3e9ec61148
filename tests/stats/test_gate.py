"""Gates: what passes is rarely worse by the margin, what fails rarely is not; changed files are refused."""

import json

import numpy as np
import pytest

import heatbath as hb
from heatbath.stats.gate import Baseline, gate, read_baseline, read_verdict, write_verdict
from heatbath.stats.samples import read_sample
from heatbath.stats.verdicts import parse_margin
from samples import LEFT, RIGHT, check_rate_at_most, normals, standardized


def answer(new, old, margin, **options):
    baseline = Baseline(read_sample("old", old), "m", options.pop("lower", False), None)
    return gate(baseline, read_sample("new", new), parse_margin(margin), **options).answer


@pytest.mark.parametrize(
    ("shift", "lower", "expected"),
    [
        *[(0.0, False, "not worse"), (5.0, False, "not worse"), (-2.0, False, "worse"), (-0.5, False, "undecided")],
        *[(0.0, True, "not worse"), (-5.0, True, "not worse"), (2.0, True, "worse"), (0.5, True, "undecided")],
    ],
)
def test_answers(shift, lower, expected):
    assert answer(0.5 * standardized(12) + shift, 0.4 * standardized(12), 0.5, lower=lower) == expected


def test_relative_margins():
    old = np.exp(0.1 * standardized(10))
    new = np.exp(0.1 * standardized(10) + 0.02)
    assert answer(new, old, "20 %", lower=True) == "not worse"
    assert answer(3.0 * new, old, "20 %", lower=True) == "worse"
    assert answer(3.0 * new, old, "20 %") == "not worse"


@pytest.mark.parametrize("wrong", ["not worse", "worse"])
def test_answers_are_rarely_wrong(wrong):
    trials, margin = 1000, 0.6
    new, old = normals(1, trials, 7, mean=-margin), normals(2, trials, 7)
    count = sum(answer(x, y, margin) == wrong for x, y in zip(new, old, strict=True))
    check_rate_at_most(count, trials, 0.05)
    assert count > 0.02 * trials


def test_a_verdict_goes_to_a_file_and_back(tmp_path):
    path = tmp_path / "verdict.json"
    found = hb.compare(dict(enumerate(LEFT)), dict(enumerate(RIGHT)), metric="accuracy", margin="5 %", looks=(3, 5))
    write_verdict(path, found, "0.1.0")
    (back,), groups = read_verdict(path)
    assert back["verdict"] == found.verdict
    assert back["look"]["plan"] == [3, 5]
    assert back["margin"] == found.margin
    assert f"{back['margin']}" == f"{found.margin}"
    assert groups["A accuracy"].values.tolist() == found.a.values.tolist()
    assert groups["A accuracy"].seeds == found.a.seeds
    baseline = read_baseline(path)
    assert (baseline.group.name, baseline.metric, baseline.lower_is_better) == ("A", "accuracy", False)
    assert read_baseline(path, "B").group.values.tolist() == found.b.values.tolist()
    with pytest.raises(ValueError, match="no group 'C': choose one of A, B"):
        read_baseline(path, "C")


def test_the_better_group_is_the_one_to_keep_up_with(tmp_path):
    path = tmp_path / "verdict.json"
    write_verdict(path, hb.compare(RIGHT, LEFT), "0.1.0")
    assert read_baseline(path).group.name == "B"
    write_verdict(path, hb.compare({"x": RIGHT, "y": LEFT, "z": LEFT}), "0.1.0")
    with pytest.raises(ValueError, match="has 3 comparisons: say which group counts, of x, y, z"):
        read_baseline(path)


def test_files_that_are_no_verdicts_are_refused(tmp_path):
    path = tmp_path / "verdict.json"
    write_verdict(path, hb.compare(RIGHT, LEFT), "0.1.0")
    contents = json.loads(path.read_text())
    path.write_text(json.dumps({**contents, "heatbath": "9"}))
    with pytest.raises(ValueError, match="has been changed since it was written"):
        read_verdict(path)
    path.write_text(json.dumps({**contents, "format": 2}))
    with pytest.raises(ValueError, match="was written by a later version"):
        read_verdict(path)
    for text in ("", "[]", "{}", '{"digest": 1}'):
        path.write_text(text)
        with pytest.raises(ValueError, match="is not a verdict of 'heatbath compare --export'"):
            read_verdict(path)
