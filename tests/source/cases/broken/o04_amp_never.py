import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
scaler = torch.cuda.amp.GradScaler()
for i, (x, y) in enumerate([(torch.randn(2, 4), torch.randn(2, 1))] * 10):
    with torch.cuda.amp.autocast():
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # finding: step-order
    scaler.update()
