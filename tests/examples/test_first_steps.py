"""The notebook examples/first_steps.ipynb runs, and its cells show what they promise."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples/first_steps.ipynb"
# In a process of its own: the client leaves sockets to the garbage collector, which is a warning.
EXECUTE = """
import json, sys
import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], 4)
kernel = AsyncKernelManager()
kernel.kernel_spec.argv[0] = sys.executable
NotebookClient(notebook, km=kernel, timeout=240).execute()
print(json.dumps([cell.outputs for cell in notebook.cells if cell.cell_type == "code"]))
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What each cell shows, by the names of its forms."""
    for package in ("nbclient", "ipykernel", "matplotlib"):
        pytest.importorskip(package)
    command = [sys.executable, "-c", EXECUTE, str(NOTEBOOK)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path_factory.mktemp("notebook"))
    assert done.returncode == 0, done.stderr
    return [[one.get("data", one) for one in cell] for cell in json.loads(done.stdout.splitlines()[-1])]


def test_a_progress_bar_and_a_table_of_the_records(outputs):
    bar, table = outputs[2]
    assert re.match(r'<progress value="1.000" max="1"></progress> 20 of 20 runs, 0:\d\d:\d\d', bar["text/html"])
    assert table["text/html"].count("<tr>") == 3


def test_a_picture(outputs):
    assert "image/png" in outputs[3][-1]


def test_a_verdict_in_words(outputs):
    assert "10 seeds, paired" in outputs[4][0]["text/html"]


def test_the_noise_of_the_gradient(outputs):
    assert re.fullmatch(r"noise scale \d+ samples\n", outputs[5][0]["text"])


def test_it_is_kept_without_outputs():
    """So that a change of the notebook is a change of its cells."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
