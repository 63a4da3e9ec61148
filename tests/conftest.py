import pytest


@pytest.fixture(scope="module")
def one_thread():
    """For models so small that they would wait for their threads longer than they compute."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def engine(monkeypatch):
    """The runner trains with `fake_engine.FakeStack`."""
    from fake_engine import use_fake_stacks

    return use_fake_stacks(monkeypatch)


@pytest.fixture
def gpu(engine, monkeypatch):
    """The same, as if there were a GPU."""
    from fake_engine import pretend_gpu

    pretend_gpu(monkeypatch)
    return engine
