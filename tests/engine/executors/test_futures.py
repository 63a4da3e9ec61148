"""Jobs as futures: in processes, in threads and on a real Dask cluster; workers are killed, or lack the data."""

import errno
import importlib
import multiprocessing
import os
import pickle
import platform
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle

import loky
import pytest
import torch
from torch import nn

import heatbath as hb
from fake_engine import CONFIGS, alone, curves
from heatbath.engine import trainer
from heatbath.engine.executors import futures
from heatbath.engine.executors.choice import find_executor
from heatbath.engine.executors.parcels import own_versions, pack, whole_slice
from heatbath.engine.jobs import Job
from heatbath.engine.options import Options
from heatbath.engine.run import load, run
from heatbath.runs.configs import RunConfig, sweep
from heatbath.tasks import transport

REAL = sweep(RunConfig(epochs=4, batch_size=200), seed=range(3))


@pytest.fixture(scope="module")
def expected():
    return curves(run(REAL, device="cpu", workers=1))


@pytest.fixture
def short_slices(monkeypatch):
    """A slice for each epoch."""
    monkeypatch.setattr(futures, "SLICE", 0.0)


def processes(count, initializer=None):
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer)


def loky_processes(count, initializer=None):
    return loky.ProcessPoolExecutor(count, initializer=initializer)


def test_processes_give_the_records_of_this_one(expected, short_slices, tmp_path):
    with processes(2) as pool:
        records = run(REAL, tmp_path, "cpu", executor=pool)
    assert curves(records) == expected
    assert [record.status for record in records] == ["finished"] * 3
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_stack_in_slices_loses_the_runs_that_diverge(gpu, short_slices, tmp_path):
    """The replicas of a stack diverge after the second epoch, and the others go on, in the same worker or another."""
    configs = [*CONFIGS, *sweep(RunConfig(epochs=4, lr=2000.0), seed=range(2))]
    with ThreadPoolExecutor(1) as pool:
        records = run(configs, tmp_path, "cuda", executor=pool)
    assert [record.status for record in records] == ["finished"] * 6 + ["diverged"] * 2
    assert [len(record.epochs) for record in records] == [4] * 6 + [2] * 2
    assert curves(records[:6]) == alone(CONFIGS)


def test_a_worker_goes_on_with_the_stack_it_has(engine, short_slices, tmp_path):
    with ThreadPoolExecutor(1) as pool:
        run(CONFIGS[:1], tmp_path, "cpu", executor=pool)
    assert engine.sizes == [1]  # built once, for four slices


def test_another_worker_restores_the_stack(engine, short_slices, tmp_path):
    """Two jobs that alternate in one worker: it keeps one stack, and restores the other from what was sent."""
    with ThreadPoolExecutor(1) as pool:
        records = run(CONFIGS[:2], tmp_path, "cpu", executor=pool, workers=2)
    assert len(engine.sizes) > 2
    assert curves(records) == alone(CONFIGS[:2])


@pytest.mark.parametrize("processes", [processes, loky_processes])
def test_a_killed_process_breaks_the_pool_and_a_new_one_goes_on(processes, expected, short_slices, tmp_path):
    words = r"^the executor has broken: a worker of it died.* is safe, and the same call with a new executor goes on"
    with processes(1, kill_in_the_third_epoch) as pool, pytest.raises(OSError, match=words) as raised:
        run(REAL, tmp_path, "cpu", executor=pool)
    assert "\n" not in str(raised.value)
    kept = [len(record.epochs) for record in load(tmp_path)]
    assert sum(kept) == 2
    with processes(1) as pool:
        assert curves(run(REAL, tmp_path, "cpu", executor=pool)) == expected


def test_what_others_finished_is_recorded_when_an_executor_breaks(expected, short_slices, tmp_path, monkeypatch):
    """All futures are done when they are looked at; the one that broke must not hide what the others have."""
    wait = futures.futures.wait
    monkeypatch.setattr(futures.futures, "wait", lambda busy, **_: wait(busy))
    with BrokenForOne() as pool, pytest.raises(OSError, match="executor has broken"):
        run(REAL, tmp_path, "cpu", executor=pool, workers=3)
    kept = {record.run: record.epochs for record in load(tmp_path)}
    assert sorted(len(epochs) for epochs in kept.values()) == [0, 1, 1]
    assert all(epochs == expected[run][: len(epochs)] for run, epochs in kept.items())


