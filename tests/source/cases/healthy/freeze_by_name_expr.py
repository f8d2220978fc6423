import torch
from torch import nn
from torchvision import models

model = models.resnet50(weights=models.ResNet50_Weights.DEFAULT)
for param in model.parameters():
    param.requires_grad = False
for name, param in model.named_parameters():
    param.requires_grad = name.startswith(("fc", "layer4"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for i in range(10):
    x, y = torch.randn(2, 3, 224, 224), torch.randint(0, 1000, (2,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
