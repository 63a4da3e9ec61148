"""The settings of the optimizer and of its groups: their own, shared, added later, changed, and wrong."""

import numpy as np
import pytest
import torch

import heatbath as hb
from optimizer_walks import IMPLEMENTATIONS, kind_for, make_gradients, make_parameters, saved, walk
from oracles import random_sgd_path


def test_groups_have_their_own_settings_and_equal_seeds_share_draws():
    a, b, c = make_parameters(((2,), (3,), (4,)))
    optimizer = hb.RandomSGD(
        [
            {"params": [a]},
            {"params": [b], "lr": 0.5, "seed": 9, "law": "twopoint:0.5", "coupling": "update"},
            {"params": [c], "momentum": 0.9},
        ],
        lr=0.1,
        seed=2,
    )
    gradients = make_gradients([a, b, c], 5)
    starts = [p.detach().numpy().copy() for p in (a, b, c)]
    walk(optimizer, [a, b, c], gradients)
    rates = [group["multiplier"] for group in optimizer.param_groups]
    assert rates[0] == rates[2] == hb.draw(hb.Uniform(1.0), 2, 4, 1)[0]
    assert rates[1] == hb.draw(hb.TwoPoint(0.5), 9, 4, 1)[0]
    settings = [
        {"lr": 0.1, "coupling": "gradient"},
        {"lr": 0.5, "coupling": "update"},
        {"lr": 0.1, "coupling": "gradient", "momentum": 0.9},
    ]
    for i, p in enumerate((a, b, c)):
        law, seed = (hb.TwoPoint(0.5), 9) if i == 1 else (hb.Uniform(1.0), 2)
        path, _ = random_sgd_path(
            starts[i], lambda k, x, i=i: gradients[k][i].numpy(), hb.draw(law, seed, 0, 5), **settings[i]
        )
        np.testing.assert_allclose(p.detach().numpy(), path[-1], rtol=1e-13)


def test_add_param_group_joins_the_draws_where_the_others_are():
    a, b = make_parameters(((2,), (3,)))
    optimizer = hb.RandomSGD([a], 0.1, seed=2)
    walk(optimizer, [a], make_gradients([a], 3))
    optimizer.add_param_group({"params": [b], "seed": 5})
    walk(optimizer, [a, b], make_gradients([a, b], 2))
    assert [group["multiplier"] for group in optimizer.param_groups] == [
        hb.draw(hb.Uniform(1.0), 2, 4, 1)[0],
        hb.draw(hb.Uniform(1.0), 5, 4, 1)[0],
    ]


@pytest.mark.parametrize("capturable", [False, True])
def test_an_empty_group_does_no_harm(capturable):
    ends = []
    for rest in ([], [{"params": []}]):
        parameters = make_parameters()
        optimizer = hb.RandomSGD([{"params": parameters}, *rest], 0.1, momentum=0.9, capturable=capturable)
        walk(optimizer, parameters, make_gradients(parameters, 2))
        ends.append(parameters)
    assert all(map(torch.equal, *ends))


def test_law_and_seed_may_be_changed_in_the_group():
    parameters = make_parameters()
    optimizer = hb.RandomSGD(parameters, 0.1, seed=2)
    gradients = make_gradients(parameters, 4)
    walk(optimizer, parameters, gradients[:2])
    optimizer.param_groups[0].update(law=hb.TwoPoint(0.5), seed=6)
    walk(optimizer, parameters, gradients[2:3])
    assert optimizer.param_groups[0]["multiplier"] == hb.draw(hb.TwoPoint(0.5), 6, 2, 1)[0]
    optimizer.param_groups[0]["law"] = "uniform:7"
    with pytest.raises(ValueError, match="delta"):
        walk(optimizer, parameters, gradients[3:])


def test_a_law_written_into_the_group_in_words_is_that_law_for_a_state():
    optimizer = hb.RandomSGD(make_parameters(), 0.1, law="uniform:0.5")
    state = saved(optimizer)
    optimizer.param_groups[0]["law"] = "uniform:0.5"
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["law"] == hb.Uniform(0.5)
    optimizer.param_groups[0]["law"] = "uniform:0.25"
    with pytest.raises(ValueError, match=r"in param_groups\[0\], this optimizer has law='uniform:0.25'"):
        optimizer.load_state_dict(state)


