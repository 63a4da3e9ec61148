import copy
import gc
import io
import weakref

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import lr_scheduler

import heatbath as hb
from optimizer_walks import Wrapper

LAW = hb.LogNormal(0.6)


def make(kind, **settings):
    parameters = [nn.Parameter(torch.full((3,), 0.5, dtype=torch.float64)), nn.Parameter(torch.ones(2, 2))]
    return parameters, kind(parameters, **settings)


def gradients(parameters, steps):
    generator = torch.Generator().manual_seed(3)
    return [[torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in parameters] for _ in range(steps)]


def walk(optimizer, parameters, rows):
    for row in rows:
        for p, gradient in zip(parameters, row, strict=True):
            p.grad = gradient.clone()
        optimizer.step()


@pytest.mark.parametrize("coupling", ["gradient", "update"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_on_sgd_it_is_random_sgd(coupling, nesterov):
    settings = {"lr": 0.1, "momentum": 0.9, "nesterov": nesterov}
    parameters, optimizer = make(torch.optim.SGD, **settings)
    handle = hb.randomize(optimizer, LAW, coupling=coupling, seed=4)
    twins, ours = make(hb.RandomSGD, **settings, law=LAW, coupling=coupling, seed=4)
    for row in gradients(parameters, 12):
        walk(optimizer, parameters, [row])
        walk(ours, twins, [row])
        assert handle.multiplier == ours.param_groups[0]["multiplier"]
    for p, twin in zip(parameters, twins, strict=True):
        torch.testing.assert_close(p, twin)
    assert optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam, torch.optim.RMSprop])
@pytest.mark.parametrize("coupling", ["gradient", "update"])
def test_on_others_it_multiplies_the_gradient_or_the_rate(kind, coupling):
    parameters, optimizer = make(kind, lr=0.05)
    twins, plain = make(kind, lr=0.05)
    hb.randomize(optimizer, LAW, coupling=coupling, seed=4)
    rows = gradients(parameters, 10)
    walk(optimizer, parameters, rows)
    for row, alpha in zip(rows, hb.draw(LAW, 4, 0, 10).tolist(), strict=True):
        if coupling == "update":
            plain.param_groups[0]["lr"] = 0.05 * alpha
        walk(plain, twins, [[alpha * gradient if coupling == "gradient" else gradient for gradient in row]])
    for p, twin in zip(parameters, twins, strict=True):
        torch.testing.assert_close(p, twin)


def test_update_coupling_mixes_with_any_scheduler_in_any_order():
    parameter = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([parameter], 0.1)
    hb.randomize(optimizer, hb.TwoPoint(1.0), coupling="update", seed=2)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda k: 1 / (1 + k))
    for k, alpha in enumerate(hb.draw(hb.TwoPoint(1.0), 2, 0, 12)):
        before = parameter.item()
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert before - parameter.item() == pytest.approx(0.1 * alpha / (1 + k), rel=1e-12)
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / (2 + k), rel=1e-15)


def test_tensor_rate_keeps_its_identity():
    lr = torch.tensor(0.1)
    parameters, optimizer = make(torch.optim.AdamW, lr=lr)
    hb.randomize(optimizer, LAW, coupling="update")
    walk(optimizer, parameters, gradients(parameters, 3))
    assert optimizer.param_groups[0]["lr"] is lr
    assert lr == torch.tensor(0.1)


def test_closures_are_multiplied_too():
    parameter = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    optimizer = torch.optim.SGD([parameter], 0.1)
    hb.randomize(optimizer, LAW, seed=6)

    def closure():
        optimizer.zero_grad()
        loss = (parameter**2).sum()
        loss.backward()
        return loss

    x = 2.0
    for k, alpha in enumerate(hb.draw(LAW, 6, 0, 4)):
        loss = optimizer.step(closure=closure) if k % 2 else optimizer.step(closure)
        assert loss.item() == pytest.approx(x**2)
        x -= 0.1 * alpha * 2 * x
        assert parameter.item() == pytest.approx(x, rel=1e-12)


def test_sparse_gradients():
    embedding = nn.Embedding(6, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters(), 0.1)
    handle = hb.randomize(optimizer, LAW)
    with torch.sparse.check_sparse_tensor_invariants(True):
        embedding(torch.tensor([1, 3])).sum().backward()
    optimizer.step()
    torch.testing.assert_close(embedding.weight.grad.coalesce().values(), torch.full((2, 2), handle.multiplier))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("coupling", ["gradient", "update"])
