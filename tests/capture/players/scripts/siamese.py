import torch
import torch.nn as nn
import torch.nn.functional as F


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, a, b):
        return self.embed(a), self.embed(b)


def contrastive(u, v, same, margin=1.0):
    d = F.pairwise_distance(u, v)
    return (same * d.pow(2) + (1 - same) * F.relu(margin - d).pow(2)).mean()


torch.manual_seed(0)
protos = torch.randn(12, 10) * 1.5
net = Siamese()
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for it in range(300):
    y1, y2 = torch.randint(0, 12, (128,)), torch.randint(0, 12, (128,))
    y2 = torch.where(torch.rand(128) < 0.5, y1, y2)
    x1, x2 = protos[y1] + 0.3 * torch.randn(128, 10), protos[y2] + 0.3 * torch.randn(128, 10)
    loss = contrastive(*net(x1, x2), (y1 == y2).float())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 75 == 74:
        print(it, loss.item())
