"""What the driver of a large cluster costs: workers are simulated, the store, the claims and the queue are real.

    python benchmarks/cluster.py --runs 1000 10000 100000 --workers 1000
    python benchmarks/cluster.py --runs 10000 --state-kB 640

Nothing is trained. Each of the workers reports an epoch in turn and dies now and then, with all that it has not
finished or saved. With ``--state-kB`` the third of five reports has a checkpoint of that size, which the driver writes
to its disk as it does with Ray (640 is the paper's perceptron); making it is the worker's work, and not counted. The
numbers are those of one core, after a call that imports what is needed: milliseconds of a run, on the
clock and of the processor, which other programs do not lengthen; reports a second; and memory. What the driver takes
while it drives (``driving_MB``: its growth from the first job to the last) is told apart from the configs, which the
caller made, and from the records, which the caller gets. A run must be finished once and none lost, or the benchmark
fails.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

from heatbath.cli import app
from heatbath.engine.executors.choice import NextJob
from heatbath.engine.executors.parcels import Delivery, keep
from heatbath.engine.jobs import Ended, Job, Measured, Outcome
from heatbath.engine.options import Options
from heatbath.engine.run import complete, load
from heatbath.runs.checkpoints import Saver
from heatbath.runs.configs import RunConfig, sweep
from heatbath.runs.records import Epoch

EPOCHS, STATE_AT = 5, 2
METRICS = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")
ORIGIN = {"device": "simulated", "heatbath": "0", "torch": "0", "python": "0", "precision": "fp32"}


class Simulated:
    """Workers that report one after another, and die with a chance.

    Args:
        workers: how many.
        death: the chance that one dies instead of a report.
        checkpoints: the folder of the driver's checkpoints.
        state_kB: the size of a state; 0 is none.
    """

    device, slots = "cpu", 1

    def __init__(self, workers: int, death: float, checkpoints: Path, state_kB: int) -> None:
        self._workers, self._death, self._random = workers, death, random.Random(1)
        self._checkpoints, self._state = checkpoints, torch.zeros(250 * state_kB) if state_kB else None
        self.theirs = self.theirs_cpu = 0.0  # seconds that workers would have taken
        self.reports, self.lost, self.finished = 0, 0, Counter[str]()
        self.first_MB = self.most_MB = 0.0

    def prepare(self, configs: Sequence[RunConfig], progress: Callable[[str, int, int], None] | None = None) -> None:
        """Nothing is needed."""

    def rounds(self, configs: Sequence[RunConfig]) -> list[list[RunConfig]]:
        """All at once."""
        return [list(configs)]

    def stack_size(self, configs: Sequence[RunConfig]) -> int:
        """One, as on a CPU."""
        del configs
        return 1

    def places(self, configs: Sequence[RunConfig], jobs: int, seconds: float) -> tuple[int, int]:
        """As many as there are workers."""
        del configs, seconds
        return min(self._workers, jobs), 1

    def train(self, next_job: NextJob, places: int) -> Iterator[tuple[Job, Outcome] | None]:
        """Let each worker report in turn."""
        busy: list[tuple[Job, int]] = []
        self.first_MB = self.first_MB or resident()
        while True:
            self.most_MB = max(self.most_MB, resident())
            while len(busy) < places and (job := next_job()) is not None:
                busy.append((job, 0 if job.sources[0] is None else STATE_AT + 1))
            if not busy:
                return
            going_on = []
            for job, epoch in busy:
                if self._random.random() < self._death:
                    self.lost += 1
                    yield job, Ended("lost", "the node is gone")
                    continue
                self.reports += 1
                yield job, keep(self._deliver(job, epoch), job, self._checkpoints)
                if epoch + 1 == EPOCHS:
                    self.finished.update(config.run for config in job.configs)
                    yield job, Ended()
                else:
                    going_on.append((job, epoch + 1))
            busy = going_on
            yield None

    def close(self) -> None:
        """Nothing is left."""

    def _deliver(self, job: Job, epoch: int) -> Delivery:
        last = epoch + 1 == EPOCHS
        one = self._epoch(job, epoch)
        if self._state is None or epoch != STATE_AT:
            return Measured(epoch, ((one,),), durable=last, seconds=0.1, origin=ORIGIN), None
        start, cpu = time.perf_counter(), time.process_time()
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            curve = [self._epoch(job, k) for k in range(epoch + 1)]
            file = Saver(Path(folder), job.name).save(epoch + 1, [job.configs[0].run], [{"x": self._state}], [curve])
            state = file.read_bytes()
        self.theirs += time.perf_counter() - start
        self.theirs_cpu += time.process_time() - cpu
        return Measured(epoch, ((one,),), checkpoint=file.name, durable=True, seconds=0.1, origin=ORIGIN), state

    def _epoch(self, job: Job, epoch: int) -> Epoch:
        return Epoch(0.005, {name: float(epoch + job.configs[0].seed % 97) / 100.0 for name in METRICS}, ORIGIN)


def list_runs(folder: Path) -> None:
    """Print the table of ``heatbath runs list`` to nobody."""
    with redirect_stdout(io.StringIO()):
        app(["runs", "list", "--store", str(folder)], standalone_mode=False)


def resident() -> float:
    """The memory of this process, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def measure(runs: int, workers: int, death: float, folder: Path, state_kB: int = 0) -> dict[str, Any]:
    """What a call for so many runs costs, and a second one that finds them all finished."""
    empty = resident()
    configs = sweep(RunConfig(epochs=EPOCHS), seed=range(runs))
    simulated = Simulated(workers, death, folder / "checkpoints", state_kB)
    start, cpu = time.perf_counter(), time.process_time()
    records = complete(configs, folder, Options(device="cpu"), lambda _: None, executor=lambda *_: simulated)
    seconds = time.perf_counter() - start - simulated.theirs
    busy = time.process_time() - cpu - simulated.theirs_cpu
    statuses = Counter(record.status for record in records)
    if statuses != {"finished": runs} or set(simulated.finished.values()) != {1}:
        raise SystemExit(f"not every run was finished once: {statuses}, {simulated.finished.most_common(3)}")
    del records
    later: dict[str, float] = {}
    for name, call in (
        ("second_call", lambda: complete(configs, folder, Options(device="cpu"))),
        ("load", lambda: load(folder)),
        ("list", lambda: list_runs(folder)),
    ):
        start, cpu = time.perf_counter(), time.process_time()
        call()
        later |= {f"{name}_s": time.perf_counter() - start, f"{name}_cpu_s": time.process_time() - cpu}
    return {
        "runs": runs,
        "workers": workers,
        "state_kB": state_kB,
        "reports": simulated.reports,
        "lost": simulated.lost,
        "seconds": seconds,
        "cpu_seconds": busy,
        "run_ms": 1e3 * seconds / runs,
        "run_cpu_ms": 1e3 * busy / runs,
        "reports_per_second": simulated.reports / seconds,
        "reports_per_cpu_second": simulated.reports / busy,
        **later,
        "empty_MB": empty,
        "asked_MB": simulated.first_MB,
        "driving_MB": simulated.most_MB - simulated.first_MB,
        "with_records_MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def main() -> None:
    """Measure stores of several sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--death", type=float, default=0.001, help="the chance that a worker dies instead of a report")
    parser.add_argument("--state-kB", type=int, default=0, help="the size of a checkpoint; 0 is none")
    parser.add_argument("--json", help="a file for the numbers")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="heatbath-") as folder:
        measure(100, arguments.workers, 0.0, Path(folder))
    for runs in arguments.runs:
        with tempfile.TemporaryDirectory(prefix="heatbath-") as folder:
            rows.append(measure(runs, arguments.workers, arguments.death, Path(folder), arguments.state_kB))
        print(", ".join(f"{name} {value:.4g}" for name, value in rows[-1].items()), flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
