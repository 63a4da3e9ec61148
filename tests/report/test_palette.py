"""The colours of series: apart for readers with any colour vision, seen on their ground, the same in all pictures."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

import heatbath
from heatbath.report.plots.style import COLOURS

CSS = (Path(heatbath.__file__).parent / "report" / "assets" / "page.css").read_text()
# How linear red, green and blue are seen with one kind of cone missing (Machado, Oliveira and Fernandes 2009).
VISIONS = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
# From linear light to Oklab (Ottosson 2020), in which equal distances look about equally large.
TO_CONES = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
TO_CONES = np.array([*TO_CONES, [0.0883024619, 0.2817188376, 0.6299787005]])
TO_LAB = [[0.2104542553, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099]]
TO_LAB = np.array([*TO_LAB, [0.0259040371, 0.7827717662, -0.808675766]])
APART = 0.09  # black and white are 1 apart


def variables(theme):
    block = CSS.partition(f':root[data-theme="{theme}"] {{' if theme == "dark" else ":root {")[2].partition("}")[0]
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block))


def palette(theme):
    found = variables(theme)
    return [found[f"s{k}"] for k in range(10)]


def linear(colour):
    values = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255.0
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def seen(colour, vision):
    return TO_LAB @ np.cbrt(TO_CONES @ np.clip(VISIONS[vision] @ linear(colour), 0.0, 1.0))


def contrast(one, other):
    """That of the Web Content Accessibility Guidelines, from 1 to 21."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) + 0.05 for colour in (one, other))
    return high / low


def test_the_measure_knows_what_is_known():
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert seen("#ffffff", "all cones") == pytest.approx([1.0, 0.0, 0.0], abs=1e-6)
    red, green = "#d00000", "#408000"
    apart = {vision: np.linalg.norm(seen(red, vision) - seen(green, vision)) for vision in VISIONS}
    assert apart["deuteranopia"] < 0.5 * apart["all cones"]
    assert apart["tritanopia"] > 0.8 * apart["all cones"]


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_any_two_colours_differ(theme, vision):
    close = {
        (one, other): distance
        for (one, a), (other, b) in combinations(enumerate(palette(theme)), 2)
        if (distance := np.linalg.norm(seen(a, vision) - seen(b, vision))) < APART
    }
    assert close == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_colour_stands_out_from_the_page(theme):
    """At least 3, which the guidelines ask of what is no text."""
    ground = variables(theme)["page"]
    assert {colour: contrast(colour, ground) for colour in palette(theme) if contrast(colour, ground) < 3.0} == {}


def test_printed_figures_have_the_colours_of_the_page():
    assert list(COLOURS) == palette("light")
