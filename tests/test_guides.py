"""Every Python block of the guides runs, from top to bottom of its page."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import heatbath as hb

DOCS = Path(__file__).parents[1] / "docs"
ELSEWHERE = {"integrations.md", "keras.md", "clusters.md"}  # test_recipes.py, test_cluster_recipes.py


def network():
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))


def rings(count, seed):
    rng = np.random.default_rng(seed)
    label = rng.integers(2, size=count)
    angle, radius = 2 * np.pi * rng.random(count), 1 + label + 0.3 * rng.standard_normal(count)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32), label


def batches(count=260):
    return [tuple(map(torch.from_numpy, rings(16, seed))) for seed in range(count)]


def train(model, optimizer, steps):
    for inputs, targets in batches(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def names_of(page):
    """What the page speaks of as yours."""
    torch.manual_seed(0)
    (images, labels), test = rings(160, 0), rings(100, 1)
    task = hb.Task(network, (images, labels), test, name="rings")
    base = hb.RunConfig(task=task, lr=0.05, batch_size=32, epochs=2)
    built = network()
    names = {
        **{"model": network, "network": built, "images": images, "labels": labels, "task": task, "base": base},
        **{"test_images": test[0], "test_labels": test[1], "hb": hb},
    }
    if page in ("measure.md", "random-rates.md", "loggers.md", "batch-size.md", "resume.md"):  # a loop of one's own
        inputs, targets = batches(1)[0]
        names |= {"model": built, "loss_fn": nn.functional.cross_entropy, "inputs": inputs, "targets": targets}
        names |= {"optimizer": torch.optim.SGD(built.parameters(), 0.1), "batches": batches(), "train": train}
        names["adamw"] = torch.optim.AdamW(built.parameters())
        names["writer"] = SimpleNamespace(add_scalar=lambda *_: None)
        names["tracker"] = SimpleNamespace(log=lambda *_, **__: None)
    if page in ("loggers.md", "resume.md", "formats.md", "compare.md", "adding-seeds.md"):
        names["configs"] = hb.sweep(base, protocol=("constant", "random"), seed=range(5))
    if page in ("loggers.md", "formats.md", "compare.md", "adding-seeds.md"):
        names["records"] = hb.run(names["configs"], "runs", "cpu")
        names["a"], names["b"] = (names["records"].where(protocol=one) for one in ("constant", "random"))
    if page == "tasks.md":  # images of 28 x 28
        names["images"], names["test_images"] = (
            np.repeat(x, 392, axis=1).reshape(-1, 28, 28) for x in (images, test[0])
        )
    if page == "compare.md":
        names |= {"network": network, "x": images, "y": labels, "test_x": test[0], "test_y": test[1]}
    return names


PAGES = {
    page: re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    for page in (*DOCS.glob("*.md"), *DOCS.glob("reference/*.md"))
}


@pytest.mark.parametrize("page", [page for page, blocks in PAGES.items() if blocks], ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    if page.name in ELSEWHERE:
        pytest.skip("has tests of its own")
    monkeypatch.chdir(tmp_path)
    names = names_of(page.name)
    for number, block in enumerate(PAGES[page], start=1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)
    capsys.readouterr()


def test_a_resumed_training_is_one_that_never_stopped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = PAGES[DOCS / "resume.md"][:2]
    names = names_of("resume.md")
    exec(first, names)
    names["model"] = network()  # of another process
    names["train"] = lambda model, optimizer, steps: None
    exec(second, names)
    stopped = [p.detach().clone() for p in names["model"].parameters()]
    whole = names_of("resume.md")
    exec(first, whole)
    assert all(torch.equal(p, q) for p, q in zip(stopped, whole["model"].parameters(), strict=True))
    train(names["model"], names["optimizer"], 7)
    train(whole["model"], whole["optimizer"], 7)
    assert all(torch.equal(p, q) for p, q in zip(names["model"].parameters(), whole["model"].parameters(), strict=True))
