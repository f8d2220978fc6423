import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

intervals = TensorDataset(torch.randn(64, 3), torch.randint(0, 2, (64,)))
interval_sampler = DistributedSampler(intervals)  # finding: same-data-on-ranks
loader = DataLoader(intervals, batch_size=4, sampler=interval_sampler)
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
