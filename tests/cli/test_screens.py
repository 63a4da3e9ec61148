"""The folders that commands write to are looked at before any work is done for them."""

import os

import pytest
import typer

from heatbath import cli
from heatbath.cli.screens import wrap


def folder_options(command, path=()):
    """Every command that takes a folder, with the name of the option."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from folder_options(inner, (*path, name))
    names = {name for parameter in command.params for name in parameter.opts}
    yield from ((path, option) for option in ("--out", "--store", "--data-dir") if option in names)


@pytest.mark.parametrize("room", range(20, 60))
def test_no_line_ends_between_a_number_and_its_unit(room):
    line = "The mean is 0.5 (95 %: 0.4 to 0.6, n = 12 pairs), 0.79 ± 0.04 in 30 min, 40 seeds decide a/long/path-to-it."
    lines = wrap(line, room).splitlines()
    assert " ".join(lines) == line
    assert max(map(len, lines)) <= room
    for part in ("95 %:", "n = 12 pairs),", "0.79 ± 0.04", "30 min,", "40 seeds", "a/long/path-to-it."):
        assert any(part in one for one in lines)


OPTIONS = list(folder_options(typer.main.get_command(cli.app)))
NOT_THERE = {"show": ["abc"], "merge": ["nowhere"], "export": ["a.csv"], "report": ["nowhere"]}


def test_the_commands_that_write_are_found():
    by_option = {
        wanted: {path[0] for path, option in OPTIONS if option == wanted}
        for wanted in ("--out", "--store", "--data-dir")
    }
    assert by_option["--out"] == {"simulate", "measure", "race", "reproduce", "report"}
    assert by_option["--store"] == {"train", "runs", "race", "reproduce", "transfer"}
    assert by_option["--data-dir"] == {"train", "runs", "race", "reproduce", "transfer", "measure", "data"}


@pytest.mark.parametrize(("path", "option"), OPTIONS, ids=lambda value: value if isinstance(value, str) else value[-1])
def test_an_empty_name_is_refused(refused, path, option):
    command = " ".join(path)
    words = (
        f"Invalid value for '{option}': it is empty; name a folder, or . for this one; see 'heatbath {command} --help'"
    )
    assert refused(*path, *NOT_THERE.get(path[-1], []), option, "") == f"heatbath: {words}\n"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder that nobody can write to")
@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["simulate"], "--out"),
        (["measure"], "--out"),
        (["reproduce"], "--out"),
        (["report", "nowhere"], "--out"),
        (["reproduce"], "--store"),
        (["train"], "--store"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_folder_that_nobody_can_make_is_refused_before_any_work(refused, arguments, option):
    words = refused(*arguments, option, "/proc/x")
    assert words.startswith(f"heatbath: {option} /proc/x: /proc cannot be written to (")
