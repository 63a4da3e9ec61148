import json
import os

import pytest

from heatbath.data.formats import DataError
from heatbath.engine import run, trainer
from heatbath.engine.options import Options
from heatbath.paper import EXPERIMENTS, Calculation
from heatbath.paper.experiments import Experiment
from heatbath.paper.reproduction import reproduce
from heatbath.report.panels import Panel, Series
from heatbath.stats.verdicts import Claim


@pytest.fixture
def counted(monkeypatch):
    """An experiment of one calculation that counts how often it is done."""
    calls = []

    def compute(settings, *, device, data_dir, progress):
        progress(0.5, "halfway")
        calls.append(device)
        return {"twice": 2 * settings["x"]}

    claim = Claim("more", "greater", [3.0, 4.0], [1.0, 1.5])
    calculations = [Calculation("double", {"x": 21}, compute), Calculation("triple", {"x": 5}, compute)]

    def panels(found):
        values = [found.results[c.name]["twice"] for c in calculations if c.name in found.results]
        return [Panel("p", "x", "y", (Series("s", tuple(map(float, range(len(values)))), tuple(values)),))]

    experiment = Experiment("counted", "t", "q", lambda _: [claim], panels, calculations=lambda _scale: calculations)
    monkeypatch.setitem(EXPERIMENTS, "counted", experiment)
    return calls


def test_a_calculation_is_done_once(counted, tmp_path):
    told = []
    places = {"store": tmp_path / "store", "out": tmp_path / "out", "options": Options(device="cpu")}
    first = reproduce(["counted"], "smoke", **places, progress=lambda fraction, what: told.append((fraction, what)))
    assert counted == ["cpu", "cpu"]
    assert [figure.name for figure in first.figures] == ["counted"]
    assert first.figures[0].panels[0].series[0].y == (42, 10)
    assert first.report.is_file()
    assert [name for name, _ in first.verdicts] == ["counted"]
    fractions = [fraction for fraction, _ in told]
    assert fractions == sorted(fractions)
    assert told[-1] == (1.0, "done")
    again = reproduce(["counted"], "smoke", **places)
    assert len(counted) == 2
    assert again.figures == first.figures


def test_the_progress_is_filled_by_what_there_is_to_do(counted, tmp_path, monkeypatch):
    """Calculations alone go from 0 to the drawing; after a training they have the rest; what is there takes no part."""
    places = {"store": tmp_path / "store", "out": tmp_path / "out", "options": Options(device="cpu", workers=1)}

    def tell(names):
        told = []
        reproduce(names, "smoke", **places, progress=lambda fraction, what: told.append((fraction, what)))
        return told

    halves = [(0.0, "double"), (0.2375, "double"), (0.475, "triple"), (0.7125, "triple")]
    assert tell(["counted"])[:4] == [(pytest.approx(fraction), what) for fraction, what in halves]
    name = EXPERIMENTS["counted"].calculations("smoke")[1].name
    path = tmp_path / "store" / "calculations" / f"{name}.json"
    path.unlink()
    assert tell(["counted"])[:2] == [(0.0, "triple"), (pytest.approx(0.475), "triple")]
    path.unlink()
    told = tell(["counted", "coupling"])
    training = [fraction for fraction, what in told if what.startswith("training")]
    assert max(training) == pytest.approx(0.85)
    assert [fraction for fraction, what in told if what == "triple"] == pytest.approx([0.85, 0.9])
    assert tell(["counted", "coupling"]) == [(0.95, "drawing"), (1.0, "done")]
    (tmp_path / "store" / "heatbath.sqlite").unlink()
    assert max(fraction for fraction, what in tell(["coupling"]) if what.startswith("training")) == pytest.approx(0.95)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"settings": {"x": 22}, "result": {}}', '{"settings": {"x": 21}}'])
def test_a_damaged_or_foreign_result_is_computed_again(counted, tmp_path, damage):
    places = {"store": tmp_path / "store", "out": tmp_path / "out", "options": Options(device="cpu")}
    reproduce(["counted"], "smoke", **places)
    name = EXPERIMENTS["counted"].calculations("smoke")[0].name
    path = tmp_path / "store" / "calculations" / f"{name}.json"
    path.write_text(damage)
    assert reproduce(["counted"], "smoke", **places).figures[0].panels[0].series[0].y == (42, 10)
    assert len(counted) == 3
    assert json.loads(path.read_text())["result"] == {"twice": 42}
    assert [file.suffix for file in path.parent.iterdir()] == [".json", ".json"]


