"""The Python blocks of docs/integrations.md and docs/keras.md do what the pages say."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hosts import Perceptron, Samples, batches, weights

import heatbath as hb

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "integrations.md").read_text()
RECIPES = {
    heading.strip(): re.findall(r"```python\n(.*?)```", text, re.S)
    for heading, text in re.findall(r"^## (.*?)$(.*?)(?=^## |\Z)", PAGE, re.S | re.M)
}


def follow(heading, block=0, **names):
    """Execute a block under a heading; return the names that it leaves."""
    exec(compile(RECIPES[heading][block], f"docs/integrations.md, {heading}", "exec"), names)
    return names


def oracle(steps, scheduled=False):
    """Weights after steps of RandomSGD in a plain loop, with the settings of the page."""
    model = Perceptron()
    optimizer = hb.RandomSGD(model.parameters(), lr=0.1, momentum=0.9, law="uniform:1", seed=0)
    seen = [batch for _ in range(2) for batch in batches()]
    for k, batch in enumerate(seen[:steps]):
        optimizer.param_groups[0]["lr"] = 0.1 * (1.0 - k / steps if scheduled else 1.0)
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
    return weights(model)


def test_every_recipe_is_tested():
    source = Path(__file__).read_text()
    assert {heading for heading in RECIPES if f'"{heading}"' not in source} == set()
    blocks = {heading: len(blocks) for heading, blocks in RECIPES.items()}
    assert blocks == {heading: 2 if heading == "Transformers" else 1 for heading in RECIPES}


def test_lightning_and_what_a_callback_does(tmp_path, monkeypatch, capsys):
    import lightning.pytorch as pl
    from test_lightning import QUIET, Module

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pl, "Trainer", partial(pl.Trainer, **QUIET))
    names = follow("Lightning", module=Module(), loader=batches())
    assert torch.equal(weights(names["module"]), oracle(6))
    capsys.readouterr()
    follow("What a callback does", thermometer=names["thermometer"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["2", "4", "6"]


def test_accelerate(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = follow("Accelerate", model=Perceptron(), loader=batches())
    assert torch.equal(weights(names["model"]), oracle(6))
    assert len(names["thermometer"].history) == 3
    assert names["thermometer"].temperature > 0
    saved = torch.load(tmp_path / "checkpoint" / "custom_checkpoint_0.pkl")
    assert saved == names["thermometer"].state_dict()


def test_transformers(tmp_path, monkeypatch):
    import transformers
    from hosts import training_arguments

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(transformers, "TrainingArguments", training_arguments)
    names = follow("Transformers", model=Perceptron(), dataset=Samples())
    trainer = names["trainer"]
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.0, 0.0]
    torch.testing.assert_close(weights(trainer.model), oracle(10, scheduled=True), rtol=0, atol=1e-6)
    names = follow("Transformers", 1, trainer=trainer)
    assert [reading["step"] for reading in names["thermometer"].history] == [2, 4, 6, 8, 10]


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm brings torchvision")
def test_timm():
    optimizer = follow("timm", model=Perceptron())["optimizer"]
    assert isinstance(optimizer, hb.RandomSGD)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 1e-4]
    assert {group["law"] for group in optimizer.param_groups} == {hb.Uniform(1.0)}


def test_optax():
    import jax.numpy as jnp

    optimizer = follow("optax")["optimizer"]
    params = jnp.ones(3)
    updates, _ = optimizer.update(jnp.ones(3), optimizer.init(params), params)
    (alpha,) = hb.draw("uniform:0.5", 0, 0, 1)
    np.testing.assert_allclose(updates, np.full(3, -1e-3 * alpha), rtol=1e-5)


# In a process of its own: Keras takes the backend once. It prints the weights before and after.
KERAS = """
import json, sys
import numpy as np
nesterov = sys.argv[1] == "nesterov"
{recipe}
optimizer.nesterov = nesterov
layers = [keras.Input((5,)), keras.layers.Dense(7, activation="tanh"), keras.layers.Dense(3)]
model = keras.Sequential(layers)
before = [w.tolist() for w in model.get_weights()]
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer, loss=loss)
inputs, labels = (np.array(values) for values in json.load(sys.stdin))
model.fit(inputs.astype("float32"), labels, batch_size=8, epochs=2, shuffle=False, verbose=0)
restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer), {{"RandomRate": RandomRate}})
assert float(restored.learning_rate) == float(np.float32(0.1 * hb.draw("uniform:1", 0, 0, 1)[0]))
print(json.dumps([keras.backend.backend(), before, [w.tolist() for w in model.get_weights()]]))
"""


@pytest.mark.parametrize(("backend", "rule"), [("torch", "plain"), ("jax", "nesterov")])
def test_a_random_schedule_of_keras_is_coupling_gradient(backend, rule, tmp_path):
    (recipe,) = re.findall(r"```python\n(.*?)```", (DOCS / "keras.md").read_text(), re.S)
    program = KERAS.format(recipe=recipe)
    samples = Samples()
    done = subprocess.run(
        [sys.executable, "-c", program, rule],
        input=json.dumps([samples.inputs.tolist(), samples.labels.tolist()]),
        env={**os.environ, "KERAS_BACKEND": backend, "KERAS_HOME": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    used, before, after = json.loads(done.stdout.splitlines()[-1])
    assert used == backend
    distances = {}
    for coupling in ("gradient", "update"):
        model = Perceptron()
        with torch.no_grad():
            for p, weight in zip(model.parameters(), before, strict=True):
                p.copy_(torch.tensor(np.transpose(weight)))
        settings = {"momentum": 0.9, "nesterov": rule == "nesterov", "coupling": coupling}
        optimizer = hb.RandomSGD(model.parameters(), 0.1, **settings, law="uniform:1", seed=0)
        for batch in [*batches(), *batches()]:
            optimizer.zero_grad()
            model(**batch)["loss"].backward()
            optimizer.step()
        pairs = zip(model.parameters(), after, strict=True)
        distances[coupling] = max(np.abs(p.detach().numpy() - np.transpose(weight)).max() for p, weight in pairs)
    assert distances["gradient"] < 1e-6
    assert distances["update"] > 1e-2
