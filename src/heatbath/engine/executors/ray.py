"""Trains jobs on a Ray cluster: epochs stream back, and what a dead node was training goes on elsewhere."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray import exceptions

from heatbath.engine.executors.choice import NextJob, Outcomes
from heatbath.engine.executors.parcels import Delivery, keep, pack, train_parcel
from heatbath.engine.executors.remote import Remote
from heatbath.engine.jobs import Ended, Job, Outcome
from heatbath.engine.options import Options
from heatbath.engine.trainer import data_key
from heatbath.system.machine import keep_freed_memory

_ANSWER = 10.0  # seconds for a cluster to answer
_LOOK = 3.0  # seconds between two looks at which nodes there are
_PATIENCE = 120.0  # seconds for a node of it to have a place, and to import torch there
LETTER = 0.5  # seconds between two messages of a worker, at least
_SHARE = 0.005  # seconds that the driver has for a message, with a state that it writes down

_TOKEN = "; if it asks for a token, set RAY_AUTH_MODE=token here and on its nodes"
_SETTINGS = b"\x04"  # the kind of the first frame that each side of HTTP/2 sends; here it sets nothing
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + _SETTINGS + bytes(5)


class RayCluster(Remote):
    """The nodes of a Ray cluster, at most ``workers`` of them at a time. Ray ends the work of a driver that is gone.

    ``where`` is its address; by default that of ``RAY_ADDRESS``, else one on this machine that ends with the call.

    Raises:
        OSError: the cluster does not answer, or runs another Ray or Python.
    """

    def __init__(self, options: Options, checkpoints: Path, where: str | None = None) -> None:
        super().__init__(options, checkpoints, LETTER)
        self._own, self._handler = not ray.is_initialized(), signal.getsignal(signal.SIGTERM)
        if self._own:
            try:
                _connect(where, options)
            except BaseException:
                _handle(signal.SIGTERM, self._handler)
                raise
            if callable(self._handler):  # else Ray's own is better than none: it ends what it has started
                _handle(signal.SIGTERM, self._handler)
        on_cpu = options.device == "cpu" or not ray.cluster_resources().get("GPU")
        self._needs: dict[str, Any] = {"num_cpus": 1} if on_cpu else {"num_gpus": 1}
        self._busy: dict[Any, Job] = {}
        self._nodes: dict[Any, str] = {}  # on which each stream is trained, once it has said so
        self._alive: set[str] = set()
        self._lent: set[Any] = set()  # the streams that data was sent with
        self._shared: dict[Any, Any] = {}  # references to that data
        self._pace = LETTER  # seconds between two messages of a worker
        self._next_look = 0.0

    def ask_worker(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns on a worker."""
        ask = ray.remote(max_retries=2, **self._needs)(lambda *values: question(*values))  # Ray takes no built-in one
        try:
            return ray.get(ask.remote(*arguments), timeout=_PATIENCE)
        except exceptions.GetTimeoutError:
            raise OSError(f"no node of the Ray cluster has a free place ({_words(self._needs)})") from None
        except exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, ImportError) else _plain(error)) from None
        except exceptions.RayError as error:
            raise OSError(f"a worker of the Ray cluster died at once: {_first_sentence(error)}") from None

    def count_places(self) -> int:
        """Return how many jobs the nodes can train at a time."""
        resource = "GPU" if "num_gpus" in self._needs else "CPU"
        return int(ray.cluster_resources().get(resource, 0))

    def train(self, next_job: NextJob, places: int) -> Outcomes:
        """Train jobs, so many at a time, until there is none."""
        self._pace = max(LETTER, _SHARE * places)
        self.options = replace(self.options, checkpoint_seconds=max(self.options.checkpoint_seconds, self._pace))
        while True:
            while len(self._busy) < places and (job := next_job()) is not None:
                self._submit(job)
            if not self._busy:
                return
            for stream in self._ready():
                job = self._busy[stream]
                for outcome in self._next(stream, job):
                    lent = stream in self._lent
                    if isinstance(outcome, Ended):
                        self._forget(stream)
                    if isinstance(outcome, Ended) and outcome.how == "no data":
                        self._submit(job, [self._share(job, outcome.reason, again=lent)])
                    else:
                        yield job, outcome
            for stream in self._vanished():
                self._cancel(stream)
                yield self._forget(stream), Ended("lost", "its node has vanished")
            yield None

    def close(self) -> None:
        """Cancel what is being trained, and end a cluster of our own; a second Ctrl-C does not stop that half-way."""
        impatient = signal.getsignal(signal.SIGINT)
        _handle(signal.SIGINT, signal.SIG_IGN)
        try:
            for stream in self._busy:
                self._cancel(stream)
            self._busy.clear()
            if self._own:
                ray.shutdown()
                _handle(signal.SIGTERM, self._handler)
        finally:
            _handle(signal.SIGINT, impatient)

    def _ready(self) -> list[Any]:
        """The streams that have something, all of them at once: what they tell is recorded together.

        What is ready is here. To fetch it from a machine that has been switched off would hold up all others.
        """
        ready, others = ray.wait(list(self._busy), num_returns=1, timeout=_LOOK)
        if ready and others:
            ready += ray.wait(others, num_returns=len(others), timeout=0)[0]
        return ready

    def _share(self, job: Job, reason: str, *, again: bool) -> Any:
        """A reference to the data of a job: Ray sends it once to each node."""
        key = data_key(job.configs[0])
        lent = self.lend(job, reason, again=again)
        if key not in self._shared:
            self._shared[key] = ray.put(lent)
        return self._shared[key]

    def _submit(self, job: Job, *data: Any) -> None:
        train = ray.remote(num_returns="streaming", max_retries=0, **self._needs)(_train)
        stream = train.remote(pack(job, self.options, pace=self._pace), *data)
        self._busy[stream] = job
        if data:
            self._lent.add(stream)

    def _cancel(self, stream: Any) -> None:
        with suppress(exceptions.RayError, ValueError, TypeError):  # the last of a stream of another cluster
            ray.cancel(stream, force=True)

    def _forget(self, stream: Any) -> Job:
        self._nodes.pop(stream, None)
        self._lent.discard(stream)
        return self._busy.pop(stream)

    def _vanished(self) -> list[Any]:
        """The streams from nodes that Ray has given up. It waits for minutes more for those that took no leave.

        A stream that has not said where it is may have been on its way there.
        """
        if time.monotonic() < self._next_look:
            return []
        self._next_look = time.monotonic() + _LOOK
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        fewer, self._alive = bool(self._alive - alive), alive
        nodes = self._nodes
        return [stream for stream in self._busy if (nodes[stream] not in alive if stream in nodes else fewer)]

    def _next(self, stream: Any, job: Job) -> Iterator[Outcome]:
        """The next outcomes of a job, up to its end."""
        try:
            letter: str | list[Delivery] = ray.get(next(stream))
        except exceptions.RayTaskError as error:
            raise _plain(error) from None
        except exceptions.RayError as error:
            yield Ended("lost", _first_sentence(error))
            return
        if isinstance(letter, str):
            self._nodes[stream] = letter
            return
        for delivery in letter:
            yield keep(delivery, job, self.checkpoints)


