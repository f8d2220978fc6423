import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    @torch.no_grad()  # finding: loss-detached
    def forward(self, x):
        return self.fc(x)


m = Net()
opt = torch.optim.Adam(m.parameters())
for i in range(10):
    loss = nn.functional.cross_entropy(m(torch.randn(2, 4)), torch.randint(0, 2, (2,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