class BrokenForOne(ThreadPoolExecutor):
    """Its first slice breaks, and then it takes no more."""

    slices = 0

    def submit(self, function, *arguments):
        self.slices += function is whole_slice
        if self.slices > 3:
            raise BrokenExecutor
        return super().submit(break_down if self.slices == 1 and function is whole_slice else function, *arguments)


def break_down(*_):
    raise BrokenExecutor


def test_dask_survives_a_killed_worker(expected, short_slices, tmp_path):
    import distributed

    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        seen = []

        def kill_one(progress):
            seen.append(progress.epochs_done)
            if progress.epochs_done == 3:
                os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)

        records = run(REAL, tmp_path, "cpu", executor=client.get_executor(), progress=kill_one)
    assert 3 in seen
    assert curves(records) == expected


def test_data_is_lent_to_workers_that_lack_it(expected, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with processes(2, lack_the_data) as pool:
        assert curves(run(REAL, tmp_path / "store", "cpu", executor=pool)) == expected
    assert [file.name for file in tmp_path.iterdir()] == ["store"]


def test_data_is_lent_again_where_a_run_goes_on(expected, short_slices, tmp_path):
    """Slices of one run in turn in two processes, each of which lacks the data when its first one comes."""
    with processes(1, lack_the_data) as one, processes(1, lack_the_data) as other:
        (record,) = run(REAL[:1], tmp_path, "cpu", executor=InTurns(one, other), workers=1)
    assert record.epochs == expected[record.run]


class InTurns(Executor):
    """Gives each of its executors the next piece of work."""

    def __init__(self, *executors):
        self._executors = cycle(executors)

    def submit(self, function, *arguments):
        return next(self._executors).submit(function, *arguments)


def test_threads_that_draw_from_one_generator_take_turns(tmp_path):
    task = hb.Task(Noisy, two_moons(), two_moons(), name="noisy moons")
    configs = sweep(RunConfig(task=task, batch_size=10, epochs=20), seed=range(4))
    with ThreadPoolExecutor(2) as pool:
        assert curves(run(configs, tmp_path, "cpu", executor=pool)) == curves(run(configs, device="cpu", workers=1))


class Noisy(nn.Linear):
    """Adds noise to its inputs, from the generator that all threads share."""

    def __init__(self):
        super().__init__(2, 2)

    def forward(self, x):
        return super().forward(x + torch.randn_like(x))


def test_a_dask_scheduler_that_dies_ends_the_call(short_slices, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    import dask

    monkeypatch.setattr(futures, "_LOOK", 0.2)
    file = tmp_path / "scheduler.json"
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        dask_process("scheduler", file, "--host", "127.0.0.1", "--port", "0") as scheduler,
        distributed.Client(scheduler_file=str(file), set_as_default=False) as client,
    ):
        where = {"executor": client.get_executor(), "workers": 1, "progress": lambda _: scheduler.kill()}
        with (
            dask_process("worker", file, "--no-nanny"),
            pytest.raises(OSError, match=r"^the Dask scheduler is gone; what was recorded is safe"),
        ):
            run(REAL, tmp_path / "store", "cpu", **where)


@contextmanager
def dask_process(kind, scheduler_file, *options, **environment):
    """A process of Dask's own command, killed at the end."""
    command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", "--scheduler-file", str(scheduler_file)]
    settings = {"stderr": subprocess.DEVNULL, "env": {**os.environ, **environment}}
    with subprocess.Popen([*command, "--no-dashboard", *options], **settings) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ('__version__ = "0.0.1"', r"^\S+ has heatbath 0\.0\.1, the driver heatbath \S+: install the same on all$"),
        (
            'raise ImportError("no such thing")',
            r"^a worker lacks heatbath or torch \(no such thing\): install the same on all$",
        ),
    ],
)
def test_a_worker_with_a_heatbath_that_has_none_of_this_code_is_refused(there, words, tmp_path):
    """Its version is asked for without our functions, which it could not find."""
    distributed = pytest.importorskip("distributed")
    (tmp_path / "heatbath").mkdir()
    (tmp_path / "heatbath/__init__.py").write_text(there)
    file = tmp_path / "scheduler.json"
    with (
        dask_process("scheduler", file, "--host", "127.0.0.1", "--port", "0"),
        distributed.Client(scheduler_file=str(file), set_as_default=False) as client,
        dask_process("worker", file, "--no-nanny", PYTHONPATH=str(tmp_path)),
        pytest.raises(ValueError, match=words),
    ):
        run(REAL, tmp_path / "store", "cpu", executor=client.get_executor(), workers=1)


