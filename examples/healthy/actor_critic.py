"""Actor-critic with an optimizer for each: choose, of four machines, the one whose light is brightest."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical

MACHINES = 4
ROUNDS = 300
PLAYERS = 64


def lights() -> torch.Tensor:
    return torch.randn(PLAYERS, MACHINES)


def payout(brightness: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """A machine pays what its light shows, give or take."""
    return brightness.gather(1, chosen.unsqueeze(1)).squeeze(1) + 0.3 * torch.randn(PLAYERS)


class Actor(nn.Module):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.fc = nn.Linear(MACHINES, hidden)
        self.out = nn.Linear(hidden, MACHINES)

    def forward(self, brightness: torch.Tensor) -> Categorical:
        return Categorical(logits=self.out(torch.relu(self.fc(brightness))))


class Critic(nn.Module):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.fc = nn.Linear(MACHINES, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, brightness: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.fc(brightness))).squeeze(1)


def main() -> None:
    torch.manual_seed(0)
    actor, critic = Actor(), Critic()
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=5e-3)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=5e-3)
    rewards = []
    for step in range(ROUNDS):
        brightness = lights()
        policy = actor(brightness)
        chosen = policy.sample()
        reward = payout(brightness, chosen)

        expected = critic(brightness)
        critic_loss = F.mse_loss(expected, reward)
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()

        advantage = reward - expected.detach()
        actor_loss = -(policy.log_prob(chosen) * advantage).mean() - 0.01 * policy.entropy().mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
        actor_optimizer.step()

        rewards.append(reward.mean().item())
        if (step + 1) % 100 == 0:
            print(f"round {step + 1}: reward {sum(rewards[-50:]) / 50:.3f}, critic loss {critic_loss.item():.3f}")
    print(f"reward {sum(rewards[:10]) / 10:.3f} -> {sum(rewards[-50:]) / 50:.3f}")


if __name__ == "__main__":
    main()
