"""Records in hand: a list that can be filtered, grouped, tabulated and drawn."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, SupportsIndex, overload

from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Record
from heatbath.tasks.facts import AnyTask, TaskFacts

_MOST_ROWS = 20  # of a printed table


class Records(list[Record]):
    """Records of runs, as `heatbath.run` and `heatbath.load` return them: a list with some more methods."""

    def where(self, **settings: Any) -> Records:
        """Return the records whose settings have these values: ``records.where(protocol="random", lr=(0.1, 0.2))``.

        Args:
            settings: of the config, or ``run`` and ``status``. A tuple, list or range allows any of its values, a
                function those for which it is true.

        Raises:
            ValueError: there is no such setting.
        """
        return Records(
            record for record in self if all(_fits(_setting(record, name), one) for name, one in settings.items())
        )

    def groups(self, by: str | Sequence[str] | None = None) -> dict[str, Records]:
        """Return the records in groups that agree in some settings, by their values in words.

        Args:
            by: the settings; by default all that differ but the seed.
        """
        names = varying([record.config for record in self]) if by is None else [by] if isinstance(by, str) else [*by]
        if by is None and "task" in names and all(record.config.task for record in self):  # whose label has its name
            names = [name for name in names if name not in ("model", "dataset")]
        found: dict[str, Records] = {}
        for record in self:
            values = {name: _setting(record, name) for name in names if by is not None or name != "seed"}
            label = ", ".join(in_words(name, value) for name, value in values.items()) or "all runs"
            found.setdefault(label, Records()).append(record)
        return found

    def to_pandas(self) -> Any:
        """Return a data frame with a row for each run and epoch: settings, ``epoch``, ``rate`` and metrics.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        try:
            pandas = import_module("pandas")
        except ModuleNotFoundError:
            advice = "to_pandas needs pandas: pip install 'heatbath[notebooks]'"
            raise ModuleNotFoundError(advice, name="pandas") from None
        rows = [
            {**_settings(record), "epoch": number, "rate": epoch.rate, **epoch.metrics}
            for record in self
            for number, epoch in enumerate(record.epochs, start=1)
        ]
        return pandas.DataFrame(rows)

    def plot(self, metric: str | None = None, by: str | Sequence[str] | None = None, ax: Any = None) -> Any:
        """Draw curves of a metric, a mean over seeds with its 95 % interval for each group; return the axes.

        Args:
            metric: such as ``"test_accuracy"``; by default the first of the test data besides the loss.
            by: see `groups`.
            ax: Matplotlib's axes to draw on; new ones by default.

        Raises:
            ValueError: the runs have no such metric.
            ModuleNotFoundError: Matplotlib is not installed.
        """
        if not any(record.epochs for record in self):
            raise ValueError("there is nothing to draw: no run has completed an epoch")
        # By its name: pictures are made in a room that imports this one.
        return import_module("heatbath.report.plots.figures").plot_curves(
            self.groups(by), metric or main_metric(self), ax
        )

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Record: ...
    @overload
    def __getitem__(self, index: slice, /) -> Records: ...
    def __getitem__(self, index: Any, /) -> Any:
        found = super().__getitem__(index)
        return Records(found) if isinstance(index, slice) else found

    def __repr__(self) -> str:
        title, *rows = self._table()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        return "\n".join((*title, *lines))

    def _repr_html_(self) -> str:
        (title,), *rows = [[html.escape(cell) for cell in row] for row in self._table()]
        head = "".join(f"<th>{cell}</th>" for cell in (rows[0] if rows else ()))
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows[1:])
        return f"<p>{title}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _table(self) -> list[list[str]]:
        """A title, headings, and a row for each group: how many runs, and the last values on the test data."""
        from heatbath.stats.intervals import summarize

        title = f"{len(self)} record{'s' * (len(self) != 1)}"
        if not self:
            return [[title]]
        kinds = dict.fromkeys(f"{record.config.model} on {record.config.dataset}" for record in self)
        metrics = _test_metrics(self)
        rows = []
        for label, members in self.groups().items():
            diverged = sum(record.status == "diverged" for record in members)
            ended = [record for record in members if record.status == "finished"]
            cells = [label, f"{len(members)}{f', {diverged} diverged' * bool(diverged)}", _state(members)]
            for metric in metrics:
                values = [value for record in ended if (value := record.final(metric)) is not None]
                found = summarize(values)
                reach = f" ± {found.interval.high - found.mean:.2g}" if len(values) > 1 else ""
                cells.append(f"{found.mean:.4g}{reach}" if values else "-")
            rows.append(cells)
        left = len(rows) - _MOST_ROWS
        if left > 0:
            rows[_MOST_ROWS:] = [[f"and {left} more", *[""] * (len(rows[0]) - 1)]]
        return [[f"{title} of {', '.join(kinds)}"], ["group", "runs", "state", *metrics], *rows]


