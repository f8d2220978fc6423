"""Learn a simulator of a damped, driven pendulum: a network predicts the next state, fed with its own output."""

import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Experiment:
    trajectories: int = 600
    horizon: int = 24
    dt: float = 0.1
    hidden: int = 64
    batch_size: int = 32
    updates: int = 500
    lr: float = 0.02
    momentum: float = 0.9
    log_interval: int = 25
    seed: int = 17


def simulate(exp: Experiment, generator: torch.Generator) -> torch.Tensor:
    """States (angle, speed) of shape (trajectories, horizon + 1, 2), integrated in small steps."""
    angle = 3.0 * (torch.rand(exp.trajectories, generator=generator) - 0.5)
    speed = 3.0 * (torch.rand(exp.trajectories, generator=generator) - 0.5)
    states = [torch.stack([angle, speed], 1)]
    substeps = 10
    for _ in range(exp.horizon):
        for _ in range(substeps):
            acceleration = -4.0 * torch.sin(angle) - 0.3 * speed
            speed = speed + exp.dt / substeps * acceleration
            angle = angle + exp.dt / substeps * speed
        states.append(torch.stack([angle, speed], 1))
    return torch.stack(states, 1)


class Simulator(nn.Module):
    def __init__(self, hidden: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(2, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 2),
        )

    def forward(self, start: torch.Tensor, horizon: int) -> torch.Tensor:
        state, path = start, []
        for _ in range(horizon):
            state = state + self.body(state)
            path.append(state)
        return torch.stack(path, 1)


def rollout_loss(model: Simulator, states: torch.Tensor) -> torch.Tensor:
    predicted = model(states[:, 0], states.shape[1] - 1)
    return nn.functional.mse_loss(predicted, states[:, 1:])


def learn(exp: Experiment) -> Simulator:
    torch.manual_seed(exp.seed)
    generator = torch.Generator().manual_seed(exp.seed)
    train_states = simulate(exp, generator)
    test_states = simulate(exp, generator)[:200]

    model = Simulator(exp.hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=exp.lr, momentum=exp.momentum)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=exp.updates, eta_min=exp.lr / 20)

    total = 0.0
    for update in range(1, exp.updates + 1):
        picked = torch.randint(len(train_states), (exp.batch_size,))
        loss = rollout_loss(model, train_states[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        total += loss.item()
        if update % exp.log_interval == 0:
            model.eval()
            with torch.no_grad():
                test_rmse = math.sqrt(rollout_loss(model, test_states).item())
            model.train()
            print(f"{update:5d}  loss {total / exp.log_interval:.5f}  test rmse {test_rmse:.4f}")
            total = 0.0
    return model


if __name__ == "__main__":
    experiment = Experiment()
    simulator = learn(experiment)
    torch.save(simulator.state_dict(), "simulator.pt")
