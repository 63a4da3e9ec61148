r"""A random learning rate for optax: the draws of `heatbath.RandomSGD`, as gradient transformations.

    optimizer = random_sgd(0.1, momentum=0.9, law="uniform:1", seed=0)

The multiplier enters where `scale_by_random_rate` stands in a chain. Before the momentum it is coupling "gradient",
after it coupling "update"::

    optax.chain(scale_by_random_rate(law), optax.trace(0.9), optax.scale_by_learning_rate(0.1))     # "gradient"
    optax.chain(optax.trace(0.9), scale_by_random_rate(law), optax.scale_by_learning_rate(0.1))     # "update"
    optax.chain(optax.scale_by_adam(), scale_by_random_rate(law), optax.scale_by_learning_rate(1e-3))
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from heatbath.draws import check_integer, orbits, random_bits
from heatbath.laws import Constant, Law, Uniform, check_coupling, check_number, parse_law

try:
    import jax
    import jax.numpy as jnp
    import optax
except ImportError as error:
    raise ImportError("heatbath.integrations.optax needs optax: pip install 'heatbath[optax]'") from error

if not hasattr(jax, "enable_x64"):
    raise ImportError(f"heatbath.integrations.optax needs JAX 0.8 or newer, found {jax.__version__}")

__all__ = ["RandomRateState", "random_sgd", "scale_by_random_rate"]


class RandomRateState(NamedTuple):
    """The state of `scale_by_random_rate`: a pytree of two scalars.

    Attributes:
        step: the number of updates, int32. The next multiplier is ``heatbath.draw(law, seed, step, 1)``.
        multiplier: the last one, rounded to float32; 1 before the first.
    """

    step: jax.Array
    multiplier: jax.Array


def scale_by_random_rate(law: Law | str = Uniform(1.0), seed: int = 0) -> optax.GradientTransformation:  # noqa: B008
    """Multiply all updates of a step by one random number of mean 1.

    The ``k``-th update is multiplied by ``heatbath.draw(law, seed, k, 1)``. It is computed in float64 even where JAX
    is not in 64-bit mode, and rounded to the precision of the updates (half precision is multiplied in float32). For
    constant, uniform and two-point laws it is the same number in every bit; laws with a logarithm or a cosine agree to
    the last digits. Every device draws the same number. An update that `optax.apply_if_finite` rejects, or that
    `optax.MultiSteps` only accumulates, takes no draw.

    Args:
        law: the distribution of the multiplier, for instance ``heatbath.Uniform(0.5)`` or ``"uniform:0.5"``.
        seed: an integer with ``0 <= seed < 2**64``; not a traced one (`optax.inject_hyperparams`: name it in
            ``static_args``).

    Raises:
        TypeError, ValueError: the law or the seed is not allowed.
    """
    law, seed = parse_law(law), check_integer("seed", seed)

    def init(params: Any) -> RandomRateState:
        del params
        return RandomRateState(jnp.zeros((), jnp.int32), jnp.ones((), jnp.float32))

    def update(updates: Any, state: RandomRateState, params: Any = None) -> tuple[Any, RandomRateState]:
        del params
        step = optax.safe_increment(state.step)
        if type(law) is Constant:
            return updates, RandomRateState(step, state.multiplier)
        with jax.enable_x64(True):  # else JAX would draw in float32
            alpha = _multiplier(law, seed, state.step)
            updates = jax.tree.map(lambda update: _multiply(update, alpha), updates)
            return updates, RandomRateState(step, alpha.astype(jnp.float32))

    return optax.GradientTransformation(init, update)


def random_sgd(
    learning_rate: optax.ScalarOrSchedule,
    momentum: float | None = None,
    nesterov: bool = False,
    *,
    weight_decay: float = 0.0,
    law: Law | str = Uniform(1.0),  # noqa: B008 (laws are frozen)
    coupling: Literal["gradient", "update"] = "gradient",
    seed: int = 0,
    accumulator_dtype: Any = None,
) -> optax.GradientTransformation:
    """SGD with a random learning rate: the steps of `heatbath.RandomSGD`, for optax.

    Args:
        learning_rate: the mean learning rate, a number or a schedule.
        momentum: ``mu``, as in `optax.sgd`.
        nesterov: step with the look-ahead velocity.
        weight_decay: L2 penalty, part of the gradient: ``update`` then needs ``params``.
        law: the distribution of the multiplier, as in `scale_by_random_rate`.
        coupling: what it multiplies: ``"gradient"`` (before the momentum) or ``"update"`` (after it).
        seed: of the draws.
        accumulator_dtype: of the velocity; None takes that of the gradients.

    Raises:
        TypeError, ValueError: a setting is not allowed.
    """
    check_coupling(coupling)
    if not callable(learning_rate):
        _check_number("learning_rate", learning_rate)
    _check_number("weight_decay", weight_decay)
    if momentum is not None:
        _check_number("momentum", momentum)
    elif nesterov:
        raise ValueError("Nesterov momentum requires a momentum, got momentum=None")
    velocity = [] if momentum is None else [optax.trace(momentum, nesterov, accumulator_dtype)]
    is_none = isinstance(weight_decay, int | float) and weight_decay == 0
    decay = [] if is_none else [optax.add_decayed_weights(weight_decay)]
    random = [scale_by_random_rate(law, seed)]
    middle = [*random, *velocity] if coupling == "gradient" else [*velocity, *random]
    return optax.chain(*decay, *middle, optax.scale_by_learning_rate(learning_rate))


@partial(jax.jit, static_argnums=(0, 1))
def _multiplier(law: Law, seed: int, step: jax.Array) -> jax.Array:
    """``heatbath.draw(law, seed, step, 1)`` in float64; to be called in 64-bit mode."""
    (key,), (gamma,) = orbits([seed], 0)
    u = (random_bits(int(key), int(gamma), step.astype(jnp.int64)) + 0.5) * 2.0**-52
    if type(law) is Uniform:
        # As in its quantile; the bound, which changes nothing, keeps the compiler from fusing product and sum into one
        # operation that rounds once.
        return 1.0 + jnp.maximum(law.delta * (2.0 * u - 1.0), -1.0)
    return jnp.asarray(law.quantile(u), jnp.float64)


def _multiply(update: jax.Array, alpha: jax.Array) -> jax.Array:
    update = jnp.asarray(update)
    wide = jnp.promote_types(update.dtype, jnp.float32)
    return (update.astype(wide) * alpha.astype(jnp.finfo(wide).dtype)).astype(update.dtype)


def _check_number(name: str, value: Any) -> None:
    """Raise if a Python number is out of range or this is no number; arrays, which may be traced, pass."""
    if not isinstance(value, jax.Array | np.ndarray):
        check_number(name, value, least=0.0)
