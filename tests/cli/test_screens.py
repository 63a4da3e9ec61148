"""The folders that commands write to are looked at before any work is done for them."""

import os
import tempfile
from pathlib import Path

import pytest
import typer

from heatbath import cli
from heatbath.cli.screens import check_folder


def folder_options(command, path=()):
    """Every command that takes a folder, with the name of the option."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from folder_options(inner, (*path, name))
    names = {name for parameter in command.params for name in parameter.opts}
    yield from ((path, option) for option in ("--out", "--store", "--data-dir") if option in names)


OPTIONS = list(folder_options(typer.main.get_command(cli.app)))
NOT_THERE = {"show": ["abc"], "merge": ["nowhere"], "export": ["a.csv"], "report": ["nowhere"]}


def test_the_commands_that_write_are_found():
    assert {path[0] for path, option in OPTIONS if option == "--out"} == {"simulate", "measure", "reproduce", "report"}
    assert {path[0] for path, option in OPTIONS if option == "--store"} == {"train", "runs", "reproduce"}
    fetching = {path[0] for path, option in OPTIONS if option == "--data-dir"}
    assert fetching == {"train", "runs", "reproduce", "measure", "data"}


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


def test_a_folder_that_can_be_made_is_not_made(tmp_path):
    check_folder(tmp_path, "--out")
    check_folder(tmp_path / "a" / "b", "--out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("file", "file is a file; name a folder"),
        ("file/below", "file is a file; name a folder"),
        ("link", "link is a link to a folder that is not there: make that folder, or remove the link"),
        ("link/below", "link is a link to a folder that is not there: make that folder, or remove the link"),
        ("long" * 100, "cannot be written to (File name too long)"),
    ],
    ids=lambda value: value[:10],
)
def test_what_is_in_the_way_is_named(tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(ValueError, match=f"^--out {name}: ") as caught:
        check_folder(Path(name), "--out")
    assert str(caught.value).endswith(words)


def test_why_a_folder_cannot_be_written_to_is_told(tmp_path, monkeypatch):
    def fail(**_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    with pytest.raises(ValueError, match=r"cannot be written to \(Read-only file system\)$"):
        check_folder(tmp_path / "out", "--out")
