"""PyTorch's own list of what an optimizer must take and refuse, as shipped inside torch, run against `RandomSGD`."""

import copy
import warnings

import pytest
import torch
from torch import nn

import heatbath as hb

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's test helpers warn while they are imported
    from torch.testing._internal import common_optimizers as contract

INFO = next(info for info in contract.optim_db if info.optim_cls is torch.optim.SGD)
INPUTS = INFO.optim_inputs_func(device="cpu")
LAWS = [hb.Constant(), hb.Uniform(1.0)]
IMPLEMENTATIONS = [{"foreach": False}, {"foreach": True}, {"fused": True}, {"capturable": True}]


def make_problem(dtype=torch.float64):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 4), nn.Sigmoid(), nn.Linear(4, 1), nn.Sigmoid()).to(dtype)
    return model, torch.ones(6, 10, dtype=dtype), torch.rand(6, 1, dtype=dtype)


def make_closure(model, x, y, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        return loss

    return closure


@pytest.mark.parametrize("options", INPUTS, ids=lambda options: options.desc)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[1:], ids=str)
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_implementations_match_the_for_loop_in_weights_and_state(options, implementation, law):
    runs = []
    for flags in (IMPLEMENTATIONS[0], implementation):
        model, x, y = make_problem()
        optimizer = hb.RandomSGD(model.parameters(), **copy.deepcopy(options.kwargs), law=law, **flags)
        for _ in range(7):
            optimizer.step(make_closure(model, x, y, optimizer))
        velocities = [optimizer.velocity(p) for p in model.parameters()]
        states = [] if flags.get("capturable") else [optimizer.state[p] for p in model.parameters()]
        runs.append((list(model.parameters()), velocities, states))
    # A float32 tensor rate times the multiplier is rounded as a float32.
    tolerance = 1e-7 if "lr" in options.kwargs and isinstance(options.kwargs["lr"], torch.Tensor) else 1e-12
    for ours, theirs in zip(runs[0][:2], runs[1][:2], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            if a is not None:
                torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    for a, b in zip(runs[0][2], runs[1][2], strict=False):
        assert a.keys() == b.keys()
        for key in a:
            torch.testing.assert_close(torch.as_tensor(a[key]), torch.as_tensor(b[key]), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("schedulers", INFO.scheduler_inputs, ids=range(len(INFO.scheduler_inputs)))
@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=str)
def test_goes_in_the_right_direction_under_its_schedulers(schedulers, law, implementation):
    weight, bias = nn.Parameter(torch.randn(10, 5)), nn.Parameter(torch.randn(10))
    inputs = torch.randn(5)
    optimizer = hb.RandomSGD([{"params": [weight]}, {"params": [bias], "lr": 2e-3}], 1e-3, law=law, **implementation)
    chain = [build(optimizer) for build in schedulers]

    def closure():
        optimizer.zero_grad()
        loss = (weight.mv(inputs) + bias).pow(2).sum()
        loss.backward()
        return loss

    first = closure().item()
    for _ in range(20):
        loss = optimizer.step(closure)
        for scheduler in chain:
            scheduler.step(
                *([loss.item()] if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else [])
            )
    assert closure().item() < first


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", INFO.optim_error_inputs_func(device="cpu", dtype=torch.float32))
def test_refuses_what_torch_refuses(case):
    options = case.optimizer_error_input
    params = options.params if options.params is not None else [nn.Parameter(torch.randn(2))]
    if issubclass(case.error_type, Warning):
        with pytest.warns(case.error_type, match=case.error_regex):
            hb.RandomSGD(params, **options.kwargs)
    else:
        with pytest.raises(case.error_type, match=case.error_regex):
            hb.RandomSGD(params, **options.kwargs)


@pytest.mark.parametrize("options", INPUTS, ids=lambda options: options.desc)
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_loads_a_state_that_knows_no_newer_flags(options, law):
    model, x, y = make_problem()
    optimizer = hb.RandomSGD(model.parameters(), **copy.deepcopy(options.kwargs), law=law)
    optimizer.step(make_closure(model, x, y, optimizer))
    old = copy.deepcopy(optimizer.state_dict())
    for group in old["param_groups"]:
        for flag in INFO.not_og_supported_flags:
            group.pop(flag, None)
    optimizer.load_state_dict(old)
    optimizer.step(make_closure(model, x, y, optimizer))
    assert optimizer.state_dict()["param_groups"][0]["step"] == 2


@pytest.mark.parametrize("options", INPUTS, ids=lambda options: options.desc)
def test_state_dict_hooks_and_equality_after_a_round_trip(options):
    model, x, y = make_problem()
    optimizer = hb.RandomSGD(model.parameters(), **copy.deepcopy(options.kwargs))
    for _ in range(3):
        optimizer.step(make_closure(model, x, y, optimizer))
    calls = []
    optimizer.register_state_dict_pre_hook(lambda o: calls.append("before saving"))
    optimizer.register_state_dict_post_hook(lambda o, state: calls.append("after saving"))
    optimizer.register_load_state_dict_pre_hook(lambda o, state: calls.append("before loading"))
    optimizer.register_load_state_dict_post_hook(lambda o: calls.append("after loading"))
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(state)
    assert calls == ["before saving", "after saving", "before loading", "after loading"]
    again = optimizer.state_dict()
    assert again["param_groups"] == state["param_groups"]
    assert again["state"].keys() == state["state"].keys()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=str)
@pytest.mark.parametrize("options", INPUTS, ids=lambda options: options.desc)
def test_a_parameter_has_a_state_only_if_something_is_in_it(options, implementation):
    """As with `torch.optim.SGD`: without momentum there is nothing to keep, and no empty entry either."""
    model, x, y = make_problem()
    optimizer = hb.RandomSGD(model.parameters(), **copy.deepcopy(options.kwargs), **implementation)
    optimizer.step(make_closure(model, x, y, optimizer))
    has_momentum = "momentum" in options.kwargs
    assert [list(optimizer.state[p]) for p in optimizer.state] == [["momentum_buffer"]] * (4 if has_momentum else 0)
    assert optimizer.state_dict()["state"].keys() == (set(range(4)) if has_momentum else set())


def test_parameters_may_be_named():
    model, x, y = make_problem()
    optimizer = hb.RandomSGD(model.named_parameters(), 0.1)
    optimizer.step(make_closure(model, x, y, optimizer))
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == [name for name, _ in model.named_parameters()]


def test_a_step_without_gradients_moves_nothing():
    for implementation in IMPLEMENTATIONS:
        parameters = [nn.Parameter(torch.ones(2, 3))]
        optimizer = hb.RandomSGD(parameters, 0.1, momentum=0.9, nesterov=True, **implementation)
        optimizer.step()
        assert torch.equal(parameters[0], torch.ones(2, 3))
