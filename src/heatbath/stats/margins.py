"""Margins: by how much, or by what factor, two means may differ and count as equal."""

from __future__ import annotations

import math
import re

Margin = float | str | None
_PERCENT = re.compile(r"\s*([0-9.eE+-]+)\s*%\s*")


class Factor(float):
    """A margin of positive values: by what factor their geometric means may differ; written as ``a factor 1.105``."""

    def __format__(self, spec: str) -> str:
        return f"a factor {float(self):{spec}}"


def parse_margin(margin: Margin) -> float | None:
    """Return a margin, as a `Factor` if it is relative, such as ``"5 %"``; one that is not positive is refused."""
    if margin is None or isinstance(margin, Factor):
        return margin
    wrong = f"margin must be a positive number, or one with a percent sign, got {margin!r}"
    if isinstance(margin, bool):
        raise TypeError(wrong)
    percent = _PERCENT.fullmatch(margin) if isinstance(margin, str) else None
    try:
        value = float(percent.group(1) if percent else margin)
    except (TypeError, ValueError):
        raise ValueError(wrong) from None
    check_margin(value, positive=True)
    return Factor(1.0 + value / 100.0) if percent else value


def check_margin(margin: float, *, positive: bool) -> None:
    """Refuse a margin that is no number, or none to be equal within."""
    if isinstance(margin, Factor):
        least = 1.0 if positive else 0.0
        if not least < margin < math.inf:
            raise ValueError(f"a factor must be a finite number above {least:g}, got {float(margin)!r}")
    elif not math.isfinite(margin) or (positive and margin <= 0.0):
        raise ValueError(f"margin must be a {'positive ' if positive else ''}finite number, got {margin!r}")
