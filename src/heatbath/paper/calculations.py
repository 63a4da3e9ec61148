"""Results of calculations, which live in a store as a JSON file each, beside the runs."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heatbath.engine.options import Options
from heatbath.paper.experiments import Calculation, ProgressCallback
from heatbath.system import machine
from heatbath.system.whole_files import whole_file


def cached_results(calculations: Sequence[Calculation], folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return the results of those calculations that a store, or a folder of exported files, has."""
    return {c.name: result for c in calculations if (result := _cached(folder, c)) is not None}


def compute(
    calculations: Sequence[Calculation], store: Path, options: Options, tell: ProgressCallback
) -> dict[str, Mapping[str, Any]]:
    """Return the results of calculations, from the store where another process has put them meanwhile."""
    results: dict[str, Mapping[str, Any]] = {}
    total = sum(calculation.seconds for calculation in calculations) or 1.0
    before = 0.0
    for one in calculations:

        def inside(fraction: float, _what: str, one: Calculation = one, spent: float = before) -> None:
            tell((spent + fraction * one.seconds) / total, one.label)

        result = _cached(store, one)
        if result is None:
            inside(0.0, "")
            where = {"device": machine.choose_device(options.device), "data_dir": options.data_dir}
            runs = _path(store, one).with_suffix("")
            own = {"workers": options.workers, "store": runs} if one.trains else {}
            try:
                result = one.compute(one.settings, **where, **own, progress=inside)
            except OSError:
                result = _cached(store, one)  # of another process, which then removed the runs that both trained
                if result is None:
                    raise
            else:
                _write(_path(store, one), one.settings, result)
                shutil.rmtree(runs, ignore_errors=True)
        results[one.name] = result
        before += one.seconds
    return results


def copy_results(source: Path, target: Path) -> int:
    """Copy to a store what another has computed, and return how many files.

    One of a name that is there is as good, unless it is damaged; what is damaged in the source is left out.
    """
    copied = 0
    for file in sorted(source.glob("calculations/*.json")):
        kept, place = _read(file), target / "calculations" / file.name
        if kept is not None and _read(place) is None:
            _write(place, kept["settings"], kept["result"])
            copied += 1
    return copied


def damaged_results(folder: Path) -> list[Path]:
    """Return the files of calculations in a store, or a folder of exported files, that cannot be read."""
    return [file for file in sorted(folder.glob("calculations/*.json")) if _read(file) is None]


def _cached(store: Path, calculation: Calculation) -> Mapping[str, Any] | None:
    """The result of a calculation in the store; what is damaged or of other settings counts as absent."""
    kept = _read(_path(store, calculation))
    same = kept is not None and kept["settings"] == json.loads(json.dumps(dict(calculation.settings)))
    return kept["result"] if kept is not None and same else None


def _read(path: Path) -> dict[str, Any] | None:
    """What `_write` has written; None where there is no such file, or it is damaged.

    Files of heatbath 0.1.0 have no digest, and are taken as they are.
    """
    try:
        kept: Any = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None
    whole = isinstance(kept, dict) and "settings" in kept and isinstance(kept.get("result"), dict)
    return kept if whole and kept.get("digest", _digest(kept)) == _digest(kept) else None


def _write(path: Path, settings: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    kept = json.loads(json.dumps({"settings": dict(settings), "result": result}))
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(json.dumps({**kept, "digest": _digest(kept)}).encode())


def _digest(kept: Mapping[str, Any]) -> str:
    """Over the settings and the result."""
    text = json.dumps([kept["settings"], kept["result"]], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _path(store: Path, calculation: Calculation) -> Path:
    return store / "calculations" / f"{calculation.name}.json"
