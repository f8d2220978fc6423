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


class Agent:
    def __init__(self, gamma=0.97):
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2), nn.Softmax(dim=-1))
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=4e-3)
        self.gamma = gamma

    def act(self, state):
        dist = Categorical(self.actor(torch.as_tensor(state)))
        action = dist.sample()
        return action.item(), dist.log_prob(action)

    def learn(self, state, logp, reward, next_state, done):
        value = self.critic(torch.as_tensor(state))
        with torch.no_grad():
            next_value = self.critic(torch.as_tensor(next_state))
        target = reward + self.gamma * next_value * (1 - int(done))
        delta = target - value
        critic_loss = delta.pow(2)
        self.critic_opt.zero_grad()
        critic_loss.backward()
        self.critic_opt.step()
        actor_loss = -logp * delta.detach()
        self.actor_opt.zero_grad()
        actor_loss.sum().backward()
        self.actor_opt.step()


torch.manual_seed(0)
env, agent = CartPole(seed=0), Agent()
lengths = []
for ep in range(120):
    s, done, n = env.reset(), False, 0
    while not done:
        a, logp = agent.act(s)
        s2, r, done, _ = env.step(a)
        agent.learn(s, logp, r, s2, done)
        s = s2
        n += 1
    lengths.append(n)
    if ep % 30 == 29:
        print(ep + 1, np.mean(lengths[-30:]))
