import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
code = torch.randn(3000, 8)
images = code @ torch.randn(8, 48) + 0.1 * torch.randn(3000, 48)
texts = torch.tanh(code @ torch.randn(8, 24)) + 0.1 * torch.randn(3000, 24)


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(48, 128), nn.ReLU(), nn.Linear(128, 32))
        self.text = nn.Sequential(nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, 32))
        self.scale = nn.Parameter(torch.tensor(2.6))

    def forward(self, i, t):
        i, t = F.normalize(self.image(i), dim=-1), F.normalize(self.text(t), dim=-1)
        return self.scale.exp() * i @ t.t()


model = Clip()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
for epoch in range(5):
    for i, t in DataLoader(TensorDataset(images, texts), 128, shuffle=True, drop_last=True):
        logits = model(i, t)
        y = torch.arange(len(i))
        loss = (F.cross_entropy(logits, y) + F.cross_entropy(logits.t(), y)) / 2
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
