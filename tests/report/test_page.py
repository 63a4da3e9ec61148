import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from itertools import accumulate, pairwise

import pytest

pytest.importorskip("matplotlib")

from figure_data import ABOUT, EVIL, all_figures, categories_figure, sample_report, scatter_figure, training_figure
from heatbath.report.page import describe_panel, write_report
from heatbath.report.panels import FigureData, Panel, Series, to_csv
from heatbath.stats import wording
from heatbath.stats.intervals import Interval
from heatbath.stats.verdicts import Evidence, Verdict

VOID = {"meta", "link", "img", "br", "input", "hr"}


class Outline(HTMLParser):
    """Checks that tags close in order; keeps texts, ids and attributes."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["script"], ["style"]):
            self.texts.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return sample_report(tmp_path_factory.getbasetemp() / "report")


@pytest.fixture(scope="module")
def page(folder):
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def outline(page):
    return Outline(page)


def embedded(page):
    figures = json.loads(re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)[1])
    for series in (one for figure in figures for panel in figure["panels"] for one in panel["series"]):
        if "places" in series:
            y = list(accumulate(series["y"]))
            for key in {"low", "high"} & set(series):
                series[key] = [(a + far) / 10 ** series["places"] for a, far in zip(y, series[key], strict=True)]
            series["y"] = [value / 10 ** series["places"] for value in y]
    return figures


def alike(found, wanted):
    """Whether two columns are equal to five digits, with gaps and names at the same places."""
    if found is None or wanted is None:
        return found is wanted
    found = range(1, found + 1) if isinstance(found, int) else found
    pairs = list(zip(found, wanted, strict=True))
    numbers = [isinstance(value, (int, float)) for value in wanted]
    return all(
        one == (pytest.approx(other, rel=1e-5) if n else other) for (one, other), n in zip(pairs, numbers, strict=True)
    )


def test_the_page_is_well_formed_and_its_ids_are_unique(outline):
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [a["href"][1:] for tag, a in outline.tags if tag == "a" and a["href"].startswith("#")]
    assert len(targets) > len(all_figures())
    assert set(targets) <= set(ids)
    levels = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))


def test_nothing_is_loaded_from_elsewhere(page, outline):
    links = [a[key] for _, a in outline.tags for key in ("href", "src") if key in a]
    assert all(link.startswith(("#", "data:")) for link in links)
    assert set(re.findall(r"https?://[^\s\"'`]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\((?!#)", page)
    (policy,) = (a["content"] for _, a in outline.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")


def test_texts_are_escaped(page, outline):
    assert "<script>window.pwned" not in page
    assert "<img" not in page
    assert " ".join(outline.texts).count(EVIL) >= 10
    assert embedded(page)[-1]["panels"][0]["series"][0]["x"] == [EVIL, "b"]


def test_no_line_tears_a_number_apart(tmp_path):
    interval = Interval(0.5, -1.0, 2.0, 0.98)
    evidence = Evidence(3.4e-10, 1.0, interval, means=(0.5, 3.78e-09), sizes=(20, 20), paired=True, part="<b>")
    verdict = Verdict("a claim", "confirmed", evidence, 1.0, 5)
    figure = FigureData("some", "t", "q", (), verdicts=(verdict,))
    page = write_report([figure], tmp_path, about={}).read_text(encoding="utf-8")
    parts = re.findall(r'<span class="whole">(.*?)</span>', page)
    assert parts == ["3.78e-09", "n = 20", "98 %", "p = 1.7e-09"]
    assert "&lt;b&gt;" in page


def test_the_page_holds_every_number(page):
    for figure, found in zip(all_figures(), embedded(page), strict=False):
        assert found["name"] == figure.name
        assert len(found["panels"]) == len(figure.panels)
        for panel, data in zip(figure.panels, found["panels"], strict=True):
            assert (data["title"], data["x_log"], data["y_log"]) == (panel.title, panel.x_log, panel.y_log)
            for series, drawn in zip(panel.series, data["series"], strict=True):
                assert (drawn["name"], drawn["style"], drawn["colour"]) == (series.name, series.style, series.colour)
                for key in ("x", "y", "low", "high"):
                    assert alike(drawn.get(key), getattr(series, key))


def test_what_is_no_number_becomes_a_gap(tmp_path):
    series = Series("a", (1.0, 2.0, 3.0, 4.0), (0.5, float("nan"), float("inf"), None), style="points")
    figure = FigureData("gaps", "Gaps", "Are there gaps?", (Panel("a", "x", "y", (series,)),))
    page = write_report([figure], tmp_path, about={}).read_text(encoding="utf-8")
    assert embedded(page)[0]["panels"][0]["series"][0]["y"] == [0.5, None, None, None]
    assert "no claim judged yet" in page


def test_claims_verdicts_errata_settings_and_what_is_missing_are_told(outline):
    text = "".join(outline.texts)
    for figure in all_figures():
        for told in (figure.title, figure.question, *figure.errata, *figure.missing, *figure.settings.values()):
            assert told in text
        for verdict in figure.verdicts:
            assert text.count(verdict.claim) == text.count(wording.detail(verdict)) == 1
            assert wording.needs(verdict).capitalize() in text
    assert "6 figures, 5 claims: 1 confirmed, 1 contradicted, 3 undecided." in text
    assert "Needs about 43 seeds (31 to 76)." in text
    assert all(value in text for value in ABOUT.values())


def test_each_figure_is_written_in_four_formats_and_the_page_holds_its_pdf(folder, outline):
    starts = {"svg": b"<?xml", "png": b"\x89PNG\r\n\x1a\n", "pdf": b"%PDF-", "csv": b"panel,series,x,y,low,high\n"}
    for figure in all_figures():
        for kind, start in starts.items():
            assert (folder / f"{figure.name}.{kind}").read_bytes().startswith(start)
        assert (folder / f"{figure.name}.csv").read_text(encoding="utf-8") == to_csv(figure)
        (link,) = (a["href"] for _, a in outline.tags if a.get("download") == f"{figure.name}.pdf")
        content = base64.b64decode(link.removeprefix("data:application/pdf;base64,"), validate=True)
        assert content == (folder / f"{figure.name}.pdf").read_bytes()
    assert {path.name.split(".")[0] for path in folder.iterdir()} == {f.name for f in all_figures()} | {
        "report",
        "verdicts",
        "evil",
    }


def test_the_same_figure_gives_the_same_files(folder, tmp_path):
    write_report([categories_figure()], tmp_path, about=ABOUT)
    for kind in ("svg", "png", "pdf", "csv"):
        assert (tmp_path / f"figure3.{kind}").read_bytes() == (folder / f"figure3.{kind}").read_bytes(), kind


def test_a_long_curve_travels_in_few_characters_and_loses_nothing(tmp_path):
    y = tuple(0.98 - 0.5 / (1 + k) for k in range(180))
    series = Series("a", tuple(range(1, 181)), y, tuple(v - 0.003 for v in y), tuple(v + 0.004 for v in y))
    figure = FigureData("long", "Long", "Is it long?", (Panel("a", "x", "y", (series,)),))
    page = write_report([figure], tmp_path, about={}).read_text(encoding="utf-8")
    found = embedded(page)[0]["panels"][0]["series"][0]
    for key in ("y", "low", "high"):
        assert found[key] == [float(f"{value:.6g}") for value in getattr(series, key)]
    numbers = json.dumps({key: found[key] for key in ("y", "low", "high")}, separators=(",", ":"))
    data = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)[1]
    assert len(data) < 0.65 * len(numbers)


@pytest.mark.parametrize("name", ["", "a/b", "../up", "report", "1st", "a b", '"'])
def test_names_that_are_no_file_names_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match="can be named"):
        write_report([replace(training_figure(), name=name)], tmp_path, about={})
    assert list(tmp_path.iterdir()) == []


def test_a_name_is_used_once(tmp_path):
    with pytest.raises(ValueError, match=r"'figure1': there are 2"):
        write_report([training_figure(), training_figure()], tmp_path, about={})


def test_alt_texts_say_what_is_seen():
    curves, points = training_figure().panels[1], categories_figure().panels[0]
    last = curves.series[1]
    text = describe_panel(curves)
    assert text.startswith("Training loss: training loss against epoch. The y axis is logarithmic. constant runs from ")
    assert f"random runs from {last.y[0]:.4g} to {last.y[-1]:.4g} ({last.low[-1]:.4g} to {last.high[-1]:.4g})" in text
    assert "constant: 3 values from" in describe_panel(points)
    assert "at batch" in describe_panel(points)
    assert "The x axis is logarithmic and the y axis" in describe_panel(scatter_figure().panels[0])
    assert "no points" in describe_panel(Panel("a", "x", "y", ()))


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_can_be_told_from_the_page(theme):
    """WCAG 2.2: 4.5 for text, 3 for parts of a picture."""
    blocks = re.findall(r":root[^{]*\{([^}]*)\}", (files("heatbath") / "report" / "assets" / "page.css").read_text())
    colours = dict(re.findall(r"--(\w+): (#\w{6})", blocks[theme]))
    for background in ("page", "card"):
        for name in ("text", "soft", "link", "confirmed", "contradicted", "undecided"):
            assert contrast(colours[name], colours[background]) >= 4.5, name
    for i in range(10):
        assert contrast(colours[f"s{i}"], colours["page"]) >= 3.0, i
