"""What `runs list` shows of runs: what they have in common above, a column for each setting that differs."""

import pytest

from heatbath.cli import screens
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Epoch
from heatbath.runs.store import Store, Update
from heatbath.system.locks import Owner
from heatbath.tasks.facts import TaskFacts
from measured import an_epoch


@pytest.mark.parametrize(
    ("changes", "columns"),
    [
        ({"weight_decay": 0.01}, {"decay": ["0", "0.01"]}),
        ({"nesterov": False}, {"nesterov": ["True", "False"]}),
        ({"precision": "fp32"}, {"precision": ["auto", "fp32"]}),
        ({"validation": 100}, {"validation": ["0", "100"]}),
        ({"weights": "imagenet"}, {"weights": ["-", "imagenet"]}),
        ({"batch_size": 64, "momentum": 0.0}, {"batch": ["256", "64"], "mom.": ["0.9", "0"]}),
        ({"seed": 7}, {"seed": ["0", "7"]}),
        ({"epochs": 5}, {}),
    ],
)
def test_a_column_for_each_setting_that_differs(heatbath, monkeypatch, tmp_path, changes, columns):
    base = RunConfig(model="vgg16", dataset="cifar10", epochs=3)
    with Store(tmp_path / "runs") as store:
        store.add([base, base.with_(**changes)])
    monkeypatch.setattr(screens, "terminal_width", lambda: 80)
    lines = heatbath("runs", "list")[1].splitlines()
    rule = next(k for k, line in enumerate(lines) if line.startswith("─"))
    assert lines[rule - 1].split() == ["run", *columns, "status", "epochs", "test", "best"]
    rows = [line.split() for line in lines[rule + 1 : rule + 3]]
    assert [list(cells) for cells in zip(*rows, strict=True)][1:-4] == list(columns.values())
    assert [row[-3] for row in rows] == ["0/3", "0/5" if "epochs" in changes else "0/3"]


def test_random_runs_are_told_apart(heatbath, tmp_path):
    base = RunConfig(protocol="random", epochs=1)
    laws = "uniform:0.5", f"twopoint:{1 / 3**0.5}", "exponential"
    with Store(tmp_path / "runs") as store:
        store.add([base, base.with_(coupling="update"), *(base.with_(law=law) for law in laws)])
    heading, _, _, *lines = heatbath("runs", "list")[1].splitlines()[:8]
    assert heading.startswith("mlp on mnist5k: random, lr 0.005, ")
    found = [line[8:].split("pending")[0].strip() for line in lines]
    assert found == ["random", "random update", "uniform:0.5", "twopoint:0.5774", "exponential"]


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (100, []),
        (88, ["best"]),
        (76, ["best", "test"]),
        (70, ["best", "test", "seed"]),
        (60, ["best", "test", "seed", "mom.", "batch"]),
    ],
)
def test_a_table_leaves_out_what_there_is_no_room_for(heatbath, monkeypatch, tmp_path, width, left_out):
    config = RunConfig(model="vgg16", dataset="cifar10", protocol="cyclic:30", lr=0.02 / 3, epochs=180)
    other = config.with_(protocol="random", law="lognormal:0.5", lr=0.01, batch_size=64, momentum=0.5, seed=19)
    with Store(tmp_path / "runs") as store:
        store.add([config, other])
        owner = Owner(store.owners)
        store.claim([config.run], owner)
        store.save(owner, [Update(config.run, 0, [an_epoch(0.01, 0.5, 0.7, 0.6, 0.7)] * 180, "finished")])
        owner.close()
    monkeypatch.setattr(screens, "terminal_width", lambda: width)
    lines = heatbath("runs", "list")[1].splitlines()
    lines = lines[next(k for k, line in enumerate(lines) if line.startswith("run ")) :]
    knobs = ["protocol", "lr", "batch", "mom.", "seed"]
    headings = ["run", *knobs, "status", "epochs", "test", "best"]
    assert lines[0].split() == [heading for heading in headings if heading not in left_out]
    assert max(map(len, lines)) <= width
    assert len(lines) == 2 + 2 + bool(left_out) + 2
    if left_out:
        assert lines[4] == f"no room for: {', '.join(left_out)}"


def facts(name, **parts):
    usual = dict.fromkeys(("model", "train", "test", "loss", "metrics", "augment"), "0")
    return TaskFacts(name, 500, 100, ("loss", "rmse"), {**usual, **parts})


def test_runs_of_tasks_show_their_own_metric_and_what_has_changed(heatbath, tmp_path):
    first, then = (RunConfig(task=facts("walk", model=text), epochs=1) for text in "ab")
    configs = [first, first.with_(seed=1), then, RunConfig(task=facts("other"), epochs=1)]
    with Store(tmp_path / "runs") as store:
        store.add(configs)
        owner = Owner(store.owners)
        store.claim([config.run for config in configs], owner)
        measured = {f"{split}_{name}": 0.25 for split in ("train", "test") for name in ("loss", "rmse")}
        store.save(owner, [Update(config.run, 0, [Epoch(0.1, measured)], "finished", 1.0) for config in configs[:3]])
        owner.close()
    status, out, err = heatbath("runs", "list")
    assert (status, err) == (0, "")
    assert out.count("0.2500") == 6
    (line,) = [line for line in out.splitlines() if "has changed" in line]
    assert line == f"the task walk has changed since 2 runs (model): {first.task.label}"
    assert "walk" in heatbath("runs", "list", "--model", "walk")[1]
    assert (
        "unknown model 'wlak': choose one of mlp, cnn, vgg16, walk, other"
        in heatbath("runs", "list", "--model", "wlak")[2]
    )
    assert heatbath("runs", "export", "runs.csv")[0] == 0
    assert "test_rmse" in (tmp_path / "runs.csv").read_text().splitlines()[0]
    assert heatbath("runs", "show", first.run)[0] == 0
    told = "".join(heatbath("runs", "resume")[1:])
    assert "1 run of the task other left out, as its code is needed: name it with --task" in told
