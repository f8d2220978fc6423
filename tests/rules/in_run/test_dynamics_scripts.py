"""Rules about magnitudes on real runs: look-alikes that must stay silent, and sick runs that pages do not show."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from unstuck.judge import judge
from unstuck.record import read
from unstuck.rule import find_rule
from unstuck.testing.runs import run_server

CODES = ("O07", "O22", "O25", "O26", "G04", "G05", "G07", "G08", "G09", "G17", "G18", "M14")
START = """
import torch
from torch import nn
torch.manual_seed(0)
"""

WASSERSTEIN = """
G = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
D = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
step_g, step_d = torch.optim.RMSprop(G.parameters(), lr=5e-4), torch.optim.RMSprop(D.parameters(), lr=5e-4)
for turn in range(40):
    for _ in range(2):
        fake = G(torch.randn(64, 8)).detach()
        loss = D(fake).mean() - D(torch.randn(64, 2) + 3).mean()
        step_d.zero_grad()
        loss.backward()
        step_d.step()
        for parameter in D.parameters():
            parameter.data.clamp_(-0.05, 0.05)
    loss = -D(G(torch.randn(64, 8))).mean()
    step_g.zero_grad()
    loss.backward()
    step_g.step()
"""

POLICY_GRADIENT = """
policy = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for episode in range(80):
    states = torch.randn(40, 4)
    actions = torch.distributions.Categorical(logits=policy(states))
    chosen = actions.sample()
    reward = (chosen == (states[:, 0] > 0).long()).float().flip(0).cumsum(0).flip(0)
    loss = -(actions.log_prob(chosen) * (reward - reward.mean()) / reward.std()).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

NOTHING_TO_LEARN = """
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(80):
    x, y = torch.randn(64, 16), torch.randint(0, 10, (64,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

LOW_RANK_ADAPTERS = """
class Adapted(nn.Module):
    def __init__(self, size_in, size_out):
        super().__init__()
        self.base = nn.Linear(size_in, size_out).requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(4, size_in) / size_in**0.5)
        self.lora_B = nn.Parameter(torch.zeros(size_out, 4))

    def forward(self, x):
        return self.base(x) + x @ self.lora_A.T @ self.lora_B.T

inputs = torch.randn(512, 16)
labels = (inputs[:, 0] > 0).long()
model = nn.Sequential(Adapted(16, 64), nn.ReLU(), Adapted(64, 64), nn.ReLU(), Adapted(64, 2))
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=5e-3)
for step in range(60):
    batch = torch.randint(0, 512, (64,))
    loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

TRANSFORMER_AT_A_HIGH_RATE = """
embed, head = nn.Embedding(20, 32), nn.Linear(32, 20)
layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
model = nn.Sequential(embed, layer, head)
optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
data = torch.randint(0, 20, (64, 17)).cumsum(1) % 20
for step in range(60):
    batch = data[torch.randint(0, 64, (16,))]
    loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

ALL_ZERO = """
inputs = torch.randn(512, 16)
labels = (inputs[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
for parameter in model.parameters():
    nn.init.zeros_(parameter)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    batch = torch.randint(0, 512, (64,))
    loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def found(script: str, folder: Path) -> list[str]:
    """What the rules about magnitudes say of a run of this script, the cause first."""
    (folder / "train.py").write_text(START + script, encoding="utf-8")
    run_server().run(str(folder), ["run", "--fail-on", "never", "train.py"])
    with contextlib.chdir(folder):
        record = read(next((folder / ".unstuck/runs").iterdir()))
        rules = [rule for code in CODES if (rule := find_rule(code)) is not None]
        verdict = judge(record=record, rules=rules)
    assert record.crash is None
    assert not verdict.failures
    return [diagnosis.lead.code for diagnosis in verdict.diagnoses]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(WASSERSTEIN, id="Wasserstein GAN", marks=pytest.mark.slow),
        pytest.param(POLICY_GRADIENT, id="policy gradient", marks=pytest.mark.slow),
        pytest.param(NOTHING_TO_LEARN, id="random labels"),
        pytest.param(LOW_RANK_ADAPTERS, id="LoRA"),
    ],
)
def test_look_alikes_stay_silent(script: str, tmp_path: Path) -> None:
    assert found(script, tmp_path) == []


def test_a_transformer_at_a_rate_a_thousand_times_too_high(tmp_path: Path) -> None:
    assert found(TRANSFORMER_AT_A_HIGH_RATE, tmp_path)[0] == "M14"


def test_weights_of_zero_are_named_as_the_cause(tmp_path: Path) -> None:
    assert found(ALL_ZERO, tmp_path)[0] == "G17"
