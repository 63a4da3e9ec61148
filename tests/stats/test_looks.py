"""Looks are remembered: a plan costs nothing more, a look that was not planned says so and pays."""

import json
import math

import pytest

import heatbath as hb
from samples import check_rate_at_most, normals

A, B = dict(enumerate(normals(1, 40))), dict(enumerate(normals(2, 40)))


def first(n, group):
    return {seed: group[seed] for seed in range(n)}


def look(n, path, **options):
    return hb.compare(first(n, A), first(n, B), history=path, **options)


def test_a_second_look_pays(tmp_path):
    path = tmp_path / "looks.json"
    once, again, later, last = (look(n, path) for n in (5, 5, 10, 20))
    assert once.error == again.error == pytest.approx(0.05)
    assert not once.notes
    assert later.error == pytest.approx(0.025)
    assert last.error == pytest.approx(0.0125)
    assert "looked at before, with 5 seeds and no common plan: tested at 0.5 of the error" in later.sentence.lower()
    assert "the chance that any of these looks errs is at most 7.5 %" in later.sentence
    assert "with 5, 10 seeds" in last.sentence
    assert look(10, path).error == later.error  # to look again at the same numbers is no new look
    assert look(5, path, metric="loss").error == pytest.approx(0.05)
    assert hb.compare(first(10, B), first(10, A), names=("B", "A"), history=path).error == later.error


def test_a_plan_pays_once(tmp_path):
    path, plan = tmp_path / "looks.json", (5, 10, 20, 40)
    for n in (5, 10, 17, 40):
        found = look(n, path, looks=plan)
        assert found.error == pytest.approx(0.05 * found.look.share)
        assert "looked at before" not in found.sentence.lower()
    assert look(40, path, looks=(20, 40)).error == pytest.approx(0.5 * 0.05 * (1.0 - 0.5**1.5))
    (entry,) = json.loads(path.read_text())["comparisons"].values()
    assert [design["plan"] for design in entry["designs"]] == [[5, 10, 20, 40], [20, 40]]
    assert entry["designs"][0]["seeds"] == 40


def test_a_look_that_could_see_nothing_costs_nothing(tmp_path):
    path = tmp_path / "looks.json"
    look(1, path)
    hb.compare(first(5, A) | {2: math.nan}, first(5, B), history=path)
    assert look(5, path).error == pytest.approx(0.05)


def test_all_looks_together_keep_what_they_say(tmp_path):
    """Four looks at growing data, without a plan: at most 2 - 1/8 times the error."""
    trials, wrong = 150, 0
    a, b = normals(3, trials, 40), normals(4, trials, 40)
    for trial in range(trials):
        path = tmp_path / f"{trial}.json"
        x, y = dict(enumerate(a[trial])), dict(enumerate(b[trial]))
        found = [hb.compare(first(n, x), first(n, y), level=0.8, history=path) for n in (5, 10, 20, 40)]
        wrong += any(one.verdict != "undecided" for one in found)
    check_rate_at_most(wrong, trials, 0.2 * 1.875)
    assert wrong > 0.1 * trials


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is damaged: put back a copy of it, or remove it to forget all looks"),
        ("[]", "is damaged"),
        ('{"format": 9, "comparisons": {}}', r"was written by a later version of heatbath \(format 9\)"),
    ],
)
def test_a_damaged_record_is_refused_and_kept(tmp_path, text, words):
    path = tmp_path / "looks.json"
    path.write_text(text)
    with pytest.raises(OSError, match=words):
        look(5, path)
    assert path.read_text() == text
