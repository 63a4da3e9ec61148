"""The machine a run is on: its device, its cores, and what is installed."""

from __future__ import annotations

import math
import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path


def check_device(device: str) -> None:
    """Refuse a name that cannot be a device, without asking torch."""
    if not isinstance(device, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}")


def choose_device(device: str) -> str:
    """Return what "auto" is here, and any other device as it is, if torch sees it."""
    import torch

    check_device(device)
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return "cuda" if seen else "cpu"
    if device != "cpu" and int(device.partition(":")[2] or 0) >= seen:
        raise ValueError(f"device {device}: torch sees {f'only {seen}' if seen else 'no'} GPU here; use cpu")
    return device


def describe_device(device: str) -> str:
    """Return its name in words."""
    if device == "cpu":
        name = _read("/proc/cpuinfo", r"^model name\s*:\s*(.+)$")
        return f"CPU ({name or platform.processor() or platform.machine()})"
    import torch

    return torch.cuda.get_device_name(torch.device(device))


def describe_origin(device: str) -> dict[str, str]:
    """Return what a number that is computed here comes from: heatbath, torch, Python, the device and its driver."""
    import torch

    origin = {"heatbath": code_version(), "torch": str(torch.__version__), "python": platform.python_version()}
    if device != "cpu":
        driver = _read("/sys/module/nvidia/version", "(.+)")
        origin["driver"] = f"{f'NVIDIA {driver}' if driver else 'unknown driver'}, CUDA {torch.version.cuda}"
    return {**origin, "device": describe_device(device)}


@cache
def code_version() -> str:
    """Return the version of the code that runs, such as ``0.1.0+g2aaa2a2.dirty``: with the commit, in a checkout.

    It is dirty if a file of the source differs from the commit, or is unknown to it. Git is asked once in a process.
    """
    own: str = sys.modules["heatbath"].__version__  # of the code that runs, installed or not
    source = Path(__file__).parents[2]
    if not (source.parent / ".git").exists():
        return own
    try:
        told = subprocess.run(
            ["git", "-C", str(source), "status", "--porcelain=v2", "--branch", "--", str(source)],
            capture_output=True,
            text=True,
            timeout=10.0,
            env={name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            check=True,
            stdin=subprocess.DEVNULL,
        ).stdout
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):  # no git
        return own
    commit = re.search(r"^# branch\.oid ([0-9a-f]{12})", told, re.MULTILINE)  # none before the first one
    dirty = any(not line.startswith("#") for line in told.splitlines())
    return f"{own}+g{commit[1]}{'.dirty' * dirty}" if commit else own


def visible_gpus() -> list[str]:
    """Return the GPUs that torch sees here, each by what ``CUDA_VISIBLE_DEVICES`` calls it."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if len(named) >= count else [str(number) for number in range(count)]


def free_gpu_memory(device: str) -> int | None:
    """Return how many bytes of a GPU are free; None for a CPU."""
    if device == "cpu":
        return None
    import torch

    return int(torch.cuda.mem_get_info(torch.device(device))[0])


def available_cores() -> int:
    """Return how many cores this process may use: those it is bound to, and no more than its control group has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or no limit
        return cores


def available_memory() -> int:
    """Return how many bytes a process may still take: those that are free, and no more than its control group has."""
    free = _read("/proc/meminfo", r"^MemAvailable:\s*(\d+) kB")
    limit, used = (_read(f"/sys/fs/cgroup/memory.{name}", r"^(\d+)$") for name in ("max", "current"))
    room = [1024 * int(free)] if free else []
    return max(0, min([2**63, *room, *([int(limit) - int(used)] if limit and used else [])]))


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, which the next step of a training takes again.

    glibc returns large pieces to the system, and then gets them back page by page: a residual network took 1.4 times as
    long. Other C libraries stay as they are. It is for processes of our own; a user's may need the memory elsewhere.
    """
    import ctypes

    with suppress(OSError, AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(_TRIM_THRESHOLD, -1)  # never shrink the heap
        if not set_option(_MMAP_THRESHOLD, 2**30):  # and put all but giants there
            set_option(_MMAP_THRESHOLD, 2**25)  # the most that an older glibc takes


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as glibc's malloc.h has them


def _read(file: str, pattern: str) -> str:
    """What the system says of itself; nothing where it does not."""
    try:
        found = re.search(pattern, Path(file).read_text(), re.MULTILINE)
    except OSError:
        return ""
    return found[1].strip() if found else ""
