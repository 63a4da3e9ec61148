"""The documentation site names everything that is public, and is built with warnings as errors, as `make docs` does."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import heatbath
from heatbath import theory

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def test_the_api_page_has_every_public_name_once():
    named = re.findall(r"^\.\. auto(class|function):: heatbath\.(\w+)$", (DOCS / "reference/api.md").read_text(), re.M)
    assert sorted(name for _, name in named) == sorted(set(heatbath.__all__) - {"theory"})
    for kind, name in named:
        assert (kind == "class") == isinstance(getattr(heatbath, name), type), name


def test_the_theory_page_has_every_module():
    page = (DOCS / "reference/theory.md").read_text()
    assert sorted(re.findall(r"^\.\. automodule:: heatbath\.theory\.(\w+)$", page, re.M)) == sorted(theory.__all__)


def test_every_page_is_in_the_table_of_contents():
    listed = re.findall(r"^([\w/-]+)$", (DOCS / "index.md").read_text(), re.M)
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in (*DOCS.glob("*.md"), *DOCS.glob("reference/*.md"))}
    assert set(listed) == (pages - {"index"}) | {"gallery/index", "reference/command-line"}


def test_the_page_of_the_command_line_has_every_command_and_option(tmp_path):
    page = tmp_path / "page.md"
    program = f"import command_line, pathlib; command_line.write(pathlib.Path({str(page)!r}))"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=DOCS / "extensions")
    text = page.read_text()
    for command in ("train", "thermostat", "runs list", "reproduce"):
        assert f"# heatbath {command}\n" in text
    assert "| `--sampling` |" in text.partition("# heatbath thermostat\n")[2]
    assert "required" in text.partition("# heatbath thermostat\n")[2].partition("`--lr`")[2].partition("\n")[0]


@pytest.mark.parametrize("script", sorted(DOCS.glob("tutorials/plot_*.py")), ids=lambda path: path.stem)
def test_tutorials_run(script, tmp_path):
    pytest.importorskip("matplotlib")
    quiet = {**os.environ, "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=quiet, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built from a copy. The tutorials are executed above, each in a test of its own."""
    for package in ("sphinx", "furo", "myst_parser", "sphinx_gallery", "sphinx_copybutton", "matplotlib"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, folder / "docs", ignore=shutil.ignore_patterns("gallery", "__pycache__"))
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-D", "plot_gallery=0", "docs", "out"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "out"


class _Page(HTMLParser):
    """The links of a page, and what can be linked to in it."""

    def __init__(self, page):
        super().__init__()
        self.links, self.anchors, self.fetched = [], set(), []
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        target = found.get("href") or found.get("src")
        if target and tag in ("a", "img"):
            self.links.append(target)
        elif target:
            self.fetched.append(target)


def test_every_link_of_the_site_leads_somewhere(site):
    pages = {page: _Page(page) for page in site.rglob("*.html")}
    assert len(pages) > 40
    broken = set()
    for page, content in pages.items():
        for link in content.links:
            path, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            target = (page.parent / unquote(path)).resolve() if path else page
            if not target.exists() or (anchor and target in pages and unquote(anchor) not in pages[target].anchors):
                broken.add((page.name, link))
    assert broken == set()


def test_the_site_fetches_nothing(site):
    """No script, style or font of another host: it works offline."""
    foreign = {(page.name, one) for page in site.rglob("*.html") for one in _Page(page).fetched if "//" in one}
    assert foreign == set()
