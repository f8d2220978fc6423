import torch
from torch import nn
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
import functools
zero = functools.partial(opt.zero_grad, set_to_none=True)
for i in range(10):
    zero()
    loss = model(torch.randn(2, 4)).pow(2).mean()
    loss.backward()
    opt.step()
