"""Renders the pages whose numbers come from records: ``python docs/pages/render.py``, or ``--check`` to only compare.

A template is a page with fields of Python's format strings, such as ``{scratch.ends[random]:.3f}``. Their values are
the functions of the modules beside this one. Paragraphs are wrapped after the numbers are in.
"""

from __future__ import annotations

import argparse
import json
import string
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import comparison_numbers
import cost_numbers
import figure_sections
import mnist_numbers
import rule_numbers
import vgg16_numbers
from committed import ROOT, figures, planned, records
from heatbath.paper.conclusion import PAPER_SCALE

_SITE = (
    "paper",
    "results",
    "figures",
    "evidence",
    "all-claims",
    "planned",
    "cost",
    "compare",
    "adding-seeds",
    "clusters",
)
PAGES = {f"{name}.md": f"docs/{name}.md" for name in _SITE} | {"records.md": "results/README.md"}
_WIDTH = 126
_CHECKS = (
    rule_numbers.check_the_first_margins,
    vgg16_numbers.check_the_order_of_the_protocols,
    figure_sections.check_the_headings_of_the_findings,
)
_VALUES: dict[str, Callable[[], Any]] = {
    "claims": rule_numbers.claims,
    "rule": rule_numbers.choice_of_the_test,
    "margins": rule_numbers.margins,
    "margin_table": rule_numbers.margin_table,
    "figure1": lambda: mnist_numbers.protocols("figure1"),
    "figure2": lambda: mnist_numbers.protocols("figure2"),
    "figure2_end": mnist_numbers.figure2_at_the_end,
    "later": mnist_numbers.later_seeds,
    "best": mnist_numbers.best_accuracies,
    "figure5": mnist_numbers.figure5,
    "delta": mnist_numbers.delta,
    "cnn": mnist_numbers.cnn_of_figure3,
    "collapse": mnist_numbers.collapse,
    "sums": mnist_numbers.equal_sums,
    "control": mnist_numbers.fair_control,
    "thermometer": mnist_numbers.thermometer,
    "figure6": vgg16_numbers.figure6,
    "scratch": vgg16_numbers.from_scratch,
    "scratch_later": vgg16_numbers.later_seeds,
    "falls": vgg16_numbers.falls,
    "tuned": vgg16_numbers.from_imagenet,
    "vgg16": vgg16_numbers.fair_control,
    "cost": cost_numbers.cost,
    "clusters": cost_numbers.clusters,
    "example": comparison_numbers.example,
    "looks": comparison_numbers.looks,
    "by_figure": figure_sections.by_figure,
    "beyond": figure_sections.beyond,
    "counts": figure_sections.counts,
    "planned": figure_sections.of_planned,
    "generic": figure_sections.generic,
    "gaussian": figure_sections.gaussian,
    "reshuffling": figure_sections.reshuffling,
    "heat": figure_sections.heat,
    "theory": figure_sections.theory,
    "at_rest": figure_sections.at_rest,
    "adamw": figure_sections.adamw,
    "plain_loop": figure_sections.plain_loop,
    "planned_counts": figure_sections.planned_counts,
    "runs_total": lambda: len(records()),
    "runs": lambda: Counter(record.config.model for record in records().values()),
}


class _Formatter(string.Formatter):
    """Numbers as the pages write them: ``99.29 %`` and ``2.1e-5``."""

    def format_field(self, value: Any, format_spec: str) -> str:
        text = str(super().format_field(value, format_spec))
        return text.replace("%", " %").replace("e-0", "e-") if format_spec else text


class _Lazy(dict[str, Any]):
    """Values that are computed when a template asks for them."""

    def __missing__(self, name: str) -> Any:
        self[name] = _VALUES[name]()
        return self[name]


def render() -> dict[str, str]:
    """Return the pages by where they lie in the repository."""
    for check in _CHECKS:
        check()
    numbers = _Lazy()
    pages = {}
    for template, page in PAGES.items():
        text = (ROOT / "docs/pages" / template).read_text(encoding="utf-8")
        pages[page] = _wrap(_Formatter().vformat(text, (), numbers))
    all_figures = figures() | planned()
    outcomes = {name: {one.claim: one.outcome for one in figure.verdicts} for name, figure in all_figures.items()}
    pages[f"src/heatbath/paper/{PAPER_SCALE}"] = json.dumps(outcomes, indent=1, ensure_ascii=False) + "\n"
    return pages


def _wrap(text: str) -> str:
    """Fill the lines of paragraphs and items of lists; tables, headings, pictures and code stay as they are."""
    blocks, in_code = [], False
    for block in text.split("\n\n"):
        kept = in_code or block.startswith(("|", "#", "![", "```"))
        in_code ^= block.count("```") % 2 == 1
        blocks.append(block if kept else "\n".join(map(_fill, _items(block))))
    return "\n\n".join(blocks).rstrip() + "\n"


def _items(block: str) -> list[str]:
    items: list[str] = []
    for line in block.strip("\n").splitlines():
        if items and not line.startswith("- "):
            items[-1] += " " + line.strip()
        else:
            items.append(line.strip())
    return items


def _fill(item: str) -> str:
    indent = "  " if item.startswith("- ") else ""
    filled = textwrap.TextWrapper(_WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return filled.fill(" ".join(item.split()))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def main() -> int:
    """Write the pages that differ; with ``--check`` name them, and return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and exit with 1 where a page differs")
    check = parser.parse_args().check
    pages = render()
    changed = [page for page, text in pages.items() if text != _read(ROOT / page)]
    for page in changed:
        print(f"{page} differs; 'make pages' writes it" if check else f"writing {page}")
        if not check:
            (ROOT / page).write_text(pages[page], encoding="utf-8")
    return int(check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
