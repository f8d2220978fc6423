import torch
from torch import nn
from torchvision import models


def freeze(model):
    for name, param in model.named_parameters():
        param.requires_grad = False  # finding: params-not-in-optimizer


def build():
    net = models.resnet18(pretrained=True)
    net.fc = nn.Linear(512, 2)
    freeze(net)
    return net


net = build()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(10):
    opt.zero_grad()
    loss = nn.functional.cross_entropy(net(torch.randn(2, 3, 64, 64)), torch.randint(0, 2, (2,)))
    loss.backward()
    opt.step()
