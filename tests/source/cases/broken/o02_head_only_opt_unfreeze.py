import torch
from torch import nn
from torchvision import models

model = models.resnet18(pretrained=True)
for p in model.parameters():
    p.requires_grad = False
model.fc = nn.Linear(512, 3)
optimizer = torch.optim.Adam(model.fc.parameters(), lr=1e-3)
for epoch in range(10):
    if epoch == 5:
        for p in model.parameters():
            p.requires_grad = True  # finding: params-not-in-optimizer
    loss = nn.functional.cross_entropy(model(torch.randn(2, 3, 64, 64)), torch.randint(0, 3, (2,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
