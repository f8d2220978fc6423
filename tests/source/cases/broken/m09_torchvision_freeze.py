import torch
from torch import nn
from torchvision import models

torch.manual_seed(0)
model = models.resnet18(weights="DEFAULT")
for name, child in model.named_children():
    if name != "fc":
        child.requires_grad = False  # finding: freeze-without-effect
model.layer1.requires_grad = False  # finding: freeze-without-effect
model.fc.out_features = 10  # finding: freeze-without-effect
for param in model.layer2.parameters():
    param.requires_gradient = False  # finding: freeze-without-effect
for param in model.layer3.parameters():
    param.trainable = False  # finding: freeze-without-effect
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    x, y = torch.randn(4, 3, 64, 64), torch.randint(0, 10, (4,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
