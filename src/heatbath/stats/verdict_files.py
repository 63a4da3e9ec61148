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
    several = Comparisons((found,), 1.0 - found.error) if isinstance(found, Comparison) else found
    contents = {"format": _FORMAT, "heatbath": version, **several.to_dict()}
    with whole_file(path) as file:
        file.write(json.dumps({**contents, "digest": _digest(contents)}, indent=1, allow_nan=False).encode() + b"\n")


def read_verdict(path: Path) -> tuple[list[dict[str, Any]], dict[str, Sample]]:
    """Return the comparisons of a file, as `Comparison.summary` gives them, and its groups by their names and metrics.

    Raises:
        OSError: there is no such file.
        ValueError: it is no verdict, was written by a later version, or has been changed.
    """
    try:
        contents = json.loads(path.read_text())
        given = contents.pop("digest")
        version, comparisons, groups = contents["format"], contents["comparisons"], contents["groups"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} is not a verdict of 'heatbath compare --export'") from None
    if version != _FORMAT:
        raise ValueError(f"{path} was written by a later version of heatbath (format {version})")
    if given != _digest(contents):
        raise ValueError(f"{path} has been changed since it was written: its digest is another one")
    for one in comparisons:
        one["margin"] = Factor(one["margin"]) if one["relative"] and one["margin"] else one["margin"]
    return comparisons, {f"{group['name']} {group['metric']}": _group(group) for group in groups}


def _group(values: dict[str, Any]) -> Sample:
    numbers = np.array([np.nan if value is None else value for value in values["values"]], dtype=np.float64)
    seeds = None if values["seeds"] is None else tuple(values["seeds"])
    origin = tuple(values["digests"]), tuple(values["versions"])
    return Sample(values["name"], numbers, seeds, values["metric"], "", *origin)


def _digest(contents: dict[str, Any]) -> str:
    return digest(json.dumps(contents, sort_keys=True))
