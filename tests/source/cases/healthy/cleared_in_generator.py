import torch
from torch import nn
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def batches():
    while True:
        opt.zero_grad()
        yield torch.randn(2, 4)
for i, x in zip(range(10), batches()):
    loss = model(x).pow(2).mean()
    loss.backward()
    opt.step()
