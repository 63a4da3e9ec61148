"""The committed records rebuild every figure and verdict, and the pages have their numbers."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from browser import CHROMIUM, Browser
from heatbath import cli
from heatbath.paper import EXPERIMENTS
from heatbath.tasks.registry import networks

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    assert cli.main(["report", str(ROOT / "results"), "--out", str(out)]) == 0
    return out


def test_the_records_rebuild_the_report(rebuilt):
    page = (rebuilt / "report.html").read_text()
    for name in EXPERIMENTS:
        assert (rebuilt / f"{name}.svg").stat().st_size > 10_000
        assert f'id="{name}"' in page


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")
@pytest.mark.parametrize(("width", "height", "screens"), [(1400, 900, 1), (390, 844, 2)])
def test_the_page_opens_with_question_answer_and_pictures(rebuilt, tmp_path, width, height, screens):
    page = rebuilt / "report.html"
    assert page.stat().st_size < 1_500_000
    with Browser(tmp_path) as browser:
        browser.open(page, width=width, height=height, touch=width < 500)
        bottom = browser.evaluate("document.querySelector('.key-panel .plot').getBoundingClientRect().bottom")
        assert bottom < screens * height
        assert browser.evaluate("document.querySelectorAll('.key-panel .plot .series').length") >= 2
        assert browser.evaluate("document.querySelector('.lead a').href") == "https://arxiv.org/abs/2003.06926"
        answer = browser.evaluate("document.querySelector('.conclusion').innerText")
        assert len(re.findall(r"\.(?: |$)", answer)) == 4
        verdicts = "document.querySelector('.figures').innerText.match(/confirmed|contradicted/g)"
        assert browser.evaluate(verdicts) is None  # they stand in the list of claims
        assert browser.evaluate("document.documentElement.scrollWidth") == width
        assert browser.errors == []


def test_the_records_bear_out_so_many_claims(rebuilt):
    """A change of these numbers is a change of what the project says."""
    outcomes = re.findall(r"\*\*(\w+)\*\*", (rebuilt / "verdicts.md").read_text())
    assert Counter(outcomes) == {"confirmed": 74, "contradicted": 23, "undecided": 59}


def test_the_pages_have_the_numbers_of_the_records():
    pytest.importorskip("scipy", minversion="1.16")  # whose tukey_hsd takes unequal variances
    done = subprocess.run([sys.executable, ROOT / "docs/pages/render.py", "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_a_cpu_is_expected_to_take_is_what_it_took():
    for row in json.loads((ROOT / "benchmarks/results/engine_cpu.json").read_text())["rows"]:
        core_seconds = row["processes"] * row["threads"] * row["engine_step_ms"] / 1e3 / 256
        # Of a step's three products evaluation has one, over 7 images for each 6 of training.
        assert networks()[row["model"]].cost.cpu_seconds == pytest.approx(core_seconds * (1 + 7 / 18), rel=0.1)
