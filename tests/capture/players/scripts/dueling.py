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


class Dueling(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n, 64), nn.ReLU())
        self.v, self.a = nn.Linear(64, 1), nn.Linear(64, 2)

    def forward(self, x):
        h = self.body(x)
        a = self.a(h)
        return self.v(h) + a - a.mean(1, keepdim=True)


random.seed(1)
torch.manual_seed(1)
env = Corridor(n=9, seed=1)
net, tgt = Dueling(9), Dueling(9)
tgt.load_state_dict(net.state_dict())
opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
mem, returns, k = [], [], 0
for _ in range(120):
    obs, _ = env.reset()
    tot, over = 0, False
    while not over:
        eps = max(0.05, 1 - k / 600)
        k += 1
        if random.random() > eps:
            with torch.no_grad():
                act = net(torch.tensor(obs).unsqueeze(0)).max(1)[1].item()
        else:
            act = random.choice([0, 1])
        nobs, rew, term, trunc, _ = env.step(act)
        over = term or trunc
        mem.append((obs, act, rew, None if term else nobs))
        obs, tot = nobs, tot + rew
        if len(mem) < 64:
            continue
        batch = random.sample(mem, 64)
        s = torch.tensor(np.stack([b[0] for b in batch]))
        a = torch.tensor([b[1] for b in batch])
        r = torch.tensor([b[2] for b in batch])
        alive = torch.tensor([b[3] is not None for b in batch])
        n = torch.tensor(np.stack([b[3] for b in batch if b[3] is not None]))
        nv = torch.zeros(64)
        with torch.no_grad():
            nv[alive] = tgt(n).max(1).values
        td = r + 0.97 * nv - net(s)[torch.arange(64), a]
        loss = torch.where(td.abs() < 1, 0.5 * td**2, td.abs() - 0.5).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if k % 100 == 0:
            tgt.load_state_dict(net.state_dict())
    returns.append(tot)
print(np.mean(returns[:30]), np.mean(returns[-30:]))
