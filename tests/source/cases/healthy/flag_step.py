import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pending = False
count = 0
for batch in range(100):
    if pending:
        optimizer.step()
        optimizer.zero_grad()
        pending = False
    loss = model(torch.randn(8, 4)).pow(2).mean() / 4
    loss.backward()
    count += 1
    if count % 4 == 0:
        pending = True
