"""Any change of the user's code or values changes a fingerprint; comments, docstrings and layout do not."""

import functools
import importlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from torch import nn

from heatbath.tasks.fingerprints import NoFingerprintError, fingerprint

MODEL = """
from torch import nn
from {helper} import width

SCALE = 2.0


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, width())

    def forward(self, x):
        return self.linear(x) * SCALE


def make():
    return nn.Sequential(Layer(), nn.ReLU())
"""
HELPER = "def width():\n    return 3\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write a module and its helper, import them anew, and return the fingerprint of what the module makes."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    written = iter(range(100))

    def write(model=MODEL, helper=HELPER):
        # The same names each time, as an edited file has.
        folder = tmp_path / "code"
        folder.mkdir(exist_ok=True)
        (folder / "my_helper.py").write_text(helper)
        (folder / "my_model.py").write_text(model.format(helper="my_helper"))
        program = f"import sys; sys.path.insert(0, {str(folder)!r}); import my_model"
        program += "; from heatbath.tasks.fingerprints import fingerprint; print(fingerprint(my_model.make))"
        next(written)
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    return write


def test_code_counts_with_all_that_it_names(package):
    base = package()
    assert package() == base
    assert len(base) == 16
    comment = MODEL.replace("    def forward", "    # how it is computed\n    def forward").replace(
        "def make():", 'def make():\n    """Return it."""'
    )
    assert package(comment) == base
    edits = [("* SCALE", "+ SCALE"), ("SCALE = 2.0", "SCALE = 2.5"), ("nn.ReLU()", "nn.GELU()"), ("(4,", "(5,")]
    found = {package(MODEL.replace(*edit)) for edit in edits}
    found.add(package(helper=HELPER.replace("3", "5")))
    assert len(found | {base}) == 6


def test_values_count():
    def make(width=3, *, depth=1):
        return nn.Linear(width, depth)

    def other(width=4, *, depth=1):
        return nn.Linear(width, depth)

    values = [
        *(1, 1.0, True, "1", b"1", None, (1,), [1], {1: 2}, {1}, range(3), torch.float32),
        *(torch.ones(2), torch.ones(2, 1), torch.zeros(2), torch.ones(2).double(), np.ones(2), np.ones(3)),
        *(
            make,
            other,
            functools.partial(make, 3),
            functools.partial(make, 4),
            nn.Linear,
            nn.Conv2d,
            lambda: 1,
            lambda: 2,
        ),
    ]
    assert len({fingerprint(value) for value in values}) == len(values)
    assert fingerprint(make) == fingerprint(make)
    assert fingerprint(torch.ones(2)) == fingerprint(torch.ones(2))


def test_closures_and_objects_count():
    def factory(width):
        return lambda: nn.Linear(width, 1)

    assert fingerprint(factory(3)) != fingerprint(factory(4))
    assert fingerprint(factory(3)) == fingerprint(factory(3))

    class Factory:
        def __init__(self, width):
            self.width = width

        def __call__(self):
            return nn.Linear(self.width, 1)

        def make(self):
            return nn.Linear(self.width, 2)

    assert fingerprint(Factory(3)) == fingerprint(Factory(3))
    assert len({fingerprint(one) for one in (Factory(3), Factory(4), Factory(3).make, Factory)}) == 4
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    before = fingerprint(lambda: model)
    with torch.no_grad():
        model.weight += 1
    assert fingerprint(lambda: model) != before


def test_a_recursive_function_and_a_cycle_end():
    def deeper(n):
        return deeper(n - 1) if n else 0

    assert fingerprint(deeper)
    cycle = []
    cycle.append(cycle)
    assert fingerprint(cycle)


def test_installed_code_counts_by_its_name():
    assert fingerprint(nn.Linear) == fingerprint(torch.nn.modules.linear.Linear)
    assert fingerprint(importlib.import_module("torch")) != fingerprint(importlib.import_module("numpy"))


def test_what_is_installed_elsewhere_counts_by_its_name_too(tmp_path, monkeypatch):
    """For one user alone, or by the parent of a virtual environment."""
    folder = tmp_path / "lib/site-packages"
    folder.mkdir(parents=True)
    (folder / "installed_elsewhere.py").write_text(
        "import threading\nlock = threading.Lock()\ndef take(): return lock\n"
    )
    monkeypatch.syspath_prepend(folder)
    assert fingerprint(importlib.import_module("installed_elsewhere").take)


def test_what_has_no_content_is_refused(tmp_path):
    with open(tmp_path / "file", "w") as file:

        def make():
            file.write("made")
            return nn.Linear(1, 1)

        with pytest.raises(NoFingerprintError, match="a TextIOWrapper"):
            fingerprint(make)


def test_code_without_source_counts_by_what_is_compiled():
    spaces = [{}, {}, {}]
    for space, text in zip(spaces, ("1 + 1", "1 + 1", "1 + 2"), strict=True):
        exec(textwrap.dedent(f"def make():\n    return {text} * x\nx = 3"), space)
    found = [fingerprint(space["make"]) for space in spaces]
    assert found[0] == found[1] != found[2]
    spaces[0]["x"] = 4
    assert fingerprint(spaces[0]["make"]) != found[1]
