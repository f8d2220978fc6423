import torch
from torch import nn

model = nn.Linear(4, 2)
optims = {p: torch.optim.Adam([p]) for p in model.parameters()}


def hook(p):
    optims[p].step()
    optims[p].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(hook)
for i in range(10):
    model(torch.randn(2, 4)).mean().backward()
