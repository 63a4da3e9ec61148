"""A real Ray cluster of three nodes on this machine, of which some are killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

import heatbath as hb
from fake_engine import curves
from heatbath.engine.jobs import Measured
from heatbath.engine.run import load, run
from heatbath.runs.configs import RunConfig, sweep
from heatbath.tasks import transport
from own_task import network, points

ray = pytest.importorskip("ray")
executor = pytest.importorskip("heatbath.engine.executors.ray")

MEMORY = {"object_store_memory": 80 * 2**20}
CONFIGS = sweep(RunConfig(epochs=6, batch_size=100), seed=range(4))
DRIVER = """
import json, sys
from heatbath.engine.executors import ray
from heatbath.engine.run import run
ray.LETTER = 0.0
from heatbath.runs.configs import RunConfig
configs = [RunConfig.from_dict(values) for values in json.loads(sys.argv[1])]
run(configs, sys.argv[2], "cpu", executor="ray:" + sys.argv[3], progress=lambda p: print(p.epochs_done, flush=True))
"""


@pytest.fixture(scope="module")
def expected():
    return curves(run(CONFIGS, device="cpu", workers=1))


@pytest.fixture
def short_letters(monkeypatch):
    """A message for each epoch."""
    monkeypatch.setattr(executor, "LETTER", 0.0)
    monkeypatch.setattr(executor, "_SHARE", 0.0)


@pytest.fixture(scope="module")
def cluster():
    yield from start_cluster()


@pytest.fixture
def watchful_cluster(cluster):
    """One that gives up nodes that do not answer after seconds instead of a minute."""
    often = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_timeout_ms": 1000}
    yield from start_cluster(_system_config=often | {"health_check_failure_threshold": 4})


def start_cluster(**settings):
    """Three nodes: the first is the head, and has no place for work."""
    from ray.cluster_utils import Cluster

    handler = signal.getsignal(signal.SIGTERM)  # a node puts its own in its place
    head = {"num_cpus": 0, "node_ip_address": "127.0.0.2", "include_dashboard": False, **MEMORY, **settings}
    started = Cluster(initialize_head=True, head_node_args=head)
    for last in (3, 4):
        started.add_node(num_cpus=1, node_ip_address=f"127.0.0.{last}", **MEMORY)
    yield started
    ray.shutdown()
    started.shutdown()
    signal.signal(signal.SIGTERM, handler)


def drive(cluster, store):
    command = [sys.executable, "-c", DRIVER, json.dumps([config.to_dict() for config in CONFIGS]), str(store)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, cluster.address], env=os.environ, **pipes)


def test_a_killed_driver_leaves_no_work_behind_and_the_same_call_goes_on(cluster, expected, tmp_path):
    with drive(cluster, tmp_path) as driver:
        for line in driver.stdout:
            if int(line) >= 5:
                break
        driver.kill()
    kept = sum(len(record.epochs) for record in load(tmp_path))
    assert 4 <= kept < 24
    assert wait_until(lambda: not busy_workers())
    with drive(cluster, tmp_path) as driver:
        trained = [int(line) for line in driver.stdout]
    assert driver.returncode == 0
    assert trained[-1] <= 24 - kept + 4  # what the two runs at work had not sent yet
    assert curves(load(tmp_path)) == expected


def test_an_interrupt_cancels_the_jobs_on_a_cluster_of_others(cluster, tmp_path):
    with drive(cluster, tmp_path) as driver:
        for line in driver.stdout:
            if int(line) >= 5:
                break
        driver.send_signal(signal.SIGINT)
        rest, told = driver.communicate(timeout=60.0)
    assert "Interrupted: stopped: " in told.splitlines()[-1]
    assert not rest or int(rest.split()[-1]) < 24
    assert wait_until(lambda: not busy_workers())
    assert 4 <= sum(len(record.epochs) for record in load(tmp_path)) < 24


def test_a_killed_node_costs_what_was_not_saved(cluster, short_letters, tmp_path, monkeypatch):
    """It is killed while it trains; the run that it had goes on within seconds from its last epoch but one."""
    victim = cluster.add_node(num_cpus=1, node_ip_address="127.0.0.5", **MEMORY)
    configs = sweep(RunConfig(epochs=40, batch_size=100), seed=range(6))
    said, killed, resumed, told, jobs, made = [], [], [], [], set(), []
    places, keep = executor.RayCluster.count_places, executor.keep
    monkeypatch.setattr(executor.RayCluster, "count_places", lambda self: made.append(self) or places(self))

    def count(delivery, job, checkpoints):
        outcome = keep(delivery, job, checkpoints)
        if isinstance(outcome, Measured) and outcome.restored and killed:
            resumed.append(time.monotonic())
        elif isinstance(outcome, Measured):
            told.append(outcome)
            jobs.add(job.name)
        return outcome

    def kill_a_node(progress):
        said.append(progress.message or "")
        there = [stream for stream, node in made[0]._nodes.items() if node == victim.node_id]
        if not killed and any(made[0]._busy[stream].name in jobs for stream in there):
            killed.append(time.monotonic())
            cluster.remove_node(victim, allow_graceful=False)

    monkeypatch.setattr(executor, "keep", count)
    records = run(configs, tmp_path, "cpu", executor=f"ray:{cluster.address}", progress=kill_a_node)
    assert curves(records) == curves(run(configs, device="cpu", workers=2))
    assert len([message for message in said if "lost" in message]) == 1
    assert 240 <= len(told) <= 242
    assert killed
    assert resumed
    assert resumed[0] - killed[0] < 60.0  # a new process, on a busy machine


def test_data_that_nodes_lack_is_put_into_the_cluster_once(cluster, tmp_path, monkeypatch):
    """The task's data is on another machine, as far as the two workers know."""
    monkeypatch.setattr(transport, "_machine", lambda: "elsewhere")
    put, puts = ray.put, []
    monkeypatch.setattr(ray, "put", lambda value: puts.append(value) or put(value))
    task = hb.Task(network, points(0), points(1), name="points")
    configs = sweep(RunConfig(task=task, batch_size=10, epochs=40), seed=range(6))
    records = run(configs, tmp_path, "cpu", executor=f"ray:{cluster.address}")
    monkeypatch.undo()
    assert curves(records) == curves(run(configs, device="cpu", workers=1))
    assert len(puts) == 1


