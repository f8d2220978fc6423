import numpy as np
import torch
from torch import nn
from torch.distributions import Normal


class Target:
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def reset(self):
        self.goal, self.x, self.t = self.rng.uniform(-1, 1), 0.0, 0
        return np.array([self.goal, self.x], dtype=np.float32)

    def step(self, a):
        self.x += 0.3 * float(np.clip(a, -1, 1))
        self.t += 1
        return np.array([self.goal, self.x], dtype=np.float32), -abs(self.goal - self.x), self.t == 12, {}


torch.manual_seed(0)
env = Target()
mean = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
log_std = nn.Parameter(torch.tensor([-0.5]))
opt = torch.optim.Adam([*mean.parameters(), log_std], lr=5e-3)
baseline, hist = 0.0, []
for _ in range(150):
    logps, advs, tot = [], [], 0.0
    for _episode in range(4):
        s, done, lp, rs = env.reset(), False, [], []
        while not done:
            d = Normal(mean(torch.from_numpy(s)), log_std.exp())
            a = d.sample()
            lp.append(d.log_prob(a).sum())
            s, r, done, _ = env.step(a.item())
            rs.append(r)
        R = sum(rs)
        logps.append(torch.stack(lp).sum())
        advs.append(R - baseline)
        baseline = 0.95 * baseline + 0.05 * R
        tot += R
    loss = -(torch.stack(logps) * torch.tensor(advs)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    hist.append(tot / 4)
print(np.mean(hist[:20]), np.mean(hist[-20:]))
