"""What the report says first: the question, the answer in four sentences, and the pictures that show it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files

from heatbath.paper.groups import Scale
from heatbath.report.panels import FigureData, Opening
from heatbath.stats import wording

PAPER = (
    "Daniele Musso, Stochastic gradient descent with random learning rate, arXiv:2003.06926",
    "https://arxiv.org/abs/2003.06926",
)
PAPER_SCALE = "paper_scale.json"  # beside this module: the outcomes of the committed records, written by `make pages`
_NUMBER = re.compile(r"\d+")
_OUTCOMES = ("confirmed", "contradicted", "undecided")
_ASKED = (
    "The paper draws the learning rate of SGD at random for each mini-batch. Does that train better, and does one "
    "number, the temperature of the noise, tell how a network trains? Each claim is tested on many seeds. Below, l is "
    "the learning rate, C the batch size and mu the momentum. The paper:"
)
# Of these findings the last three that there are runs of are told: a figure, words of its claim, the claim in short.
_FINDINGS = {
    ("figure1", "same test accuracy"): (
        "constant, random and cyclic rates of equal mean bring the perceptron to the same test accuracy (figure 1)"
    ),
    ("figure5", "end at the same"): (
        "runs of equal temperature learn alike (figure 5), but they also have the same summed rate"
    ),
    ("fair-control", "coupling gradient reach the same training"): (
        "a random rate and a constant rate of equal temperature bring the perceptron to the same training loss"
    ),
    ("figure4", "higher final test accuracy than constant, from scratch"): (
        "a random rate is better than a constant one on VGG16 (figure 4)"
    ),
}
_KEY = (("figure5", 0), ("figure5", 1), ("figure4", 0), ("fair-control", 0))
_WARNING = (
    "This is the {scale} scale: the perceptron on 4,000 images of MNIST, for a CPU. It shows that everything runs, and "
    "how a network behaves early in training. It cannot decide the paper's claims, and it has no figures 2, 4 and 6. "
    "Each claim has its verdict at the paper's scale beside its own."
)


def open_report(figures: Sequence[FigureData], scale: Scale) -> Opening:
    """Return what the page of these figures says first."""
    outcomes = Counter(verdict.outcome for figure in figures for verdict in figure.verdicts)
    counts = wording.counts(outcomes, _OUTCOMES)
    judged = [(figure.name, one) for figure in figures for one in figure.verdicts if one.interval is not None]
    found = []
    for (figure, words), claim in _FINDINGS.items():
        verdicts = [verdict for name, verdict in judged if name == figure and words in verdict.claim]
        found += [wording.finding(verdict, claim) for verdict in verdicts[:1]]
    there = {figure.name: len(figure.panels) for figure in figures}
    return Opening(
        title="SGD with a random learning rate: what the paper says and what we find",
        asked=_ASKED,
        source=PAPER,
        conclusion=(f"Of {outcomes.total()} claims: {counts}.", *found[-3:]) if outcomes else (),
        key=tuple((name, panel) for name, panel in _KEY if panel < there.get(name, 0))[:3],
        warning="" if scale == "paper" else _WARNING.format(scale=scale),
    )


@cache
def paper_scale_outcomes() -> Mapping[str, Mapping[str, str]]:
    """Return the outcomes at the paper's scale, by figure and claim."""
    found: dict[str, dict[str, str]] = json.loads((files(__package__) / PAPER_SCALE).read_text(encoding="utf-8"))
    return found


def paper_scale_beside(figure: str, claims: Iterable[str]) -> dict[str, str]:
    """Return the outcomes at the paper's scale of a figure's claims, which may name other numbers of steps there."""
    known = paper_scale_outcomes().get(figure, {})
    without_numbers = {_NUMBER.sub("", claim): outcome for claim, outcome in known.items()}
    found = {claim: known.get(claim) or without_numbers.get(_NUMBER.sub("", claim)) for claim in claims}
    return {claim: outcome for claim, outcome in found.items() if outcome}
