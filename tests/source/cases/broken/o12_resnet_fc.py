import torch
from torch import nn
from torchvision import models

model = models.resnet18(pretrained=True)
model.fc = nn.Sequential(nn.Linear(512, 2), nn.Softmax(dim=1))  # finding: double-softmax
criterion = nn.CrossEntropyLoss()
opt = torch.optim.Adam(model.parameters())
for i in range(10):
    opt.zero_grad()
    loss = criterion(model(torch.randn(2, 3, 64, 64)), torch.randint(0, 2, (2,)))
    loss.backward()
    opt.step()