def test_skipped_steps_consume_no_draw(fused, coupling):
    parameters, optimizer = make(torch.optim.AdamW, lr=0.1, fused=fused)
    handle = hb.randomize(optimizer, LAW, coupling=coupling)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    seen = []
    for k, row in enumerate(gradients(parameters, 6)):
        for p, gradient in zip(parameters, row, strict=True):
            p.grad = gradient * scaler.scale(torch.ones(())).item()
        if k in (1, 2):
            parameters[0].grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()
        if k not in (1, 2):
            seen.append(handle.multiplier)
        assert optimizer.param_groups[0]["lr"] == 0.1
    assert seen == hb.draw(LAW, 0, 0, 4).tolist()


def test_resume_and_remove():
    parameters, optimizer = make(torch.optim.AdamW, lr=0.1)
    handle = hb.randomize(optimizer, LAW, seed=3)
    walk(optimizer, parameters, gradients(parameters, 5))
    stream = io.BytesIO()
    torch.save(handle.state_dict(), stream)
    stream.seek(0)
    state = torch.load(stream, weights_only=True)
    assert state == {"law": "lognormal:0.6", "coupling": "gradient", "seed": 3, "step": 5}

    others, fresh = make(torch.optim.AdamW, lr=0.1)
    resumed = hb.randomize(fresh, LAW, seed=3)
    resumed.load_state_dict(state)
    assert resumed.multiplier == handle.multiplier
    walk(fresh, others, gradients(others, 1))
    assert resumed.multiplier == hb.draw(LAW, 3, 5, 1)[0]
    for key, value in {"law": "uniform:1.0", "coupling": "update", "seed": 4}.items():
        with pytest.raises(ValueError, match=f"has {key}={value!r}, this randomize has {key}=.* the saved {key}$"):
            resumed.load_state_dict({**state, key: value})

    resumed.remove()
    before = resumed.multiplier
    walk(fresh, others, gradients(others, 1))
    assert resumed.multiplier == before
    hb.randomize(fresh, LAW)


@pytest.mark.parametrize("coupling", ["gradient", "update"])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_checkpoints_by_torch_distributed_consume_no_draw(kind, coupling):
    """Whether one saves before and after each step, or loads the optimizer after the handle."""
    from torch.distributed.checkpoint import state_dict as checkpoint

    def build():
        model = nn.Linear(2, 1)
        optimizer = kind(model.parameters(), lr=0.1)
        return model, optimizer, hb.randomize(optimizer, LAW, coupling=coupling, seed=3)

    def train(model, optimizer, handle, steps):
        for k in steps:
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert handle.multiplier == hb.draw(LAW, 3, k, 1)[0]
            checkpoint.get_optimizer_state_dict(model, optimizer)

    model, optimizer, handle = build()
    checkpoint.get_optimizer_state_dict(model, optimizer)
    train(model, optimizer, handle, range(4))
    again, resumed, other = build()
    other.load_state_dict(handle.state_dict())
    checkpoint.set_optimizer_state_dict(again, resumed, checkpoint.get_optimizer_state_dict(model, optimizer))
    assert other.multiplier == handle.multiplier
    train(again, resumed, other, range(4, 6))


def test_a_closure_at_rate_zero_draws():
    """Gradients of zero before the closure say nothing of those that it makes."""
    parameter = nn.Parameter(torch.tensor([2.0]))
    optimizer = torch.optim.SGD([parameter], 0.0)
    handle = hb.randomize(optimizer, LAW, seed=6)
    parameter.grad = torch.zeros(1)

    def closure():
        parameter.grad = torch.ones(1)
        return torch.zeros(())

    optimizer.step(closure)
    assert parameter.grad.item() == pytest.approx(handle.multiplier, rel=1e-6)
    assert handle.state_dict()["step"] == 1


@pytest.mark.parametrize("coupling", ["gradient", "update"])
def test_a_closure_that_raises_leaves_everything_as_it_was(coupling):
    parameter = nn.Parameter(torch.tensor([2.0]))
    optimizer = torch.optim.SGD([parameter], 0.1)
    handle = hb.randomize(optimizer, LAW, coupling=coupling, seed=6)

    def broken():
        raise RuntimeError("no data")

    for _ in range(3):
        with pytest.raises(RuntimeError, match="no data"):
            optimizer.step(broken)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert handle.state_dict()["step"] == 0


