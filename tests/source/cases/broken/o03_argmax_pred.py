import torch
from torch import nn

m = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
opt = torch.optim.SGD(m.parameters(), lr=0.1)
crit = nn.MSELoss()
for i in range(10):
    y = torch.randint(0, 3, (4,)).float()
    pred = torch.argmax(m(torch.randn(4, 4)), dim=1).float()  # finding: loss-detached
    loss = crit(pred, y)
    loss.requires_grad = True
    opt.zero_grad()
    loss.backward()
    opt.step()
