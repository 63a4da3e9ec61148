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
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from heatbath.report.panels import FigureData, Panel, Series, to_csv
from heatbath.stats.verdicts import Verdict
from heatbath.system.whole_files import write_together

DIGITS = 7  # of a number in the page, as many as single precision knows; the CSV beside it has all
_OUTCOMES = ("confirmed", "contradicted", "undecided")
_UNBROKEN = re.compile(r"\b[np] = [\w.+-]*\w|[\d.]+e[+-]?\d+|[\d.]+ %")  # what no line of the page may tear apart
_TITLE = "SGD with a random learning rate: what the paper says and what we find"


def write_report(figures: Sequence[FigureData], folder: str | Path, *, about: Mapping[str, str]) -> Path:
    """Write ``report.html``, ``verdicts.md`` and ``NAME.svg``, ``.png``, ``.pdf`` and ``.csv`` of each figure.

    The page alone is complete: it holds the data and makes the downloads itself. All appear when they are whole.

    Args:
        figures: in the order of the page; their names become names of files.
        folder: where to write; made if need be.
        about: what was run, in words: settings, seeds, device, versions, time.

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
        page = _page(figures, about=about, pdfs=pdfs)
        (partial / "report.html").write_text(page, encoding="utf-8")
        (partial / "verdicts.md").write_text(verdict_table(figures), encoding="utf-8")

    write_together(folder, draw)
    return Path(folder) / "report.html"


def verdict_table(figures: Sequence[FigureData]) -> str:
    """Return the verdicts as a table in Markdown."""
    rows = [
        (
            figure.name,
            verdict.claim,
            f"**{verdict.outcome}**{f': {verdict.needs}' * bool(verdict.needs)}",
            verdict.detail,
        )
        for figure in figures
        for verdict in figure.verdicts
    ]
    head = ("figure", "claim", "verdict", "our numbers")
    lines = [head, ("---",) * 4, *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def describe_panel(panel: Panel) -> str:
    """Return what is seen in a panel, in words, for those who do not see it."""
    ends = [text for series in panel.series if (text := _describe_series(series))]
    scales = [f"{axis} axis is logarithmic" for axis, log in (("x", panel.x_log), ("y", panel.y_log)) if log]
    text = f"{panel.title}: {panel.y_label} against {panel.x_label}."
    if scales:
        text += f" The {' and the '.join(scales)}."
    return f"{text} {'; '.join(ends) if ends else 'There are no points'}."


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
        values = [point[1] for point in points]
        return f"{series.name} runs from {values[0]:.4g} to {y:.4g}{interval} at {_number(x)}"
    if len(points) == 1:
        return f"{series.name}: {y:.4g}{interval} at {_number(x)}"
    least, most = min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1])
    return (
        f"{series.name}: {len(points)} values from {least[1]:.4g} at {_number(least[0])} "
        f"to {most[1]:.4g} at {_number(most[0])}"
    )


def _check_names(figures: Sequence[FigureData]) -> None:
    """Names become files and anchors, so nothing but letters, digits, ``-`` and ``_``, and each one once."""
    for name, count in Counter(figure.name for figure in figures).items():
        if count > 1 or name == "report" or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
            reason = f"there are {count} of it" if count > 1 else "use letters, digits, - and _, and not 'report'"
            raise ValueError(f"no figure can be named {name!r}: {reason}")


def _page(figures: Sequence[FigureData], *, about: Mapping[str, str], pdfs: Mapping[str, bytes]) -> str:
    source = files("heatbath.report") / "assets"
    script = "".join((source / name).read_text(encoding="utf-8") for name in ("plot.js", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = json.dumps([_figure_data(figure) for figure in figures], separators=(",", ":"))
    return Template((source / "template.html").read_text(encoding="utf-8")).substitute(
        title=escape(_TITLE),
        # The browser runs this script and no other, whatever the texts of the figures hold.
        script_hash=f"sha256-{digest}",
        script=script,
        css=(source / "page.css").read_text(encoding="utf-8"),
        summary=escape(_summary(figures)),
        verdicts=_verdict_table(figures),
        contents="\n".join(
            f'<li><a href="#{figure.name}">{escape(_label(figure))}</a> {escape(figure.title)}</li>'
            for figure in figures
        ),
        about=_definitions(about),
        figures="\n".join(_section(figure, pdfs[figure.name]) for figure in figures),
        data=data.replace("<", "\\u003c"),
    )


def _figure_data(figure: FigureData) -> dict[str, Any]:
    panels = [
        {
            "title": panel.title,
            "x_label": panel.x_label,
            "y_label": panel.y_label,
            "x_log": panel.x_log,
            "y_log": panel.y_log,
            "alt": describe_panel(panel),
            "series": [_series_data(series) for series in panel.series],
        }
        for panel in figure.panels
    ]
    return {"name": figure.name, "label": _label(figure), "panels": panels}


def _series_data(series: Series) -> dict[str, Any]:
    found: dict[str, Any] = {"name": series.name, "style": series.style, "colour": series.colour}
    for key, values in (("x", series.x), ("y", series.y), ("low", series.low), ("high", series.high)):
        if values is not None:
            found[key] = [value if isinstance(value, str) else _short(value) for value in values]
    return found


def _short(value: float | None) -> float | int | None:
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _number(x: float | str) -> str:
    return x if isinstance(x, str) else f"{x:.4g}"


def _label(figure: FigureData) -> str:
    number = re.fullmatch(r"figure(\d+\w*)", figure.name)
    return f"Figure {number[1]}" if number else figure.name.replace("_", " ").replace("-", " ").capitalize()


def _summary(figures: Sequence[FigureData]) -> str:
    outcomes = Counter[str](verdict.outcome for figure in figures for verdict in figure.verdicts)
    counts = ", ".join(f"{outcomes[name]} {name}" for name in _OUTCOMES if outcomes[name])
    total = sum(outcomes.values())
    shown = f"{len(figures)} figure{'s' * (len(figures) != 1)}"
    if not counts:
        return f"{shown}, no claim judged yet."
    unseen = sum(verdict.interval is None for figure in figures for verdict in figure.verdicts)
    lacking = f" {unseen} of them for lack of runs." if unseen else ""
    return f"{shown}, {total} claim{'s' * (total != 1)}: {counts}.{lacking}"


def _verdict_table(figures: Sequence[FigureData]) -> str:
    rows = [
        '<tr role="row">'
        f'<td role="cell"><a href="#{figure.name}">{escape(_label(figure))}</a></td>'
        f'<td role="cell">{escape(verdict.claim)}</td>'
        f'<td role="cell">{_badge(verdict)}</td>'
        f'<td role="cell">{_prose(verdict.detail)}</td>'
        f'<td role="cell" data-label="Margin">{_margin(verdict)}</td></tr>'
        for figure in figures
        for verdict in figure.verdicts
    ]
    if not rows:
        return ""
    names = ("Figure", "Claim", "Verdict", "Our numbers", "Margin")
    head = "".join(f'<th role="columnheader" scope="col">{name}</th>' for name in names)
    return (
        '<h2 id="page-verdicts">Verdicts</h2>\n'
        '<table class="verdict-table" role="table" aria-labelledby="page-verdicts">'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>\n'
        '<tbody role="rowgroup">' + "\n".join(rows) + "</tbody></table>"
    )


def _badge(verdict: Verdict) -> str:
    needs = f' <span class="needs">{escape(verdict.needs)}</span>' if verdict.needs else ""
    return f'<span class="badge {verdict.outcome}">{verdict.outcome}</span>{needs}'


def _margin(verdict: Verdict) -> str:
    return f"{verdict.margin:.4g}"


def _section(figure: FigureData, pdf: bytes) -> str:
    wide = " wide" if len(figure.panels) > 2 else ""
    link = f"data:application/pdf;base64,{base64.b64encode(pdf).decode()}"
    label = escape(_label(figure))
    panels = "\n".join(map(_panel, figure.panels))
    verdicts = _block("Claims and verdicts", "".join(_verdict(verdict) for verdict in figure.verdicts))
    notes = _block("Missing", _list(figure.missing)) + _block("Errata", _list(figure.errata))
    notes += _block("Settings", _definitions(figure.settings) if figure.settings else "")
    return f"""<section class="figure" id="{figure.name}" aria-labelledby="{figure.name}-title">
