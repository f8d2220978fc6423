import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
scaler = torch.cuda.amp.GradScaler()
accumulate = 4
for step in range(100):
    loss = nn.functional.mse_loss(model(torch.randn(4, 8)), torch.zeros(4, 2)) / accumulate
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # finding: clip-scaled-gradients
    if (step + 1) % accumulate == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