def test_where_nodes_have_gpus_a_job_takes_one(cluster, expected, tmp_path):
    """Ray believes what it is told: there is no GPU, so the worker trains on its CPU."""
    node = cluster.add_node(num_cpus=1, num_gpus=1, node_ip_address="127.0.0.6", **MEMORY)
    free = []
    try:
        where = {"executor": f"ray:{cluster.address}", "device": "auto"}
        records = run(CONFIGS, tmp_path, progress=lambda _: free.append(ray.available_resources().get("GPU")), **where)
    finally:
        cluster.remove_node(node)
    assert curves(records) == expected
    assert None in free  # taken


def test_a_node_that_vanishes_holds_up_nobody(watchful_cluster, expected, short_letters, tmp_path):
    """It takes no leave: its connections stay open, as those of a machine that has been switched off."""
    victim = watchful_cluster.add_node(num_cpus=1, node_ip_address="127.0.0.5", **MEMORY)
    said, stopped = [], []

    def stop_a_node(progress):
        said.append(progress.message or "")
        if progress.epochs_done >= 4 and not stopped:
            stopped.extend(family(victim.all_processes["raylet"][0].process.pid))
            for process in stopped:
                os.kill(process, signal.SIGSTOP)

    try:
        records = run(CONFIGS, tmp_path, "cpu", executor=f"ray:{watchful_cluster.address}", progress=stop_a_node)
    finally:
        for process in stopped:
            os.kill(process, signal.SIGKILL)
    assert curves(records) == expected
    assert any("its node has vanished" in message for message in said)