@pytest.mark.parametrize("interrupted", [False, True])
def test_dask_in_a_script_without_a_guard(interrupted, tmp_path):
    """Workers do not import the script again; a Ctrl-C in the terminal reaches it alone, and leaves none behind."""
    pytest.importorskip("distributed")
    script = f"""
import heatbath as hb, os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
def stop(progress):
    if {interrupted} and progress.epochs_done:
        os.killpg(0, signal.SIGINT)
configs = hb.sweep(hb.RunConfig(epochs=4, batch_size=200), seed=range(3))
print(len(hb.run(configs, "store", "cpu", executor="dask", workers=2, progress=stop)))
"""
    (tmp_path / "script.py").write_text(script)
    settings = {"cwd": tmp_path, "capture_output": True, "text": True, "start_new_session": True}
    done = subprocess.run([sys.executable, "script.py"], timeout=120.0, **settings)  # for all that hold its output
    if not interrupted:
        assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")
    else:
        *_, last = done.stderr.splitlines()
        assert "Interrupted: stopped: " in last
        assert "distributed" not in done.stderr.replace("engine/executors", "")


def test_a_full_disk_of_a_worker_is_told_with_its_name(engine, short_slices, tmp_path, monkeypatch):
    """It is not the disk of the store."""

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trainer.Saver, "save", fail)
    words = rf"^{socket.gethostname()} has no space left in {tempfile.gettempdir()}: set TMPDIR there$"
    with ThreadPoolExecutor(1) as pool, pytest.raises(OSError, match=words):
        run(CONFIGS[:1], tmp_path, "cpu", executor=pool)


def test_a_lack_of_memory_is_an_outcome_and_not_an_error_of_the_executor(gpu, short_slices, tmp_path, monkeypatch):
    """The stack is too large for the worker; smaller ones are not."""
    build = trainer.Stack

    def too_large(configs, *arguments, **options):
        if len(configs) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return build(configs, *arguments, **options)

    monkeypatch.setattr(trainer, "Stack", too_large)
    with ThreadPoolExecutor(1) as pool:
        assert curves(run(CONFIGS, tmp_path, "cuda", executor=pool)) == alone(CONFIGS)


def test_a_dask_cluster_without_workers_is_told(tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    dask = pytest.importorskip("heatbath.engine.executors.dask")
    monkeypatch.setattr(dask.DaskCluster, "patience", 0.5)
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=None) as cluster,
        pytest.raises(OSError, match="no worker of the Dask cluster has had a free place"),
    ):
        run(REAL, tmp_path, "cpu", executor=f"dask:{cluster.scheduler_address}")


@pytest.mark.parametrize(
    ("initializer", "words"),
    [
        ("be_another_version", r"has heatbath 9\.9, the driver heatbath \S+: install the same on all$"),
        ("have_another_python", r"has Python 3\.99, the driver Python 3\.\d+: install the same on all$"),
        ("have_another_torch", r"has torch 1\.2\.3, the driver torch [\d.]+: install the same on all$"),
    ],
)
def test_another_version_on_a_worker_is_refused(tmp_path, initializer, words):
    with processes(1, globals()[initializer]) as pool, pytest.raises(ValueError, match=words):
        run(REAL, tmp_path, "cpu", executor=pool)
    assert not (tmp_path / "checkpoints").exists()


