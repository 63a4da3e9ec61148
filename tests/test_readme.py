"""Every Python block of the README runs, and its numbers are those of the results."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import heatbath as hb

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def samples(count, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 4, 4, generator=generator)
    return images, images.flatten(1)[:, :3].argmax(1)


def test_many_seeds_and_a_verdict(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (images, labels), (test_images, test_labels) = samples(320, 0), samples(200, 1)
    names = {"model": model, "images": images, "labels": labels, "test_images": test_images, "test_labels": test_labels}
    exec(BLOCKS[0], names)
    assert len(names["records"]) == 20
    assert "10 seeds" in capsys.readouterr().out


def test_one_line_in_a_loop(capsys):
    batches = [samples(8, seed) for seed in range(260)]
    names = {"hb": hb, "model": model(), "batches": batches, "loss_fn": nn.functional.cross_entropy}
    exec(BLOCKS[1], names)
    assert float(names["thermometer"].temperature) > 0
    assert capsys.readouterr().out


def test_the_thermostat(capsys):
    exec(BLOCKS[2], {"hb": hb})
    assert float(capsys.readouterr().out) == pytest.approx(0.002)


def test_all_blocks_are_run_here():
    assert len(BLOCKS) == 3


def test_the_readme_is_short():
    assert len(README.encode()) <= 7168


def test_its_numbers_are_those_of_the_results():
    """The page of results is rendered from the records."""
    answer = README.partition("## Should I use")[2].partition("\n## ")[0]
    numbers = set(re.findall(r"\d+\.\d{4,}", answer))
    results = (ROOT / "docs/results.md").read_text()
    assert len(numbers) >= 8
    assert {number for number in numbers if number not in results} == set()
