"""Parameters, made-up gradients and the walk of an optimizer along them, with each of its rules and kernels."""

import io

import torch
from torch import nn

IMPLEMENTATIONS = {
    "default": {},
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
    "capturable fused": {"capturable": True, "fused": True},
    "differentiable": {"differentiable": True},
}
RULES = {
    "plain": {},
    "decay": {"weight_decay": 0.1},
    "momentum": {"momentum": 0.9},
    "dampening": {"momentum": 0.8, "dampening": 0.3, "weight_decay": 0.05},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "nesterov decay maximize": {"momentum": 0.7, "nesterov": True, "weight_decay": 0.2, "maximize": True},
    "maximize": {"momentum": 0.5, "maximize": True},
}


def make_parameters(shapes=((3, 4), (5,), ()), dtype=torch.float64, kind=nn.Parameter):
    generator = torch.Generator().manual_seed(0)
    return [kind(torch.randn(shape, dtype=dtype, generator=generator)) for shape in shapes]


def kind_for(flags):
    """Autograd forbids changing a leaf in place, so that a differentiable step takes tensors that are none."""
    return torch.Tensor.clone if flags.get("differentiable") else nn.Parameter


def make_gradients(parameters, steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in parameters] for _ in range(steps)]


def walk(optimizer, parameters, gradients):
    for row in gradients:
        for p, gradient in zip(parameters, row, strict=True):
            p.grad = None if gradient is None else gradient.clone()
        optimizer.step()


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def saved(optimizer):
    stream = io.BytesIO()
    torch.save(optimizer.state_dict(), stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


class Wrapper(torch.optim.Optimizer):
    """What Accelerate and others hand out: an optimizer by type, with no hooks of its own."""

    def __init__(self, name, optimizer):
        setattr(self, name, optimizer)
        self.name, self.param_groups = name, optimizer.param_groups

    def step(self):
        getattr(self, self.name).step()

    def zero_grad(self):
        getattr(self, self.name).zero_grad()
