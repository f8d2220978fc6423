import torch
from torch import nn
class Bank(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = [nn.Linear(4, 3) for _ in range(3)]
        for i, head in enumerate(self.heads):
            self.register_parameter(f"w{i}", head.weight)
            self.register_parameter(f"b{i}", head.bias)
    def forward(self, x):
        return sum(h(x) for h in self.heads)
model = Bank()
opt = torch.optim.Adam(model.parameters(), lr=0.1)
for epoch in range(10):
    opt.zero_grad()
    model(torch.randn(2, 4)).sum().backward()
    opt.step()