def test_a_task_that_cannot_be_imported_on_a_worker_is_told_in_one_line(tmp_path, monkeypatch):
    """A pool that opens it itself breaks, and says that memory was lacking."""
    (tmp_path / "only_here.py").write_text("from torch import nn\n\ndef build():\n    return nn.Linear(2, 2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("only_here")
    (tmp_path / "only_here.py").unlink()
    task = hb.Task(module.build, two_moons(), two_moons(), name="moons")
    words = r"^the code of task moons cannot be imported in a worker \(No module named 'only_here'\): [^\n]*$"
    with processes(1) as pool, pytest.raises(ValueError, match=words):
        run([RunConfig(task=task, batch_size=50)], tmp_path / "store", "cpu", executor=pool)


def test_bad_executors(tmp_path):
    with pytest.raises(ValueError, match=r"executor must be local, ray, .* got 'slurm'"):
        run(REAL, tmp_path, executor="slurm")
    with pytest.raises(TypeError, match=r"concurrent\.futures\.Executor, got 3"):
        run(REAL, tmp_path, executor=3)
    with pytest.raises(TypeError, match=r"concurrent\.futures\.Executor, got <class "):
        run(REAL, tmp_path, executor=ThreadPoolExecutor)
    for name in ("ray:", "dask:"):
        with pytest.raises(ValueError, match=rf"ray:ADDRESS, .* got '{name}'"):
            run(REAL, tmp_path, executor=name)
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(ValueError, match="shut down"):
        run(REAL, tmp_path, "cpu", executor=pool)
    with pytest.raises(ValueError, match="does not say how many workers"):
        run(REAL, tmp_path, "cpu", executor=Nameless())
    assert find_executor("local").args == find_executor(None).args == ("local",)


@pytest.mark.parametrize("address", ["nowhere", "gopher://nowhere:1"])
def test_an_address_that_is_none_is_told_before_dask_has_a_client(tmp_path, monkeypatch, address):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(distributed, "Client", lambda *_, **__: pytest.fail("there is a client"))
    with pytest.raises(OSError, match=f"no Dask scheduler at {address}: "):
        run(REAL, tmp_path, "cpu", executor=f"dask:{address}")


def test_a_server_that_is_no_scheduler_is_told_by_dask_too(tmp_path, monkeypatch):
    """It takes the call and says nothing; Dask's own client waits for ever then."""
    dask = pytest.importorskip("heatbath.engine.executors.dask")
    monkeypatch.setattr(dask, "_ANSWER", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(OSError, match=rf"^no Dask scheduler at {address}: \S.*$"):
            run(REAL, tmp_path, "cpu", executor=f"dask:{address}")


class Nameless:
    """An executor that does not say its size."""

    def __init__(self):
        self._pool = ThreadPoolExecutor(1)

    def submit(self, *call):
        return self._pool.submit(*call)


def kill_in_the_third_epoch():
    train_epoch = trainer.Stack.train_epoch

    def fatal(stack):
        if stack.epoch == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return train_epoch(stack)

    trainer.Stack.train_epoch = fatal


def lack_the_data():
    from heatbath.data.formats import DataError

    def missing(*_, **__):
        raise DataError("mnist5k is nowhere to be found")

    trainer.load_dataset = missing


def test_a_worker_that_came_later_with_another_version_refuses_its_job():
    parcel = pickle.loads(pack(Job("job", (REAL[0],), (None,)), Options(device="cpu")))
    other = replace(parcel, versions={**parcel.versions, "Python": "3.1", "torch": "1.2.3"})
    with pytest.raises(ValueError, match=r"has Python 3\.\d+ and torch \S+, the driver Python 3\.1 and torch 1\.2\.3"):
        whole_slice(pickle.dumps(other))


def test_a_torch_built_for_a_gpu_is_the_same(monkeypatch):
    before = own_versions()
    monkeypatch.setattr(torch, "__version__", torch.__version__.partition("+")[0] + "+cu126")
    assert own_versions() == before


def have_another_python():
    platform.python_version_tuple = lambda: ("3", "99", "1")


def have_another_torch():
    torch.__version__ = "1.2.3+cu126"


def be_another_version():
    hb.__version__ = "9.9"


def two_moons():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(300, 2, generator=generator)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def small_network():
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))


def be_another_machine():
    transport._machine = lambda: "another machine"


def test_the_data_of_a_task_is_lent_to_another_machine(short_slices, tmp_path):
    task = hb.Task(small_network, two_moons(), two_moons(), name="moons")
    configs = sweep(RunConfig(task=task, epochs=3, batch_size=50), seed=range(2))
    expected = curves(run(configs, device="cpu", workers=1))
    with processes(1, be_another_machine) as pool:
        assert curves(run(configs, tmp_path, "cpu", executor=pool)) == expected
