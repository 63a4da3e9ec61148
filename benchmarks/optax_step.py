"""The cost of one update of `heatbath.integrations.optax.random_sgd`, as a ratio to `optax.sgd` in the same run.

    python benchmarks/optax_step.py [--seconds 2] [--json FILE]

Both updates are compiled, with the weights' own update in the same program, and run in turn on equal weights, a few
steps each, in random order. The ratio is the median over all rounds of (ours / theirs), with a 95 % bootstrap interval.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import jax
import numpy as np
import optax

from heatbath.integrations.optax import random_sgd

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "one number": [()],
    "perceptron": [(784, 100), (100,), (100, 10), (10,)],
    "2 million": [(1024, 1024), (1024, 1024)],
}
LAWS = ("uniform:1", "lognormal:0.5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each row")
    parser.add_argument("--json", help="also write the rows here")
    arguments = parser.parse_args()
    machine = str(jax.devices()[0])
    print(f"jax {jax.__version__}, optax {optax.__version__}, {machine}; ratio to optax.sgd, median [95 % interval]")
    rows = []
    for model in SHAPES:
        for law in LAWS:
            for coupling in ("gradient", "update"):
                row = compare(model, law, coupling, arguments.seconds)
                rows.append(row)
                print(
                    f"{model:<12}{law:<15}{coupling:<9} {row['ratio']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
                    f"  {row['optax_us']:9.1f} us",
                    flush=True,
                )
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(
                {"jax": jax.__version__, "optax": optax.__version__, "machine": machine, "rows": rows}, file, indent=1
            )


def compare(model: str, law: str, coupling: Any, seconds: float) -> dict[str, Any]:
    theirs = Training(model, optax.sgd(1e-4, 0.9, nesterov=True))
    ours = Training(model, random_sgd(1e-4, 0.9, nesterov=True, law=law, coupling=coupling))
    for training in (theirs, ours):
        training.run(3)
    once = theirs.run(10)
    steps = max(1, min(100, int(2e-3 / once)))
    rounds = int(np.clip(seconds / (2 * steps * once), 15, 2000))
    times = np.empty((rounds, 2))
    order = np.random.default_rng(0).integers(0, 2, rounds)
    for i in range(rounds):
        for which in (order[i], 1 - order[i]):
            times[i, which] = (theirs, ours)[which].run(steps)
    ratios = times[:, 1] / times[:, 0]
    resampled = np.median(np.random.default_rng(1).choice(ratios, (1000, rounds)), axis=1)
    low, high = np.quantile(resampled, [0.025, 0.975])
    numbers = {"ratio": np.median(ratios), "low": low, "high": high, "optax_us": 1e6 * np.median(times[:, 0])}
    names = {"model": model, "law": law, "coupling": coupling}
    return {**names, **{key: float(value) for key, value in numbers.items()}}


class Training:
    """Weights, gradients and a compiled update of both weights and state, in place."""

    def __init__(self, model: str, optimizer: optax.GradientTransformation) -> None:
        keys = jax.random.split(jax.random.key(0), 2 * len(SHAPES[model]))
        arrays = [jax.random.normal(key, shape) for key, shape in zip(list(keys), SHAPES[model] * 2, strict=True)]
        self.params, self.gradients = arrays[: len(arrays) // 2], arrays[len(arrays) // 2 :]
        self.state = optimizer.init(self.params)

        def update(params: Any, state: Any, gradients: Any) -> Any:
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state

        self.update = jax.jit(update, donate_argnums=(0, 1))

    def run(self, steps: int) -> float:
        """Return the seconds of one step, of ``steps`` of them."""
        start = time.perf_counter()
        for _ in range(steps):
            self.params, self.state = self.update(self.params, self.state, self.gradients)
        jax.block_until_ready(self.params)
        return (time.perf_counter() - start) / steps


if __name__ == "__main__":
    main()
