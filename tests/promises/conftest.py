"""Small tensors are fastest on one thread."""

from __future__ import annotations

import sys

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def nothing_compiled():
    """A watch that begins after a compilation in this process takes more care."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        dynamo.counters.clear()


@pytest.fixture(autouse=True, scope="session")
def what_torch_imports_late() -> None:
    """Building the first optimizer imports torch._dynamo, which changes torch itself; not our trace."""
    import torch._dynamo

    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    weight.sum().backward()
    optimizer.step()
