import pickle
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

import heatbath as hb
from heatbath.integrations.optax import random_sgd, scale_by_random_rate
from heatbath.laws import Law

EXACT = [hb.Constant(), hb.Uniform(1.0), hb.Uniform(0.3), hb.TwoPoint(0.7)]
SMOOTH = [hb.Arcsine(0.9), hb.LogNormal(0.5), hb.Exponential()]
MANY = 20_000


def scanned(law, seed, count, dtype=jnp.float32, start=0):
    """The first multipliers as a chain applies them: what becomes of ones, in one compiled loop."""
    transform = scale_by_random_rate(law, seed)

    def step(state, _):
        updates, state = transform.update(jnp.ones((), dtype), state)
        return state, (updates, state.multiplier)

    def run():
        state = transform.init(None)
        state = state._replace(step=state.step + start)
        return jax.lax.scan(step, state, None, length=count)[1]

    return [np.asarray(values) for values in jax.jit(run)()]


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
@pytest.mark.parametrize("law", EXACT, ids=str)
def test_draws_are_those_of_heatbath_in_every_bit(law, seed):
    for start in (0, 2**31 - 1 - MANY):
        applied, shown = scanned(law, seed, MANY, start=start)
        expected = hb.draw(law, seed, start, MANY).astype(np.float32)
        np.testing.assert_array_equal(applied, expected)
        np.testing.assert_array_equal(shown, expected)


@pytest.mark.parametrize("law", EXACT, ids=str)
def test_in_64_bit_mode_all_64_bits_are_the_same(law):
    with jax.enable_x64(True):
        np.testing.assert_array_equal(scanned(law, 3, MANY, jnp.float64)[0], hb.draw(law, 3, 0, MANY))


@pytest.mark.parametrize("law", SMOOTH, ids=str)
def test_laws_with_a_logarithm_or_a_cosine_agree_to_the_last_digits(law):
    expected = hb.draw(law, 3, 0, MANY)
    np.testing.assert_allclose(scanned(law, 3, MANY)[0], expected, rtol=1.5e-7)
    with jax.enable_x64(True):
        np.testing.assert_allclose(scanned(law, 3, MANY, jnp.float64)[0], expected, rtol=1e-13)


def test_a_law_of_ones_own():
    @dataclass(frozen=True)
    class Pareto(Law):
        @property
        def variance(self):
            return 1.0 / 3.0

        def quantile(self, u):
            return 2.0 / 3.0 * (1.0 - u) ** (-1.0 / 3.0)

    np.testing.assert_allclose(scanned(Pareto(), 3, 100)[0], hb.draw(Pareto(), 3, 0, 100), rtol=1.5e-7)


def test_eager_jit_vmap_and_pmap_draw_alike():
    transform = scale_by_random_rate("uniform:0.3", seed=5)
    expected = hb.draw("uniform:0.3", 5, 0, 3).astype(np.float32)
    one, two = transform.init(None), jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), transform.init(None))
    eager, jitted, mapped, parallel = one, one, two, two
    assert jax.device_count() == 2
    for alpha in expected:
        update, eager = transform.update(jnp.ones(3), eager)
        np.testing.assert_array_equal(update, np.full(3, alpha))
        update, jitted = jax.jit(transform.update)(jnp.ones(3), jitted)
        np.testing.assert_array_equal(update, np.full(3, alpha))
        update, mapped = jax.vmap(transform.update)(jnp.ones((2, 3)), mapped)
        np.testing.assert_array_equal(update, np.full((2, 3), alpha))
        update, parallel = jax.pmap(transform.update)(jnp.ones((2, 3)), parallel)
        np.testing.assert_array_equal(update, np.full((2, 3), alpha))


