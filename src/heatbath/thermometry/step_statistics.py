r"""What an SGD-like optimizer has just done, as a few numbers: its knobs, and inner products of its vectors.

In PyTorch's sign let ``b' = mu b + G`` be the velocity after a step and ``x' = x - l D`` the step, where

    coupling "gradient":  G = alpha g,   D = b'         or  G + mu b'          for Nesterov
    coupling "update":    G = g,         D = alpha b'   or  alpha (G + mu b')

and ``g`` is the gradient with the weight decay in it. What is still there after the step is ``x'``, ``b'`` and the
gradient of the loss: all other vectors are combinations of them, so that their six inner products say everything. A
dampening ``tau`` makes the step that of a rate ``(1 - tau) l`` with the velocity ``b / (1 - tau)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from heatbath.laws import Coupling, Law
from heatbath.optim.draw_sources import current_draw, hooked_optimizer
from heatbath.optim.random_sgd import RandomSGD
from heatbath.thermometry.per_sample import as_real
from heatbath.thermostat import Thermostat

PAIRS = ("xx", "xg", "xb", "gg", "gb", "bb")  # x: position, b: velocity, both after the step, g: gradient of the loss
_SGD_KNOBS = {"lr", "momentum", "dampening", "weight_decay", "nesterov"}
_OTHER_KNOBS = {"betas", "eps", "alpha", "rho", "lambd", "trust_coefficient"}


@dataclass(frozen=True)
class Knobs:
    """The settings of one parameter group in its last step; ``lr`` is the mean rate."""

    lr: float
    momentum: float
    nesterov: bool
    law: Law
    coupling: Coupling
    multiplier: float
    dampening: float
    weight_decay: float
    sign: float
    is_multiplied: bool  # the gradients already hold the multiplier

    def temperature(self, noise: float) -> float:
        """The sum over directions of ``T = l F S / (2 C (1 - mu))``, for ``noise`` the sum of ``S / C``."""
        law_and_momentum = Thermostat(1.0, 1, self.momentum, self.nesterov, self.law, self.coupling)
        return self.lr * (1.0 - self.dampening) * law_and_momentum.temperature(noise)

    def kinetic_temperature(self, squared_velocity: float) -> float:
        """The sum over directions of ``T = l (1 + mu)/2 K b^2``, ``K = F`` in coupling "update", else 1.

        At leading order in ``l`` the velocity is driven by noise alone, ``<b^2> = <G^2> / (1 - mu^2)``, Nesterov or
        not, where ``<G^2>`` is ``S / C`` times ``1 + s2`` in coupling "gradient" and times 1 in coupling "update". So
        ``T = l F S / (2 C (1 - mu))`` becomes the above.
        """
        thermostat = Thermostat(1.0, 1, self.momentum, self.nesterov, self.law, self.coupling)
        factor = thermostat.law_factor if self.coupling == "update" else 1.0
        return self.lr * 0.5 * (1.0 + self.momentum) * factor * squared_velocity / (1.0 - self.dampening)

    @property
    def memory(self) -> float:
        """The weight ``w`` of the memory in the fluctuation-dissipation relation."""
        return self.momentum**2 if self.nesterov else self.momentum


class Motion(NamedTuple):
    """What one step of a group was, in sums over its parameters."""

    squared_velocity: float
    fluctuation: float  # l [(1 - mu)/2 |D|^2 + w D.b'], alpha averaged over its law where it multiplies D
    squared_position: float  # |x'|^2
    lever: float  # w x'.b'


def describe_motion(knobs: Knobs, products: Sequence[float]) -> Motion:
    """Return the motion that the inner products of `PAIRS` describe."""
    mu, lr = knobs.momentum, knobs.lr
    xx, xg, xb, gg, gb, bb = products
    if mu and not knobs.nesterov:
        squared_step = cross = bb
    else:
        # x = x' + l D and D hold G, which holds the weight decay of x: one linear equation for G in (x', g, b').
        alpha = 1.0 if knobs.is_multiplied else knobs.multiplier
        pull = alpha if knobs.coupling == "gradient" else 1.0
        shrink = 1.0 - alpha * knobs.weight_decay * lr
        push = (
            pull * knobs.weight_decay / shrink,
            pull * knobs.sign / shrink,
            alpha * knobs.weight_decay * lr * mu / shrink,
        )
        step = (push[0], push[1], push[2] + mu)
        velocity = (0.0, 0.0, 1.0) if mu else push
        gram = ((xx, xg, xb), (xg, gg, gb), (xb, gb, bb))

        def product(left: Sequence[float], right: Sequence[float]) -> float:
            return sum(left[i] * gram[i][j] * right[j] for i in range(3) for j in range(3))

        squared_step, cross, bb = product(step, step), product(step, velocity), product(velocity, velocity)
    if knobs.coupling == "update":
        squared_step *= knobs.law.second_moment
    scale = 1.0 / (1.0 - knobs.dampening)
    fluctuation = scale * lr * (0.5 * (1.0 - mu) * squared_step + knobs.memory * cross)
    return Motion(bb, fluctuation, scale * xx, scale * knobs.memory * xb)


def read_knobs(optimizer: Optimizer, index: int, law: Law | None = None) -> Knobs:
    """Return the knobs of a group, as a post-step hook finds them; ``law`` is that of draws which we do not know of."""
    group = optimizer.param_groups[index]
    draw = current_draw(optimizer, group)
    momentum, coupling = float(group["momentum"]), draw.coupling
    if momentum == 0.0 and not draw.is_in_gradients:
        coupling = "update"  # the same as "gradient", and averaged over the law
    return Knobs(
        lr=float(draw.lr),
        momentum=momentum,
        nesterov=bool(group["nesterov"]),
        law=law if law is not None and draw.law.variance == 0.0 else draw.law,
        coupling=coupling,
        multiplier=float(draw.multiplier),
        dampening=float(group["dampening"]) if momentum else 0.0,
        weight_decay=float(group["weight_decay"]),
        sign=-1.0 if group.get("maximize", False) else 1.0,
        is_multiplied=draw.is_in_gradients,
    )


def inner_products(optimizer: Optimizer, index: int) -> Tensor:
    """Return the inner products `PAIRS` of the group's vectors after a step, in float64 and on the device."""
    group = optimizer.param_groups[index]
    found = gram(_vectors(optimizer, p, bool(group["momentum"])) for p in group["params"] if p.grad is not None)
    products = torch.zeros(3, 3) if found is None else found.new_zeros(3, 3)
    if found is not None:
        products[: len(found), : len(found)] = found
    rows, columns = zip(*[("xgb".index(pair[0]), "xgb".index(pair[1])) for pair in PAIRS], strict=True)
    return products[list(rows), list(columns)]


