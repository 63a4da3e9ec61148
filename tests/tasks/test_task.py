"""A task: what it takes, what it refuses in one line, its name in the hash, and its way to a worker."""

import copy
import dataclasses
import pickle
import random
import sys
import time
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import heatbath as hb
from heatbath.tasks import samples, transport
from heatbath.tasks.models import build_model
from heatbath.tasks.probe import probe
from heatbath.tasks.samples import gather
from task_models import NAMES, flip, images, make_task, perceptron, resnet

X, Y = images(40)
ONE = perceptron()
NORM = nn.BatchNorm2d(3, affine=False)


class Pairs(Dataset):
    def __init__(self, count=40, wrong=None):
        self.count, self.wrong = count, wrong

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.wrong:
            return X[index, :, :4], int(Y[index])
        return X[index].numpy(), int(Y[index])


def pairs():
    return X, Y


class Weighing(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, outputs, targets):
        return functional.cross_entropy(outputs * self.weight, targets)


WEIGHING = Weighing()


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.late = perceptron(), None

    def forward(self, x):
        self.late = self.late or nn.Linear(4, 4)
        return self.late(self.layers(x))


class Recomputed(nn.Module):
    """Its dropout would have other masks on the way back."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.Dropout(0.3), nn.ReLU())

    def forward(self, x):
        return checkpoint(self.layers, x, use_reentrant=False)


def three(outputs, targets):
    return outputs[:3, 0]


def nothing(outputs, targets):
    return None


def fails():
    raise OSError("no disk\nat all")


def tokens():
    return nn.Sequential(nn.Embedding(4, 4), nn.Flatten())


def line():
    return nn.Linear(3, 1)


def task(**changes):
    given = {"model": perceptron, "train": (X, Y), "test": (X[:8], Y[:8]), **changes}
    return hb.Task(given.pop("model"), given.pop("train"), given.pop("test"), **given)


@pytest.mark.parametrize(
    "given",
    [
        (X, Y),
        [X.double(), Y.int()],
        (X.numpy(), Y.numpy()),
        (X.tolist(), Y.tolist()),
        TensorDataset(X, Y),
        Pairs(),
        list(zip(X, Y, strict=True)),
        pairs,
        "test_task:pairs",
    ],
    ids=["tensors", "other types", "arrays", "lists", "TensorDataset", "Dataset", "pairs", "function", "path"],
)
def test_data_in_every_form_is_the_same(given, monkeypatch):
    monkeypatch.setitem(sys.modules, "test_task", sys.modules[__name__])
    found = gather(given, "train")
    torch.testing.assert_close(found.inputs, X, rtol=0, atol=1e-6)
    assert torch.equal(found.targets, Y)
    assert (found.inputs.dtype, found.targets.dtype) == (torch.float32, torch.int64)
    if not isinstance(given[0] if isinstance(given, list) else None, torch.Tensor):
        assert found.digest == gather((X, Y), "train").digest


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (X, TypeError, "train must be .* got a Tensor of shape"),
        ((X,), TypeError, "train must be .* got a tuple of 1"),
        ((X, Y[:5]), ValueError, "train has 40 inputs and 5 targets"),
        ((X[:0], Y[:0]), ValueError, "train has no samples"),
        ((X.clone().fill_(float("nan")), Y), ValueError, "train inputs are not all finite numbers"),
        ((["a"], [1]), TypeError, "train inputs must be numbers"),
        ((X + 0j, Y), TypeError, "train inputs must be real numbers"),
        (Pairs(0), ValueError, "train has no samples"),
        (Pairs(wrong=7), ValueError, r"train: sample 7 has the shapes \(3, 4, 8\) and \(\), the first one \(3, 8, 8\)"),
        (Stream(), TypeError, "train has no length"),
        (DataLoader(Pairs()), TypeError, "got a DataLoader: give its dataset$"),
        (((X, X), Y), ValueError, "train has 2 inputs and 40 targets: several inputs"),
        ([1, 2, 3], TypeError, "got a list of 3"),
        ({"inputs": X, "targets": Y}, TypeError, "got a dict with inputs, targets$"),
        (Pairs(50), ValueError, "train: sample 40 fails: IndexError"),
        (3, TypeError, "train must be .* got 3"),
        ("nowhere.at.all:data", ValueError, "train 'nowhere.at.all:data': there is no module nowhere"),
        ("math:data", ValueError, "train 'math:data': math has no data"),
        ("math", ValueError, "name it as package.module:attribute"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_data_that_cannot_be_used_is_told(given, error, message):
    with pytest.raises(error, match=message):
        gather(given, "train")


def test_data_that_does_not_fit_into_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr(samples, "available_memory", lambda: 10_000)
    with pytest.raises(MemoryError, match=r"train: 40 samples of 776 bytes are 0.0 GB, and .*: heatbath holds"):
        gather(Pairs(), "train")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": nn.Linear(2, 2)}, TypeError, "model must be a function that returns a new network, got a Linear"),
        ({"model": 3}, TypeError, "model must be a function"),
        ({"model": "task_models:nothing"}, ValueError, "model 'task_models:nothing': task_models has no nothing"),
        ({"augment": "flip"}, TypeError, "augment must be a function"),
        ({"name": ""}, ValueError, "name must be printable text"),
        ({"loss": "hinge"}, ValueError, "unknown loss 'hinge'"),
        (
            {"test": (X[:5, :, :4], Y[:5])},
            ValueError,
            r"inputs of a sample are \(3, 4, 8\) float32 in test and",
        ),
        ({"test": (X[:5], Y[:5].float())}, ValueError, r"targets of a sample are \(\) float32 in test and \(\) int64"),
        ({"train": (X, Y + 1)}, ValueError, "train labels of task perceptron go up to 4: its model has 4 classes"),
        ({"test": (X[:5], Y[:5] + 9)}, ValueError, "test labels of task perceptron go up to 1"),
        ({"train": (X, Y - 1)}, ValueError, "train labels of task perceptron go down to -1: they start from 0"),
        ({"train": (X, Y.float()), "test": (X, Y.float())}, ValueError, "cross_entropy takes integer labels"),
        (
            {"model": lambda: nn.Linear(3, 4)},
            ValueError,
            r"the model, on inputs of shape \(8, 3, 8, 8\), float32",
        ),
        ({"model": lambda: {}}, TypeError, "the model's function must return an nn.Module, got {}"),
        ({"model": lambda: 1 / 0}, ValueError, "the model's function of task model fails: ZeroDivisionError"),
        ({"model": nn.Flatten}, ValueError, "the model of task Flatten has no parameters to train"),
        ({"model": lambda: Returning({"scores": 1})}, TypeError, "the model returns a dict with scores"),
        ({"model": lambda: Returning(None)}, TypeError, "the model returns a NoneType"),
        (
            {"loss": lambda o, t: functional.cross_entropy(o, t, reduction="sum")},
            ValueError,
            "is not a mean over the batch",
        ),
        (
            {"loss": lambda o, t: functional.cross_entropy(o, t, reduction="none")},
            ValueError,
            r"tensor of shape \(8,\)",
        ),
        ({"loss": lambda o, t: 0.5}, ValueError, "the loss of task perceptron returns 0.5"),
        ({"loss": lambda o, t: o.sum() * float("nan")}, ValueError, "is nan before the first step"),
        ({"loss": lambda o, t: t.float().mean()}, ValueError, "does not depend on the model's parameters"),
        ({"metrics": "mae"}, ValueError, "metric mae of task perceptron fails: ValueError: outputs have shape"),
        ({"augment": lambda inputs, generator: inputs[:3]}, ValueError, r"returns \(3, 3, 8, 8\) for inputs of shape"),
        ({"augment": lambda inputs: inputs}, ValueError, "augment of task perceptron fails: TypeError"),
        ({"metrics": three}, ValueError, r"task perceptron: metric three returns a tensor of shape \(3,\): it must"),
        ({"metrics": nothing}, ValueError, "task perceptron: metric nothing returns None: it must return one number"),
        ({"model": lambda sizes: 1}, ValueError, "the model's function of task model fails: TypeError: .* missing 1"),
        (
            {"model": lambda: _with_bias(float("nan"))},
            ValueError,
            "the loss of task model is nan before the first step",
        ),
        ({"model": lambda: nn.LazyLinear(4)}, ValueError, "the model of task model has lazy layers"),
        ({"model": Recomputed}, ValueError, "the gradient of task Recomputed fails: CheckpointError: "),
        ({"train": (X, Y * 0 - 100)}, ValueError, "train labels of task perceptron are all -100"),
        (
            {"loss": "binary_cross_entropy", "train": (X, Y.float()), "test": (X[:8], Y[:8].float())},
            ValueError,
            "train targets of task perceptron go from 0 to 3: binary_cross_entropy takes 0 to 1",
        ),
        (
            {"loss": functional.cross_entropy, "test": (X, torch.where(torch.arange(40) == 30, 9, Y))},
            ValueError,
            "the loss, on the test samples of the least and the greatest numbers, .*: Target 9 is out of bounds",
        ),
        (
            {"model": tokens, "train": (Y[:, None], Y), "test": (torch.arange(40)[:, None], Y)},
            ValueError,
            "the model, on the test samples of the least and the greatest numbers, of task tokens fails: IndexError",
        ),
        (
            {"train": (Y, X), "test": (Y[:8], X[:8])},
            ValueError,
            r"swapped: its model takes the targets, \(3, 8, 8\) float32 for a sample, and not the inputs, \(\) int64",
        ),
        (
            {
                "model": line,
                "loss": "mse",
                "train": (X[:, 0, 0, 0], X[:, :, 0, 0]),
                "test": (X[:, 0, 0, 0], X[:, :, 0, 0]),
            },
            ValueError,
            "task line seems to have its inputs and targets swapped",
        ),
        (
            {
                "model": line,
                "loss": "mse",
                "train": (X[:, :, 0, 0], X[:, 0, 0, 0]),
                "test": (X[:, :, 0, 0], X[:, 0, 0, 0]),
            },
            ValueError,
            "metric accuracy of task line fails: ValueError: targets are fractions, where integer labels are needed",
        ),
        ({"train": fails}, ValueError, "train: its function fails: OSError: no disk$"),
        ({"model": lambda: ONE}, ValueError, "the models of task model share weights, .* copy.deepcopy"),
        ({"model": lambda: nn.Sequential(ONE, nn.ReLU())}, ValueError, "the models of task model share weights"),
        ({"model": lambda: nn.Sequential(NORM, perceptron())}, ValueError, "the models of task model share weights"),
        ({"model": lambda: perceptron().double()}, ValueError, "takes float64 inputs, those of train are float32: "),
        ({"train": (X > 0, Y), "test": (X > 0, Y)}, ValueError, "takes float32 inputs, those of train are int64: "),
        ({"augment": lambda x, g: x + torch.randn_like(x)}, ValueError, "augment of task perceptron draws otherwise"),
        ({"augment": lambda x, g: x + random.random()}, ValueError, "augment of task perceptron draws otherwise"),
        ({"model": lambda: Growing()}, ValueError, "the model of task model makes weights in its forward"),
        ({"loss": WEIGHING}, ValueError, "the loss of task perceptron has weights of its own"),
        ({"model": lambda: Complex()}, ValueError, "the model of task model has complex weights"),
        (
            {"model": lambda: nn.Sequential(nn.Embedding(4, 4, sparse=True), nn.Flatten()), "train": (Y[:, None], Y)}
            | {"test": (Y[:, None], Y)},
            ValueError,
            "the model of task model has sparse gradients",
        ),
        (
            {"train": (X, functional.one_hot(Y)), "test": (X, functional.one_hot(Y))},
            ValueError,
            r"these must be integer labels of shape \(8,\)",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_cannot_be_trained_is_one_line(changes, error, message):
    with pytest.raises(error, match=message) as caught:
        probe(task(**changes))
    assert "\n" not in str(caught.value)


def test_frozen_layers_may_be_shared():
    features = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), NORM).requires_grad_(False).eval()

    class Headed(nn.Module):
        def __init__(self):
            super().__init__()
            self.features, self.head = features, perceptron()

        def forward(self, x):
            return self.head(self.features.eval()(x))

    assert not probe(task(model=Headed)).same_start


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(192, 4, dtype=torch.complex64))

    def forward(self, x):
        return (x.flatten(1) + 0j @ self.weight).abs()


class Returning(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.layer, self.value = nn.Linear(2, 2), value

    def forward(self, x):
        return self.value


@pytest.mark.parametrize("name", NAMES)
def test_initial_weights_are_a_function_of_the_seed(name):
    one = make_task(name)
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    first, again, other = one.build(5), one.build(5), one.build(6)
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    ours, theirs, others = (model.state_dict() for model in (first, again, other))
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert any(not torch.equal(ours[key], others[key]) for key in ours)
    found = probe(one)
    assert not found.same_start
    assert found.cost.weights == sum(parameter.numel() for parameter in first.parameters())


def test_the_papers_perceptron_as_a_task_starts_as_it_does():
    def layers():
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))

    built = task(model=layers).build(7)
    for ours, theirs in zip(built.parameters(), build_model("mlp", seed=7).parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_factory_that_ignores_the_seed_is_refused_and_one_of_fixed_weights_is_known():
    generator = torch.Generator().manual_seed(3)

    def wild():
        model = perceptron()
        nn.init.normal_(model[1].weight, generator=generator)
        return model

    with pytest.raises(ValueError, match="starts from other weights each time it is made with one seed"):
        probe(task(model=wild))
    trained = perceptron()
    assert probe(task(model=lambda: copy.deepcopy(trained))).same_start
    numpy_drawn = task(model=lambda: _with_bias(np.random.rand(), random.random()))  # noqa: NPY002
    assert not probe(numpy_drawn).same_start


def _with_bias(*numbers):
    model = perceptron()
    with torch.no_grad():
        model[1].bias[:2] = torch.tensor(numbers)
    return model


def test_every_part_is_in_the_digest():
    base = task().facts
    changed = {
        "model": task(model=resnet, name="perceptron"),
        "train": task(train=(X + 1e-3, Y)),
        "test": task(test=(X[:9], Y[:9])),
        "loss": task(loss=functional.cross_entropy),
        "metrics": task(metrics=("accuracy", "perplexity")),
        "augment": task(augment=flip),
    }
    for part, other in changed.items():
        assert base.changes(other.facts) == [part]
        assert other.facts.digest != base.digest
        assert hb.RunConfig(task=other, batch_size=8).run != hb.RunConfig(task=task(), batch_size=8).run
    assert task(name="other").facts.digest != base.digest
    assert task().facts == base == task()
    assert task() != changed["model"]
    assert repr(task()) == "Task('perceptron': data not read yet; loss, accuracy)"
    known = task()
    assert len(known.train) + len(known.test) == 48
    assert repr(known) == "Task('perceptron': 40 + 8 samples, 0.0 MB; loss, accuracy)"
    assert repr(known.train) == "Samples((40, 3, 8, 8) float32 to (40,) int64)"
    assert repr(known.facts) == f"TaskFacts({known.label}: 40 + 8 samples; loss, accuracy)"


def test_data_that_changes_after_it_was_read_changes_no_run(tmp_path):
    """In memory or on disk: a name never stands for other numbers than those that were trained on."""
    given = X.clone()
    one = task(train=(given, Y))
    name, digest = hb.RunConfig(task=one, batch_size=8).run, one.train.digest
    given += 1
    assert one.train.digest == digest
    np.save(tmp_path / "x.npy", X.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r+")
    onto_disk = task(train=(mapped, Y))
    assert hb.RunConfig(task=onto_disk, batch_size=8).run == name
    mapped[:] = given.numpy()
    assert onto_disk.train.digest == digest
    for other in (task(train=(given, Y)), task(train=(mapped, Y))):
        assert hb.RunConfig(task=other, batch_size=8).run != name
        assert one.facts.changes(other.facts) == ["train"]


def test_a_module_that_fails_is_told(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("raise RuntimeError('no\\nway')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"model 'broken:make': the import of broken fails: RuntimeError: no$"):
        task(model="broken:make")


def test_what_has_no_digest_is_refused(tmp_path):
    file = open(tmp_path / "file", "w")  # noqa: SIM115

    def make():
        file.write("made")
        return perceptron()

    with pytest.raises(ValueError, match=r"the model of task make refers to a TextIOWrapper .* make it inside"):
        task(model=make).facts  # noqa: B018
    file.close()


def test_a_task_goes_through_a_pickle_once():
    scale = 2.0

    def local(outputs, targets):
        return scale * functional.cross_entropy(outputs, targets)

    config = hb.RunConfig(task=task(model=lambda: perceptron(), loss=local, augment=flip), batch_size=8)
    probed = probe(config.task)
    text = pickle.dumps(config)
    assert len(text) < 10_000, "the data goes another way"
    first, again = pickle.loads(text), pickle.loads(text)
    assert first == config
    assert first.run == config.run
    assert first.task is again.task
    assert first.task.probed == probed
    assert torch.equal(first.task.train.inputs, X)
    assert float(first.task.loss.mean(torch.zeros(2, 4), Y[:2])) == pytest.approx(2 * np.log(4))


def test_without_cloudpickle_the_main_program_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    main = types.ModuleType("__main__")
    exec("from torch import nn\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(192, 4))", main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(ValueError, match=r"task make is defined in the main program.*pip install cloudpickle"):
        pickle.dumps(task(model=main.make))
    with pytest.raises(ValueError, match=r"task model cannot be sent to a worker process .*pip install cloudpickle"):
        pickle.dumps(task(model=lambda: perceptron()))
    by_reference = task(name="by reference", metrics=("top5_accuracy", "perplexity"))
    assert pickle.loads(pickle.dumps(by_reference)).name == "by reference"


def test_a_module_that_a_worker_cannot_import_is_told(tmp_path, monkeypatch):
    (tmp_path / "vanishing.py").write_text(
        "from task_models import perceptron as make\ndef own():\n    return make()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import vanishing

    owner = task()
    packed = transport.pack(owner, (vanishing.own,), (owner.train, owner.test))
    monkeypatch.delitem(sys.modules, "vanishing")
    assert packed.unpack("t")[0]() is not None, "the sender's path is known"
    monkeypatch.delitem(sys.modules, "vanishing")
    (tmp_path / "vanishing.py").unlink()
    gone = dataclasses.replace(packed, path=())
    with pytest.raises(ValueError, match=r"task t cannot be imported in a worker \(No module named 'vanishing'\)"):
        gone.unpack("t")


def test_the_cost_of_a_sample_is_that_of_later_steps(monkeypatch):
    clock = [0.0]

    class Slow(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            clock[0] += 10.0 if self.calls < 3 else 1e-4 * len(x)  # the first ones set something up
            return super().forward(x)

    monkeypatch.setattr(time, "thread_time", lambda: clock[0])
    task = hb.Task(lambda: nn.Sequential(nn.Flatten(), Slow(192, 4)), (X, Y), (X, Y))
    assert probe(task).cost.cpu_seconds == pytest.approx(1.5e-4)
