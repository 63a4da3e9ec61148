"""The step of `RandomSGD` against an obvious reference and against `torch.optim.SGD`, and how it mixes with torch."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import heatbath as hb
from optimizer_walks import IMPLEMENTATIONS, RULES, flat, kind_for, make_gradients, make_parameters, walk
from oracles import random_sgd_path

LAWS = [hb.Uniform(1.0), hb.Uniform(0.4), hb.TwoPoint(1.0), hb.LogNormal(0.8), hb.Exponential()]
STEPS = 60


@pytest.mark.parametrize("coupling", ["gradient", "update"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("rule", RULES)
def test_equals_the_obvious_reference(rule, implementation, coupling):
    for law in LAWS:
        parameters = make_parameters(kind=kind_for(IMPLEMENTATIONS[implementation]))
        gradients = make_gradients(parameters, STEPS)
        starts = [p.detach().numpy().copy() for p in parameters]
        settings = dict(RULES[rule])
        optimizer = hb.RandomSGD(
            parameters, 0.05, law=law, coupling=coupling, seed=4, **settings, **IMPLEMENTATIONS[implementation]
        )
        walk(optimizer, parameters, gradients)

        settings["sign"] = -1.0 if settings.pop("maximize", False) else 1.0
        for i, p in enumerate(parameters):
            positions, velocities = random_sgd_path(
                starts[i],
                lambda k, x, i=i, gradients=gradients: gradients[k][i].numpy(),
                hb.draw(law, 4, 0, STEPS),
                lr=0.05,
                coupling=coupling,
                **settings,
            )
            np.testing.assert_allclose(p.detach().numpy(), positions[-1], rtol=1e-12, atol=1e-13)
            if "momentum" in settings:
                np.testing.assert_allclose(optimizer.velocity(p), velocities[-1], rtol=1e-12, atol=1e-13)


SHARED_FLAGS = [{}, {"foreach": False}, {"foreach": True}, {"fused": True}, {"differentiable": True}]
SHARED_CASES = [
    pytest.param(flags, dtype, id=f"{flags}-{dtype}")
    for flags in SHARED_FLAGS
    for dtype in (torch.float16, torch.float32, torch.float64, torch.complex64)
    if not (flags.get("fused") and dtype.is_complex)  # torch's fused kernel takes no complex parameters
]


@pytest.mark.parametrize(("flags", "dtype"), SHARED_CASES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("lr", [0.05, torch.tensor(0.05)], ids=["float", "tensor"])
def test_constant_is_torch_sgd_bit_for_bit(rule, flags, lr, dtype):
    ours, theirs = (make_parameters(dtype=dtype, kind=kind_for(flags)) for _ in range(2))
    gradients = make_gradients(ours, 12)
    for coupling in ("gradient", "update"):
        for kind, parameters in ((hb.RandomSGD, ours), (torch.optim.SGD, theirs)):
            more = {"law": hb.Constant(), "coupling": coupling, "seed": 3} if kind is hb.RandomSGD else {}
            copied_lr = lr.clone() if isinstance(lr, torch.Tensor) else lr
            optimizer = kind(parameters, copied_lr, **RULES[rule], **flags, **more)
            walk(optimizer, parameters, gradients)
            buffers = [optimizer.state[p].get("momentum_buffer") for p in parameters]
            if kind is hb.RandomSGD:
                kept = buffers
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        assert all(a is b or torch.equal(a, b) for a, b in zip(kept, buffers, strict=True))
        assert optimizer.param_groups[0]["lr"] == 0.05


def test_couplings_agree_without_momentum_and_differ_with_it():
    def final(coupling, momentum):
        parameters = make_parameters()
        optimizer = hb.RandomSGD(parameters, 0.1, coupling=coupling, momentum=momentum, seed=1)
        walk(optimizer, parameters, make_gradients(parameters, 10))
        return flat(parameters)

    torch.testing.assert_close(final("gradient", 0.0), final("update", 0.0), rtol=1e-14, atol=1e-14)
    assert (final("gradient", 0.9) - final("update", 0.9)).abs().max() > 1e-3


def test_rate_is_the_draw_and_lr_is_left_alone():
    parameters = make_parameters()
    optimizer = hb.RandomSGD(parameters, 0.1, law=hb.LogNormal(0.5), seed=12)
    group = optimizer.param_groups[0]
    assert group["multiplier"] == 1.0
    seen = []
    for row in make_gradients(parameters, 8):
        walk(optimizer, parameters, [row])
        seen.append(group["multiplier"])
        assert group["lr"] == 0.1
    assert seen == hb.draw(hb.LogNormal(0.5), 12, 0, 8).tolist()


@pytest.mark.parametrize("implementation", ["for-loop", "foreach", "fused", "capturable", "capturable fused"])
@pytest.mark.parametrize(("nesterov", "dampening"), [(False, 0.0), (False, 0.3), (True, 0.0)])
def test_parameters_that_sit_out_or_join_late(implementation, nesterov, dampening):
    """A parameter without a gradient keeps its velocity untouched; one that joins late starts from none."""
    parameters = make_parameters(((2,), (3,), (4,)))
    gradients = make_gradients(parameters, 30)
    for k in range(30):
        if k < 4:
            gradients[k][1] = None
        if k in (6, 7, 15):
            gradients[k][2] = None
    law = hb.Uniform(1.0)
    starts = [p.detach().numpy().copy() for p in parameters]
    settings = {"momentum": 0.9, "nesterov": nesterov, "dampening": dampening}
    optimizer = hb.RandomSGD(parameters, 0.05, law=law, seed=3, **settings, **IMPLEMENTATIONS[implementation])
    walk(optimizer, parameters, gradients)
    alphas = hb.draw(law, 3, 0, 30)
    for i, p in enumerate(parameters):
        present = [k for k in range(30) if gradients[k][i] is not None]
        path, velocities = random_sgd_path(
            starts[i],
            lambda k, x, i=i, present=present: gradients[present[k]][i].numpy(),
            alphas[present],
            lr=0.05,
            coupling="gradient",
            **settings,
        )
        np.testing.assert_allclose(p.detach().numpy(), path[-1], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(optimizer.velocity(p), velocities[-1], rtol=1e-12, atol=1e-14)
        assert set(optimizer.state[p]) == {"momentum_buffer"}


def test_the_unit_of_the_velocities_is_the_same_whichever_part_of_the_group_a_rank_holds():
    """FSDP1 and ZeRO shard the velocities, and save the group as one of the ranks has it."""
    first, late = make_parameters(((2,), (3,)))
    parts = [[first, late], [first], [late], make_parameters(((0,),))]
    ranks = [hb.RandomSGD(part, 0.05, momentum=0.9, nesterov=True, law=hb.Uniform(1.0), seed=3) for part in parts]
    units = []
    for k, (gradient, other) in enumerate(make_gradients([first, late], 30)):
        first.grad, late.grad = gradient, other if k > 4 else None
        for rank in ranks:
            rank.step()
        units.append({rank.param_groups[0]["buffer_scale"] for rank in ranks})
    assert all(len(unit) == 1 for unit in units)
    assert len(set.union(*units)) > 20  # it does move


def test_closure_is_called_once_before_the_draw():
    parameter = nn.Parameter(torch.tensor([2.0]))
    optimizer = hb.RandomSGD([parameter], 0.1, seed=6)
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = (parameter**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4.0
    assert calls == [True]
    alpha = hb.draw(hb.Uniform(1.0), 6, 0, 1)[0]
    assert parameter.item() == pytest.approx(2.0 - 0.1 * alpha * 4.0, rel=1e-6)

    def broken():
        raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="no data"):
        optimizer.step(broken)
    assert optimizer.state_dict()["param_groups"][0]["step"] == 1


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sparse_gradients(momentum):
    dense, sparse = nn.Parameter(torch.ones(5, 3)), nn.Parameter(torch.ones(5, 3))
    optimizers = [hb.RandomSGD([p], 0.1, momentum=momentum, seed=1) for p in (dense, sparse)]
    for k in range(6):
        values = torch.randn(2, 3, generator=torch.Generator().manual_seed(k))
        gradient = torch.sparse_coo_tensor(torch.tensor([[0, 3]]), values, (5, 3), check_invariants=True)
        sparse.grad, dense.grad = gradient, gradient.to_dense()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(sparse, dense)


def test_sparse_gradients_are_refused_where_they_cannot_work():
    parameter = nn.Parameter(torch.ones(5, 3))
    parameter.grad = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1, 3), (5, 3), check_invariants=True)
    with pytest.raises(RuntimeError, match="sparse"):
        hb.RandomSGD([parameter], 0.1, capturable=True).step()
    with pytest.raises(RuntimeError, match="sparse"):
        hb.RandomSGD([parameter], 0.1, fused=True).step()


def test_complex_parameters_move_as_their_real_and_imaginary_parts():
    numbers = make_parameters(((4,),), dtype=torch.complex128)
    pairs = [nn.Parameter(torch.view_as_real(numbers[0].detach()).clone())]
    gradients = make_gradients(numbers, 10)
    settings = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "seed": 3}
    walk(hb.RandomSGD(numbers, 0.1, **settings), numbers, gradients)
    walk(hb.RandomSGD(pairs, 0.1, **settings), pairs, [[torch.view_as_real(row[0])] for row in gradients])
    torch.testing.assert_close(torch.view_as_real(numbers[0]), pairs[0], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("law", [hb.Uniform(0.9), hb.TwoPoint(1.0)], ids=str)
@pytest.mark.parametrize("coupling", ["gradient", "update"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_differentiable_step_carries_gradients_to_everything_it_uses(law, coupling, nesterov):
    def step(lr, weight_decay, weight, gradient, velocity):
        x = weight.clone()
        settings = {"momentum": 0.9, "nesterov": nesterov, "weight_decay": weight_decay, "coupling": coupling}
        optimizer = hb.RandomSGD([x], lr, law=law, differentiable=True, seed=seed, **settings)
        x.grad = gradient.clone()
        optimizer.state[x]["momentum_buffer"] = velocity.clone()
        optimizer.step()
        return x

    values = (0.1, 0.2, [0.3, 0.7], [1.0, -2.0], [0.5, 0.4])
    numbers = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in values]
    for seed in range(4):  # noqa: B007 (step reads it); among them draws of 0 for the two-point law
        torch.autograd.gradcheck(step, numbers)


@pytest.mark.filterwarnings("ignore:The epoch parameter in:UserWarning")  # torch 2.8 warns of itself
@pytest.mark.parametrize(
    "make_scheduler",
    [
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=10, eta_min=0.01),
        lambda o: lr_scheduler.StepLR(o, step_size=3, gamma=0.5),
        lambda o: lr_scheduler.ExponentialLR(o, 0.9),
        lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.3, total_steps=40, cycle_momentum=True),
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=4),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5),
        lambda o: lr_scheduler.LambdaLR(o, lambda k: 1 / (1 + k)),
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[4]
        ),
        lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
        lambda o: hb.CosineCycleLR(o, 6),
    ],
)
def test_schedulers_own_lr_and_the_draws_never_compound(make_scheduler):
    """The rates are those that the scheduler sets on torch's SGD; each step is that rate times the draw."""

    def rates_and_moves(kind, **settings):
        parameter = nn.Parameter(torch.zeros((), dtype=torch.float64))
        optimizer = kind([parameter], 0.1, momentum=0.5, **settings)
        scheduler = make_scheduler(optimizer)
        rates, moves = [], []
        for _ in range(20):
            before = parameter.item()
            parameter.grad = torch.ones_like(parameter)
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.state.clear()  # each step is a first one, so that the move is lr alpha g
            optimizer.step()
            moves.append(before - parameter.item())
            scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))
        return np.array(rates), np.array(moves)

    theirs, plain_moves = rates_and_moves(torch.optim.SGD)
    for coupling in ("gradient", "update"):
        ours, moves = rates_and_moves(hb.RandomSGD, law=hb.Uniform(0.9), coupling=coupling, seed=8)
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_allclose(moves, plain_moves * hb.draw(hb.Uniform(0.9), 8, 0, 20), rtol=1e-9, atol=1e-15)