def test_a_step_that_raises_does_not_compound():
    parameters, optimizer = make(torch.optim.SGD, lr=0.1, fused=True)
    handle = hb.randomize(optimizer, LAW, coupling="update")
    parameters[0].grad = torch.sparse_coo_tensor(
        torch.tensor([[0]]), torch.ones(1).double(), (3,), check_invariants=True
    )
    for _ in range(3):
        with pytest.raises(RuntimeError):
            optimizer.step()
    handle.remove()
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_checkpoint_after_a_step_that_raised_holds_the_rate_itself():
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise KeyboardInterrupt

    _, optimizer = make(Broken, lr=0.1)
    hb.randomize(optimizer, LAW, coupling="update")
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert optimizer.state_dict()["param_groups"][0]["lr"] == 0.1


def test_optimizer_and_handle_die_together_and_handles_are_not_copied():
    _, optimizer = make(torch.optim.SGD, lr=0.1)
    handle = hb.randomize(optimizer, LAW)
    with pytest.raises(TypeError, match="randomize the copy"):
        copy.deepcopy(handle)
    plain = copy.deepcopy(optimizer)
    hb.randomize(plain, LAW)
    alive = weakref.ref(optimizer)
    gc.disable()
    del optimizer, handle
    gc.enable()
    assert alive() is None


def test_a_shared_gradient_is_multiplied_once():
    a, b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    a.grad = b.grad = torch.ones(2)
    optimizer = torch.optim.SGD([a, b], 0.1)
    handle = hb.randomize(optimizer, LAW)
    optimizer.step()
    torch.testing.assert_close(a.detach(), torch.full((2,), -0.1 * handle.multiplier))


@pytest.mark.parametrize("name", ["optimizer", "optim"])
@pytest.mark.parametrize("draws", ["randomize", "RandomLR"])
def test_an_optimizer_inside_a_wrapper_without_hooks(name, draws):
    parameters, optimizer = make(torch.optim.SGD, lr=0.1, momentum=0.9)
    twins, ours = make(hb.RandomSGD, lr=0.1, momentum=0.9, law=LAW, coupling="update", seed=4)
    wrapper = Wrapper(name, Wrapper(name, optimizer))
    if draws == "randomize":
        hb.randomize(wrapper, LAW, coupling="update", seed=4)
    else:
        scheduler = hb.RandomLR(wrapper, LAW, seed=4)
    for row in gradients(parameters, 12):
        walk(wrapper, parameters, [row])
        walk(ours, twins, [row])
        assert optimizer.param_groups[0]["lr"] == 0.1
        if draws == "RandomLR":
            scheduler.step()
    for p, twin in zip(parameters, twins, strict=True):
        torch.testing.assert_close(p, twin)
    with pytest.raises(ValueError, match="already"):
        hb.randomize(optimizer)


@pytest.mark.parametrize(
    ("call", "error", "word"),
    [
        (lambda o: hb.randomize(Wrapper("inside", o)), TypeError, "Wrapper.*hooks"),
        (lambda o: hb.RandomLR(Wrapper("inside", o)), TypeError, "Wrapper.*hooks"),
        (lambda o: hb.randomize(o, "gauss"), ValueError, "gauss"),
        (lambda o: hb.randomize(o, coupling="both"), ValueError, "both"),
        (lambda o: hb.randomize(o, seed=-1), ValueError, "seed"),
        (lambda o: hb.randomize("sgd"), TypeError, "str"),
        (lambda o: [hb.randomize(o), hb.randomize(o)], ValueError, "already by randomize: use it once"),
        (lambda o: [hb.RandomLR(o), hb.randomize(o, coupling="update")], ValueError, "not both"),
        (lambda o: [hb.randomize(o), hb.RandomLR(o)], ValueError, "not both"),
        (lambda o: [hb.RandomLR(o), hb.randomize(o)], ValueError, "not both"),
        (lambda o: hb.randomize(hb.RandomSGD([nn.Parameter(torch.zeros(2))])), ValueError, "draws already"),
        (lambda o: hb.randomize(o).load_state_dict({"law": "uniform"}), ValueError, "lacks"),
    ],
)
def test_bad_arguments(call, error, word):
    _, optimizer = make(torch.optim.SGD, lr=0.1)
    with pytest.raises(error, match=word):
        call(optimizer)


