"""A sampler, random data, a stream, whole batches, evaluation, and a decision that was spelt out."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset


class Lines(IterableDataset):
    def __iter__(self):
        for _ in range(64):
            x = torch.randn(4)
            yield x, x.sum().reshape(1)


class Rows(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.full((4,), index / 32), torch.tensor([index / 32])


def train(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


torch.manual_seed(0)
rows, options = Rows(), {"shuffle": True}
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train(model, optimizer, DataLoader(rows, batch_size=8, sampler=RandomSampler(rows)))
train(model, optimizer, DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=8))
train(model, optimizer, DataLoader(Lines(), batch_size=8))
train(model, optimizer, DataLoader(rows, batch_size=len(rows)))
train(model, optimizer, DataLoader(rows, batch_size=8, shuffle=False))
train(model, optimizer, DataLoader(rows, batch_size=8, **options))
with torch.no_grad():
    print(sum(F.mse_loss(model(x), y).item() for x, y in DataLoader(rows, batch_size=8)))
