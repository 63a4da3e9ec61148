r"""Layers of a convolutional network in half precision, arranged so that a GPU moves fewer bytes.

A 3 x 3 convolution of small images takes less time than the passes over its activations around it. So

- bias and ReLU go into the convolution's own last pass;
- where a pool follows, they come after it, on a quarter of the numbers (``max(x) + b = max(x + b)``), and what the way
  back needs is one byte for each window: which of the four was largest, or that none got through;
- the first convolution, of one or three channels, is a product with the patches of the image.

All of it computes what `torch.nn.functional` does, to rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_DEAD = 4  # in place of 0 to 3, which of a window was largest: none was above zero
_FEW = 4  # channels, up to which a convolution is a product with patches


@torch.library.custom_op("heatbath::convolve_relu", mutates_args=())
def convolve_relu(images: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
    """Return ``relu(conv2d(images, weight, bias))``, on a GPU as one kernel."""
    if images.is_cuda:
        values: Tensor = torch.cudnn_convolution_relu(images, weight, bias, (1, 1), (padding, padding), (1, 1), 1)
        return values
    return functional.conv2d(images, weight, bias, padding=padding).relu_()


@convolve_relu.register_fake
def _(images: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
    return functional.conv2d(images, weight, bias, padding=padding)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    images, weight, _, ctx.padding = inputs
    ctx.save_for_backward(images, weight, output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
    images, weight, values = ctx.saved_tensors
    grad = torch.where(values <= 0, 0.0, grad)
    form = (1, 1), (ctx.padding, ctx.padding), (1, 1), False, (0, 0), 1
    needed = ctx.needs_input_grad[0], True, False
    into_images, into_weight, _ = torch.ops.aten.convolution_backward(grad, images, weight, None, *form, needed)
    return into_images, into_weight, grad.sum((0, 2, 3)), None


convolve_relu.register_autograd(_backward, setup_context=_remember)


class _PoolReLU(torch.autograd.Function):
    """``relu(max_pool2d(values, 2) + bias)``."""

    @staticmethod
    def forward(values: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        best, where = values[:, :, ::2, ::2], torch.zeros((), dtype=torch.uint8, device=values.device)
        for code in (1, 2, 3):
            other = values[:, :, code // 2 :: 2, code % 2 :: 2]
            higher = (other > best) | other.isnan()
            best, where = torch.where(higher, other, best), torch.where(higher, code, where)
        pooled = (best + bias[:, None, None]).relu()
        return pooled, torch.where(pooled <= 0, _DEAD, where).to(torch.uint8)

    @staticmethod
    def setup_context(ctx: Any, _: Any, output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, Tensor]:
        where = ctx.saved_tensors[0].permute(0, 2, 3, 1)[:, :, None, :, None]
        grad = grad.permute(0, 2, 3, 1)[:, :, None, :, None]
        count, height, _, width, _, channels = where.shape
        codes = torch.arange(4, dtype=torch.uint8, device=grad.device).view(2, 1, 2, 1)
        spread = torch.where(where == codes, grad, 0.0).reshape(count, 2 * height, 2 * width, channels)
        return spread.permute(0, 3, 1, 2), torch.where(where == _DEAD, 0.0, grad).sum((0, 1, 2, 3, 4))


def convolve(images: Tensor, weight: Tensor, bias: Tensor, *, padding: int = 0, pool: bool = False) -> Tensor:
    """Return ``relu(conv2d(images, weight, bias, padding=padding))``, of a kernel of 3 x 3, then a pool of 2 x 2."""
    if images.dtype == torch.bfloat16 and _fuses(images.device):
        return fused_layer(images, weight, bias, padding, pool)
    values = functional.conv2d(images, weight, bias, padding=padding).relu()
    return functional.max_pool2d(values, 2) if pool else values


def fused_layer(images: Tensor, weight: Tensor, bias: Tensor, padding: int, pool: bool) -> Tensor:
    """Return what `convolve` does, arranged as this module says; on a CPU too, where it gains nothing."""
    even = images.shape[2] % 2 == images.shape[3] % 2 == 0  # as are the sides of what is pooled
    if weight.shape[1] <= _FEW:
        images, weight, padding = *patches(images, weight, padding), 0
    if pool and even and torch.compiler.is_compiling():  # which makes one pass of the many that `pool_relu` has
        return pool_relu(functional.conv2d(images, weight, padding=padding), bias)
    values: Tensor = convolve_relu(images, weight, bias, padding)
    return functional.max_pool2d(values, 2) if pool else values


@torch.compiler.assume_constant_result
def _fuses(device: torch.device) -> bool:
    """Whether there is cuDNN, and hardware that it computes in half precision on."""
    if device.type != "cuda" or torch.version.hip is not None or not torch.backends.cudnn.is_available():
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def pool_relu(values: Tensor, bias: Tensor) -> Tensor:
    """Return ``max_pool2d(relu(values + bias), 2)``."""
    pooled: Tensor = _PoolReLU.apply(values, bias)[0]
    return pooled


def patches(images: Tensor, weight: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    """Return images whose channels are what a kernel of 3 x 3 sees, and the kernel of one pixel that fits them.

    A patch is three pieces of the padded image's rows, each of 4 pixels of 4 numbers, or 8 of one: they lie in one
    piece in memory. What is too many meets zeros of the kernel.
    """
    channels = weight.shape[1]
    wide, deep = (8, 1) if channels == 1 else (4, _FEW)
    missing = (0, deep - channels, padding, padding + wide - 3, padding, padding)
    rows = functional.pad(images.permute(0, 2, 3, 1), missing).contiguous()
    count, height, width, _ = rows.shape
    shape = count, height - 2, width - wide + 1, 3, wide * deep
    pieces = rows.as_strided(shape, (height * width * deep, width * deep, deep, width * deep, 1)).flatten(3)
    kernel = functional.pad(weight.permute(0, 2, 3, 1), (0, deep - channels, 0, wide - 3)).flatten(1)
    return pieces.permute(0, 3, 1, 2), kernel[:, :, None, None]
