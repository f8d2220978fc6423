import torch
from torch import nn
from torch.optim import lr_scheduler

model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
plateau = lr_scheduler.ReduceLROnPlateau(optimizer)
decay = lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.95**epoch)
for i in range(100):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(torch.randn(4, 8)), torch.zeros(4, 1))
    loss.backward()
    optimizer.step()
    decay.step()
    plateau.step(loss.item())
    print(plateau.get_lr())  # finding: actual-lr
    print("rate %f" % decay.get_lr()[0])  # finding: actual-lr
