"""The report's page as a reader has it: drawn and used in a real browser, wide and narrow, light and dark."""

import base64
import csv
import io
import re
from dataclasses import replace
from itertools import pairwise

import pytest

pytest.importorskip("matplotlib")

from browser import CHROMIUM, Browser
from figure_data import (
    ABOUT,
    PROTOCOLS,
    all_figures,
    categories_figure,
    evil_figure,
    sample_report,
    scatter_figure,
    training_figure,
)
from heatbath.report.page import describe_panel, write_report
from heatbath.report.panels import FigureData, Opening, Panel, Series, to_csv

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")

PLACE = """(() => {
  const plot = document.querySelectorAll("#%s .plot")[%d];
  plot.scrollIntoView({ block: "center", behavior: "instant" });
  const { left, top, width, height } = plot.getBoundingClientRect();
  return [left, top, width, height];
})()"""
TICKS = "[...document.querySelectorAll('#figure1 .plot')[0].querySelectorAll('text')].map(t => t.textContent)"
TIP = "(() => { const tip = document.querySelector('#figure1 .tip'); return tip.hidden ? null : tip.innerText; })()"
# Runs a download and returns what the link would have saved.
DOWNLOAD = """new Promise((done) => {
  const make = URL.createObjectURL;
  URL.createObjectURL = (blob) => {
    URL.createObjectURL = make;
    const reader = new FileReader();
    reader.onload = () => done([blob.type, reader.result.split(",")[1]]);
    reader.readAsDataURL(blob);
    return "data:,";
  };
  document.querySelector("#%s .downloads [data-kind=%s]").click();
})"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return sample_report(tmp_path_factory.getbasetemp() / "report")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_plot_is_drawn(browser, folder, width, dark):
    browser.open(folder / "report.html", width=width, dark=dark, touch=width < 500)
    assert browser.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    assert browser.evaluate("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    for figure in [*all_figures(), evil_figure()]:
        for i, panel in enumerate(figure.panels):
            found = browser.evaluate(f"""(() => {{
              const plot = document.querySelectorAll("#{figure.name} .plot")[{i}];
              const count = (what) => plot.querySelectorAll(what).length;
              const box = plot.getBoundingClientRect();
              const parts = [...plot.querySelectorAll("path, rect, circle")].map((e) => e.outerHTML).join("");
              return {{ series: count(".series"), curves: count(".curve"), marks: count(".mark"),
                texts: [...plot.querySelectorAll("text")].map((t) => t.textContent), label: plot.ariaLabel,
                role: plot.role, width: box.width, right: box.right, broken: /NaN|Infinity|undefined/.test(parts) }};
            }})()""")
            points = [y for series in panel.series if series.style == "points" for y in series.y if y is not None]
            assert found["series"] == len(panel.series)
            assert found["curves"] == sum(series.style == "line" for series in panel.series)
            assert found["marks"] == len(points)
            assert {panel.x_label, panel.y_label} <= set(found["texts"])
            assert len(found["texts"]) >= 6
            assert (found["label"], found["role"]) == (describe_panel(panel), "img")
            assert 280 < found["width"] <= found["right"] <= width
            assert not found["broken"]
    assert browser.evaluate("window.pwned") is None
    assert browser.errors == []


OPENING = Opening(
    "What we asked",
    "Is one better than the other?",
    ("A paper", "https://example.org/paper"),
    ("The first is.", "By far."),
    (("figure3", 0), ("figure1", 1), ("none", 0), ("figure1", 9)),
    "This is a small scale.",
)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    figures = [
        replace(one, at_paper_scale={v.claim: "contradicted" for v in one.verdicts}, unlike_the_paper="it is short")
        for one in all_figures()
    ]
    return write_report(figures, tmp_path_factory.mktemp("opened"), about=ABOUT, opening=OPENING)


@pytest.mark.parametrize(("width", "height", "screens"), [(1400, 900, 1), (390, 844, 2)])
def test_the_first_picture_is_seen_at_once(browser, opened, width, height, screens):
    browser.open(opened, width=width, touch=width < 500)
    box = "(({ top, bottom }) => [top, bottom])(document.querySelector('.plot').getBoundingClientRect())"
    top, bottom = browser.evaluate(box)
    assert 0 < top < bottom < screens * height
    plots = "[...document.querySelectorAll('.key-panel .plot')].map(p => p.querySelectorAll('.series').length)"
    assert browser.evaluate(plots) == [5, 5]
    assert browser.evaluate("document.querySelector('.lead a').href") == "https://example.org/paper"
    assert browser.evaluate("document.querySelector('.banner').innerText") == "This is a small scale."
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.errors == []


SHOWN = "[...document.querySelectorAll('.claims li')].filter(e => e.offsetParent).map(e => e.id)"


def test_claims_are_filtered_by_verdict_and_by_figure(browser, opened):
    browser.open(opened, width=1400)
    everything = browser.evaluate(SHOWN)
    assert everything == ["figure1-claim-1", "figure1-claim-2", "figure3-claim-1", "figure6-claim-1"]
    browser.evaluate("document.querySelector('.filters [data-outcome=undecided]').click()")
    assert browser.evaluate(SHOWN) == ["figure1-claim-2", "figure6-claim-1"]
    choose = (
        "(s => { s.value = '%s'; s.dispatchEvent(new Event('change')); })(document.querySelector('.filters select'))"
    )
    browser.evaluate(choose % "figure6")
    assert browser.evaluate(SHOWN) == ["figure6-claim-1"]
    pressed = "[...document.querySelectorAll('.filters [aria-pressed=true]')].map(b => b.dataset.outcome)"
    assert browser.evaluate(pressed) == ["undecided"]
    browser.evaluate("document.querySelector('.filters [data-outcome=\"\"]').click()")
    browser.evaluate(choose % "")
    assert browser.evaluate(SHOWN) == everything
    browser.evaluate("location.hash = '#figure3-claim-1'")
    assert browser.evaluate("document.querySelector('#figure3-claim-1 details').open")
    assert not browser.evaluate("document.querySelector('#figure1-claim-1 details').open")
    line = browser.evaluate("document.querySelector('#figure1-claim-1').innerText")
    assert "paper scale" in line
    assert "contradicted" in line
    assert "Unlike the paper's scale: it is short." in browser.evaluate(
        "document.querySelector('#page-claims').innerText"
    )


# The contrast (WCAG 2.2) of each text, and of each curve and mark, with the nearest background behind it.
CONTRASTS = """(() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => parts(colour).slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    const colour = getComputedStyle(element).backgroundColor;
    return parts(colour)[3] === 0 && element.parentElement ? behind(element.parentElement) : colour;
  };
  const contrast = (one, other) => {
    const [dark, bright] = [light(one), light(other)].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  };
  for (const folded of document.querySelectorAll(".claims details")) folded.open = true;
  const seen = [...document.querySelectorAll("body *")].filter((e) => e.getClientRects().length);
  const texts = seen.filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()));
  const lines = seen.filter((e) => e.matches(".plot .curve, .plot .mark"));
  const paint = (e) => ["fill", "stroke"].map((key) => getComputedStyle(e)[key]).filter((c) => c.startsWith("rgb"));
  const ink = (e) => getComputedStyle(e)[e.closest("svg") ? "fill" : "color"];
  return {
    texts: texts.map((e) => [contrast(ink(e), behind(e)), e.outerHTML.slice(0, 120)]),
    lines: lines.map((e) => [Math.max(...paint(e).map((c) => contrast(c, behind(e)))), e.outerHTML.slice(0, 120)]),
  };
})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_and_lines_stand_out_from_what_is_behind_them(browser, opened, dark):
    browser.open(opened, width=1400, dark=dark)
    found = browser.evaluate(CONTRASTS)
    assert len(found["texts"]) > 100
    assert len(found["lines"]) > 20
    assert [text for contrast, text in found["texts"] if contrast < 4.5] == []
    assert [line for contrast, line in found["lines"] if contrast < 3.0] == []