def test_an_interrupted_call_goes_on_where_it_was(counted, tmp_path):
    places = {"store": tmp_path / "store", "out": tmp_path / "out", "options": Options(device="cpu")}

    def interrupt(_fraction, what):
        if what == "triple":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(["counted"], "smoke", **places, progress=interrupt)
    assert len(counted) == 1
    assert not (tmp_path / "out").exists()
    assert reproduce(["counted"], "smoke", **places).figures[0].missing == ()
    assert len(counted) == 2


def test_a_change_of_the_working_folder_misleads_nobody(counted, tmp_path, monkeypatch):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    found = reproduce(
        ["counted"],
        "smoke",
        store="store",
        out="out",
        options=Options(device="cpu"),
        progress=lambda *_: os.chdir(elsewhere),
    )
    assert found.report == here / "out" / "report.html"
    assert found.report.is_file()
    assert len(list((here / "store" / "calculations").iterdir())) == 2
    assert not list(elsewhere.iterdir())


def test_drawing_alone_computes_nothing(counted, tmp_path):
    found = reproduce(["counted"], "smoke", store=tmp_path / "store", out=tmp_path / "out", train=False)
    assert counted == []
    assert found.figures[0].missing[0] == "double: not computed."
    assert not (tmp_path / "store").exists()


def test_runs_are_trained_once_and_drawn_again(tmp_path, monkeypatch):
    places = {"store": tmp_path / "store", "out": tmp_path / "out", "options": Options(device="cpu", workers=1)}
    told = []
    first = reproduce(["coupling"], "smoke", **places, progress=lambda fraction, what: told.append(what))
    assert first.figures[0].missing == ()
    assert any("6 runs" in what for what in told)
    records = run.load(tmp_path / "store")
    assert {record.status for record in records} == {"finished"}
    assert len(records) == 6
    monkeypatch.setattr(run, "complete", lambda *_arguments, **_options: pytest.fail("trained again"))
    assert reproduce(["coupling"], "smoke", **places).figures == first.figures
    fewer = reproduce(["coupling"], "smoke", seeds=3, **places, train=False)
    assert fewer.figures[0].missing[0] == "constant: 1 of 3 runs are not finished; what there is, is drawn."


def test_all_groups_get_a_seed_before_one_gets_two(tmp_path, monkeypatch):
    """Whatever is there when the time is up can be compared."""
    asked = []
    monkeypatch.setattr(run, "complete", lambda configs, *_, **__: asked.extend(configs) or [])
    reproduce(
        ["figure1"], "smoke", seeds=3, store=tmp_path / "store", out=tmp_path / "out", options=Options(device="cpu")
    )
    assert len(asked) == 15
    assert [len({config.protocol for config in asked[k : k + 5]}) for k in (0, 5, 10)] == [5, 5, 5]


def test_what_a_small_scale_lacks_is_said(tmp_path):
    with pytest.raises(ValueError, match="figure4, figure6: too much for the scale laptop; use --scale paper"):
        reproduce(["6", "4"], "laptop", store=tmp_path / "store", out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": "huge"}, "unknown scale 'huge': choose one of smoke, laptop, paper"),
        ({"seeds": 0}, "seeds must be"),
        ({"names": ["figur1"]}, "did you mean figure1"),
    ],
)
def test_bad_arguments_are_told_at_once(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        reproduce(**arguments, store=tmp_path / "store", out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_missing_data_is_told_before_anything_is_trained(tmp_path, monkeypatch):
    def lacking(name, **_options):
        raise DataError(f"{name} is not found")

    monkeypatch.setattr(trainer, "load_dataset", lacking)
    with pytest.raises(ValueError, match="mnist is not found; 'heatbath data' shows what is found where"):
        reproduce(["figure1"], "paper", store=tmp_path / "store", out=tmp_path / "out")
    assert not list(tmp_path.iterdir())
