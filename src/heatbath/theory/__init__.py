"""What the theory predicts, in NumPy and SciPy alone.

The rooms are imported when they are first used, so that ``import heatbath`` needs no SciPy and loads nothing in vain.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

__all__ = [
    "discrete",
    "escape",
    "fokker_planck",
    "landscapes",
    "langevin",
    "phase_space",
    "plane",
    "quadratic",
    "shuffled",
    "trajectories",
    "universality",
]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*__all__]