def test_claims_are_folded_lines_with_one_sign_and_an_anchor_each(browser, opened):
    browser.open(opened, width=1400)
    lines = browser.evaluate("""[...document.querySelectorAll(".claims li")].map((line) => ({
      id: line.id, open: line.querySelector("details").open, link: line.querySelector("details a").hash,
      signs: line.querySelectorAll("summary > .sign").length,
      height: line.getBoundingClientRect().height }))""")
    verdicts = [verdict for figure in all_figures() for verdict in figure.verdicts]
    assert len({line["id"] for line in lines}) == len(lines) == len(verdicts)
    for line in lines:
        assert (line["open"], line["signs"], line["link"]) == (False, 1, f"#{line['id']}")
        assert line["height"] < 50
    text = browser.evaluate("document.body.innerText")
    assert all(text.count(verdict.claim) == 1 for verdict in verdicts)


def test_the_policy_lets_no_other_script_run_and_nothing_be_fetched(browser, opened):
    browser.open(opened, width=1400)
    browser.evaluate(
        """document.body.append(Object.assign(document.createElement("script"), { text: "var evil = 1" }))"""
    )
    assert browser.evaluate("typeof evil") == "undefined"
    assert browser.evaluate("fetch('data:,x').then(() => 'fetched', () => 'refused')") == "refused"


