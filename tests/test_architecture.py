"""The house rules that a machine can check: who imports whom, and what ``import heatbath`` costs."""

import ast
import json
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import heatbath

SOURCE = Path(heatbath.__file__).parent
PROJECT = Path(__file__).parents[1]
# A room imports from itself and from the rooms before it. The modules at the top of the package are the room "top".
ROOMS = (
    *("system", "top", "theory", "data", "optim", "thermometry", "tasks", "stats", "runs"),
    *("engine", "report", "studies", "integrations", "paper", "cli"),
)
MODULES = sorted(SOURCE.rglob("*.py"))


def room(path):
    """The folder of a module; "top" for one that lies beside the folders, "package" for what is above all rooms."""
    parts = path.relative_to(SOURCE).parts
    if len(parts) > 1:
        return parts[0]
    return "package" if parts[0] in ("__init__.py", "__main__.py") else "top"


def module(path):
    """The dotted name of a file."""
    return ".".join(("heatbath", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def imports(tree):
    """Every module that a file names in an import, at its top or inside a function; of ours the full names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = {f"{node.module}.{alias.name}" for alias in node.names} & NAMES.keys()
            yield from names or [node.module]


NAMES = {module(path): path for path in MODULES}
IMPORTS = {name: set(imports(ast.parse(path.read_text()))) for name, path in NAMES.items()}


@pytest.mark.parametrize("name", NAMES)
def test_imports_point_one_way(name):
    here = room(NAMES[name])
    if here == "package":
        return
    assert here in ROOMS, f"give the room {here} its place among the others"
    for imported in IMPORTS[name]:
        if imported.split(".")[0] == "heatbath":
            there = room(NAMES[imported])
            allowed = there == "package" if here == "cli" else False
            allowed |= there in ROOMS and ROOMS.index(there) <= ROOMS.index(here)
            assert allowed, f"{name} imports {imported}, and {there} comes after {here}"


def test_no_module_imports_itself_through_others():
    order = TopologicalSorter({name: found & NAMES.keys() for name, found in IMPORTS.items() if name != "heatbath"})
    assert list(order.static_order())


def test_no_file_is_too_long():
    assert not [name for name, path in NAMES.items() if len(path.read_text().splitlines()) > 400]


def test_no_function_is_too_long():
    """60 lines with the signature, without the docstring."""
    long = []
    for name, path in NAMES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                told = node.body[0].end_lineno - node.body[0].lineno + 1 if ast.get_docstring(node) else 0
                if node.end_lineno - node.lineno + 1 - told > 60:
                    long.append(f"{name}.{node.name}")
    assert long == []


def test_the_map_names_every_room():
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")} | {"top"}
    table = re.findall(r"^\| `?(\w+)/?`? \|", (PROJECT / "docs/design.md").read_text().partition("| room |")[2], re.M)
    assert sorted(table) == sorted(rooms) == sorted(ROOMS)


@pytest.mark.parametrize("path", [p for p in MODULES if room(p) in ("theory", "top")])
def test_the_theory_never_imports_torch(path):
    assert not [name for name in IMPORTS[module(path)] if name.split(".")[0] == "torch"]


def test_plots_alone_import_matplotlib():
    users = {name.rpartition(".")[0] for name, found in IMPORTS.items() if any("matplotlib" in n for n in found)}
    assert users == {"heatbath.report.plots"}


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
