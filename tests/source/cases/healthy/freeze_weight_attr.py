import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.bn = nn.BatchNorm1d(16)
        self.fc = nn.Linear(16, 3)

    def forward(self, x):
        return self.fc(torch.relu(self.bn(self.body(x))))


net = Net()
for p in net.parameters():
    p.requires_grad = False
net.fc.weight.requires_grad = True
net.fc.bias.requires_grad = True
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(10):
    x, y = torch.randn(8, 8), torch.randint(0, 3, (8,))
    opt.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    opt.step()
