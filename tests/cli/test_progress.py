import os
import pty
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from heatbath.engine import progress_bar as progress
from heatbath.engine.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def test_speed_and_time_left_are_those_of_late(clock):
    shown = progress.Display()
    for k in range(200):
        shown.show(0.001 * k, ("training",))
        clock.seconds += 1.0
    assert shown.words == ["training", "0:13:20 left"]  # 0.8 at 0.001 a second, and the second since the last word
    assert shown.speed == pytest.approx(0.001)
    for k in range(100):
        shown.show(0.2 + 0.004 * k, ("training",), ("more",))
        clock.seconds += 1.0
    assert shown.speed == pytest.approx(0.004)
    clock.seconds += 49.0
    assert shown.words == ["training", "0:00:51 left", "more"]


def test_nobody_knows_how_long_before_anything_is_done(clock):
    shown = progress.Display()
    shown.show(None, ("starting",))
    assert shown.words == ["starting"]
    shown.show(0.0, ("training",))
    clock.seconds += 3.0
    assert shown.words == ["training"]
    shown.show(1.0, ("done",))
    assert shown.words == ["done"]


def test_training_is_told_in_words(clock):
    shown = progress.Display()
    follow = shown.follow_training
    follow(Progress(10, 0, 200, 0, None, 0.0))
    clock.seconds += 4.0
    for _ in range(2):
        follow(Progress(10, 1, 200, 20, 0.91234, 4.0))
    assert shown.words == ["1 of 10 runs", "0:00:36 left", "test accuracy 0.9123", "20 of 200 epochs", "5 epochs/s"]


def test_a_log_has_few_lines(clock, capsys):
    with progress.display() as shown:
        follow = shown.follow_training
        follow(Progress(4, 0, 400, 0, None, 0.0, "trains 4 runs of mlp on 2 x 1 thread", routine=True))
        for k in range(1, 101):
            clock.seconds += 1.0
            follow(Progress(4, k // 25, 400, 4 * k, 0.5, float(k), "out of memory: stacks of 2" if k == 2 else None))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "heatbath: trains 4 runs of mlp on 2 x 1 thread",
        "heatbath: out of memory: stacks of 2",
        "heatbath: 5 %: 0 of 4 runs, 0:01:35 left, test accuracy 0.5000, 20 of 400 epochs, 4 epochs/s",
        "heatbath: 35 %: 1 of 4 runs, 0:01:05 left, test accuracy 0.5000, 140 of 400 epochs, 4 epochs/s",
        "heatbath: 65 %: 2 of 4 runs, 0:00:35 left, test accuracy 0.5000, 260 of 400 epochs, 4 epochs/s",
        "heatbath: 95 %: 3 of 4 runs, 0:00:05 left, test accuracy 0.5000, 380 of 400 epochs, 4 epochs/s",
        "heatbath: 4 of 4 runs, after 0:01:40",
    ]


def test_a_log_that_nobody_reads_any_more_stops_no_work(clock, monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", buffering=1) as pipe, progress.display() as shown:
        monkeypatch.setattr(sys, "stderr", pipe)
        for k in range(1, 101):
            clock.seconds += 1.0
            shown.show(0.01 * k, ("training",))
        shown.say("a word", routine=False)
        monkeypatch.undo()
        assert shown.words == ["training"]
        os.dup2(os.open(os.devnull, os.O_WRONLY), write)  # for what is left in the buffer


def test_short_work_leaves_no_log(clock, capsys):
    with progress.display() as shown:
        follow = shown.follow_training
        follow(Progress(1, 0, 2, 0, None, 0.0, "trains 1 run of mlp on 1 x 1 thread", routine=True))
        clock.seconds += 4.0
        follow(Progress(1, 1, 2, 2, 0.5, 4.0))
    assert capsys.readouterr().err == ""


def test_quiet_shows_nothing(clock, capsys):
    with progress.display(quiet=True) as shown:
        shown.show(0.5, ("training",))
        clock.seconds += 100.0
        shown.say("out of memory")
        shown.show(0.6, ("training",))
    assert capsys.readouterr().err == ""


PROGRAM = """
import time
from heatbath.engine.progress import Progress
from heatbath.engine.progress_bar import display
with display() as shown:
    time.sleep(0.4)
    follow = shown.follow_training
    for k in range(11):
        follow(Progress(5, k // 2, 100, 10 * k, 0.5, 1.0, "out of memory: stacks of 2" if k == 3 else None))
        time.sleep(1.2 if k == 9 else 0.02)  # long enough to be seen
print("the end")
"""


@pytest.mark.parametrize("columns", [40, 120])
def test_a_terminal_has_a_bar_that_fits(columns):
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1"}
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        environment.pop(name, None)
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    screen = b""
    while True:
        try:
            chunk = os.read(ours, 4096)
        except OSError:  # how Linux says that the other end is closed
            break
        if not chunk:
            break
        screen += chunk
    os.close(ours)
    assert process.wait() == 0
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.decode()).replace("\r", "\n").split("\n")
    lines = [line for line in lines if line]
    assert any(line.strip().endswith("starting") for line in lines)
    assert "out of memory: stacks of 2" in lines
    assert any("4 of 5 runs" in line and "left" in line for line in lines)
    assert any("elapsed" in line and " %  " in line for line in lines) == (columns == 120)
    assert any("90 of 100 epochs" in line for line in lines) == (columns == 120)
    assert max(map(len, lines)) <= columns
    assert lines[-1] == "the end"


SLOW = """
import time
from heatbath.engine.progress_bar import display
with display():
    time.sleep({})
"""


@pytest.mark.parametrize(("seconds", "told"), [(2.5, "heatbath: starting\n"), (0.0, "")])
def test_a_log_has_a_sign_of_life(seconds, told):
    """However long it is before the first number comes."""
    done = subprocess.run([sys.executable, "-c", SLOW.format(seconds)], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", told)


def test_clock():
    assert progress.clock(3725.4) == "1:02:05"
