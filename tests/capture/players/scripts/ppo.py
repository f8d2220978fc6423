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


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))

    def get_value(self, x):
        return self.critic(x).squeeze(-1)

    def get_action(self, x, a=None):
        dist = Categorical(logits=self.actor(x))
        if a is None:
            a = dist.sample()
        return a, dist.log_prob(a), dist.entropy(), self.get_value(x)


torch.manual_seed(0)
np.random.seed(0)
env, net = CartPole(seed=0), Net()
opt = torch.optim.Adam(net.parameters(), lr=2.5e-3, eps=1e-5)
T, gamma, lam, clip = 256, 0.99, 0.95, 0.2
obs, ep_ret, rets, done = env.reset(), 0.0, [], False
for update in range(25):
    S, A, LP, R, D, V = [], [], [], [], [], []
    for _ in range(T):
        with torch.no_grad():
            a, lp, _, v = net.get_action(torch.tensor(obs))
        nxt, r, d, _ = env.step(a.item())
        S.append(obs)
        A.append(a)
        LP.append(lp)
        R.append(r)
        D.append(float(d))
        V.append(v)
        ep_ret += r
        obs = nxt
        if d:
            rets.append(ep_ret)
            ep_ret, obs = 0.0, env.reset()
    with torch.no_grad():
        last = net.get_value(torch.tensor(obs))
    V = torch.stack(V)
    adv, g = torch.zeros(T), 0.0
    for t in reversed(range(T)):
        nv = last if t == T - 1 else V[t + 1]
        delta = R[t] + gamma * nv * (1 - D[t]) - V[t]
        g = delta + gamma * lam * (1 - D[t]) * g
        adv[t] = g
    ret = adv + V
    S, A, LP = torch.tensor(np.array(S)), torch.stack(A), torch.stack(LP)
    idx = np.arange(T)
    for _epoch in range(4):
        np.random.shuffle(idx)
        for k in range(0, T, 64):
            mb = idx[k : k + 64]
            _, newlp, ent, newv = net.get_action(S[mb], A[mb])
            ratio = (newlp - LP[mb]).exp()
            ad = adv[mb]
            ad = (ad - ad.mean()) / (ad.std() + 1e-8)
            pg = torch.max(-ad * ratio, -ad * torch.clamp(ratio, 1 - clip, 1 + clip)).mean()
            vl = 0.5 * ((newv - ret[mb]) ** 2).mean()
            loss = pg - 0.01 * ent.mean() + 0.5 * vl
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            opt.step()
    if update % 5 == 4:
        print(update + 1, np.mean(rets[-10:]))
