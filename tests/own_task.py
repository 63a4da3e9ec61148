"""A small task as a user would write it: two rings of points, told apart by two layers. Found as ``own_task:rings``."""

import torch
from torch import nn

import heatbath as hb


def points(seed, count=400):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    angles = 2 * torch.pi * torch.rand(count, generator=generator)
    radius = 1.0 + 0.7 * labels + 0.35 * torch.randn(count, generator=generator)
    return torch.stack((radius * angles.cos(), radius * angles.sin()), 1), labels


def network():
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))


rings = hb.Task(network, points(0), points(1), name="rings")
