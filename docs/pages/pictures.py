"""Draws the pictures of docs/results.md and docs/figures.md: ``python docs/pages/pictures.py``, into docs/images.

They are those of the report, with 256 colours; those of the findings have the panels that show the finding.
"""

from __future__ import annotations

import io
from dataclasses import replace

from PIL import Image

from committed import ROOT, figures, planned
from heatbath.report.panels import FigureData
from heatbath.report.plots import plot_figure

WHOLE = ("figure1", "figure2", "figure3", "figure4", "figure5", "figure6")
FINDINGS = {
    "finding-protocols": ("figure1", (2, 3)),
    "finding-cifar": ("figure4", (0, 4)),
    "finding-temperature": ("figure5", (0, 1)),
    "finding-grid": ("collapse", (0, 2)),
    "finding-control": ("fair-control", (0, 1)),
    "finding-heat": ("equal-sums", (0, 1)),
    "finding-equilibrium": ("temperature", (0, 1, 2)),
    "finding-printed": ("figure6", (2, 3)),
}


def main() -> None:
    """Write all pictures."""
    whole = {name: figures()[name] for name in WHOLE} | planned()
    for name, drawn in whole.items():
        _write(name, drawn)
    for name, (figure, panels) in FINDINGS.items():
        of = figures()[figure]
        _write(name, replace(of, panels=tuple(of.panels[k] for k in panels)))


def _write(name: str, figure: FigureData) -> None:
    drawn = io.BytesIO()
    plot_figure(figure).savefig(drawn, format="png", dpi=160)
    path = ROOT / f"docs/images/{name}.png"
    Image.open(drawn).convert("RGB").quantize(256).save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
