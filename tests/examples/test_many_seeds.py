"""The example trains both of its tasks, and learns."""

import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import many_seeds

    yield many_seeds
    sys.modules.pop("many_seeds")


def test_smoke(example, tmp_path, capsys):
    records = example.main(["--smoke", "--store", str(tmp_path / "store"), "--device", "cpu"])
    assert len(records) == 8
    assert {record.status for record in records} == {"finished"}
    for record in records:
        losses = record.curve("train_loss")
        assert losses[-1] < losses[0]
    assert records.where(model="gpt")[0].final("test_perplexity") < 128
    out = capsys.readouterr().out
    assert "task gpt: 58 + 6 samples" in out
    assert "4 records of cnn on" in out
    assert example.main(["--smoke", "--store", str(tmp_path / "store"), "--device", "cpu"]) == records


def test_shifted_images_keep_their_pixels(example):
    import torch

    images = torch.arange(3 * 28 * 28.0).view(3, 1, 28, 28)
    moved = example.shift(images, torch.Generator().manual_seed(0))
    assert moved.shape == images.shape
    for before, after in zip(images, moved, strict=True):
        assert torch.equal(before.flatten().sort().values, after.flatten().sort().values)
        shifts = [(down, right) for down in range(-2, 3) for right in range(-2, 3)]
        assert any(torch.equal(after, before.roll(shift, (1, 2))) for shift in shifts)
    assert not torch.equal(images, moved)