@pytest.mark.parametrize("coupling", ["gradient", "update"])
@pytest.mark.parametrize("draws", ["randomize", "RandomLR"])
def test_the_state_of_the_optimizer_is_all_that_a_framework_needs_to_save(draws, coupling):
    def build():
        parameters, optimizer = make(torch.optim.AdamW, lr=0.1)
        if draws == "randomize":
            handle = hb.randomize(optimizer, LAW, coupling=coupling, seed=3)
            return parameters, optimizer, handle, lambda: None
        scheduler = hb.RandomLR(optimizer, LAW, seed=3)
        return parameters, optimizer, scheduler, scheduler.step

    def train(parameters, optimizer, after, rows):
        for row in rows:
            walk(optimizer, parameters, [row])
            after()

    parameters, optimizer, handle, after = build()
    rows = gradients(parameters, 12)
    train(parameters, optimizer, after, rows[:7])
    stream = io.BytesIO()
    torch.save([[p.detach() for p in parameters], optimizer.state_dict()], stream)
    train(parameters, optimizer, after, rows[7:])

    stream.seek(0)
    weights, state = torch.load(stream, weights_only=True)
    others, resumed, _, after = build()
    resumed.load_state_dict(state)
    plains, plain = make(torch.optim.AdamW, lr=0.1)
    plain.load_state_dict(state)
    for parameter, other, weight in zip(others, plains, weights, strict=True):
        parameter.data.copy_(weight)
        other.data.copy_(weight)
    train(others, resumed, after, rows[7:])
    assert all(torch.equal(one, other) for one, other in zip(parameters, others, strict=True))
    walk(plain, plains, rows[7:8])
    assert plain.param_groups[0]["lr"] == 0.1
    assert plain.param_groups[0].keys() == make(torch.optim.AdamW, lr=0.1)[1].param_groups[0].keys() | (
        {"initial_lr"} if draws == "RandomLR" else set()
    )

    handle.remove()
    other = hb.randomize(optimizer, hb.Uniform(0.25), seed=3)
    with pytest.raises(ValueError, match="build the randomize with the saved law"):
        optimizer.load_state_dict(state)
    assert other.state_dict()["step"] == 0
    other.remove()
    hb.randomize(optimizer, LAW, coupling="gradient", seed=3)
    with pytest.warns(UserWarning, match="no draws of randomize"):
        optimizer.load_state_dict(plain.state_dict())


def test_a_with_statement_ends_it_after_an_exception():
    parameters, optimizer = make(torch.optim.SGD, lr=0.1)
    handle = hb.randomize(optimizer, LAW, coupling="update")
    with pytest.raises(AttributeError), handle:
        walk(optimizer, parameters, [*gradients(parameters, 2), ["no gradients"] * 2])
    assert handle.state_dict()["step"] == 2
    assert optimizer.param_groups[0]["lr"] == 0.1
    hb.randomize(optimizer, LAW)
    optimizer.heatbath_draws.remove()
    hb.RandomLR(optimizer, LAW)


@pytest.mark.parametrize("entry", ["draws", {"law": "lognormal:0.6"}])
def test_a_damaged_entry_in_the_state_of_the_optimizer_changes_nothing(entry):
    parameters, optimizer = make(torch.optim.SGD, lr=0.1, momentum=0.9)
    handle = hb.randomize(optimizer, LAW)
    state = {**optimizer.state_dict(), "heatbath": entry}
    walk(optimizer, parameters, gradients(parameters, 2))
    with pytest.raises(ValueError, match="not a state of draws"):
        optimizer.load_state_dict(state)
    assert handle.state_dict()["step"] == 2
    assert optimizer.state


def test_distributed_checkpoints_lose_the_draws_and_say_so():
    def build():
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), 0.1)
        return model, optimizer, hb.randomize(optimizer, LAW, seed=3)

    def train(model, optimizer):
        for k in range(3):
            optimizer.zero_grad()
            model(torch.full((4, 3), 1.0 + k)).square().mean().backward()
            optimizer.step()
        optimizer.zero_grad()

    model, optimizer, handle = build()
    train(model, optimizer)
    weights, state = copy.deepcopy(get_state_dict(model, optimizer))
    draws = handle.state_dict()
    train(model, optimizer)
    resumed, other, handle = build()
    with pytest.warns(UserWarning, match="holds no draws of randomize, which begin anew unless you load them as well"):
        set_state_dict(resumed, other, model_state_dict=weights, optim_state_dict=state)
    assert handle.state_dict()["step"] == 0
    handle.load_state_dict(draws)
    train(resumed, other)
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), resumed.parameters(), strict=True))
