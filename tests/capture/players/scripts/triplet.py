import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Triplets(Dataset):
    def __init__(self, n=1500):
        g = torch.Generator().manual_seed(0)
        self.centers = torch.randn(20, 16, generator=g)
        self.y = torch.randint(0, 20, (n,), generator=g)
        self.x = self.centers[self.y] + 0.6 * torch.randn(n, 16, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        same = (self.y == self.y[i]).nonzero().flatten()
        other = (self.y != self.y[i]).nonzero().flatten()
        p = same[torch.randint(len(same), (1,))].item()
        n = other[torch.randint(len(other), (1,))].item()
        return self.x[i], self.x[p], self.x[n]


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))

    def forward(self, x):
        return self.net(x)


torch.manual_seed(0)
loader = DataLoader(Triplets(), batch_size=64, shuffle=True)
model = Embed()
criterion = nn.TripletMarginLoss(margin=1.0)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(6):
    for a, p, n in loader:
        loss = criterion(model(a), model(p), model(n))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
