"""Trains jobs on a Dask cluster, through its futures."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import distributed
from distributed.comm.core import connect

from heatbath.engine.executors.futures import Futures
from heatbath.engine.executors.local import worker_environment
from heatbath.engine.options import Options
from heatbath.engine.trainer import Lent
from heatbath.system import machine

_ANSWER = 10.0  # seconds for a scheduler to answer
_PATIENCE = 120.0  # seconds for a worker to have a place, and to import torch there


class DaskCluster(Futures):
    """The workers of a Dask scheduler. Dask itself sends a slice elsewhere when its worker dies.

    ``where`` is the cluster's client, or the address of its scheduler; by default that of ``DASK_SCHEDULER_ADDRESS``,
    else a cluster on this machine that ends with the call.

    Raises:
        OSError: the scheduler does not answer.
    """

    patience = _PATIENCE

    def __init__(self, options: Options, checkpoints: Path, where: Any = None) -> None:
        self._own = where is None or isinstance(where, str)
        self._client: Any = _connect(options, where) if self._own else where
        super().__init__(options, checkpoints, self._client.get_executor(pure=False))

    def ask_worker(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns on a worker."""
        try:
            return super().ask_worker(question, *arguments)
        except TimeoutError:
            raise OSError(f"no worker of the Dask cluster has had a free place for {self.patience:.0f} s") from None

    def check(self) -> None:
        """Raise an OSError if the client has given up its scheduler."""
        if self._client.status in ("closing", "closed"):
            raise OSError("the Dask scheduler is gone; what was recorded is safe, and the same call goes on from there")

    def count_places(self) -> int:
        """Return how many slices the workers compute at a time."""
        return sum(self._client.ncores().values())

    def share(self, data: Lent) -> Any:
        """Return a reference: Dask moves data to each worker that computes with it, once."""
        return self._client.scatter(data)

    def is_loss(self, error: Exception) -> bool:
        """Return whether several workers died over the same slice, or it is nowhere any more."""
        return isinstance(error, distributed.scheduler.KilledWorker)

    def close(self) -> None:
        """Take back what is not being computed, and end a cluster of our own."""
        super().close()
        if self._own:
            cluster = self._client.cluster
            try:
                self._client.close()
            finally:
                if cluster is not None:
                    cluster.close()


class _OwnCluster(distributed.LocalCluster):
    """A scheduler in this process, and workers that are programs of their own.

    Dask's own workers import the caller's script a second time. These do not, and a Ctrl-C in the terminal, which is
    for this process to act upon, does not reach them. Without their scheduler they end.
    """

    def __init__(self, workers: int) -> None:
        super().__init__(n_workers=0, dashboard_address=None, silence_logs=logging.CRITICAL)
        command = [sys.executable, "-P", "-m", "distributed.cli.dask_worker", self.scheduler_address, "--no-dashboard"]
        self._program = subprocess.Popen(
            [*command, "--nworkers", str(workers), "--nthreads", "1", "--death-timeout", f"{_PATIENCE:.0f}"],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a task prints must not come between what the command prints
            env=worker_environment(DASK_LOGGING__DISTRIBUTED="critical"),
            start_new_session=True,
        )

    def close(self, timeout: float | None = None) -> Any:
        """End the workers, whatever they are doing, and the scheduler."""
        if self._program.poll() is None:
            os.killpg(self._program.pid, signal.SIGTERM)
            try:
                self._program.wait(_ANSWER)
            except subprocess.TimeoutExpired:
                os.killpg(self._program.pid, signal.SIGKILL)
                self._program.wait()
        return super().close(timeout)


def _connect(options: Options, address: str | None) -> Any:
    address = address or os.environ.get("DASK_SCHEDULER_ADDRESS")
    try:
        if address:
            with ThreadPoolExecutor(1) as thread:  # a notebook has a loop of its own
                thread.submit(asyncio.run, _knock(address)).result()
            return distributed.Client(address, timeout=_ANSWER, set_as_default=False)
        return _start(options.workers or machine.available_cores())
    except (OSError, TimeoutError, ValueError) as error:
        words = str(error).partition("\n")[0] or f"no answer within {_ANSWER:.0f} s"
        raise OSError(f"no Dask scheduler at {address or 'this machine'}: {words}") from None


def _start(workers: int) -> Any:
    """Return the client of a cluster of our own, with all its workers."""
    cluster = _OwnCluster(workers)
    try:
        client = distributed.Client(cluster, set_as_default=False)
        client.wait_for_workers(workers, timeout=_PATIENCE)
        client.run(machine.keep_freed_memory)
    except BaseException:
        cluster.close()
        raise
    return client


async def _knock(address: str) -> None:
    """Raise if no scheduler answers at an address: a Client waits for ever if something else does."""
    how = distributed.Security().get_connection_args("client")
    line = await asyncio.wait_for(connect(address, timeout=_ANSWER, **how), _ANSWER)
    line.abort()
