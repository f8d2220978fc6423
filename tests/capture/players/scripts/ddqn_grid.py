import copy
import random

import numpy as np
import torch
from torch import nn


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


class ReplayBuffer:
    def __init__(self, cap, n):
        self.s = np.zeros((cap, n), np.float32)
        self.s2 = np.zeros((cap, n), np.float32)
        self.a = np.zeros(cap, np.int64)
        self.r = np.zeros(cap, np.float32)
        self.d = np.zeros(cap, np.float32)
        self.i = self.full = 0
        self.cap = cap

    def add(self, s, a, r, s2, d):
        k = self.i % self.cap
        self.s[k], self.a[k], self.r[k], self.s2[k], self.d[k] = s, a, r, s2, d
        self.i += 1

    def sample(self, n):
        idx = np.random.randint(0, min(self.i, self.cap), n)
        return [torch.from_numpy(x[idx]) for x in (self.s, self.a, self.r, self.s2, self.d)]


np.random.seed(0)
random.seed(0)
torch.manual_seed(0)
env = Corridor(n=10)
online = nn.Sequential(nn.Linear(env.n, 64), nn.ReLU(), nn.Linear(64, 2))
target = copy.deepcopy(online)
optim = torch.optim.AdamW(online.parameters(), lr=2e-3)
crit = nn.SmoothL1Loss()
buf = ReplayBuffer(5000, env.n)
eps, log = 1.0, []
for ep in range(150):
    s, _ = env.reset()
    total = 0.0
    while True:
        if np.random.rand() < eps:
            a = np.random.randint(2)
        else:
            a = online(torch.from_numpy(s)[None]).argmax().item()
        s2, r, term, trunc, _ = env.step(a)
        buf.add(s, a, r, s2, term)
        total += r
        s = s2
        if buf.i > 100:
            S, A, R, S2, D = buf.sample(32)
            with torch.no_grad():
                best = online(S2).argmax(1, keepdim=True)
                nxt = target(S2).gather(1, best).squeeze(1)
                y = R + 0.95 * (1 - D) * nxt
            pred = online(S).gather(1, A[:, None]).squeeze(1)
            loss = crit(pred, y)
            optim.zero_grad()
            loss.backward()
            optim.step()
            with torch.no_grad():
                for p, tp in zip(online.parameters(), target.parameters(), strict=True):
                    tp.mul_(0.99).add_(0.01 * p)
        if term or trunc:
            break
    eps = max(0.05, eps * 0.97)
    log.append(total)
    if ep % 50 == 49:
        print(ep + 1, np.mean(log[-50:]))
