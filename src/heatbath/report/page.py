"""The report: one HTML page with every figure as an interactive plot, whole in a single file and without a network.

The page is made of the files in ``assets``: a template, its style, `plot.js` (axes and curves) and `page.js`
(legends, tables, downloads, theme). Figures travel in it as JSON, and its script draws them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from html import escape
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import Any

from heatbath.report.claim_list import count_claims, label, list_claims, prose, summarize_claims
from heatbath.report.panels import FigureData, Opening, Panel, Series, to_csv
from heatbath.stats.wording import detail, needs
from heatbath.system.whole_files import write_together

_PLAIN = Opening("Results", "")
DIGITS = 6  # of a number in the page; the CSV beside it has all


def write_report(
    figures: Sequence[FigureData], folder: str | Path, *, about: Mapping[str, str], opening: Opening = _PLAIN
) -> Path:
    """Write ``report.html``, ``verdicts.md`` and ``NAME.svg``, ``.png``, ``.pdf`` and ``.csv`` of each figure.

    The page alone is complete: it holds the data and makes the downloads itself. All appear when they are whole.

    Args:
        figures: in the order of the page; their names become names of files.
        folder: where to write; made if need be.
        about: what was run, in words: settings, seeds, device, versions, time.
        opening: what the page says first.

    Returns:
        The page.
    """
    from heatbath.report import plots

    _check_names(figures)

    def draw(partial: Path) -> None:
        for figure in figures:
            picture = plots.plot_figure(figure)
            for kind in ("svg", "png", "pdf"):
                plots.write_figure(picture, partial / f"{figure.name}.{kind}")
            (partial / f"{figure.name}.csv").write_text(to_csv(figure), encoding="utf-8")
        pdfs = {figure.name: (partial / f"{figure.name}.pdf").read_bytes() for figure in figures}
        page = _page(figures, about=about, pdfs=pdfs, opening=opening)
        (partial / "report.html").write_text(page, encoding="utf-8")
        (partial / "verdicts.md").write_text(verdict_table(figures), encoding="utf-8")

    write_together(folder, draw)
    return Path(folder) / "report.html"


def verdict_table(figures: Sequence[FigureData]) -> str:
    """Return the verdicts as a table in Markdown."""
    lines = [("figure", "claim", "verdict", "our numbers"), ("---",) * 4]
    for figure in figures:
        for one in figure.verdicts:
            outcome = f"**{one.outcome}**" + (f": {needs(one)}" if one.seeds else "")
            lines.append((figure.name, one.claim, outcome, detail(one)))
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def describe_panel(panel: Panel) -> str:
    """Return what is seen in a panel, in words, for those who do not see it."""
    ends = "; ".join(filter(None, map(_describe_series, panel.series))) or "There are no points"
    scales = [f"{axis} axis is logarithmic" for axis, log in (("x", panel.x_log), ("y", panel.y_log)) if log]
    logarithmic = f" The {' and the '.join(scales)}." if scales else ""
    return f"{panel.title}: {panel.y_label} against {panel.x_label}.{logarithmic} {ends}."


def _describe_series(series: Series) -> str:
    points: list[tuple[Any, float, float | None, float | None]] = [
        (x, y, low, high)
        for x, y, low, high in zip(series.x, series.y, series.low or series.y, series.high or series.y, strict=True)
        if y is not None and math.isfinite(y)
    ]
    if not points:
        return ""
    x, y, low, high = points[-1]
    interval = f" ({low:.4g} to {high:.4g})" if series.low and low is not None and high is not None else ""
    if series.style == "line":
        return f"{series.name} runs from {points[0][1]:.4g} to {y:.4g}{interval} at {_number(x)}"
    if len(points) == 1:
        return f"{series.name}: {y:.4g}{interval} at {_number(x)}"
    by_height = sorted(points, key=lambda point: point[1])
    least, most = (f"{point[1]:.4g} at {_number(point[0])}" for point in (by_height[0], by_height[-1]))
    return f"{series.name}: {len(points)} values from {least} to {most}"


def _check_names(figures: Sequence[FigureData]) -> None:
    """Names become files and anchors, so nothing but letters, digits, ``-`` and ``_``, and each one once."""
    for name, count in Counter(figure.name for figure in figures).items():
        if count > 1 or name == "report" or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
            reason = f"there are {count} of it" if count > 1 else "use letters, digits, - and _, and not 'report'"
            raise ValueError(f"no figure can be named {name!r}: {reason}")


def _page(
    figures: Sequence[FigureData], *, about: Mapping[str, str], pdfs: Mapping[str, bytes], opening: Opening
) -> str:
    source = files("heatbath.report") / "assets"
    script = "".join((source / name).read_text(encoding="utf-8") for name in ("plot.js", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = json.dumps([_figure_data(figure) for figure in figures], separators=(",", ":"))
    return Template((source / "template.html").read_text(encoding="utf-8")).substitute(
        title=escape(opening.title),
        # The browser runs this script and no other, whatever the texts of the figures hold.
        script_hash=f"sha256-{digest}",
        script=script,
        css=(source / "page.css").read_text(encoding="utf-8"),
        opening=_opening(opening, figures),
        claims=list_claims(figures),
        contents="\n".join(
            f'<li><a href="#{figure.name}">{escape(label(figure))}</a> {escape(figure.title)}</li>'
            for figure in figures
        ),
        about=_definitions(about),
        figures="\n".join(_section(figure, pdfs[figure.name]) for figure in figures),
        data=data.replace("<", "\\u003c"),
    )


def _figure_data(figure: FigureData) -> dict[str, Any]:
    names = ("title", "x_label", "y_label", "x_log", "y_log")
    panels = [
        {**{name: getattr(panel, name) for name in names}, "series": list(map(_series_data, panel.series))}
        for panel in figure.panels
    ]
    return {"name": figure.name, "label": label(figure), "panels": panels}


def _series_data(series: Series) -> dict[str, Any]:
    found: dict[str, Any] = {"name": series.name, "style": series.style, "colour": series.colour}
    for key, values in (("x", series.x), ("y", series.y), ("low", series.low), ("high", series.high)):
        if values is not None:
            found[key] = [value if isinstance(value, str) else _short(value) for value in values]
    if found["x"] == list(range(1, len(series.x) + 1)):
        found["x"] = len(series.x)  # as of most curves, which have a value for each epoch
    return found | _differences(found)


def _differences(found: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a long curve as whole numbers: steps of ``y``, and how far ``low`` and ``high`` lie from it.

    They are multiples of ``10^-places``, so the page gets the same numbers back from about half as many characters.
    """
    values = {key: found[key] for key in ("y", "low", "high") if key in found}
    numbers = [value for column in values.values() for value in column]
    if len(numbers) < 20 or None in numbers:
        return {}
    decimals = {value: Decimal(repr(value)) for value in numbers}
    places = max(0, *(-int(value.as_tuple().exponent) for value in decimals.values()))
    if max(map(abs, numbers)) * 10.0**places > 2**53:  # beyond the whole numbers of JavaScript
        return {}
    whole = {key: [int(decimals[value].scaleb(places)) for value in column] for key, column in values.items()}
    y = whole["y"]
    ends = {key: [end - at for at, end in zip(y, whole[key], strict=True)] for key in whole if key != "y"}
    return {"places": places, "y": [y[0], *(b - a for a, b in pairwise(y))], **ends}


