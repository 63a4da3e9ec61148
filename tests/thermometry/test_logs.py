"""Readings in files and callbacks."""

import csv

import pytest
import torch
from torch.nn.functional import cross_entropy

from heatbath.thermometry.logs import CSVLog, TensorBoardLog
from heatbath.thermometry.thermometer import Thermometer
from thermometer_runs import batch, small_network, step

pytestmark = pytest.mark.usefixtures("one_thread")


def test_csv_and_tensorboard_and_callbacks(tmp_path):
    class Writer(list):
        def add_scalar(self, *scalar):
            self.append(scalar)

    path, writer, seen = tmp_path / "logs" / "run.csv", Writer(), []
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    thermometer = Thermometer(
        model, optimizer, interval=2, callback=[CSVLog(path), TensorBoardLog(writer), seen.append]
    )
    for k in range(4):
        step(model, optimizer, thermometer, *batch(k), cross_entropy)
    assert seen == thermometer.history
    with path.open("a") as file:
        file.write("6,0.1,")  # killed in the middle of a row
    log = CSVLog(path)
    log(seen[1])
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["2", "4", "4"]
    assert float(rows[1]["temperature"]) == seen[1]["temperature"]
    assert rows[0]["equilibrium_ratio"] == ""
    assert ("heatbath/temperature", seen[1]["temperature"], 4) in writer
    assert not any(name == "heatbath/equilibrium_ratio" for name, _, k in writer if k == 2)
    with pytest.raises(ValueError, match="columns"):
        log({"step": 1, "other": 2.0})


@pytest.mark.parametrize("text", ["notes\nwithout a last line feed", "one line", "step,temperature,other\n1,2.0,"])
def test_a_file_of_others_is_left_as_it_is(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"notes\.txt has the columns .*: log to another file"):
        CSVLog(path)({"step": 1, "temperature": 2.0})
    assert path.read_text() == text


@pytest.mark.parametrize("text", ["", "st", "step,temperature", "step,temperature\r", "step,temperature\r\n0,"])
def test_a_run_killed_while_it_wrote_goes_on(tmp_path, text):
    path = tmp_path / "run.csv"
    path.write_bytes(text.encode())
    CSVLog(path)({"step": 1, "temperature": None})
    assert path.read_bytes() == b"step,temperature\r\n1,\r\n"


@pytest.mark.parametrize("first", [10, 5, 25])
def test_a_second_run_has_a_file_of_its_own(tmp_path, first):
    path, log = tmp_path / "run.csv", CSVLog(tmp_path / "run.csv")
    for k in (10, 20, 30):
        log({"step": k, "temperature": 0.5 * k})
    before = path.read_text()
    for number in (2, 3):
        again = CSVLog(path)
        with pytest.warns(UserWarning, match=rf"another run, .*: this one goes to .*run-{number}\.csv"):
            again({"step": first, "temperature": 1.0})
        again({"step": first + 10, "temperature": None})
        assert again.path == tmp_path / f"run-{number}.csv"
        assert again.path.read_text().split() == ["step,temperature", f"{first},1.0", f"{first + 10},"]
    assert path.read_text() == before
    CSVLog(path)({"step": 20, "temperature": 10.0})  # resumed from a checkpoint before the last reading
    CSVLog(path)({"step": 40, "temperature": 20.0})
    assert path.read_text().split()[-2:] == ["20,10.0", "40,20.0"]


def run(path, interval, steps, state=None, lr=0.1):
    """A run of a thermometer that logs; return its state, its history and its log."""
    model, log = small_network(), CSVLog(path)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    with Thermometer(model, optimizer, interval=interval, callback=log) as thermometer:
        if state is not None:
            thermometer.load_state_dict(state)
        for k in range(steps):
            step(model, optimizer, thermometer, *batch(k), cross_entropy)
    return thermometer.state_dict(), thermometer.history, log


def logged(path):
    with path.open(newline="") as file:
        return [{key: float(cell) if cell else None for key, cell in row.items()} for row in csv.DictReader(file)]


@pytest.mark.parametrize("interval", [1, 2, 3, 4, 6, 8])
def test_a_second_run_of_any_interval_is_not_mixed_into_the_first(tmp_path, interval):
    path = tmp_path / "run.csv"
    first, history, _ = run(path, 2, 6)
    with pytest.warns(UserWarning, match=r"run\.csv holds another run, .*run-2\.csv") as told:
        second, others, log = run(path, interval, 8, lr=0.2)
    assert len(told) == 1
    assert (logged(path), logged(log.path)) == (history, others)
    with pytest.warns(UserWarning, match="this one goes to"):
        _, others, log = run(path, interval, 8, second, lr=0.2)  # resumed, it goes on in its own file
    assert log.path == tmp_path / "run-2.csv"
    assert logged(log.path) == others
    _, history, log = run(path, 2, 2, first)
    assert log.path == path
    assert logged(path) == history


def test_a_run_that_was_saved_before_its_first_reading_goes_on_in_its_file(tmp_path):
    path = tmp_path / "run.csv"
    state, _, _ = run(path, 4, 3)
    run(path, 4, 5, state)
    _, _, log = run(path, 4, 5, state)  # stopped, and resumed from the same checkpoint
    assert log.path == path
    assert [row["step"] for row in logged(path)] == [4, 8, 4, 8]


def test_a_group_that_is_added_makes_another_file(tmp_path):
    model = small_network()
    (first, *others), log = model.parameters(), CSVLog(tmp_path / "run.csv")
    optimizer = torch.optim.SGD([first], 0.1)
    with Thermometer(model, optimizer, interval=1, callback=log) as thermometer:
        step(model, optimizer, thermometer, *batch(0), cross_entropy)
        optimizer.add_param_group({"params": others})
        with pytest.warns(UserWarning, match=r"other columns: this one goes to .*run-2\.csv"):
            step(model, optimizer, thermometer, *batch(1), cross_entropy)
        step(model, optimizer, thermometer, *batch(2), cross_entropy)
    assert [row["step"] for row in logged(tmp_path / "run.csv")] == [1]
    assert [row["step"] for row in logged(tmp_path / "run-2.csv")] == [2, 3]


def test_tensorboard_itself(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model, log = small_network(), TensorBoardLog(tmp_path)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Thermometer(model, optimizer, interval=2, callback=log) as thermometer:
        for k in range(4):
            step(model, optimizer, thermometer, *batch(k), cross_entropy)
    log.writer.close()
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("heatbath/temperature")
    assert [event.step for event in events] == [2, 4]
    assert [event.value for event in events] == pytest.approx([r["temperature"] for r in thermometer.history])
