"""What the program drops is gone: the watch holds on to no model and no parameter."""

from __future__ import annotations

import contextlib
import gc
import weakref
from pathlib import Path

import torch
from torch import nn

from unstuck.capture import watching


def test_a_model_that_was_only_called(tmp_path: Path):
    with watching(tmp_path / "run"):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        model(torch.zeros(1, 4))
        reference = weakref.ref(model)
        del model
        gc.collect()
        assert reference() is None


def test_parameters_that_were_clipped_in_a_window_that_is_not_sampled(tmp_path: Path):
    with watching(tmp_path / "run"):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(55):
            optimizer.zero_grad()
            model(torch.ones(8, 4)).square().mean().backward()
            nn.utils.clip_grad_norm_(list(model.parameters()), 1.0)
            optimizer.step()
        reference = weakref.ref(model.weight)
        del model, optimizer
        gc.collect()
        assert reference() is None


class Fails(torch.autograd.Function):
    """Runs out of memory in its backward."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor * 2

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("out of memory")


class Mark:
    """Goes when the graph that it lies in goes."""


def test_a_graph_whose_backward_failed(tmp_path: Path):
    with watching(tmp_path / "run"):
        loss = Fails.apply(nn.Linear(4, 4)(torch.ones(2, 4))).square().sum()
        mark = Mark()
        loss.grad_fn.metadata["mark"] = mark
        reference = weakref.ref(mark)
        with contextlib.suppress(RuntimeError):
            loss.backward()
        del loss, mark
        gc.collect()
        assert reference() is None
