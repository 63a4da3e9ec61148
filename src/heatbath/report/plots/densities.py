"""What pictures of densities share: shades, small multiples, and movies that draw only what moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, ticker
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from PIL import Image

from heatbath.report.plots.style import GREY
from heatbath.theory.landscapes import Array

_SHADES = LinearSegmentedColormap.from_list(
    "white to blue", ["#ffffff", *colormaps["GnBu"](np.linspace(0.15, 1.0, 12))]
)
Counter = Callable[[int, int], None]
"""Called with the number of frames done and their total."""


def shade(ax: Axes, heights: Array, bounds: tuple[float, float, float, float]) -> None:
    """Draw heights between 0 and 1, the first index along y, as shades; a root brings out the tails."""
    look: dict[str, Any] = {"cmap": _SHADES, "norm": PowerNorm(0.5, 0.0, 1.0), "interpolation": "bilinear"}
    ax.imshow(heights, extent=bounds, origin="lower", aspect="auto", **look)


def plot_over_time(
    draw: Callable[[int, Axes], object], times: Sequence[float] | Array, title: str, key: str
) -> Sequence[Axes]:
    """Draw a picture for each time, three to a row with common axes, and a line below the title that explains them."""
    columns = min(3, len(times))
    rows = -(-len(times) // columns)
    figure = Figure(figsize=(0.6 + 3.0 * columns, 0.9 + 2.5 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for unused in axes[len(times) :]:
        unused.remove()
    figure.suptitle(f"{title}\n", fontsize=12)
    figure.text(0.5, 0.935 if rows > 1 else 0.88, key, ha="center", fontsize=8.5, color=GREY)
    for index, (time, ax) in enumerate(zip(times, axes, strict=False)):
        draw(index, ax)
        ax.set_title(steps_title(time), fontsize=10)
        ax.label_outer()
    return axes[: len(times)]


def write_frames(
    path: str | Path,
    figure: Figure,
    moving: Sequence[Artist],
    show: Callable[[int], None],
    count: int,
    frames_per_second: int,
    progress: Counter | None,
) -> None:
    """Write a GIF of ``count`` frames, ``show`` setting the data of one.

    Only ``moving``, what changes and what lies above it, is drawn anew for each frame: four times quicker.
    """
    canvas = FigureCanvasAgg(figure)
    for artist in moving:
        artist.set_animated(True)
    canvas.draw()
    still = canvas.copy_from_bbox(figure.bbox)
    frames = []
    for index in range(count):
        show(index)
        canvas.restore_region(still)
        for artist in moving:
            figure.draw_artist(artist)
        frames.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
        if progress is not None:
            progress(index + 1, count)
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=round(1000 / frames_per_second), loop=0)


def steps_title(time: Any) -> str:
    """Return the title of a frame: a number of steps without needless digits."""
    return f"after {ticker.StrMethodFormatter('{x:,.0f}')(time)} steps"
