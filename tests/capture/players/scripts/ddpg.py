import copy
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Point:
    """Push a point to the origin."""

    def reset(self):
        self.x, self.t = np.random.uniform(-1, 1, 2).astype(np.float32), 0
        return self.x.copy()

    def step(self, action):
        self.x = np.clip(self.x + 0.2 * np.asarray(action, dtype=np.float32), -2, 2).astype(np.float32)
        self.t += 1
        return self.x.copy(), float(-np.square(self.x).sum()), self.t >= 20, {}


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2), nn.Tanh())

    def forward(self, s):
        return self.net(s)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, s, a):
        return self.net(torch.cat([s, a], 1))


np.random.seed(0)
random.seed(0)
torch.manual_seed(0)
env, actor, critic = Point(), Actor(), Critic()
ta, tc = copy.deepcopy(actor), copy.deepcopy(critic)
oa = torch.optim.Adam(actor.parameters(), 1e-3)
oc = torch.optim.Adam(critic.parameters(), 2e-3)
buf, rets = [], []
for _ in range(60):
    s, done, tot = env.reset(), False, 0.0
    while not done:
        with torch.no_grad():
            a = actor(torch.tensor(s)[None])[0].numpy()
        a = np.clip(a + 0.2 * np.random.randn(2), -1, 1).astype(np.float32)
        s2, r, done, _ = env.step(a)
        buf.append((s, a, r, s2))
        s, tot = s2, tot + r
        if len(buf) > 100:
            S, A, R, S2 = (torch.tensor(np.array(v)) for v in zip(*random.sample(buf, 64), strict=True))
            with torch.no_grad():
                y = R.float()[:, None] + 0.95 * tc(S2, ta(S2))
            lc = F.mse_loss(critic(S, A), y)
            oc.zero_grad()
            lc.backward()
            oc.step()
            la = -critic(S, actor(S)).mean()
            oa.zero_grad()
            la.backward()
            oa.step()
            for m, t in ((actor, ta), (critic, tc)):
                for p, q in zip(m.parameters(), t.parameters(), strict=True):
                    q.data.lerp_(p.data, 0.01)
    rets.append(tot)
print(np.mean(rets[:10]), np.mean(rets[-10:]))
