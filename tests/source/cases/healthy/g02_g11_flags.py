import torch
from torch import nn

model, teacher = nn.Linear(8, 2), nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
probe = torch.optim.SGD(teacher.parameters(), lr=0.1)
accum, micro = 4, 0
for i in range(100):
    is_boundary = (i + 1) % accum == 0
    probe.zero_grad()
    nn.functional.mse_loss(teacher(torch.randn(4, 8)), torch.zeros(4, 2)).backward()
    probe.step()
    if micro == 0:
        optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(torch.randn(4, 8)), torch.zeros(4, 2)) / accum
    loss.backward()
    micro += 1
    if is_boundary:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if is_boundary:
        optimizer.step()
        micro = 0
