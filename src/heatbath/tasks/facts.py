"""What a store keeps of a task: its name, its sizes, and digests of its parts. torch is not needed for it."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

PARTS = ("model", "train", "test", "loss", "metrics", "augment")


class AnyTask(ABC):
    """A `heatbath.Task` that can be trained, or the facts on one that a store has. Two with equal facts are equal."""

    @property
    @abstractmethod
    def facts(self) -> TaskFacts:
        """What is known of it without its code and data."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyTask) and self.facts.to_dict() == other.facts.to_dict()

    def __hash__(self) -> int:
        return hash(self.facts.digest)

    @property
    def label(self) -> str:
        """A short name that changes with the task."""
        return f"{self.facts.name}@{self.facts.digest[:8]}"


@dataclass(frozen=True, eq=False, repr=False)
class TaskFacts(AnyTask):
    """Facts on one task: how many samples, the names of what is measured, the loss first, and digests of `PARTS`."""

    name: str
    samples: int
    test_samples: int
    measured: tuple[str, ...]
    parts: Mapping[str, str]

    def __repr__(self) -> str:
        return f"TaskFacts({self.label}: {self.samples:,} + {self.test_samples:,} samples; {', '.join(self.measured)})"

    @property
    def facts(self) -> TaskFacts:
        """Itself."""
        return self

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that any change of the task changes."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def data(self) -> str:
        """A short name for its data, in the place of that of a data set."""
        return hashlib.sha256(f"{self.parts['train']} {self.parts['test']}".encode()).hexdigest()[:8]

    def changes(self, other: TaskFacts) -> list[str]:
        """Return which parts of two tasks differ."""
        return [part for part in PARTS if self.parts[part] != other.parts[part]]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON knows them; `from_dict` reads them back."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**values, "measured": list(self.measured), "parts": dict(self.parts)}

    @classmethod
    def from_dict(cls, values: Any) -> TaskFacts:
        """Return the facts of `to_dict`; raise ValueError where a field is missing, unknown or of another kind."""
        known = {"name": str, "samples": int, "test_samples": int, "measured": list, "parts": dict}
        fits = isinstance(values, dict) and {name: type(value) for name, value in values.items()} == known
        if not fits or set(values["parts"]) != set(PARTS):
            raise ValueError(f"not the facts of a task: {values!r:.100}")
        return cls(**{**values, "measured": tuple(values["measured"])})