def _train(packed: bytes, data: list[Any] | None = None) -> Iterator[str | list[Delivery]]:
    """On a worker: what the driver lends lies in the object store of the node, once for all its workers."""
    keep_freed_memory()
    yield ray.get_runtime_context().get_node_id()
    yield from train_parcel(packed, None if data is None else ray.get(data[0]))


def _connect(address: str | None, options: Options) -> None:
    address = address or os.environ.get("RAY_ADDRESS")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address:
            _knock(address)
            ray.init(address=address, **quiet)
        else:
            ray.init(address="local", num_cpus=options.workers, include_dashboard=False, **quiet)
    except Exception as error:  # Ray raises that very class for a node that does not start
        # Ray raises this very class, where somebody has answered the knock.
        hint = _TOKEN if type(error) is ConnectionError and "RAY_AUTH_MODE" not in os.environ else ""
        raise OSError(f"no Ray cluster at {address or 'this machine'}: {' '.join(str(error).split())}{hint}") from None
    except KeyboardInterrupt:
        ray.shutdown()  # half of it is there, and would bring this process down when it ends
        raise


def _handle(number: signal.Signals, handler: Any) -> None:
    """Give a signal a handler, such as the one that it had before Ray put its own there; other threads cannot."""
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(number, handler)


def _knock(address: str) -> None:
    """Raise if nobody answers at an address, or not in HTTP/2, which Ray speaks: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    with socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER) as line:
        if os.environ.get("RAY_USE_TLS", "0") != "0":
            return
        line.sendall(_GREETING)
        answer = line.recv(9, socket.MSG_WAITALL)
    if answer[3:4] != _SETTINGS:
        raise OSError("the server there is not one of Ray")


def _first_sentence(error: Exception) -> str:
    return " ".join(str(error).split()).partition(". ")[0]


def _plain(error: Any) -> Exception:
    """What a task raised, as it would have been raised here."""
    cause = error.cause
    known = isinstance(cause, OSError | ValueError | TypeError | MemoryError)
    return cause if known else RuntimeError(f"a worker failed: {type(cause).__name__}: {cause}")


def _words(needs: dict[str, int]) -> str:
    return " and ".join(f"{count} {name.removeprefix('num_').rstrip('s').upper()}" for name, count in needs.items())
