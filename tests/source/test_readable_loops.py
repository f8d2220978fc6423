"""Training loops written as projects write them: none of it keeps lint from judging the order of what happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from unstuck.judge import judge
from unstuck.source import read_script

START = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))
target = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [(torch.randn(16, 4), torch.randint(0, 3, (16,))) for _ in range(100)]
"""

LOOP = """
for step, (x, y) in enumerate(data):
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    HERE
"""

BEFORE = {
    "a moving average of weights": """
def soft_update(net, net_target, tau=0.01):
    for param_target, param in zip(net_target.parameters(), net.parameters()):
        param_target.data.copy_(param_target.data * (1.0 - tau) + param.data * tau)
""",
    "a moving average by add_": """
def soft_update(net, net_target, tau=0.01):
    for param_target, param in zip(net_target.parameters(), net.parameters()):
        param_target.data.add_(tau * (param.data - param_target.data))
""",
    "the largest gradient": """
def largest(parameters):
    parameters = [p for p in parameters if p.grad is not None]
    return max(p.grad.detach().abs().max() for p in parameters)
""",
    "a schedule that counts": "should_optim_step = False",
    "a tuple with names": """
from collections import namedtuple
Losses = namedtuple("Losses", ["first", "total"])
""",
    "dicts of results": """
from detectors import detect
detections = detect()
""",
    "a function that goes into lists and dicts": """
def for_each(data, kind, function, *args, **kwargs):
    if isinstance(data, kind):
        return function(data, *args, **kwargs)
    if isinstance(data, dict):
        return {key: for_each(value, kind, function, *args, **kwargs) for key, value in data.items()}
    return data
""",
    "a loss from elsewhere": "from losses import consistency_loss",
}
HERE = {
    "a moving average of weights": "soft_update(model, target)",
    "a moving average by add_": "soft_update(model, target)",
    "the largest gradient": "print(largest(model.parameters()))",
    "a schedule that counts": "count = int(should_optim_step)",
    "a tuple with names": "losses = Losses(loss, loss)",
    "dicts of results": 'detections[step].update({"scores": loss})',
    "a function that goes into lists and dicts": 'for_each({"x": loss}, torch.Tensor, function=lambda x: x.detach())',
    "a loss from elsewhere": "extra = consistency_loss(model, x)",
}


def variants(text: str) -> set[str]:
    verdict = judge(scripts=(read_script(Path("train.py"), text=text),))
    assert not verdict.failures
    return {f"{diagnosis.lead.code}/{diagnosis.lead.variant}" for diagnosis in verdict.diagnoses}


@pytest.mark.parametrize("line", HERE)
def test_a_gradient_that_is_never_cleared_is_seen(line: str) -> None:
    assert "O04/never-cleared" in variants(START + BEFORE[line] + LOOP.replace("HERE", HERE[line]))


@pytest.mark.parametrize("line", HERE)
def test_a_gradient_that_is_cleared_too_late_is_seen(line: str) -> None:
    loop = LOOP.replace("    optimizer.step()\n    HERE", "    HERE\n    optimizer.zero_grad()\n    optimizer.step()")
    assert "O04/cleared-too-late" in variants(START + BEFORE[line] + loop.replace("HERE", HERE[line]))


@pytest.mark.parametrize("line", HERE)
def test_a_loop_that_clears_is_right(line: str) -> None:
    loop = LOOP.replace("loss.backward()", "optimizer.zero_grad()\n    loss.backward()").replace("HERE", HERE[line])
    assert not {variant for variant in variants(START + BEFORE[line] + loop) if variant.startswith("O04")}


def test_optimizers_in_a_dict_are_stepped_one_by_one() -> None:
    loop = """
class Trainer:
    def __init__(self, model, optimizers, schedulers):
        self.model, self.optimizers, self.schedulers = model, optimizers, schedulers

    def run(self, loader):
        for x, y in loader:
            loss = nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            for v in self.optimizers.values():
                v.zero_grad()
            for v in self.optimizers.values():
                v.step()
            for k, v in self.schedulers.items():
                v.step()
"""
    assert "O04/cleared-too-late" in variants("import torch\nfrom torch import nn\n" + loop)


def test_networks_in_a_namespace_are_called() -> None:
    text = START.replace("optimizer =", "nets = Munch(head=model)\noptimizer =") + LOOP.replace(
        "model(x)", "nets.head(x)"
    )
    assert "O04/never-cleared" in variants("from munch import Munch\n" + text.replace("HERE", "pass"))


def test_an_attribute_called_grad_of_an_object_is_no_gradient() -> None:
    text = """
import torch
from torch import nn


class Estimate:
    def __init__(self):
        self.grad = None

    def keep(self, value):
        self.grad = value
        self.grad = None


estimate = Estimate()
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in [(torch.randn(16, 4), torch.randint(0, 3, (16,))) for _ in range(100)]:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    estimate.keep(1.0)
    optimizer.step()
"""
    assert not {variant for variant in variants(text) if variant.startswith("O04")}


def test_many_conditions_leave_an_order_that_can_be_judged() -> None:
    flags = "\n".join(f"    if flags[{number}] and step % {number + 2} == 0:\n        continue" for number in range(12))
    body = LOOP.replace("    loss =", f"{flags}\n    loss =").replace("HERE", "pass")
    assert "O04/never-cleared" in variants(START + "flags = [False] * 12\n" + body)


def test_an_evaluation_of_many_unread_calls_leaves_an_order_that_can_be_judged() -> None:
    calls = "\n".join(f"        if kind == {number}:\n            advise(model, {number})" for number in range(12))
    before = "from elsewhere import advise, kinds\n"
    late = LOOP.replace("optimizer.step()", "optimizer.zero_grad()\n    optimizer.step()")
    loop = late.replace("HERE", f"for kind in kinds(step):\n{calls}")
    assert "O04/cleared-too-late" in variants(START + before + loop)
