"""Mistakes in scripts written in other ways than those of the pages, and look-alikes that must be left alone."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from unstuck.judge import judge
from unstuck.record import read
from unstuck.testing.runs import run_server

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
"""
ADVERSARIES = """
painter = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
of_painter = torch.optim.Adam(painter.parameters(), 1e-3, betas=(0.5, 0.999))
of_critic = torch.optim.Adam(critic.parameters(), 1e-3, betas=(0.5, 0.999))
one, none = torch.ones(32, 1), torch.zeros(32, 1)
judged = F.binary_cross_entropy_with_logits
for _ in range(40):
    fake = painter(torch.randn(32, 4))
    {clear_critic}
    (judged(critic(torch.randn(32, 2) + 2), one) + judged(critic(fake.detach()), none)).backward()
    of_critic.step()
    {clear_painter}
    judged(critic(fake), one).backward()
    of_painter.step()
"""
ACTOR_AND_CRITIC = """
actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
of_actor, of_critic = torch.optim.Adam(actor.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-3)
for _ in range(40):
    state = torch.randn(32, 4)
    choice = torch.distributions.Categorical(logits=actor(state))
    action, value = choice.sample(), critic(state).squeeze(1)
    reward = state[:, 0] * (2 * action - 1)
    of_actor.zero_grad()
    (-choice.log_prob(action) * (reward - value.detach())).mean().backward()
    of_actor.step()
    of_critic.zero_grad()
    F.mse_loss(value, reward).backward()
    {update}
"""
CLASSIFIER = """
X = torch.randn(512, 10)
Y = X[:, :3].argmax(1)
training = DataLoader(TensorDataset(X[:384], Y[:384]), 32, shuffle=True)
held_back = DataLoader(TensorDataset(X[384:], Y[384:]), 64)
net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
optimizer = torch.optim.{optimizer}
{before}
for epoch in range({epochs}):
    net.train()
    for number, (x, y) in enumerate(training):
        {turn}
    {after}
"""
TURN = "optimizer.zero_grad(); F.cross_entropy(net(x), y).backward(); {between}optimizer.step()"
SCALED = "optimizer.zero_grad(); scaler.scale(F.cross_entropy(net(x), y)).backward(); {step}; scaler.update()"
REGRESSION = """
X = torch.randn(1280, 10)
Y = X.sum(1, keepdim=True) * 5
{model}
optimizer = torch.optim.{optimizer}
for epoch in range({epochs}):
    for rows in torch.randperm(1280).split(32):
        optimizer.zero_grad()
        {loss}.backward()
        {between}
        optimizer.step()
"""
NET = "net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))"
MSE = "F.mse_loss(net(X[rows]), Y[rows])"


def classifier(turn: str, **others: object) -> str:
    """A training on a loader, with what is given in its places."""
    parts = {"optimizer": "Adam(net.parameters(), 3e-3)", "before": "", "epochs": 3, "after": "pass"}
    return HEAD + CLASSIFIER.format(**{**parts, "turn": turn, **others})


def regression(**others: object) -> str:
    """A training on noisy batches, with what is given in its places."""
    parts = {"model": NET, "loss": MSE, "optimizer": "SGD(net.parameters(), lr=1e-3)", "between": "pass", "epochs": 4}
    return HEAD + REGRESSION.format(**{**parts, **others})


def said(script: str, folder: Path) -> dict[str, str]:
    """What a run of the script shows, by code: the line that is named, and the sentence."""
    (folder / "train.py").write_text(script, encoding="utf-8")
    run_server().run(str(folder), ["run", "--fail-on", "never", "train.py"])
    with contextlib.chdir(folder):
        verdict = judge(record=read(next((folder / ".unstuck/runs").iterdir())))
    assert not verdict.failures
    lines = script.splitlines()
    places = {d.lead.code: d.lead.place.line if d.lead.place else 0 for d in reversed(verdict.diagnoses)}
    sentences = {d.lead.code: d.lead.message for d in reversed(verdict.diagnoses)}
    return {code: f"{lines[line - 1].strip()} | {sentences[code]}" for code, line in places.items()}


