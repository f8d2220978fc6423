import torch
from torch import nn
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
opt.register_step_post_hook(lambda o, a, k: o.zero_grad())
for i in range(10):
    loss = model(torch.randn(2, 4)).pow(2).mean()
    loss.backward()
    opt.step()
