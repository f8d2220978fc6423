import torch
from torch import nn
from torch.nn.functional import softmax, cross_entropy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(4, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x, h=None):
        o, h = self.gru(x, h)
        o = softmax(self.out(o[-1]), -1)  # finding: double-softmax
        return o, h


def step(net, opt, x, y):
    pred, _ = net(x)
    loss = cross_entropy(pred, y)
    opt.zero_grad()
    loss.backward()
    opt.step()


net = Net()
opt = torch.optim.Adam(net.parameters())
for i in range(5):
    step(net, opt, torch.randn(7, 2, 4), torch.randint(0, 3, (2,)))