def main_metric(records: Iterable[Record]) -> str:
    """Return the metric that tables show first: accuracy, else the first on the test data that is no loss."""
    names = _test_metrics(records)
    if not names or "test_accuracy" in names:
        return "test_accuracy"
    return next((name for name in names if not name.endswith("_loss")), names[0])


def _test_metrics(records: Iterable[Record]) -> list[str]:
    return list(dict.fromkeys(name for record in records for name in record.curves if name.startswith("test_")))


def changed_tasks(records: Iterable[Record]) -> list[str]:
    """Return a sentence for each task of which there are runs from before it was changed."""
    tasks: dict[str, dict[TaskFacts, int]] = {}
    for record in records:
        if record.config.task is not None:
            facts = record.config.task.facts
            counts = tasks.setdefault(facts.name, {})
            counts[facts] = counts.pop(facts, 0) + 1  # the one that came last is the last
    sentences = []
    for name, counts in tasks.items():
        *before, now = counts
        for old in before:
            count = f"{counts[old]} run{'s' * (counts[old] != 1)}"
            sentences.append(f"the task {name} has changed since {count} ({', '.join(old.changes(now))}): {old.label}")
    return sentences


def varying(configs: Sequence[RunConfig]) -> list[str]:
    """Return the fields in which configs differ, among those that the field does something for."""
    names = configs[0].settings() if configs else ()
    return [name for name in names if _differ([getattr(config, name) for config in concerned(configs, name)])]


def concerned(configs: Iterable[RunConfig], name: str) -> list[RunConfig]:
    """Return those that a field does something for: a law, random ones; a form of the momentum, those with some."""
    draws, moves = name in ("law", "coupling"), name in ("nesterov", "coupling")
    return [
        config
        for config in configs
        if (not draws or config.protocol.kind == "random") and (not moves or config.momentum > 0.0)
    ]


def _differ(values: Sequence[Any]) -> bool:
    first = _told_apart(values[0]) if values else None
    return any(value is not values[0] and _told_apart(value) != first for value in values)


def _told_apart(value: Any) -> tuple[type, Any]:
    """A value with its type: 0 and False, or 1 and True, are not the same here. A task and its facts are."""
    return (AnyTask, value.label) if isinstance(value, AnyTask) else (type(value), value)


def _settings(record: Record) -> dict[str, Any]:
    return {"run": record.run, "status": record.status, **record.config.settings()}


def _setting(record: Record, name: str) -> Any:
    values = _settings(record)
    if name not in values:
        raise ValueError(f"{name!r} is not a setting of a run: choose one of {', '.join(values)}")
    return values[name]


def _fits(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, AnyTask):
        return bool(value == wanted.label)
    if callable(wanted):
        return bool(wanted(value))
    if isinstance(wanted, tuple | list | range | set):
        return any(_fits(value, one) for one in wanted)
    return value == wanted or str(value) == str(wanted)


def in_words(name: str, value: Any) -> str:
    """Words stand for themselves; a number has the name of its setting before it."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if text[:1].isalpha() and value not in (None, True, False) else f"{name} {text}"


def _state(members: Sequence[Record]) -> str:
    counts = Counter(record.status for record in members)
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{count} {name}" for name, count in counts.items())
