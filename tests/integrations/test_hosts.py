"""The optimizers inside real frameworks: one contract for all."""

import pytest
import torch
from hosts import HOSTS, train_plainly

import heatbath as hb

SETTINGS = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-2}


def sgd(parameters):
    return torch.optim.SGD(parameters, **SETTINGS), None


def constant(parameters):
    return hb.RandomSGD(parameters, **SETTINGS, law="constant"), None


def random_sgd(parameters):
    return hb.RandomSGD(parameters, **SETTINGS, law="uniform:1", seed=3), None


def random_sgd_with_update(parameters):
    return hb.RandomSGD(parameters, **SETTINGS, law="lognormal:0.5", coupling="update", seed=3), None


def randomized_adamw(parameters):
    optimizer = torch.optim.AdamW(parameters, 1e-2)
    hb.randomize(optimizer, "uniform:1", seed=3)
    return optimizer, None


def randomized_gradients(parameters):
    optimizer = torch.optim.SGD(parameters, **SETTINGS)
    hb.randomize(optimizer, "uniform:1", coupling="gradient", seed=3)
    return optimizer, None


def random_lr(parameters):
    optimizer = torch.optim.AdamW(parameters, 1e-2)
    return optimizer, hb.RandomLR(optimizer, "uniform:1", seed=3)


OURS = [random_sgd, random_sgd_with_update, randomized_adamw, randomized_gradients, random_lr]


@pytest.fixture(params=HOSTS)
def host(request):
    return HOSTS[request.param]


def test_a_constant_law_is_sgd_bit_for_bit(host, tmp_path):
    expected = train_plainly(sgd, tmp_path)
    assert torch.equal(host(constant, tmp_path), expected)
    assert torch.equal(host(sgd, tmp_path), expected)


@pytest.mark.parametrize("build", OURS, ids=lambda build: build.__name__)
def test_a_resumed_run_ends_where_a_plain_loop_does(host, build, tmp_path):
    expected = train_plainly(build, tmp_path)
    assert not torch.allclose(expected, train_plainly(sgd, tmp_path))
    assert torch.equal(host(build, tmp_path, stops=True), expected)
