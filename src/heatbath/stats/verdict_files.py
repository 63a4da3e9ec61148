"""Verdicts as small JSON files: what was decided, and the numbers, digests, versions and looks behind it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from heatbath.stats.comparison import Comparison, Comparisons
from heatbath.stats.inputs import digest
from heatbath.stats.samples import Sample
from heatbath.stats.verdicts import Factor
from heatbath.system.whole_files import whole_file

_FORMAT = 1


def write_verdict(path: Path, found: Comparison | Comparisons, version: str) -> None:
    """Write one comparison or several to a file.

    Args:
        path: the file.
        found: the comparisons.
        version: of heatbath.
    """
    members = [found] if isinstance(found, Comparison) else list(found)
    contents = {"format": _FORMAT, "heatbath": version, "comparisons": [one.to_dict() for one in members]}
    with whole_file(path) as file:
        file.write(json.dumps({**contents, "digest": _digest(contents)}, indent=1, allow_nan=False).encode() + b"\n")


def read_verdict(path: Path) -> list[dict[str, Any]]:
    """Return the comparisons of a file, as `Comparison.to_dict` gives them, with `Sample` for each group.

    Raises:
        OSError: there is no such file.
        ValueError: it is no verdict, was written by a later version, or has been changed.
    """
    try:
        contents = json.loads(path.read_text())
        given = contents.pop("digest")
        version, comparisons = contents["format"], contents["comparisons"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} is not a verdict of 'heatbath compare --export'") from None
    if version != _FORMAT:
        raise ValueError(f"{path} was written by a later version of heatbath (format {version})")
    if given != _digest(contents):
        raise ValueError(f"{path} has been changed since it was written: its digest is another one")
    for one in comparisons:
        for side in ("a", "b"):
            one[side] = _group(one[side])
        one["margin"] = Factor(one["margin"]) if one["relative"] and one["margin"] else one["margin"]
    return comparisons  # type: ignore[no-any-return]


def _group(values: dict[str, Any]) -> Sample:
    numbers = np.array([np.nan if value is None else value for value in values["values"]], dtype=np.float64)
    seeds = None if values["seeds"] is None else tuple(values["seeds"])
    return Sample(values["name"], numbers, seeds, "", "", tuple(values["digests"]), tuple(values["versions"]))


def _digest(contents: dict[str, Any]) -> str:
    return digest(json.dumps(contents, sort_keys=True))
