import math
import random
from collections import deque

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


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x):
        return self.net(x)


def select(q, state, eps):
    if random.random() < eps:
        return random.randrange(2)
    with torch.no_grad():
        return int(q(torch.tensor(state).unsqueeze(0)).argmax(1))


random.seed(0)
torch.manual_seed(0)
env = CartPole(seed=0)
q, target = QNet(), QNet()
target.load_state_dict(q.state_dict())
optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
buffer = deque(maxlen=10000)
eps, step, rewards = 1.0, 0, []
for episode in range(120):
    s, total, done = env.reset(), 0, False
    while not done:
        a = select(q, s, eps)
        s2, r, done, _ = env.step(a)
        buffer.append((s, a, r, s2, done))
        s = s2
        total += r
        step += 1
        if len(buffer) >= 200:
            batch = random.sample(buffer, 64)
            states, actions, rs, next_states, dones = zip(*batch, strict=True)
            states = torch.tensor(np.array(states))
            actions = torch.tensor(actions).unsqueeze(1)
            rs = torch.tensor(rs, dtype=torch.float32)
            next_states = torch.tensor(np.array(next_states))
            dones = torch.tensor(dones, dtype=torch.float32)
            qs = q(states).gather(1, actions).squeeze(1)
            with torch.no_grad():
                y = rs + 0.99 * target(next_states).max(1)[0] * (1 - dones)
            loss = F.mse_loss(qs, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 200 == 0:
            target.load_state_dict(q.state_dict())
    eps = max(0.05, eps * 0.96)
    rewards.append(total)
    if episode % 30 == 29:
        print(episode + 1, np.mean(rewards[-30:]))
