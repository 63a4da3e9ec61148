"""Every command has --json and words for each of its options; a shell completes names and values."""

import inspect
import os
import subprocess
import sys

import pytest
import typer

from heatbath import cli
from heatbath.cli import options


def commands(command, path=()):
    inner = getattr(command, "commands", {})
    yield from ((path, command),) if not inner else ()
    for name, one in inner.items():
        yield from commands(one, (*path, name))


COMMANDS = list(commands(typer.main.get_command(cli.app)))


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=lambda value: value[-1] if isinstance(value, tuple) else "")
def test_every_command_has_words_and_json(path, command):
    assert "--json" in {name for parameter in command.params for name in parameter.opts}
    assert command.help
    assert all(getattr(parameter, "help", None) and "{}" not in parameter.help for parameter in command.params)


def test_the_table_has_no_words_that_nobody_says():
    used = {parameter.name for _, command in COMMANDS for parameter in command.params}
    assert options._HELP.keys() - used == set()


def test_no_word_of_a_help_text_is_broken(heatbath, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for path, _ in COMMANDS:
        status, out, err = heatbath(*path, "--help")
        assert (status, err) == (0, "")
        assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("heatbath tr", ["train", "transfer"]),
        ("heatbath runs re", ["resume", "repair"]),
        ("heatbath train --protocol ", ["constant", "random", "cyclic:20"]),
        ("heatbath train --model ", ["mlp", "cnn", "vgg16"]),
        ("heatbath compare store --metric test_", ["test_accuracy", "test_loss"]),
        ("heatbath reproduce figure", [*(f"figure{k}" for k in range(1, 7)), "figure4-constant", "figure4-open"]),
        ("heatbath runs list --store m", ["mine"]),
        ("heatbath report m", ["mine", "my.jsonl"]),
    ],
)
def test_a_shell_completes(tmp_path, words, offered):
    (tmp_path / "mine").mkdir()
    (tmp_path / "my.jsonl").touch()
    asked = {"_HEATBATH_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    program = [sys.executable, "-m", "heatbath"]
    done = subprocess.run(program, env={**os.environ, **asked}, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == offered


def test_the_script_of_a_shell_is_shown():
    program = [sys.executable, "-m", "heatbath", "--show-completion"]
    environment = {**os.environ, "SHELL": "/bin/bash", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run([*program, "bash"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_HEATBATH_COMPLETE" in done.stdout


def test_a_command_is_a_plain_function():
    from heatbath.cli.thermostat import print_temperature

    assert "as_json" not in inspect.signature(print_temperature).parameters
    found = print_temperature(lr=0.1, batch_size=8)
    assert (found.data["temperature"], found.status) == (0.1 / 16, 0)


def test_completion_is_installed_for_a_shell_and_works_there(tmp_path):
    program = [sys.executable, "-c", "import heatbath.cli, sys; sys.exit(heatbath.cli.main())"]
    environment = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    subprocess.run([*program, "--install-completion", "bash"], env=environment, check=True, capture_output=True)
    tools = tmp_path / "bin"
    tools.mkdir()
    command = tools / "heatbath"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m heatbath "$@"\n')
    command.chmod(0o755)
    ask = """source ~/.bashrc; COMP_WORDS=(heatbath train --coup); COMP_CWORD=2
    $(complete -p heatbath | sed 's/.*-F \\([^ ]*\\).*/\\1/') heatbath --coup train; echo "${COMPREPLY[@]}" """
    environment["PATH"] = f"{tools}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", ask], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["--coupling"]
