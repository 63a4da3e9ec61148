"""The claims of a page: one line each with its verdict as a sign, details folded, and buttons that filter them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from html import escape

from heatbath.report.panels import FigureData
from heatbath.stats import wording
from heatbath.stats.verdicts import Verdict

SIGNS = {"confirmed": "✓", "contradicted": "✗", "better": "▲", "worse": "▼", "equal": "=", "undecided": "?"}
"""The outcomes, in the order in which they are counted, with their signs."""
_UNBROKEN = re.compile(r"\b[np] = [\w.+-]*\w|[\d.]+e[+-]?\d+|[\d.]+ %")  # what no line of the page may tear apart


def list_claims(figures: Sequence[FigureData]) -> str:
    """Return the section of all claims; empty where there are none."""
    judged = [figure for figure in figures if figure.verdicts]
    if not judged:
        return ""
    counts = Counter(verdict.outcome for figure in judged for verdict in figure.verdicts)
    kinds = {"": ("All", counts.total()), **{name: (name.capitalize(), counts[name]) for name in SIGNS if counts[name]}}
    buttons = "".join(
        f'<button type="button" data-outcome="{name}" aria-pressed="{"false" if name else "true"}">'
        f"{_sign(name) if name else ''}{words} {count}</button>"
        for name, (words, count) in kinds.items()
    )
    options = "".join(f'<option value="{figure.name}">{escape(label(figure))}</option>' for figure in judged)
    return (
        '<section id="page-claims" aria-labelledby="page-claims-title"><h2 id="page-claims-title">Claims</h2>'
        f'<div class="filters" hidden><div role="group" aria-label="Show claims by verdict">{buttons}</div>'
        f'<label>of <select><option value="">all figures</option>{options}</select></label></div>'
        + "".join(map(_claims_of, judged))
        + "</section>"
    )


def count_claims(figure: FigureData) -> str:
    """Return how many claims of a figure have which verdict, as signs that lead to them."""
    counts = Counter(verdict.outcome for verdict in figure.verdicts)
    if not counts:
        return ""
    signs = " ".join(f"{_sign(name)}{counts[name]}" for name in SIGNS if counts[name])
    count = f"{counts.total()} claim{'s' * (counts.total() != 1)}"
    return f'<p class="counted"><a href="#claims-{figure.name}">{count}</a> {signs}</p>'


def summarize_claims(figures: Sequence[FigureData]) -> str:
    """Return how many figures and claims there are, in words."""
    outcomes = Counter(verdict.outcome for figure in figures for verdict in figure.verdicts)
    counts = ", ".join(f"{outcomes[name]} {name}" for name in SIGNS if outcomes[name])
    total = outcomes.total()
    shown = f"{len(figures)} figure{'s' * (len(figures) != 1)}"
    if not counts:
        return f"{shown}, no claim judged yet."
    unseen = sum(verdict.interval is None for figure in figures for verdict in figure.verdicts)
    lacking = f" {unseen} of them for lack of runs." if unseen else ""
    return f"{shown}, {total} claim{'s' * (total != 1)}: {counts}.{lacking}"


def label(figure: FigureData) -> str:
    """Return what a figure is called: ``figure1`` is Figure 1, ``fair-control`` Fair control."""
    number = re.fullmatch(r"figure(\d+\w*)", figure.name)
    words = figure.name.replace("_", " ").replace("-", " ").capitalize()
    return f"Figure {number[1]}" if number else words.replace("Adamw", "AdamW")


def prose(text: str) -> str:
    """Return words and numbers for the page, with numbers that stay on one line."""
    return _UNBROKEN.sub(r'<span class="whole">\g<0></span>', escape(text))


def _claims_of(figure: FigureData) -> str:
    lines = "".join(_line(figure, verdict, number) for number, verdict in enumerate(figure.verdicts, 1))
    paper = figure.at_paper_scale
    differ = any(paper.get(verdict.claim, verdict.outcome) != verdict.outcome for verdict in figure.verdicts)
    reason = f'<p class="note">Unlike the paper\'s scale: {escape(figure.unlike_the_paper)}.</p>' if differ else ""
    return (
        f'<div class="claims" id="claims-{figure.name}" data-figure="{figure.name}"><h3><a href="#{figure.name}">'
        f"{escape(label(figure))}</a> {escape(figure.title)}</h3>{reason}<ul>{lines}</ul></div>"
    )


def _line(figure: FigureData, verdict: Verdict, number: int) -> str:
    name = f"{figure.name}-claim-{number}"
    needs = f'<p class="needs">{escape(wording.needs(verdict).capitalize())}.</p>' if verdict.seeds else ""
    paper = figure.at_paper_scale.get(verdict.claim)
    beside = f' <span class="paper">paper scale {_sign(paper)}{paper}</span>' if paper else ""
    return (
        f'<li id="{name}" data-outcome="{verdict.outcome}"><details><summary>{_sign(verdict.outcome)}'
        f'<span class="unseen">{verdict.outcome}: </span><span>{escape(verdict.claim)}{beside}</span></summary>'
        f'<p>{prose(wording.detail(verdict))} <a href="#{name}" aria-label="A link to this claim">#</a></p>'
        f"{needs}</details></li>"
    )


def _sign(outcome: str) -> str:
    return f'<span class="sign {outcome}" title="{outcome}" aria-hidden="true">{SIGNS[outcome]}</span>'
