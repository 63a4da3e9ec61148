"""The two halves of a weight give it back bit for bit, and the upper one is what bf16 rounds it to."""

import pytest
import torch

from heatbath.engine.split_bf16 import join, split

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
INFINITY = float("inf")


def from_bits(*patterns):
    """The fp32 of 32 bits each."""
    return torch.tensor([bits - 2**32 if bits >= 2**31 else bits for bits in patterns], dtype=torch.int32).view(
        torch.float32
    )


def both_signs(*patterns):
    return from_bits(*patterns, *(bits | 0x80000000 for bits in patterns))


def as_integers(high):
    return high.view(torch.int16).int()


def random_bits():
    bits = torch.randint(-(2**31), 2**31, (2**20,), generator=torch.Generator().manual_seed(3))
    return bits.to(torch.int32).view(torch.float32)


def all_upper_halves(lower):
    """Every bf16 there is, the infinities and those that are no numbers too, with these lower 16 bits."""
    return ((torch.arange(-(2**15), 2**15) << 16) + lower).to(torch.int32).view(torch.float32)


VALUES = {
    "random bits": random_bits(),
    "weights": 0.1 * torch.randn(2**18, generator=torch.Generator().manual_seed(4)),
    "zeros": both_signs(0),
    "subnormal": both_signs(1, 2, 0x7FFF, 0x8000, 0x8001, 0x12345, 0x7FFFFF),
    "smallest normal": both_signs(0x800000, 0x800001, 0x808000),
    "exact": all_upper_halves(0),
    "just below ties": all_upper_halves(0x7FFF),
    "ties": all_upper_halves(0x8000),
    "just above ties": all_upper_halves(0x8001),
    "just below exact": all_upper_halves(0xFFFF),
    "rounds to infinity": both_signs(0x7F7F8000, 0x7F7F8001, 0x7F7FFFFF),
    "infinities": both_signs(0x7F800000),
}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_halves_give_back_the_bits(values):
    high, low = split(values)
    assert (high.dtype, low.dtype) == (torch.bfloat16, torch.int16)
    again, numbers = join(high, low), ~values.isnan()
    assert numbers.any()
    assert again.dtype == torch.float32
    assert torch.equal(again.view(torch.int32)[numbers], values.view(torch.int32)[numbers])
    assert torch.equal(again.isnan(), ~numbers)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_upper_half_is_the_rounded_value(values):
    """But at ties, which go away from zero: to where torch's rounding goes, or one step beyond."""
    high, low = split(values)
    numbers, ties = ~values.isnan(), values.view(torch.int32) & 0xFFFF == 0x8000
    steps = as_integers(high) - as_integers(values.to(torch.bfloat16))
    assert (steps[numbers & ~ties] == 0).all()
    assert ((steps == 0) | (steps == 1))[numbers & ties].all()  # of the magnitude, whatever the sign
    assert (low[numbers & ties] == -(2**15)).all()
    assert torch.equal(high.isnan(), ~numbers)


def test_a_tie_goes_away_from_zero():
    values = both_signs(0x3F808000, 0x3F818000)
    assert split(values)[0].tolist() == [1.0078125, 1.015625, -1.0078125, -1.015625]
    assert values.to(torch.bfloat16).tolist() == [1.0, 1.015625, -1.0, -1.015625]


def test_signs_are_alike():
    values = random_bits()
    values = values[~values.isnan()]
    (high, low), (opposite, same) = split(values), split(-values)
    assert torch.equal(opposite.view(torch.int16), (-high).view(torch.int16))
    assert torch.equal(same, low)


def test_what_is_not_a_number_is_none_in_either_form():
    """Whatever its bits: quiet or signalling, those that would round to infinity or wrap to zero."""
    patterns = (
        0x7F800001,
        0x7F807FFF,
        0x7F808000,
        0x7FBFFFFF,
        0x7FC00000,
        0x7FC00001,
        0x7FFF7FFF,
        0x7FFF8000,
        0x7FFFFFFF,
    )
    values = both_signs(*patterns)
    high, low = split(values)
    assert values.isnan().all()
    assert high.isnan().all()
    assert (low == 0).all()
    assert join(high, low).isnan().all()


def test_infinities_stay():
    high, low = split(both_signs(0x7F800000))
    assert high.tolist() == join(high, low).tolist() == [INFINITY, -INFINITY]
    beyond = both_signs(0x7F7FFFFF)  # finite, but for bf16
    assert split(beyond)[0].tolist() == [INFINITY, -INFINITY]
    assert join(*split(beyond)).isfinite().all()


def test_halves_lie_in_memory_as_their_values():
    values = torch.randn(2, 8, 3, 3, 4).permute(0, 1, 4, 2, 3)
    high, low = split(values)
    assert high.stride() == low.stride() == join(high, low).stride() == values.stride()
    assert torch.equal(join(high, low), values)


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)])
def test_halves_are_the_same_wherever_they_are_made(device, compiled):
    apart, together = (torch.compile(one, dynamic=False) if compiled else one for one in (split, join))
    values = torch.cat(list(VALUES.values()))
    found, expected = [half.cpu() for half in apart(values.to(device))], split(values)
    again = together(*(half.to(device) for half in expected)).cpu()
    numbers = ~values.isnan()
    assert torch.equal(found[0].view(torch.int16)[numbers], expected[0].view(torch.int16)[numbers])
    assert torch.equal(found[1], expected[1])
    assert torch.equal(again.view(torch.int32)[numbers], values.view(torch.int32)[numbers])
    assert torch.equal(found[0].isnan(), ~numbers)
    assert torch.equal(again.isnan(), ~numbers)