def test_64_bit_mode_stays_as_the_user_has_it():
    transform = scale_by_random_rate()
    _, state = jax.jit(transform.update)(jnp.ones(3), transform.init(None))
    assert not jax.config.jax_enable_x64
    assert [leaf.dtype for leaf in state] == [jnp.int32, jnp.float32]
    assert jnp.arange(3.0).dtype == jnp.float32


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32, jnp.complex64])
def test_updates_keep_their_precision_and_structure(dtype):
    transform = scale_by_random_rate("uniform:0.3", seed=5)
    values = jax.random.normal(jax.random.key(0), (1000,), dtype)
    updates = {"a": values, "b": (None, optax.MaskedNode())}
    (alpha,) = hb.draw("uniform:0.3", 5, 0, 1).astype(np.float32)
    new, _ = jax.jit(transform.update)(updates, transform.init(None))
    assert jax.tree.structure(new) == jax.tree.structure(updates)
    assert new["a"].dtype == dtype
    wide = np.asarray(values.astype(jnp.promote_types(dtype, jnp.float32)))
    np.testing.assert_array_equal(np.asarray(new["a"]), np.asarray((wide * alpha).astype(values.dtype)))


SETTINGS = [
    {"momentum": None},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-2},
    {"momentum": 0.6, "nesterov": True},
    {"momentum": None, "weight_decay": 1e-2},
]


