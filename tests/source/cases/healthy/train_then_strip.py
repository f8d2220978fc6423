import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(x))


net = Net()
opt = torch.optim.Adam(net.parameters())
for i in range(10):
    loss = nn.functional.cross_entropy(net(torch.randn(2, 4)), torch.randint(0, 2, (2,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
# export: swap in a fused head, freeze, and evaluate
net.head = nn.Linear(8, 2, bias=False)
net.head.load_state_dict(torch.load("head.pt"))
for p in net.parameters():
    p.requires_grad = False
net.eval()
print(net(torch.randn(1, 4)))
