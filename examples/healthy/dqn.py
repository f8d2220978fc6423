"""Deep Q-learning with a replay buffer and a target network: steer a drifting boat back to the middle of a river."""

import random
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn

ACTIONS = 3
EPISODE = 25
STEPS = 1600
LEARN_AFTER = 200
LEARN_EVERY = 4
COPY_EVERY = 50
BATCH_SIZE = 64
GAMMA = 0.9


class River:
    """The boat has a place and a speed; it is rewarded for being near the middle."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def reset(self) -> list[float]:
        self.place, self.speed, self.time = self.rng.uniform(-1.5, 1.5), self.rng.uniform(-0.3, 0.3), 0
        return [self.place, self.speed]

    def step(self, action: int) -> tuple[list[float], float, bool]:
        self.speed = 0.9 * self.speed + 0.15 * (action - 1) + self.rng.gauss(0.0, 0.02)
        self.place = max(-2.0, min(2.0, self.place + self.speed))
        self.time += 1
        return [self.place, self.speed], 1.0 - abs(self.place), self.time >= EPISODE


class QNetwork(nn.Module):
    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, ACTIONS)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.out(F.relu(self.fc2(F.relu(self.fc1(states)))))


class Agent:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.policy, self.target = QNetwork(), QNetwork()
        self.target.load_state_dict(self.policy.state_dict())
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-3)
        self.memory: deque = deque(maxlen=2000)

    def act(self, state: list[float], epsilon: float) -> int:
        if self.rng.random() < epsilon:
            return self.rng.randrange(ACTIONS)
        with torch.no_grad():
            return self.policy(torch.tensor(state)).argmax().item()

    def learn(self) -> float:
        states, actions, rewards, next_states = zip(*self.rng.sample(self.memory, BATCH_SIZE), strict=True)
        chosen = self.policy(torch.tensor(states)).gather(1, torch.tensor(actions).unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            # An episode ends because its time is over, not because the boat is lost: the future always counts.
            future = self.target(torch.tensor(next_states)).max(1).values
            wanted = torch.tensor(rewards) + GAMMA * future
        loss = F.smooth_l1_loss(chosen, wanted)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 10.0)
        self.optimizer.step()
        return loss.item()


def main() -> None:
    torch.manual_seed(0)
    river, agent = River(seed=1), Agent(seed=2)
    returns, losses, current = [], [], 0.0
    state = river.reset()
    for step in range(STEPS):
        epsilon = max(0.05, 1.0 - step / (0.6 * STEPS))
        action = agent.act(state, epsilon)
        next_state, reward, done = river.step(action)
        agent.memory.append((state, action, reward, next_state))
        current += reward
        state = next_state
        if done:
            returns.append(current)
            state, current = river.reset(), 0.0
        if step >= LEARN_AFTER and step % LEARN_EVERY == 0:
            losses.append(agent.learn())
        if step % COPY_EVERY == 0:
            agent.target.load_state_dict(agent.policy.state_dict())
    print(f"{len(losses)} updates, loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    print(f"return {sum(returns[:10]) / 10:.2f} -> {sum(returns[-10:]) / 10:.2f}")


if __name__ == "__main__":
    main()
