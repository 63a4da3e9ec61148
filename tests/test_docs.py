"""What the documents claim about the code and its tests is true of them."""

import re
from pathlib import Path

import pytest

import heatbath as hb

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))]
REFERENCE = [f"docs/reference/{name}.md" for name in ("api", "theory", "formats", "versions")]
GENERATED = {"reference/command-line.md"}  # when the site is built


def test_the_errata_name_tests_that_exist():
    text = (ROOT / "docs/errata.md").read_text()
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", text))
    assert len(named) > 10
    assert {name for name in named if f"def {name}(" not in sources} == set()
    for file in re.findall(r"[\w/]*test_\w+\.py", text):
        assert (ROOT / "tests" / file).exists(), file


@pytest.mark.parametrize("page", [*PAGES, *REFERENCE, "CONTRIBUTING.md", "results/README.md"])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https://)([^)#]+)", (ROOT / page).read_text()):
        assert target in GENERATED or ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_nothing_is_left_to_fill_in(page):
    assert re.findall(r"TODO|FIXME|XXX|\b[A-Z]+_(?:ON_)?(?:CPU|GPU|VGG|CNN)\b", (ROOT / page).read_text()) == []


def test_the_thermostat_of_the_readme():
    t = hb.Thermostat(lr=5e-4, batch_size=256, momentum=0.9, nesterov=True, law=hb.Uniform(1.0))
    assert t.at(batch_size=1024).lr == pytest.approx(0.002)
    assert t.at(law=hb.Constant()).lr == pytest.approx(0.000667, abs=1e-6)
    assert t.at(batch_size=128, solve="momentum").temperature() == pytest.approx(t.temperature())
