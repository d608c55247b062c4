"""Fixtures of the tests of methods."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Small matrices on a busy machine: threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
