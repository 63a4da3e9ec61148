"""Products in the precision that is asked for, in whichever way torch was told of another; and nothing left changed."""

import pytest
import torch

from heatbath.engine.precision import arithmetic

BACKENDS = torch.backends
NEW = hasattr(BACKENDS, "fp32_precision")
WITHIN = getattr(BACKENDS, "m", BACKENDS)  # the module itself, where torch has put another in its place


def _set(owner, value):
    owner.fp32_precision = value


TOLD = {
    "nothing": lambda: None,
    "all at once, in the old way": lambda: torch.set_float32_matmul_precision("medium"),
    "products": lambda: setattr(BACKENDS.cuda.matmul, "allow_tf32", True),
    "convolutions": lambda: setattr(BACKENDS.cudnn, "allow_tf32", False),
}
if NEW:
    TOLD |= {
        "all at once, in the new way": lambda: _set(BACKENDS, "tf32"),
        "products, in the new way": lambda: _set(BACKENDS.cuda.matmul, "tf32"),
        "cuDNN": lambda: _set(BACKENDS.cudnn, "tf32"),
        "cuDNN's convolutions": lambda: _set(BACKENDS.cudnn.conv, "ieee"),
        "a CPU's convolutions": lambda: _set(BACKENDS.mkldnn.conv, "bf16"),
        "a CPU's products": lambda: _set(BACKENDS.mkldnn.matmul, "bf16"),
    }


def settings():
    """What torch says that it was told, as far as it says anything."""
    owners = (BACKENDS, BACKENDS.cuda.matmul, BACKENDS.cudnn, BACKENDS.mkldnn)
    parts = (getattr(library, name) for library in owners[2:] for name in ("conv", "rnn") if NEW)
    found = [owner.fp32_precision for owner in (*owners, *parts)] if NEW else []
    for ask in (torch.get_float32_matmul_precision, lambda: BACKENDS.cudnn.allow_tf32):
        try:
            found.append(ask())
        except RuntimeError:
            found.append(None)
    return [*found, BACKENDS.cudnn.enabled, BACKENDS.cudnn.benchmark, BACKENDS.cudnn.deterministic]


@pytest.fixture(autouse=True)
def thawed(monkeypatch):
    """Torch's own test tools, once imported, forbid to set anything for good."""
    monkeypatch.setattr(WITHIN, "__allow_nonbracketed_mutation_flag", True)


@pytest.fixture(params=TOLD)
def told(request, thawed):
    tell_nothing()  # another test may have told torch something
    before = settings()
    TOLD[request.param]()
    yield settings()
    tell_nothing()
    assert settings() == before


def tell_nothing():
    mkldnn = BACKENDS.mkldnn
    for owner in (BACKENDS, BACKENDS.cudnn, mkldnn, mkldnn.conv, mkldnn.rnn, mkldnn.matmul) if NEW else ():
        _set(owner, "none")
    torch.set_float32_matmul_precision("highest")
    BACKENDS.cudnn.allow_tf32 = True
    if NEW:
        _set(BACKENDS.cuda.matmul, "none")


@pytest.mark.parametrize(
    ("precision", "device", "rounds"),
    [("fp32", "cuda", False), ("tf32", "cuda", True), ("bf16", "cuda", True), ("fp32", "cpu", False)],
)
def test_products_are_rounded_if_and_only_if_that_is_asked_for(told, precision, device, rounds):
    with arithmetic(precision, torch.device(device)):
        assert torch.get_float32_matmul_precision() == ("high" if rounds else "highest")
        assert BACKENDS.cuda.matmul.allow_tf32 == BACKENDS.cudnn.allow_tf32 == rounds
        if NEW:
            assert BACKENDS.mkldnn.conv.fp32_precision != "bf16"
            assert BACKENDS.mkldnn.matmul.fp32_precision != "bf16"
    after = settings()
    assert [b for a, b in zip(told, after, strict=True) if a is not None] == [a for a in told if a is not None]


def test_settings_may_be_frozen(monkeypatch):
    monkeypatch.setattr(WITHIN, "__allow_nonbracketed_mutation_flag", False)
    before = settings()
    with arithmetic("tf32", torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == "high"
        assert BACKENDS.flags_frozen()
    assert settings() == before


def test_autocast_ends_here():
    x = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16), arithmetic("fp32", torch.device("cpu")):
        assert (x @ x).dtype == torch.float32


@pytest.mark.parametrize("search", [True, False])
def test_cudnn_searches_if_and_only_if_it_is_asked_to(search):
    before = settings()
    BACKENDS.cudnn.benchmark = not search
    with arithmetic("bf16", torch.device("cuda"), search=search):
        assert BACKENDS.cudnn.benchmark == search
    assert BACKENDS.cudnn.benchmark != search
    BACKENDS.cudnn.benchmark = before[-2]
    assert settings() == before
