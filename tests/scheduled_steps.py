"""Steps of an optimizer under schedulers, and the rates that they really had."""

import numpy as np
import torch
from torch import nn
from torch.optim import lr_scheduler

import heatbath as hb

LAW = hb.Uniform(0.9)


def make(lr=0.1, kind=torch.optim.SGD, **settings):
    parameter = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    return parameter, kind([parameter], lr, **settings)


def effective_rates(parameter, optimizer, schedulers, steps, epoch=1, after_epoch=()):
    """What each step of plain SGD really moved by, and what ``lr`` and ``get_last_lr`` said just before it."""
    moves, shown = [], []
    for k in range(steps):
        parameter.grad = torch.ones_like(parameter)
        before = parameter.detach().clone()
        shown.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        moves.append((before - parameter.detach())[0].item())
        for scheduler in schedulers:
            scheduler.step()
        if (k + 1) % epoch == 0:
            for scheduler in after_epoch:
                scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))
    np.testing.assert_allclose(moves, shown, rtol=1e-11, atol=1e-15)
    return np.array(moves)