def family(process):
    """A process and all its descendants."""
    yield process
    for thread in Path(f"/proc/{process}/task").iterdir():
        for child in (thread / "children").read_text().split():
            yield from family(int(child))


def test_without_short_letters_the_records_are_the_same(cluster, expected, tmp_path):
    assert curves(run(CONFIGS, tmp_path, "cpu", executor=f"ray:{cluster.address}")) == expected


def test_a_run_that_kills_every_worker_ends_the_call(cluster, tmp_path, monkeypatch):
    def crash(parcel):  # in here, as it is sent by its value then
        os.kill(os.getpid(), 11)
        yield

    monkeypatch.setattr(executor, "_train", crash)
    with pytest.raises(OSError, match=rf"^run {CONFIGS[0].run} lost 5 workers before its next epoch, .*: \S.*$"):
        run(CONFIGS[:1], tmp_path, "cpu", executor=f"ray:{cluster.address}")


def test_without_an_address_a_cluster_of_its_own_is_started(cluster, expected, tmp_path, monkeypatch):
    """Whatever else runs here; and who has a handler of SIGTERM keeps it."""
    ray.shutdown()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    before = signal.signal(signal.SIGTERM, handler := Mock())
    try:
        assert curves(run(CONFIGS, tmp_path, "cpu", executor="ray", workers=1)) == expected
        assert signal.getsignal(signal.SIGTERM) is handler
        assert not handler.called
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not ray.is_initialized()


def test_a_second_interrupt_does_not_leave_half_a_cluster(tmp_path, monkeypatch):
    ray.shutdown()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    shutdown, before = ray.shutdown, signal.getsignal(signal.SIGINT)

    def shut_down_impatiently():
        os.kill(os.getpid(), signal.SIGINT)
        shutdown()

    def interrupt(_progress):
        monkeypatch.setattr(ray, "shutdown", shut_down_impatiently)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="run"):
        run(CONFIGS, tmp_path, "cpu", executor="ray", workers=1, progress=interrupt)
    assert not ray.is_initialized()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_address_that_does_not_answer(tmp_path):
    with pytest.raises(OSError, match=r"no Ray cluster at 127\.0\.0\.1:1"):
        run(CONFIGS, tmp_path, "cpu", executor="ray:127.0.0.1:1")


@pytest.mark.parametrize(
    ("answer", "words"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "the server there is not one of Ray"), (b"", "timed out")],
)
def test_a_server_that_is_not_of_ray(answer, words, tmp_path, monkeypatch):
    monkeypatch.setattr(executor, "_ANSWER", 0.5)
    asked = threading.Event()

    def serve():
        caller, _ = server.accept()
        with caller:
            caller.sendall(answer)
            asked.wait(10.0)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        where = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(OSError, match=rf"^no Ray cluster at {where}: {words}$"):
            run(CONFIGS, tmp_path, "cpu", executor=f"ray:{where}")
        asked.set()
        thread.join()


def test_a_cluster_with_another_python_is_refused_in_one_line(cluster, tmp_path, monkeypatch):
    """Ray itself compares what the cluster was started with."""
    monkeypatch.setattr("ray._private.utils.compute_version_info", lambda: (ray.__version__, "3.99.1"))
    with pytest.raises(OSError, match=r"^no Ray cluster at \S+: Version mismatch: .*Python: 3\.99\.1$"):
        run(CONFIGS, tmp_path, "cpu", executor=f"ray:{cluster.address}")
    assert not list(tmp_path.iterdir())


def busy_workers():
    """Return the processes that train for Ray."""
    found = subprocess.run(["pgrep", "-f", "^ray::_train"], stdout=subprocess.PIPE, text=True)
    return found.stdout.split()


def wait_until(true, seconds=20.0):
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.2)
    return true()
