import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
opt = torch.optim.Adam(model.parameters())
for i in range(10):
    loss = nn.functional.cross_entropy(model(torch.randn(2, 4)), torch.randint(0, 2, (2,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
model.eval()
model.requires_grad_(False)
x = torch.randn(1, 4, requires_grad=True)
for i in range(5):
    loss = -model(x)[0, 1]
    loss.backward()
    with torch.no_grad():
        x += 0.1 * x.grad.sign()
    x.grad = None