def _short(value: float | None) -> float | int | None:
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _number(x: float | str) -> str:
    return x if isinstance(x, str) else f"{x:.4g}"


def _section(figure: FigureData, pdf: bytes) -> str:
    link = f"data:application/pdf;base64,{base64.b64encode(pdf).decode()}"
    name = escape(label(figure))
    panels = "\n".join(map(_panel, figure.panels))
    notes = _block("Missing", _list(figure.missing)) + _block("Errata", _list(figure.errata))
    notes += _block("Settings", _definitions(figure.settings) if figure.settings else "")
    return f"""<section class="figure" id="{figure.name}" aria-labelledby="{figure.name}-title">
<h2 id="{figure.name}-title">{name}. {escape(figure.title)}</h2>
<p>{escape(figure.question)}</p>
{count_claims(figure)}
<ul class="legend" aria-label="Show and hide series of {name}"></ul>
<div class="panels">{panels or "<p>There is nothing to draw yet.</p>"}</div>
<p class="downloads"><span>Download</span>
<a class="button" download="{figure.name}.pdf" href="{link}" aria-label="Download {name} as PDF">PDF</a></p>
{"<details class='numbers'><summary>The numbers as a table</summary></details>" if figure.panels else ""}
<div class="notes">{notes}</div>
</section>"""


def _key_panels(figures: Sequence[FigureData], key: Sequence[tuple[str, int]]) -> str:
    """The panels that are shown first; the script draws each from the data of its figure."""
    known = {(figure.name, k): (figure, panel) for figure in figures for k, panel in enumerate(figure.panels)}
    shown = [(number, *known[name, number]) for name, number in key if (name, number) in known]
    return "".join(
        f'<div class="key-panel" data-figure="{figure.name}" data-panel="{number}">'
        + _panel(replace(panel, title=f"{label(figure)}: {panel.title}", note=""))
        + f'<p class="note"><a href="#{figure.name}">{escape(figure.title)}</a></p></div>'
        for number, figure, panel in shown
        if panel.series
    )


def _opening(opening: Opening, figures: Sequence[FigureData]) -> str:
    text, address = map(escape, opening.source)
    source = f' <a href="{address}" rel="noreferrer">{text}</a>.' if text else ""
    conclusion = " ".join(opening.conclusion) or summarize_claims(figures)
    panels = _key_panels(figures, opening.key)
    return (
        (f'<p class="lead">{escape(opening.asked)}{source}</p>\n' if opening.asked else "")
        + (f'<p class="banner" role="note">{escape(opening.warning)}</p>\n' if opening.warning else "")
        + f'<p class="conclusion">{escape(conclusion)}</p>'
        + (f'<div class="panels key-plots">{panels}</div>' if panels else "")
    )


def _panel(panel: Panel) -> str:
    foot = f'<p class="note">{prose(panel.note)}</p>' if panel.note else ""
    return (
        f'<figure class="panel"><div class="panel-head"><h3>{escape(panel.title)}</h3></div>'
        f'<div class="canvas" role="img" aria-label="{escape(describe_panel(panel))}"></div>{foot}</figure>'
    )


def _block(heading: str, content: str) -> str:
    return f"<div><h3>{heading}</h3>{content}</div>" if content else ""


def _list(texts: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def _definitions(entries: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{escape(str(key))}</dt><dd>{escape(str(value))}</dd>" for key, value in entries.items())
    return f"<dl>{rows}</dl>"
