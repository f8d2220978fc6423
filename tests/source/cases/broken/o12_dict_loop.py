import torch
from torch import nn


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(8, 16)
        self.heads = nn.ModuleList([nn.Linear(16, 4) for _ in range(3)])

    def forward(self, x):
        h = torch.relu(self.trunk(x))
        return [torch.softmax(head(h), dim=1) for head in self.heads]  # finding: double-softmax


m = M()
ce = nn.CrossEntropyLoss()
opt = torch.optim.Adam(m.parameters())
for i in range(10):
    x, ys = torch.randn(4, 8), [torch.randint(0, 4, (4,)) for _ in range(3)]
    outs = m(x)
    loss = 0
    for o, y in zip(outs, ys):
        loss = loss + ce(o, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
