import torch
from torch import nn
import torchvision.models as models

model = models.resnet18()
model.requires_grad_(False)
for m in model.modules():
    if isinstance(m, nn.BatchNorm2d):
        m.weight.requires_grad_(True)
        m.bias.requires_grad_(True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for i in range(10):
    out = model(torch.randn(2, 3, 64, 64))
    loss = nn.functional.cross_entropy(out, torch.randint(0, 1000, (2,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