def test_a_link_to_a_claim_shows_it_whatever_is_filtered(browser, opened):
    browser.open(opened, width=1400)
    browser.evaluate("document.querySelector('.filters [data-outcome=undecided]').click()")
    assert "figure3-claim-1" not in browser.evaluate(SHOWN)
    browser.evaluate("location.hash = '#figure3-claim-1'")
    assert "figure3-claim-1" in browser.evaluate(SHOWN)
    assert browser.evaluate("document.querySelector('.filters [aria-pressed=true]').dataset.outcome") == ""
    assert browser.errors == []


def test_the_link_keeps_the_zoom_of_the_first_plots(browser, opened):
    ticks = "[...document.querySelector('.key-panel .plot').querySelectorAll('text')].map(t => t.textContent)"
    browser.open(opened, width=1400)
    whole = browser.evaluate(ticks)
    browser.evaluate("document.querySelector('.key-panel .plot').focus()")
    browser.key("+", "+")
    zoomed, link = browser.evaluate(ticks), browser.evaluate("location.search")
    assert zoomed != whole
    browser.open(opened, width=1400, query=link)
    assert browser.evaluate(ticks) == zoomed
    assert browser.errors == []


def test_an_axis_is_logarithmic_when_asked_and_the_link_keeps_it(browser, folder):
    browser.open(folder / "report.html", width=1280)
    linear = browser.evaluate(TICKS)
    browser.evaluate("document.querySelector('#figure1 .panel-head button:not([hidden])').click()")
    logarithmic = browser.evaluate(TICKS)
    assert logarithmic != linear
    link = browser.evaluate("location.search")
    assert "clip-figure1-0=log" in link
    browser.open(folder / "report.html", width=1280, query=link)
    assert browser.evaluate(TICKS) == logarithmic
    assert browser.errors == []


@pytest.mark.parametrize(("count", "columns"), [(2, 2), (3, 3), (4, 2), (5, 3)])
def test_four_panels_are_two_and_two(browser, tmp_path, count, columns):
    panels = tuple(Panel(f"panel {k}", "x", "y", (Series("s", (0.0, 1.0), (0.0, 1.0)),)) for k in range(count))
    page = write_report([FigureData("some", "t", "q", panels)], tmp_path, about={})
    lefts = "[...document.querySelectorAll('.panel')].map((panel) => panel.getBoundingClientRect().left)"
    browser.open(page, width=1280)
    assert len(set(browser.evaluate(lefts))) == columns
    browser.open(page, width=390, touch=True)
    assert len(set(browser.evaluate(lefts))) == 1


PLACES = """[...document.querySelectorAll(".plot")].map((plot) => [...plot.querySelectorAll("text")].map((text) => {
  const { left, right, top } = text.getBoundingClientRect();
  return [text.textContent, left, right, top];
}))"""


def test_an_axis_has_more_than_two_ticks_and_no_labels_that_touch(browser, tmp_path):
    def panel(x, log=False):
        return Panel("panel", "", "", (Series("s", x, tuple(range(len(x)))),), x_log=log)

    panels = panel((0.0, 0.95)), panel((1.0, 180.0)), panel((8e-7, 1e-3), True), panel((1.25e-3, 0.01), True)
    page = write_report([FigureData("some", "t", "q", panels)], tmp_path, about={})
    for width, fewest in ((1280, 3), (390, 3), (320, 2)):
        browser.open(page, width=width, touch=width < 500)
        for texts in browser.evaluate(PLACES):
            lowest = max(top for label, _, _, top in texts if label)
            along = sorted(text[1:3] for text in texts if text[0] and text[3] > lowest - 3)
            assert len(along) >= fewest
            assert all(left[1] < right[0] for left, right in pairwise(along))


def test_ticks_differ_however_deep_the_zoom(browser, folder):
    browser.open(folder / "report.html", width=1280)
    browser.evaluate("document.querySelectorAll('#figure1 .plot')[0].focus()")
    for _ in range(40):
        browser.key("+", "+")
    ticks = browser.evaluate(TICKS)
    assert len(ticks) > 6
    assert len(set(ticks)) == len(ticks)


