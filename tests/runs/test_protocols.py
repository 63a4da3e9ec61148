"""Protocols print, parse, and give the multipliers of the schedulers and draws that they stand for."""

import math

import numpy as np
import pytest
import torch

import heatbath as hb
from heatbath.runs.protocols import Protocol, parse_protocol


@pytest.mark.parametrize("text", ["constant", "random", "cyclic:6", "cyclic:1.5", "cyclic:30"])
def test_protocols_print_what_they_parse(text):
    protocol = parse_protocol(text)
    assert str(protocol) == text
    assert parse_protocol(protocol) is protocol
    assert parse_protocol(f"  {text.upper()} ") == protocol
    assert hash(parse_protocol(text)) == hash(protocol)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cyclic", "needs a period"),
        ("cyclic:0", "period must be a finite number with period > 0"),
        ("cyclic:-3", "period must be a finite number with period > 0"),
        ("cyclic:inf", "period must be a finite number with period > 0"),
        ("cyclic:nan", "period must be a finite number with period > 0"),
        ("cyclic:often", "is not a number of epochs"),
        ("constant:3", "protocol constant: it has no period"),
        ("warm", "choose constant, random or cyclic:P"),
    ],
)
def test_what_is_no_protocol_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_protocol(text)


@pytest.mark.parametrize("value", [None, 3, ["random"]], ids=repr)
def test_what_is_no_text_is_refused(value):
    with pytest.raises(TypeError, match="protocol must be"):
        parse_protocol(value)
    with pytest.raises(TypeError, match="period must be a finite number"):
        Protocol("cyclic", True)


def test_a_period_may_be_a_number_of_numpy():
    for period in (np.int64(30), np.float32(30.0)):
        assert str(Protocol("cyclic", period)) == "cyclic:30"


def test_random_takes_the_draws_of_the_optimizer():
    law = hb.LogNormal(0.4)
    found = [Protocol("random").multipliers(law, 7, epoch, 13) for epoch in range(3)]
    np.testing.assert_array_equal(np.concatenate(found), hb.draw(law, 7, 0, 39))


def test_cyclic_is_the_schedulers_and_has_mean_one():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    scheduler = hb.CosineCycleLR(optimizer, 4)
    rates = []
    for epoch in range(16):
        rates.append(optimizer.param_groups[0]["lr"])
        multipliers = Protocol("cyclic", 4).multipliers(hb.Constant(), 0, epoch, 5)
        assert multipliers.tolist() == pytest.approx([rates[-1] / 0.3] * 5, abs=1e-12)
        optimizer.step()
        scheduler.step()
    assert np.mean(rates) == pytest.approx(0.3)


@pytest.mark.parametrize(("period", "last"), [(6, 1.87), (18, 1.98), (30, 1.99)])
def test_the_paper_s_cycles_repeat_after_twice_their_period_and_end_at_the_top(period, last):
    found = [Protocol("cyclic", period).multipliers(hb.Constant(), 0, epoch, 1)[0] for epoch in range(180)]
    shortest = next(k for k in range(1, 180) if np.allclose(found[k:], found[:-k]))
    assert shortest == 2 * period
    assert np.mean(found) == pytest.approx(1.0)
    assert found[-1] == pytest.approx(last, abs=0.005)


def test_long_periods_are_twice_the_rate_and_short_ones_the_arcsine_law():
    def rates(period, epochs):
        return np.array([Protocol("cyclic", period).multipliers(hb.Constant(), 0, k, 1)[0] for k in range(epochs)])

    np.testing.assert_allclose(rates(1e6, 180), 2.0, rtol=1e-6)
    found = np.sort(rates(1e-3 * math.sqrt(2.0), 4000))
    quantiles = (np.arange(4000) + 0.5) / 4000
    assert found.var() == pytest.approx(0.5, abs=1e-3)
    assert np.abs(found - hb.Arcsine(1.0).quantile(quantiles)).max() < 0.01
    assert np.abs(found - hb.Uniform(1.0).quantile(quantiles)).max() > 0.15


def test_constant_is_one():
    assert Protocol().multipliers(hb.Uniform(1.0), 3, 2, 4).tolist() == [1.0] * 4
