"""Real kills, real full disks, real Ctrl-C, with the real engine.

One process imports torch and loads the data once, and forks the ones that train and are killed: a hundred kills in
half a minute. The training set is cut to 500 images, so that much of the time goes into what is to be tested:
checkpoints and transactions.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial

import pytest

from heatbath.engine.run import load
from heatbath.runs.configs import RunConfig, sweep
from heatbath.runs.store import Store

KILLS = 100
BASE = RunConfig(epochs=5, batch_size=100, validation=3500)

GROUND = """
import json, os, signal, sys, time
import torch
torch.set_num_threads(1)
from heatbath.engine import planning, trainer
from heatbath.engine.run import run
from heatbath.runs.configs import RunConfig
from heatbath.system import machine
data = trainer.load_dataset("mnist5k", validation=3500)
trainer.load_dataset = lambda *_, **__: data
planning.cpu_workers = lambda model, cores: (1, 1)
train_epoch = trainer.Stack.train_epoch
trainer.Stack([RunConfig(batch_size=100, validation=3500)], data).train_epoch()  # imports what is still missing
machine.code_version()  # asks git, once
print("ready", flush=True)

for line in sys.stdin:
    order = json.loads(line)
    configs = [RunConfig.from_dict(values) for values in order["configs"]]
    sys.stdout.flush()
    children = []
    for _ in range(order.get("copies", 1)):
        child = os.fork()
        if child:
            children.append(child)
            continue
        try:
            planning.plan_stacks = lambda configs, device, free_bytes=None: order["stack"]
            log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

            def logged(stack):
                measured = train_epoch(stack)
                os.write(log, b"".join(f"{c.run} {stack.epoch}\\n".encode() for c in stack.configs))
                return measured

            trainer.Stack.train_epoch = logged
            run(configs, order["store"], "cpu")
            os._exit(0)
        except BaseException as error:
            with open(order["log"] + ".error", "w") as file:
                file.write(f"{type(error).__name__}: {error}")
            os._exit(1)
    if "after" in order:
        time.sleep(order["after"])
        for child in children:
            os.kill(child, signal.SIGKILL)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)
