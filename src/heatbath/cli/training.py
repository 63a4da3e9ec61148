"""How commands train: the options that they share, and what is shown meanwhile."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from heatbath.cli.errors import resumable
from heatbath.engine.options import Options
from heatbath.engine.progress_bar import display
from heatbath.runs.collection import Records
from heatbath.runs.configs import RunConfig
from heatbath.runs.store import Store
from heatbath.system.machine import keep_freed_memory
from heatbath.system.whole_files import check_data_dir, check_folder
from heatbath.tasks.facts import AnyTask


@dataclass(frozen=True)
class Training:
    """Where runs are kept, and who trains them on what."""

    store: Path = Path("runs")
    device: str = "auto"
    data_dir: Path | None = None
    workers: int | None = None
    stack: int | None = None
    executor: str = "local"
    mix_origins: bool = False
    quiet: bool = False

    def options(self) -> Options:
        """Return how to train, checked."""
        check_data_dir(self.data_dir, "--data-dir")
        return Options(**{name: value for name, value in vars(self).items() if name not in ("store", "quiet")})

    def complete(self, configs: Sequence[RunConfig]) -> Records:
        """Train what has not ended in the store, show how far it is, and return the records in the configs' order."""
        options = self.options()
        if not (self.store / Store.FILE).exists():
            check_folder(self.store, "--store")
        keep_freed_memory()
        # What a task prints must not come between what the command prints.
        with resumable(), display(quiet=self.quiet) as shown, redirect_stdout(sys.stderr):
            from heatbath.engine import run

            return run.complete(configs, self.store, options, shown.follow_training)

    def import_task(self, path: str) -> AnyTask:
        """Return the task that a path names; modules of the current folder are found."""
        sys.path.append(os.getcwd())
        with display(f"importing {path}", quiet=self.quiet), redirect_stdout(sys.stderr):
            from heatbath.tasks.samples import resolve

            found = resolve(path, "--task")
            found = found() if callable(found) and not isinstance(found, AnyTask) else found
        if not isinstance(found, AnyTask):
            raise ValueError(f"--task {path} must be a heatbath.Task, got {type(found).__name__}")
        return found


@dataclass(frozen=True)
class SafeTraining(Training):
    """Training whose checkpoints are written as often as is asked for."""

    checkpoint_seconds: float = 0.0
