"""The Python blocks of docs/clusters.md do what the page says."""

import re
from pathlib import Path

import pytest

import heatbath as hb

PAGE = (Path(__file__).parents[3] / "docs/clusters.md").read_text()
BLOCKS = {
    heading: code
    for heading, text in re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
}


def test_the_page_has_a_recipe_for_each():
    assert set(BLOCKS) == {"Ray", "Futures", "Slurm"}


@pytest.mark.parametrize("heading", BLOCKS)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")  # of Ray's and submitit's own files
def test_a_recipe_gives_the_records_of_this_machine(heading, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    names = {"__name__": "recipe"}
    exec(compile(BLOCKS[heading], f"docs/clusters.md, {heading}", "exec"), names)
    stores = [tmp_path / "runs"] if heading != "Slurm" else [tmp_path / "runs" / str(part) for part in (1, 2)]
    found = {record.run: record.epochs for store in stores for record in hb.load(store)}
    expected = hb.run(names["configs"], device="cpu", workers=1)
    assert found == {record.run: record.epochs for record in expected}
