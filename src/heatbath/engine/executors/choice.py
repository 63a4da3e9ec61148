"""Which executor was asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from heatbath.engine.executors.interface import Executor
from heatbath.engine.options import Options


def find_executor(asked: Any) -> Callable[[Options, Path], Executor]:
    """Return what makes the executor that was asked for, given the options and the folder of the checkpoints.

    Torch, Ray and Dask are imported when it is made.

    Args:
        asked: None or ``"local"``; ``"ray"`` or ``"ray:ADDRESS"``; ``"dask"`` or ``"dask:ADDRESS"``; or a
            `concurrent.futures.Executor`.

    Raises:
        ValueError: the name is unknown, or what it needs is not installed.
        TypeError: it is no executor.
    """
    kind, colon, address = asked.partition(":") if isinstance(asked, str) else ("", "", "")
    if asked is None or asked == "local":
        return _local
    if kind in _NEEDS and bool(colon) == bool(address):
        if not find_spec(_NEEDS[kind]):
            raise ValueError(f"executor {kind} needs {_NEEDS[kind]}: pip install 'heatbath[{kind}]'")
        return partial(_ray if kind == "ray" else _dask, address=address or None)
    if isinstance(asked, str):
        raise ValueError(f"executor must be local, ray, ray:ADDRESS, dask or dask:ADDRESS, got {asked!r}")
    if isinstance(asked, type) or not callable(getattr(asked, "submit", None)):
        raise TypeError(f"executor must be a name or a concurrent.futures.Executor, got {asked!r}")
    return partial(_futures, executor=asked)


_NEEDS = {"ray": "ray", "dask": "distributed"}


def _local(options: Options, checkpoints: Path) -> Executor:
    from heatbath.engine.executors.local import Local

    return Local(options, checkpoints)


def _ray(options: Options, checkpoints: Path, address: str | None) -> Executor:
    from heatbath.engine.executors.ray import RayCluster

    return RayCluster(options, checkpoints, address)


def _dask(options: Options, checkpoints: Path, address: str | None = None, client: Any = None) -> Executor:
    from heatbath.engine.executors.dask import DaskCluster

    return DaskCluster(options, checkpoints, client, address)


def _futures(options: Options, checkpoints: Path, executor: Any) -> Executor:
    from heatbath.engine.executors.futures import Futures

    if type(executor).__module__.startswith("distributed."):  # Dask's can do more than its futures' interface
        return _dask(options, checkpoints, client=getattr(executor, "_client", executor))
    return Futures(options, checkpoints, executor)
