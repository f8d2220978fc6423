import torch
from torch import nn

m = nn.Linear(4, 1)
opt = torch.optim.Adam(m.parameters())
for i in range(10):
    x, y = torch.randn(8, 4), torch.randint(0, 2, (8, 1)).float()
    pred = (torch.sigmoid(m(x)) > 0.5).float()  # finding: loss-detached
    loss = nn.functional.binary_cross_entropy(pred, y)
    loss.requires_grad_(True)
    opt.zero_grad()
    loss.backward()
    opt.step()
