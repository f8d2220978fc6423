import torch
from torch import nn

m = nn.Linear(4, 2)
opt = torch.optim.Adam(m.parameters())
losses = []
for i in range(10):
    losses = []
    for k in range(3):
        l = nn.functional.cross_entropy(m(torch.randn(2, 4)), torch.randint(0, 2, (2,)))
        losses.append(l.item())  # finding: loss-detached
    loss = torch.tensor(losses, requires_grad=True).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
