import pytest

from heatbath import cli
from heatbath.engine import progress_bar


@pytest.fixture(autouse=True)
def _no_sign_of_life(monkeypatch):
    """How slow the machine is must not show in what a command prints."""
    monkeypatch.setattr(progress_bar, "_FIRST_SIGN", 600.0)


@pytest.fixture
def heatbath(capsys, monkeypatch, tmp_path):
    """Runs a command in an empty folder; returns its exit status, what it printed and what it complained of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress_bar, "_WORTH_A_LOG", 600.0)

    def run(*arguments):
        status = cli.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def refused(heatbath, tmp_path):
    """Runs a command that is to be refused, in one line, without writing anything; returns the line."""

    def state():
        # Of files: whether a folder can be written to is tried, which may leave a new time on it.
        return {path: path.is_file() and path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    def run(*arguments):
        before = state()
        status, out, err = heatbath(*arguments)
        assert (status, out) == (2, "")
        assert err.startswith("heatbath: ")
        assert err.count("\n") == 1
        assert state() == before
        return err

    return run
