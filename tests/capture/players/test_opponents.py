"""Networks that train against each other are followed without holding their graphs."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from unstuck.capture import watching
from unstuck.capture.players.head import Head, mark_end


def test_an_end_is_found_by_its_mark() -> None:
    scores = nn.Linear(2, 1)(torch.ones(4, 2))
    end = mark_end(scores.grad_fn)
    head = Head((scores * torch.arange(4.0)[:, None]).sum().grad_fn, [end])
    (pull,) = head.pulls(list(head.ends.values())).values()
    assert head.ends == {end: scores.grad_fn}
    assert pull.reshape(-1).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_mark_holds_nothing() -> None:
    given = torch.ones(4, 2)
    squares = (nn.Linear(2, 1)(given) ** 2).tanh()
    gone = weakref.ref(given)
    end = mark_end(squares.grad_fn)
    del given, squares
    gc.collect()
    assert gone() is None
    assert end is not None


class Seen(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def test_a_function_mode_sees_only_its_own_program(tmp_path) -> None:
    def train() -> list[str]:
        maker, judge = nn.Linear(2, 2), nn.Linear(2, 1)
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (maker, judge)]
        for _ in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
                with Seen() as seen:
                    scores = judge(maker(torch.ones(4, 2)))
                scores.mean().backward()
                optimizer.step()
        return seen.names

    alone = train()
    with watching(tmp_path / "run"):
        assert train() == alone
