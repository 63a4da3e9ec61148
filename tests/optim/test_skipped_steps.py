"""A step of `RandomSGD` that a `GradScaler` skips moves nothing and consumes no draw."""

import pytest
import torch

import heatbath as hb
from optimizer_walks import flat, make_gradients, make_parameters, walk


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_a_step_that_the_grad_scaler_skips_consumes_no_draw(fused, nesterov):
    """After inf gradients: no draw, no move; and the steps that count are those of an unscaled run."""
    parameters, twins = (make_parameters(dtype=torch.float32) for _ in range(2))
    gradients = make_gradients(parameters, 9)
    settings = {"momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.01, "seed": 3, "fused": fused}
    optimizer, plain = hb.RandomSGD(parameters, 0.1, **settings), hb.RandomSGD(twins, 0.1, **settings)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    skipped = {0, 3, 4}
    seen = []
    for k, row in enumerate(gradients):
        scale = scaler.scale(torch.ones(())).item()
        for p, gradient in zip(parameters, row, strict=True):
            p.grad = gradient * scale
        if k in skipped:
            parameters[1].grad.fill_(float("inf"))
        before = flat(parameters).clone()
        scaler.step(optimizer)
        scaler.update()
        if k in skipped:
            assert torch.equal(flat(parameters), before)
        else:
            seen.append(optimizer.param_groups[0]["multiplier"])
            walk(plain, twins, [row])
            torch.testing.assert_close(flat(parameters), flat(twins), rtol=1e-6, atol=1e-6)
    assert seen == hb.draw(hb.Uniform(1.0), 3, 0, 6).tolist()


AMP_FLAGS = [{"fused": True, "capturable": True}, {"fused": True}]


@pytest.mark.parametrize("flags", AMP_FLAGS, ids=str)
@pytest.mark.parametrize("law", [hb.Constant(), hb.Uniform(1.0)], ids=str)
@pytest.mark.parametrize("capturable_group", [False, True])
@pytest.mark.parametrize("dampening", [0.0, 0.3])
def test_found_inf_reaches_every_kernel(flags, law, capturable_group, dampening):
    """Capturable or not, constant or not, mixed groups, first step or later: a skipped step moves and draws nothing."""
    a, b = make_parameters(((3,), (4,)), dtype=torch.float32)
    groups = [{"params": [a]}, {"params": [b], "capturable": capturable_group}]
    optimizer = hb.RandomSGD(groups, 0.1, law=law, momentum=0.9, dampening=dampening, seed=3, **flags)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    moved = 0
    for k in range(7):
        scale = scaler.scale(torch.ones(())).item()
        a.grad, b.grad = torch.ones(3) * scale, torch.ones(4) * scale
        if k in (0, 3):
            b.grad.fill_(float("inf"))
        before = flat([a, b]).clone()
        scaler.step(optimizer)
        scaler.update()
        if k in (0, 3):
            assert torch.equal(flat([a, b]), before)
        moved += k not in (0, 3)
        assert torch.isfinite(flat([a, b])).all()
        assert [group["step"] for group in optimizer.state_dict()["param_groups"]] == [moved, moved]
