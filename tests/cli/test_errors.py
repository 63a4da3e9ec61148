"""What was typed is told; SIGTERM ends a command as Ctrl-C does, and nothing half-written is left."""

import signal
import subprocess
import sys

import pytest

from heatbath.cli import thermostat
from heatbath.cli.errors import explain, stoppable

# A command that is told to end while it writes; where it is told twice, while it tidies up, it ends at once.
TERMINATED = """
import os, signal, sys
from heatbath import cli
from heatbath.system import whole_files
from heatbath.cli import thermostat

def draw(partial):
    (partial / "half").write_text("half")
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        if sys.argv[1:] == ["twice"]:
            os.kill(os.getpid(), signal.SIGTERM)

thermostat.Thermostat = lambda *_: whole_files.write_together("out", draw)
sys.exit(cli.main(["thermostat", "--lr", "1", "--batch-size", "1"]))
"""


@pytest.mark.parametrize(
    ("option", "value"),
    [("--lr", "abc"), ("--batch-size", "16.5"), ("--workers", "0"), ("--checkpoint-seconds", "-inf")],
)
def test_a_value_that_is_refused_is_shown(refused, option, value):
    words = refused("train", option, value).partition(option)[2].partition("; see")[0]
    assert words.count(value) == 1


def test_a_refused_value_is_told_once_whoever_wrote_the_message():
    class Usage(Exception):
        def format_message(self):
            return f"Invalid value for '--lr': {self}."

    class Invalid(ValueError):
        def errors(self):
            return [{"msg": "not a number", "input": "abc"}, {"msg": "not a number", "input": "d"}]

    def explained(error, cause):
        error.__cause__ = cause
        return explain(error)

    told = "Invalid value for '--lr': {}; see 'heatbath --help'"
    whole = explained(Usage("'abc' is not a valid float"), ValueError("could not convert"))
    assert whole == told.format("'abc' is not a valid float")
    assert explained(Usage("not a number"), Invalid()) == told.format("not a number, got 'abc'")


def test_a_termination_leaves_nothing_half_written(tmp_path):
    program = [sys.executable, "-c", TERMINATED]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (143, "", "heatbath: interrupted")
    assert not list(tmp_path.iterdir())
    again = subprocess.run([*program, "twice"], cwd=tmp_path, capture_output=True, text=True)
    assert (again.returncode, again.stderr) == (-signal.SIGTERM, "")


def test_a_termination_during_an_import_keeps_its_status(tmp_path):
    """A module of dataclasses executes source text, and ``python -m`` remembers an interrupt in there."""
    in_text = TERMINATED.replace("os.kill(os.getpid(), signal.SIGTERM)", "exec('signal.raise_signal(signal.SIGTERM)')")
    (tmp_path / "command.py").write_text(in_text)
    done = subprocess.run([sys.executable, "-m", "command"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (143, "heatbath: interrupted")


@pytest.mark.parametrize("own", [signal.SIG_IGN, lambda *_: None])
def test_a_handler_that_is_there_stays(own):
    before = signal.signal(signal.SIGTERM, own)
    try:
        with stoppable() as came:
            signal.raise_signal(signal.SIGTERM)
        assert came == []
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_signal_ends_a_process_again_after_the_command():
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with stoppable():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_interrupt_is_told_from_what_was_made_of_it(heatbath, monkeypatch):
    def fail(cause):
        def build(*_):
            raise RuntimeError("Error calling __set_name__") from cause

        monkeypatch.setattr(thermostat, "Thermostat", build)
        return heatbath("thermostat", "--lr", 1, "--batch-size", 1)

    assert fail(KeyboardInterrupt()) == (130, "", "heatbath: interrupted\n")
    with pytest.raises(RuntimeError, match="__set_name__"):
        fail(KeyError())


def test_control_c_during_the_first_imports_shows_no_traceback(tmp_path):
    hook = """
import builtins, os, signal, sys
usual = builtins.__import__
def stop(name, *rest):
    if name == "heatbath.cli.errors":
        os.kill(os.getpid(), signal.SIGINT)
    return usual(name, *rest)
builtins.__import__ = stop
signal.signal(signal.SIGINT, signal.default_int_handler)
from heatbath.__main__ import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", hook], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "heatbath: interrupted\n")
