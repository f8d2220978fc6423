import torch
from schedules import Noam
from torch import nn

model = nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0)
schedule = Noam(optimizer, 512, warmup=400)
for step in range(100):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.zeros(8).long()).backward()
    optimizer.step()
    schedule.advance()
