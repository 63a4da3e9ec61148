"""Dropout draws from the run's seed, the step and the place, everywhere that torch drops."""

import math
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional

from heatbath.draws import Stream, orbits, random_bits
from heatbath.tasks.dropout import SeededDropout, bits_reach, dropout_orbits


def orbit_of(seed):
    def orbit(call):
        key, gamma = orbits([seed], Stream.DROPOUT.at(call))
        return int(key[0]), int(gamma[0])

    return orbit


def drop(function, seed=0, step=0):
    with SeededDropout(orbit_of(seed), step):
        return function()


ONES = torch.ones(64, 16, 5, 5)


@pytest.mark.parametrize(
    ("function", "size", "p"),
    [
        (lambda: functional.dropout(ONES, 0.3), ONES.numel(), 0.3),
        (lambda: nn.Dropout(0.7)(ONES), ONES.numel(), 0.7),
        (lambda: functional.dropout2d(ONES, 0.3), 64 * 16, 0.3),
        (lambda: nn.Dropout3d(0.4)(ONES[..., None]), 64 * 16, 0.4),
        (lambda: nn.Dropout1d(0.4)(ONES[..., 0]), 64 * 16, 0.4),
    ],
    ids=range(5),
)
def test_masks_are_fair_and_of_their_place(function, size, p):
    first, again = drop(function), drop(function)
    assert torch.equal(first, again)
    rate = float((first == 0).double().mean())
    assert abs(rate - p) < 4 * math.sqrt(p * (1 - p) / size)
    assert first.max() == pytest.approx(1 / (1 - p))
    assert not torch.equal(first, drop(function, seed=1))
    assert not torch.equal(first, drop(function, step=1))
    both = drop(lambda: (function(), function()))
    assert torch.equal(both[0], first)
    assert not torch.equal(both[1], first)
    channels = (first == 0).flatten(2)
    if size == 64 * 16:
        assert torch.equal(channels.all(2), channels.any(2)), "whole channels"


def test_alpha_dropout_keeps_mean_and_variance():
    values = torch.randn(200, 500, generator=torch.Generator().manual_seed(0))
    for function in (functional.alpha_dropout, functional.feature_alpha_dropout):
        found = drop(lambda function=function: function(values, 0.3, training=True))
        assert abs(found.mean()) < 5 / math.sqrt(found.numel())
        assert abs(found.var() - 1) < 0.03


def test_nothing_is_dropped_in_evaluation():
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout2d(0.5), nn.AlphaDropout(0.5), nn.FeatureAlphaDropout(0.5)).eval()
    assert torch.equal(drop(lambda: model(ONES)), ONES)
    assert torch.equal(drop(lambda: functional.dropout(ONES, 0.0)), ONES)
    assert not drop(lambda: functional.dropout(ONES, 1.0)).any()


@pytest.mark.parametrize("mask", [None, "boolean", "additive", "causal"])
def test_attention_is_that_of_torch_with_its_weights_dropped(mask):
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 4, 6, 8, generator=generator) for _ in range(3))
    allowed = torch.ones(6, 6, dtype=torch.bool).tril()
    options = {
        None: {},
        "boolean": {"attn_mask": allowed},
        "additive": {"attn_mask": torch.zeros(6, 6).masked_fill(~allowed, -math.inf)},
        "causal": {"is_causal": True},
    }[mask]
    attend = functional.scaled_dot_product_attention
    plain = attend(query, key, value, **options)
    small = drop(lambda: functional.scaled_dot_product_attention(query, key, value, dropout_p=1e-9, **options))
    torch.testing.assert_close(small, plain)
    assert torch.equal(drop(lambda: functional.scaled_dot_product_attention(query, key, value, **options)), plain)
    identity = torch.eye(6).expand(2, 4, 6, 6)
    weights = attend(query, key, identity, **options)
    dropped = drop(lambda: functional.scaled_dot_product_attention(query, key, identity, dropout_p=0.4, **options))
    kept = dropped != 0
    torch.testing.assert_close(dropped, torch.where(kept, weights / 0.6, 0.0))
    assert 0 < (kept & (weights > 0)).sum() < (weights > 0).sum()
    shared = drop(
        lambda: functional.scaled_dot_product_attention(
            query, key[:, :2], value[:, :2], dropout_p=1e-9, enable_gqa=True
        )
    )
    torch.testing.assert_close(shared, attend(query, key[:, :2], value[:, :2], enable_gqa=True))


@pytest.mark.parametrize("weights", [True, False])
def test_multihead_attention_and_the_encoder_draw_from_it(weights):
    attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    x = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0))
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.2, batch_first=True)
    before = torch.get_rng_state()
    first, again, other = (drop(lambda: attention(x, x, x, need_weights=weights)[0], step=k) for k in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(drop(lambda: layer(x)), drop(lambda: layer(x)))
    assert torch.equal(before, torch.get_rng_state()), "no global random state"


def test_torch_is_put_back_and_other_threads_are_left_alone():
    original = functional.dropout
    found = []
    with SeededDropout(orbit_of(0), 0) as context:
        thread = threading.Thread(target=lambda: found.append(functional.dropout(ONES, 0.5)))
        thread.start()
        thread.join()
        assert context.calls == 0
    assert functional.dropout is original
    assert 0 < (found[0] == 0).double().mean() < 1
    with pytest.raises(RuntimeError, match="inside"), SeededDropout(orbit_of(0), 0):
        raise RuntimeError("inside")
    assert functional.dropout is original


def test_orbits_are_those_of_the_streams():
    starts, increments = dropout_orbits([3, 8], 2)
    assert starts.shape == increments.shape == (2, 2)
    for row, seed in enumerate((3, 8)):
        for call in range(2):
            assert (int(starts[row, call]), int(increments[row, call])) == orbit_of(seed)(call)
    assert dropout_orbits([3, 8], 0)[0].shape == (2, 0)


@pytest.mark.parametrize("count", [1, 2**14, 2**14 + 1, 50_000])
@pytest.mark.parametrize("least", [0, 1, 2**51, 2**52 - 1, 2**52])
def test_pieces_in_the_cache_have_the_bits_of_all_at_once(count, least):
    for seed, first in ((0, 0), (7, 2**36 * 12_345), (2**64 - 1, 2**62 - count)):
        key, gamma = orbit_of(seed)(3)
        expected = random_bits(key, gamma, torch.arange(count) + first) >= least
        assert torch.equal(torch.from_numpy(bits_reach(least, key, gamma, first, count)), expected)
