"""The command line: one module for each command or family of commands.

A command is imported when it is called. It is a function whose parameters are its options (`heatbath.cli.options`); it
lets the library raise its own errors, and returns an `heatbath.cli.screens.Answer`. `main` turns what is raised into
one line and an exit status.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from heatbath import __version__
from heatbath.cli.errors import Interruption, explain, is_interrupt, stoppable

Table = Mapping[str, tuple[str | typer.Typer, str]]
_PLAIN: dict[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": None}  # which no narrow terminal cuts


class _Commands(Mapping[str, Any]):
    """The commands of a table of places and words: each is imported when somebody asks for it."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __getitem__(self, name: str) -> Any:
        place, words = self._table[name]
        if isinstance(place, str):
            from heatbath.cli.options import command

            module, _, function = place.partition(":")
            made = command(getattr(import_module(f"heatbath.cli.{module}"), function))
            place = typer.Typer(add_completion=False, **_PLAIN)
            place.command(name, short_help=words)(made)
        return typer.main.get_command(place)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def _group(table: Table) -> type[TyperGroup]:
    class Group(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands = _Commands(table)  # type: ignore[assignment]

        def format_commands(self, _context: Any, formatter: Any) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(name, words) for name, (_, words) in table.items()])

    return Group


_RUNS: Table = {
    "list": ("runs:list_runs", "List runs."),
    "show": ("runs:show_run", "Show all details of one run."),
    "resume": ("runs:resume_runs", "Resume unfinished runs."),
    "merge": ("store_files:merge_stores", "Copy runs from other stores."),
    "export": ("store_files:export_runs", "Write runs to a file."),
    "repair": ("store_files:repair_store", "Recover the intact runs of a damaged store."),
}
runs_app = typer.Typer(
    name="runs",
    cls=_group(_RUNS),
    help="List, show, resume, merge, export and repair the runs in a store.",
    add_completion=False,
    **_PLAIN,
)
_COMMANDS: Table = {
    "thermostat": ("thermostat:print_temperature", "Convert settings to a temperature, and back."),
    "simulate": ("simulate:simulate_landscape", "Simulate SGD on a loss landscape and plot it."),
    "measure": ("measure:measure_network", "Measure gradient noise and temperature during training."),
    "train": ("train:train_networks", "Train networks and store the results."),
    "runs": (runs_app, "List, show, resume, merge, export and repair stored runs."),
    "compare": ("compare:compare_runs", "Is A better than B? Compare groups of runs."),
    "race": ("race:race_arms", "Train recipes until the better one is known."),
    "transfer": ("transfer:transfer_recipe", "Move a recipe to another batch size or momentum."),
    "gate": ("compare:gate_runs", "Check that new runs are not worse than a saved verdict."),
    "reproduce": ("reproduce:reproduce_figures", "Reproduce the paper's figures and judge its claims."),
    "report": ("report:rebuild_report", "Write the report from stored results."),
    "data": ("data:list_data", "List and download data sets."),
}
app = typer.Typer(
    name="heatbath",
    cls=_group(_COMMANDS),
    help="Train many seeds at once, compare recipes, and measure the noise and temperature of training.",
    context_settings={"help_option_names": ["-h", "--help"]},
    **_PLAIN,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    0 is success, 1 that damage or two different records of a run were found or a gate failed, 2 a wrong call, 3 that a
    run diverged or a gate is undecided, 130 Ctrl-C and 143 SIGTERM.
    """
    with stoppable() as signals:
        status = _run(arguments)
    return 128 + signals[0] if signals and status == 130 else status


def _run(arguments: Sequence[str] | None) -> int:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed, as by `heatbath ... >&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a poor locale gets a poor table, not an error after the work
    try:
        status = app(arguments, prog_name="heatbath", standalone_mode=False)
        if status == 130:  # what newer versions of typer make of Ctrl-C
            raise KeyboardInterrupt
        if "heatbath.cli.screens" in sys.modules:  # else nothing of ours was printed
            from heatbath.cli.screens import printing

            with printing():
                sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except BrokenPipeError:
        # The reader has gone, as in `heatbath ... | head`; the interpreter's last flush must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, typer.Abort | Interruption) or is_interrupt(error):
            _complain(str(error) if isinstance(error, Interruption) else "interrupted")
            return 130
        message = explain(error)
        if message is None:
            raise
        _complain(message)
        return 3 if isinstance(error, FloatingPointError) else 2  # a training that diverged, or a wrong call


def _complain(message: str) -> None:
    """Tell what went wrong: in one line, which a terminal gets wrapped at words."""
    from heatbath.cli.screens import wrap

    room = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
    print(wrap(f"heatbath: {message}", room), file=sys.stderr)


@app.callback(invoke_without_command=True)
def _heatbath(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(f"heatbath {__version__}")
        raise typer.Exit
    _help(context)


@runs_app.callback(invoke_without_command=True)
def _help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
