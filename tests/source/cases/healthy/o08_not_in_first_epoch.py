import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

batches = torch.randn(16, 8, 3)
epochs = 10
model = nn.Linear(3, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = lr_scheduler.StepLR(optimizer, 3)
for epoch in range(epochs):
    if epoch > 0:
        scheduler.step()
    for i, x in enumerate(batches):
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.randint(0, 5, (8,))).backward()
        optimizer.step()
    print(epoch)
