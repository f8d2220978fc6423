"""Proximal policy optimisation: many points on a line learn to walk to their goals."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical

WALKERS = 32
HORIZON = 16
ITERATIONS = 12
EPOCHS = 4
MINIBATCH = 128
GAMMA, LAMBDA, CLIP = 0.9, 0.95, 0.2


class Line:
    """Each walker sees how far its goal is; walking there earns reward, and the goal then moves on."""

    def __init__(self) -> None:
        self.gap = 2 * torch.rand(WALKERS) - 1

    def observe(self) -> torch.Tensor:
        return torch.stack([self.gap, self.gap.sign()], dim=1)

    def step(self, actions: torch.Tensor) -> torch.Tensor:
        before = self.gap.abs()
        self.gap = self.gap - 0.2 * (actions - 1)
        rewards = 2 * (before - self.gap.abs())
        reached = self.gap.abs() < 0.15
        self.gap = torch.where(reached, 2 * torch.rand(WALKERS) - 1, self.gap)
        return rewards


class ActorCritic(nn.Module):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 3))
        self.critic = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        # A policy that begins almost uniform explores.
        nn.init.orthogonal_(self.actor[-1].weight, gain=0.01)
        nn.init.zeros_(self.actor[-1].bias)

    def forward(self, states: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        return Categorical(logits=self.actor(states)), self.critic(states).squeeze(-1)


@torch.no_grad()
def rollout(line: Line, model: ActorCritic) -> tuple[dict[str, torch.Tensor], float]:
    """Play, then give every step its advantage (GAE) and its return."""
    states, actions, log_probs, values, rewards = [], [], [], [], []
    for _ in range(HORIZON):
        state = line.observe()
        policy, value = model(state)
        action = policy.sample()
        states.append(state)
        actions.append(action)
        log_probs.append(policy.log_prob(action))
        values.append(value)
        rewards.append(line.step(action))
    _, following = model(line.observe())
    advantages, advantage = [], torch.zeros(WALKERS)
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        advantage = reward + GAMMA * following - value + GAMMA * LAMBDA * advantage
        advantages.insert(0, advantage)
        following = value
    kept = {"states": states, "actions": actions, "log_probs": log_probs, "values": values, "advantages": advantages}
    batch = {name: torch.cat(parts) for name, parts in kept.items()}
    batch["returns"] = batch["advantages"] + batch["values"]
    return batch, torch.stack(rewards).mean().item()


def ppo_loss(model: ActorCritic, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    policy, values = model(batch["states"])
    ratio = torch.exp(policy.log_prob(batch["actions"]) - batch["log_probs"])
    advantages = batch["advantages"]
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    policy_loss = -torch.min(ratio * advantages, clipped * advantages).mean()
    value_loss = F.mse_loss(values, batch["returns"])
    return policy_loss + 0.5 * value_loss - 0.01 * policy.entropy().mean()


def main() -> None:
    torch.manual_seed(0)
    line, model = Line(), ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-5)
    rewards = []
    for iteration in range(ITERATIONS):
        batch, reward = rollout(line, model)
        rewards.append(reward)
        for _ in range(EPOCHS):
            for chosen in torch.randperm(WALKERS * HORIZON).split(MINIBATCH):
                loss = ppo_loss(model, {name: values[chosen] for name, values in batch.items()})
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
        print(f"iteration {iteration + 1}: reward per step {reward:.3f}")
    print(f"reward {rewards[0]:.3f} -> {rewards[-1]:.3f}")


if __name__ == "__main__":
    main()