def squared_gradient(optimizer: Optimizer, index: int) -> Tensor:
    """Return the squared norm of the gradients as they are now, before or after a step."""
    found = gram([p.grad.detach()] for p in optimizer.param_groups[index]["params"] if p.grad is not None)
    return torch.zeros(()) if found is None else found[0, 0]


def gram(vectors: Iterable[Sequence[Tensor]]) -> Tensor | None:
    """Return the matrix of inner products of several vectors, which come in parts, in float64 where there is that.

    It goes by pieces of bounded size, large tensors cut and small ones put together, with one matrix product for each:
    that bounds the memory, and the number of kernels to launch. A complex component counts as two real ones.

    Args:
        vectors: for each part of weight space, the tensors of all vectors there.
    """
    total: Tensor | None = None
    bucket: list[list[Tensor]] = []
    count = 0

    def flush() -> None:
        nonlocal total, count
        columns = [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*bucket, strict=True)]
        bucket.clear()
        count = 0
        piece = torch.stack(columns)
        del columns
        piece = piece.to(widest(piece.device))
        if total is None:
            total = piece @ piece.T
        elif piece.device == total.device:
            total.addmm_(piece, piece.T)
        else:
            total += (piece @ piece.T).to(total.device)

    for tensors in vectors:
        if any(tensor.is_sparse for tensor in tensors):
            raise TypeError("Thermometer needs dense gradients, got a sparse one")
        flat = [as_real(tensor).reshape(-1) for tensor in tensors]
        size = 2**13 if flat[0].device.type == "cpu" else 2**20
        for start in range(0, len(flat[0]), size):
            parts = [vector[start : start + size] for vector in flat]
            if bucket and (count + len(parts[0]) > size or bucket[0][0].device != parts[0].device):
                flush()
            bucket.append(parts)
            count += len(parts[0])
    if bucket:
        flush()
    return total


def check_optimizer(model: nn.Module, optimizer: Optimizer) -> Optimizer:
    """Return the optimizer whose steps can be watched; raise if its step is not SGD's, or not a step of this model."""
    optimizer = hooked_optimizer(optimizer)
    knobs = set(optimizer.defaults)
    if not isinstance(optimizer, SGD) and (not knobs >= _SGD_KNOBS or knobs & _OTHER_KNOBS):
        raise TypeError(
            f"Thermometer needs an optimizer whose step is that of SGD, got {type(optimizer).__name__}; allowed are "
            "heatbath.RandomSGD and torch.optim.SGD, the latter also with heatbath.randomize or heatbath.RandomLR"
        )
    for group in optimizer.param_groups:
        if not 0.0 <= group["momentum"] < 1.0 or not 0.0 <= group["dampening"] < 1.0:
            raise ValueError(
                "Thermometer needs 0 <= momentum < 1 and 0 <= dampening < 1, got "
                f"momentum={group['momentum']}, dampening={group['dampening']}"
            )
    ours = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not ours & {id(p) for p in model.parameters()}:
        raise ValueError("the optimizer holds none of the model's parameters: give the model that it trains")
    if any(hasattr(p, "full_tensor") for group in optimizer.param_groups for p in group["params"]):
        raise TypeError("Thermometer does not support sharded parameters (FSDP, tensor parallelism)")
    return optimizer


def _vectors(optimizer: Optimizer, parameter: Tensor, has_velocity: bool) -> list[Tensor]:
    assert parameter.grad is not None
    vectors = [parameter.detach(), parameter.grad.detach()]
    if has_velocity:
        velocity = optimizer.velocity(parameter) if isinstance(optimizer, RandomSGD) else None
        vectors.append(optimizer.state[parameter]["momentum_buffer"] if velocity is None else velocity)
    return vectors


def widest(device: torch.device) -> torch.dtype:
    """Return the widest real numbers that the device has."""
    return torch.float32 if device.type == "mps" else torch.float64
