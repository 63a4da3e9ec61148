"""The command line: one module for each command or family of commands.

A command is a function that reads its options, imports what it needs inside its body so that the others start fast,
lets the library raise its own errors, and prints by way of `screens`. `main` turns what is raised into one line and an
exit status.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from heatbath.cli.compare import compare_runs
from heatbath.cli.data import list_data
from heatbath.cli.errors import Interruption, explain, is_interrupt, stoppable
from heatbath.cli.gate import gate_runs
from heatbath.cli.measure import measure_network
from heatbath.cli.race import race_arms
from heatbath.cli.report import rebuild_report
from heatbath.cli.reproduce import reproduce_figures
from heatbath.cli.runs import app as runs_app
from heatbath.cli.screens import printing
from heatbath.cli.simulate import simulate_landscape
from heatbath.cli.store_files import export_runs, merge_stores, repair_store
from heatbath.cli.thermostat import print_temperature
from heatbath.cli.train import train_networks
from heatbath.cli.transfer import transfer_recipe

app = typer.Typer(
    name="heatbath",
    help="SGD with a random learning rate, and the temperature of a training run.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, which no narrow terminal cuts
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("thermostat", short_help="Knobs to temperature, and back.")(print_temperature)
app.command("simulate", short_help="SGD on a landscape, in pictures.")(simulate_landscape)
app.command("measure", short_help="The noise and temperature of a training.")(measure_network)
app.command("train", short_help="Train networks and keep the results.")(train_networks)
runs_app.command("merge", short_help="Take over the runs of other stores.")(merge_stores)
runs_app.command("export", short_help="Write runs to a file.")(export_runs)
runs_app.command("repair", short_help="Save what is sound in a damaged store.")(repair_store)
app.add_typer(runs_app, name="runs", short_help="List, show, resume, merge, export, repair results.")
app.command("compare", short_help="Is A better than B? Verdicts on groups of runs.")(compare_runs)
app.command("race", short_help="Train until it is decided which recipe is better.")(race_arms)
app.command("transfer", short_help="A recipe at another batch size or momentum, and its proof.")(transfer_recipe)
app.command("gate", short_help="Are new runs no worse than a verdict?")(gate_runs)
app.command("reproduce", short_help="The paper's figures, and what we find.")(reproduce_figures)
app.command("report", short_help="The page again, from results.")(rebuild_report)
app.command("data", short_help="Which data sets are here, and how to get them.")(list_data)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 2 after an error, 130 after Ctrl-C, 143 after SIGTERM."""
    with stoppable() as signals:
        status = _run(arguments)
    return 128 + signals[0] if signals and status == 130 else status


def _run(arguments: Sequence[str] | None) -> int:
    interruption = "interrupted"
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed, as by `heatbath ... >&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a poor locale gets a poor table, not an error after the work
    try:
        status = app(arguments, prog_name="heatbath", standalone_mode=False)
        with printing():
            sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    except Interruption as error:
        status, interruption = 130, str(error)
    except BrokenPipeError:
        # The reader has gone, as in `heatbath ... | head`; the interpreter's last flush must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if not is_interrupt(error):
            message = explain(error)
            if message is None:
                raise
            print(f"heatbath: {message}", file=sys.stderr)
            return 2
        status = 130
    if status == 130:
        print(f"heatbath: {interruption}", file=sys.stderr)
    return status if isinstance(status, int) else 0


def _print_version(wanted: bool) -> None:
    if wanted:
        from heatbath import __version__

        print(f"heatbath {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _heatbath(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback does the work
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
