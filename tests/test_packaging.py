"""What installs, tests and cites the project says the same everywhere."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import heatbath

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
OLDEST = "constraints-oldest.txt"


def commands(*targets):
    """What `make` would do in a fresh clone, as text."""
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    done = subprocess.run(["make", "-nB", *targets], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout


def test_reproduce_installs_no_development_tools():
    assert "'.[paper]'" in commands("reproduce")
    assert ".[dev]" not in commands("reproduce")
    assert "'.[dev]'" in commands("test")


@pytest.mark.parametrize("target", ["reproduce", "test"])
def test_the_constraints_are_installed_first_and_alone(target):
    first, *others = re.findall(r"pip install (?!.*--upgrade pip).*", commands(target, f"CONSTRAINTS={OLDEST}"))
    assert first.split()[-2:] == ["-r", OLDEST]
    assert "-e" not in first.split()
    assert others
    assert all(f"-c {OLDEST}" in other for other in others)


def test_the_oldest_versions_are_those_that_the_project_admits():
    extras = PROJECT["optional-dependencies"]
    admitted = [*PROJECT["dependencies"], *extras["paper"], *extras["parquet"]]
    floors = dict(re.fullmatch(r"([\w-]+)>=([\d.]+)", requirement).groups() for requirement in admitted)
    oldest = dict(line.split("==") for line in (ROOT / OLDEST).read_text().split())
    assert sorted(oldest) == sorted(floors)
    for name, floor in floors.items():
        assert f"{oldest[name]}.".startswith(f"{floor}."), name


def test_the_workflow_runs_the_makefile_on_every_python_that_the_project_names():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    matrix = jobs["tests"]["strategy"]["matrix"]
    named = [c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert matrix["python"] == named
    assert {row["constraints"] for row in matrix["include"]} == {OLDEST}
    for job in jobs.values():
        for step in job["steps"]:
            if "run" in step:
                make, *targets = step["run"].replace("${{ matrix.constraints }}", matrix["constraints"][0]).split()
                assert make == "make"
                assert commands(*targets)


def test_the_test_command_of_the_readme_is_what_ci_runs():
    assert re.search(r"^make test\b", (ROOT / "README.md").read_text(), re.M)
    assert (ROOT / ".ci/run").read_text().splitlines()[-1] == "make test"


def test_the_citation_is_of_this_version_and_of_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == heatbath.__version__
    assert citation["license"] == PROJECT["license"]
    paper = citation["references"][0]
    assert paper["authors"] == [{"family-names": "Musso", "given-names": "Daniele"}]
    assert paper["identifiers"][0]["value"] == "arXiv:2003.06926"


def test_the_source_distribution_holds_what_its_readme_names():
    named = SETTINGS["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert not [path for path in named if not (ROOT / path.lstrip("/")).exists()]
    top_level = {path.name for path in ROOT.iterdir() if path.suffix in (".md", ".cff")}
    assert not {name for name in top_level if f"/{name}" not in named}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Wheel and source distribution, by the name that they end in."""
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    program = (
        "import sys, hatchling.build as backend; backend.build_sdist(sys.argv[1]); backend.build_wheel(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", program, str(out)], cwd=ROOT, check=True, capture_output=True, text=True)
    return {path.suffix: path for path in out.iterdir()}


def test_the_wheel_works_away_from_the_repository(distributions, tmp_path):
    site = tmp_path / "site"
    with zipfile.ZipFile(distributions[".whl"]) as wheel:
        names = wheel.namelist()
        wheel.extractall(site)
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*") if path.is_file()}
    assert {name for name in sources if "__pycache__" not in name and name not in names} == set()
    assert {name.split("/")[0] for name in names} == {"heatbath", f"heatbath-{heatbath.__version__}.dist-info"}
    command = [
        sys.executable,
        "-m",
        "heatbath",
        "reproduce",
        "figure1",
        "--scale",
        "smoke",
        "--store",
        "runs",
        "--quiet",
    ]
    env = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/report.html").exists()
    where = [sys.executable, "-c", "import heatbath; print(heatbath.__file__)"]
    found = subprocess.run(where, cwd=tmp_path, env=env, check=True, capture_output=True, text=True)
    assert Path(found.stdout.strip()).is_relative_to(site)


def test_the_metadata_of_the_wheel(distributions):
    with zipfile.ZipFile(distributions[".whl"]) as wheel:
        metadata = wheel.read(f"heatbath-{heatbath.__version__}.dist-info/METADATA").decode()
        entry_points = wheel.read(f"heatbath-{heatbath.__version__}.dist-info/entry_points.txt").decode()
    assert f"Version: {heatbath.__version__}\n" in metadata
    assert f"heatbath = {PROJECT['scripts']['heatbath']}\n" in entry_points
    assert {f"Provides-Extra: {extra}" for extra in PROJECT["optional-dependencies"]} <= set(metadata.splitlines())


def test_the_source_distribution_can_be_built_and_tested_from(distributions):
    with tarfile.open(distributions[".gz"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in ("pyproject.toml", "Makefile", "src/heatbath/__init__.py", "tests/test_packaging.py", "docs/conf.py"):
        assert needed in names
    assert not {name for name in names if name.startswith((".venv", "out/", "runs/", "docs/gallery"))}
