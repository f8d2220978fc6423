import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Corridor:
    """Walk to the right end; the left end is a trap."""

    def __init__(self, n=8, seed=0):
        self.n, self.rng = n, random.Random(seed)

    def obs(self):
        o = np.zeros(self.n, dtype=np.float32)
        o[self.pos] = 1.0
        return o

    def reset(self, seed=None):
        self.pos, self.t = self.rng.randrange(2, self.n - 2), 0
        return self.obs(), {}

    def step(self, action):
        self.pos += 1 if action == 1 else -1
        self.t += 1
        done = self.pos in (0, self.n - 1)
        reward = 1.0 if self.pos == self.n - 1 else (-1.0 if self.pos == 0 else -0.02)
        return self.obs(), reward, done, self.t >= 40, {}


class Policy(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.l1 = nn.Linear(n, 32)
        self.l2 = nn.Linear(32, 2)

    def forward(self, x):
        return F.softmax(self.l2(torch.tanh(self.l1(x))), dim=-1)


def rollout(env, policy):
    states, actions, rewards = [], [], []
    obs, _ = env.reset()
    while True:
        with torch.no_grad():
            p = policy(torch.as_tensor(obs).unsqueeze(0)).squeeze(0).numpy()
        a = np.random.choice(2, p=p / p.sum())
        nxt, r, term, trunc, _ = env.step(a)
        states.append(obs)
        actions.append(a)
        rewards.append(r)
        obs = nxt
        if term or trunc:
            return states, actions, rewards


def discount(rewards, gamma):
    out = np.zeros(len(rewards), dtype=np.float32)
    running = 0.0
    for i in reversed(range(len(rewards))):
        running = rewards[i] + gamma * running
        out[i] = running
    return out


def main():
    np.random.seed(0)
    torch.manual_seed(0)
    env = Corridor()
    policy = Policy(env.n)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    for it in range(80):
        S, A, G, total = [], [], [], 0.0
        for _ in range(5):
            s, a, r = rollout(env, policy)
            S += s
            A += a
            G.append(discount(r, 0.95))
            total += sum(r)
        S = torch.as_tensor(np.array(S))
        A = torch.as_tensor(np.array(A))
        G = torch.as_tensor(np.concatenate(G))
        logp = torch.log(policy(S).gather(1, A.view(-1, 1)).squeeze(1))
        loss = -(logp * G).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if it % 20 == 19:
            print(it, total / 5)


if __name__ == "__main__":
    main()