def test_switching_modes_between_steps_keeps_the_velocity():
    """Eager steps in a moving unit, capturable steps in plain units, another rule: one and the same trajectory."""
    parameters, twins = make_parameters(), make_parameters()
    gradients = make_gradients(parameters, 40)
    mixed = hb.RandomSGD(parameters, 0.05, momentum=0.9, nesterov=True, seed=1)
    plain = hb.RandomSGD(twins, 0.05, momentum=0.9, nesterov=True, seed=1)
    for k, row in enumerate(gradients):
        mixed.param_groups[0]["capturable"] = k % 7 == 3
        mixed.param_groups[0]["foreach"] = k % 3 == 1
        nesterov = k % 10 < 7
        mixed.param_groups[0]["nesterov"] = plain.param_groups[0]["nesterov"] = nesterov
        walk(mixed, parameters, [row])
        walk(plain, twins, [row])
    torch.testing.assert_close(flat(parameters), flat(twins), rtol=1e-12, atol=1e-13)


def test_hooks_fire_around_the_step():
    parameters = make_parameters()
    optimizer = hb.RandomSGD(parameters, 0.1, seed=2)
    rates = []
    optimizer.register_step_pre_hook(lambda o, args, kwargs: rates.append(("before", o.param_groups[0]["multiplier"])))
    optimizer.register_step_post_hook(lambda o, args, kwargs: rates.append(("after", o.param_groups[0]["multiplier"])))
    walk(optimizer, parameters, make_gradients(parameters, 2))
    first, second = hb.draw(hb.Uniform(1.0), 2, 0, 2)
    assert rates == [("before", 1.0), ("after", first), ("before", first), ("after", second)]


