"""The command line.

A command is a function under ``@app.command()``: it reads its options, imports what it needs inside its body so that
the others start fast, lets the library raise its own errors, and prints on `console`. `main` turns what is raised into
one line and an exit status.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from heatbath.thermostat import Thermostat

app = typer.Typer(
    name="heatbath",
    help="SGD with a random learning rate, and the temperature of a training run.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, which no narrow terminal cuts
    context_settings={"help_option_names": ["-h", "--help"]},
)

# What a missing module is installed with.
_EXTRAS = {"scipy": "paper", "matplotlib": "paper", "mlxtend": "paper"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 2 after an error, 130 after an interrupt."""
    try:
        status = app(arguments, prog_name="heatbath", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    except BrokenPipeError:
        # The reader has gone, as in `heatbath ... | head`; the interpreter's last flush must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        message = _explain(error)
        if message is None:
            raise
        print(f"heatbath: {message}", file=sys.stderr)
        return 2
    if status == 130:
        print("heatbath: interrupted", file=sys.stderr)
    return status if isinstance(status, int) else 0


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave a reader who has gone to `main`; Rich would exit with an error."""
        raise BrokenPipeError


def console() -> Console:
    """Return the console to print on; never narrower than a table needs, as a terminal wraps better than we cut."""
    measured = _Console(highlight=False, soft_wrap=True)
    measured.width = max(measured.width, 100) if measured.is_terminal else 240
    return measured


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


@app.command()
def thermostat(
    lr: Annotated[float, typer.Option(help="The mean learning rate.")],
    batch_size: Annotated[int, typer.Option(help="Samples in a mini-batch.")],
    momentum: Annotated[float, typer.Option(help="The momentum, from 0 to below 1.")] = 0.0,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov's form of the step.")] = False,
    law: Annotated[str, typer.Option(help="The law of the multiplier, such as uniform:1.")] = "constant",
    coupling: Annotated[str, typer.Option(help="What the multiplier acts on: gradient or update.")] = "gradient",
    dataset_size: Annotated[int | None, typer.Option(help="Samples, if drawn without replacement.")] = None,
    diffusion: Annotated[float, typer.Option(help="The variance of a sample's gradient.")] = 1.0,
    curvature: Annotated[float | None, typer.Option(help="The largest curvature, to test the rate.")] = None,
    at_batch_size: Annotated[int | None, typer.Option(help="Ask for equal temperature at this batch size.")] = None,
    at_momentum: Annotated[float | None, typer.Option(help="Ask for equal temperature at this momentum.")] = None,
    at_lr: Annotated[float | None, typer.Option(help="Ask for equal temperature at this rate.")] = None,
    solve: Annotated[str | None, typer.Option(help="The knob to solve for: lr, batch_size or momentum.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the temperature that the knobs set, and other knobs of equal temperature."""
    own = Thermostat(lr, batch_size, momentum, nesterov, law, coupling, dataset_size)
    solve = solve and solve.replace("-", "_")
    asked = {"batch_size": at_batch_size, "momentum": at_momentum, "lr": at_lr, "solve": solve}
    rows = [("given", own), *_alternatives(own, {name: value for name, value in asked.items() if value is not None})]
    regime = _small_rate_regime(own, curvature)
    answer = next((_small_rate_regime(row, curvature) for label, row in rows if label == "asked"), None)
    if as_json:
        report = _thermostat_report(rows, regime, diffusion)
        print(json.dumps({**report, "asked_warning": answer.warning if answer else None}, indent=2))
        return
    temperature = own.temperature(diffusion)
    form = f"{'Nesterov' if own.nesterov else 'heavy ball'}, coupling {own.coupling}" if own.momentum else "no momentum"
    data = "" if own.dataset_size is None else f", {own.dataset_size} samples without replacement"
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in ("lr", "batch", "momentum", "law", "T", "T / given"):
        table.add_column(name, justify="right", no_wrap=True)
    for label, row in rows:
        here = row.temperature(diffusion)
        ratio = f"{here / temperature:.4g}" if temperature > 0.0 else "-"
        knobs = (f"{row.lr:.6g}", str(row.batch_size), f"{row.momentum:.6g}", str(row.law), f"{here:.6g}", ratio)
        table.add_row(label, *knobs)
    out = console()
    out.print(f"SGD, {form}{data}")
    out.print(f"Temperature at leading order: {temperature:.6g} (for a gradient variance of {diffusion:g} per sample)")
    out.print(f"Relative to the constant protocol at the same knobs: {own.law_factor:.6g}\n")
    out.print(table)
    if own.law.variance > 0.0:
        out.print("\nThe fair control of a random rate is the constant rate of equal temperature.", end="")
    out.print(f"\n{regime.note}")
    if regime.warning:
        out.print(f"[bold yellow]Warning:[/] {regime.warning}")
    if answer is not None and answer.warning:
        out.print(f"[bold yellow]Warning:[/] the asked setting is {answer.warning}")


@app.command()
def simulate(
    landscape: Annotated[str, typer.Option(help="The loss, such as double-well:0.2:2 or quadratic:1.")] = "double-well",
    lr: Annotated[float, typer.Option(help="The mean learning rate.")] = 0.005,
    batch_size: Annotated[int, typer.Option(help="Samples in a mini-batch.")] = 16,
    momentum: Annotated[float, typer.Option(help="The momentum, from 0 to below 1.")] = 0.95,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov's form of the step.")] = False,
    law: Annotated[str, typer.Option(help="The law of the multiplier, such as uniform:1.")] = "uniform:1",
    coupling: Annotated[str, typer.Option(help="What the multiplier acts on: gradient or update.")] = "gradient",
    diffusion: Annotated[float, typer.Option(help="The variance of a sample's gradient.")] = 24.0,
    steps: Annotated[int, typer.Option(help="How many steps of SGD to follow.")] = 1500,
    trajectories: Annotated[int, typer.Option(help="How many trajectories make the histogram.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Of the trajectories.")] = 0,
    out: Annotated[Path, typer.Option(help="The folder for the pictures.")] = Path("out"),
) -> None:
    """Follow SGD on a landscape: its density in phase space, its trajectories and Boltzmann's weight, in pictures."""
    _check_folder(out)
    knobs = Thermostat(lr, batch_size, momentum, nesterov, law, coupling)
    from heatbath import plots, simulation  # noqa: F401 - a missing extra is told before the work, not after it

    landscape = simulation.DEFAULT_LANDSCAPE if landscape == "double-well" else landscape
    with _progress() as report:
        found = simulation.simulate(
            knobs,
            landscape,
            diffusion=diffusion,
            steps=steps,
            trajectories=trajectories,
            seed=seed,
            progress=lambda done, what: report(0.6 * done, what),
        )
        files = simulation.write_simulation(found, out, lambda done, what: report(0.6 + 0.4 * done, what))
    numbers = found.summary
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("position", "SGD", "Fokker-Planck", "Boltzmann"):
        table.add_column(name, justify="left" if name == "position" else "right", no_wrap=True)
    for key, name in (("position_mean", "mean"), ("position_variance", "variance")):
        row = numbers[key]
        table.add_row(name, *(f"{row[kind]:.4f}" for kind in ("sgd", "fokker_planck", "boltzmann")))
    distance = numbers["histogram_distance"]
    screen = console()
    screen.print(f"{numbers['landscape']} at temperature {numbers['temperature']:.4g}, after {numbers['steps']} steps")
    screen.print(table)
    screen.print(
        f"\nHistogram of SGD against Fokker-Planck: distance {distance['found']:.4f}; sampling alone makes "
        f"{distance['expected_from_sampling']:.4f} ± {distance['standard_deviation']:.4f}."
    )
    screen.print(f"Fokker-Planck against equilibrium: distance {numbers['distance_to_equilibrium']:.4f}.")
    for file in files:
        screen.print(f"wrote {file}")


@app.command()
def measure(
    model: Annotated[str, typer.Option(help="mlp, cnn or vgg16.")] = "mlp",
    dataset: Annotated[str, typer.Option(help="mnist5k, mnist or cifar10.")] = "mnist5k",
    lr: Annotated[float, typer.Option(help="The mean learning rate.")] = 0.01,
    batch_size: Annotated[int, typer.Option(help="Samples in a mini-batch.")] = 64,
    momentum: Annotated[float, typer.Option(help="The momentum, from 0 to below 1.")] = 0.9,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov's form of the step.")] = False,
    law: Annotated[str, typer.Option(help="The law of the multiplier, such as uniform:1.")] = "uniform:1",
    coupling: Annotated[str, typer.Option(help="What the multiplier acts on: gradient or update.")] = "gradient",
    weight_decay: Annotated[float, typer.Option(help="Part of the gradient, as in SGD.")] = 0.0,
    epochs: Annotated[int, typer.Option(help="How long to train.")] = 20,
    at_epoch: Annotated[list[int] | None, typer.Option(help="Measure the noise after this epoch; repeat.")] = None,
    samples: Annotated[int, typer.Option(help="Training images that the noise is measured on.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of weights, order and multipliers.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    data_dir: Annotated[Path | None, typer.Option(help="Where to look for the data first.")] = None,
    out: Annotated[Path, typer.Option(help="The folder for the picture and the numbers.")] = Path("out"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """Train a network and measure its gradient noise, its temperature and whether it is at equilibrium."""
    _check_folder(out)
    knobs = Thermostat(lr, batch_size, momentum, nesterov, law, coupling)
    if batch_size < 2:
        raise ValueError(f"--batch-size must be at least 2 to measure noise, got {batch_size}")
    if samples < 4:
        raise ValueError(f"--samples must be at least 4 to measure noise, got {samples}")
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"--device must be auto, cpu or cuda, got {device!r}")
    import torch

    from heatbath import measurement, plots  # noqa: F401 - a missing extra is told before the training, not after it

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no GPU here; use --device cpu")
    device = "cuda" if device == "auto" and torch.cuda.is_available() else device.replace("auto", "cpu")
    with _progress() as report:
        found = measurement.measure_training(
            knobs,
            model,
            dataset,
            epochs=epochs,
            at_epochs=at_epoch or None,
            weight_decay=weight_decay,
            samples=samples,
            seed=seed,
            device=device,
            data_dir=data_dir,
            progress=report,
        )
    files = measurement.write_measurement(found, out)
    if as_json:
        print(json.dumps(measurement.describe(found), indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("after epoch", justify="right", no_wrap=True)
    for name in ("accuracy", "|g|^2", "tr S1", "noise scale", "effective rank", "along g / mean", "dropped term"):
        table.add_column(name, justify="right", no_wrap=True)
    for epoch, noise in found.noises.items():
        along = noise.along() * noise.dimension / noise.trace if noise.trace else math.nan
        table.add_row(
            *(str(epoch), f"{found.accuracies[epoch]:.4f}", f"{noise.gradient_norm_squared:.3g}"),
            f"{noise.trace:.4g} ± {noise.trace_error:.1g}",
            *(f"{noise.noise_scale:.4g}", f"{noise.effective_rank:.3g}", f"{along:.3g}"),
            f"{100 * noise.covariance_trace(knobs.law, knobs.batch_size).dropped_fraction:.2g} %",
        )
    last = found.history[-1] if found.history else {}
    screen = console()
    screen.print(f"{model} on {dataset}, noise of {found.settings['samples']} samples, {found.settings['device']}")
    screen.print(table)
    screen.print("\nalong g / mean: the noise along the gradient over that along an average direction, 1 if isotropic.")
    screen.print("dropped term: the share of s2 g g^T, which the paper leaves out, in the noise of a step.")
    if last.get("temperature") is not None:
        screen.print(
            f"At the end: temperature {last['temperature']:.3g} from the noise, {last['kinetic_temperature']:.3g} from "
            f"the velocity; equilibrium ratio {_interval(last)}"
        )
    for file in files:
        screen.print(f"wrote {file}")


@app.command()
def data(
    data_dir: Annotated[Path | None, typer.Option(help="Where to look first.")] = None,
) -> None:
    """Say which data sets are found where, verified, and how to get what is missing."""
    if data_dir is not None and not data_dir.is_dir():
        raise ValueError(f"--data-dir {data_dir} is not a folder")
    from heatbath.datasets import find_datasets

    for status in find_datasets(data_dir):
        print(f"{status.name:<8} {status.state:<9} {status.advice or status.location}")


@contextmanager
def _progress() -> Iterator[Callable[[float, str], None]]:
    """A bar on the terminal, and nothing where there is none; to be called with the fraction done and what is done."""
    from rich.progress import Progress

    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda done, what: bar.update(task, completed=done, description=what)


def _check_folder(out: Path) -> None:
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not there.is_dir():
        raise ValueError(f"--out {out}: {there} is a file; name a folder")
    if not os.access(there, os.W_OK):
        raise ValueError(f"--out {out}: {there} cannot be written to")


def _interval(reading: dict[str, Any]) -> str:
    value, low, high = (reading[f"equilibrium_{key}"] for key in ("ratio", "low", "high"))
    if value is None:
        return "not known yet"
    return f"{value:.3g}" + ("" if low is None else f" (95 %: {low:.3g} to {high:.3g})")


@dataclass(frozen=True)
class _Regime:
    """Whether the leading order can be trusted; ``limit`` is the curvature up to which it is right to a tenth."""

    curvature: float | None
    limit: float
    stable_below: float
    exact_over_leading: float | None
    note: str
    warning: str | None


def _small_rate_regime(own: Thermostat, curvature: float | None) -> _Regime:
    """Compare the leading order with the exact temperature on a quadratic; it is left where they differ by 10 %.

    The exact ratio depends on ``lr * curvature`` alone, so an unknown curvature still has a limit that can be told. As
    nothing can be warned of without a curvature, one of order 1 is then supposed, and said to be.
    """
    from heatbath.theory.quadratic import exact_temperature, is_stable, largest_stable_rate, small_rate_limit

    supposed = 1.0 if curvature is None else curvature
    limit = small_rate_limit(own) / own.lr
    stable_below = largest_stable_rate(own, supposed) * supposed / own.lr
    note = f"At the given rate the leading order is within 10 % of the exact temperature below curvature {limit:.4g}"
    note += f"; second moments are stable below {stable_below:.4g}."
    who = f"curvature {supposed:g}" if curvature is not None else "a curvature of only 1"
    if curvature is None:
        note += " Give --curvature to test yours."
    ratio, warning = None, None
    if not is_stable(own, supposed):
        bound = largest_stable_rate(own, supposed)
        warning = f"unstable at {who}: the rate is {own.lr / bound:.3g} times the largest, {bound:.4g}."
    else:
        unit = Thermostat(own.lr, 1, own.momentum, own.nesterov, own.law, own.coupling)  # noise cancels in the ratio
        ratio = float(exact_temperature(unit, supposed, 1.0)) / unit.temperature()
        if supposed > limit:
            warning = f"not a small rate: {who} is {supposed / limit:.3g} times that limit"
            warning += f", and the exact temperature there {ratio:.4g} times the leading order."
    return _Regime(curvature, limit, stable_below, ratio if curvature is not None else None, note, warning)


def _alternatives(own: Thermostat, asked: dict[str, Any]) -> list[tuple[str, Thermostat]]:
    """The rows below the first. What is asked for must have a solution; a row of ours without one is left out."""
    rows: list[tuple[str, Thermostat]] = []
    if asked:
        rows.append(("asked", own.at(**asked)))
    offers: list[tuple[str, dict[str, Any]]] = [
        ("batch x 2", {"batch_size": 2 * own.batch_size}),
        ("batch / 2", {"batch_size": own.batch_size // 2}),
    ]
    if own.law.variance > 0.0:
        offers.insert(0, ("fair control", {"law": "constant"}))
    for label, request in offers:
        try:
            rows.append((label, own.at(**request)))
        except ValueError:
            continue
    return rows


def _thermostat_report(rows: list[tuple[str, Thermostat]], regime: _Regime, diffusion: float) -> dict[str, Any]:
    own = rows[0][1]

    def describe(row: Thermostat) -> dict[str, Any]:
        knobs = {name: getattr(row, name) for name in row.__dataclass_fields__}
        return {**knobs, "law": str(row.law), "temperature": row.temperature(diffusion)}

    return {
        **describe(own),
        "diffusion": diffusion,
        "law_factor": own.law_factor,
        "alternatives": [{"label": label, **describe(row)} for label, row in rows[1:]],
        "small_rate_regime": {name: None if value == math.inf else value for name, value in asdict(regime).items()},
    }


def _explain(error: Exception) -> str | None:
    """One line for the person at the keyboard, or None for what is a defect of the program."""
    if hasattr(error, "format_message"):  # what typer raises for wrong usage, in all its versions
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "heatbath"
        text = " ".join(str(error.format_message()).split()).rstrip(".")
        return f"{text}; see '{command} --help'"
    if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS:
        return f"this needs {error.name}: pip install 'heatbath[{_EXTRAS[error.name]}]'"
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}; ask for less"
    if isinstance(error, ValueError | TypeError | OSError):
        return " ".join(str(error).split())
    return None