GUILTY = {
    "gradients taken away by hand": (
        classifier(TURN.format(between="net.apply(forget); "), before="def forget(layer):\n"
        "    for parameter in layer.parameters():\n        parameter.grad = None"),
        "O04", "although backward() had just computed some",
    ),
    "the critic of a GAN is never cleared": (
        HEAD + ADVERSARIES.format(clear_critic="pass", clear_painter="of_painter.zero_grad()"),
        "O04", "of_critic.step() | The gradients of Adam#2 were never cleared in 40 watched steps",
    ),
    "the generator of a GAN is never cleared": (
        HEAD + ADVERSARIES.format(clear_critic="critic.zero_grad()", clear_painter="pass"),
        "O04", "of_painter.step() | The gradients of Adam were never cleared in 40 watched steps",
    ),
    "one of two optimizers never steps": (
        HEAD + ACTOR_AND_CRITIC.format(update="pass"), "O04", "F.mse_loss(value, reward).backward() | Adam#2 cleared",
    ),
    "an accuracy computed with dropout on": (
        classifier(TURN.format(between=""), after="with torch.inference_mode():\n"
        "        right = sum((net(x).argmax(1) == y).sum() for x, y in held_back)"),
        "O05", "evaluated 3 times in train mode",
    ),
    "a last test in a function of its own": (
        classifier(TURN.format(between=""))
        + "\n@torch.no_grad()\ndef test_accuracy():\n"
        "    return [(net(rows).argmax(1) == 0).sum() for rows in X.split(64)]\ntest_accuracy()\n",
        "O05", "evaluated once in train mode",
    ),
    "a warm-down stepped for every micro-batch": (
        classifier("(F.cross_entropy(net(x), y) / 4).backward()\n        if number % 4 == 3:\n            "
        "optimizer.step(); optimizer.zero_grad()\n        decay.step()", epochs=8,
        before="decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=24)"),
        "O08", "decay.step() | LinearLR(total_iters=24)",
    ),
    "parameters() kept and used up": (
        classifier(TURN.format(between="nn.utils.clip_grad_norm_(kept, 1.0); "), before="kept = net.parameters()"),
        "G01", "received no parameters",
    ),
    "the wrong model is clipped": (
        classifier(TURN.format(between="nn.utils.clip_grad_norm_(other.parameters(), 1.0); "),
        before="other = nn.Linear(3, 3)"),
        "G01", "none of its parameters has a gradient",
    ),
    "a scaler that is updated and not stepped": (
        classifier(SCALED.format(step="optimizer.step()"), before="scaler = torch.amp.GradScaler('cpu')"),
        "G03", "Adam.step() was called instead of scaler.step()",
    ),
    "squares with a limit": (
        regression(loss="((net(X[rows]) - Y[rows]) ** 2).clamp(max=10.0).mean()"),
        "G19", "% of the losses are beyond it",
    ),
    "a rate that throws the weights away, and single losses of exactly 0": (
        classifier(TURN.format(between=""), optimizer="Adam(net.parameters(), lr=5.0)", epochs=10), "M14", "at lr 5 ",
    ),
    "gradients that explode within two steps": (
        regression(
            model="net = nn.Sequential(nn.Linear(10, 32), *[nn.Linear(32, 32) for _ in range(8)], nn.Linear(32, 1))\n"
            "for layer in net[1:-1]: nn.init.normal_(layer.weight, std=0.6)",
        ),
        "G08", "where 0.1 to 10 is usual, and step",
    ),
    "every step cut to nothing, on noisy batches": (
        regression(between="nn.utils.clip_grad_norm_(net.parameters(), 0.001)"), "G04", "and the loss is flat",
    ),
    "an output that is the same for all, on noisy batches": (
        regression(loss="F.mse_loss(net(X[rows] * 0), Y[rows])", epochs=8), "R08", "barely depend on the example",
    ),
    "a part that the file calls by another name": (
        HEAD
        + "class Named(nn.Module):\n    def __init__(self, name):\n        super().__init__()\n"
        "        body = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 16))\n"
        "        self.add_module(name, body)\n        self.head = nn.Linear(16, 3)\n"
        "def load(model, state): model.load_state_dict(state, strict=False)\n"
        "load(Named('backbone'), Named('encoder').state_dict())\n"
        "model = nn.Linear(3, 1)\nmodel(torch.ones(2, 3)).sum().backward()\n",
        "O20", "'encoder' in the file is called 'backbone' in the model",
    ),
    "means over unequal numbers of words": (
        HEAD
        + "net = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50))\noptimizer = torch.optim.SGD(net.parameters(), "
        "lr=0.1)\nfor step in range(120):\n    words = torch.randint(1, 50, (4, 40))\n    wanted = words * 3 % 50\n"
        "    wanted[:, (40 if step % 4 else 4):] = -100\n"
        "    (F.cross_entropy(net(words).flatten(0, 1), wanted.flatten()) / 4).backward()\n"
        "    if step % 4 == 3: optimizer.step(); optimizer.zero_grad()\n",
        "O09", "have from 16 to 160 targets",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", GUILTY)
def test_a_mistake_is_found_however_it_is_written(case: str, tmp_path: Path) -> None:
    script, code, words = GUILTY[case]
    found = said(script, tmp_path)
    assert words in found.get(code, ""), found


INNOCENT = {
    "a GAN that clears its models": HEAD
    + ADVERSARIES.format(clear_critic="critic.zero_grad()", clear_painter="painter.zero_grad()"),
    "two optimizers that both step": HEAD + ACTOR_AND_CRITIC.format(update="of_critic.step()"),
    "several passes with dropout on, for the spread": classifier(
        TURN.format(between=""),
        after="with torch.no_grad():\n        [torch.stack([net(x) for _ in range(5)]).std(0) for x, _ in held_back]",
    ),
    "a head of another name, left out": HEAD
    + "class Named(nn.Module):\n    def __init__(self, name):\n        super().__init__()\n"
    "        self.body = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 16))\n"
    "        self.add_module(name, nn.Linear(16, 3))\n"
    "print(Named('fc').load_state_dict(Named('head').state_dict(), strict=False))\n",
    "a warm-up that is over": classifier(
        TURN.format(between="") + "; warm_up.step()",
        before="warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)",
    ),
    "a distance with a margin": regression(
        loss="(4.0 - ((net(X[rows]) - Y[rows]) ** 2).clamp(max=4.0)).mean()", optimizer="SGD(net.parameters(), lr=1e-4)"
    ),
}


@pytest.mark.parametrize("case", INNOCENT)
def test_what_only_looks_guilty_is_left_alone(case: str, tmp_path: Path) -> None:
    assert not set(said(INNOCENT[case], tmp_path)) & {"O04", "O05", "O08", "O20", "G19"}


@pytest.mark.parametrize(("rate", "codes"), [(0.5, set()), (1e-3, {"R01"})], ids=["gone at once", "there for long"])
def test_a_small_network_that_begins_above_a_guess_by_chance(rate: float, codes: set[str], tmp_path: Path) -> None:
    script = (
        HEAD
        + f"""
x = torch.linspace(-1, 1, 100).unsqueeze(1)
y = x**2 + 0.2 * torch.rand(100, 1)
net = nn.Sequential(nn.Linear(1, 10), nn.ReLU(), nn.Linear(10, 1))
nn.init.constant_(net[2].bias, -0.8)
optimizer = torch.optim.SGD(net.parameters(), lr={rate})
for step in range(40):
    loss = F.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    )
    assert set(said(script, tmp_path)) & {"R01"} == codes


def test_the_rate_named_is_that_of_the_weights_it_is_said_of(tmp_path: Path) -> None:
    script = regression(
        model="net = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 3))\nnn.init.normal_(net[0].weight, "
        "std=1e-5)",
        optimizer="SGD([{'params': net[0].parameters(), 'lr': 3.0}, {'params': net[2].parameters(), 'lr': 1e-4}])",
        loss="F.cross_entropy(net(X[rows]), torch.randint(0, 3, (32,)))",
        epochs=5,
    )
    assert "At lr 0.0001" in said(script, tmp_path).get("O07", "")
