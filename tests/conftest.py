import pytest


@pytest.fixture(scope="module")
def one_thread():
    """For models so small that they would wait for their threads longer than they compute."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
