import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(x))

    def reset_head(self, n):
        self.head = nn.Linear(8, n)  # finding: params-not-in-optimizer


class Trainer:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.Adam(self.model.parameters())

    def fit(self):
        for i in range(10):
            loss = nn.functional.cross_entropy(self.model(torch.randn(2, 4)), torch.randint(0, 5, (2,)))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()


net = Net()
t = Trainer(net)
net.reset_head(5)
t.fit()
