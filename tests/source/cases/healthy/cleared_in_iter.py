import torch
from torch import nn
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
class Batches:
    def __iter__(self):
        for i in range(10):
            opt.zero_grad()
            yield torch.randn(2, 4)
for x in Batches():
    loss = model(x).pow(2).mean()
    loss.backward()
    opt.step()
