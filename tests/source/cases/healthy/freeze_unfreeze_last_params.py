import torch
from torch import nn
from torchvision import models

model = models.vgg16(pretrained=True)
for param in model.parameters():
    param.requires_grad = False
for param in list(model.parameters())[-4:]:
    param.requires_grad = True
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
criterion = nn.CrossEntropyLoss()
for i in range(10):
    x, y = torch.randn(2, 3, 224, 224), torch.randint(0, 1000, (2,))
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
