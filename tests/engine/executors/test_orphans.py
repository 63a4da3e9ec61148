"""Workers end with the call that started them, also where a process that it forked lives on."""

import os
import signal
import subprocess
import sys
import time

import pytest

DRIVER = """
import os, sys, time
from heatbath.engine.run import run
from heatbath.runs.configs import RunConfig, sweep

forked = []

def fork_once(progress):
    if progress.epochs_done and not forked:
        forked.append(os.fork())
        if forked[0] == 0:
            time.sleep(120)
            os._exit(0)
        workers = open(f"/proc/self/task/{os.getpid()}/children").read().split()
        print(forked[0], *(one for one in workers if int(one) != forked[0]), flush=True)

run(sweep(RunConfig(epochs=1000, batch_size=20), seed=range(2)), sys.argv[1], "cpu", workers=2, progress=fork_once)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs /proc to see the workers")
def test_a_forked_process_that_outlives_the_call_keeps_no_worker_alive(tmp_path):
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as driver:
        child, *workers = map(int, driver.stdout.readline().split())
        driver.kill()
        driver.wait()
        try:
            assert len(workers) == 2
            end = time.monotonic() + 30.0
            while any(map(is_running, workers)) and time.monotonic() < end:
                time.sleep(0.1)
            assert is_running(child)
            assert not any(map(is_running, workers))
        finally:
            os.kill(child, signal.SIGKILL)


def is_running(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