<h2 id="{figure.name}-title">{label}. {escape(figure.title)}</h2>
<p>{escape(figure.question)}</p>
<div class="columns{wide}">
<div class="plots">
<ul class="legend" aria-label="Show and hide series of {label}"></ul>
<div class="panels">{panels or "<p>There is nothing to draw yet.</p>"}</div>
<p class="downloads"><span>Download</span>
<a class="button" download="{figure.name}.pdf" href="{link}" aria-label="Download {label} as PDF">PDF</a></p>
{"<details><summary>The numbers as a table</summary></details>" if figure.panels else ""}
</div>
<div class="side">{verdicts}</div>
<div class="notes">{notes}</div>
</div>
</section>"""


def _panel(panel: Panel) -> str:
    foot = f'<p class="note">{_prose(panel.note)}</p>' if panel.note else ""
    return (
        f'<figure class="panel"><div class="panel-head"><h3>{escape(panel.title)}</h3></div>'
        f'<div class="canvas" role="img" aria-label="{escape(describe_panel(panel))}"></div>{foot}</figure>'
    )


def _verdict(verdict: Verdict) -> str:
    return (
        f'<div class="verdict">{_badge(verdict)}<p><strong>{escape(verdict.claim)}</strong></p>'
        f"<p>{_prose(verdict.detail)}</p></div>"
    )


def _prose(text: str) -> str:
    """Words and numbers for the page, with numbers that stay on one line."""
    return _UNBROKEN.sub(r'<span class="whole">\g<0></span>', escape(text))


def _block(heading: str, content: str) -> str:
    return f"<div><h3>{heading}</h3>{content}</div>" if content else ""


def _list(texts: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def _definitions(entries: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{escape(str(key))}</dt><dd>{escape(str(value))}</dd>" for key, value in entries.items())
    return f"<dl>{rows}</dl>"
