import torch
from torch import nn

model = nn.Linear(8, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=3)
for epoch in range(10):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(torch.randn(4, 8)), torch.zeros(4, 3)).backward()
    optimizer.step()
    scheduler.step()  # finding: scheduler-misuse
