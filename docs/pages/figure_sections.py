"""What docs/figures.md says of each figure: its verdicts, its settings, what the paper got wrong, and its command."""

from __future__ import annotations

from collections import Counter

from committed import check, figures, verdict
from heatbath.paper import EXPERIMENTS
from heatbath.report.panels import FigureData
from heatbath.stats import wording

_SIGNS = {"confirmed": "✓", "contradicted": "✗", "undecided": "?"}
_TOLD = ("model", "data", "mean rate l", "batch size C", "momentum mu", "weight decay", "epochs", "runs per group")


def by_figure() -> dict[str, str]:
    """Return the section of each figure of the paper, in Markdown."""
    return {name: _section(figure) for name, figure in figures().items()}


def counts() -> dict[str, str]:
    """Return how many claims of each figure are confirmed, contradicted and undecided, in words."""
    return {name: _count(figure) for name, figure in figures().items()}


def beyond() -> str:
    """Return the experiments that the paper does not have, as a table."""
    rows = [
        f"| `{name}` | {experiment.question} | {_count(figures()[name])} |"
        for name, experiment in EXPERIMENTS.items()
        if not name.startswith("figure")
    ]
    return "\n".join(["| name | question | verdicts |", "| --- | --- | --- |", *rows])


def check_the_headings_of_the_findings() -> None:
    """Check that the headings of docs/results.md are what the verdicts say."""
    said = {
        ("figure1", "same test accuracy"): "confirmed",
        ("figure4", "higher final", "than constant", "scratch"): "undecided",
        ("figure4", "higher final", "best cyclic", "scratch"): "contradicted",
        ("figure5", "end at the same"): "confirmed",
        ("collapse", "decides the final"): "confirmed",
        ("fair-control", "perceptron: random and constant at the same mean rate", "loss"): "confirmed",
        ("fair-control", "perceptron: random and constant at the same temperature, coupling gradient", "loss"): (
            "contradicted"
        ),
        ("temperature", "as hot as", "constant:"): "confirmed",
        ("temperature", "at equilibrium", "constant:"): "contradicted",
        ("figure6", "C = 128"): "contradicted",
    }
    for (name, *words), outcome in said.items():
        check(verdict(name, *words).outcome == outcome, f"the findings of {name}: {' '.join(words)} is {outcome}")


def _section(figure: FigureData) -> str:
    claims = [
        (
            f"{_SIGNS[one.outcome]}\N{NO-BREAK SPACE}{one.outcome}",
            one.claim,
            "; ".join(filter(None, (wording.numbers(one), wording.needs(one)))),
        )
        for one in figure.verdicts
    ]
    rows = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in claims]
    table = "\n".join(["| verdict | claim | numbers |", "| --- | --- | --- |", *rows])
    settings = "; ".join(f"{name} {figure.settings[name]}" for name in _TOLD if name in figure.settings)
    small = f"heatbath reproduce {figure.name}                  # a laptop, minutes\n"
    large = f"heatbath reproduce {figure.name} --scale paper    # a GPU"
    command = f"```sh\n{small if EXPERIMENTS[figure.name].exists('laptop') else ''}{large}\n```"
    errata = "\n".join(f"- {sentence}" for sentence in figure.errata)
    notes = f"\n\n**What to know about the figure:**\n\n{errata}" if errata else ""
    return f"**Verdicts:** {_count(figure)}.\n\n{table}\n\n**Runs:** {settings}.{notes}\n\n{command}"


def _count(figure: FigureData) -> str:
    counts = Counter(one.outcome for one in figure.verdicts)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in _SIGNS if counts[outcome])
