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
    "a dict that grows": "from munch import Munch\nparts = {}\nparts[str(data)] = model\nparts['head'] = model",
    "a rate that is set": "from schedules import adjust_learning_rate",
    "a warmup": "from schedules import warmup_lr",
    "a function that goes into data of any kind": """
from elsewhere import fields

def for_each(data, kind, function):
    made = type(data)
    if isinstance(data, kind):
        return function(data)
    if isinstance(data, dict):
        return made({key: for_each(value, kind, function) for key, value in data.items()})
    if hasattr(data, "of"):
        for name in data.of:
            setattr(data, name, for_each(getattr(data, name), kind, function))
        raise OddDataError(data)
    return data
""",
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
    "a dict that grows": "Munch(parts)",
    "a rate that is set": "adjust_learning_rate(optimizer, step)",
    "a warmup": "warmup_lr(optimizer, step)",
    "a function that goes into data of any kind": 'for_each({"x": loss}, torch.Tensor, lambda x: x.detach())',
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


LIGHTNING = """
import lightning as L
import torch
from torch import nn


class Gan(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Linear(4, 4)
        self.critic = nn.Linear(4, 1)

    def training_step(self, batch, i):
        first, second = self.optimizers()
        loss = self.critic(self.generator(batch)).mean()
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        loss = self.critic(self.generator(batch).detach()).mean()
        second.zero_grad()
        self.manual_backward(loss)
        second.step()

    def configure_optimizers(self):
        return RETURNED
"""
TWO = "torch.optim.Adam(self.generator.parameters()), torch.optim.Adam(self.critic.parameters())"


NAMED = '{"optimizer": torch.optim.Adam(self.parameters()), "monitor": "loss"}'


def test_one_optimizer_of_lightning_comes_alone() -> None:
    text = LIGHTNING.replace("first, second = self", "first = second = self").replace("RETURNED", NAMED)
    assert not {variant for variant in variants(text) if variant.startswith("O04")}


@pytest.mark.parametrize("returned", [TWO, f"[{TWO}], []"])
def test_manual_optimization_in_lightning_is_read(returned: str) -> None:
    right = LIGHTNING.replace("RETURNED", returned)
    assert not {variant for variant in variants(right) if variant.startswith("O04")}
    wrong = right.replace("        second.step()\n", "        second.zero_grad()\n        second.step()\n")
    assert "O04/cleared-too-late" in variants(wrong)


def test_an_optimizer_that_goes_to_unknown_callers_may_be_stepped_there() -> None:
    text = LIGHTNING.replace("RETURNED", TWO).replace("L.LightningModule", "base.Trained")
    assert not {variant for variant in variants("import base\n" + text) if variant.startswith("O04/no-step")}


DEEPSPEED = """
import deepspeed
from torch import nn


def train(args, net, loader):
    model, optimizer, _, _ = deepspeed.initialize(args=args, model=net, model_parameters=net.parameters())
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        model.backward(loss)
        LAST
"""


def test_a_part_of_an_engine_is_one() -> None:
    assert not {v for v in variants(DEEPSPEED.replace("LAST", "model.step()")) if v.startswith("O04")}


SENT = """
import torch
from torch import nn

model, shared = nn.Linear(4, 3), nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in [(torch.randn(16, 4), torch.randint(0, 3, (16,))) for _ in range(100)]:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    LINE
    for mine, theirs in zip(model.parameters(), shared.parameters()):
        mine.data.copy_(theirs.data.clone())
"""


@pytest.mark.parametrize(
    "line", ["queue.put([p.grad.clone() for p in model.parameters()])", "send(*(p.grad for p in ps))"]
)
def test_gradients_that_are_sent_elsewhere_are_applied_there(line: str) -> None:
    assert not {variant for variant in variants(SENT.replace("LINE", line)) if variant.startswith("O04")}


def test_gradients_that_are_only_measured_are_not() -> None:
    line = "norm = sum(p.grad.data.norm(2) for p in model.parameters())"
    assert "O04/no-step" in variants(SENT.replace("LINE", line))


def test_a_question_that_is_asked_again_and_again_is_read_once() -> None:
    statements = "\n".join(f"    found = found + {number}" for number in range(100))
    helper = f"def version():\n    found = 0\n{statements}\n    return str(found)\n"
    late = LOOP.replace("optimizer.step()", "optimizer.zero_grad()\n    optimizer.step()").replace("HERE", "pass")
    function = "def train():\n" + "\n".join(f"    {line}" for line in late.split("\n")) + "\n"
    asked = "\n".join("version()" for _ in range(300))
    assert "O04/cleared-too-late" in variants(f"{START}\n{helper}\n{function}\n{asked}\ntrain()\n")


def test_a_function_that_steps_is_read_each_time() -> None:
    text = f"""{START}
def update():
    optimizer.step()
    optimizer.zero_grad()


update()
for x, y in data:
    criterion(model(x), y).backward()
    update()
"""
    assert not {variant for variant in variants(text) if variant.startswith("O04")}
