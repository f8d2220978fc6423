import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler()
for step in range(100):
    optimizer.zero_grad()
    scaler.scale(nn.functional.mse_loss(model(torch.randn(4, 8)), torch.zeros(4, 2))).backward()
    inverse = 1.0 / scaler.get_scale()
    for parameter in model.parameters():
        parameter.grad.mul_(inverse)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
