"""The committed records rebuild every figure and verdict, and the documents say what they say."""

import re
from pathlib import Path

import pytest

from heatbath import cli

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    assert cli.main(["report", str(ROOT / "results"), "--out", str(out)]) == 0
    return out


def test_the_records_rebuild_the_report(rebuilt):
    page = (rebuilt / "report.html").read_text()
    for name in (
        "figure1",
        "figure3",
        "figure5",
        "fair-control",
        "laws",
        "delta",
        "collapse",
        "period",
        "theory",
        "figure4",
        "temperature",
    ):
        assert (rebuilt / f"{name}.svg").stat().st_size > 10_000
        assert f'id="{name}"' in page


def test_the_documents_have_the_verdicts_of_the_records(rebuilt):
    table = (rebuilt / "verdicts.md").read_text()
    assert table.count("\n") > 40
    assert table in (ROOT / "docs/results.md").read_text()


def test_the_table_of_the_readme_agrees(rebuilt):
    """Its numbers are those of the verdicts, to the digits that it gives."""
    details = (rebuilt / "verdicts.md").read_text()
    section = (ROOT / "README.md").read_text().partition("| claim, at the paper")[2].partition("\n\n")[0]
    numbers = re.findall(r"(?<![\d.])-?\d+\.\d{3,}", section)
    assert len(numbers) > 20
    for number in numbers:
        assert number in details
    assert len(re.findall(r"\| (?:confirmed|contradicted|undecided|[a-z ]+ confirmed)", section)) == 10