"""


@pytest.fixture(scope="module")
def ground():
    process = subprocess.Popen([sys.executable, "-c", GROUND], stdin=-1, stdout=-1, text=True)
    assert process.stdout.readline() == "ready\n"

    def train(configs, store, stack=3, **order):
        values = [config.to_dict() for config in configs]
        order = {"configs": values, "store": str(store), "log": f"{store}.log", "stack": stack} | order
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield train
    process.communicate()


def trained(store):
    """Which epochs were trained, in order, as (run, epoch)."""
    try:
        with open(f"{store}.log") as file:
            return [(run, int(epoch)) for run, epoch in map(str.split, file)]
    except FileNotFoundError:
        return []


def curves(store):
    return {record.run: record.epochs for record in load(store)}


def test_a_hundred_kills_lose_at_most_an_epoch_each(ground, tmp_path):
    moments = random.Random(20)
    store, kills, rounds, configs = tmp_path / "store", 0, 0, sweep(BASE, seed=range(4))
    recorded, finished, past = {}, {}, 0
    start = time.monotonic()
    assert ground(configs, tmp_path / "undisturbed", stack=1) == [0]
    life = 0.3 * (time.monotonic() - start)  # so that a slow machine gets as far as a fast one
    while kills < KILLS:
        (code,) = ground(configs, store, stack=moments.choice([1, 2, 3, 4]), after=moments.uniform(0.0, life))
        assert code in (0, -signal.SIGKILL)
        kills += code != 0
        rounds += 1
        log = trained(store)
        before, now = log[:past], log[past:]
        past = len(log)
        last = dict(before)  # the epoch each run had trained when it was killed
        for run, epoch in dict(reversed(now)).items():
            assert epoch >= last.get(run, 0), "the first epoch of a resumed run is its last one again, or the next"
        assert not {run for run, _ in now} & set(finished), "a finished run was trained again"
        if not store.exists() or not (store / Store.FILE).exists():
            continue
        records = {record.run: record for record in load(store)}
        for run, epochs in recorded.items():
            assert records[run].epochs[: len(epochs)] == epochs, "what was recorded stays"
        recorded = {run: record.epochs for run, record in records.items()}
        finished |= {run: record for run, record in records.items() if record.status == "finished"}
        if code == 0:
            configs = [*configs, *sweep(BASE, seed=range(len(configs), len(configs) + 4))]
    assert ground(configs, store) == [0]
    assert ground(configs, tmp_path / "undisturbed", stack=1) == [0]
    assert curves(store) == curves(tmp_path / "undisturbed")
    assert rounds >= KILLS
    assert len(finished) >= 4, "the kills let nothing be finished: nothing was tested"
    assert os.listdir(store / "checkpoints") == os.listdir(store / "owners") == []
    again = len(trained(store)) - sum(map(len, curves(store).values()))
    assert again <= 4 * KILLS


def test_kills_do_not_change_what_adamw_schedules_and_draws_give(ground, tmp_path):
    base = BASE.with_(optimizer="adamw", lr=0.002, schedule="cosine", warmup=3, clip_norm=0.5, sampling="replacement")
    configs = [*sweep(base, coupling=("gradient", "update"), seed=range(2)), BASE.with_(schedule="linear")]
    moments, kills = random.Random(3), 0
    start = time.monotonic()
    assert ground(configs, tmp_path / "alone", stack=1) == [0]
    life = 0.3 * (time.monotonic() - start)
    while ground(configs, tmp_path / "store", stack=2, after=moments.uniform(0.3 * life, life)) != [0]:
        kills += 1
    assert kills >= 2
    assert curves(tmp_path / "store") == curves(tmp_path / "alone")
    assert len(curves(tmp_path / "store")) == 5


def test_two_processes_share_a_store_and_train_nothing_twice(ground, tmp_path):
    configs = sweep(BASE, seed=range(7))
    assert ground(configs, tmp_path / "store", stack=2, copies=2) == [0, 0]
    log = trained(tmp_path / "store")
    assert len(log) == len(set(log)) == 7 * BASE.epochs
    assert ground(configs, tmp_path / "alone", stack=1) == [0]
    assert curves(tmp_path / "store") == curves(tmp_path / "alone")


def test_two_processes_that_are_killed_leave_a_sound_store(ground, tmp_path):
    configs = sweep(BASE, seed=range(6))
    moments = random.Random(5)
    for _ in range(10):
        ground(configs, tmp_path / "store", stack=2, copies=2, after=moments.uniform(0.02, 0.2))
    assert ground(configs, tmp_path / "store", stack=2, copies=2) == [0, 0]
    assert ground(configs, tmp_path / "alone", stack=1) == [0]
    assert curves(tmp_path / "store") == curves(tmp_path / "alone")


@pytest.fixture
def small_disk(tmp_path):
    """A folder with room for a few megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(place)], capture_output=True)
    if mount.returncode:
        pytest.skip("may not mount a small disk here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("room", [0, 40_000, 300_000, 1_500_000])
def test_a_full_disk_is_told_plainly_and_the_store_is_intact(ground, small_disk, tmp_path, room):
    """There is room for nothing, for some transactions, for a part of a checkpoint, and for one or two of them."""
    configs = sweep(BASE, seed=range(3))
    store, log, filler = small_disk / "store", str(tmp_path / "log"), small_disk / "filler"
    assert ground(configs[:1], store, log=log) == [0]
    free = os.statvfs(small_disk)
    filler.write_bytes(b"x" * (free.f_bavail * free.f_frsize - room))
    before = curves(store)
    assert ground(configs, store, log=log) == [1]
    error = (tmp_path / "log.error").read_text()
    assert error == f"OSError: no space left in {store}; what was finished is safe; free space and run again"
    after = curves(store)
    assert {run: after[run] for run in before} == before
    filler.unlink()
    assert ground(configs, store, log=log) == [0]
    assert ground(configs, tmp_path / "alone", stack=1) == [0]
    assert curves(store) == curves(tmp_path / "alone")


def test_a_store_that_a_full_disk_lets_begin_is_whole(small_disk):
    """With so little room the tables may fit into SQLite's log, and not into the file as well."""
    configs = sweep(BASE, seed=range(3))
    for kilobytes in range(40, 80, 4):
        store = small_disk / str(kilobytes)
        filler = small_disk / "filler"
        free = os.statvfs(small_disk)
        filler.write_bytes(b"x" * (free.f_bavail * free.f_frsize - 1024 * kilobytes))
        with suppress(OSError), Store(store) as results:
            results.add(configs)
        filler.unlink()
        with Store(store) as results:
            results.add(configs)
            assert len(results.records()) == 3


LONG = """
import sys
from heatbath.engine import planning
from heatbath.engine.run import run
from heatbath.runs.configs import RunConfig, sweep
planning.plan_stacks = lambda configs, device, free_bytes=None: 1
planning.cpu_workers = lambda model, cores: (2, 1)
configs = sweep(RunConfig(epochs=2000, batch_size=100, validation=3500), seed=range(4))
try:
    run(configs, sys.argv[1], "cpu", workers=2, progress=lambda p: print(p.epochs_done, p.message, flush=True))
except KeyboardInterrupt as stop:
    print(stop)
"""


def start_two_workers(store):
    """A training in two workers that has begun, in a process group of its own, and the workers' ids."""
    process = subprocess.Popen(
        [sys.executable, "-c", LONG, str(store)],
        stdout=-1,
        stderr=-1,
        text=True,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.default_int_handler),  # deaf in the background
    )
    while int(process.stdout.readline().split()[0]) < 3:
        pass
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        return process, [int(pid) for pid in file.read().split()]


def wait_until_gone(pids):
    for _ in range(600):
        if not any(os.path.exists(f"/proc/{pid}") and _state(pid) != "Z" for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _state(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs /proc to see the workers")
def test_ctrl_c_stops_everything_with_a_hint_and_a_kill_takes_the_workers_along(tmp_path):
    process, workers = start_two_workers(tmp_path / "store")
    assert len(workers) == 2
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert (
        out.splitlines()[-1] == "stopped: 0 of 4 runs are done; the same again with the same store goes on from there"
    )
    assert err == ""
    assert wait_until_gone(workers)
    before = load(tmp_path / "store")
    assert {record.status for record in before} == {"pending"}
    assert sum(len(record.epochs) for record in before) >= 3

    process, workers = start_two_workers(tmp_path / "store")
    process.kill()
    process.communicate()
    assert wait_until_gone(workers)
    after = load(tmp_path / "store")
    assert {record.status for record in after} == {"pending"}
    for record, earlier in zip(after, before, strict=True):
        assert record.epochs[: len(earlier.epochs)] == earlier.epochs
    assert sum(len(record.epochs) for record in after) > sum(len(record.epochs) for record in before)
