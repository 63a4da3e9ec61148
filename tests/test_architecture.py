"""The house rules that a machine can check: who imports whom, and what ``import heatbath`` costs."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import heatbath

SOURCE = Path(heatbath.__file__).parent
# From the ground floor up; a module imports only from floors below its own (and the theory from itself).
FLOORS = [
    {
        "laws",
        "restricted_pickle",
        "averages",
        "moments",
        "welch",
        "owners",
        "databases",
        "machines",
        "arithmetic",
        "halves",
        "convolutions",
        "file_sets",
        "tracing",
    },
    {"draws", "data_files", "gradients", "rehearsals"},
    {"kernels", "group_settings", "thermostat", "protocols", "downloads", "readings", "statistics"},
    {"theory", "pretrained", "data_catalogue", "verdicts"},
    {"randomizer", "stacked_networks", "isotonic", "panels", "ensembles"},
    {"optimizer", "schedulers", "noise", "models", "datasets", "configs"},
    {"dynamics", "records", "resources"},
    {"gradient_pairs", "equilibrium", "replicas"},
    {"thermometer", "engine", "checkpoints", "archives", "tables"},
    {"executors", "store"},
    {"campaigns", "plots"},
    {"runner", "simulation", "plane_simulation", "measurement", "report"},
    {"paper"},
    {"__init__"},
    {"cli"},
    {"__main__"},
]
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}
MODULES = sorted(SOURCE.rglob("*.py"))


def room(path):
    """The first part of a module's name below the package: ``theory`` for ``heatbath/theory/langevin.py``."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(tree):
    """Every module that a file names in an import, at its top or inside a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "heatbath":
                yield from (f"heatbath.{alias.name}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_downwards(path):
    here = room(path)
    assert here in FLOOR, f"give {here} a floor"
    for name in imports(ast.parse(path.read_text())):
        if name.startswith("heatbath."):
            there = name.split(".")[1]
            there = there if there in FLOOR else "__init__"  # a public name of the package itself
            allowed = FLOOR[there] < FLOOR[here] or (there == here and path.name != f"{here}.py")
            assert allowed, f"{here} imports {name}, which is not below it"


@pytest.mark.parametrize("path", [p for p in MODULES if room(p) in ("theory", "laws", "draws", "thermostat")])
def test_the_theory_never_imports_torch(path):
    assert not [name for name in imports(ast.parse(path.read_text())) if name.split(".")[0] == "torch"]


def test_plots_alone_import_matplotlib():
    users = {room(p) for p in MODULES if "matplotlib" in {n.split(".")[0] for n in imports(ast.parse(p.read_text()))}}
    assert users == {"plots"}


def test_import_is_light():
    """Nothing from an extra, and nothing of torch that it does not import itself."""
    program = """
import sys, json
import torch
from torch.optim import lr_scheduler
before = set(sys.modules)
import heatbath
heatbath.RandomSGD, heatbath.RandomLR, heatbath.randomize
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    heavy = {"scipy", "matplotlib", "mlxtend", "pandas", "rich", "typer", "torch._dynamo", "torch.distributed.fsdp"}
    assert not heavy & set(json.loads(done.stdout))


def test_the_theory_and_the_command_line_need_no_torch():
    program = "import sys, heatbath.cli, heatbath.theory.quadratic; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_public_names_are_documented():
    for name in heatbath.__all__:
        assert getattr(heatbath, name).__doc__, name
