from collections import OrderedDict
import torch
from torch import nn

model = nn.Sequential(OrderedDict([
    ("fc1", nn.Linear(4, 8)),
    ("relu", nn.ReLU()),
    ("fc2", nn.Linear(8, 3)),
    ("prob", nn.Softmax(dim=1)),  # finding: double-softmax
]))
criterion = nn.CrossEntropyLoss()
opt = torch.optim.Adam(model.parameters())
for i in range(10):
    opt.zero_grad()
    out = model(torch.randn(4, 4))
    loss = criterion(out, torch.randint(0, 3, (4,)))
    loss.backward()
    opt.step()
