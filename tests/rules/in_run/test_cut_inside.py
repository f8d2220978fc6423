"""A model whose first layers never get a gradient: cut off by mistake, or one of the designs that only look so."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

from tests.rules.in_run.pace_runs import Recorded
from unstuck.judge import judge
from unstuck.rule import find_rule

RULE = find_rule("O03")
assert RULE is not None


def through_numpy(states: Tensor) -> Tensor:
    return torch.from_numpy(np.sort(states.detach().numpy(), axis=1))


class Reader(nn.Module):
    """An encoder, something in between, and a head."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.Tanh())
        self.head = nn.Linear(16, 1)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(self.encoder(x)))


class Unrecorded(Reader):
    """The encoder is left alone on purpose."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            states = self.encoder(x)
        return self.head(states)


class WithUnusedHead(Reader):
    """A second head that runs and is only looked at."""

    def __init__(self) -> None:
        super().__init__(nn.Identity())
        self.probe = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        states = self.encoder(x)
        self.seen = self.probe(states).argmax(1)
        return self.head(states)


class WithTarget(Reader):
    """A slow copy beside the encoder, whose output is a goal and nothing more."""

    def __init__(self) -> None:
        super().__init__(nn.Identity())
        self.target = nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        states = self.encoder(x)
        return self.head(states) + (states - self.target(x).detach()).square().mean()


class OneOrTheOther(Reader):
    """The first layer is used in some steps only."""

    def __init__(self) -> None:
        super().__init__(nn.Identity())
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        states = self.encoder(x)
        return self.head(states if self.count > 40 else states.detach())


def training(model: nn.Module, steps: int = 60) -> Callable[[], None]:
    def run() -> None:
        optimizer = Adam([p for p in model.parameters() if p.requires_grad] or model.parameters(), lr=1e-2)
        for _ in range(steps):
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            F.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()

    return run


def frozen() -> nn.Module:
    model = Reader(torch.detach)
    model.encoder.requires_grad_(False)
    return model


def messages(recorded: Recorded, run: Callable[[], None]) -> list[str]:
    verdict = judge(record=recorded(run), rules=[RULE])
    assert not verdict.failures
    return [diagnosis.lead.message for diagnosis in verdict.diagnoses]


@pytest.mark.parametrize("between", [through_numpy, torch.detach], ids=["numpy", "detach"])
def test_an_encoder_that_is_cut_off(recorded: Recorded, between: Callable[[Tensor], Tensor]) -> None:
    (message,) = messages(recorded, training(Reader(between)))
    assert message.startswith("2 of 4 trainable parameters of Reader never got a gradient")
    assert "encoder.0.weight, encoder.0.bias" in message


class Sentences(nn.Module):
    """A recurrent layer, whose output is a tuple, and a choice of words that lets no gradient through."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.words = nn.Embedding(8, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rnn(self.embed((x.abs() * 5).long().clamp(max=19)))
        return self.head(self.words(states[:, -1].argmax(1)))


def test_a_recurrent_layer_before_an_argmax_in_a_program_that_loads_its_best_weights(recorded: Recorded) -> None:
    model = Sentences()

    def run() -> None:
        training(model)()
        model.load_state_dict(model.state_dict())

    (diagnosis,) = judge(record=recorded(run), rules=[RULE]).diagnoses
    assert "embed.weight, rnn.weight_ih_l0" in diagnosis.lead.message
    assert diagnosis.lead.severity.value == "error"


@pytest.mark.parametrize(
    "model",
    [
        lambda: Reader(nn.Identity()),
        lambda: Reader(torch.round),  # It lets a gradient of 0 through, which is none the less there.
        frozen,
        lambda: Unrecorded(nn.Identity()),
        WithUnusedHead,
        WithTarget,
        OneOrTheOther,
    ],
    ids=["whole", "rounded", "frozen", "unrecorded", "unused-head", "target", "now-and-then"],
)
def test_designs_that_only_look_cut_off(recorded: Recorded, model: Callable[[], nn.Module]) -> None:
    assert messages(recorded, training(model())) == []


def test_weights_that_were_loaded_may_stay_as_they_are(recorded: Recorded) -> None:
    def probing() -> None:
        model = Reader(torch.detach)
        model.encoder.load_state_dict(nn.Sequential(nn.Linear(8, 16), nn.Tanh()).state_dict())
        training(model)()

    assert messages(recorded, probing) == []


def test_an_optimizer_of_its_own_for_each_half(recorded: Recorded) -> None:
    def halves() -> None:
        model = Reader(torch.detach)
        mine, other = Adam(model.head.parameters(), lr=1e-2), Adam(model.encoder.parameters(), lr=1e-2)
        for _ in range(30):
            x = torch.randn(16, 8)
            mine.zero_grad()
            other.zero_grad()
            loss = F.mse_loss(model(x), x.sum(1, keepdim=True)) + model.encoder(x).square().mean()
            loss.backward()
            mine.step()
            other.step()

    assert messages(recorded, halves) == []
