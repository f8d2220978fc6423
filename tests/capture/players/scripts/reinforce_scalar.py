import math

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical


class CartPole:
    def __init__(self, seed=0, limit=200):
        self.rng = np.random.default_rng(seed)
        self.limit = limit

    def reset(self):
        self.s = self.rng.uniform(-0.05, 0.05, 4)
        self.t = 0
        return self.s.astype(np.float32)

    def step(self, action):
        x, v, th, w = self.s
        f = 10.0 if action == 1 else -10.0
        tmp = (f + 0.05 * w * w * math.sin(th)) / 1.1
        acc = (9.8 * math.sin(th) - math.cos(th) * tmp) / (0.5 * (4 / 3 - 0.1 * math.cos(th) ** 2 / 1.1))
        xa = tmp - 0.05 * acc * math.cos(th) / 1.1
        self.s = np.array([x + 0.02 * v, v + 0.02 * xa, th + 0.02 * w, w + 0.02 * acc])
        self.t += 1
        done = bool(abs(self.s[0]) > 2.4 or abs(self.s[2]) > 0.209 or self.t >= self.limit)
        return self.s.astype(np.float32), 1.0, done, {}


torch.manual_seed(1)
env = CartPole(seed=1)
policy = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
opt = torch.optim.Adam(policy.parameters(), lr=5e-3)
gamma = 0.99
history = []
for episode in range(150):
    s = env.reset()
    done = False
    log_probs, rewards = [], []
    while not done:
        dist = Categorical(logits=policy(torch.from_numpy(s)))
        a = dist.sample()
        log_probs.append(dist.log_prob(a))
        s, r, done, _ = env.step(a.item())
        rewards.append(r)
    returns, g = [], 0.0
    for r in reversed(rewards):
        g = r + gamma * g
        returns.insert(0, g)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-8)
    loss = -(torch.stack(log_probs) * returns).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    history.append(sum(rewards))
    if episode % 25 == 24:
        print(episode + 1, np.mean(history[-25:]))