def test_it_is_an_sgd_and_prints_its_draws():
    optimizer = hb.RandomSGD(make_parameters(), 0.1, seed=5)
    assert isinstance(optimizer, torch.optim.SGD)
    assert "law: uniform:1.0" in str(optimizer)
    assert "seed: 5" in str(optimizer)


def test_takes_by_position_what_torch_sgd_takes_by_position():
    parameters = make_parameters()
    for arguments in ((0.1, 0.9), (0.1, 0.9, 0.2, 1e-4), (0.1, 0.9, 0, 1e-4, True)):
        ours, theirs = hb.RandomSGD(parameters, *arguments).defaults, torch.optim.SGD(parameters, *arguments).defaults
        assert {key: ours[key] for key in theirs} == theirs
    with pytest.raises(TypeError, match="momentum"):
        hb.RandomSGD(parameters, 0.1, hb.Uniform(0.5))


def test_velocity_is_a_copy_and_knows_its_own():
    parameters = make_parameters()
    optimizer = hb.RandomSGD(parameters, 0.1, momentum=0.9)
    assert optimizer.velocity(parameters[0]) is None
    walk(optimizer, parameters, make_gradients(parameters, 2))
    optimizer.velocity(parameters[0]).zero_()
    assert optimizer.velocity(parameters[0]).abs().max() > 0
    with pytest.raises(KeyError, match="parameters"):
        optimizer.velocity(torch.zeros(3))