def test_gaps_split_curves_and_points_between_them_are_seen(browser, folder):
    browser.open(folder / "report.html", width=1280)
    curve = "document.querySelector(\"#sparse .plot [data-colour='%d'] .curve\").getAttribute('d')"
    assert re.fullmatch(r"M[\d. ]+L[\d. ]+L[\d. ]+", browser.evaluate(curve % 2))
    assert re.fullmatch(r"M[\d. ]+m-2 0h4M[\d. ]+m-2 0h4", browser.evaluate(curve % 3))


@pytest.mark.parametrize(("panel", "count"), [(0, 15), (1, 5)])
def test_points_that_share_a_category_stand_side_by_side(browser, folder, panel, count):
    browser.open(folder / "report.html", width=1280)
    marks = browser.evaluate(f"""[...document.querySelectorAll("#figure3 .plot")[{panel}].querySelectorAll(".mark")]
      .map((mark) => mark.getBoundingClientRect()).map(({{ left, right }}) => [left, right])""")
    assert len(marks) == count
    assert all(left[1] < right[0] for left, right in pairwise(sorted(marks)))


def test_toggles_hide_a_protocol_in_all_panels_and_work_with_keys(browser, folder):
    browser.open(folder / "report.html", width=1280)
    seen = "[...document.querySelectorAll('#figure1 .series')].map(s => s.dataset.colour).join('')"
    pressed = "[...document.querySelectorAll('#figure1 .legend button')].map(b => [b.innerText, b.ariaPressed])"
    assert browser.evaluate(pressed) == [[name, "true"] for name in PROTOCOLS]
    assert browser.evaluate(seen) == "01234" * 2
    browser.evaluate("document.querySelectorAll('#figure1 .legend button')[1].click()")
    assert browser.evaluate(seen) == "0234" * 2
    assert browser.evaluate(pressed)[1] == ["random", "false"]
    assert browser.evaluate("document.querySelectorAll('#figure3 .series').length") == 10  # other figures keep theirs
    browser.evaluate("document.querySelectorAll('#figure1 .legend button')[1].focus()")
    browser.key("Enter", "\r")
    assert browser.evaluate(seen) == "01234" * 2
    assert browser.errors == []


def test_the_legend_shows_dash_and_mark_of_what_has_both(browser, tmp_path):
    curves = tuple(Series(name, (1.0, 2.0), (1.0, 2.0 + k), colour=k) for k, name in enumerate(("a", "b")))
    points = tuple(Series(name, (name,), (1.0,), style="points", colour=k) for k, name in enumerate(("a", "b", "c")))
    panels = Panel("curves", "x", "y", curves), Panel("points", "", "y", points)
    page = write_report([FigureData("both", "t", "q", panels)], tmp_path, about={})
    browser.open(page, width=1280)
    shapes = browser.evaluate("""[...document.querySelectorAll("#both .legend svg")].map((key) =>
      [...key.children].map((shape) => [shape.getAttribute("class"), shape.getAttribute("stroke-dasharray")]))""")
    assert shapes == [
        [["curve", "none"], ["mark", None]],
        [["curve", "7 3"], ["mark", None]],
        [["mark", None]],
    ]
    assert browser.errors == []


def test_a_pointer_reads_all_series(browser, folder):
    browser.open(folder / "report.html", width=1280)
    left, top, width, height = browser.evaluate(PLACE % ("figure1", 0))
    assert browser.evaluate(TIP) is None
    browser.mouse("mouseMoved", left + 0.6 * width, top + 0.4 * height)
    text = browser.evaluate(TIP)
    epoch = int(re.match(r"epoch: (\d+)\n", text)[1])
    assert 60 < epoch < 140
    for series in training_figure().panels[0].series:
        wanted = [values[epoch - 1] for values in (series.y, series.low, series.high)]
        found = re.search(rf"{series.name}\s+(\S+)\s+(\S+) to (\S+)", text).groups()
        assert [float(value) for value in found] == pytest.approx(wanted, abs=6e-5)
    browser.mouse("mouseMoved", 2, 2)
    assert browser.evaluate(TIP) is None
    assert browser.errors == []


