import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


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


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh())
        self.pi = nn.Linear(64, 2)
        self.v = nn.Linear(64, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.v(h)


torch.manual_seed(0)
env = CartPole(seed=3)
net = ActorCritic()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
scores = []
for ep in range(80):
    state, done = env.reset(), False
    logps, values, rewards, entropies = [], [], [], []
    while not done:
        logits, value = net(torch.tensor(state).unsqueeze(0))
        dist = torch.distributions.Categorical(logits=logits)
        action = dist.sample()
        state, reward, done, _ = env.step(int(action))
        logps.append(dist.log_prob(action))
        entropies.append(dist.entropy())
        values.append(value.squeeze(-1))
        rewards.append(reward / 10)
    R, returns = 0, []
    for r in rewards[::-1]:
        R = r + 0.98 * R
        returns.append(R)
    returns = torch.tensor(returns[::-1])
    values = torch.cat(values)
    logps = torch.cat(logps)
    adv = returns - values.detach()
    policy_loss = -(logps * adv).mean()
    value_loss = F.smooth_l1_loss(values, returns)
    loss = policy_loss + 0.5 * value_loss - 0.01 * torch.cat(entropies).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    scores.append(sum(rewards) * 10)
    if ep % 50 == 49:
        print(ep + 1, sum(scores[-50:]) / 50)
