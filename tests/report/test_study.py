"""The page of anybody's study, from made-up runs whose truth is known."""

import math

import pytest

import heatbath as hb
from heatbath.report.page import write_report
from heatbath.report.study import about_study, open_study, study_figure
from heatbath.runs.records import Record
from heatbath.stats import wording
from measured import an_epoch


def runs(protocol, level, seeds=6, status="finished"):
    made = []
    for seed in range(seeds):
        config = hb.RunConfig(protocol=protocol, epochs=3, seed=seed, lr=0.01)
        noise = 1e-3 * (seed - 2.5) + 2e-3 * math.sin(seed + len(protocol))
        ends = [level - 0.1 / (k + 1) + noise for k in range(3)]
        epochs = tuple(an_epoch(0.01, 1.0 - end, end + 0.01, 1.1 - end, end) for end in ends)
        made.append(Record(config, status, epochs))
    return hb.Records(made)


GROUPS = {"constant": runs("constant", 0.9), "random": runs("random", 0.93), "cyclic:2": runs("cyclic:2", 0.9)}


def study(groups=GROUPS, **options):
    found = hb.compare(groups, metric="test_accuracy", margin=0.002, **options)
    return study_figure(groups, found, ["protocol"]), found


def test_a_line_for_each_pair_with_its_verdict():
    figure, found = study()
    assert [(one.claim, one.outcome) for one in figure.verdicts] == [
        ("test accuracy: constant against random", "worse"),
        ("test accuracy: constant against cyclic:2", "undecided"),
        ("test accuracy: random against cyclic:2", "better"),
    ]
    assert wording.detail(figure.verdicts[0]) == found[0].sentence
    assert figure.verdicts[0].interval.estimate == pytest.approx(-0.03, abs=2e-3)


def test_the_panels_have_what_was_compared_first_and_every_curve():
    figure, _ = study()
    assert [panel.title for panel in figure.panels] == [
        *("Test accuracy by group", "Test accuracy", "Train loss", "Train accuracy", "Test loss"),
    ]
    values, accuracy, loss = figure.panels[:3]
    ends = [level - 0.1 / 3 for level in (0.9, 0.93, 0.9)]
    assert [series.y[0] for series in values.series] == pytest.approx(ends, abs=1e-3)
    assert [series.name for series in accuracy.series] == list(GROUPS)
    assert (accuracy.y_log, loss.y_log) == (False, True)


def test_settings_are_those_that_all_runs_share():
    figure, _ = study()
    assert figure.settings["lr"] == "0.01"
    assert figure.settings["law"] == "uniform:1.0"  # of the random runs, which alone have one
    assert not {"protocol", "seed"} & figure.settings.keys()
    assert figure.settings["equal means"] == "test accuracy within 0.002"


def test_what_diverged_or_is_not_finished_is_told():
    groups = {**GROUPS, "random": hb.Records([*runs("random", 0.93, 5), *runs("random", 0.9, 6, "diverged")[5:]])}
    figure, _ = study(groups, diverged="exclude")
    assert figure.missing == ("random: 1 of 6 runs diverged (seed 5) and are in no curve.",)
    assert len(figure.panels[1].series[1].x) == 3


def test_the_page_opens_with_the_answer(tmp_path):
    groups = {name: GROUPS[name] for name in ("constant", "random")}
    figure, found = study(groups)
    opening = open_study(figure, found, "runs")
    assert opening.conclusion == (found[0].sentence,)
    page = write_report([figure], tmp_path, about=about_study(groups, 0.95), opening=opening)
    text = page.read_text(encoding="utf-8")
    assert text.index("key-panel") < text.index('id="page-claims"') < text.index('id="study"')
    assert {file.suffix for file in tmp_path.iterdir()} == {".html", ".md", ".csv", ".pdf", ".png", ".svg"}
