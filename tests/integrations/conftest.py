"""Two devices for JAX, so that `pmap` has something to map over, and what the frameworks warn of among themselves."""

import gc

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 2)  # before the first use of JAX makes them

THEIR_WARNINGS = [
    "ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning",  # Lightning's use of torch
    "ignore:.*does not have many workers.*:UserWarning",
    "ignore:os.fork:RuntimeWarning",  # JAX, of processes that use it no more: those of tests that come after
]


def pytest_configure(config):
    for line in THEIR_WARNINGS:
        config.addinivalue_line("filterwarnings", line)


@pytest.fixture(autouse=True, scope="module")
def _few_objects_to_collect():
    """The Trainer collects garbage after each training; half a second of that would be spent on imported modules."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
