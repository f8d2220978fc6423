import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

torch.manual_seed(0)
basis = torch.randn(3, 20)
data = torch.randn(2000, 3) @ basis + 0.1 * torch.randn(2000, 20)
enc = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 6))
dec = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 20))
optimizer = torch.optim.Adam([*enc.parameters(), *dec.parameters()], lr=2e-3)
for step in range(400):
    x = data[torch.randint(0, 2000, (128,))]
    mu, raw = enc(x).chunk(2, dim=-1)
    posterior = Normal(mu, nn.functional.softplus(raw) + 1e-4)
    z = posterior.rsample()
    rec = Normal(dec(z), 0.5).log_prob(x).sum(1)
    kl = kl_divergence(posterior, Normal(0.0, 1.0)).sum(1)
    loss = (kl - rec).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 99:
        print(step, loss.item(), kl.mean().item())
