import torch
from torch import nn


def mlp(sizes, act=nn.ReLU, out_act=None):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers.append(nn.Linear(a, b))
        layers.append(act())
    layers.pop()
    if out_act is not None:
        layers.append(out_act)
    return nn.Sequential(*layers)


net = mlp([4, 8, 3], out_act=nn.Softmax(dim=1))  # finding: double-softmax
opt = torch.optim.Adam(net.parameters())
crit = nn.CrossEntropyLoss()
for i in range(10):
    loss = crit(net(torch.randn(2, 4)), torch.randint(0, 3, (2,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
