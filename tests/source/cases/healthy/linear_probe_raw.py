import torch
import torch.nn as nn
import torchvision

backbone = torchvision.models.resnet18(weights="DEFAULT")
backbone.fc = nn.Identity()
backbone.eval()
W = torch.randn(512, 10, requires_grad=True)
b = torch.zeros(10, requires_grad=True)
opt = torch.optim.SGD([W, b], lr=0.1)
for step in range(100):
    x = torch.randn(8, 3, 224, 224)
    y = torch.randint(0, 10, (8,))
    with torch.no_grad():
        feats = backbone(x)
    loss = nn.functional.cross_entropy(feats @ W + b, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
