import torch
from torch import nn


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(8, 16)
        self.cls = nn.Sequential(nn.Linear(16, 4), nn.Softmax(dim=1))  # finding: double-softmax
        self.reg = nn.Linear(16, 2)

    def forward(self, x):
        h = torch.relu(self.trunk(x))
        return {"cls": self.cls(h), "reg": self.reg(h)}


m = M()
losses = {"cls": nn.CrossEntropyLoss(), "reg": nn.MSELoss()}
opt = torch.optim.Adam(m.parameters())
for i in range(10):
    x, t = torch.randn(4, 8), {"cls": torch.randint(0, 4, (4,)), "reg": torch.randn(4, 2)}
    out = m(x)
    loss = losses["cls"](out["cls"], t["cls"]) + losses["reg"](out["reg"], t["reg"])
    opt.zero_grad()
    loss.backward()
    opt.step()
