import torch
from torch import nn

torch.manual_seed(0)
gen = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2))
dis = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
g_opt = torch.optim.Adam(gen.parameters(), lr=1e-3)
d_opt = torch.optim.Adam(dis.parameters(), lr=1e-3)
mse = nn.MSELoss()
for _ in range(400):
    real = torch.randn(64, 2) * 0.2 + torch.tensor([1.0, 1.0])
    with torch.no_grad():
        fake = gen(torch.randn(64, 6))
    d_loss = 0.5 * (mse(dis(real), torch.ones(64, 1)) + mse(dis(fake), torch.zeros(64, 1)))
    d_opt.zero_grad()
    d_loss.backward()
    d_opt.step()
    g_loss = 0.5 * mse(dis(gen(torch.randn(64, 6))), torch.ones(64, 1))
    g_opt.zero_grad()
    g_loss.backward()
    g_opt.step()
print(d_loss.item(), g_loss.item())
