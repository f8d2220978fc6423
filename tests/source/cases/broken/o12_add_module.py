import torch
from torch import nn

model = nn.Sequential()
model.add_module("fc1", nn.Linear(4, 8))
model.add_module("act", nn.ReLU())
model.add_module("fc2", nn.Linear(8, 3))
model.add_module("softmax", nn.Softmax(dim=1))  # finding: double-softmax
criterion = nn.CrossEntropyLoss()
opt = torch.optim.Adam(model.parameters())
for i in range(10):
    opt.zero_grad()
    loss = criterion(model(torch.randn(4, 4)), torch.randint(0, 3, (4,)))
    loss.backward()
    opt.step()