@pytest.mark.parametrize("width", [1280, 390])
def test_what_is_read_stands_in_the_plot(browser, folder, width):
    browser.open(folder / "report.html", width=width)
    _, top, _, height = browser.evaluate(PLACE % ("figure1", 0))
    browser.evaluate("document.querySelector('#figure1 .plot').focus({ preventScroll: true })")
    browser.key("ArrowRight")
    tip = browser.evaluate("document.querySelector('#figure1 .tip').getBoundingClientRect().top")
    assert top < tip < top + height


def test_on_paper_plots_stand_in_pairs_and_keep_the_size_of_their_words(browser, folder):
    browser.open(folder / "report.html", width=1280)
    browser.call("Emulation.setDeviceMetricsOverride", width=717, height=900, deviceScaleFactor=1, mobile=False)
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    drawn = """[...document.querySelectorAll(".panels .plot")].map((plot) =>
        [plot.getBoundingClientRect().left, plot.getBoundingClientRect().width / plot.viewBox.baseVal.width])"""
    lefts, scales = zip(*browser.evaluate(drawn), strict=True)
    first = "document.querySelector('#figure1').getBoundingClientRect().top"
    tops = browser.evaluate(f"[{first}, document.querySelector('#page-claims').getBoundingClientRect().top]")
    unfolded = browser.evaluate("[...document.querySelectorAll('.claims details')].every(e => e.open)")
    browser.call("Emulation.setEmulatedMedia", media="")
    browser.evaluate("dispatchEvent(new Event('afterprint'))")
    assert not browser.evaluate("[...document.querySelectorAll('.claims details')].some(e => e.open)"), "as before"
    assert len({round(left) for left in lefts}) == 2
    assert all(0.9 < scale < 1.1 for scale in scales)
    assert tops[0] < tops[1], "figures first"
    assert unfolded
    assert browser.errors == []


def test_drag_wheel_keys_and_double_click_zoom_and_go_back(browser, folder):
    browser.open(folder / "report.html", width=1280)
    left, top, width, height = browser.evaluate(PLACE % ("figure1", 0))
    whole = browser.evaluate(TICKS)
    reset = "document.querySelector('#figure1 .panel-head button')"
    assert browser.evaluate(f"{reset}.hidden") is True

    def drag(y):
        browser.mouse("mousePressed", left + 0.5 * width, top + 0.3 * height, button="left", buttons=1, clickCount=1)
        browser.mouse("mouseMoved", left + 0.7 * width, top + y * height, button="left", buttons=1)
        assert browser.evaluate("document.querySelectorAll('#figure1 .box').length") == 1
        browser.mouse("mouseReleased", left + 0.7 * width, top + y * height, button="left", clickCount=1)

    drag(0.31)  # a flat box: the y axis stays
    zoomed = browser.evaluate(TICKS)
    numbers = [text for text in whole if re.fullmatch(r"0\.\d", text)]
    assert [text for text in zoomed if re.fullmatch(r"0\.\d", text)] == numbers
    assert "0" not in zoomed
    browser.evaluate(f"{reset}.click()")
    assert browser.evaluate(TICKS) == whole
    drag(0.5)
    assert not set(numbers) <= set(browser.evaluate(TICKS))
    middle = (left + 0.5 * width, top + 0.5 * height)
    for count in (1, 2):
        browser.mouse("mousePressed", *middle, button="left", clickCount=count)
        browser.mouse("mouseReleased", *middle, button="left", clickCount=count)
    assert browser.evaluate(TICKS) == whole
    browser.mouse("mouseWheel", *middle, deltaX=0, deltaY=-100)  # the clicks have chosen this plot
    assert browser.evaluate(f"{reset}.hidden") is False
    browser.key("0", "0")
    assert browser.evaluate(TICKS) == whole
    browser.key("+", "+")
    assert browser.evaluate(TICKS) != whole
    browser.key("Escape")
    browser.key("ArrowRight")
    browser.key("ArrowRight")
    told = browser.evaluate("document.querySelector('[role=status]').innerText")
    assert re.search(r"epoch: \d+\. constant 0\.\d+, 0\.\d+ to", told)
    assert browser.errors == []


def test_two_fingers_zoom_and_one_reads(browser, folder):
    browser.open(folder / "report.html", width=390, touch=True)
    left, top, width, height = browser.evaluate(PLACE % ("figure1", 0))
    whole = browser.evaluate(TICKS)

    def touch(kind, *places):
        points = [{"x": left + x * width, "y": top + 0.5 * height, "id": i} for i, x in enumerate(places)]
        browser.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    touch("touchStart", 0.5)
    touch("touchEnd")
    assert browser.evaluate(TIP).startswith("epoch: ")
    assert browser.evaluate(TICKS) == whole
    touch("touchStart", 0.45, 0.55)
    for apart in (0.1, 0.15, 0.2, 0.25):
        touch("touchMove", 0.5 - apart, 0.5 + apart)
    touch("touchEnd")
    assert browser.evaluate(TICKS) != whole
    assert browser.evaluate("document.querySelector('#figure1 .panel-head button').hidden") is False
    assert browser.evaluate("document.documentElement.scrollWidth") == 390
    assert browser.errors == []


