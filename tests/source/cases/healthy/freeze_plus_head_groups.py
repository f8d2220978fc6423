import torch
from torch import nn


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())

    def forward(self, x):
        return self.net(x).mean((2, 3))


class Head(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.fc = nn.Linear(8, classes)

    def forward(self, x):
        return self.fc(x)


backbone = Backbone()
head = Head(10)
for p in backbone.parameters():
    p.requires_grad = False
optimizer = torch.optim.Adam(list(backbone.parameters()) + list(head.parameters()), lr=1e-3)
criterion = nn.CrossEntropyLoss()
for epoch in range(10):
    x, y = torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))
    optimizer.zero_grad()
    loss = criterion(head(backbone(x)), y)
    loss.backward()
    optimizer.step()
