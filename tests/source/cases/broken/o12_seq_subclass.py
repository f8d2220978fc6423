import torch
from torch import nn


class Net(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(
            nn.Linear(i, 8),
            nn.ReLU(),
            nn.Linear(8, o),
            nn.Softmax(dim=1),  # finding: double-softmax
        )


model = Net(4, 3)
opt = torch.optim.Adam(model.parameters())
for i in range(10):
    opt.zero_grad()
    loss = nn.CrossEntropyLoss()(model(torch.randn(4, 4)), torch.randint(0, 3, (4,)))
    loss.backward()
    opt.step()
