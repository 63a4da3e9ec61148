"""The layers that a GPU computes in half precision are those of `torch.nn.functional`."""

import pytest
import torch
from torch.nn import functional

from heatbath.tasks import convolutions
from heatbath.tasks.convolutions import convolve, fused_layer, patches, pool_relu


def tensor(*shape, **options):
    values = torch.randn(*shape, dtype=torch.float64, **options)
    return values.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else values


def layer(images, weight, bias, padding, pool):
    values = functional.conv2d(images, weight, bias, padding=padding).relu()
    return functional.max_pool2d(values, 2) if pool else values


def assert_same_function(one, other, arguments):
    """Values and gradients, to rounding."""
    found, expected = one(*arguments), other(*arguments)
    torch.testing.assert_close(found, expected)
    sent = torch.randn_like(expected)
    for a, b in zip(*(torch.autograd.grad(y, arguments, sent) for y in (found, expected)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("padding", [0, 1])
def test_bias_and_relu_belong_to_the_convolution(padding, compiled):
    def ours(images, weight, bias):
        return convolutions.convolve_relu(images, weight, bias, padding)

    arguments = [part.requires_grad_() for part in (tensor(3, 8, 6, 8), tensor(5, 8, 3, 3), tensor(5))]
    ours = torch.compile(ours, dynamic=False) if compiled else ours
    assert_same_function(ours, lambda *parts: layer(*parts, padding, pool=False), arguments)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of torch 2.15's own check
def test_the_operator_keeps_the_contract_of_torch():
    arguments = [part.requires_grad_() for part in (tensor(2, 8, 4, 4), tensor(5, 8, 3, 3), tensor(5))]
    torch.library.opcheck(convolutions.convolve_relu, (*arguments, 1))


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_bias_and_relu_after_the_pool(compiled):
    def plain(values, bias):
        return functional.max_pool2d((values + bias[:, None, None]).relu(), 2)

    ours = torch.compile(pool_relu, dynamic=False) if compiled else pool_relu
    assert_same_function(ours, plain, [tensor(3, 5, 6, 8).requires_grad_(), tensor(5).requires_grad_()])


def test_equal_numbers_in_a_window_send_the_gradient_to_the_first():
    values = torch.ones(1, 1, 4, 2, requires_grad=True)
    (grad,) = torch.autograd.grad(pool_relu(values, torch.zeros(1)).sum(), values)
    assert grad.flatten().tolist() == [1, 0, 0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("place", range(4))
def test_a_pool_hides_no_nan(place):
    values = torch.zeros(1, 1, 2, 2)
    values.view(-1)[place] = torch.nan
    assert pool_relu(values, torch.zeros(1)).isnan().all()


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("channels", "padding"), [(1, 0), (1, 1), (3, 0), (3, 1)])
def test_a_convolution_of_few_channels_is_a_product_with_patches(channels, padding, compiled):
    def ours(images, weight, bias):
        return functional.conv2d(*patches(images, weight, padding), bias).relu()

    arguments = [part.requires_grad_() for part in (tensor(2, channels, 6, 9), tensor(5, channels, 3, 3), tensor(5))]
    ours = torch.compile(ours, dynamic=False) if compiled else ours
    assert_same_function(ours, lambda *parts: layer(*parts, padding, pool=False), arguments)


def test_patches_come_in_eights():
    for channels in (1, 3):
        images, kernel = patches(tensor(2, channels, 6, 6), tensor(5, channels, 3, 3), 1)
        assert images.shape[1] == kernel.shape[1]
        assert images.shape[1] % 8 == 0
        assert images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("pool", [False, True], ids=["plain", "pooled"])
@pytest.mark.parametrize(("channels", "side", "padding"), [(1, 8, 0), (3, 8, 1), (16, 8, 1), (16, 7, 0), (3, 7, 1)])
def test_all_of_it_together(channels, side, padding, pool, compiled):
    def ours(*parts):
        return fused_layer(*parts, padding, pool)

    arguments = [part.requires_grad_() for part in (tensor(2, channels, side, 8), tensor(5, channels, 3, 3), tensor(5))]
    ours = torch.compile(ours, dynamic=False) if compiled else ours
    assert_same_function(ours, lambda *parts: layer(*parts, padding, pool), arguments)


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cpu_takes_the_plain_layers(dtype, compiled, monkeypatch):
    monkeypatch.setattr(convolutions, "fused_layer", lambda *_: pytest.fail("took the fused layer"))
    parts = [part.to(dtype) for part in (tensor(2, 16, 8, 8), tensor(5, 16, 3, 3), tensor(5))]
    ours = torch.compile(convolve, dynamic=False) if compiled else convolve
    torch.testing.assert_close(ours(*parts, padding=1, pool=True), layer(*parts, 1, pool=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("pool", [False, True], ids=["plain", "pooled"])
@pytest.mark.parametrize(("channels", "padding"), [(1, 0), (3, 1), (64, 0), (64, 1)])
def test_half_precision_on_a_gpu(channels, padding, pool, compiled):
    """Values to the rounding of bf16; gradients too, but where rounding changes the largest of a window or its sign."""
    parts = tensor(64, channels, 16, 16), tensor(64, channels, 3, 3) / (3 * channels**0.5), tensor(64)
    half = [part.cuda().bfloat16().requires_grad_(part is not parts[0] or channels > 3) for part in parts]
    exact = [part.detach().double().requires_grad_(part.requires_grad) for part in half]
    ours = torch.compile(convolve, dynamic=False) if compiled else convolve
    found, expected = ours(*half, padding=padding, pool=pool), layer(*exact, padding, pool)
    assert found.dtype == torch.bfloat16
    assert distance(found, expected) < 5e-3
    sent = torch.randn_like(found)
    grads = torch.autograd.grad(found, [part for part in half if part.requires_grad], sent)
    theirs = torch.autograd.grad(expected, [part for part in exact if part.requires_grad], sent.double())
    for one, other in zip(grads, theirs, strict=True):
        assert distance(one, other) < (0.1 if pool else 1e-2)
    through = torch.where(found > 0, sent, 0.0).double()  # whatever rounding did to the signs
    assert distance(grads[-1], through.sum((0, 2, 3))) < 5e-3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_the_fused_relu_reads_no_stale_memory_and_hides_no_nan():
    """torch gives cuDNN the unwritten output as an operand, with a factor of zero; nan times zero would be nan."""
    images, weight, bias = (
        part.cuda().bfloat16() for part in (tensor(64, 64, 16, 16), tensor(64, 64, 3, 3), tensor(64))
    )
    for _ in range(3):
        stale = torch.full((64, 64, 16, 16), torch.nan, device="cuda", dtype=torch.bfloat16)
        del stale
        assert convolve(images, weight, bias, padding=1).isfinite().all()
    weight[0] = torch.nan
    assert convolve(images, weight, bias, padding=1)[:, 0].isnan().all()


def distance(one, other):
    return float((one.detach().double() - other.detach()).norm() / other.detach().norm())
