import torch
from torch import nn
import torchvision

model = torchvision.models.resnet50(weights="IMAGENET1K_V2")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
in_features = model.fc.in_features
model.fc = nn.Linear(in_features, 5)  # finding: params-not-in-optimizer
for i in range(10):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(torch.randn(2, 3, 64, 64)), torch.randint(0, 5, (2,)))
    loss.backward()
    optimizer.step()
