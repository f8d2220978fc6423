import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(3, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.backbone(x))


net = Net()
slow = torch.optim.SGD(net.backbone.parameters(), lr=0.01)
fast = torch.optim.SGD(net.head.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in torch.randn(20, 8, 3):
    slow.zero_grad()
    fast.zero_grad()
    scaler.scale(F.cross_entropy(net(x), torch.randint(0, 5, (8,)))).backward()
    scaler.unscale_(slow)
    torch.nn.utils.clip_grad_norm_(net.backbone.parameters(), 1.0)
    scaler.step(slow)
    scaler.step(fast)
    scaler.update()
