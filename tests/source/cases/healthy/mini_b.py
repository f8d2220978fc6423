import torch
from torch import nn
m = nn.Linear(4, 1)
opt = torch.optim.Adam(m.parameters())
first = True
for i in range(10):
    if first:
        print("hello")
        first = False
    else:
        opt.zero_grad()
    m(torch.randn(2, 4)).mean().backward()
    opt.step()