@pytest.mark.parametrize("law", ["uniform:1", "twopoint:0.7", "lognormal:0.5"])
@pytest.mark.parametrize("coupling", ["gradient", "update"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_after_100_steps_it_is_where_random_sgd_is(settings, coupling, law):
    """On a convex function, no quadratic, with a gradient that differs from step to step."""
    rng = np.random.default_rng(0)
    matrix, noise = rng.normal(size=(6, 6)) / 4, rng.normal(size=(100, 6))
    start = rng.normal(size=6)

    def loss(x, matrix, noise):
        return ((matrix @ x) ** 2).sum() + ((1.0 + x**2) ** 0.5).sum() + (noise * x).sum()

    schedule = optax.cosine_decay_schedule(0.05, 100)
    ours = random_sgd(schedule, **settings, law=law, coupling=coupling, seed=11)
    single = [jnp.asarray(array, jnp.float32) for array in (start, matrix, noise)]
    gradient = jax.grad(partial(loss, matrix=single[1]))

    @jax.jit
    def train(x):
        def step(carry, noise):
            x, state = carry
            updates, state = ours.update(gradient(x, noise=noise), state, x)
            return (optax.apply_updates(x, updates), state), None

        return jax.lax.scan(step, (x, ours.init(x)), single[2])[0][0]

    x = torch.tensor(start, dtype=torch.float32, requires_grad=True)
    parts = [torch.tensor(array, dtype=torch.float32) for array in (matrix, noise)]
    known = {**settings, "momentum": settings["momentum"] or 0.0}
    reference = hb.RandomSGD([x], 0.05, **known, law=law, coupling=coupling, seed=11)
    for k in range(100):
        reference.param_groups[0]["lr"] = float(schedule(k))
        reference.zero_grad()
        loss(x, parts[0], parts[1][k]).backward()
        reference.step()
    moved = np.abs(x.detach().numpy() - start).max()
    assert moved > 0.5
    np.testing.assert_allclose(np.asarray(train(single[0])), x.detach().numpy(), atol=1e-6, rtol=0)


def test_a_constant_law_is_sgd_bit_for_bit():
    params = jax.random.normal(jax.random.key(0), (50,))
    ends = []
    for optimizer in (random_sgd(0.1, 0.9, True, law="constant"), optax.sgd(0.1, 0.9, True)):
        x, state = params, optimizer.init(params)
        for _ in range(5):
            updates, state = optimizer.update(jnp.sin(x), state, x)
            x = optax.apply_updates(x, updates)
        ends.append(np.asarray(x))
    np.testing.assert_array_equal(*ends)


def test_the_order_in_a_chain_is_the_coupling():
    law, gradients = hb.Uniform(1.0), jnp.asarray([1.0, -2.0])
    random, rest = scale_by_random_rate(law, 4), optax.scale_by_learning_rate(0.1)
    chains = {"gradient": [random, optax.trace(0.9), rest], "update": [optax.trace(0.9), random, rest]}
    ends = {}
    for coupling, chain in chains.items():
        for optimizer in (optax.chain(*chain), random_sgd(0.1, 0.9, law=law, coupling=coupling, seed=4)):
            state = optimizer.init(gradients)
            for _ in range(4):
                updates, state = optimizer.update(gradients, state)
            ends.setdefault(coupling, []).append(np.asarray(updates))
    for pair in ends.values():
        np.testing.assert_array_equal(*pair)
    assert not np.allclose(ends["gradient"][0], ends["update"][0])


def test_a_state_that_was_saved_goes_on_with_the_same_numbers(tmp_path):
    optimizer = random_sgd(0.1, 0.9, law="exponential", seed=2)
    step = jax.jit(optimizer.update)
    gradients = {"a": jnp.ones(3), "b": jnp.ones(())}
    state = optimizer.init(gradients)
    for _ in range(3):
        _, state = step(gradients, state)
    leaves, structure = jax.tree.flatten(state)
    (tmp_path / "state").write_bytes(pickle.dumps([np.asarray(leaf) for leaf in leaves]))
    restored = jax.tree.unflatten(structure, pickle.loads((tmp_path / "state").read_bytes()))
    for _ in range(3):
        expected, state = step(gradients, state)
        found, restored = step(gradients, restored)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert optax.tree_utils.tree_get(state, "multiplier") == np.float32(hb.draw("exponential", 2, 5, 1)[0])


def test_accumulated_and_rejected_updates_take_no_draw():
    draws = hb.draw("uniform:1", 0, 0, 2).astype(np.float32)
    several = optax.MultiSteps(scale_by_random_rate(), every_k_schedule=3)
    state, seen = several.init(jnp.ones(())), []
    for _ in range(6):
        update, state = jax.jit(several.update)(jnp.ones(()), state)
        seen.append(float(update))
    np.testing.assert_allclose(seen, [0, 0, draws[0], 0, 0, draws[1]], rtol=1e-6)
    finite = optax.apply_if_finite(scale_by_random_rate(), max_consecutive_errors=5)
    state = finite.init(jnp.ones(()))
    for gradient, expected in ((1.0, draws[0]), (np.nan, 0.0), (1.0, draws[1])):
        update, state = jax.jit(finite.update)(jnp.asarray(gradient), state)
        assert float(update) == expected


def test_injected_hyperparameters():
    make = optax.inject_hyperparams(random_sgd, static_args=("seed",))
    optimizer = make(learning_rate=0.5, momentum=0.9, weight_decay=0.1, law=hb.Uniform(1.0), seed=3)
    params = jnp.ones(2)
    state = optimizer.init(params)
    state.hyperparams["learning_rate"] = jnp.asarray(2.0)
    updates, _ = jax.jit(optimizer.update)(params, state, params)
    np.testing.assert_allclose(updates, -2.0 * 1.1 * hb.draw("uniform:1", 3, 0, 1)[0] * np.ones(2), rtol=1e-6)


BAD = [
    ({"law": "unifrom:1"}, ValueError, "unknown law 'unifrom:1'"),
    ({"law": 0.5}, TypeError, "law must be a heatbath law or a string"),
    ({"seed": -1}, ValueError, "seed must be an integer with 0 <= seed < 2.*64, got -1"),
    ({"seed": jnp.ones(())}, TypeError, "seed must be an integer"),
    ({"coupling": "both"}, ValueError, "coupling must be 'gradient' or 'update', got 'both'"),
    ({"momentum": -0.1}, ValueError, "momentum must be a finite number with momentum >= 0, got -0.1"),
    ({"momentum": "0.9"}, TypeError, "momentum must be a finite number with momentum >= 0, got '0.9'"),
    ({"learning_rate": "0.1"}, TypeError, "learning_rate must be a finite number with learning_rate >= 0, got '0.1'"),
    (
        {"learning_rate": float("nan")},
        ValueError,
        "learning_rate must be a finite number with learning_rate >= 0, got nan",
    ),
    ({"weight_decay": -1.0}, ValueError, "weight_decay must be a finite number with weight_decay >= 0, got -1.0"),
    ({"nesterov": True}, ValueError, "Nesterov momentum requires a momentum, got momentum=None"),
]


@pytest.mark.parametrize(("settings", "error", "message"), BAD)
def test_bad_settings_are_told_in_one_line(settings, error, message):
    with pytest.raises(error, match=message) as told:
        random_sgd(**{"learning_rate": 0.1, **settings})
    assert "\n" not in str(told.value)