def test_the_page_alone_gives_csv_svg_and_png(browser, folder, tmp_path):
    alone = tmp_path / "alone.html"
    alone.write_bytes((folder / "report.html").read_bytes())
    browser.open(alone, width=1280, dark=True)

    def download(kind, name="figure6"):
        media, content = browser.evaluate(DOWNLOAD % (name, kind))
        return media, base64.b64decode(content)

    for figure in (scatter_figure(), evil_figure()):
        media, content = download("csv", figure.name)
        assert media == "text/csv"
        found, wanted = (list(csv.reader(io.StringIO(text))) for text in (content.decode(), to_csv(figure)))
        assert [row[:2] for row in found] == [row[:2] for row in wanted]
        for ours, theirs in zip(found[1:], wanted[1:], strict=True):
            for one, other in zip(ours[2:], theirs[2:], strict=True):
                assert one == other or float(one) == pytest.approx(float(other), rel=1e-5)
    media, content = download("svg")
    picture = content.decode()
    assert media == "image/svg+xml"
    assert "var(" not in picture
    assert "rgb(0, 114, 178)" in picture  # the light theme's blue, although the page is dark
    assert all(panel.title in picture for panel in scatter_figure().panels)
    (tmp_path / "picture.svg").write_bytes(content)
    media, content = download("png")
    assert media == "image/png"
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert browser.evaluate("document.documentElement.dataset.theme") == "dark"
    assert browser.errors == []
    browser.open(tmp_path / "picture.svg", width=1280)
    assert browser.evaluate("document.documentElement.nodeName") == "svg"
    assert browser.errors == []


def test_a_downloaded_picture_has_the_whole_legend(browser, tmp_path):
    names = [f"a series with quite a long name, number {k}" for k in range(6)]
    series = tuple(Series(name, (0.0, 1.0), (0.0, 1.0), colour=k) for k, name in enumerate(names))
    page = write_report([FigureData("some", "t", "q", (Panel("one", "x", "y", series),))], tmp_path, about={})
    browser.open(page, width=390, touch=True)
    _, content = browser.evaluate(DOWNLOAD % ("some", "svg"))
    (tmp_path / "picture.svg").write_bytes(base64.b64decode(content))
    browser.open(tmp_path / "picture.svg", width=1280)
    boxes = browser.evaluate("""[...document.querySelectorAll("svg > text")].map((text) => {
      const { x, y, width, height } = text.getBBox();
      return [text.textContent, x + width, y, y + height];
    })""")
    assert [box[0] for box in boxes] == [*names, "one"]
    assert all(upper[3] <= lower[2] for upper, lower in pairwise(boxes))
    assert all(box[1] <= browser.evaluate("document.documentElement.width.baseVal.value") for box in boxes)


def test_the_table_has_the_numbers_and_the_theme_can_be_chosen(browser, folder):
    browser.open(folder / "report.html", width=390)
    browser.evaluate("document.querySelector('#figure3 summary').click()")
    browser.evaluate("new Promise((done) => setTimeout(done, 0))")
    rows = browser.evaluate("[...document.querySelectorAll('#figure3 .scroll tr')].map(r => r.innerText)")
    series = categories_figure().panels[0].series[0]
    assert rows[0].split() == list(PROTOCOLS)
    assert rows[1].startswith(f"batch 64\t{series.y[0]:.4f} ({series.low[0]:.4f} to {series.high[0]:.4f})")
    assert browser.evaluate("document.documentElement.scrollWidth") == 390
    background = "getComputedStyle(document.body).backgroundColor"
    assert browser.evaluate(background) == "rgb(255, 255, 255)"
    browser.evaluate("document.getElementById('page-theme').click()")
    assert browser.evaluate(background) == "rgb(21, 24, 28)"
    browser.open(folder / "report.html", width=390)  # the choice is kept
    assert browser.evaluate("document.documentElement.dataset.theme") == "dark"
    browser.evaluate("localStorage.clear()")
    assert browser.errors == []