def test_a_coupling_changed_to_nonsense_is_refused_at_the_step():
    parameters = make_parameters()
    optimizer = hb.RandomSGD(parameters, 0.1)
    optimizer.param_groups[0]["coupling"] = "both"
    with pytest.raises(ValueError, match="both"):
        walk(optimizer, parameters, make_gradients(parameters, 1))


def test_numbers_of_numpy_and_one_element_rates_are_taken():
    parameters = make_parameters()
    optimizer = hb.RandomSGD(parameters, np.float32(0.1), momentum=np.int64(0), seed=np.int64(5), law=hb.Uniform(1))
    walk(optimizer, parameters, make_gradients(parameters, 2))
    assert saved(optimizer)["param_groups"][0]["seed"] == 5
    for flags in IMPLEMENTATIONS.values():
        parameters = make_parameters(kind=kind_for(flags))
        optimizer = hb.RandomSGD(parameters, torch.tensor([0.1]), momentum=0.9, **flags)
        walk(optimizer, parameters, make_gradients(parameters, 2))


BAD_SETTINGS = [
    ({"lr": -0.1}, ValueError, ["learning rate", "-0.1", ">= 0"]),
    ({"lr": float("nan")}, ValueError, ["learning rate", "nan"]),
    ({"lr": float("inf")}, ValueError, ["lr", "inf"]),
    ({"lr": "fast"}, TypeError, ["lr", "'fast'"]),
    ({"lr": torch.tensor([0.1, 0.2])}, ValueError, ["lr", "1-element"]),
    ({"momentum": -0.5}, ValueError, ["momentum", "-0.5"]),
    ({"momentum": 1.5}, ValueError, ["momentum", "1.5", "below 1"]),
    ({"dampening": float("nan")}, ValueError, ["dampening", "nan"]),
    ({"weight_decay": -1.0}, ValueError, ["weight_decay", "-1"]),
    ({"law": "gauss"}, ValueError, ["gauss", "uniform"]),
    ({"law": 3.0}, TypeError, ["law", "3.0"]),
    ({"coupling": "both"}, ValueError, ["coupling", "both", "gradient", "update"]),
    ({"seed": -1}, ValueError, ["seed", "-1"]),
    ({"seed": 0.5}, TypeError, ["seed", "0.5"]),
    ({"nesterov": True}, ValueError, ["Nesterov", "momentum"]),
    ({"nesterov": True, "momentum": 0.9, "dampening": 0.1}, ValueError, ["Nesterov", "dampening=0.1"]),
    ({"fused": True, "foreach": True}, RuntimeError, ["fused", "foreach"]),
    ({"fused": True, "differentiable": True}, RuntimeError, ["fused", "differentiable"]),
    ({"capturable": True, "differentiable": True}, RuntimeError, ["capturable", "differentiable"]),
]


@pytest.mark.parametrize(("settings", "error", "words"), BAD_SETTINGS, ids=lambda value: str(value)[:40])
def test_bad_settings_are_named_for_the_optimizer_and_for_a_group(settings, error, words):
    parameters = make_parameters(((2,), (3,)))
    with pytest.raises(error) as caught:
        hb.RandomSGD(parameters, **{"lr": 0.1, **settings})
    assert all(word in str(caught.value) for word in words)
    optimizer = hb.RandomSGD(parameters[:1], 0.1)
    with pytest.raises(error) as caught:
        optimizer.add_param_group({"params": parameters[1:], **settings})
    assert all(word in str(caught.value) for word in words)
    assert len(optimizer.param_groups) == 1


def test_bad_parameters():
    with pytest.raises(ValueError, match="empty parameter list"):
        hb.RandomSGD([], 0.1)
    with pytest.raises(TypeError, match="iterable of Tensors"):
        hb.RandomSGD(torch.zeros(3, requires_grad=True), 0.1)


def test_optimizers_from_the_same_dictionaries_count_for_themselves():
    parameters = make_parameters()
    groups = [{"params": [p]} for p in parameters]
    first = hb.RandomSGD(groups, 0.1)
    walk(first, parameters, make_gradients(parameters, 3))
    second = hb.RandomSGD(groups, 0.2, seed=5)
    assert [group["step"] for group in first.param_groups] == [3] * len(groups)
    assert [group["step"] for group in second.param_groups] == [0] * len(groups)
    assert {group["lr"] for group in first.param_groups} == {0.1}
    assert all(set(group) == {"params"} for group in groups)
