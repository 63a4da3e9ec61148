"""What the report says first follows from the verdicts."""

import pytest
from synthetic_records import make_records

from heatbath.paper import EXPERIMENTS
from heatbath.paper.conclusion import PAPER, open_report, paper_scale_outcomes


def figures(scale, names=("figure1", "figure5", "fair-control", "figure4", "theory"), **options):
    chosen = [EXPERIMENTS[name] for name in names if EXPERIMENTS[name].exists(scale)]
    return [one.figure(make_records(one.configs(scale), **options), scale) for one in chosen]


def test_the_conclusion_is_four_sentences_that_follow_from_the_verdicts():
    opening = open_report(figures("paper", accuracy=0.9), "paper")
    assert len(opening.conclusion) == 4
    assert opening.conclusion[1].startswith("It is confirmed that runs of equal temperature learn alike")
    assert opening.conclusion[3].startswith("It is undecided whether a random rate is better")
    better = {"accuracy": lambda config: 0.9 if config.protocol.kind == "random" else 0.8}
    assert (
        open_report(figures("paper", **better), "paper").conclusion[3].startswith("It is confirmed that a random rate")
    )
    counts = sum(len(figure.verdicts) for figure in figures("paper"))
    assert opening.conclusion[0].startswith(f"Of {counts} claims: ")
    assert (opening.warning, opening.source) == ("", PAPER)
    assert opening.key == (("figure5", 0), ("figure5", 1), ("figure4", 0))


def test_without_runs_nothing_is_concluded():
    opening = open_report([EXPERIMENTS["figure1"].figure({}, "paper")], "paper")
    assert len(opening.conclusion) == 1
    assert open_report([], "paper").conclusion == ()


@pytest.mark.parametrize("scale", ["smoke", "laptop"])
def test_a_small_scale_warns_and_shows_the_verdicts_at_the_papers_scale(scale):
    made = figures(scale, accuracy=0.9)
    assert open_report(made, scale).warning.startswith(f"This is the {scale} scale: ")
    for figure in made:
        claims = {verdict.claim for verdict in figure.verdicts}
        assert claims <= figure.at_paper_scale.keys()
        assert figure.unlike_the_paper
    assert all(not figure.at_paper_scale for figure in figures("paper"))


def test_every_claim_at_the_papers_scale_has_its_outcome():
    for name, experiment in EXPERIMENTS.items():
        claims = {verdict.claim for verdict in experiment.figure({}, "paper").verdicts}
        assert claims == set(paper_scale_outcomes()[name])
