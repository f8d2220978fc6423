import torch
from torch import nn

model = nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for x in [torch.randn(2, 4)]:
    loss = model(x).mean()
    loss.backward()
    opt.step()
    break
for i in range(10):
    m2 = nn.Linear(4, 2)
    o2 = torch.optim.SGD(m2.parameters(), lr=0.1)
    loss = m2(torch.randn(2, 4)).mean()
    loss.backward()
    o2.step()
