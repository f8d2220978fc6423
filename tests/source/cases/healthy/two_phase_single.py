import torch
from torch import nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(20, 8)

    def forward(self, x):
        return torch.relu(self.fc(x))


encoder = Encoder()
opt = torch.optim.Adam(encoder.parameters(), lr=1e-3)
for epoch in range(5):
    x = torch.randn(4, 20)
    loss = F.mse_loss(encoder(x), torch.zeros(4, 8))
    opt.zero_grad()
    loss.backward()
    opt.step()

# stage 2
for p in encoder.parameters():
    p.requires_grad = False
clf = nn.Linear(8, 3)
opt2 = torch.optim.SGD(clf.parameters(), lr=0.1)
for epoch in range(5):
    loss = F.cross_entropy(clf(encoder(torch.randn(4, 20))), torch.randint(0, 3, (4,)))
    opt2.zero_grad()
    loss.backward()
    opt2.step()
