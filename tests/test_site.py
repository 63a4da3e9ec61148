"""The documentation site names everything that is public. `make docs` builds it, with warnings as errors."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import heatbath
from heatbath import theory

DOCS = Path(__file__).parents[1] / "docs"


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
